"""What a fetch may be made ahead of, whoever makes it."""

from __future__ import annotations

import pytest

from aotc.ir.dialects import tma
from aotc.schedule.tensor_maps.reorder_hazard import reorder_hazard
from tests.support.fetching import block, branch, fetch, fetching, loop, read

FETCH = fetch("a", "%n") + read("a")
TO_X = block("b", "%one", "%z").replace("%y", "%x")
BARRIER = "  tile.barrier\n"
ORDERS = "tile.barrier before it keeps memory accesses in order"
FIRST = {
    "a barrier": (BARRIER + FETCH, ORDERS),
    "a barrier after it": (FETCH + BARRIER, ""),
    "a barrier in the other arm": (
        "  scf.if(%c) () {\n"
        + BARRIER
        + "  scf.yield()\n  } () {\n"
        + FETCH
        + "  scf.yield()\n  }\n",
        "",
    ),
    "a barrier in a branch": (branch("%c", BARRIER) + FETCH, ORDERS),
    "a barrier after it in a loop": (loop(FETCH + BARRIER), ORDERS),
    "a fence": (
        '  gpu.fence {scope = "gpu"}\n' + FETCH,
        ORDERS.replace("tile.barrier", "gpu.fence"),
    ),
    "a store by the same descriptor": (FETCH + TO_X, "the kernel writes x, too"),
    "a sum by the same descriptor": (
        FETCH
        + TO_X.replace(
            "gpu.tma_store(%x, %b_out, %b_at)", 'gpu.tma_reduce(%x, %b_out, %b_at) {kind = "add"}'
        ),
        "the kernel writes x, too",
    ),
    "a store by another descriptor": (block("b", "%one", "%z") + FETCH, ""),
    "a store through a pointer": ("  gpu.store(%p, %n)\n" + FETCH, ""),
}


@pytest.mark.parametrize("case", FIRST)
def test_what_orders_a_fetch(case: str) -> None:
    body, reason = FIRST[case]
    ops = list(fetching(body).walk())
    found = next(op for op in ops if isinstance(op, tma.SyncTmaLoad) and op.tensor.hint == "x")
    assert reorder_hazard(found, ops) == reason

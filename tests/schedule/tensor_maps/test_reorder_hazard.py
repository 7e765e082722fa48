"""Ops that a load may not be issued ahead of, in any warp."""

from __future__ import annotations

import pytest

from aotc.ir.dialects import tma
from aotc.schedule.tensor_maps.reorder_hazard import reorder_hazard
from tests.support.tensor_loads import branch, copy, kernel_of, load, loop, read

LOAD = load("a", "%n") + read("a")
TO_X = copy("b", "%one", "%z").replace("%y", "%x")
BARRIER = "  tile.barrier\n"
STORE = "  gpu.store(%p, %n)\n"
ORDERS = "tile.barrier before it keeps memory accesses in order"
FIRST = {
    "a barrier": (STORE + BARRIER + LOAD, ORDERS),
    "a barrier after nothing that was written": (BARRIER + LOAD + STORE, ""),
    "a barrier in a loop after a store": (STORE + loop(BARRIER + LOAD), ORDERS),
    "a barrier after it": (LOAD + BARRIER, ""),
    "a barrier in the other arm": (
        "  scf.if(%c) () {\n"
        + BARRIER
        + "  scf.yield()\n  } () {\n"
        + LOAD
        + "  scf.yield()\n  }\n",
        "",
    ),
    "a barrier in a branch": (STORE + branch("%c", BARRIER) + LOAD, ORDERS),
    "a barrier after it in a loop": (loop(LOAD + STORE + BARRIER), ORDERS),
    "a fence": (
        '  gpu.fence {scope = "gpu"}\n' + LOAD,
        ORDERS.replace("tile.barrier", "gpu.fence"),
    ),
    "a store by the same descriptor": (LOAD + TO_X, "the kernel writes x, too"),
    "a sum by the same descriptor": (
        LOAD
        + TO_X.replace(
            "gpu.tma_store(%x, %b_out, %b_at)", 'gpu.tma_reduce(%x, %b_out, %b_at) {kind = "add"}'
        ),
        "the kernel writes x, too",
    ),
    "a store by another descriptor": (copy("b", "%one", "%z") + LOAD, ""),
    "a store through a pointer": ("  gpu.store(%p, %n)\n" + LOAD, ""),
}


@pytest.mark.parametrize("case", FIRST)
def test_what_orders_a_fetch(case: str) -> None:
    body, reason = FIRST[case]
    ops = list(kernel_of(body).walk())
    load = next(op for op in ops if isinstance(op, tma.SyncTmaLoad) and op.tensor.hint == "x")
    assert reorder_hazard(load, ops) == reason

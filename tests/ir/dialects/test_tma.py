"""Tensor copies: operand checks and their errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aotc.ir.core import Block, Op, Value
from aotc.ir.diagnostics import IRError
from aotc.ir.dialects import gpu, tma
from aotc.ir.layout import LinearLayout
from aotc.ir.types import (
    FP32,
    FP64,
    I32,
    I64,
    U64,
    PointerType,
    SharedType,
    TensorMapType,
    TileType,
)

ROWS = LinearLayout.from_columns([("offset", [1 << bit for bit in range(6)])], (("dim0", 6),))
SQUARE = LinearLayout.from_columns(
    [("offset", [1 << bit for bit in range(6)])], (("dim0", 3), ("dim1", 3))
)
TALL = LinearLayout.from_columns(
    [("offset", [1 << bit for bit in range(7)])], (("dim0", 4), ("dim1", 3))
)
ONE = LinearLayout.from_columns([("offset", [])], (("dim0", 0),))
KINDS = {
    "map": TensorMapType(FP32, (16,)),
    "flat": TensorMapType(FP32, (8, 8)),
    "wide": TensorMapType(FP32, (128,)),
    "stack": TensorMapType(FP32, (1, 1, 8, 8)),
    "stacks": TensorMapType(FP32, (2, 8, 8)),
    "doubles": TensorMapType(FP64, (16,)),
    "buffer": SharedType(FP32, (64,), ROWS),
    "square": SharedType(FP32, (8, 8), SQUARE),
    "tall": SharedType(FP32, (16, 8), TALL),
    "halves": TensorMapType(FP32, (2, 4, 8)),
    "ring": SharedType(FP32, (64,), ROWS, 2),
    "bar": SharedType(U64, (1,), ONE),
    "bars": SharedType(U64, (1,), ONE, 2),
    "i": I32,
    "long": I64,
    "at": PointerType(FP32),
    "tile": TileType(FP32, (64,)),
    "other_tile": TileType(FP32, (32,)),
}


@pytest.fixture
def values() -> dict[str, Value]:
    return dict(zip(KINDS, Block(list(KINDS.values())).args, strict=True))


def test_a_block_is_made_of_boxes(values: dict[str, Value]) -> None:
    load = tma.TmaLoad(values["map"], values["buffer"], values["bar"], [values["i"]])
    kind = tma.check_tensor(load, load.tensor, load.buffer, load.coords)
    assert kind.box_bytes == 64
    stacked = tma.SyncTmaLoad(values["stack"], values["square"], [values["i"]] * 4)
    assert len(stacked.coords) == 4
    merged = tma.SyncTmaLoad(values["stacks"], values["tall"], [values["i"]] * 3)
    assert tma.box_in_buffer(values["stacks"].type, 2) == (16, 8)  # type: ignore[arg-type]
    assert len(merged.coords) == 3
    turned = gpu.SharedTrans(values["square"], (1, 0)).out.type
    assert isinstance(turned, SharedType)
    assert turned.layout == SQUARE.transpose((1, 0))


def test_a_fetch_is_started_elsewhere(values: dict[str, Value]) -> None:
    tensor = tma.SyncTmaLoad(values["map"], values["buffer"], [values["i"]], "evict_last")
    run = tma.SyncBulkLoad(values["at"], values["buffer"], values["i"], "evict_first")
    for fetch, kind in ((tensor, tma.TmaLoad), (run, tma.BulkLoad)):
        load = fetch.as_async_load(fetch.inputs, values["buffer"], values["bar"], arrive=False)
        assert isinstance(load, kind)
        assert load.operands == [
            *(fetch.inputs[0], values["buffer"], values["bar"]),
            *fetch.inputs[1:],
        ]
        assert (load.arrive, load.eviction) == (False, fetch.eviction)


def test_a_staged_store_is_issued_elsewhere(values: dict[str, Value]) -> None:
    first, second = values["buffer"], gpu.SharedStage(values["ring"], values["i"]).out
    for kind in ("", "add"):
        staged = tma.StagedTmaStore(values["map"], values["tile"], first, [values["i"]], kind)
        store = staged.as_async_store(second, [values["i"]])
        assert isinstance(store, tma.TmaReduce if kind else tma.TmaStore)
        assert store.operands == [values["map"], second, values["i"]]
    for kind in ("", "add"):
        run = tma.StagedBulkStore(values["at"], values["tile"], first, values["i"], kind)
        copy = run.as_async_store(second, ())
        assert (copy.operands, copy.kind) == ([values["at"], second, values["i"]], kind)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda v: tma.SyncTmaLoad(v["i"], v["buffer"], [v["i"]]),
            "expected a tensor map, got i32",
        ),
        (lambda v: tma.SyncTmaLoad(v["map"], v["i"], [v["i"]]), "a shared buffer of one stage"),
        (lambda v: tma.SyncTmaLoad(v["map"], v["ring"], [v["i"]]), "a shared buffer of one stage"),
        (lambda v: tma.SyncTmaLoad(v["wide"], v["buffer"], [v["i"]]), "not made of boxes"),
        (lambda v: tma.SyncTmaLoad(v["doubles"], v["buffer"], [v["i"]]), "not made of boxes"),
        (
            lambda v: tma.TmaStore(v["map"], v["buffer"], [v["i"]], issuers=(0, 1)),
            "2 issuers of 4 boxes",
        ),
        (lambda v: tma.SyncTmaLoad(v["flat"], v["buffer"], [v["i"]] * 2), "not made of boxes"),
        (lambda v: tma.SyncTmaLoad(v["stacks"], v["square"], [v["i"]] * 3), "not made of boxes"),
        # Data beside a box along collapsed axes has no single coordinate.
        (lambda v: tma.SyncTmaLoad(v["halves"], v["tall"], [v["i"]] * 3), "not made of boxes"),
        (lambda v: tma.SyncTmaLoad(v["map"], v["square"], [v["i"]]), "not made of boxes"),
        (lambda v: tma.SyncTmaLoad(v["stack"], v["square"], [v["i"]] * 2), r"at \(i32, i32\)"),
        (lambda v: tma.TmaStore(v["map"], v["buffer"], []), r"at \(\)"),
        (lambda v: tma.TmaStore(v["map"], v["buffer"], [v["long"]]), r"at \(i64\)"),
        (
            lambda v: tma.TmaReduce(v["map"], v["buffer"], [v["i"]], kind="max"),
            "no max of fp32",
        ),
        (
            lambda v: tma.TmaLoad(v["map"], v["buffer"], v["buffer"], [v["i"]]),
            "expected a mbarrier",
        ),
        (
            lambda v: tma.SyncBulkLoad(v["i"], v["buffer"], v["i"]),
            "copies between i32 and shared<64xfp32",
        ),
        (
            lambda v: tma.SyncBulkLoad(v["at"], v["bar"], v["i"]),
            r"copies between \*fp32 and shared<1xu64",
        ),
        (lambda v: tma.SyncBulkLoad(v["at"], v["ring"], v["i"]), "a shared buffer of one stage"),
        (lambda v: tma.SyncBulkLoad(v["at"], v["buffer"], v["long"]), "the size is i64, not i32"),
        (
            lambda v: tma.BulkLoad(v["at"], v["buffer"], v["buffer"], v["i"]),
            "expected a mbarrier",
        ),
        (
            lambda v: tma.StagedTmaStore(v["map"], v["other_tile"], v["buffer"], [v["i"]]),
            "tile<32xfp32> in shared<64xfp32",
        ),
        (
            lambda v: tma.StagedTmaStore(v["map"], v["tile"], v["buffer"], [v["i"]], kind="max"),
            "no max of fp32",
        ),
        (
            lambda v: tma.StagedTmaStore(v["map"], v["tile"], v["buffer"], []),
            r"at \(\)",
        ),
        (
            lambda v: tma.StagedBulkStore(v["at"], v["i"], v["buffer"], v["i"]),
            "i32 in shared<64xfp32",
        ),
        (
            lambda v: tma.StagedBulkStore(v["at"], v["tile"], v["buffer"], v["long"]),
            "the size is i64, not i32",
        ),
        (
            lambda v: tma.StagedBulkStore(v["at"], v["tile"], v["buffer"], v["i"], kind="max"),
            "no max of fp32",
        ),
        (lambda v: tma.BulkStore(v["at"], v["buffer"], v["i"], kind="or"), "no or of fp32"),
        (lambda _: tma.TmaStoreWait(pending=-1), "-1 pending stores"),
        (lambda v: gpu.SharedTrans(v["square"], (0, 0)), "does not permute 2 axes"),
    ],
)
def test_what_does_not_fit(
    values: dict[str, Value], make: Callable[[dict[str, Value]], Op], message: str
) -> None:
    with pytest.raises(IRError, match=message):
        make(values)

"""Typing rules of tile ops: shapes, layouts and refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from aotc.ir.core import Block, Op, Value
from aotc.ir.diagnostics import IRError
from aotc.ir.dialects import scf, tile
from aotc.ir.rewrite import Builder
from aotc.ir.types import (
    BF16,
    FP8E4NV,
    FP8E5,
    FP16,
    FP32,
    FP64,
    I1,
    I8,
    I32,
    U32,
    PointerType,
    ScalarType,
    TileType,
    Type,
)
from tests.support.op_sampler import EXTENT, PAIRS, ROW, SWAPPED


def _values(*types: Type) -> list[Value]:
    return Block(types).args


X = TileType(FP32, (EXTENT,), ROW)
PLAIN = TileType(FP32, (4, 8))


def test_shape_ops_without_layouts() -> None:
    (x,) = _values(PLAIN)
    assert tile.ExpandDims(x, 0).out.type == TileType(FP32, (1, 4, 8))
    assert tile.ExpandDims(x, 2).out.type == TileType(FP32, (4, 8, 1))
    assert tile.Reshape(x, (2, 16)).out.type == TileType(FP32, (2, 16))
    assert tile.Trans(x, (1, 0)).out.type == TileType(FP32, (8, 4))
    assert tile.Join(x, x).out.type == TileType(FP32, (4, 8, 2))
    halves = tile.Split(tile.Join(x, x).out)
    assert [value.type for value in halves.results] == [PLAIN, PLAIN]


def test_shape_ops_with_layouts_follow_the_algebra() -> None:
    (x,) = _values(X)
    assert tile.ExpandDims(x, 1).out.type == TileType(FP32, (EXTENT, 1), ROW.expand_dims(1))
    assert tile.Reshape(x, (2, 64)).out.type == TileType(FP32, (2, 64), ROW.reshape((2, 64)))
    joined = tile.Join(x, x).out
    assert joined.type == TileType(FP32, (EXTENT, 2), PAIRS)
    assert tile.Split(joined).lhs.type == X
    assert tile.Trans(joined, (1, 0)).out.type == TileType(
        FP32, (2, EXTENT), PAIRS.transpose((1, 0))
    )


def test_broadcast_checks_that_nothing_moves() -> None:
    wide = ROW.expand_dims(1).broadcast_to((EXTENT, 4))
    column, other = _values(
        TileType(FP32, (EXTENT, 1), wide.broadcast_source((EXTENT, 1))),
        TileType(FP32, (EXTENT, 1), SWAPPED.expand_dims(1)),
    )
    assert tile.Broadcast(column, (EXTENT, 4), wide).out.type == TileType(FP32, (EXTENT, 4), wide)
    with pytest.raises(IRError, match="tile.broadcast: operand has"):
        tile.Broadcast(other, (EXTENT, 4), wide)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: tile.ExpandDims(x, 3), "axis 3 is out of range"),
        (lambda x: tile.ExpandDims(x, -1), "axis -1 is out of range"),
        (lambda x: tile.Reshape(x, (4, 4)), "does not fill"),
        (lambda x: tile.Trans(x, (0, 0)), "does not permute 2 axes"),
        (lambda x: tile.Trans(x, (1,)), "does not permute 2 axes"),
        (lambda x: tile.Broadcast(x, (8, 8)), "does not broadcast"),
        (lambda x: tile.Broadcast(x, (8,)), "does not broadcast"),
        (tile.Split, "the last axis of"),
        (lambda x: tile.Join(x, tile.Trans(x, (1, 0)).out), "operands are"),
        (lambda x: tile.Splat(x, (4,)), "expected a scalar"),
    ],
)
def test_shape_ops_refuse(make: Callable[[Value], Op], message: str) -> None:
    (x,) = _values(PLAIN)
    with pytest.raises(IRError, match=message):
        make(x)


@pytest.mark.parametrize("cls", [tile.ProgramId, tile.NumPrograms])
def test_grid_axes(cls: type[tile.ProgramId | tile.NumPrograms]) -> None:
    assert cls(2).out.type == I32
    for axis in (-1, 3):
        with pytest.raises(IRError, match="is not 0, 1 or 2"):
            cls(axis)


@pytest.mark.parametrize(("start", "end"), [(0, 0), (0, 3), (4, 2), (1, 4)])
def test_arange_needs_a_power_of_two(start: int, end: int) -> None:
    with pytest.raises(IRError, match="no power of 2"):
        tile.Arange(start, end)


def test_arange_may_start_anywhere() -> None:
    assert tile.Arange(3, 7).out.type == TileType(I32, (4,))


# ---- memory -----------------------------------------------------------------------------------


def test_accesses() -> None:
    p, ps, mask, x, xs = _values(
        PointerType(FP32), TileType(PointerType(FP32), (4,)), TileType(I1, (4,)), FP32,
        TileType(FP32, (4,)),
    )  # fmt: skip
    (flag,) = _values(I1)
    assert tile.Load(p).out.type == FP32
    assert tile.Load(p, flag, x).out.type == FP32
    assert tile.Load(ps, mask, xs).out.type == TileType(FP32, (4,))
    assert not tile.Store(ps, xs, mask).results
    for wrong, message in (
        (lambda: tile.Load(x), "fp32 is not a pointer"),
        (lambda: tile.Load(ps, flag), "the mask is i1, expected tile<4xi1>"),
        (lambda: tile.Load(p, mask), "the mask is tile<4xi1>, expected i1"),
        (lambda: tile.Load(ps, mask, x), "the value is fp32, expected tile<4xfp32>"),
        (lambda: tile.Store(p, xs), "the value is tile<4xfp32>, expected fp32"),
        (lambda: tile.Store(ps, mask), "the value is tile<4xi1>"),
    ):
        with pytest.raises(IRError, match=message):
            wrong()


# ---- reductions -------------------------------------------------------------------------------


def _combine(args: list[Type], yielded: list[int]) -> Block:
    block = Block(args)
    Builder(block)(scf.Yield([block.args[index] for index in yielded]))
    return block


def test_reduction_types() -> None:
    x, i = _values(PLAIN, TileType(I32, (4, 8)))
    op = tile.Reduce([x, i], 1, _combine([FP32, I32] * 2, [0, 1]))
    assert [value.type for value in op.outs] == [TileType(FP32, (4,)), TileType(I32, (4,))]
    (row,) = _values(X)
    assert tile.Reduce([row], 0, _combine([FP32] * 2, [0])).outs[0].type == FP32
    scan = tile.Scan([x, i], 0, _combine([FP32, I32] * 2, [2, 3]), reverse=True)
    assert [value.type for value in scan.outs] == [PLAIN, TileType(I32, (4, 8))]


@pytest.mark.parametrize("cls", [tile.Reduce, tile.Scan])
@pytest.mark.parametrize(
    ("types", "axis", "args", "yielded", "message"),
    [
        ([PLAIN], 2, [FP32] * 2, [0], "axis 2 is out of range"),
        ([PLAIN], -1, [FP32] * 2, [0], "axis -1 is out of range"),
        ([], 0, [], [], "needs at least one operand"),
        ([FP32], 0, [FP32] * 2, [0], "expected a tile"),
        ([PLAIN, TileType(FP32, (8, 4))], 0, [FP32] * 4, [0, 1], "differ in shape"),
        ([PLAIN], 0, [FP16] * 2, [0], "wrong combine arguments"),
        ([PLAIN], 0, [FP32], [0], "wrong combine arguments"),
        ([PLAIN], 0, [FP32] * 2, [0, 1], "combine yields the wrong types"),
    ],
)
def test_reductions_refuse(
    cls: type[tile.Reduce | tile.Scan],
    types: list[Type],
    axis: int,
    args: list[Type],
    yielded: list[int],
    message: str,
) -> None:
    with pytest.raises(IRError, match=message):
        cls(_values(*types), axis, _combine(args, yielded))


# ---- matrix products --------------------------------------------------------------------------

DOT: Any = tile.Dot  # refuses unknown names where types are checked


def _dot(shapes: Sequence[tuple[int, ...]], kinds: Sequence[ScalarType]) -> Op:
    types = (TileType(kind, shape) for kind, shape in zip(kinds, shapes, strict=True))
    a, b, acc = _values(*types)
    return tile.Dot(a, b, acc)


@pytest.mark.parametrize("batch", [(), (4,)])
def test_a_product_has_the_type_of_its_accumulator(batch: tuple[int, ...]) -> None:
    shapes = (*batch, 16, 8), (*batch, 8, 32), (*batch, 16, 32)
    for kinds in ((FP16, FP16, FP32), (FP8E4NV, FP8E5, FP16), (I8, I8, I32), (FP64, FP64, FP64)):
        assert _dot(shapes, kinds).results[0].type == TileType(kinds[2], shapes[2])


@pytest.mark.parametrize(
    ("shapes", "kinds", "message"),
    [
        (((4, 8), (4, 8), (4, 8)), (FP16, FP16, FP32), "do not fit"),
        (((4, 8), (8, 4), (4, 8)), (FP16, FP16, FP32), "do not fit"),
        (((2, 4, 8), (8, 4), (4, 4)), (FP16, FP16, FP32), "do not fit"),
        (((2, 4, 8), (4, 8, 4), (2, 4, 4)), (FP16, FP16, FP32), "do not fit"),
        (((8,), (8,), (8,)), (FP16, FP16, FP32), "operands of 1 axes"),
        (((4, 8), (8, 4), (4, 4)), (FP16, BF16, FP32), "no dot of fp16 and bf16"),
        (((4, 8), (8, 4), (4, 4)), (BF16, BF16, BF16), "in bf16"),
        (((4, 8), (8, 4), (4, 4)), (I32, I32, I32), "no dot of i32"),
    ],
)
def test_products_that_do_not_fit(
    shapes: tuple[tuple[int, ...], ...], kinds: tuple[ScalarType, ...], message: str
) -> None:
    with pytest.raises(IRError, match=message):
        _dot(shapes, kinds)


def test_an_unknown_precision_is_refused() -> None:
    (x,) = _values(TileType(FP32, (4, 4)))
    with pytest.raises(IRError, match="unknown input precision 'fp8'"):
        DOT(x, x, x, "fp8")


# ---- atomics ----------------------------------------------------------------------------------

RMW: Any = tile.AtomicRmw
CAS: Any = tile.AtomicCas


def test_atomics_return_what_was_there() -> None:
    pointers, values, mask = _values(
        TileType(PointerType(U32), (8,)), TileType(U32, (8,)), TileType(I1, (8,))
    )
    assert tile.AtomicRmw(pointers, values, "max", mask).out.type == values.type
    assert tile.AtomicCas(pointers, values, values, "relaxed", "sys").out.type == values.type


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p, _, x: RMW(p, x, "and"), "no atomic and of fp16"),
        (lambda p, _, x: RMW(p, x, "xchg"), "no atomic xchg of fp16"),
        (lambda p, _, x: RMW(p, x, "nand"), "no atomic nand"),
        (lambda p, i, _: RMW(p, i, "add"), "the value is i32, expected fp16"),
        (lambda _, i, x: RMW(i, x, "add"), "i32 is not a pointer"),
        (lambda p, i, x: RMW(p, x, "add", i), "the mask is i32"),
        (lambda p, _, x: RMW(p, x, "add", sem="seq_cst"), "unknown memory order"),
        (lambda p, _, x: RMW(p, x, "add", scope="warp"), "unknown scope"),
        (CAS, "compares i32 with fp16"),
        (lambda p, _, x: CAS(p, x, x, scope="all"), "unknown scope 'all'"),
    ],
)
def test_atomics_that_do_not_fit(make: Callable[..., Op], message: str) -> None:
    with pytest.raises(IRError, match=message):
        make(*_values(PointerType(FP16), I32, FP16))

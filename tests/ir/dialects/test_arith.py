"""Typing rules of arithmetic ops."""

from __future__ import annotations

from typing import Any

import pytest

from aotc.ir.core import Block, Op, Value
from aotc.ir.diagnostics import IRError
from aotc.ir.dialects import arith
from aotc.ir.types import FP16, FP32, I1, I8, I32, I64, U32, U64, PointerType, TileType, Type
from tests.support.op_sampler import ROW, SWAPPED


def _values(*types: Type) -> list[Value]:
    return Block(types).args


ROW_TILE = TileType(FP32, (128,), ROW)
BINARY = [cls for cls in Op.registry.values() if issubclass(cls, arith.Binary)]
UNARY = [cls for cls in Op.registry.values() if issubclass(cls, arith.Unary)]


def _binary(cls: type[Op], a: Value, b: Value) -> Op:
    return arith.Compare(a, b, "eq") if cls is arith.Compare else cls(a, b)  # type: ignore[call-arg]


@pytest.mark.parametrize("cls", BINARY)
@pytest.mark.parametrize("kind", [I32, U64, TileType(I32, (4, 2)), TileType(I32, (128,), ROW)])
def test_binary_ops_keep_shape_and_layout(cls: type[Op], kind: Type) -> None:
    (out,) = _binary(cls, *_values(kind, kind)).results
    if cls is arith.Compare:
        expected = TileType(I1, kind.shape, kind.layout) if isinstance(kind, TileType) else I1
        assert out.type == expected
    else:
        assert out.type == kind


@pytest.mark.parametrize("cls", BINARY)
@pytest.mark.parametrize(
    ("left", "right"),
    [
        (I32, I64),
        (I32, U32),
        (FP32, TileType(FP32, (4,))),
        (TileType(FP32, (4,)), TileType(FP32, (8,))),
        (TileType(FP32, (4,)), TileType(FP32, (4, 1))),
        (ROW_TILE, TileType(FP32, (128,))),
        (ROW_TILE, TileType(FP32, (128,), SWAPPED)),
    ],
)
def test_binary_ops_refuse_what_differs(cls: type[Op], left: Type, right: Type) -> None:
    with pytest.raises(IRError, match=cls.opcode):
        _binary(cls, *_values(left, right))


@pytest.mark.parametrize("cls", UNARY)
def test_unary_ops_keep_their_type(cls: Any) -> None:
    (x,) = _values(ROW_TILE)
    assert cls(x).out.type is ROW_TILE


def test_select() -> None:
    mask, a, b, flag, x = _values(TileType(I1, (4,)), *[TileType(FP32, (4,))] * 2, I1, FP32)
    assert arith.Select(mask, a, b).out.type == a.type
    assert arith.Select(flag, x, x).out.type == FP32
    pointers = _values(TileType(PointerType(I8), (4,)))[0]
    assert arith.Select(mask, pointers, pointers).out.type == pointers.type
    with pytest.raises(IRError, match="the condition has elements fp32"):
        arith.Select(a, a, b)
    with pytest.raises(IRError, match="differ in shape"):
        arith.Select(flag, a, b)
    with pytest.raises(IRError, match="the arms have elements"):
        arith.Select(flag, x, flag)


def test_fma_takes_three_of_a_kind() -> None:
    x, half = _values(FP32, FP16)
    assert arith.Fma(x, x, x).out.type == FP32
    for wrong in ((x, x, half), (half, x, x), (x, half, x)):
        with pytest.raises(IRError, match="arith.fma"):
            arith.Fma(*wrong)


def test_casts() -> None:
    (x,) = _values(ROW_TILE)
    assert arith.Cast(x, FP16).out.type == TileType(FP16, (128,), ROW)
    assert arith.Bitcast(x, U32).out.type == TileType(U32, (128,), ROW)
    with pytest.raises(IRError, match="fp32 and fp16 differ in width"):
        arith.Bitcast(x, FP16)
    (pointer,) = _values(PointerType(FP32))
    assert arith.Bitcast(pointer, I64).out.type == I64
    assert arith.Bitcast(pointer, PointerType(I8)).out.type == PointerType(I8)
    with pytest.raises(IRError, match="a pointer is bitcast"):
        arith.Cast(pointer, I64)


def test_addptr() -> None:
    pointer, offset, x = _values(TileType(PointerType(FP32), (4,)), TileType(I64, (4,)), FP32)
    assert arith.AddPtr(pointer, offset).out.type == pointer.type
    with pytest.raises(IRError, match="i64 is not a pointer"):
        arith.AddPtr(offset, offset)
    with pytest.raises(IRError, match="is not an integer"):
        arith.AddPtr(pointer, pointer)
    with pytest.raises(IRError, match="differ in shape|is not an integer"):
        arith.AddPtr(pointer, x)


def test_constant_and_libdevice() -> None:
    assert arith.Constant(1.5, ROW_TILE).out.type == ROW_TILE
    with pytest.raises(IRError, match="a constant is not a pointer"):
        arith.Constant(0, PointerType(I8))
    x, wide = _values(TileType(FP32, (4,)), TileType(FP32, (8,)))
    assert arith.Libdevice("__nv_ilogbf", I32, [x]).out.type == TileType(I32, (4,))
    with pytest.raises(IRError, match="differ in shape"):
        arith.Libdevice("__nv_powf", FP32, [x, wide])


def test_all_arithmetic_is_pure() -> None:
    ops = [cls for name, cls in Op.registry.items() if name.startswith("arith.")]
    assert all(cls.pure and not cls.effects for cls in ops)

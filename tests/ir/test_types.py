"""Scalars, pointers, tiles and buffers: sizes, kinds and text."""

from __future__ import annotations

import pytest

from aotc.ir.types import (
    BF16,
    FP8E4NV,
    FP16,
    FP32,
    I1,
    I8,
    I32,
    SCALARS,
    U8,
    U64,
    PointerType,
    SharedType,
    TileType,
    element_of,
    shape_of,
    with_element,
)
from tests.support.op_sampler import BUFFER, ROW, SWAPPED


def test_names_and_widths_agree() -> None:
    for name, scalar in SCALARS.items():
        assert str(scalar) == name
        digits = "".join(c for c in name.split("e")[0] if c.isdigit())
        assert scalar.bits == int(digits)
        assert scalar.size_bytes == max(1, scalar.bits // 8)


def test_kinds() -> None:
    assert [scalar.name for scalar in SCALARS.values() if scalar.is_float] == [
        "fp8e4nv", "fp8e5", "fp16", "bf16", "fp32", "fp64",
    ]  # fmt: skip
    assert I8.is_signed
    assert not U8.is_signed
    assert I1.is_bool
    assert not I1.is_signed
    assert not I8.is_bool
    for scalar in SCALARS.values():
        assert scalar.is_float != scalar.is_int
        assert (scalar.mantissa_bits > 0) == scalar.is_float


def test_floats_have_an_exponent_left() -> None:
    for scalar in SCALARS.values():
        if scalar.is_float:
            assert scalar.bits - scalar.mantissa_bits - 1 >= 4


def test_types_compare_by_value() -> None:
    assert TileType(FP32, (4, 8)) == TileType(FP32, (4, 8))
    assert TileType(FP32, (4,)) != TileType(FP16, (4,))
    assert TileType(FP32, (128,), ROW) != TileType(FP32, (128,))
    assert TileType(FP32, (128,), ROW) != TileType(FP32, (128,), SWAPPED)
    assert len({PointerType(I32), PointerType(I32), PointerType(U64)}) == 2


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (PointerType(BF16), "*bf16"),
        (TileType(FP32, (4, 8)), "tile<4x8xfp32>"),
        (TileType(PointerType(I8), (16,)), "tile<16x*i8>"),
        (TileType(I1, (128,), ROW), f"tile<128xi1, {ROW.to_text()}>"),
        (SharedType(U64, (128,), BUFFER), f"shared<128xu64, {BUFFER.to_text()}>"),
    ],
)
def test_text(kind: object, text: str) -> None:
    assert str(kind) == text


def test_sizes() -> None:
    assert TileType(FP32, (4, 8)).num_elems == 32
    assert SharedType(BF16, (128,), BUFFER).size_bytes == 256
    assert SharedType(FP8E4NV, (128,), BUFFER).size_bytes == 128
    assert PointerType(I8).size_bytes == 8


def test_parts() -> None:
    kind = TileType(PointerType(FP16), (128,), ROW)
    assert element_of(kind) == PointerType(FP16)
    assert element_of(FP32) == FP32
    assert shape_of(kind) == (128,)
    assert shape_of(I32) == ()
    assert with_element(kind, I1) == TileType(I1, (128,), ROW)
    assert with_element(FP32, I1) == I1
    assert kind.with_layout(None) == TileType(PointerType(FP16), (128,))


def test_an_unchanged_type_is_shared() -> None:
    kind = TileType(FP32, (4,))
    assert with_element(kind, FP32) is kind

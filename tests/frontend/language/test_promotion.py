"""The promotion table, written out from Triton's rules, for every pair of types."""

from __future__ import annotations

import math

import pytest

from aotc.frontend.language.promotion import PromotionError, computation_type, literal_type
from aotc.ir.types import SCALARS

NAMES = [
    "i1",
    "i8",
    "i16",
    "i32",
    "i64",
    "u8",
    "u16",
    "u32",
    "u64",
    "fp8e4nv",
    "fp8e5",
    "fp16",
    "bf16",
    "fp32",
    "fp64",
]

# Rows and columns in the order of NAMES; `-` is an error.
PLAIN = """
i1   i8   i16  i32  i64  u8   u16  u32  u64  -       -       fp16 fp32 fp32 fp64
i8   i8   i16  i32  i64  u8   u16  u32  u64  -       -       fp16 fp32 fp32 fp64
i16  i16  i16  i32  i64  i16  u16  u32  u64  -       -       fp16 fp32 fp32 fp64
i32  i32  i32  i32  i64  i32  i32  u32  u64  -       -       fp16 fp32 fp32 fp64
i64  i64  i64  i64  i64  i64  i64  i64  u64  -       -       fp16 fp32 fp32 fp64
u8   u8   i16  i32  i64  u8   u16  u32  u64  -       -       fp16 fp32 fp32 fp64
u16  u16  u16  i32  i64  u16  u16  u32  u64  -       -       fp16 fp32 fp32 fp64
u32  u32  u32  u32  i64  u32  u32  u32  u64  -       -       fp16 fp32 fp32 fp64
u64  u64  u64  u64  u64  u64  u64  u64  u64  -       -       fp16 fp32 fp32 fp64
-    -    -    -    -    -    -    -    -    fp8e4nv fp16    fp16 fp32 fp32 fp64
-    -    -    -    -    -    -    -    -    fp16    fp8e5   fp16 fp32 fp32 fp64
fp16 fp16 fp16 fp16 fp16 fp16 fp16 fp16 fp16 fp16    fp16    fp16 fp16 fp32 fp64
fp32 fp32 fp32 fp32 fp32 fp32 fp32 fp32 fp32 fp32    fp32    fp16 bf16 fp32 fp64
fp32 fp32 fp32 fp32 fp32 fp32 fp32 fp32 fp32 fp32    fp32    fp32 fp32 fp32 fp64
fp64 fp64 fp64 fp64 fp64 fp64 fp64 fp64 fp64 fp64    fp64    fp64 fp64 fp64 fp64
"""
TABLE = {
    (left, right): meets
    for left, row in zip(NAMES, PLAIN.strip().splitlines(), strict=True)
    for right, meets in zip(NAMES, row.split(), strict=True)
}


def meet(left: str, right: str, **options: object) -> str:
    try:
        return computation_type(SCALARS[left], SCALARS[right], **options).name  # type: ignore[arg-type]
    except PromotionError:
        return "-"


@pytest.mark.parametrize("left", NAMES)
@pytest.mark.parametrize("right", NAMES)
def test_run_time_operands(left: str, right: str) -> None:
    assert meet(left, right) == TABLE[left, right]


@pytest.mark.parametrize("left", NAMES)
@pytest.mark.parametrize("right", NAMES)
def test_division(left: str, right: str) -> None:
    a, b = SCALARS[left], SCALARS[right]
    if "fp64" in (left, right):
        expected = "fp64"
    elif a.is_float or b.is_float:
        expected = "fp32"
    elif a.is_signed != b.is_signed:
        expected = "-"
    else:
        expected = TABLE[left, right]
    assert meet(left, right, arithmetic="division") == expected


@pytest.mark.parametrize("other", NAMES)
@pytest.mark.parametrize(
    ("literal", "rank"), [("i1", 0), ("i32", 1), ("i64", 1), ("u64", 1), ("fp32", 2), ("fp64", 2)]
)
def test_a_literal_of_no_higher_kind_adopts_the_other_type(
    literal: str, rank: int, other: str
) -> None:
    other_rank = 2 if SCALARS[other].is_float else 0 if other == "i1" else 1
    expected = other if rank <= other_rank else TABLE[literal, other]
    assert meet(literal, other, left_is_literal=True) == expected
    assert meet(other, literal, right_is_literal=True) == expected


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (True, "i1"),
        (0, "i32"),
        (-(2**31), "i32"),
        (2**31 - 1, "i32"),
        (2**31, "u32"),
        (2**32 - 1, "u32"),
        (2**32, "i64"),
        (-(2**31) - 1, "i64"),
        (2**63 - 1, "i64"),
        (2**63, "u64"),
        (2**64 - 1, "u64"),
        (0.0, "fp32"),
        (math.inf, "fp32"),
        (math.nan, "fp32"),
        (2.0**-126, "fp32"),
        (2.0**-127, "fp64"),
        (3.5e38, "fp64"),
    ],
)
def test_literals(value: float, name: str) -> None:
    assert literal_type(value).name == name


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1])
def test_an_integer_beyond_64_bits_has_no_type(value: int) -> None:
    with pytest.raises(PromotionError):
        literal_type(value)

"""Triton's promotion rules: the type an operation computes in, as a function of types alone.

A Python number ("literal" here) is weaker than a tile or a run-time scalar. If its kind (truth value,
integer, float) is no higher than the other operand's, it adopts the other's type. Two run-time
operands of any shapes follow these rules:

    fp64 beats all; a quotient or remainder of floats is fp32 at least; then fp32, then fp16;
    bf16 only meets itself, else fp32; two different fp8 types meet in fp16;
    integers meet as in C: the wider one wins, at equal width the unsigned one.

Invariant: nothing here reads values or builds ops, so tests can compare the rules with a table.
"""

from __future__ import annotations

from typing import Literal

from aotc.ir.types import (
    BF16,
    FP8E4B15,
    FP16,
    FP32,
    FP64,
    I1,
    I32,
    I64,
    U32,
    U64,
    ScalarType,
)

Arithmetic = Literal["plain", "division"]

_SMALLEST_NORMAL_FP32 = 2.0**-126
_LARGEST_FP32 = (2 - 2**-23) * 2.0**127


_FLOAT_RANK = 2


class PromotionError(ValueError):
    """Report two types without a common type; the message completes a sentence about them."""


def is_fp8(kind: ScalarType) -> bool:
    """Return whether `kind` is one of the 8-bit floats."""
    return kind == FP8E4B15 or (kind.is_float and kind.bits == 8)


def rank(kind: ScalarType) -> int:
    """Return 0 for truth values, 1 for integers, 2 for floats, to rank a literal."""
    return _FLOAT_RANK if kind.is_float or kind == FP8E4B15 else 0 if kind.is_bool else 1


def literal_type(value: float) -> ScalarType:
    """Return the type of a Python number as a run-time scalar.

    Raises: PromotionError for an integer beyond 64 bits.
    """
    if isinstance(value, bool):
        return I1
    if isinstance(value, int):
        for kind, low, high in (
            (I32, -(2**31), 2**31),
            (U32, 2**31, 2**32),
            (I64, -(2**63), 2**63),
            (U64, 2**63, 2**64),
        ):
            if low <= value < high:
                return kind
        raise PromotionError("it does not fit into 64 bits")
    magnitude = abs(value)
    special = magnitude in (0.0, float("inf")) or value != value  # noqa: PLR0124 - NaN
    if special or _SMALLEST_NORMAL_FP32 <= magnitude <= _LARGEST_FP32:
        return FP32
    return FP64


def integer_type(left: ScalarType, right: ScalarType) -> ScalarType:
    """Return the common type of two integers: C's usual arithmetic conversions."""
    if left.is_signed == right.is_signed:
        return left if left.bits > right.bits else right
    unsigned, signed = (right, left) if left.is_signed else (left, right)
    return unsigned if unsigned.bits >= signed.bits else signed


def computation_type(
    left: ScalarType,
    right: ScalarType,
    *,
    left_is_literal: bool = False,
    right_is_literal: bool = False,
    arithmetic: Arithmetic = "plain",
) -> ScalarType:
    """Return the type to compute `left` and `right` in.

    Raises: PromotionError if they do not meet.
    """
    if left_is_literal != right_is_literal:
        literal, other = (left, right) if left_is_literal else (right, left)
        if rank(literal) <= rank(other):
            left = right = other
    if rank(left) == _FLOAT_RANK or rank(right) == _FLOAT_RANK:
        return _float_type(left, right, arithmetic)
    if arithmetic == "division" and left.is_signed != right.is_signed:
        raise PromotionError("one is signed and the other is not")
    return integer_type(left, right)


def _float_type(left: ScalarType, right: ScalarType, arithmetic: Arithmetic) -> ScalarType:
    if FP64 in (left, right):
        return FP64
    if arithmetic == "division" or FP32 in (left, right):
        return FP32
    if FP16 in (left, right):
        return FP16
    if BF16 in (left, right):
        return BF16 if left == right else FP32
    if left == right == FP8E4B15:
        raise PromotionError("nothing is computed in float8e4b15, which is for storage")
    if is_fp8(left) and is_fp8(right):
        return left if left == right else FP16
    raise PromotionError("8-bit floats meet only floats")

"""Division of 32-bit integers by a shared divisor.

Granlund and Montgomery, "Division by Invariant Integers using Multiplication" (1994): a quotient is
the high half of a product with a multiplier of the divisor alone. The multiplier comes from the
reciprocal word of the normalized divisor, by integers only: Möller and Granlund, "Improved Division
by Invariant Integers" (2011), algorithm 3. So results are exact, and the same on every machine.

A quotient by 0 is -1, as in ptxas; a remainder by 0 is undefined.
"""

from __future__ import annotations

from dataclasses import dataclass

from aotc.backend import nvvm
from aotc.backend.emitter import Emitter

_SIGN = -(1 << 31)


@dataclass(frozen=True)
class Divisor:
    """A divisor with its shared precomputed values."""

    value: str
    is_signed: bool
    multiplier: str
    shift: str
    first_shift: str
    """The shift before the last sum, for unsigned integers."""
    sign: str
    """-1 for a negative divisor, 0 for any other."""
    is_zero: str
    """-1 for 0, 0 for any other."""


def prepare(emit: Emitter, divisor: str, *, signed: bool) -> Divisor:
    """Precompute the shared part of divisions by `divisor`; about 30 instructions."""
    zero = emit.value(f"icmp eq i32 {divisor}, 0")
    is_zero = emit.value(f"sext i1 {zero} to i32")
    size, sign = divisor, "0"
    if signed:
        sign = emit.value(f"ashr i32 {divisor}, 31")
        flipped = emit.value(f"xor i32 {divisor}, {sign}")
        size = emit.value(f"sub i32 {flipped}, {sign}")
    size = emit.call("i32", "llvm.umax.i32", [("i32", size), ("i32", "1")])
    zeros = _leading_zeros(emit, size)
    normal = emit.value(f"shl i32 {size}, {zeros}")
    word = _reciprocal_word(emit, normal)
    is_power = emit.value(f"icmp eq i32 {normal}, {_SIGN}")
    less = emit.value(f"sub i32 {size}, 1")
    bits = emit.value(f"sub i32 32, {_leading_zeros(emit, less)}")  # ceil(log2(size))
    first = emit.call("i32", "llvm.umin.i32", [("i32", bits), ("i32", "1")])
    if not signed:
        above = emit.value(f"add i32 {word}, 1")
        multiplier = emit.value(f"select i1 {is_power}, i32 1, i32 {above}")
        shift = emit.value(f"sub i32 {bits}, {first}")
        return Divisor(divisor, signed, multiplier, shift, first, sign, is_zero)
    half = emit.value(f"lshr i32 {word}, 1")
    half = emit.value(f"select i1 {is_power}, i32 0, i32 {half}")
    # Of 1, 2**31 is no part: its multiplier is 1.
    highest = emit.value(f"shl i32 {first}, 31")
    rounded = emit.value(f"or i32 {highest}, 1")
    multiplier = emit.value(f"add i32 {half}, {rounded}")
    shift = emit.value(f"sub i32 {bits}, {first}")
    return Divisor(divisor, signed, multiplier, shift, "", sign, is_zero)


def quotient(emit: Emitter, dividend: str, divisor: Divisor) -> str:
    """Return the quotient, truncated towards 0."""
    high = nvvm.mul_high(emit, divisor.multiplier, dividend, 32, signed=divisor.is_signed)
    if not divisor.is_signed:
        rest = emit.value(f"sub i32 {dividend}, {high}")
        halved = emit.value(f"lshr i32 {rest}, {divisor.first_shift}")
        total = emit.value(f"add i32 {high}, {halved}")
        shifted = emit.value(f"lshr i32 {total}, {divisor.shift}")
        return emit.value(f"or i32 {shifted}, {divisor.is_zero}")
    total = emit.value(f"add i32 {high}, {dividend}")
    floor = emit.value(f"ashr i32 {total}, {divisor.shift}")
    is_negative = emit.value(f"lshr i32 {dividend}, 31")
    truncated = emit.value(f"add i32 {floor}, {is_negative}")
    flipped = emit.value(f"xor i32 {truncated}, {divisor.sign}")
    defined = emit.value(f"or i32 {flipped}, {divisor.is_zero}")
    return emit.value(f"sub i32 {defined}, {divisor.sign}")


def remainder(emit: Emitter, dividend: str, divisor: Divisor) -> str:
    """Return the remainder, with the sign of the dividend."""
    product = emit.value(f"mul i32 {quotient(emit, dividend, divisor)}, {divisor.value}")
    return emit.value(f"sub i32 {dividend}, {product}")


def _leading_zeros(emit: Emitter, value: str) -> str:
    return emit.call("i32", "llvm.ctlz.i32", [("i32", value), ("i1", "false")])


def _reciprocal_word(emit: Emitter, normal: str) -> str:
    """Return floor((2**64 - 1) / normal) - 2**32, for a divisor with its highest bit set."""

    def high(left: str, right: str) -> str:
        return nvvm.mul_high(emit, left, right, 32, signed=False)

    top = emit.value(f"lshr i32 {normal}, 22")
    upper = emit.value(f"add i32 {emit.value(f'lshr i32 {normal}, 11')}, 1")
    lowest = emit.value(f"and i32 {normal}, 1")
    half = emit.value(f"add i32 {emit.value(f'lshr i32 {normal}, 1')}, {lowest}")
    first = emit.value(f"udiv i32 {(1 << 24) - (1 << 14) + (1 << 9)}, {top}")
    square = emit.value(f"mul i32 {first}, {first}")
    scaled = emit.value(f"shl i32 {first}, 4")
    less = emit.value(f"sub i32 {scaled}, {high(square, upper)}")
    second = emit.value(f"sub i32 {less}, 1")
    product = emit.value(f"mul i32 {second}, {half}")
    is_odd = emit.value(f"sub i32 0, {lowest}")
    extra = emit.value(f"and i32 {emit.value(f'lshr i32 {second}, 1')}, {is_odd}")
    error = emit.value(f"sub i32 {extra}, {product}")
    scaled = emit.value(f"shl i32 {second}, 15")
    step = emit.value(f"lshr i32 {high(second, error)}, 1")
    third = emit.value(f"add i32 {scaled}, {step}")
    # The high word of (third + 2**32 + 1) * normal, with the carry of the low word's sum.
    low = emit.value(f"mul i32 {third}, {normal}")
    total = emit.value(f"add i32 {low}, {normal}")
    carries = emit.value(f"icmp ult i32 {total}, {normal}")
    carry = emit.value(f"zext i1 {carries} to i32")
    above = emit.value(f"add i32 {high(third, normal)}, {normal}")
    return emit.value(f"sub i32 {third}, {emit.value(f'add i32 {above}, {carry}')}")

"""Integer arithmetic: sums, products, quotients, min and max, carries, dot products.

Registers hold unsigned arrays, so wrapping costs nothing; signed meanings are views. The carry flag
is the predicate register `%cc`, made explicit by the parser. An instruction with `.cc` writes
`d|%cc`, and `addc`, `subc` and `madc` have `%cc` as their last source.

Where PTX leaves the result open (a quotient by zero), it is an H200's.

Source: PTX ISA 9.7.1 "Integer Arithmetic Instructions", 9.7.2 "Extended-Precision Integer
Arithmetic Instructions".
"""

# A rule is a lambda with one parameter per operand; `Compute` leaves their number open.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aotc.verify.arrays import clipped, view
from aotc.verify.emulator.compute.form import Form, PtxType, rule
from aotc.verify.emulator.compute.registry import Bits, Compute, bits_dtype
from aotc.verify.emulator.errors import Unsupported

_WRAPPING: dict[str, Callable[..., Any]] = {"add": np.add, "sub": np.subtract}


def integer_dtype(kind: PtxType) -> np.dtype[Any]:
    """Return the dtype for arithmetic on an integer type.

    Raises: Unsupported for types that registers do not hold.
    """
    if kind.kind != "int" or kind.bits not in (8, 16, 32, 64):
        raise Unsupported(f"type .{kind.name}")
    return np.dtype(f"{'i' if kind.signed else 'u'}{kind.bits // 8}")


def _word(form: Form) -> PtxType:
    kind = form.type.element
    if kind.bits not in (16, 32, 64) or kind.name[0] == "b":
        raise Unsupported(f"type .{kind.name}")
    return kind


def signed_view(function: Callable[..., Any], kind: PtxType) -> Callable[..., Bits]:
    """Lift a function of integer values to bits."""
    if not kind.signed:
        return function
    dtype, unsigned = integer_dtype(kind), bits_dtype(kind.bits)
    return lambda *words: view(
        np.asarray(function(*(view(word, dtype) for word in words))), unsigned
    )


def _saturated(exact: Bits, kind: PtxType) -> Bits:
    """Return exact int64 values clamped to a signed type, as bits."""
    limit = 1 << (kind.bits - 1)
    return _low(clipped(exact, -limit, limit - 1), kind.bits)


def _low(value: Any, bits: int) -> Bits:
    return np.asarray(value).astype(bits_dtype(bits))


# ---- sums and carries -------------------------------------------------------------------------


@rule("int", "add", "sub", sources=2, packed="halves")
def _add_sub(form: Form) -> Compute:
    kind, opcode = _word(form), form.instruction.opcode
    if form.flag("cc"):
        return _carrying(opcode, writes_carry=True)
    function = _WRAPPING[opcode]
    if not form.flag("sat"):
        return function
    if kind.name != "s32":
        raise Unsupported(f".sat of .{kind.name}")
    dtype = np.dtype(np.int64)
    return lambda a, b: _saturated(
        function(view(a, np.int32).astype(dtype), view(b, np.int32).astype(dtype)), kind
    )


@rule("int", "addc", "subc")
def _add_sub_carry(form: Form) -> Compute:
    bits = _word(form).bits
    form.reads(bits, bits, 1)
    return _carrying(form.instruction.opcode[:3], writes_carry=form.flag("cc"))


def _carrying(opcode: str, *, writes_carry: bool) -> Compute:
    """Return the sum or difference of two words and an optional carry or borrow."""
    function, adds = _WRAPPING[opcode], opcode == "add"

    def compute(a: Bits, b: Bits, *carry: Bits) -> Bits | tuple[Bits, Bits]:
        part = function(a, b)
        total = function(part, carry[0].astype(part.dtype)) if carry else part
        if not writes_carry:
            return total
        over = (part < a) if adds else (a < b)
        if carry:
            # Adding a carry of 1 overflows only at the end of the range.
            over = over | (((total if adds else part) == 0) & carry[0])
        return total, over

    return compute


# ---- products ---------------------------------------------------------------------------------


def _full_product(kind: PtxType) -> Callable[[Bits, Bits], Bits]:
    """Return the function from two words, up to 32 bits, to their full product."""
    narrow = integer_dtype(kind)
    wide = np.dtype(f"{narrow.kind}{2 * narrow.itemsize}")
    unsigned = bits_dtype(2 * kind.bits)
    return lambda a, b: view(
        np.asarray(view(a, narrow).astype(wide) * view(b, narrow).astype(wide)), unsigned
    )


def _high_product(kind: PtxType) -> Callable[[Bits, Bits], Bits]:
    if kind.bits < 64:
        full, bits = _full_product(kind), kind.bits
        shift = bits_dtype(2 * bits).type(bits)
        return lambda a, b: _low(full(a, b) >> shift, bits)
    return _high_product_s64 if kind.signed else _high_product_u64


def _high_product_u64(a: Bits, b: Bits) -> Bits:
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    a_low, a_high, b_low, b_high = a & mask, a >> half, b & mask, b >> half
    middle = a_high * b_low + (a_low * b_low >> half)
    other = a_low * b_high + (middle & mask)
    return a_high * b_high + (middle >> half) + (other >> half)


def _high_product_s64(a: Bits, b: Bits) -> Bits:
    top, zero = np.uint64(63), np.uint64(0)
    high = _high_product_u64(a, b)
    return high - np.where(a >> top, b, zero) - np.where(b >> top, a, zero)


def _product(form: Form, kind: PtxType) -> tuple[Callable[[Bits, Bits], Bits], int]:
    """Return the product for `.lo`, `.hi` or `.wide`, and its width."""
    part = form.choice("lo", "hi", "wide")
    if part == "lo":
        return np.multiply, kind.bits
    if part == "hi":
        return _high_product(kind), kind.bits
    if kind.bits == 64:
        raise Unsupported(".wide of 64 bits")
    return _full_product(kind), 2 * kind.bits


@rule("int", "mul", sources=2)
def _mul(form: Form) -> Compute:
    return _product(form, _word(form))[0]


@rule("int", "mad")
def _mad(form: Form) -> Compute:
    kind = _word(form)
    saturate = form.flag("sat")
    if saturate and ("hi" not in form.instruction.modifiers or kind.name != "s32"):
        raise Unsupported(f".sat of .{kind.name}")
    product, bits = _product(form, kind)
    form.reads(kind.bits, kind.bits, bits)
    if form.flag("cc"):
        add = _carrying("add", writes_carry=True)
        return lambda a, b, c: add(product(a, b), c)
    if saturate:
        return lambda a, b, c: _saturated(
            view(product(a, b), np.int32).astype(np.int64) + view(c, np.int32), kind
        )
    return lambda a, b, c: product(a, b) + c


@rule("int", "madc")
def _madc(form: Form) -> Compute:
    kind = _word(form)
    product, bits = _product(form, kind)
    form.reads(kind.bits, kind.bits, bits, 1)
    add = _carrying("add", writes_carry=form.flag("cc"))
    return lambda a, b, c, carry: add(product(a, b), c, carry)


def _product24(form: Form) -> Callable[[Bits, Bits], Bits]:
    kind = _word(form)
    if kind.bits != 32:
        raise Unsupported(f"type .{kind.name}")
    high = form.choice("lo", "hi") == "hi"
    shift, wide = np.int64(8), np.dtype(np.int64)

    def value(word: Bits) -> Bits:
        shifted = view(word << np.uint32(8), integer_dtype(kind))
        return shifted.astype(wide) >> shift

    # The high half is bits 16 to 47 of the 48-bit product.
    drop = np.int64(16 if high else 0)
    return lambda a, b: _low((value(a) * value(b)) >> drop, 32)


@rule("int", "mul24", sources=2)
def _mul24(form: Form) -> Compute:
    return _product24(form)


@rule("int", "mad24", sources=3)
def _mad24(form: Form) -> Compute:
    product = _product24(form)
    return lambda a, b, c: product(a, b) + c


@rule("int", "dp4a", "dp2a", types=2)
def _dot(form: Form) -> Compute:
    a_kind, b_kind = form.types
    if {a_kind.name, b_kind.name} - {"u32", "s32"}:
        raise Unsupported(f"types .{a_kind.name}.{b_kind.name}")
    form.reads(32, 32, 32)
    if form.instruction.opcode == "dp4a":
        a_part, shifts = 8, (0, 8, 16, 24)
        b_shifts = shifts
    else:
        a_part, shifts = 16, (0, 16)
        b_shifts = (0, 8) if form.choice("lo", "hi") == "lo" else (16, 24)

    def element(word: Bits, shift: int, bits: int, *, signed: bool) -> Bits:
        part = (word >> np.uint32(shift)).astype(bits_dtype(bits))
        return view(part, f"{'i' if signed else 'u'}{bits // 8}").astype(np.int64)

    def compute(a: Bits, b: Bits, c: Bits) -> Bits:
        total = c.astype(np.int64)
        for a_shift, b_shift in zip(shifts, b_shifts, strict=True):
            left = element(a, a_shift, a_part, signed=a_kind.signed)
            total = total + left * element(b, b_shift, 8, signed=b_kind.signed)
        return _low(total, 32)

    return compute


# ---- quotients --------------------------------------------------------------------------------


@rule("int", "div", "rem", sources=2)
def _div_rem(form: Form) -> Compute:
    kind = _word(form)
    unit, all_ones = bits_dtype(kind.bits).type(1), bits_dtype(kind.bits).type((1 << kind.bits) - 1)
    divide = signed_view(_truncated if kind.signed else np.floor_divide, kind)

    def quotient(a: Bits, b: Bits) -> Bits:
        return np.where(b == 0, all_ones, divide(a, np.where(b == 0, unit, b)))

    if form.instruction.opcode == "div":
        return quotient
    return lambda a, b: np.where(b == 0, all_ones, a - quotient(a, b) * b)


def _truncated(a: Bits, b: Bits) -> Bits:
    floor = a // b
    inexact = floor * b != a
    return floor + (inexact & ((a < 0) != (b < 0)))


# ---- size and sign ----------------------------------------------------------------------------


@rule("int", "min", "max", sources=2, packed="halves")
def _min_max(form: Form) -> Compute:
    kind = _word(form)
    function = signed_view(np.minimum if form.instruction.opcode == "min" else np.maximum, kind)
    if not form.flag("relu"):
        return function
    if not kind.signed:
        raise Unsupported(f".relu of .{kind.name}")
    dtype = integer_dtype(kind)
    zero, unsigned = dtype.type(0), bits_dtype(kind.bits)
    return lambda a, b: view(np.maximum(view(function(a, b), dtype), zero), unsigned)


@rule("int", "neg", "abs", sources=1)
def _neg_abs(form: Form) -> Compute:
    kind = _word(form)
    if not kind.signed:
        raise Unsupported(f"type .{kind.name}")
    return signed_view(np.negative if form.instruction.opcode == "neg" else np.abs, kind)


@rule("int", "sad", sources=3)
def _sad(form: Form) -> Compute:
    kind = _word(form)
    dtype, unsigned = integer_dtype(kind), bits_dtype(kind.bits)

    def compute(a: Bits, b: Bits, c: Bits) -> Bits:
        x, y = view(a, dtype), view(b, dtype)
        return c + view(np.asarray(np.maximum(x, y) - np.minimum(x, y)), unsigned)

    return compute

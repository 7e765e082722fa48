"""Bit fields, population counts and bit searches.

Source: PTX ISA 9.7.1 "Integer Arithmetic Instructions": `popc` to `szext`.
"""

# A rule is a lambda with one parameter per operand; `Compute` leaves their number open.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false

from __future__ import annotations

import numpy as np

from aotc.verify.arrays import view
from aotc.verify.emulator.compute.bits import sized
from aotc.verify.emulator.compute.form import Form, rule
from aotc.verify.emulator.compute.integer_arithmetic import integer_dtype
from aotc.verify.emulator.compute.registry import Bits, Compute, bits_dtype
from aotc.verify.emulator.errors import Unsupported

# ---- bit fields -------------------------------------------------------------------------------


def _ones(count: Bits) -> Bits:
    """Return words with the low `count` bits set; `count` has the words' dtype."""
    return ~(~np.zeros((), count.dtype) << count)


def _field(position: Bits, length: Bits, bits: int) -> tuple[Bits, Bits]:
    """Return the start of a field, and its length within the word.

    PTX reads 8 bits of both, and so does an H200 for 32-bit words. For 64-bit words ptxas emits a
    sequence of other instructions, which reads all bits.
    """
    read, width = np.uint32(0xFF if bits == 32 else 0xFFFFFFFF), np.uint32(bits)
    start = np.minimum(position & read, width)
    inside = np.minimum(length & read, width - start)
    dtype = bits_dtype(bits)
    return start.astype(dtype), inside.astype(dtype)


@rule("int", "bfe")
def _bfe(form: Form) -> Compute:
    kind = sized(form, 32, 64)
    form.reads(kind.bits, 32, 32)
    read = np.uint32(0xFF if kind.bits == 32 else 0xFFFFFFFF)
    top, width = np.uint32(kind.bits - 1), np.uint32(kind.bits)
    low_bit = bits_dtype(kind.bits).type(1)

    def compute(a: Bits, position: Bits, length: Bits) -> Bits:
        start, inside = _field(position, length, kind.bits)
        field = (a >> start) & _ones(inside)
        if not kind.signed:
            return field
        # The sign is the field's last bit, or the word's if the field extends past its end.
        clamped_length = np.minimum(length & read, width)
        last = np.minimum(
            np.minimum(position & read, width) + clamped_length - (clamped_length > 0), top
        )
        sign = ((a >> last.astype(a.dtype)) & low_bit) * (clamped_length > 0)
        return field | np.where(sign, ~_ones(inside), bits_dtype(kind.bits).type(0))

    return compute


@rule("int", "bfi")
def _bfi(form: Form) -> Compute:
    kind = sized(form, 32, 64)
    form.reads(kind.bits, kind.bits, 32, 32)

    def compute(a: Bits, b: Bits, position: Bits, length: Bits) -> Bits:
        start, inside = _field(position, length, kind.bits)
        mask = _ones(inside) << start
        return (b & ~mask) | ((a << start) & mask)

    return compute


@rule("int", "bmsk")
def _bmsk(form: Form) -> Compute:
    sized(form, 32)
    form.reads(32, 32)
    if form.choice("clamp", "wrap") == "wrap":
        low = np.uint32(31)
        return lambda a, b: _ones(np.asarray(b & low)) << (a & low)
    top = np.uint32(32)
    return lambda a, b: _ones(np.minimum(b, top)) << np.minimum(a, top)


@rule("int", "szext")
def _szext(form: Form) -> Compute:
    """Extend the low `b` bits to 32, with zeros or with the sign."""
    kind = sized(form, 32)
    form.reads(32, 32)
    wrap = form.choice("clamp", "wrap") == "wrap"
    low_bit = np.uint32(1)

    def compute(a: Bits, b: Bits) -> Bits:
        count = (b & np.uint32(31)) if wrap else np.minimum(b, np.uint32(32))
        mask = _ones(np.asarray(count))
        if not kind.signed:
            return a & mask
        # The sign is the mask's top bit; an empty mask has none.
        sign = a & (mask ^ (mask >> low_bit))
        return np.where(sign, a | ~mask, a & mask)

    return compute


# ---- counting and finding ---------------------------------------------------------------------


def _smeared(a: Bits) -> Bits:
    """Return words with all bits below the highest set one set too."""
    shift = 1
    while shift < 8 * a.dtype.itemsize:
        a = a | (a >> a.dtype.type(shift))
        shift *= 2
    return a


def population(a: Bits) -> Bits:
    """Return how many bits of each word are set, as u32."""
    kind = a.dtype.type
    all_ones = (1 << 8 * a.dtype.itemsize) - 1
    a = a - ((a >> kind(1)) & kind(all_ones // 3))
    a = (a & kind(all_ones // 5)) + ((a >> kind(2)) & kind(all_ones // 5))
    a = (a + (a >> kind(4))) & kind(all_ones // 17)
    total = (a * kind(all_ones // 255)) >> kind(8 * a.dtype.itemsize - 8)
    return np.asarray(total).astype(np.uint32)


@rule("int", "popc", sources=1)
def _popc(form: Form) -> Compute:
    sized(form, 32, 64)
    return population


@rule("int", "clz", sources=1)
def _clz(form: Form) -> Compute:
    bits = np.uint32(sized(form, 32, 64).bits)
    return lambda a: bits - population(_smeared(a))


@rule("int", "bfind", sources=1)
def _bfind(form: Form) -> Compute:
    """Find the highest bit that is not the sign; all ones if there is none."""
    kind = sized(form, 32, 64)
    distance = form.flag("shiftamt")
    dtype, top = integer_dtype(kind), np.uint32(kind.bits - 1)
    not_found = np.uint32(0xFFFFFFFF)

    def compute(a: Bits) -> Bits:
        if kind.signed:
            a = np.where(view(a, dtype) < 0, ~a, a)
        position = population(_smeared(a)) - np.uint32(1)
        return np.where(position == not_found, not_found, top - position) if distance else position

    return compute


@rule("int", "brev", sources=1)
def _brev(form: Form) -> Compute:
    bits = sized(form, 32, 64).bits
    all_ones = (1 << bits) - 1
    word = bits_dtype(bits).type
    # Swap neighbours, then pairs, and so on; masks have alternate runs of 2 ** log2_run bits set.
    swaps = [
        (word(1 << log2_run), word(all_ones // ((1 << (1 << log2_run)) + 1)))
        for log2_run in range(bits.bit_length() - 1)
    ]

    def compute(a: Bits) -> Bits:
        for shift, mask in swaps:
            a = ((a >> shift) & mask) | ((a & mask) << shift)
        return a

    return compute


@rule("int", "fns")
def _fns(form: Form) -> Compute:
    """Find the n-th set bit from a base, upwards for n > 0 and downwards for n < 0."""
    if form.type.name != "b32":
        raise Unsupported(f"type .{form.type.name}")
    form.reads(32, 32, 32)
    return np.vectorize(_nth_set, otypes=[np.uint32])


def _nth_set(mask: int, base: int, offset: int) -> int:
    mask, base, offset = int(mask), int(base), int(offset)
    offset -= (offset >> 31) << 32
    if offset == -(1 << 31):
        return 0  # its negation overflows
    if base > 31:
        return 0xFFFFFFFF
    if offset == 0:
        return base if mask >> base & 1 else 0xFFFFFFFF
    positions = range(base, 32) if offset > 0 else range(base, -1, -1)
    set_bits = [position for position in positions if mask >> position & 1]
    return set_bits[abs(offset) - 1] if len(set_bits) >= abs(offset) else 0xFFFFFFFF

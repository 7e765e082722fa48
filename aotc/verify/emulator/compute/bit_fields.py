"""Bit fields, and bits counted and found.

Source: PTX ISA 9.7.1 "Integer Arithmetic Instructions": `popc` to `szext`.
"""

# A rule is a lambda of as many operands as its opcode has, which `Compute` leaves open.
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
    """Return words of `count` ones at the bottom; `count` is up to their width, and of it."""
    return ~(~np.zeros((), count.dtype) << count)


def _field(position: Bits, length: Bits, bits: int) -> tuple[Bits, Bits]:
    """Return where a field starts and how many of its bits lie inside the word.

    PTX reads 8 bits of both, and so does an H200 for words of 32. For those of 64, code that ptxas
    makes of other instructions reads all.
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
    one = bits_dtype(kind.bits).type(1)

    def compute(a: Bits, position: Bits, length: Bits) -> Bits:
        start, inside = _field(position, length, kind.bits)
        field = (a >> start) & _ones(inside)
        if not kind.signed:
            return field
        # The sign is the field's last bit, or the word's if the field goes past its end.
        asked = np.minimum(length & read, width)
        last = np.minimum(np.minimum(position & read, width) + asked - (asked > 0), top)
        sign = ((a >> last.astype(a.dtype)) & one) * (asked > 0)
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
    one = np.uint32(1)

    def compute(a: Bits, b: Bits) -> Bits:
        count = (b & np.uint32(31)) if wrap else np.minimum(b, np.uint32(32))
        mask = _ones(np.asarray(count))
        if not kind.signed:
            return a & mask
        # The top bit of the mask is the sign's; of an empty mask there is none.
        sign = a & (mask ^ (mask >> one))
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
    ones = (1 << 8 * a.dtype.itemsize) - 1
    a = a - ((a >> kind(1)) & kind(ones // 3))
    a = (a & kind(ones // 5)) + ((a >> kind(2)) & kind(ones // 5))
    a = (a + (a >> kind(4))) & kind(ones // 17)
    total = (a * kind(ones // 255)) >> kind(8 * a.dtype.itemsize - 8)
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
    none = np.uint32(0xFFFFFFFF)

    def compute(a: Bits) -> Bits:
        if kind.signed:
            a = np.where(view(a, dtype) < 0, ~a, a)
        position = population(_smeared(a)) - np.uint32(1)
        return np.where(position == none, none, top - position) if distance else position

    return compute


@rule("int", "brev", sources=1)
def _brev(form: Form) -> Compute:
    bits = sized(form, 32, 64).bits
    ones = (1 << bits) - 1
    word = bits_dtype(bits).type
    # Swap neighbours, then pairs, and so on; the masks have every other run of `at` bits set.
    swaps = [
        (word(1 << at), word(ones // ((1 << (1 << at)) + 1))) for at in range(bits.bit_length() - 1)
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
        return 0  # it has no magnitude to count down
    if base > 31:
        return 0xFFFFFFFF
    if offset == 0:
        return base if mask >> base & 1 else 0xFFFFFFFF
    places = range(base, 32) if offset > 0 else range(base, -1, -1)
    found = [place for place in places if mask >> place & 1]
    return found[abs(offset) - 1] if len(found) >= abs(offset) else 0xFFFFFFFF

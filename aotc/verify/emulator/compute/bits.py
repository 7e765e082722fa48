"""Moves, logic, shifts and byte permutation.

Source: PTX ISA 9.7.8 "Logic and Shift Instructions", 9.7.9 "Data Movement and Conversion
Instructions": `mov`, `prmt`.
"""

# A rule is a lambda with one parameter per operand; `Compute` leaves their number open.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from aotc.verify.arrays import view
from aotc.verify.emulator.compute.form import Form, PtxType, flatten, rule
from aotc.verify.emulator.compute.integer_arithmetic import integer_dtype
from aotc.verify.emulator.compute.registry import Bits, Compute, bits_dtype
from aotc.verify.emulator.errors import Unsupported
from aotc.verify.emulator.syntax import Immediate, Vector


def sized(form: Form, *bits: int) -> PtxType:
    """Return the integer type; its width must be one of `bits`.

    Raises: Unsupported otherwise.
    """
    kind = form.type
    if kind.kind != "int" or kind.count > 1 or kind.bits not in bits:
        raise Unsupported(f"type .{kind.name}")
    return kind


# ---- moves ------------------------------------------------------------------------------------


@rule("", "mov")
def _mov(form: Form) -> Compute:
    """Move; between a register and a vector, the first element is the lowest."""
    bits = form.type.bits
    if form.type.kind == "pred" and len(form.instruction.operands) == 2:
        form.reads(1)
        return lambda value: value
    target, source = form.instruction.operands
    if bits not in (16, 32, 64):
        raise Unsupported(f"type .{form.type.name}")
    if isinstance(source, Vector):
        count = len(flatten((source,)))
        form.reads(*[bits // count] * count)
        return lambda *parts: _pack(parts, bits)
    form.reads(bits)
    if not isinstance(target, Vector):
        return lambda value: value
    part = bits // len(target.elements)
    dtype, word = bits_dtype(part), bits_dtype(bits).type
    return lambda value: tuple(
        (value >> word(shift)).astype(dtype) for shift in range(0, bits, part)
    )


def _pack(parts: tuple[Bits, ...], bits: int) -> Bits:
    dtype = bits_dtype(bits)
    shifts = range(0, bits, bits // len(parts))
    wide = (
        part.astype(dtype) << dtype.type(shift) for part, shift in zip(parts, shifts, strict=True)
    )
    return reduce(np.bitwise_or, wide)


# ---- logic and shifts -------------------------------------------------------------------------

_LOGIC: dict[str, Callable[..., Any]] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@rule("", "and", "or", "xor", sources=2)
def _logic(form: Form) -> Compute:
    if form.type.name not in ("pred", "b16", "b32", "b64"):
        raise Unsupported(f"type .{form.type.name}")
    return _LOGIC[form.instruction.opcode]


@rule("", "not", sources=1)
def _not(form: Form) -> Compute:
    if form.type.name not in ("pred", "b16", "b32", "b64"):
        raise Unsupported(f"type .{form.type.name}")
    return np.invert


@rule("int", "cnot", sources=1)
def _cnot(form: Form) -> Compute:
    dtype = bits_dtype(sized(form, 16, 32, 64).bits)
    return lambda a: np.asarray(a == 0).astype(dtype)


@rule("int", "shl", "shr")
def _shift(form: Form) -> Compute:
    """Shift; amounts from the width on shift everything out."""
    kind = sized(form, 16, 32, 64)
    form.reads(kind.bits, 32)
    dtype, unsigned = integer_dtype(kind), bits_dtype(kind.bits)
    top = np.uint32(kind.bits - 1)
    if form.instruction.opcode == "shr" and kind.signed:
        return lambda a, n: view(
            np.asarray(view(a, dtype) >> np.minimum(n, top).astype(dtype)), unsigned
        )
    shift = np.left_shift if form.instruction.opcode == "shl" else np.right_shift
    # NumPy gives 0 for amounts from the width on, for unsigned integers.
    past = np.uint32(kind.bits)
    return lambda a, n: shift(a, np.minimum(n, past).astype(unsigned))


@rule("int", "shf")
def _funnel(form: Form) -> Compute:
    """Shift the 64 bits `b:a` and keep 32."""
    sized(form, 32)
    form.reads(32, 32, 32)
    left = form.choice("l", "r") == "l"
    wrap = form.choice("wrap", "clamp") == "wrap"
    half = np.uint64(32)

    def compute(a: Bits, b: Bits, c: Bits) -> Bits:
        n = (c & np.uint32(31)) if wrap else np.minimum(c, np.uint32(32))
        double_word, n = (b.astype(np.uint64) << half) | a, n.astype(np.uint64)
        return np.asarray((double_word << n) >> half if left else double_word >> n).astype(
            np.uint32
        )

    return compute


@rule("int", "lop3")
def _lop3(form: Form) -> Compute:
    """Combine three words by a truth table of 8 bits; optionally test the result for zero."""
    sized(form, 32)
    combine = form.choice("or", "and", default="")
    sources = flatten(form.instruction.operands[1:])
    table = sources[3] if len(sources) > 3 else None
    if not isinstance(table, Immediate):
        raise Unsupported("a table that is no constant")
    form.reads(32, 32, 32, 32, *[1] * bool(combine))
    terms = [index for index in range(8) if table.value >> index & 1]

    def words(a: Bits, b: Bits, c: Bits) -> Bits:
        result = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), np.uint32)
        for term in terms:
            parts = (x if term & bit else ~x for x, bit in ((a, 4), (b, 2), (c, 1)))
            result |= reduce(np.bitwise_and, parts)
        return result

    if not combine:
        return lambda a, b, c, _: words(a, b, c)

    def with_predicate(a: Bits, b: Bits, c: Bits, _: Bits, q: Bits) -> tuple[Bits, Bits]:
        result = words(a, b, c)
        return result, _LOGIC[combine](result != 0, q)

    return with_predicate


# ---- bytes ------------------------------------------------------------------------------------

_BYTE_MODES: dict[str, Callable[[int], tuple[int, int, int, int]]] = {
    "f4e": lambda n: (n, n + 1, n + 2, n + 3),
    "b4e": lambda n: (n, (n - 1) & 7, (n - 2) & 7, (n - 3) & 7),
    "rc8": lambda n: (n, n, n, n),
    "ecl": lambda n: (n, max(n, 1), max(n, 2), 3),
    "ecr": lambda n: (0, min(n, 1), min(n, 2), n),
    "rc16": lambda n: (2 * (n & 1), 2 * (n & 1) + 1, 2 * (n & 1), 2 * (n & 1) + 1),
}


@rule("int", "prmt")
def _prmt(form: Form) -> Compute:
    """Pick four of the eight bytes `b:a`; a selector's top bit replicates the byte's sign."""
    sized(form, 32)
    form.reads(32, 32, 32)
    mode = form.choice(*_BYTE_MODES, default="")
    if mode:
        return _picked_by_mode(mode)
    selector = flatten(form.instruction.operands[1:])[-1]
    if isinstance(selector, Immediate):
        return _picked_by_constant([selector.value >> shift & 15 for shift in (0, 4, 8, 12)])

    def compute(a: Bits, b: Bits, c: Bits) -> Bits:
        wide = c.astype(np.uint64)
        return _pick(a, b, [(wide >> np.uint64(at)) & np.uint64(15) for at in (0, 4, 8, 12)])

    return compute


def _picked_by_constant(nibbles: list[int]) -> Compute:
    """Return the function for a constant selector: neighbouring bytes move together."""
    runs: list[tuple[int, int, int]] = []  # first byte, destination, number of bytes
    filled: dict[int, int] = {}  # mask filled with the sign, by byte
    for position, nibble in enumerate(nibbles):
        first, to, count = runs[-1] if runs else (0, 0, 0)
        if nibble & 8:
            filled[nibble & 7] = filled.get(nibble & 7, 0) | 0xFF << 8 * position
        elif nibble & 3 and (nibble, position) == (first + count, to + count):
            runs[-1] = (first, to, count + 1)
        else:
            runs.append((nibble, position, 1))
    moves = [
        (
            nibble >> 2,
            8 * (position - (nibble & 3)),
            np.uint32(((1 << 8 * count) - 1) << 8 * position),
        )
        for nibble, position, count in runs
    ]
    fills = [
        (byte >> 2, np.uint32(8 * (byte & 3) + 7), np.uint32(mask)) for byte, mask in filled.items()
    ]

    def compute(a: Bits, b: Bits, _: Bits) -> Bits:
        parts: list[Bits] = []
        for word, sign, mask in fills:
            source = b if word else a
            parts.append((source >> sign & np.uint32(1)) * mask)
        for word, shift, mask in moves:
            source = b if word else a
            by = np.uint32(abs(shift))
            shifted = source << by if shift > 0 else source >> by if shift else source
            parts.append(shifted & mask)
        return np.asarray(reduce(np.bitwise_or, parts))

    return compute


def _picked_by_mode(mode: str) -> Compute:
    table = np.array([_BYTE_MODES[mode](n) for n in range(4)], np.uint64)

    def compute(a: Bits, b: Bits, c: Bits) -> Bits:
        chosen = table[c & np.uint32(3)]
        return _pick(a, b, [chosen[..., position] for position in range(4)])

    return compute


def _pick(a: Bits, b: Bits, selectors: list[Any]) -> Bits:
    double_word = (b.astype(np.uint64) << np.uint64(32)) | a
    result = np.uint64(0)
    for index, selector in enumerate(selectors):
        byte = (double_word >> ((selector & np.uint64(7)) << np.uint64(3))) & np.uint64(0xFF)
        filled = (byte >> np.uint64(7)) * np.uint64(0xFF)
        byte = np.where(selector & np.uint64(8), filled, byte)
        result = result | (byte << np.uint64(8 * index))
    return np.asarray(result).astype(np.uint32)

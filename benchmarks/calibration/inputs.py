"""Operands for instructions: every pair of special values first, then random ones of many sizes.

A float is uniform in its bits a third of the time, so every exponent comes up, and otherwise of
ordinary size; second operands are now and then near or opposite to the first, for cancellation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.calibration.case import Array

COUNT = 1 << 16
_MAX_SPECIAL = 1 << 13

# Bits of the mantissa and of the number.
FLOATS = {"f16": (10, 16), "bf16": (7, 16), "f32": (23, 32), "f64": (52, 64)}


def float_specials(kind: str) -> Array:
    """Return zeros, ends of ranges, ones and their neighbours, infinities, several NaN."""
    mantissa, bits = FLOATS[kind]
    one_bit = 1 << mantissa
    infinity = (1 << (bits - 1)) - one_bit
    one_word = ((1 << (bits - mantissa - 2)) - 1) << mantissa
    positive = [
        0, 1, 2, one_bit - 1, one_bit, one_bit + 1, infinity - 1, infinity - one_bit, infinity,
        one_word, one_word + 1, one_word - 1, one_word + one_bit, one_word - one_bit, one_word + (one_bit >> 1),
        one_word + mantissa * one_bit, infinity + 1, infinity + (one_bit >> 1),
        infinity + (one_bit >> 1) + 1, infinity + one_bit - 1,
    ]  # fmt: skip
    sign = 1 << (bits - 1)
    words = [word | s for word in positive for s in (0, sign)]
    return np.array(words, f"u{bits // 8}")


def int_specials(bits: int) -> Array:
    """Return the ends of the signed and unsigned ranges and small numbers."""
    top = 1 << (bits - 1)
    words = [
        0,
        1,
        2,
        3,
        5,
        7,
        bits - 1,
        bits,
        bits + 1,
        top - 1,
        top,
        top + 1,
        2 * top - 1,
        2 * top - 2,
    ]
    return np.array([word % (2 * top) for word in words], f"u{bits // 8}")


def _floats(kind: str, count: int, rng: np.random.Generator) -> Array:
    mantissa, bits = FLOATS[kind]
    dtype = np.dtype(f"u{bits // 8}")
    random_words = rng.integers(0, 1 << bits, count, dtype=dtype)
    exponent_bits = bits - 1 - mantissa
    bias = (1 << (exponent_bits - 1)) - 1
    exponent = (bias + rng.integers(-8, 9, count)).astype(dtype)
    keep = dtype.type((1 << mantissa) - 1 | 1 << (bits - 1))
    ordinary = (random_words & keep) | (exponent << dtype.type(mantissa))
    # Few bits in the mantissa: exact sums and products, or ties.
    short = ordinary & ~dtype.type((1 << (mantissa * 2 // 3)) - 1)
    pick = rng.integers(0, 6, count)
    return np.where(pick < 2, random_words, np.where(pick < 5, ordinary, short))


def _ints(bits: int, count: int, rng: np.random.Generator) -> Array:
    dtype = np.dtype(f"u{bits // 8}")
    words = rng.integers(0, 1 << bits, count, dtype=dtype)
    shift = rng.integers(0, bits, count).astype(dtype)
    pick = rng.integers(0, 4, count)
    small = words >> shift
    return np.where(pick < 2, words, np.where(pick < 3, small, ~small))


def _uniform(low: float, high: float) -> Callable[[int, np.random.Generator], Array]:
    def draw(count: int, rng: np.random.Generator) -> Array:
        return rng.uniform(low, high, count).astype(np.float32).view(np.uint32)

    return draw


# Operands for one purpose: shift amounts, positions, lanes, ranges of functions.
_NAMED: dict[str, Callable[[int, np.random.Generator], Array]] = {
    "amount": lambda count, rng: np.where(
        rng.integers(0, 8, count) > 0, rng.integers(0, 70, count), rng.integers(0, 1 << 32, count)
    ).astype(np.uint32),
    "pred": lambda count, rng: rng.integers(0, 2, count).astype(np.uint32),
    "angle": _uniform(-float(np.pi), float(np.pi)),
    "large angle": _uniform(-100 * float(np.pi), 100 * float(np.pi)),
    "exponent": _uniform(-130, 130),
}


def width_of(kind: str) -> int:
    """Return the bits of an operand."""
    if kind in _NAMED:
        return 32
    element, _, count = kind.partition("x")
    return int(element.lstrip("bfus")) * int(count or 1)


def draw(kinds: Sequence[str], rng: np.random.Generator, count: int = COUNT) -> list[Array]:
    """Return the operands of an instruction, one array each, as bits."""
    if len(kinds) == 1 and kinds[0] in ("f16", "bf16", "b16", "b8") and count == COUNT:
        return [np.arange(COUNT, dtype=np.uint32).astype(f"u{width_of(kinds[0]) // 8}")]
    words = [_one(kind, count, rng) for kind in kinds]
    for index in range(1, len(kinds)):
        if kinds[index] == kinds[0] and kinds[0] in FLOATS:
            _relate(kinds[0], words[0], words[index], rng)
    _cross([_specials(kind) for kind in kinds], words, rng)
    return words


def _one(kind: str, count: int, rng: np.random.Generator) -> Array:
    if kind in _NAMED:
        return _NAMED[kind](count, rng)
    element, _, packed = kind.partition("x")
    total = count * int(packed or 1)
    if element in FLOATS:
        words = _floats(element, total, rng)
    else:
        words = _ints(int(element[1:]), total, rng)
    return words.view(f"u{width_of(kind) // 8}")


def _specials(kind: str) -> Array:
    if kind in _NAMED:
        return np.zeros(0, np.uint32)
    element, _, packed = kind.partition("x")
    special = float_specials(element) if element in FLOATS else int_specials(int(element[1:]))
    if not packed:
        return special
    pairs = np.stack([special, np.roll(special, 7)], axis=-1)
    return np.ascontiguousarray(pairs).view(f"u{width_of(kind) // 8}")[:, 0]


def _relate(kind: str, first: Array, other: Array, rng: np.random.Generator) -> None:
    """Make some of the second operands equal, opposite or next to the first ones."""
    pick = rng.integers(0, 16, first.size)
    sign = first.dtype.type(1 << (FLOATS[kind][1] - 1))
    for value, words in enumerate((first, first ^ sign, (first ^ sign) + first.dtype.type(1))):
        np.copyto(other, words, where=pick == value)


def _cross(specials: Sequence[Array], words: Sequence[Array], rng: np.random.Generator) -> None:
    """Put combinations of special values first: all of them if there is room, else any."""
    sizes = [special.size for special in specials if special.size]
    every = int(np.prod(sizes)) if sizes else 0
    total = min(every, _MAX_SPECIAL, words[0].size // 2)
    index = np.arange(total) if total == every else rng.integers(0, every, total)
    for special, word in zip(specials, words, strict=True):
        if special.size:
            word[:total] = special[index % special.size]
            index = index // special.size

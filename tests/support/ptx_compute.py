"""Run one computing PTX instruction on arrays, as the emulator's inner loop does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aotc.verify.emulator.compute import rules as _rules  # noqa: F401 - declares them
from aotc.verify.emulator.compute.registry import COMPUTES
from aotc.verify.emulator.syntax import Immediate, Instruction, Operand, Pair, Register, Vector

Target = int | Sequence[int] | str


def instruction(mnemonic: str, sources: Sequence[Any], target: Target = 32) -> Instruction:
    """Return an instruction on registers as wide as arrays, or on Python constants.

    `target` is the width of the result, the widths of a vector's elements, or "pair" for `d|p`.
    """
    opcode, *modifiers = mnemonic.split(".")
    operands: list[Operand] = [_target(target)]
    operands += [_source(index, source) for index, source in enumerate(sources)]
    return Instruction(opcode, tuple(modifiers), tuple(operands), None, 1, mnemonic)


def _target(target: Target) -> Operand:
    if target == "pair":
        return Pair(Register("%d", 32, 0), Register("%p", 1, 0))
    if isinstance(target, int):
        return Register("%d", target, 0)
    return Vector(tuple(Register(f"%d{i}", int(bits), i) for i, bits in enumerate(target)))


def _source(index: int, source: Any) -> Operand:
    if isinstance(source, int):
        return Immediate(source)
    if isinstance(source, tuple):
        return Vector(tuple(_source(index + 8 * word, part) for word, part in enumerate(source)))
    return Register(f"%r{index}", 1 if source.dtype == bool else 8 * source.dtype.itemsize, index)


def compute(mnemonic: str, *sources: Any, target: Target = 32) -> Any:
    """Return the result of an instruction: bits, or a tuple of them."""
    op = instruction(mnemonic, sources, target)
    words: list[Any] = []
    for source in sources:
        words += source if isinstance(source, tuple) else [source]
    values = [
        np.asarray(word & (1 << 64) - 1, np.uint64) if isinstance(word, int) else word
        for word in words
    ]
    before = [value.copy() for value in values]
    with np.errstate(all="ignore"):
        result = COMPUTES[op.opcode](op)(*values)
    for value, copy in zip(values, before, strict=True):
        assert value.tobytes() == copy.tobytes(), "an argument was written to"
    return result


def words(bits: int, count: int = 200, seed: int = 0) -> Any:
    """Return random words with the extreme ones among them."""
    random = np.random.default_rng([bits, seed])
    dtype = np.dtype(f"u{bits // 8}")
    numbers = random.integers(0, 1 << bits, count, dtype=dtype)
    # Small and sparse words hit cases out of reach of uniform ones.
    numbers[: count // 4] >>= random.integers(0, bits, count // 4).astype(dtype)
    top = 1 << (bits - 1)
    ends = np.array([0, 1, 2, top - 1, top, top + 1, 2 * top - 1, 2 * top - 2], dtype)
    numbers[-8:] = random.permutation(ends)
    return numbers


def signed(value: int, bits: int) -> int:
    """Return the two's complement meaning of the low bits of a number."""
    value &= (1 << bits) - 1
    return value - (value >> (bits - 1) << bits)

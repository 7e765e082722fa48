"""Store the instructions of a cubin as differences, from which zstd makes less.

Instructions of 16 bytes that have the same opcode and modifiers differ in few operands, and those often by
the same step: unrolled code counts registers and offsets up. So each operand is stored as its difference
from that of the instruction before with the same opcode; and the bytes of an instruction in an order in
which those that vary are apart from those that do not. `runtime_c/src/code_filter.c` is its inverse in C.

Invariant: `restored(filtered(cubin)) == cubin`, both have the same length, and whatever the bytes are,
nothing is read outside them. Format: `docs/reference/archive-format.md`, section 7.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

INSTRUCTION_BYTES: Final = 16
OPERANDS: Final = (2, 3, 4, 5, 6, 7, 8)
"""Registers, and constants and offsets in place of them."""
ORDER: Final = (2, 3, 4, 8, 5, 6, 7, 14, 15, 10, 11, 9, 0, 12, 1, 13)
"""Where the bytes of an instruction come from in what is stored: operands, modifiers, opcode, scheduling."""
NUM_SLOTS: Final = 4096
_HEADER: Final = struct.Struct("<40xQ10xHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_PROGBITS, _EXECUTABLE = 1, 4
_MAX_SECTIONS: Final = 1024


def filtered(cubin: bytes) -> bytes:
    """Return a cubin as it is stored."""
    return _mapped(cubin, _to_differences)


def restored(stored: bytes) -> bytes:
    """Return the cubin that is stored so."""
    return _mapped(stored, _to_instructions)


def _mapped(image: bytes, change: Callable[[Bytes], Bytes]) -> bytes:
    result = bytearray(image)
    for start, end in _code(image):
        code = np.frombuffer(image, np.uint8)[start:end].reshape(-1, INSTRUCTION_BYTES)
        result[start:end] = change(code).tobytes()
    return bytes(result)


def _code(image: bytes) -> list[tuple[int, int]]:
    """Return where the sections of code are that the table of sections lists in the order of the file."""
    if len(image) < _HEADER.size:
        return []
    at, section_bytes, count, _ = _HEADER.unpack_from(image)
    if section_bytes != _SECTION.size or count > _MAX_SECTIONS:
        return []
    if at + count * _SECTION.size > len(image):
        return []
    found: list[tuple[int, int]] = []
    last = 0
    for number in range(count):
        _, kind, flags, _, start, size, *_ = _SECTION.unpack_from(
            image, at + number * _SECTION.size
        )
        is_code = kind == _PROGBITS and flags & _EXECUTABLE and size % INSTRUCTION_BYTES == 0
        if is_code and size and start >= last and start + size <= len(image):
            last = start + size
            found.append((start, last))
    return found


def _slots(first: Bytes, second: Bytes, modifier: Bytes) -> npt.NDArray[np.uint16]:
    """Return by what an instruction is compared: its opcode, of 12 bits, and a byte of modifiers."""
    opcode = first.astype(np.uint16) | (second.astype(np.uint16) & 15) << 8
    return opcode ^ modifier.astype(np.uint16) << 4


def _to_differences(code: Bytes) -> Bytes:
    slots = _slots(code[:, 0], code[:, 1], code[:, 9])
    order = np.argsort(slots, kind="stable")
    operands = code[order][:, OPERANDS]
    differences = operands.copy()
    is_again = slots[order][1:] == slots[order][:-1]
    differences[1:][is_again] -= operands[:-1][is_again]
    result = code.copy()
    result[np.ix_(order, OPERANDS)] = differences
    return result[:, ORDER]


def _to_instructions(stored: Bytes) -> Bytes:
    code = np.empty_like(stored)
    code[:, ORDER] = stored
    slots = _slots(code[:, 0], code[:, 1], code[:, 9])
    order = np.argsort(slots, kind="stable")
    sums = np.cumsum(code[order][:, OPERANDS], axis=0, dtype=np.uint8)
    ordered = slots[order]
    is_first = np.ones(len(ordered), bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(is_first)
    before = np.zeros((len(starts), len(OPERANDS)), np.uint8)
    before[1:] = sums[starts[1:] - 1]
    code[np.ix_(order, OPERANDS)] = sums - before[np.cumsum(is_first) - 1]
    return code

"""Store the instructions of a cubin as differences, from which zstd makes less.

Instructions of 16 bytes that have the same opcode and modifiers differ in few operands, and those often by
the same step: unrolled code counts registers and offsets up. So each operand is stored as its difference
from that of the instruction before with the same opcode; and its bytes in the order 2, 3, 4, 8, 5, 6, 7 (operands),
14, 15, 10, 11, 9, 0, 12, 1, 13 (modifiers, opcode, scheduling), in which those that vary are apart from others. `runtime_c/src/code_filter.c` is its inverse in C.

Invariant: `restored(filtered(cubin)) == cubin`, both have the same length, and whatever the bytes are,
nothing is read outside them. Format: `docs/reference/archive-format.md`, section 7.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

INSTRUCTION_BYTES: Final = 16
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
        whole: Any = np.frombuffer(image, np.uint8)
        code = whole[start:end].reshape(-1, INSTRUCTION_BYTES)
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


def _seen_as(array: Any, kind: Any) -> Any:
    """Return the bytes of an array as items of another type."""
    return array.view(kind)


def _words(code: Bytes) -> tuple[Words, Words]:
    """Return the first and the last eight bytes of each instruction as numbers."""
    words = _seen_as(np.ascontiguousarray(code), "<u8")
    return words[:, 0], words[:, 1]


def _byte(words: Words, at: int) -> Any:
    return words >> np.uint64(8 * at) & np.uint64(0xFF)


def _pack(*parts: tuple[Any, int]) -> Words:
    """Return numbers, each shifted up by so many bytes, together."""
    result = parts[0][0] << np.uint64(8 * parts[0][1])
    for value, at in parts[1:]:
        result |= value << np.uint64(8 * at)
    return result


def _order(low: Words, high: Words) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Return instructions by slot, each slot's in their order, and which are not a slot's first.

    A slot is by what an instruction is compared: its opcode, of 12 bits, and a byte of modifiers.
    """
    slots = (low & np.uint64(0xFFF) ^ _byte(high, 1) << np.uint64(4)).astype(np.uint16)
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    is_again = np.zeros(len(order), bool)
    is_again[1:] = ordered[1:] == ordered[:-1]
    return order, is_again


def _to_differences(code: Bytes) -> Bytes:
    low, high = _words(code)
    order, is_again = _order(low, high)
    operands = (low >> np.uint64(16) | _byte(high, 0) << np.uint64(48))[order]
    before = np.zeros_like(operands)
    before[1:] = operands[:-1] * is_again[1:]
    parts = _seen_as(_seen_as(operands, np.uint8) - _seen_as(before, np.uint8), "<u8")
    found = np.empty_like(parts)
    found[order] = parts
    stored = np.empty((len(order), 2), "<u8")
    stored[:, 0] = _pack(
        (found & np.uint64(0xFFFFFF), 0),
        (_byte(found, 6), 3),
        (found >> np.uint64(24) & np.uint64(0xFFFFFF), 4),
        (_byte(high, 6), 7),
    )
    stored[:, 1] = _pack(
        (_byte(high, 7), 0), (_byte(high, 2), 1), (_byte(high, 3), 2), (_byte(high, 1), 3),
        (_byte(low, 0), 4), (_byte(high, 4), 5), (_byte(low, 1), 6), (_byte(high, 5), 7),
    )  # fmt: skip
    return _seen_as(stored, np.uint8)


def _to_instructions(stored: Bytes) -> Bytes:
    first, last = _words(stored)
    low = _pack((_byte(last, 4), 0), (_byte(last, 6), 1))
    high = _pack(
        (_byte(last, 3), 1), (_byte(last, 1), 2), (_byte(last, 2), 3), (_byte(last, 5), 4),
        (_byte(last, 7), 5), (_byte(first, 7), 6), (_byte(last, 0), 7),
    )  # fmt: skip
    order, is_again = _order(low, high)
    sums = np.cumsum(_seen_as(first[order], np.uint8).reshape(-1, 8), axis=0, dtype=np.uint8)
    starts = np.flatnonzero(~is_again)
    before = np.zeros((len(starts), 8), np.uint8)
    before[1:] = sums[starts[1:] - 1]
    sums -= before[np.cumsum(~is_again) - 1]
    operands = np.empty_like(first)
    operands[order] = _seen_as(sums, "<u8")[:, 0]
    code = np.empty((len(order), 2), "<u8")
    code[:, 0] = low | _pack(
        (operands & np.uint64(0xFFFFFF), 2), (operands >> np.uint64(32) & np.uint64(0xFFFFFF), 5)
    )
    code[:, 1] = high | _byte(operands, 3)
    return _seen_as(code, np.uint8)

"""Store the cubins of a frame in a form from which zstd makes less: their code apart, as differences.

Code and the rest of a cubin have little in common, so the code of all cubins comes after all else of them. Of
code, instructions of 16 bytes that have the same opcode and modifiers differ in few operands, and those often
by the same step: unrolled code counts registers and offsets up. So each operand is stored as its difference
from that of the instruction before with the same opcode, and the fields of an instruction in an order in
which those that vary are apart from others, those of scheduling in bytes of their own. Of the table of
sections, what is stored of an offset is how far it is from where the section before ends.
`runtime_c/src/code_filter.c` is the inverse in C.

Invariant: `restored(filtered(cubins), sizes) == cubins`, what is stored is as long as the cubins, and whatever
the bytes are, nothing is read outside them. Format: `docs/reference/archive-format.md`, section 7.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

INSTRUCTION_BYTES: Final = 16
_HEADER: Final = struct.Struct("<40xQ10xHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_OFFSET: Final = struct.Struct("<Q")
_OFFSET_AT: Final = 24
_PROGBITS, _NOBITS, _EXECUTABLE = 1, 8, 4
_MAX_SECTIONS: Final = 1024
_64_BITS: Final = (1 << 64) - 1


def filtered(cubins: Sequence[bytes]) -> bytes:
    """Return what is stored of cubins: all but their code, in order, then their code, the last one's first."""
    rests: list[bytes] = []
    codes: list[bytes] = []
    for cubin in cubins:
        rest, code = _apart(cubin)
        rests.append(rest)
        codes.append(code)
    return b"".join(rests + codes[::-1])


def restored(stored: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Return the cubins of these sizes, together as many bytes, that are stored so."""
    front, back = 0, len(stored)
    cubins: list[bytes] = []
    for size in sizes:
        sections = _stored_sections(stored[front : front + size])
        code_bytes = sum(end - start for start, end in sections.code)
        rest = stored[front : front + size - code_bytes]
        cubins.append(_together(sections, rest, stored[back - code_bytes : back]))
        front += len(rest)
        back -= code_bytes
    return cubins


class _Sections(NamedTuple):
    """The table of a cubin's sections, where it is, and the code before it, in the order of the file."""

    at: int = 0
    table: bytes = b""
    code: tuple[tuple[int, int], ...] = ()


def _table(image: bytes) -> tuple[int, int]:
    """Return where the table of sections is and how long; of no length if it is not taken from its place."""
    if len(image) < _SECTION.size:
        return 0, 0
    at, section_bytes, count, _ = _HEADER.unpack_from(image)
    size = count * _SECTION.size
    if section_bytes != _SECTION.size or count > _MAX_SECTIONS or at < _SECTION.size:
        return 0, 0
    return (at, size) if at + size <= len(image) else (0, 0)


def _code(table: bytes, at: int) -> tuple[tuple[int, int], ...]:
    """Return the sections of code that a table at `at` lists, between the file's header and the table."""
    found: list[tuple[int, int]] = []
    last = _SECTION.size
    for _, kind, flags, _, start, size, *_ in _SECTION.iter_unpack(table):
        is_code = kind == _PROGBITS and flags & _EXECUTABLE and size % INSTRUCTION_BYTES == 0
        if is_code and size and start >= last and start + size <= at:
            last = start + size
            found.append((start, last))
    return tuple(found)


def _with_offsets(table: bytes, *, is_stored: bool) -> bytes:
    """Return a table with offsets for differences, or with differences for offsets.

    A difference is from the end of the section before, at the next multiple of the section's alignment.
    """
    result = bytearray(table)
    end = 0
    for position in range(0, len(table), _SECTION.size):
        _, kind, _, _, offset, size, _, _, align, _ = _SECTION.unpack_from(table, position)
        expected = end + align - 1 & -align
        changed = offset + (expected if is_stored else -expected) & _64_BITS
        _OFFSET.pack_into(result, position + _OFFSET_AT, changed)
        end = (changed if is_stored else offset) + (0 if kind == _NOBITS else size)
    return bytes(result)


def _apart(cubin: bytes) -> tuple[bytes, bytes]:
    """Return what is stored of a cubin before the code of all, and of its code."""
    at, size = _table(cubin)
    if not size:
        return cubin, b""
    table = cubin[at : at + size]
    rest = [cubin[: _SECTION.size], _with_offsets(table, is_stored=False)]
    code: list[bytes] = []
    last = _SECTION.size
    for start, end in _code(table, at):
        rest.append(cubin[last:start])
        code.append(_to_differences(_instructions(cubin[start:end])).tobytes())
        last = end
    rest += (cubin[last:at], cubin[at + size :])
    return b"".join(rest), b"".join(code)


def _stored_sections(rest: bytes) -> _Sections:
    """Return the sections of a cubin from what is stored of it, cut or followed by more to its own size."""
    at, size = _table(rest)
    table = _with_offsets(rest[_SECTION.size : _SECTION.size + size], is_stored=True)
    return _Sections(at, table, _code(table, at))


def _together(sections: _Sections, rest: bytes, code: bytes) -> bytes:
    if not sections.table:
        return rest
    parts = [rest[: _SECTION.size]]
    position, taken, last = _SECTION.size + len(sections.table), 0, _SECTION.size
    for start, end in sections.code:
        parts.append(rest[position : position + start - last])
        instructions = _instructions(code[taken : taken + end - start])
        parts.append(_to_instructions(instructions).tobytes())
        position += start - last
        taken += end - start
        last = end
    tail = position + sections.at - last
    return b"".join([*parts, rest[position:tail], sections.table, rest[tail:]])


def _instructions(code: bytes) -> Bytes:
    whole: Any = np.frombuffer(code, np.uint8)
    return whole.reshape(-1, INSTRUCTION_BYTES)


def _seen_as(array: Any, kind: Any) -> Any:
    """Return the bytes of an array as items of another type."""
    return array.view(kind)


def _words(code: Bytes) -> tuple[Words, Words]:
    """Return the first and the last eight bytes of each instruction as numbers."""
    words = _seen_as(np.ascontiguousarray(code), "<u8")
    return words[:, 0], words[:, 1]


def _bits(words: Words, at: int, count: int) -> Any:
    return words >> np.uint64(at) & np.uint64((1 << count) - 1)


def _byte(words: Words, at: int) -> Any:
    return _bits(words, 8 * at, 8)


def _pack(*parts: tuple[Any, int]) -> Words:
    """Return numbers, each shifted up by so many bits, together."""
    result = parts[0][0] << np.uint64(parts[0][1])
    for value, at in parts[1:]:
        result |= value << np.uint64(at)
    return result


def _order(low: Words, modifiers: Words) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Return instructions by slot, each slot's in their order, and which are not a slot's first.

    A slot is by what an instruction is compared: its opcode, of 12 bits, and a byte of modifiers.
    """
    slots = (low & np.uint64(0xFFF) ^ modifiers << np.uint64(4)).astype(np.uint16)
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    is_again = np.zeros(len(order), bool)
    is_again[1:] = ordered[1:] == ordered[:-1]
    return order, is_again


def _to_differences(code: Bytes) -> Bytes:
    low, high = _words(code)
    order, is_again = _order(low, _byte(high, 1))
    operands = (low >> np.uint64(16) | _byte(high, 0) << np.uint64(48))[order]
    before = np.zeros_like(operands)
    before[1:] = operands[:-1] * is_again[1:]
    parts = _seen_as(_seen_as(operands, np.uint8) - _seen_as(before, np.uint8), "<u8")
    found = np.empty_like(parts)
    found[order] = parts
    stored = np.empty((len(order), 2), "<u8")
    stored[:, 0] = _pack(
        (_byte(found, 1), 0), (_byte(found, 0), 8), (_byte(found, 2), 16), (_byte(found, 6), 24),
        (_byte(high, 1), 32), (_byte(high, 3), 40), (_bits(low, 0, 12), 48), (_bits(high, 32, 4), 60),
    )  # fmt: skip
    stored[:, 1] = _pack(
        (_byte(high, 2), 0), (_bits(found, 24, 24), 8),
        (_bits(high, 46, 6), 32), (_bits(high, 62, 2), 38),
        (_bits(low, 12, 4), 40), (_bits(high, 36, 4), 44),
        (_bits(high, 52, 6), 48), (_bits(high, 60, 2), 54),
        (_bits(high, 45, 1), 56), (_bits(high, 41, 4), 57), (_bits(high, 40, 1), 61),
        (_bits(high, 58, 2), 62),
    )  # fmt: skip
    return _seen_as(stored, np.uint8)


def _to_instructions(stored: Bytes) -> Bytes:
    first, last = _words(stored)
    low = _pack((_bits(first, 48, 12), 0), (_bits(last, 40, 4), 12))
    high = _pack(
        (_byte(first, 4), 8), (_byte(last, 0), 16), (_byte(first, 5), 24),
        (_bits(first, 60, 4), 32), (_bits(last, 44, 4), 36), (_bits(last, 61, 1), 40),
        (_bits(last, 57, 4), 41), (_bits(last, 56, 1), 45), (_bits(last, 32, 6), 46),
        (_bits(last, 48, 6), 52), (_bits(last, 62, 2), 58), (_bits(last, 54, 2), 60),
        (_bits(last, 38, 2), 62),
    )  # fmt: skip
    order, is_again = _order(low, _byte(first, 4))
    differences = _pack((_bits(first, 0, 32), 0), (_bits(last, 8, 24), 32))[order]
    sums = np.cumsum(_seen_as(differences, np.uint8).reshape(-1, 8), axis=0, dtype=np.uint8)
    starts = np.flatnonzero(~is_again)
    before = np.zeros((len(starts), 8), np.uint8)
    before[1:] = sums[starts[1:] - 1]
    sums -= before[np.cumsum(~is_again) - 1]
    operands = np.empty_like(first)
    operands[order] = _seen_as(sums, "<u8")[:, 0]
    code = np.empty((len(order), 2), "<u8")
    code[:, 0] = low | _pack(
        (_byte(operands, 1), 16), (_byte(operands, 0), 24), (_byte(operands, 2), 32),
        (_bits(operands, 32, 24), 40),
    )  # fmt: skip
    code[:, 1] = high | _byte(operands, 3)
    return _seen_as(code, np.uint8)

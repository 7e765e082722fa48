"""Transform the cubins of a frame so that zstd compresses them better: code separate, delta-coded.

Code comes after the rest of all cubins: the two have little in common. Instructions have 16 bytes.
Those with the same opcode and modifiers differ in few operands, often by a constant step, since
unrolled code counts registers and offsets up. So each operand is stored as its difference from the
last instruction with the same opcode. Fields that vary are stored apart from fixed ones, and
scheduling fields in their own bytes. In the section table, an offset is stored as its distance from
the end of the preceding section. `runtime_c/src/code_filter.c` is the inverse in C.

Invariant: `restored(filtered(cubins), sizes) == cubins`, and filtering keeps the size. No input
makes it read out of bounds. Format: `docs/reference/archive-format.md`, section 7.
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
    """Return the filtered cubins: all parts but code in order, then the code, last cubin first."""
    rests: list[bytes] = []
    codes: list[bytes] = []
    for cubin in cubins:
        rest, code = _split_cubin(cubin)
        rests.append(rest)
        codes.append(code)
    return b"".join(rests + codes[::-1])


def restored(stored: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Invert `filtered` for cubins of these sizes, which add up to the stored size."""
    front, back = 0, len(stored)
    cubins: list[bytes] = []
    for size in sizes:
        sections = _stored_sections(stored[front : front + size])
        code_bytes = sum(end - start for start, end in sections.code)
        rest = stored[front : front + size - code_bytes]
        cubins.append(_join_cubin(sections, rest, stored[back - code_bytes : back]))
        front += len(rest)
        back -= code_bytes
    return cubins


class _Sections(NamedTuple):
    """A cubin's section table, its offset, and the code ranges before it, in file order."""

    offset: int = 0
    table: bytes = b""
    code: tuple[tuple[int, int], ...] = ()


def _table(image: bytes) -> tuple[int, int]:
    """Return the offset and size of the section table; size 0 if it stays in place."""
    if len(image) < _SECTION.size:
        return 0, 0
    offset, section_bytes, count, _ = _HEADER.unpack_from(image)
    size = count * _SECTION.size
    if section_bytes != _SECTION.size or count > _MAX_SECTIONS or offset < _SECTION.size:
        return 0, 0
    return (offset, size) if offset + size <= len(image) else (0, 0)


def _code(table: bytes, table_offset: int) -> tuple[tuple[int, int], ...]:
    """Return the ranges of the code sections between the file's header and the table."""
    ranges: list[tuple[int, int]] = []
    last = _SECTION.size
    for _, kind, flags, _, start, size, *_ in _SECTION.iter_unpack(table):
        is_code = kind == _PROGBITS and flags & _EXECUTABLE and size % INSTRUCTION_BYTES == 0
        if is_code and size and start >= last and start + size <= table_offset:
            last = start + size
            ranges.append((start, last))
    return tuple(ranges)


def _with_offsets(table: bytes, *, is_stored: bool) -> bytes:
    """Convert the table's offsets from differences, or to them.

    A difference is from the end of the preceding section, aligned up for this one.
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


def _split_cubin(cubin: bytes) -> tuple[bytes, bytes]:
    """Split a cubin into its filtered parts: everything but code, and code."""
    table_offset, size = _table(cubin)
    if not size:
        return cubin, b""
    table = cubin[table_offset : table_offset + size]
    rest = [cubin[: _SECTION.size], _with_offsets(table, is_stored=False)]
    code: list[bytes] = []
    last = _SECTION.size
    for start, end in _code(table, table_offset):
        rest.append(cubin[last:start])
        code.append(_to_differences(_instructions(cubin[start:end])).tobytes())
        last = end
    rest += (cubin[last:table_offset], cubin[table_offset + size :])
    return b"".join(rest), b"".join(code)


def _stored_sections(rest: bytes) -> _Sections:
    """Return the sections of a filtered cubin; `rest` is cut or padded to the cubin's size."""
    table_offset, size = _table(rest)
    table = _with_offsets(rest[_SECTION.size : _SECTION.size + size], is_stored=True)
    return _Sections(table_offset, table, _code(table, table_offset))


def _join_cubin(sections: _Sections, rest: bytes, code: bytes) -> bytes:
    if not sections.table:
        return rest
    parts = [rest[: _SECTION.size]]
    position, code_position, last = _SECTION.size + len(sections.table), 0, _SECTION.size
    for start, end in sections.code:
        parts.append(rest[position : position + start - last])
        instructions = _instructions(code[code_position : code_position + end - start])
        parts.append(_to_instructions(instructions).tobytes())
        position += start - last
        code_position += end - start
        last = end
    tail = position + sections.offset - last
    return b"".join([*parts, rest[position:tail], sections.table, rest[tail:]])


def _instructions(code: bytes) -> Bytes:
    whole: Any = np.frombuffer(code, np.uint8)
    return whole.reshape(-1, INSTRUCTION_BYTES)


def _reinterpret(array: Any, kind: Any) -> Any:
    """Reinterpret the bytes of an array as items of another type."""
    return array.view(kind)


def _words(code: Bytes) -> tuple[Words, Words]:
    """Return the low and the high eight bytes of each instruction as numbers."""
    words = _reinterpret(np.ascontiguousarray(code), "<u8")
    return words[:, 0], words[:, 1]


def _bits(words: Words, shift: int, count: int) -> Any:
    return words >> np.uint64(shift) & np.uint64((1 << count) - 1)


def _byte(words: Words, index: int) -> Any:
    return _bits(words, 8 * index, 8)


def _pack(*parts: tuple[Any, int]) -> Words:
    """Shift each number left by its bit count and combine them."""
    result = parts[0][0] << np.uint64(parts[0][1])
    for value, shift in parts[1:]:
        result |= value << np.uint64(shift)
    return result


def _order(low: Words, modifiers: Words) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Return the instruction order by slot, stable, and a mask of those not first in their slot.

    A slot holds the instructions compared with one another: 12 bits of opcode and a byte of
    modifiers.
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
    parts = _reinterpret(_reinterpret(operands, np.uint8) - _reinterpret(before, np.uint8), "<u8")
    differences = np.empty_like(parts)
    differences[order] = parts
    stored = np.empty((len(order), 2), "<u8")
    stored[:, 0] = _pack(
        (_byte(differences, 1), 0), (_byte(differences, 0), 8), (_byte(differences, 2), 16), (_byte(differences, 6), 24),
        (_byte(high, 1), 32), (_byte(high, 3), 40), (_bits(low, 0, 12), 48), (_bits(high, 32, 4), 60),
    )  # fmt: skip
    stored[:, 1] = _pack(
        (_byte(high, 2), 0), (_bits(differences, 24, 24), 8),
        (_bits(high, 46, 6), 32), (_bits(high, 62, 2), 38),
        (_bits(low, 12, 4), 40), (_bits(high, 36, 4), 44),
        (_bits(high, 52, 6), 48), (_bits(high, 60, 2), 54),
        (_bits(high, 45, 1), 56), (_bits(high, 41, 4), 57), (_bits(high, 40, 1), 61),
        (_bits(high, 58, 2), 62),
    )  # fmt: skip
    return _reinterpret(stored, np.uint8)


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
    sums = np.cumsum(_reinterpret(differences, np.uint8).reshape(-1, 8), axis=0, dtype=np.uint8)
    starts = np.flatnonzero(~is_again)
    before = np.zeros((len(starts), 8), np.uint8)
    before[1:] = sums[starts[1:] - 1]
    sums -= before[np.cumsum(~is_again) - 1]
    operands = np.empty_like(first)
    operands[order] = _reinterpret(sums, "<u8")[:, 0]
    code = np.empty((len(order), 2), "<u8")
    code[:, 0] = low | _pack(
        (_byte(operands, 1), 16), (_byte(operands, 0), 24), (_byte(operands, 2), 32),
        (_bits(operands, 32, 24), 40),
    )  # fmt: skip
    code[:, 1] = high | _byte(operands, 3)
    return _reinterpret(code, np.uint8)

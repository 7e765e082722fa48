"""Empty a cubin's tables of lines: that of PTX, or both.

For a cubin with lines, ptxas writes two tables: `.debug_line` from instructions to the source, and
`.nv_debug_line_sass`, the larger one, from instructions to the PTX. The PTX is not shipped, so the
second is useless.

Invariant: no byte moves. The section becomes empty, as empty sections of relocations are. Its old
bytes become zeros, free in a compressed archive.

Source: ELF-64 section headers, System V ABI.
"""

from __future__ import annotations

import struct

_HEADER = struct.Struct("<40xQ10xHHH")
_SECTION = struct.Struct("<I20xQQ24x")
_SIZE_OFFSET = 32
_PTX_LINES, _LINES = b".nv_debug_line_sass\0", b".debug_line\0"


def without_ptx_lines(cubin: bytes) -> bytes:
    """Return a cubin with lines of the source alone."""
    return _emptied(cubin, _PTX_LINES)


def without_lines(cubin: bytes) -> bytes:
    """Return a cubin without tables of lines."""
    return _emptied(cubin, _PTX_LINES, _LINES)


def _emptied(cubin: bytes, *sections_emptied: bytes) -> bytes:
    """Return a cubin with sections and their relocations empty."""
    emptied = tuple(
        prefix + name for name in sections_emptied for prefix in (b"", b".rela", b".rel")
    )
    start, size, count, names_index = _HEADER.unpack_from(cubin)
    sections: list[tuple[int, int, int]] = [
        _SECTION.unpack_from(cubin, start + size * index) for index in range(count)
    ]
    _, names_offset, _ = sections[int(names_index)]
    edited = bytearray(cubin)
    for index, (name, offset, size_bytes) in enumerate(sections):
        if cubin.startswith(emptied, names_offset + name):
            edited[offset : offset + size_bytes] = bytes(size_bytes)
            struct.pack_into("<Q", edited, start + size * index + _SIZE_OFFSET, 0)
    return bytes(edited)

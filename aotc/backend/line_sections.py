"""Leave out of a cubin's line table what refers to PTX.

For a cubin with lines, ptxas writes two tables: `.debug_line`, instruction to line of the source, and
`.nv_debug_line_sass`, instruction to line of the PTX, which is the larger one. The PTX is not shipped, so the
second says nothing to anybody.

Invariant: no byte moves. The section becomes empty, as sections of relocations are that have none; what it had
is zeros, of which a compressed archive has none.

Source: ELF-64 section headers, System V ABI.
"""

from __future__ import annotations

import struct

_HEADER = struct.Struct("<40xQ10xHHH")
_SECTION = struct.Struct("<I20xQQ24x")
_SIZE_OFFSET = 32
_NAMES = (b".nv_debug_line_sass\0", b".rela.nv_debug_line_sass\0", b".rel.nv_debug_line_sass\0")


def without_ptx_lines(cubin: bytes) -> bytes:
    """Return a cubin whose instructions name lines of the source alone."""
    start, size, count, names_index = _HEADER.unpack_from(cubin)
    sections: list[tuple[int, int, int]] = [
        _SECTION.unpack_from(cubin, start + size * index) for index in range(count)
    ]
    _, names_offset, _ = sections[int(names_index)]
    edited = bytearray(cubin)
    for index, (name, offset, size_bytes) in enumerate(sections):
        if cubin.startswith(_NAMES, names_offset + name):
            edited[offset : offset + size_bytes] = bytes(size_bytes)
            struct.pack_into("<Q", edited, start + size * index + _SIZE_OFFSET, 0)
    return bytes(edited)

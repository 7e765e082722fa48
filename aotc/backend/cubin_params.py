"""Read the offsets of a function's parameters from a cubin.

PTX gives their order and alignment. But the address of the parameter buffer differs by architecture
and is not always a multiple of 64. So a tensor map, aligned to 64, may have another alignment as an
offset in the buffer. `.nv.info.NAME` has the offsets reported by the driver.

Source: `cuobjdump -elf`: attributes EIATTR_KPARAM_INFO.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from aotc.ir.diagnostics import IRError

_HEADER = struct.Struct("<40xQ10xHHH")
_SECTION = struct.Struct("<I20xQQ24x")
_ATTRIBUTE = struct.Struct("<BBH")
_PARAM = struct.Struct("<IHHI")
_SIZED, _KPARAM_INFO = 0x04, 0x17
_SIZE_SHIFT = 18


class _Section(NamedTuple):
    """Offsets of a section's name in the table of names, and of its content in the file."""

    name: int
    offset: int
    size_bytes: int


def param_places(cubin: bytes, symbol: str) -> tuple[tuple[int, int], ...]:
    """Return the offset and the size of each parameter of a function, in bytes, in order.

    Raises: IRError if the cubin does not have the function's description.
    """
    start, size, count, names_index = _HEADER.unpack_from(cubin)
    sections = [
        _Section(*_SECTION.unpack_from(cubin, start + size * index)) for index in range(count)
    ]
    names = sections[int(names_index)]
    section_name = f".nv.info.{symbol}".encode() + b"\0"
    for section in sections:
        if cubin.startswith(section_name, names.offset + section.name):
            return _read(cubin[section.offset : section.offset + section.size_bytes])
    raise IRError(f"the cubin does not describe {symbol}")


def _read(info: bytes) -> tuple[tuple[int, int], ...]:
    """Parse the parameter attributes of a function."""
    params: dict[int, tuple[int, int]] = {}
    position = 0
    while position < len(info):
        form, attribute, size = _ATTRIBUTE.unpack_from(info, position)
        position += _ATTRIBUTE.size
        if form != _SIZED:
            continue  # the value is part of the attribute's header
        if attribute == _KPARAM_INFO:
            _, ordinal, offset, packed = _PARAM.unpack_from(info, position)
            params[ordinal] = offset, packed >> _SIZE_SHIFT
        position += size
    return tuple(params[ordinal] for ordinal in sorted(params))

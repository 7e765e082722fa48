"""Check that a blob is a cubin for its target before anything else sees it.

`cuLibraryLoadData` takes an address and no length, and accepts PTX, fatbins and Tile IR as well as
cubins. So a blob is only handed on once it is known to be an ELF file for CUDA that ends where the
blob ends, for the architecture that the index says, with the function that the index says.

`e_flags` has the same number for `sm_90` and `sm_90a`; the command line that ptxas leaves in a note
tells them apart.
"""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple

from aotc.package.index import ArchiveError, parse_target

_IDENT: Final = b"\x7fELF\x02\x01\x01"
_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
_EM_CUDA: Final = 190
_SHT_NOBITS: Final = 8
_TOOL_NOTE: Final = b".note.nv.tkinfo"
_ARCH_OPTION: Final = re.compile(rb"-arch[ =](sm_[0-9]+[a-z]?)(?![0-9A-Za-z_])")


class _Section(NamedTuple):
    name: int
    offset: int
    size: int


def _fail(message: str) -> ArchiveError:
    return ArchiveError("FORMAT", f"not a cubin: {message}")


def _sections(blob: bytes, offset: int, count: int) -> tuple[list[_Section], int]:
    """Return the sections that have bytes in the file, and where the last of them ends."""
    sections: list[_Section] = []
    end = offset + count * _SECTION.size
    if end > len(blob):
        raise _fail("the section table reaches behind the end")
    for index in range(count):
        name, kind, _, _, start, size, *_ = _SECTION.unpack_from(blob, offset + 64 * index)
        if kind == _SHT_NOBITS:
            size = 0
        elif start + size > len(blob):
            raise _fail(f"section {index} reaches behind the end")
        sections.append(_Section(name, start, size))
        end = max(end, start + size)
    return sections, end


def _segments_end(blob: bytes, offset: int, count: int) -> int:
    end = offset + count * _SEGMENT.size
    if end > len(blob):
        raise _fail("the segment table reaches behind the end")
    for index in range(count):
        _, _, start, _, _, size, _, _ = _SEGMENT.unpack_from(blob, offset + 56 * index)
        if start + size > len(blob):
            raise _fail(f"segment {index} reaches behind the end")
        end = max(end, start + size)
    return end


def _find(blob: bytes, sections: list[_Section], names: _Section, name: bytes) -> _Section | None:
    """Return the section called `name`, comparing in place: names may be as long as the blob."""
    wanted = name + b"\0"
    for section in sections:
        if section.name + len(wanted) > names.size:
            continue
        if blob.startswith(wanted, names.offset + section.name):
            return section
    return None


def check_cubin(blob: bytes, target: str, symbol: str) -> None:
    """Check that `blob` is a cubin for `target` that defines the kernel function `symbol`.

    Raises: `ArchiveError` FORMAT saying what is wrong.
    """
    if len(blob) < _HEADER.size or blob[: len(_IDENT)] != _IDENT:
        raise _fail("it does not start as an ELF file of 64 bits")
    header: tuple[int, ...] = _HEADER.unpack_from(blob)[1:]  # behind the identification bytes
    _, machine, _, _, segments_at, sections_at, flags, header_bytes, *counts = header
    segment_bytes, num_segments, section_bytes, num_sections, names_index = counts
    if machine != _EM_CUDA:
        raise _fail(f"its ELF machine is {machine}, not {_EM_CUDA}")
    if header_bytes != _HEADER.size or section_bytes != _SECTION.size:
        raise _fail("its ELF tables have the wrong record size")
    if num_segments and segment_bytes != _SEGMENT.size:
        raise _fail("its ELF segments have the wrong record size")
    sections, end = _sections(blob, sections_at, num_sections)
    if num_segments:
        end = max(end, _segments_end(blob, segments_at, num_segments))
    if max(end, _HEADER.size) != len(blob):
        raise _fail(f"it ends at {end} of {len(blob)} bytes")
    major, minor, _ = parse_target(target)
    arch = flags >> 8 & 0xFF
    if arch != 10 * major + minor:
        raise ArchiveError("FORMAT", f"the index says {target}, the cubin is for sm_{arch}")
    if names_index >= len(sections):
        raise _fail("the section names are in no section")
    names = sections[names_index]
    if _find(blob, sections, names, b".text." + symbol.encode()) is None:
        raise ArchiveError("FORMAT", f"the cubin does not define {symbol!r}")
    note = _find(blob, sections, names, _TOOL_NOTE)
    if note is None:
        return
    option = _ARCH_OPTION.search(blob, note.offset, note.offset + note.size)
    if option is not None and option[1].decode() != target:
        message = f"the index says {target}, the cubin was assembled for {option[1].decode()}"
        raise ArchiveError("FORMAT", message)

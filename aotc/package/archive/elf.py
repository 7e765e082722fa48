"""Check that a blob is a cubin for its target before passing it to the driver.

`cuLibraryLoadData` takes an address and no length, and accepts PTX, fatbins and Tile IR as well as
cubins. So first check that the blob is a CUDA ELF file of exactly its size, with valid references
between sections and symbols. Its architecture, function and static shared memory must match the
index. The runtime in C checks the same.

`e_flags` has the same number for `sm_90` and `sm_90a`; ptxas leaves its command line in a note,
which tells them apart.
"""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple

from aotc.package.archive.index import ArchiveError, parse_target
from aotc.target import CUDA_12_TOOLCHAIN, DEFAULT_TOOLCHAIN

_IDENT: Final = b"\x7fELF\x02\x01\x01"
_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_EM_CUDA: Final = 190
_ABI_AT: Final = 7
_CUDA_12_ABI: Final = 51
_RELEASE: Final = re.compile(rb"Cuda compilation tools, release ([0-9]+)\.")
_SHT_SYMTAB: Final = 2
_SHT_STRTAB: Final = 3
_SHT_RELA: Final = 4
_SHT_NOBITS: Final = 8
_SHT_MERCURY_NOBITS: Final = 0x70000015  # of the copy that ptxas adds from sm_110 on
_NO_BITS: Final = (_SHT_NOBITS, _SHT_MERCURY_NOBITS)
_SHT_REL: Final = 9
_SHF_INFO_LINK: Final = 0x40
_SHN_LORESERVE: Final = 0xFF00
_MAX_SECTIONS: Final = 1024
_TOOL_NOTE: Final = b".note.nv.tkinfo"
_SHARED: Final = b".nv.shared."
_RESERVED_SHARED: Final = b".nv.shared.reserved.0"
_RESERVED_SHARED_BYTES: Final = 1024
"""From sm_90 on, the system reserves the start of a CTA's shared memory and counts it in the
function's section; the section of this name says so."""
_ARCH_OPTION: Final = re.compile(rb"-arch[ =](sm_[0-9]+[a-z]?)(?![0-9A-Za-z_])")


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_bytes: int

    @property
    def end(self) -> int:
        """File offset of the end of its bytes."""
        return self.offset + (0 if self.kind in _NO_BITS else self.size)


def _fail(message: str) -> ArchiveError:
    return ArchiveError("FORMAT", f"not a cubin: {message}")


def _sections(blob: bytes, offset: int, count: int) -> tuple[list[_Section], int]:
    """Return the sections, and the end of the last one with bytes in the file."""
    if count > _MAX_SECTIONS:
        raise _fail(f"it has {count} sections")
    sections: list[_Section] = []
    end = offset + count * _SECTION.size
    if end > len(blob):
        raise _fail("the section table reaches beyond the end")
    for index in range(count):
        section = _Section(*_SECTION.unpack_from(blob, offset + 64 * index))
        if section.kind not in _NO_BITS:
            if section.end > len(blob):
                raise _fail(f"section {index} reaches beyond the end")
            end = max(end, section.end)
        sections.append(section)
    return sections, end


def _segments_end(blob: bytes, offset: int, count: int) -> int:
    end = offset + count * _SEGMENT.size
    if end > len(blob):
        raise _fail("the segment table reaches beyond the end")
    for index in range(count):
        _, _, start, _, _, size, _, _ = _SEGMENT.unpack_from(blob, offset + 56 * index)
        if start + size > len(blob):
            raise _fail(f"segment {index} reaches beyond the end")
        end = max(end, start + size)
    return end


def _is_string_table(blob: bytes, section: _Section) -> bool:
    return section.kind == _SHT_STRTAB and section.size > 0 and blob[section.end - 1] == 0


def _check_references(blob: bytes, sections: list[_Section], names: _Section) -> None:
    """Check that sections and symbols have names, and only refer to existing sections."""
    if not _is_string_table(blob, names):
        raise _fail("the section names are no table of strings")
    for index, section in enumerate(sections):
        if section.name >= names.size:
            raise _fail(f"section {index} has no name")
        names_section = section.kind in (_SHT_REL, _SHT_RELA) or section.flags & _SHF_INFO_LINK
        if section.link >= len(sections) or (names_section and section.info >= len(sections)):
            raise _fail(f"section {index} belongs to a section that does not exist")
        if section.kind == _SHT_SYMTAB:
            _check_symbols(blob, section, sections)


def _check_symbols(blob: bytes, table: _Section, sections: list[_Section]) -> None:
    names = sections[table.link]
    count, rest = divmod(table.size, _SYMBOL.size)
    if table.entry_bytes != _SYMBOL.size or rest or table.info > count:
        raise _fail("the symbol table is no table of symbols")
    if not _is_string_table(blob, names):
        raise _fail("the names of the symbols are no table of strings")
    for index in range(count):
        name, _, _, section, *_ = _SYMBOL.unpack_from(blob, table.offset + index * _SYMBOL.size)
        if name >= names.size or len(sections) <= section < _SHN_LORESERVE:
            raise _fail(f"symbol {index} has no name or is in no section")


def _check_apart(ranges: list[tuple[int, int]]) -> None:
    """Check that byte ranges, as (start, end), do not overlap."""
    last = 0
    for start, end in sorted(part for part in ranges if part[0] < part[1]):
        if start < last:
            raise _fail(f"two sections overlap at byte {start}")
        last = end


def _find(blob: bytes, sections: list[_Section], names: _Section, name: bytes) -> _Section | None:
    """Find the section called `name`, comparing in place: names may be as long as the blob."""
    terminated = name + b"\0"
    for section in sections:
        if section.name + len(terminated) > names.size:
            continue
        if blob.startswith(terminated, names.offset + section.name):
            return section
    return None


def check_cubin(blob: bytes, target: str, symbol: str, static_shared_bytes: int = 0) -> None:
    """Check that `blob` is a cubin for `target` with the kernel function `symbol`.

    Each CTA has `static_shared_bytes` besides the dynamic shared memory of the launch.

    Raises: `ArchiveError`, NOT_FOUND without the function, else FORMAT.
    """
    if len(blob) < _HEADER.size or blob[: len(_IDENT)] != _IDENT:
        raise _fail("it does not start as a 64-bit ELF file")
    header: tuple[int, ...] = _HEADER.unpack_from(blob)[1:]  # after the identification bytes
    _, machine, _, _, segments_at, sections_at, flags, header_bytes, *counts = header
    segment_bytes, num_segments, section_bytes, num_sections, names_index = counts
    if machine != _EM_CUDA:
        raise _fail(f"its ELF machine is {machine}, not {_EM_CUDA}")
    if header_bytes != _HEADER.size or section_bytes != _SECTION.size:
        raise _fail("its ELF tables have the wrong record size")
    if num_segments and segment_bytes != _SEGMENT.size:
        raise _fail("its ELF segments have the wrong record size")
    sections, end = _sections(blob, sections_at, num_sections)
    end = max(end, _segments_end(blob, segments_at, num_segments))
    if max(end, _HEADER.size) != len(blob):
        raise _fail(f"its content ends at byte {end} of {len(blob)}")
    major, minor, _ = parse_target(target)
    # The ABI of CUDA 12, which its ptxas writes for GPUs before sm_100, has the number in other bits.
    arch = (flags if blob[_ABI_AT] == _CUDA_12_ABI else flags >> 8) & 0xFF
    if arch != 10 * major + minor:
        raise ArchiveError("FORMAT", f"the index says {target}, the cubin is for sm_{arch}")
    if names_index >= len(sections):
        raise _fail("there is no section of section names")
    names = sections[names_index]
    _check_references(blob, sections, names)
    tables = ((sections_at, _SECTION.size * num_sections), (segments_at, 56 * num_segments))
    # ptxas stores sections of equal content once.
    parts = {(section.offset, section.end) for section in sections}
    _check_apart([(0, _HEADER.size), *((offset, offset + size) for offset, size in tables), *parts])
    if _find(blob, sections, names, b".text." + symbol.encode()) is None:
        raise ArchiveError("NOT_FOUND", f"the cubin does not define {symbol!r}")
    shared = _find(blob, sections, names, _SHARED + symbol.encode())
    reserved_bytes = _RESERVED_SHARED_BYTES if _find(blob, sections, names, _RESERVED_SHARED) else 0
    shared_bytes = 0 if shared is None else max(0, shared.size - reserved_bytes)
    if shared_bytes != static_shared_bytes:
        message = f"the index says {static_shared_bytes} bytes of static shared memory"
        raise ArchiveError("FORMAT", f"{message}, {symbol!r} has {shared_bytes}")
    note = _find(blob, sections, names, _TOOL_NOTE)
    if note is None:
        return
    option = _ARCH_OPTION.search(blob, note.offset, note.offset + note.size)
    if option is not None and option[1].decode() != target:
        message = f"the index says {target}, the cubin was assembled for {option[1].decode()}"
        raise ArchiveError("FORMAT", message)


def toolchain_of(blob: bytes) -> str:
    """Return the toolchain of a cubin, of `target.TOOLCHAINS`, by the CUDA release of its ptxas."""
    release = _RELEASE.search(blob)
    abi = blob[_ABI_AT : _ABI_AT + 1]
    is_cuda_12 = abi == bytes([_CUDA_12_ABI]) or (release is not None and release[1] == b"12")
    return CUDA_12_TOOLCHAIN if is_cuda_12 else DEFAULT_TOOLCHAIN

"""Write an archive as a static library: `libNAME.a`, with the bytes as read-only data.

A C or C++ program links it and opens the archive from memory: there is no file to install or to
find at run time. LLVM writes the object for the host's architecture, and the `ar` format is a few
fixed-width fields. So no C compiler is needed, and cross-building needs no toolchain.

The library defines `NAME_archive`, aligned to 64 bytes, and `NAME_archive_size`, a `size_t`. The
header's symbol (`header.py`) is another name of the bytes.

Invariant: the same archive for the same host is the same library, byte for byte.
"""

from __future__ import annotations

import struct
from typing import Final

from aotc.ir.diagnostics import ManifestError
from aotc.package.archive.index import ArchiveError
from aotc.package.emit.header import c_identifier

DEFAULT_HOST: Final = "x86_64-unknown-linux-gnu"
DATA_ALIGN: Final = 64

MAX_DATA_BYTES: Final = 1 << 30
"""Limit of linked data; the small code model reaches 2 GiB, including the program."""

_HOSTS: Final = {
    "x86_64": DEFAULT_HOST,
    "amd64": DEFAULT_HOST,
    "aarch64": "aarch64-unknown-linux-gnu",
    "arm64": "aarch64-unknown-linux-gnu",
}
_AR_MAGIC: Final = b"!<arch>\n"
_MEMBER: Final = "archive.o"


def host_triple(host: str) -> str:
    """Return the triple of a host named by architecture or triple, such as "aarch64".

    Raises: `ManifestError` for an unsupported host.
    """
    architecture, *system = host.split("-")
    triple = _HOSTS.get(architecture.lower())
    if triple is None or (system and "linux" not in system):
        expected = "x86_64 or aarch64, with Linux"
        raise ManifestError(f"expected a host of {expected}, got {host!r}")
    return triple


def object_bytes(name: str, data: bytes, alias: str, host: str = DEFAULT_HOST) -> bytes:
    """Return an ELF object with symbols `name`_archive and `alias` for `data`, and `name`_archive_size.

    Raises: `ArchiveError` LIMIT for data too large to be linked in; `ManifestError` for the host.
    """
    if len(data) > MAX_DATA_BYTES:
        message = f"{len(data)} bytes are too many to link in, at most {MAX_DATA_BYTES}"
        raise ArchiveError("LIMIT", f"{message}; load the archive from its file")
    triple = host_triple(host)
    prefix = c_identifier(name)
    # A string constant parses at some 100 MB/s; an array of numbers is a hundred times slower.
    text = f"\\{data.hex(chr(92))}" if data else ""
    source = (
        f'source_filename = "{prefix}"\n'
        f'target triple = "{triple}"\n'
        f'@{prefix}_archive = constant [{len(data)} x i8] c"{text}", align {DATA_ALIGN}\n'
        f"@{alias} = alias [{len(data)} x i8], ptr @{prefix}_archive\n"
        f"@{prefix}_archive_size = constant i64 {len(data)}, align 8\n"
    )
    return _emit(source, triple)


def _emit(source: str, triple: str) -> bytes:
    """Compile LLVM IR for a host; llvmlite has no types."""
    # Imported here: the import takes longer than a build served from the cache.
    import llvmlite.binding as llvm  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(triple)  # pyright: ignore[reportUnknownMemberType]
    machine = target.create_target_machine(opt=0, reloc="pic")
    module = llvm.parse_assembly(source)  # pyright: ignore[reportUnknownMemberType]
    return bytes(machine.emit_object(module))  # pyright: ignore[reportUnknownMemberType]


def _member_header(name: str, size: int) -> bytes:
    """Return a member's header, without time, owner or path."""
    return f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{size:<10}`\n".encode()


def _even(body: bytes) -> bytes:
    return body + b"\n" * (len(body) % 2)


def library_bytes(name: str, data: bytes, alias: str, host: str = DEFAULT_HOST) -> bytes:
    """Return the static library of an archive: an `ar` file with a symbol table and one object.

    Raises: as `object_bytes`.
    """
    prefix = c_identifier(name)
    member = object_bytes(name, data, alias, host)
    names = [f"{prefix}_archive", alias, f"{prefix}_archive_size"]
    text = b"".join(name.encode() + b"\0" for name in names)
    table_bytes = 4 + 4 * len(names) + len(text)
    member_at = len(_AR_MAGIC) + 60 + table_bytes + table_bytes % 2
    table = struct.pack(f">I{len(names)}I", len(names), *[member_at] * len(names)) + text
    return b"".join(
        [
            _AR_MAGIC,
            _member_header("/", len(table)),
            _even(table),
            _member_header(f"{_MEMBER}/", len(member)),
            _even(member),
        ]
    )

"""Write the files of a build: the archive, its header, its sources and its static library.

All files are written to disk first, then each is replaced atomically, the archive last. An
unchanged file is not touched: it keeps its time, so a C++ build depending on it has nothing to do.
A static library is current if its bytes contain the archive's and its header's symbol. Writing one needs LLVM, which a
build with nothing to do does not load.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from aotc.ir.diagnostics import ManifestError, did_you_mean
from aotc.package.archive import file as archive
from aotc.package.archive.index import Archive, ArchiveError
from aotc.package.cache.frames import FrameCache
from aotc.package.emit import header
from aotc.package.emit.sources import KernelSource, sources_text
from aotc.regular_file import read_regular

# Hosts by their names, and the machine number in their ELF files.
_HOSTS = {"x86_64": 62, "amd64": 62, "aarch64": 183, "arm64": 183}
_MACHINES = {number: host for host, number in reversed(_HOSTS.items())}
_DEFAULT_HOST = "x86_64"
_MAX_OBJECT_BYTES = 1 << 16  # of a static library, besides the archive
_ELF_MAGIC = b"\x7fELF"


def write_files(
    result: Archive,
    sources: Mapping[str, KernelSource],
    folder: Path,
    host: str,
    warn: Callable[[str], None],
    frames: FrameCache | None = None,
    tuned: Sequence[Mapping[str, object]] = (),
    *,
    is_grouped: bool = True,
    is_compressed: bool = True,
) -> tuple[Path, ...]:
    """Write an archive and its accompanying files to `folder`; return their paths.

    `frames` caches compressed frames, `tuned` is from `tuned_entries`; `is_grouped` and
    `is_compressed` as `file.encode`.

    An archive too large to be linked in gets no library, and a warning.

    Raises:
        ArchiveError: the format cannot hold the archive, or a file cannot be written.
        ManifestError: two names are the same in C, or `host` is unknown.
    """
    host = known_host(host)
    data = archive.encode(result, is_grouped=is_grouped, is_compressed=is_compressed, cache=frames)
    text = header.header_text(result)
    symbol = header.archive_symbol(text)
    archive.make_folder(folder)
    library = folder / f"lib{result.name}.a"
    names = (f"{result.name}.aotc", f"{result.name}.h", f"{result.name}.sources.json")
    paths = tuple(folder / name for name in names)
    contents: dict[Path, bytes] = {}
    has_library = _is_current(_read(library, len(data) + _MAX_OBJECT_BYTES), data, symbol, host)
    if not has_library:
        content = _library_bytes(result.name, data, symbol, library, host, warn)
        has_library = content is not None
        contents |= {library: content} if content is not None else {}
    contents |= {
        paths[1]: text.encode(),
        paths[2]: sources_text(sources, data, tuned).encode(),
        paths[0]: data,
    }
    changed = {path: new for path, new in contents.items() if _read(path, len(new)) != new}
    archive.write_together(changed)
    return (*paths, library) if has_library else paths


def known_host(host: str) -> str:
    """Return the architecture of `host`; an empty one is this machine's.

    Raises:
        ManifestError: there is no such host.
    """
    if not host:
        machine = platform.machine().lower()
        return machine if machine in _HOSTS else _DEFAULT_HOST
    if host.lower() not in _HOSTS:
        message = f"expected a host (x86_64 or aarch64), got {host!r}"
        raise ManifestError(message, remedy=did_you_mean(host, _HOSTS))
    return host.lower()


def _library_bytes(
    name: str, data: bytes, symbol: str, path: Path, host: str, warn: Callable[[str], None]
) -> bytes | None:
    """Return the static library of an archive, or None if it is too large for one."""
    from aotc.package.emit.object import library_bytes  # noqa: PLC0415 - loads LLVM

    try:
        return library_bytes(name, data, symbol, host)
    except ArchiveError as error:
        if error.kind != "LIMIT":
            raise
        warn(f"no {path.name}: {error.message}")
        return None


def library_beside(path: Path, after: Archive, before: bytes, data: bytes) -> dict[Path, bytes]:
    """Return the updated static library next to an archive; nothing if there is none.

    Raises: `ArchiveError` LIMIT if it is too large for one.
    """
    from aotc.package.emit.object import library_bytes  # noqa: PLC0415 - loads LLVM

    symbol = header.archive_symbol(header.header_text(after))
    library = path.with_name(f"lib{after.name}.a")
    content = _read(library, len(before) + _MAX_OBJECT_BYTES)
    for host in _MACHINES.values():
        if _is_current(content, before, symbol, host):
            return {library: library_bytes(after.name, data, symbol, host)}
    return {}


def _is_current(library: bytes | None, data: bytes, symbol: str, host: str) -> bool:
    if library is None:
        return False
    # The object is its first ELF file; `e_machine` is at byte 18.
    machine_at = library.find(_ELF_MAGIC) + 18
    machine = int.from_bytes(library[machine_at : machine_at + 2], "little")
    return machine == _HOSTS[host] and data in library and symbol.encode() in library


def _read(path: Path, limit_bytes: int) -> bytes | None:
    """Return the file of an earlier build, or None if there is none."""
    try:
        return read_regular(path, limit_bytes)
    except OSError:
        return None

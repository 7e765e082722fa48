"""The files of a build: the archive, its header and its static library.

Each replaces its predecessor at once, the archive last, none before all of them are on the disk;
one that would not change is not touched: its time stays, so a C++ build that depends on it has nothing to do. To see that a static
library is up to date its bytes are searched for the archive's; writing one takes LLVM, which a
build with nothing to do does not load.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

from aotc.ir.diagnostics import ManifestError, did_you_mean
from aotc.package import archive, header
from aotc.package.index import Archive, ArchiveError
from aotc.regular_file import read_regular

# Hosts by the names they go by, and the machine number in their ELF files.
_HOSTS = {"x86_64": 62, "amd64": 62, "aarch64": 183, "arm64": 183}
_DEFAULT_HOST = "x86_64"
_MAX_OBJECT_BYTES = 1 << 16  # that a static library has besides the archive
_ELF_MAGIC = b"\x7fELF"


def write_files(
    result: Archive, folder: Path, host: str, warn: Callable[[str], None]
) -> tuple[Path, ...]:
    """Write an archive, its header and its static library to `folder`; return their paths.

    An archive too large to be linked in has no library; `warn` is told.

    Raises:
        ArchiveError: the format cannot hold the archive, or a file cannot be written.
        ManifestError: two names are one in C, or there is no such `host`.
    """
    host = known_host(host)
    data = archive.encode(result)
    text = header.header_text(result).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"cannot make the folder {folder}: {error.strerror or error}"
        raise ArchiveError("IO", message) from None
    library = folder / f"lib{result.name}.a"
    paths = (folder / f"{result.name}.aotc", folder / f"{result.name}.h")
    contents: dict[Path, bytes] = {}
    has_library = _is_current(_read(library, len(data) + _MAX_OBJECT_BYTES), data, host)
    if not has_library:
        content = _library_bytes(result.name, data, library, host, warn)
        has_library = content is not None
        contents |= {library: content} if content is not None else {}
    contents |= {paths[1]: text, paths[0]: data}
    changed = {path: new for path, new in contents.items() if _read(path, len(new)) != new}
    archive.write_together(changed)
    return (*paths, library) if has_library else paths


def known_host(host: str) -> str:
    """Return the host that `host` means; an empty one means this machine's.

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
    name: str, data: bytes, path: Path, host: str, warn: Callable[[str], None]
) -> bytes | None:
    """Return the static library of an archive, or None if it is too large for one."""
    from aotc.package.object import library_bytes  # noqa: PLC0415 - loads LLVM

    try:
        return library_bytes(name, data, host)
    except ArchiveError as error:
        if error.kind != "LIMIT":
            raise
        warn(f"no {path.name}: {error.message}")
        return None


def _is_current(library: bytes | None, data: bytes, host: str) -> bool:
    if library is None:
        return False
    # The first ELF file in it is the object; `e_machine` is 18 bytes in.
    machine_at = library.find(_ELF_MAGIC) + 18
    machine = int.from_bytes(library[machine_at : machine_at + 2], "little")
    return machine == _HOSTS[host] and data in library


def _read(path: Path, limit_bytes: int) -> bytes | None:
    """Return what an earlier build wrote, or None if it is not there or is something else."""
    try:
        return read_regular(path, limit_bytes)
    except OSError:
        return None

"""Writes of a command's output files.

A path given by a user may be a symbolic link, a FIFO or a device. A file renamed over it would
replace it: as root, even `/dev/null` of the whole machine.

Invariant: only regular files are replaced, each whole: readers see the old bytes or all of the new.
A symbolic link stays, and its target is replaced. All else is refused unchanged.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from aotc.regular_file import kind_of


def target_of(path: Path) -> Path:
    """Return the regular file a write to `path` replaces or makes; links are followed.

    Raises: OSError if something else is there.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:  # nothing is there, or a link to nothing
        mode = stat.S_IFREG
    except ValueError as error:  # a NUL
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        message = f"expected a regular file, got {kind_of(mode)}"
        raise OSError(errno.EINVAL, message, str(path))
    return Path(os.path.realpath(path))


def write_outputs(contents: Mapping[Path, bytes]) -> None:
    """Replace files in order, once the bytes of all are on the disk.

    Raises: OSError with a `filename` of `contents`; no temporary file is left then.
    """
    staged: dict[Path, tuple[Path, Path]] = {}  # temporary files and targets
    path = Path()
    try:
        for path in contents:
            target = target_of(path)
            temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
            staged[path] = temporary, target
        for path, data in contents.items():
            _write_new(staged[path][0], data)
        for path in contents:  # named by the handler
            staged[path][0].replace(staged[path][1])
    except BaseException as error:
        for temporary, _ in staged.values():
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)
        raise
    for folder in dict.fromkeys(target.parent for _, target in staged.values()):
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        except OSError as error:
            error.filename = str(folder)
            raise
        finally:
            os.close(directory)


def _write_new(path: Path, data: bytes) -> None:
    """Write and sync a new file."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def make_folder(path: Path) -> None:
    """Make a folder and its parents. Raises: OSError with the `filename` `path`."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except ValueError as error:  # a NUL
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    except FileExistsError:
        reason = "a file of that name is there"
        raise NotADirectoryError(errno.ENOTDIR, reason, str(path)) from None
    except OSError as error:
        error.filename = str(path)
        raise

"""The cache as a folder: what is in it, and what may go.

Entries are found by where they lie (cache.py), never read, so that a damaged one is counted and goes
as well. Whatever else somebody keeps in the folder is not touched. A build that finds an entry gone
compiles again, so any of it may be removed at any time.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aotc.package.cache.store import FORMAT

_KINDS = ("kernels", "requests", "times", "frames", "bundles")
_ENTRY = re.compile(r"[0-9a-f]{64}\Z")
_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.[0-9a-f]{16}\.tmp\Z")
_TEMPORARY_SECONDS = 3600.0  # nothing takes so long to write


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the cache. `used` is when it was last read or written, in seconds since 1970."""

    path: Path
    kind: str  # of _KINDS, "old" for another format of entries, "temporary"
    size_bytes: int
    used: float


def entries(folder: Path) -> list[Entry]:
    """Return the files of the cache in `folder`, those used last first."""
    return sorted(_entries(folder), key=lambda entry: (-entry.used, entry.path))


def _entries(folder: Path) -> Iterator[Entry]:
    for version in _names(folder):
        if not re.fullmatch(r"v\d+", version):
            continue
        for kind in _KINDS:
            for part in _names(folder / version / kind):
                place = folder / version / kind / part
                for name in _names(place):
                    is_entry = _ENTRY.match(name) is not None
                    if not is_entry and _TEMPORARY.match(name) is None:
                        continue
                    with contextlib.suppress(OSError):  # another process removed it
                        status = (place / name).lstat()
                        shown = kind if version == FORMAT else "old"
                        yield Entry(
                            place / name,
                            shown if is_entry else "temporary",
                            status.st_size,
                            max(status.st_atime, status.st_mtime),
                        )


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def describe(folder: Path) -> dict[str, Any]:
    """Return where the cache is, and of each kind of entries how many files and bytes."""
    found = entries(folder)
    kinds = {
        kind: (len(sizes), sum(sizes))
        for kind in (*_KINDS, "old", "temporary")
        for sizes in ([entry.size_bytes for entry in found if entry.kind == kind],)
    }
    total = sum(entry.size_bytes for entry in found)
    return {"folder": str(folder), "files": len(found), "bytes": total, "kinds": kinds}


def outdated(
    found: list[Entry], now: float, *, max_age_days: float | None, max_bytes: int | None
) -> list[Entry]:
    """Return what pruning removes: what no build reads any more, what is too old, what is too much.

    What was used last is kept longest.
    """
    removed: list[Entry] = []
    total = 0
    for entry in found:
        age = now - entry.used
        total += entry.size_bytes
        if (
            entry.kind == "old"
            or (entry.kind == "temporary" and age > _TEMPORARY_SECONDS)
            or (max_age_days is not None and age > max_age_days * 86400)
            or (max_bytes is not None and total > max_bytes)
        ):
            removed.append(entry)
            total -= entry.size_bytes
    return removed


def remove(found: list[Entry]) -> int:
    """Remove entries and the folders that they leave empty; return how many bytes that were."""
    size_bytes = 0
    for entry in found:
        with contextlib.suppress(FileNotFoundError):
            entry.path.unlink()
            size_bytes += entry.size_bytes
        for parent in list(entry.path.parents)[:3]:  # of the first digits, the kind, the format
            with contextlib.suppress(OSError):  # not empty
                parent.rmdir()
    return size_bytes


def write_problem(folder: Path) -> str:
    """Return why a build could not keep anything in `folder`, or an empty string."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent  # what is missing is made
    if not place.is_dir():
        return f"{place} is no folder"
    return "" if os.access(place, os.W_OK | os.X_OK) else f"{place} cannot be written to"

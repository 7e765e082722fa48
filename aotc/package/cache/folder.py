"""List and prune the entries of a cache folder.

Entries are found by their paths (`store.py`), never read, so damaged ones are counted and pruned
too. Other files in the folder are not touched. A build that misses an entry compiles again, so any
entry may be removed at any time.
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
_TEMPORARY_SECONDS = 3600.0  # more than any write takes
_BOUNDED_SECONDS = 86400.0
_MAX_AGE_DAYS = 90.0

DEFAULT_MAX_BYTES = 8 << 30
"""Limit of a folder; all kernels of this repository for every target take some 50 MiB."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the cache. `last_used` is its last read or write, in seconds since 1970."""

    path: Path
    kind: str  # of _KINDS, "old" for another format of entries, "temporary"
    size_bytes: int
    last_used: float


def entries(folder: Path) -> list[Entry]:
    """Return the files of the cache in `folder`, last used first."""
    return sorted(_entries(folder), key=lambda entry: (-entry.last_used, entry.path))


def _entries(folder: Path) -> Iterator[Entry]:
    for version in _names(folder):
        if not re.fullmatch(r"v\d+", version):
            continue
        for kind in _KINDS:
            for part in _names(folder / version / kind):
                directory = folder / version / kind / part
                for name in _names(directory):
                    is_entry = _ENTRY.match(name) is not None
                    if not is_entry and _TEMPORARY.match(name) is None:
                        continue
                    with contextlib.suppress(OSError):  # another process removed it
                        status = (directory / name).lstat()
                        entry_kind = kind if version == FORMAT else "old"
                        yield Entry(
                            directory / name,
                            entry_kind if is_entry else "temporary",
                            status.st_size,
                            max(status.st_atime, status.st_mtime),
                        )


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def describe(folder: Path) -> dict[str, Any]:
    """Return the cache's folder, and the number of files and bytes of each kind of entries."""
    all_entries = entries(folder)
    kinds = {
        kind: (len(sizes), sum(sizes))
        for kind in (*_KINDS, "old", "temporary")
        for sizes in ([entry.size_bytes for entry in all_entries if entry.kind == kind],)
    }
    total = sum(entry.size_bytes for entry in all_entries)
    return {"folder": str(folder), "files": len(all_entries), "bytes": total, "kinds": kinds}


def outdated(
    latest_first: list[Entry], now: float, *, max_age_days: float | None, max_bytes: int | None
) -> list[Entry]:
    """Return the entries to prune: unreadable for this version, too old, or over the size limit.

    The last used entries are kept longest.
    """
    removed: list[Entry] = []
    total = 0
    for entry in latest_first:
        age = now - entry.last_used
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


def remove(removed: list[Entry]) -> int:
    """Remove entries and folders left empty; return the number of bytes."""
    size_bytes = 0
    for entry in removed:
        with contextlib.suppress(FileNotFoundError):
            entry.path.unlink()
            size_bytes += entry.size_bytes
        for parent in list(entry.path.parents)[
            :3
        ]:  # folders of the first digits, the kind, the format
            with contextlib.suppress(OSError):  # not empty
                parent.rmdir()
    return size_bytes


def bound(folder: Path, now: float, max_bytes: int | None) -> None:
    """Remove the oldest entries above a size, and those unused for months.

    Without a `max_bytes` the limit is the default, applied once a day: listing a large cache takes
    longer than a build with nothing to do. Entries of other formats stay, another version of aotc
    may use them.
    """
    stamp = folder / "bounded"
    with contextlib.suppress(OSError):
        if max_bytes is None and abs(now - stamp.stat().st_mtime) < _BOUNDED_SECONDS:
            return
    limit = DEFAULT_MAX_BYTES if max_bytes is None else max_bytes
    current = [entry for entry in entries(folder) if entry.kind != "old"]
    remove(outdated(current, now, max_age_days=_MAX_AGE_DAYS, max_bytes=limit))
    if max_bytes is None:
        with contextlib.suppress(OSError):  # a read-only or missing folder
            stamp.touch()


def write_problem(folder: Path) -> str:
    """Return why a build cannot write to `folder`, or an empty string."""
    parent = folder
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent  # missing folders are created
    if not parent.is_dir():
        return f"{parent} is no folder"
    return "" if os.access(parent, os.W_OK | os.X_OK) else f"{parent} cannot be written to"

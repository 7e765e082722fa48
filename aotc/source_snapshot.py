"""The source files of a compile, as content, for compiles on other machines.

A compile asks the file system two things: the contents of a file, and the file of an import. A
`Snapshot` holds the answers, taken where the files are. Inside of `using(snapshot)` nothing else is
read, so a compile gives the same result on a machine without the files.

Invariant: inside of `using` no source is read from disk; a question without an answer in the
snapshot is a `NotInSnapshotError`, never a guess.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeAlias

from aotc.regular_file import MAX_SOURCE_BYTES, read_regular

Search: TypeAlias = tuple[str, str, int]
"""The path of the importing file, the name of the module, the leading dots of a relative import."""


@dataclass(frozen=True)
class Snapshot:
    """Contents of files by path, results of searches, and reasons for unreadable files."""

    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    searches: Mapping[Search, str | None] = field(default_factory=dict[Search, str | None])
    problems: Mapping[str, str] = field(default_factory=dict[str, str])


class NotInSnapshotError(Exception):
    """A compile needs a file or a search missing in its snapshot."""

    def __init__(self, question: str | Search) -> None:
        super().__init__(question)
        self.question = question


_current: ContextVar[Snapshot | None] = ContextVar("snapshot", default=None)


@contextmanager
def using(snapshot: Snapshot) -> Generator[None]:
    """Answer from `snapshot` alone in the `with` block, in this thread."""
    token = _current.set(snapshot)
    try:
        yield
    finally:
        _current.reset(token)


_recorded: ContextVar[set[str] | None] = ContextVar("recorded", default=None)


@contextmanager
def recording() -> Generator[set[str]]:
    """Yield the paths of all source files used in the `with` block, in this thread."""
    paths: set[str] = set()
    token = _recorded.set(paths)
    try:
        yield paths
    finally:
        _recorded.reset(token)


def record(path: str) -> None:
    """Add a source file to those of `recording`."""
    paths = _recorded.get()
    if paths is not None:
        paths.add(path)


_MAX_TEXTS = 256
_texts: dict[str, bytes] = {}


def add_text(text: str) -> str:
    """Keep a source without a file while errors may show it; return a path for it."""
    content = text.encode()
    path = f"<source {hashlib.sha256(content).hexdigest()[:12]}>"
    _texts.pop(path, None)
    _texts[path] = content
    for oldest in list(_texts)[:-_MAX_TEXTS]:
        del _texts[oldest]
    return path


def is_text(path: str) -> bool:
    """Return whether a path is one of `add_text`."""
    return path in _texts


def current() -> Snapshot | None:
    """Return the snapshot in use, or None for the file system."""
    return _current.get()


def read_source(path: str) -> bytes:
    """Return the content of a source file.

    Raises: OSError if it cannot be read; NotInSnapshotError.
    """
    if path in _texts:
        return _texts[path]
    snapshot = _current.get()
    if snapshot is None:
        return read_regular(path, MAX_SOURCE_BYTES)
    if path in snapshot.problems:
        raise OSError(errno.ENOENT, snapshot.problems[path])
    if path not in snapshot.files:
        raise NotInSnapshotError(path)
    return snapshot.files[path]

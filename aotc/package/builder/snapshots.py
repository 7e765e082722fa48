"""Snapshot the sources of remote compiles, following imports ahead of time.

The files read by a compile are known only after it: names are resolved when a kernel uses them. So
the files imported by a kernel's source, directly or not, are added ahead, nearest first, up to a
budget. Without it a kernel in a large package would take the whole package along. A worker asks for
a file that is still missing (`NotInSnapshotError`); the answer goes to all later tasks too.

Invariant: a snapshot keeps the first content read of each file, so all tasks of a run see the same
files.
"""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from aotc.compiler import CompileRequest
from aotc.module_search import find_module
from aotc.regular_file import MAX_SOURCE_BYTES, read_regular
from aotc.source_snapshot import Search, Snapshot

_AHEAD_FILES = 64
_AHEAD_BYTES = 1 << 20
# A constant may name a function of another file, relative to the kernel's.
_FUNCTION = re.compile(r"([^:]+\.py):[^\W\d][\w.]*")


@dataclass(slots=True)
class _Known:
    """The paths and searches available to the tasks of one root."""

    paths: dict[str, None] = field(default_factory=dict[str, None])
    searches: dict[Search, None] = field(default_factory=dict[Search, None])


class Snapshots:
    """Answer and cache the file system queries of compiles."""

    def __init__(self) -> None:
        self._contents: dict[str, bytes | str] = {}
        self._found: dict[Search, str | None] = {}
        self._roots: dict[str, _Known] = {}

    def of(self, requests: Iterable[CompileRequest]) -> Snapshot:
        """Return the snapshot of the files for compiles of `requests`."""
        paths: dict[str, None] = {}
        searches: dict[Search, None] = {}
        for root in dict.fromkeys(root for request in requests for root in _roots(request)):
            root_files = self._root(root)
            paths.update(root_files.paths)
            searches.update(root_files.searches)
        files: dict[str, bytes] = {}
        problems: dict[str, str] = {}
        for path in paths:
            content = self._contents[path]
            if isinstance(content, bytes):
                files[path] = content
            else:
                problems[path] = content
        return Snapshot(files, {search: self._found[search] for search in searches}, problems)

    def answer(self, requests: Iterable[CompileRequest], question: str | Search) -> None:
        """Add the answer to a question to the snapshots of `requests`."""
        for root in dict.fromkeys(root for request in requests for root in _roots(request)):
            root_files = self._root(root)
            if isinstance(question, str):
                self._ahead(root_files, question)
            else:
                root_files.searches[question] = None
                module_path = self._search(question)
                if module_path is not None:
                    self._ahead(root_files, module_path)

    def _root(self, root: str) -> _Known:
        if root not in self._roots:
            root_files = self._roots[root] = _Known()
            self._ahead(root_files, root)
        return self._roots[root]

    def _ahead(self, root_files: _Known, start: str) -> None:
        """Add a file, and its imports as far as the budget allows."""
        waiting = deque([start])
        num_files = size_bytes = 0
        while waiting and num_files < _AHEAD_FILES and size_bytes < _AHEAD_BYTES:
            path = waiting.popleft()
            if path in root_files.paths:
                continue
            root_files.paths[path] = None
            content = self._content(path)
            if isinstance(content, str):
                continue
            num_files += 1
            size_bytes += len(content)
            for search in _searches(path, content):
                root_files.searches[search] = None
                module_path = self._search(search)
                if module_path is not None:
                    waiting.append(module_path)

    def _content(self, path: str) -> bytes | str:
        """Return the content of a file, or why it cannot be read."""
        if path not in self._contents:
            try:
                self._contents[path] = read_regular(path, MAX_SOURCE_BYTES)
            except OSError as error:
                self._contents[path] = error.strerror or str(error)
        return self._contents[path]

    def _search(self, search: Search) -> str | None:
        if search not in self._found:
            self._found[search] = find_module(search)
        return self._found[search]


def _roots(request: CompileRequest) -> Iterator[str]:
    """Yield the root files of a compile."""
    yield request.source
    for _, value in request.constants:
        named = _FUNCTION.fullmatch(value) if isinstance(value, str) else None
        if named is not None:
            yield str(Path(request.source).parent / named[1])


def _searches(path: str, content: bytes) -> Iterator[Search]:
    """Yield the module searches of a file's imports."""
    try:
        tree = ast.parse(content, path)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # the compile reports it
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                yield from ((path, ".".join(parts[: n + 1]), 0) for n in range(len(parts)))
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if origin or node.level:
                yield path, origin, node.level
            for alias in node.names:
                if alias.name != "*":
                    yield path, f"{origin}.{alias.name}".strip("."), node.level

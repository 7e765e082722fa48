"""Locate every key and value of a TOML document; the TOML parser does not report them.

`tomli` decides whether a document is valid and parses it. This scanner only runs on documents
accepted by tomli, so it may be lenient and short. It knows the shape of TOML: headers, dotted and
quoted keys, inline tables, arrays, four kinds of strings. Numbers and dates are skipped as one run
of characters.

Invariant: the paths are exactly the paths of tomli's data, keys as strings and array positions as
integers. The text of a value's span parses to the value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TypeAlias

import tomli

from aotc.ir.diagnostics import Loc

KeyPath: TypeAlias = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_INDENT = re.compile(r"[ \t]*")
_KEY_PART = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
# One or two quotes of the string may precede a closing delimiter.
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?:"{0,2})'
    r"|'''(?:.)*?'''(?:'{0,2})"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}#\n]*[^,\]}#\n \t]")


@dataclass(frozen=True, slots=True)
class Entry:
    """The character offsets of a key and of its value; ends are exclusive.

    An array element has its value's span for both; a table written as a header has the header's
    key for both.
    """

    key_start: int
    key_end: int
    value_start: int
    value_end: int


@dataclass(frozen=True, slots=True)
class Positions:
    """The locations of the keys and values of one document."""

    file: str
    text: str
    entries: dict[KeyPath, Entry]

    def key(self, path: KeyPath) -> Loc:
        """Return the location of the key, or of the nearest enclosing key in the text."""
        entry = self._nearest(path)
        return self._loc(entry.key_start, entry.key_end)

    def value(self, path: KeyPath) -> Loc:
        """Return the location of the value, or of the nearest enclosing key in the text."""
        entry = self._nearest(path)
        if path in self.entries:
            return self._loc(entry.value_start, entry.value_end)
        return self._loc(entry.key_start, entry.key_end)

    def respell(self, path: KeyPath, key: str) -> None:
        """Add the entries at `path` under another last key."""
        length = len(path)
        for entry_path, entry in [*self.entries.items()]:
            if entry_path[:length] == path:
                self.entries[(*path[:-1], key, *entry_path[length:])] = entry

    def _nearest(self, path: KeyPath) -> Entry:
        for length in range(len(path), 0, -1):
            entry = self.entries.get(path[:length])
            if entry is not None:
                return entry
        return Entry(0, 0, 0, 0)

    def _loc(self, start: int, end: int) -> Loc:
        line_start = self.text.rfind("\n", 0, start) + 1
        line_end = self.text.find("\n", start)
        stop = end if line_end < 0 else min(end, line_end)
        line = self.text.count("\n", 0, start) + 1
        return Loc(self.file, line, start - line_start, stop - line_start)


def scan(text: str, file: str = "<toml>") -> Positions:
    """Return the positions of all keys and values of `text`, a document valid for tomli."""
    scanner = _Scanner(text.replace("\r\n", "\n"))
    scanner.document()
    return Positions(file, scanner.text, scanner.entries)


@dataclass(slots=True)
class _Scanner:
    text: str
    position: int = 0
    entries: dict[KeyPath, Entry] = field(default_factory=dict[KeyPath, Entry])
    # Arrays of tables seen so far, by path, with the number of their tables.
    tables: dict[KeyPath, int] = field(default_factory=dict[KeyPath, int])

    def document(self) -> None:
        path: KeyPath = ()
        while self._skip(_BLANK) < len(self.text):
            if self.text.startswith("[", self.position):
                path = self._header()
            else:
                self._pair(path)

    def _skip(self, pattern: re.Pattern[str]) -> int:
        match = pattern.match(self.text, self.position)
        if match is not None:
            self.position = match.end()
        return self.position

    def _header(self) -> KeyPath:
        is_array = self.text.startswith("[[", self.position)
        self.position += 2 if is_array else 1
        parts = self._key()
        self._skip(_INDENT)
        self.position += 2 if is_array else 1
        path: KeyPath = ()
        for index, (name, start, end) in enumerate(parts):
            path += (name,)
            entry = Entry(start, end, start, end)
            is_last = index == len(parts) - 1
            if is_last and not is_array:
                self.entries[path] = entry
            else:
                self.entries.setdefault(path, entry)
            if is_last and is_array:
                self.tables[path] = self.tables.get(path, 0) + 1
            if path in self.tables:
                path += (self.tables[path] - 1,)
                self.entries.setdefault(path, entry)
        return path

    def _key(self) -> list[tuple[str, int, int]]:
        parts: list[tuple[str, int, int]] = []
        while True:
            start = self._skip(_INDENT)
            end = self._skip(_KEY_PART)
            raw = self.text[start:end]
            name: str = tomli.loads(f"k = {raw}")["k"] if raw[:1] in ("'", '"') else raw
            parts.append((name, start, end))
            self._skip(_INDENT)
            if not self.text.startswith(".", self.position):
                return parts
            self.position += 1

    def _pair(self, table: KeyPath) -> None:
        parts = self._key()
        self.position += 1  # the equals sign
        self._skip(_INDENT)
        path = table
        for name, start, end in parts[:-1]:
            path += (name,)
            self.entries.setdefault(path, Entry(start, end, start, end))
        name, key_start, key_end = parts[-1]
        path += (name,)
        value_start = self.position
        self._value(path)
        self.entries[path] = Entry(key_start, key_end, value_start, self.position)

    def _value(self, path: KeyPath) -> None:
        first = self.text[self.position : self.position + 1]
        if first == "[":
            self._array(path)
        elif first == "{":
            self._inline_table(path)
        elif first in ('"', "'"):
            self._skip(_STRING)
        else:
            self._skip(_SCALAR)

    def _array(self, path: KeyPath) -> None:
        self.position += 1
        index = 0
        while not self.text.startswith("]", self._skip(_BLANK)):
            start = self.position
            element = (*path, index)
            self._value(element)
            self.entries[element] = Entry(start, self.position, start, self.position)
            index += 1
            self._skip_comma()
        self.position += 1

    def _inline_table(self, path: KeyPath) -> None:
        self.position += 1
        while not self.text.startswith("}", self._skip(_BLANK)):
            self._pair(path)
            self._skip_comma()
        self.position += 1

    def _skip_comma(self) -> None:
        if self.text.startswith(",", self._skip(_BLANK)):
            self.position += 1

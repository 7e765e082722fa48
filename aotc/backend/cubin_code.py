"""Compare the code of two cubins: all of their sections but tables of names and lines.

Debug sections shift the numbers of symbols, so sections that refer to symbols are compared by name.

Source: ELF-64 section headers, symbols and relocations, System V ABI.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

_HEADER = struct.Struct("<40xQ10xHHH")
_SECTION = struct.Struct("<IIQ8xQQ4xI16x")
_SYMBOL = struct.Struct("<IBBHQQ")
_PLAIN, _ADDED = struct.Struct("<QII"), struct.Struct("<QIIq")  # relocations; with addends
_MAGIC = b"\x7fELF"
_NO_CONTENT = 8  # SHT_NOBITS
_REGISTERS_SHIFT = 24  # in the last word of a function's section header
TOOL_SECTION = ".note.nv.tkinfo"  # version and options of ptxas
_VERSION = re.compile(rb"\bV\d[\d.]*")
_UNCOMPARED = (".debug", ".nv_debug", ".shstrtab", ".strtab", ".symtab", TOOL_SECTION)
_NAMING_SYMBOLS = (".nv.info", ".nv.callgraph", ".nv.prototype")


class _Section(NamedTuple):
    kind: int
    flags: int
    size_bytes: int
    content: bytes
    info: int


class _Symbol(NamedTuple):
    name: str
    section: str
    kind: int
    other: int
    value: int
    size_bytes: int


class _Cubin:
    def __init__(self, image: bytes) -> None:
        """Parse a cubin. Raises: ValueError if it is no ELF image."""
        try:
            if not image.startswith(_MAGIC):
                raise ValueError("no ELF image")
            start, size, count, names_index = _HEADER.unpack_from(image)
            headers: list[tuple[int, int, int, int, int, int]] = [
                _SECTION.unpack_from(image, start + size * index) for index in range(count)
            ]
            _, _, _, first, size_bytes, _ = headers[int(names_index)]
            names = image[first : first + size_bytes]
            self.sections: dict[str, _Section] = {}
            order: list[str] = []
            for name, kind, flags, offset, size_bytes, info in headers:
                content = b"" if kind == _NO_CONTENT else image[offset : offset + size_bytes]
                order.append(_text(names, name))
                self.sections[order[-1]] = _Section(kind, flags, size_bytes, content, info)
            self.symbols = self._read_symbols(order)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise ValueError(str(error)) from error

    def _read_symbols(self, order: list[str]) -> list[_Symbol]:
        names, table = (
            self.sections[name].content if name in self.sections else b""
            for name in (".strtab", ".symtab")
        )
        fields: Iterator[tuple[int, int, int, int, int, int]] = _SYMBOL.iter_unpack(table)
        return [
            _Symbol(
                _text(names, name),
                order[section] if section < len(order) else "",
                *(kind, other, value, size_bytes),
            )
            for name, kind, other, section, value, size_bytes in fields
        ]

    def functions(self) -> list[_Symbol]:
        """Return the symbols of code, by name."""
        return sorted(symbol for symbol in self.symbols if symbol.section.startswith(".text"))

    def tool(self) -> bytes:
        """Return the version of ptxas in the cubin."""
        note = self.sections.get(TOOL_SECTION)
        version = None if note is None else _VERSION.search(note.content)
        return b"" if version is None else version[0]

    def name_of(self, symbol: int) -> str:
        """Return a symbol's name, or its section's; "" if there is no such symbol."""
        if symbol >= len(self.symbols):
            return ""
        return self.symbols[symbol].name or self.symbols[symbol].section


def code_sections(cubin: bytes) -> tuple[bytes, ...]:
    """Return the instructions of each function; none if it is no cubin."""
    try:
        sections = _Cubin(cubin).sections
    except ValueError:
        return ()
    return tuple(section.content for name, section in sections.items() if name.startswith(".text"))


def code_difference(cubin: bytes, other: bytes) -> str:
    """Return the first differing section of two cubins, besides names and lines; "" if none.

    It is `TOOL_SECTION` for cubins of different versions of ptxas.

    Raises: ValueError if one is no cubin.
    """
    left, right = _Cubin(cubin), _Cubin(other)
    if left.tool() != right.tool():
        return TOOL_SECTION
    names = dict.fromkeys([*left.sections, *right.sections])
    for name in names:
        bare = name.removeprefix(".rela").removeprefix(".rel")
        if name and not bare.startswith(_UNCOMPARED) and not _is_same(name, left, right):
            return name
    return "" if left.functions() == right.functions() else ".symtab"


def _is_same(name: str, left: _Cubin, right: _Cubin) -> bool:
    mine, theirs = left.sections.get(name), right.sections.get(name)
    if mine is None or theirs is None:
        return False
    if (mine.kind, mine.flags, mine.size_bytes) != (theirs.kind, theirs.flags, theirs.size_bytes):
        return False
    if (
        name.startswith(".text")
        and mine.info >> _REGISTERS_SHIFT != theirs.info >> _REGISTERS_SHIFT
    ):
        return False
    if mine.content == theirs.content:
        return True
    if name.startswith(_NAMING_SYMBOLS):
        numbers = zip(_numbers(mine.content), _numbers(theirs.content), strict=True)
        return all(a == b or left.name_of(a) == right.name_of(b) != "" for a, b in numbers)
    if name.startswith(".rela"):
        return _relocations(mine, left, _ADDED) == _relocations(theirs, right, _ADDED)
    is_plain = name.startswith(".rel")
    return is_plain and _relocations(mine, left, _PLAIN) == _relocations(theirs, right, _PLAIN)


def _numbers(content: bytes) -> list[int]:
    """Return the content in words, and the rest in bytes."""
    whole = len(content) // 4 * 4
    return [*(number for (number,) in struct.iter_unpack("<I", content[:whole])), *content[whole:]]


def _relocations(
    section: _Section, cubin: _Cubin, form: struct.Struct
) -> list[tuple[str, tuple[int, ...]]]:
    """Return each relocation's symbol name, and its other fields."""
    entries: Iterator[tuple[int, ...]] = form.iter_unpack(section.content)
    return [(cubin.name_of(entry[2]), (*entry[:2], *entry[3:])) for entry in entries]


def _text(names: bytes, start: int) -> str:
    return names[start : names.index(b"\0", start)].decode()

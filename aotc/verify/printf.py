"""Format numbers as C's `printf` does, for the conversions in kernels' prints."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Number = int | float

_CONVERSION = re.compile(r"%%|%(\d*)((?:ll)?[dux]|[fa])")
_CODES = {"d": "i", "u": "I", "x": "I", "lld": "q", "llu": "Q", "llx": "Q", "f": "d", "a": "d"}


@dataclass(frozen=True, slots=True)
class Place:
    """The location of a number in a buffer, aligned to its size, and its `struct` code."""

    offset: int
    size_bytes: int
    code: str

    def number(self, data: bytes) -> Number:
        """Unpack the number from its bytes."""
        return struct.unpack(f"<{self.code}", data)[0]


def places_of(text: str) -> list[Place]:
    """Return the locations of the numbers of `text`, in order."""
    slots: list[Place] = []
    end = 0
    for match in _CONVERSION.finditer(text):
        if match[0] == "%%":
            continue
        code = _CODES[match[2]]
        size = struct.calcsize(f"<{code}")
        start = -(-end // size) * size
        slots.append(Place(start, size, code))
        end = start + size
    return slots


def format_numbers(text: str, numbers: Iterator[Number]) -> str:
    """Return `text` with the numbers in it, as C prints them."""

    def convert(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        kind, number = match[2], next(numbers)
        if kind[-1] in "ux":
            number = int(number) % (1 << (64 if kind.startswith("ll") else 32))
        return _FORMATS[kind[-1]](match[1], number)

    return _CONVERSION.sub(convert, text)


def _hexadecimal(_: str, number: Number) -> str:
    """Format a number as C's `%a`: no trailing zeros, a sign for the exponent."""
    text = float(number).hex()
    return re.sub(r"\.?0*p", "p", text)


_FORMATS: dict[str, Callable[[str, Number], str]] = {
    "d": lambda width, number: f"%{width}d" % number,
    "u": lambda width, number: f"%{width}d" % number,
    "x": lambda width, number: f"%{width}x" % number,
    "f": lambda width, number: f"%{width}f" % number,
    "a": _hexadecimal,
}

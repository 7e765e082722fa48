"""Wrap the tables of a TOML document, with typed, located access to every value.

This layer between tomli's plain dictionaries and the manifest's meaning reads strings, lists and
tables. It reports an unknown key with the nearest valid one, and a value of the wrong type at its
own column. It knows nothing about kernels.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, cast

import tomli

from aotc.ir.diagnostics import DiagnosticError, Loc, ManifestError, did_you_mean, nearest
from aotc.package.manifest.toml_positions import KeyPath, Positions, scan

Constant: TypeAlias = bool | int | float | str
Data: TypeAlias = dict[str, Any]
T = TypeVar("T")

_REPEATED_KEY = "Cannot overwrite a value"  # tomli's message
MAX_REPORTED = 100
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


class Mistakes:
    """Collect the mistakes of a document, so that all are reported at once.

    The first `MAX_REPORTED` are reported, and the number of the remaining ones.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], DiagnosticError] = {}

    def add(self, error: DiagnosticError) -> None:
        """Add a mistake; a repeated one counts once."""
        key = (error.message, error.loc, error.remedy, *error.context)
        self._found.setdefault(key, error)

    @contextmanager
    def collected(self) -> Generator[None]:
        """Collect the errors raised in the `with` block, and go on after it."""
        try:
            yield
        except DiagnosticError as error:
            self.add(error)

    def __len__(self) -> int:
        return len(self._found)

    def check(self) -> None:
        """Raise the first mistake, with the others attached, if there is one."""
        if self._found:
            first, *remaining = self._found.values()
            num_more = len(self._found) - MAX_REPORTED
            if num_more > 0:
                remaining[MAX_REPORTED - 1 :] = [ManifestError(f"{num_more} more mistakes")]
            first.others = tuple(remaining)
            raise first


# Of known keys that a message lists beside the one that was meant.
_MAX_LISTED_COLUMNS = 160


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed document and its positions."""

    file: str
    data: Data
    positions: Positions

    @staticmethod
    def parse(text: str, file: str) -> Document:
        """Parse a document.

        Raises:
            ManifestError: the text is not TOML; gives the location.
        """
        try:
            data = tomli.loads(text)
        except tomli.TOMLDecodeError as error:
            col = max(0, error.colno - 1)
            loc = Loc(file, error.lineno, col, col + 1)
            message = f"expected TOML: {error.msg}"
            if error.msg == _REPEATED_KEY:
                # The parser reports it after the value; the line shows the key.
                line = text.split("\n")[error.lineno - 1]
                indent = len(line) - len(line.lstrip())
                loc = Loc(file, error.lineno, indent, max(indent + 1, col))
                message = "expected each key of a table once, got one again"
            raise ManifestError(message, loc) from None
        except RecursionError:
            # The parser does not report the position.
            message = f"expected TOML, the values in {file} are nested too deeply"
            raise ManifestError(message) from None
        return Document(file, data, scan(text, file))

    def root(self, allowed: tuple[str, ...], mistakes: Mistakes) -> Table:
        """Return the document's top level; its tables note unknown keys in `mistakes`."""
        return Table.checked(Table(self.positions, (), self.data, mistakes), allowed)


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a document; its methods raise `ManifestError` with a location.

    Only unknown keys are added to `mistakes`, since they do not change the meaning of the others.
    """

    positions: Positions
    path: KeyPath
    data: Data
    mistakes: Mistakes

    def checked(self, allowed: tuple[str, ...] | None) -> Table:
        """Return the table after checking its keys; None allows any key.

        A misspelt key is reported, and read as the key it was meant to be.
        """
        if allowed is None:
            return self
        respelt: Data = {}
        for key in self.data:
            if key in allowed:
                continue
            intended = nearest(key, allowed)
            listed = ", ".join(allowed)
            is_short = intended is None or len(listed) <= _MAX_LISTED_COLUMNS
            expected = f"one of {listed}" if is_short else "a known key"
            message = f"expected {expected}, got the unknown key {key!r}"
            self.mistakes.add(self.wrong_key(key, message, did_you_mean(key, allowed)))
            if intended is not None and intended not in self.data | respelt:
                respelt[intended] = self.data[key]
                self.positions.respell((*self.path, key), intended)
        if not respelt:
            return self
        return Table(self.positions, self.path, {**self.data, **respelt}, self.mistakes)

    def inner(self, key: str | int, data: Data, *path: str) -> Table:
        """Return the table `data` at `key`, or at `path` and `key`."""
        return Table(self.positions, (*self.path, *path, key), data, self.mistakes)

    @property
    def loc(self) -> Loc:
        """Location of the table's header, or of the nearest one in the text."""
        return self.positions.key(self.path)

    def value_loc(self, key: str) -> Loc:
        """Location of the value of `key`, or of the table if the key is missing."""
        return self.positions.value((*self.path, key))

    def element(self, key: str, index: int) -> Loc:
        """Location of an element of the list at `key`."""
        return self.positions.value((*self.path, key, index))

    def wrong(self, key: str, message: str, remedy: str = "") -> ManifestError:
        """Return an error at the value of `key`."""
        return ManifestError(message, self.value_loc(key), remedy=remedy)

    def wrong_key(self, key: str, message: str, remedy: str = "") -> ManifestError:
        """Return an error at `key` itself."""
        return ManifestError(message, self.positions.key((*self.path, key)), remedy=remedy)

    def __iter__(self) -> Iterator[str]:
        """Yield the keys in the order of the document."""
        return iter(self.data)

    def has(self, key: str) -> bool:
        return key in self.data

    def is_string(self, key: str) -> bool:
        return isinstance(self.data.get(key), str)

    def is_table(self, key: str) -> bool:
        """Return whether there is a table at `key`."""
        return isinstance(self.data.get(key), dict)

    def is_list(self, key: str) -> bool:
        """Return whether there is a list at `key`."""
        return isinstance(self.data.get(key), list)

    def table(self, key: str, allowed: tuple[str, ...] | None) -> Table:
        """Return the required table at `key`."""
        value = self._value(key, "a table")
        if not isinstance(value, dict):
            raise self._wrong_type(key, "a table", value)
        return self.inner(key, cast("Data", value)).checked(allowed)

    def optional_table(self, key: str) -> Table:
        """Return the table at `key` with any keys, or an empty one."""
        if self.has(key):
            return self.table(key, None)
        return self.inner(key, {})

    def tables(self, key: str, allowed: tuple[str, ...] | None) -> tuple[Table, ...]:
        """Return the array of tables at `key`, with at least one."""
        dotted = ".".join(str(part) for part in (*self.path, key) if isinstance(part, str))
        expected = f"one or more [[{dotted}]] tables"
        value = self._value(key, expected)
        items = cast("list[Any]", value) if isinstance(value, list) else []
        if not items or not all(isinstance(item, dict) for item in items):
            hint = f"write [[{dotted}]], with two brackets" if isinstance(value, dict) else ""
            raise self._wrong_type(key, expected, cast("object", value), hint)
        return tuple(
            self.inner(index, item, key).checked(allowed) for index, item in enumerate(items)
        )

    def string(self, key: str) -> str:
        """Return the required, non-empty string at `key`."""
        value = self._value(key, "a string")
        if not isinstance(value, str) or not value:
            expected = "a string" if value != "" else "a string that is not empty"
            raise self._wrong_type(key, expected, value)
        return value

    def strings(self, key: str) -> tuple[str, ...]:
        """Return the required list of strings at `key`."""
        return tuple(
            item if isinstance(item, str) else self._raise_element(key, index, "a string", item)
            for index, item in enumerate(self._list(key, "a list of strings"))
        )

    def boolean(self, key: str, *, default: bool) -> bool:
        """Return the boolean at `key`, or the default."""
        value = self.data.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong_type(key, "true or false", value)
        return value

    def constant(self, key: str) -> Constant:
        """Return the boolean, number or string at `key`."""
        value = self.data[key]
        if not _is_constant(value):
            raise self._wrong_type(key, _expected_instead_of(value), value)
        return cast("Constant", value)

    def constants(self, key: str) -> tuple[Constant, ...]:
        """Return the list of booleans, numbers and strings at `key`."""
        return tuple(
            item
            if _is_constant(item)
            else self._raise_element(key, index, _expected_instead_of(item), item)
            for index, item in enumerate(self._list(key, "a list of values"))
        )

    def unique(self, key: str, values: tuple[T, ...]) -> tuple[T, ...]:
        """Return the `values` of the list at `key`; raise if it is empty or repeats one.

        1, 1.0 and true are three values, as for the compiler.
        """
        if not values:
            raise self.wrong(key, f"expected at least one value for {key!r}, got an empty list")
        seen: set[tuple[type, T]] = set()
        for index, value in enumerate(values):
            if (type(value), value) in seen:
                message = f"expected each value once, got {value!r} again"
                raise ManifestError(message, self.element(key, index))
            seen.add((type(value), value))
        return values

    def _list(self, key: str, expected: str) -> list[Any]:
        value = self._value(key, expected)
        if isinstance(value, list):
            return cast("list[Any]", value)
        hint = f"write {key} = [...]" if _is_constant(value) else ""
        raise self._wrong_type(key, expected, value, hint)

    def _value(self, key: str, expected: str) -> object:
        if key not in self.data:
            message = f"expected {expected} at {key!r}, which is missing"
            raise ManifestError(message, self.loc)
        return self.data[key]

    def _wrong_type(
        self, key: str, expected: str, value: object, remedy: str = ""
    ) -> ManifestError:
        message = f"expected {expected} for {key!r}, got {describe(value)}"
        return self.wrong(key, message, remedy)

    def _raise_element(self, key: str, index: int, expected: str, value: object) -> Any:
        message = f"expected {expected} in {key!r}, got {describe(value)}"
        raise ManifestError(message, self.element(key, index))


def _is_constant(value: object) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return _INT64_MIN <= value <= _INT64_MAX
    # A NaN is not equal to itself, so equal builds would compare unequal.
    return isinstance(value, (bool, str)) or (isinstance(value, float) and not math.isnan(value))


def _expected_instead_of(value: object) -> str:
    if isinstance(value, int):
        return "an integer of 64 bits"
    return "a number, not nan," if isinstance(value, float) else "a boolean, a number or a string"


_DESCRIPTIONS: tuple[tuple[type, str], ...] = (
    (bool, "the boolean {}"),
    (int, "the integer {}"),
    (float, "the number {}"),
    (str, "the string {!r}"),
    (list, "a list"),
    (dict, "a table"),
)


def describe(value: object) -> str:
    """Describe a TOML value for an error message."""
    for kind, text in _DESCRIPTIONS:
        if isinstance(value, kind):
            return text.format(str(value).lower() if kind is bool else value)
    return "a date or time"

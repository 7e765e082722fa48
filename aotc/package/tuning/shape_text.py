"""Parse a table of shapes: the launches to tune for.

    [[shape]]
    kernel = "matmul"                # or a list of kernels
    types = { T = "bf16" }           # or lists; a missing one takes all built dtypes
    choices = { CAUSAL = true }
    weight = 12                      # frequency of such a launch
    zip = ["N", "K"]                 # these lists advance together, all others cross
    M = "1..4096 log 5"              # 1, 8, 64, 512, 4096; also "1..9 x3" and "0..64 step 16"
    N = [4096, 11008]
    K = [4096, 4096]
    stride_am = "K"                  # an expression over the other arguments
    "x.shape[0]" = "M"               # an extent of a tensor
    "a_ptr.size" = "M * K"           # the elements of a pointer's buffer
    grid = ["cdiv(M, 64)"]           # if the caller gives it
    none = ["bias_ptr"]              # pointers that are None

Invariant: errors in the text itself are reported with their location; `shapes.py` compares it with
a kernel.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, cast

from aotc.ir import expression
from aotc.ir.diagnostics import Loc, ManifestError
from aotc.ir.expression import Expression, ExpressionError
from aotc.package.manifest.toml_table import Constant, Document, Mistakes, Table, describe
from aotc.package.tuning.text import read_document

MAX_LAUNCHES = 4096
"""Limit for one kernel: more launches are a range without steps, by mistake."""

OPTIONS = ("kernel", "types", "choices", "weight", "zip", "grid", "none")
_RANGE = re.compile(r"\s*(-?\d+)\s*\.\.\s*(-?\d+)(?:\s+(x|log|step)\s*(\d+))?\s*")
SIZE = ".size"
"""After a pointer's name: the elements of its buffer."""

Number: TypeAlias = int | float
Entry: TypeAlias = "tuple[Number, ...] | Expression"


@dataclass(frozen=True, slots=True)
class Shape:
    """One `[[shape]]`: values of arguments by name, listed or as an expression over others.

    `zipped` lists advance together. `locations` of the keys are for messages.
    """

    kernels: tuple[str, ...]
    types: Mapping[str, tuple[str, ...]]
    choices: Mapping[str, tuple[Constant, ...]]
    entries: Mapping[str, Entry]
    zipped: tuple[str, ...]
    weights: tuple[float, ...]
    grid: tuple[Expression, ...]
    null_pointers: tuple[str, ...]
    locations: Mapping[str, Loc]
    loc: Loc

    def wrong(self, name: str, message: str, remedy: str = "") -> ManifestError:
        """Return an error at the table's entry for `name`."""
        return ManifestError(message, self.locations.get(name, self.loc), remedy=remedy)


@dataclass(frozen=True, slots=True)
class Shapes:
    """All shapes of a file."""

    shapes: tuple[Shape, ...]

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the kernels with shapes, in order."""
        return tuple(dict.fromkeys(name for shape in self.shapes for name in shape.kernels))


def read_shapes(path: Path) -> Shapes:
    """Read the shapes at `path`. Raises: ManifestError."""
    return parse_shapes(read_document(path, "a table of shapes"), str(path))


def parse_shapes(text: str, file: str) -> Shapes:
    """Parse a table of shapes. Raises: ManifestError with all mistakes."""
    mistakes = Mistakes()
    root = Document.parse(text, file).root(("shape",), mistakes)
    shapes: list[Shape] = []
    with mistakes.collected():
        for table in root.tables("shape", None):
            with mistakes.collected():
                shapes.append(_shape(table))
    mistakes.check()
    return Shapes(tuple(shapes))


def _shape(table: Table) -> Shape:
    names = [name for name in table if name not in OPTIONS]
    entries = {name: _entry(table, name) for name in names}
    weights = _weights(table)
    zipped = table.strings("zip") if table.has("zip") else ()
    lengths: dict[str, int] = {}
    for index, name in enumerate(zipped):
        entry = weights if name == "weight" else entries.get(name)
        if not isinstance(entry, tuple):
            message = f"expected an argument with a list to zip, got {name!r}"
            raise ManifestError(message, table.element("zip", index))
        lengths[name] = len(entry)
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise table.wrong("zip", f"expected lists of one length to zip: {shown}")
    if len(weights) > 1 and "weight" not in zipped:
        remedy = 'add "weight" to zip'
        raise table.wrong("weight", "expected one weight, got a list that is not zipped", remedy)
    kernels = (table.string("kernel"),) if table.is_string("kernel") else table.strings("kernel")
    grid = table.strings("grid") if table.has("grid") else ()
    return Shape(
        kernels=table.unique("kernel", kernels),
        types={name: tuple(map(str, dtypes)) for name, dtypes in _listed(table, "types").items()},
        choices=_listed(table, "choices"),
        entries=entries,
        zipped=zipped,
        weights=weights,
        grid=tuple(_parsed(text, table.element("grid", index)) for index, text in enumerate(grid)),
        null_pointers=table.strings("none") if table.has("none") else (),
        locations={name: table.value_loc(name) for name in table},
        loc=table.loc,
    )


def _listed(table: Table, key: str) -> dict[str, tuple[Constant, ...]]:
    """Return the values by name of a table, each one value or a list."""
    section = table.optional_table(key)
    return {
        name: section.unique(name, section.constants(name))
        if section.is_list(name)
        else (section.constant(name),)
        for name in section
    }


def _weights(table: Table) -> tuple[float, ...]:
    if not table.has("weight"):
        return (1.0,)
    listed = table.constants("weight") if table.is_list("weight") else (table.constant("weight"),)
    for value in listed:
        if isinstance(value, bool | str) or not 0 < value < math.inf:
            raise table.wrong("weight", f"expected a weight above 0, got {describe(value)}")
    return tuple(float(value) for value in listed)


def _entry(table: Table, name: str) -> Entry:
    if table.is_string(name):
        return _range(table, name, str(table.data[name]))
    if table.is_table(name):
        raise table.wrong(name, f"expected a value, a list or a range for {name!r}, got a table")
    if not table.is_list(name):
        return (_number(table.constant(name), name, table.value_loc(name)),)
    values = table.unique(name, table.constants(name)) if name not in _zip(table) else ()
    values = values or table.constants(name)
    return tuple(
        _number(value, name, table.element(name, index)) for index, value in enumerate(values)
    )


def _zip(table: Table) -> list[object]:
    return cast("list[object]", table.data.get("zip") if table.is_list("zip") else [])


def _number(value: Constant, name: str, loc: Loc) -> Number:
    if isinstance(value, str):
        raise ManifestError(f"expected a number for {name!r}, got {describe(value)}", loc)
    return value


def _range(table: Table, name: str, text: str) -> Entry:
    """Return the values of a range, or an expression."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return _parsed(text, table.value_loc(name))
    low, high = int(match[1]), int(match[2])
    kind, count = match[3] or "step", int(match[4] or 1)
    if low > high or count < 1 or (kind == "log" and low < 1):
        least = ", from 1 on" if kind == "log" else ""
        message = f"expected a range such as 1..4096 log 5{least}, got {text!r}"
        raise table.wrong(name, message)
    if kind == "step":
        values = range(low, high + 1, count)
        if len(values) > MAX_LAUNCHES:
            remedy = f'give steps: "{low}..{high} x9" or "{low}..{high} step 64"'
            raise table.wrong(name, f"{text!r} are {len(values)} values", remedy)
        return tuple(values)
    if count > MAX_LAUNCHES:
        raise table.wrong(name, f"expected at most {MAX_LAUNCHES} values, got {text!r}")
    parts = [index / max(1, count - 1) for index in range(count)]
    if kind == "log":
        return tuple(dict.fromkeys(round(low * (high / low) ** part) for part in parts))
    return tuple(dict.fromkeys(round(low + (high - low) * part) for part in parts))


def _parsed(text: str, loc: Loc) -> Expression:
    try:
        return expression.parse(text)
    except ExpressionError as error:
        remedy = 'a range is "1..4096", "1..4096 x5", "1..4096 log 5" or "0..4096 step 64"'
        raise ManifestError(
            f"expected a range or an expression: {error}", loc, remedy=remedy
        ) from None

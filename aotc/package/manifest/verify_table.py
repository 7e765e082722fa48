"""Read the `[kernel.verify]` table: inputs of a kernel not determined by its code.

    [kernel.verify]
    n_cols = [1, 100, 4097]                     # a scalar: values, used in turn
    stride = "n_cols + 3"                       # or an expression over the other arguments
    "x.shape[0]" = "n_rows"                     # an extent of a tensor, likewise
    rows_ptr = { low = 0, high = "n_rows", distinct = true }  # each once before any repeats
    starts_ptr = { low = 1, high = 99, cumulative = true }    # 0, then sums of such lengths
    indices_ptr = { low = 0, high = "n_rows" }  # a pointer: the range of its elements
    strides_ptr = { low = 64, high = 512, multiple_of = 8 }   # integers, multiples of 8
    maps_ptr = { maps_of = "bf16", shape = ["n", 64], count = 2 }  # tensor maps in memory
    "x.size" = "n_rows * stride"                # the elements of a pointer's buffer
    a_ptrs = { pointers_to = "fp16", count = "groups" }  # a "*i64" of addresses
    max_programs = 64
    in_place = false                            # no two arguments are the same memory
    tolerance = 1e-3

Invariant: every name in a returned `VerifySpec` is an argument of the kernel, and every listed
value fits its type.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import cast

from aotc.ir import expression
from aotc.ir.diagnostics import ManifestError, did_you_mean
from aotc.ir.expression import ExpressionError, Extent, Name
from aotc.ir.types import SCALARS
from aotc.package.manifest.argument_type import ArgumentType
from aotc.package.manifest.expression_table import read_expression, read_grid
from aotc.package.manifest.parameters import Function
from aotc.package.manifest.spec import ManifestExpression, PointeeSpec, ValueRange, VerifySpec
from aotc.package.manifest.toml_table import Table, describe

_OPTIONS = ("grid", "tolerance", "max_programs", "in_place")
_MAX_PROGRAMS = 1 << 16
_MAX_COUNT = 1 << 10
_MAX_AXES = 5  # of a tensor map
_EXTENTS = f"1 to {_MAX_AXES} extents"
_SIZE = ".size"
_EXTENT = re.compile(r"(\w+)\.shape\[\d+\]")


def read_verify(
    table: Table, function: Function, signature: Mapping[str, ArgumentType]
) -> VerifySpec:
    """Read the `verify` section of a `[[kernel]]` table.

    Raises:
        ManifestError: a key is no argument, or its value does not fit.
    """
    section = table.optional_table("verify")
    reader = _Reader(section, function, signature)
    values: dict[str, tuple[int | float, ...]] = {}
    expressions: dict[str, ManifestExpression] = {}
    ranges: dict[str, ValueRange] = {}
    pointees: dict[str, PointeeSpec] = {}
    sizes: dict[str, int | ManifestExpression] = {}
    for name in section:
        if name in _OPTIONS:
            continue
        if name.endswith(_SIZE):
            sizes[name.removesuffix(_SIZE)] = reader.size(name)
            continue
        argument = reader.argument(name)
        if argument.kind == "pointer" and reader.has_pointees(name):
            pointees[name] = reader.pointees(name, argument)
        elif argument.kind == "pointer":
            ranges[name] = reader.range(name, argument)
        elif argument.kind == "scalar" and section.is_string(name):
            expressions[name] = reader.function(name, argument)
        elif argument.kind == "scalar":
            values[name] = reader.values(name, argument)
        else:
            message = f"expected a scalar or a pointer, {name!r} is a tensor descriptor"
            remedy = f"give its extents: {', '.join(_extents(name, argument))}"
            raise section.wrong_key(name, message, remedy)
    return VerifySpec(
        values=values,
        expressions=expressions,
        ranges=ranges,
        pointees=pointees,
        sizes=sizes,
        grid=reader.grid(has_grid=table.has("grid")),
        tolerance=reader.tolerance(),
        max_programs=reader.max_programs(),
        in_place=reader.in_place(),
    )


def _extents(name: str, tensor: ArgumentType) -> Iterator[str]:
    return (f"{name}.shape[{axis}]" for axis in range(len(tensor.block)))


class _Reader:
    def __init__(
        self, section: Table, function: Function, signature: Mapping[str, ArgumentType]
    ) -> None:
        self.section = section
        self.kernel = function
        self.signature = signature

    def argument(self, name: str) -> ArgumentType:
        """Return the argument called `name`; an extent of a tensor is an integer argument."""
        free = {
            argument_name: argument
            for argument_name, argument in self.signature.items()
            if argument.value is None and argument.kind != "none"
        }
        tensors = [
            (argument_name, argument)
            for argument_name, argument in free.items()
            if argument.kind == "tensordesc"
        ]
        extents = [extent for argument in tensors for extent in _extents(*argument)]
        if name in extents:
            return ArgumentType("scalar", "i32")
        if name in free:
            return free[name]
        sizes = [f"{argument}{_SIZE}" for argument in free if free[argument].kind == "pointer"]
        plain = [argument for argument in free if free[argument].kind != "tensordesc"]
        argument_name = [*plain, *extents, *sizes, *_OPTIONS]
        message = f"expected an argument of {self.kernel.name} or an option, got {name!r}"
        remedy = did_you_mean(name, argument_name) or f"there are {', '.join(argument_name)}"
        raise self.section.wrong_key(name, message, remedy)

    def values(self, name: str, argument: ArgumentType) -> tuple[int | float, ...]:
        values = self.section.unique(name, self.section.constants(name))
        return tuple(
            self._value(name, index, value, argument) for index, value in enumerate(values)
        )

    def _value(self, name: str, index: int, value: object, argument: ArgumentType) -> int | float:
        scalar = SCALARS.get(argument.element)  # None for a type variable
        is_number = isinstance(value, (int, float)) and (
            not isinstance(value, bool) or (scalar is not None and scalar.is_bool)
        )
        expected = argument.element
        if is_number and scalar is not None and scalar.is_int:
            low = -(1 << scalar.bits - 1) if scalar.is_signed else 0
            low = 1 if _EXTENT.fullmatch(name) else low  # tensors have no empty axes
            high = (1 << scalar.bits - int(scalar.is_signed)) - 1
            is_number = isinstance(value, int) and low <= value <= high
            expected = f"{argument.element}, {low} to {high},"
        if not is_number:
            message = f"expected a value of {expected} for {name!r}, got {describe(value)}"
            raise ManifestError(message, self.section.element(name, index))
        assert isinstance(value, (int, float))
        if argument.divisor > 1 and not argument.is_optional and value % argument.divisor:
            message = f"expected a multiple of {argument.divisor}, as promised, got {value}"
            raise ManifestError(message, self.section.element(name, index))
        if argument.bounds is not None and not argument.bounds[0] <= value <= argument.bounds[1]:
            low, high = argument.bounds
            message = f"expected a value from {low} to {high}, as promised, got {value}"
            raise ManifestError(message, self.section.element(name, index))
        return float(value) if scalar is not None and scalar.is_float else value

    def function(self, name: str, argument: ArgumentType) -> ManifestExpression:
        scalar = SCALARS.get(argument.element)
        if scalar is None or not scalar.is_int:
            message = f"expected a list of values for {name!r}, got an expression"
            raise self.section.wrong(name, message, "expressions give integers")
        parsed = self._expression(self.section, name)
        for node in expression.walk(parsed.root):
            if isinstance(node, Name | Extent) and expression.to_text(node) == name:
                message = f"expected an expression over the other arguments, got `{name}` itself"
                raise parsed.error(ExpressionError(message, node.col, len(name)))
        return parsed

    def size(self, name: str) -> int | ManifestExpression:
        """Return the elements of the buffer of a pointer, such as "x.size"."""
        pointer = name.removesuffix(_SIZE)
        argument = self.signature.get(pointer)
        if argument is not None and argument.kind == "tensordesc":
            message = f"expected the size of a pointer, {pointer!r} is a tensor descriptor"
            remedy = f"give its extents: {', '.join(_extents(pointer, argument))}"
            raise self.section.wrong_key(name, message, remedy)
        if argument is None or argument.kind != "pointer":
            self.argument(name)  # reports the valid keys
        if self.section.is_string(name):
            return self._expression(self.section, name)
        value = self.section.data[name]
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
            message = f"expected elements or an expression for {name!r}, got {describe(value)}"
            raise self.section.wrong(name, message)
        return value

    def _expression(self, table: Table, key: str) -> ManifestExpression:
        return read_expression(table.string(key), table.value_loc(key), self.kernel, self.signature)

    def range(self, name: str, argument: ArgumentType) -> ValueRange:
        value = self.section.data[name]
        if not isinstance(value, dict):
            message = f"expected a range for the pointer {name!r}, got {describe(value)}"
            raise self.section.wrong(name, message, f"write {name} = {{ low = 0, high = 100 }}")
        if list(cast("dict[str, object]", value)) == ["size"]:
            message = f"expected a key in quotes, got a table {name!r} with a size"
            raise self.section.wrong(name, message, f'write "{name}.size" = …')
        table = self.section.table(name, ("low", "high", "distinct", "cumulative", "multiple_of"))
        low, high = (self._limit(table, key) for key in ("low", "high"))
        if isinstance(low, (int, float)) and isinstance(high, (int, float)) and low >= high:
            message = (
                f"expected 'low' below 'high', which is not in the range, got {low} and {high}"
            )
            raise table.wrong("high", message)
        is_distinct = self._flag(table, "distinct", argument)
        is_cumulative = self._flag(table, "cumulative", argument)
        if is_distinct and is_cumulative:
            raise table.wrong("cumulative", "expected 'distinct' or 'cumulative', got both")
        multiple_of = self._multiple_of(table, argument)
        if multiple_of > 1 and (is_distinct or is_cumulative):
            flag = "distinct" if is_distinct else "cumulative"
            raise table.wrong("multiple_of", f"expected {flag!r} or 'multiple_of', got both")
        return ValueRange(low, high, is_distinct, is_cumulative, multiple_of)

    def _multiple_of(self, table: Table, argument: ArgumentType) -> int:
        """Return the common divisor required of a range's integers."""
        value = table.data.get("multiple_of", 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            message = f"expected a positive integer for 'multiple_of', got {describe(value)}"
            raise table.wrong("multiple_of", message)
        scalar = SCALARS.get(argument.element)
        if value > 1 and (scalar is None or not scalar.is_int):
            message = f"expected integers to be multiples of {value}, not {argument}"
            raise table.wrong("multiple_of", message)
        return value

    def _flag(self, table: Table, key: str, argument: ArgumentType) -> bool:
        """Return the boolean at `key`, allowed only for integers."""
        value = table.data.get(key, False)
        if not isinstance(value, bool):
            message = f"expected true or false for {key!r}, got {describe(value)}"
            raise table.wrong(key, message)
        scalar = SCALARS.get(argument.element)
        if value and (scalar is None or not scalar.is_int):
            raise table.wrong(key, f"expected integers to be {key}, not {argument}")
        return value

    def has_pointees(self, name: str) -> bool:
        value = self.section.data[name]
        return isinstance(value, dict) and ("pointers_to" in value or "maps_of" in value)

    def pointees(self, name: str, argument: ArgumentType) -> PointeeSpec:
        if "maps_of" in self.section.data[name]:
            return self._maps(name)
        table = self.section.table(name, ("pointers_to", "count"))
        element = self._element(table, "pointers_to")
        if argument.element not in ("i64", "u64"):
            message = f"expected an argument of *i64 or *u64 to hold addresses, {name!r} is"
            raise self.section.wrong_key(name, f"{message} *{argument.element}")
        return PointeeSpec(element, self._count(table))

    def _maps(self, name: str) -> PointeeSpec:
        """Return the tensors for a buffer of tensor maps."""
        table = self.section.table(name, ("maps_of", "shape", "count"))
        element = self._element(table, "maps_of")
        if not table.has("shape"):
            raise ManifestError(f"expected {_EXTENTS} for 'shape', got none", table.loc)
        extents: object = table.data["shape"]
        is_listed = isinstance(extents, list)
        if not is_listed or not 1 <= len(cast("list[object]", extents)) <= _MAX_AXES:
            raise table.wrong(
                "shape", f"expected {_EXTENTS}, got {describe(cast('object', extents))}"
            )
        extent_list = cast("list[object]", extents)
        shape = tuple(
            self._extent(table, index, extent) for index, extent in enumerate(extent_list)
        )
        return PointeeSpec(element, self._count(table) if table.has("count") else 1, shape)

    def _extent(self, table: Table, index: int, value: object) -> int | ManifestExpression:
        loc = table.element("shape", index)
        if isinstance(value, str):
            return read_expression(value, loc, self.kernel, self.signature)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            message = f"expected a positive integer or an expression, got {describe(value)}"
            raise ManifestError(message, loc)
        return value

    def _element(self, table: Table, key: str) -> str:
        element = table.string(key)
        if element not in SCALARS:
            message = f"expected a type for {key!r}, got {element!r}"
            remedy = did_you_mean(element, list(SCALARS)) or f"there are {', '.join(SCALARS)}"
            raise table.wrong(key, message, remedy)
        return element

    def _count(self, table: Table) -> int | ManifestExpression:
        if table.is_string("count"):
            return self._expression(table, "count")
        value = table.data.get("count")
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_COUNT:
            expected = f"an integer from 1 to {_MAX_COUNT} or an expression"
            message = f"expected {expected} for 'count', got {describe(value)}"
            if not table.has("count"):
                raise ManifestError(f"expected {expected} for 'count', got none", table.loc)
            raise table.wrong("count", message)
        return value

    def _limit(self, table: Table, key: str) -> int | float | ManifestExpression:
        if table.is_string(key):
            return self._expression(table, key)
        if not table.has(key):
            message = f"expected 'low' and 'high', got no {key!r}"
            raise ManifestError(message, table.loc)
        value = table.data[key]
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not math.isfinite(value)
        ):
            message = f"expected a number or an expression for {key!r}, got {describe(value)}"
            raise table.wrong(key, message)
        return value

    def grid(self, *, has_grid: bool) -> tuple[ManifestExpression, ...] | None:
        if not self.section.has("grid"):
            return None
        if has_grid:
            message = "expected no grid to verify with, the kernel has one"
            raise self.section.wrong_key("grid", message)
        return read_grid(self.section, self.kernel, self.signature)

    def tolerance(self) -> float:
        if not self.section.has("tolerance"):
            return 0.0
        value = self.section.data["tolerance"]
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not 0.0 <= value < math.inf:
            message = f"expected a number from 0 for 'tolerance', got {describe(value)}"
            raise self.section.wrong("tolerance", message)
        return float(value)

    def in_place(self) -> bool:
        value = self.section.data.get("in_place", True)
        if not isinstance(value, bool):
            message = f"expected true or false for 'in_place', got {describe(value)}"
            raise self.section.wrong("in_place", message)
        return value

    def max_programs(self) -> int | None:
        if not self.section.has("max_programs"):
            return None
        value = self.section.data["max_programs"]
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if not is_integer or not 1 <= value <= _MAX_PROGRAMS:
            expected = f"an integer from 1 to {_MAX_PROGRAMS}"
            message = f"expected {expected} for 'max_programs', got {describe(value)}"
            raise self.section.wrong("max_programs", message)
        return value

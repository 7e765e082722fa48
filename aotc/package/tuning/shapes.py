"""Expand a table of shapes into a kernel's launches to tune for.

Invariant: every launch has a value for each integer argument and extent, in the order of the
parameters, and occurs once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from aotc.ir import expression
from aotc.ir.diagnostics import did_you_mean
from aotc.ir.expression import Expression, ExpressionError
from aotc.ir.types import SCALARS
from aotc.package.archive.index import Kernel, Param, Value, value_key
from aotc.package.manifest.toml_table import Constant
from aotc.package.tuning.shape_text import (
    MAX_LAUNCHES,
    OPTIONS,
    SIZE,
    Entry,
    Number,
    Shape,
    Shapes,
    parse_shapes,
    read_shapes,
)

__all__ = ["Launch", "Shapes", "launches", "parse_shapes", "read_shapes"]


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch to measure.

    `key` has the integer arguments and the extents of tensors, `scalars` the other scalars, `sizes`
    the elements of buffers given by the shapes. `grid` is empty if the kernel has its own;
    `null_pointers` are None.
    """

    kernel: str
    types: Mapping[str, str]
    choices: Mapping[str, Constant]
    key: Mapping[str, int]
    scalars: Mapping[str, float] = field(default_factory=dict[str, float])
    weight: float = 1.0
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    grid: tuple[int, ...] = ()
    null_pointers: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Label in messages: kernel, types, choices and arguments."""
        values = {**self.types, **self.choices, **self.key}
        return " ".join([self.kernel, *(f"{name}={value}" for name, value in values.items())])

    @property
    def identity(self) -> tuple[object, ...]:
        """Key equal for equal launches."""
        parts: tuple[Mapping[str, object], ...]
        parts = (self.types, self.choices, self.key, self.scalars, self.sizes)
        texts = (tuple((name, repr(value)) for name, value in part.items()) for part in parts)
        return (self.kernel, *texts, self.grid, self.null_pointers)


def launches(
    shapes: Shapes, kernel: Kernel, defaults: Mapping[str, Entry] | None = None
) -> tuple[Launch, ...]:
    """Return a kernel's launches in `shapes`; weights of equal ones add up.

    `defaults` are for arguments missing from a shape, such as the manifest's `[kernel.verify]`.

    Raises:
        ManifestError: a shape names an unknown argument, or leaves one out.
    """
    merged: dict[tuple[object, ...], Launch] = {}
    for shape in shapes.shapes:
        if kernel.name not in shape.kernels:
            continue
        for launch in _Expander(shape, kernel, defaults or {}).launches():
            before = merged.get(launch.identity)
            weight = launch.weight + (before.weight if before is not None else 0.0)
            merged[launch.identity] = replace(launch, weight=weight)
            if len(merged) > MAX_LAUNCHES:
                message = f"expected at most {MAX_LAUNCHES} launches of {kernel.name}, got more"
                raise shape.wrong("kernel", message, 'give ranges steps: "1..4096 log 9"')
    return tuple(merged.values())


@dataclass(frozen=True, slots=True)
class _Expander:
    shape: Shape
    kernel: Kernel
    defaults: Mapping[str, Entry]

    def launches(self) -> Iterator[Launch]:
        self._check_names()
        combinations = list(self._combinations())
        for values, weight in self._values():
            for types, choices in combinations:
                yield self._launch(types, choices, values, weight)

    def _check_names(self) -> None:
        shape, kernel = self.shape, self.kernel
        pointers = [param.name for param in kernel.params if param.kind == "pointer"]
        names = [*self._arguments(), *(f"{name}{SIZE}" for name in pointers)]
        for name in shape.entries:
            if name not in names:
                message = f"expected an argument of {kernel.name} or an option, got {name!r}"
                remedy = did_you_mean(name, [*names, *OPTIONS])
                raise shape.wrong(name, message, remedy or f"there are {', '.join(names)}")
        for name in shape.null_pointers:
            if name not in kernel.nullable:
                listed = ", ".join(kernel.nullable) or "no pointer"
                message = f"expected a pointer of {kernel.name} that may be None, got {name!r}"
                raise shape.wrong("none", message, f"{listed} may be")
        if kernel.grid_rank and shape.grid:
            raise shape.wrong("grid", f"expected no grid, {kernel.name} has its own")
        if not kernel.grid_rank and not shape.grid:
            message = f"expected the grid of {kernel.name}, whose caller gives it"
            raise shape.wrong("kernel", message, 'add grid = ["cdiv(n, 128)"] to the shape')

    def _arguments(self) -> dict[str, Param]:
        """Return the scalars, and the extents of tensors."""
        arguments: dict[str, Param] = {}
        for param in self.kernel.params:
            if param.kind == "scalar":
                arguments[param.name] = param
            elif param.kind == "tensor":
                arguments |= {f"{param.name}.shape[{axis}]": param for axis in range(param.rank)}
        return arguments

    def _combinations(self) -> Iterator[tuple[tuple[str, ...], tuple[Value, ...]]]:
        """Yield the shape's types and choices with variants."""
        kernel = self.kernel
        variables = {variable.name: variable.dtypes for variable in kernel.type_variables}
        self._check_listed("types", self.shape.types, variables)
        self._check_listed(
            "choices", self.shape.choices, {c.name: c.values for c in kernel.choices}
        )
        built = {(v.types, tuple(map(value_key, v.choices))): v for v in kernel.variants}
        for variant in built.values():
            types = zip(variables, variant.types, strict=True)
            choices = zip((c.name for c in kernel.choices), variant.choices, strict=True)
            if all(dtype in self.shape.types.get(name, (dtype,)) for name, dtype in types) and all(
                value_key(value) in map(value_key, self.shape.choices.get(name, (value,)))
                for name, value in choices
            ):
                yield variant.types, variant.choices

    def _check_listed(
        self,
        key: str,
        listed_values: Mapping[str, Sequence[Value]],
        valid_values: Mapping[str, Sequence[Value]],
    ) -> None:
        for name, values in listed_values.items():
            if name not in valid_values:
                message = f"expected {key} of {self.kernel.name}, got {name!r}"
                listed = ", ".join(valid_values) or "none"
                remedy = did_you_mean(name, list(valid_values)) or f"there are {listed}"
                raise self.shape.wrong(key, message, remedy)
            for value in values:
                if value_key(value) not in map(value_key, valid_values[name]):
                    listed = ", ".join(map(str, valid_values[name]))
                    message = f"expected {name} to be one of {listed}, got {value}"
                    raise self.shape.wrong(key, message)

    def _values(self) -> Iterator[tuple[dict[str, Entry], float]]:
        """Yield listed values, one for each name, and expressions, with the weight."""
        shape = self.shape
        entries = {**self._defaults(), **shape.entries}
        listed = {name: entry for name, entry in entries.items() if isinstance(entry, tuple)}
        rest: dict[str, Entry] = {n: entry for n, entry in entries.items() if n not in listed}
        columns = [shape.weights if n == "weight" else listed[n] for n in shape.zipped]
        steps = list(zip(*columns, strict=True)) if shape.zipped else [()]
        crossed = [name for name in listed if name not in shape.zipped]
        for step in steps:
            row = dict(zip(shape.zipped, step, strict=True))
            weight = float(row.pop("weight", shape.weights[0]))
            for values in itertools.product(*(listed[name] for name in crossed)):
                chosen = {**row, **dict(zip(crossed, values, strict=True))}
                yield {**rest, **{name: (value,) for name, value in chosen.items()}}, weight

    def _defaults(self) -> dict[str, Entry]:
        """Return defaults for a shape: expressions, and the first value of each non-extent."""
        arguments = self._arguments()
        sizes = {f"{param.name}{SIZE}" for param in self.kernel.params}
        defaults: dict[str, Entry] = {}
        for name, entry in self.defaults.items():
            if isinstance(entry, tuple):
                if name in arguments and not self._is_integer(arguments[name], ()):
                    defaults[name] = entry[:1]
            elif name in arguments or name in sizes:
                defaults[name] = entry
        return defaults

    def _is_integer(self, param: Param, types: tuple[str, ...]) -> bool:
        if param.kind == "tensor":
            return True
        variables = zip((v.name for v in self.kernel.type_variables), types, strict=False)
        scalar = SCALARS.get(dict(variables).get(param.element, param.element))
        return scalar is not None and not scalar.is_float

    def _launch(
        self,
        types: tuple[str, ...],
        choices: tuple[Value, ...],
        values: Mapping[str, Entry],
        weight: float,
    ) -> Launch:
        kernel = self.kernel
        named = dict(zip((c.name for c in kernel.choices), choices, strict=True))
        integers = {
            name: int(value)
            for name, value in (*kernel.constants, *named.items())
            if isinstance(value, int)
        }
        self._check_integers(values, types)
        numbers = self._numbers(values, integers)
        key: dict[str, int] = {}
        scalars: dict[str, float] = {}
        for name, param in self._arguments().items():
            is_integer = self._is_integer(param, types)
            if name not in numbers and is_integer:
                message = f"expected a value for {name!r} of {kernel.name}, got none"
                remedy = f'add {_key(name)} = 128, [64, 128], "1..4096 log 5" or an expression'
                raise self.shape.wrong("kernel", message, remedy)
            value = numbers.get(name, 1.0)
            if not is_integer:
                scalars[name] = float(value)
            else:
                key[name] = int(value)
        sizes = {
            name.removesuffix(SIZE): int(value)
            for name, value in numbers.items()
            if name.endswith(SIZE)
        }
        integers |= key
        return Launch(
            kernel=kernel.name,
            types=dict(zip((v.name for v in kernel.type_variables), types, strict=True)),
            choices=cast("dict[str, Constant]", named),
            key=key,
            scalars=scalars,
            weight=weight,
            sizes=sizes,
            grid=tuple(self._evaluated("grid", extent, integers) for extent in self.shape.grid),
            null_pointers=self.shape.null_pointers,
        )

    def _check_integers(self, values: Mapping[str, Entry], types: tuple[str, ...]) -> None:
        """Raise for a number that is not an integer where one is required."""
        arguments = self._arguments()
        for name, entry in values.items():
            takes_float = name in arguments and not self._is_integer(arguments[name], types)
            if isinstance(entry, tuple) and isinstance(entry[0], float) and not takes_float:
                message = f"expected an integer for {name!r}, got {entry[0]}"
                raise self.shape.wrong(name, message)

    def _numbers(
        self, values: Mapping[str, Entry], fixed_integers: Mapping[str, int]
    ) -> dict[str, Number]:
        """Return the number of each name; expressions may name each other."""
        numbers: dict[str, Number] = {}
        waiting: dict[str, Expression] = {}
        for name, entry in values.items():
            if isinstance(entry, tuple):
                numbers[name] = entry[0]
            else:
                waiting[name] = entry
        while waiting:
            integers = {
                **fixed_integers,
                **{n: v for n, v in numbers.items() if isinstance(v, int)},
            }
            ready = [name for name, root in waiting.items() if set(_names(root)) <= integers.keys()]
            if not ready:
                name, root = next(iter(waiting.items()))
                missing = next(
                    missing_name for missing_name in _names(root) if missing_name not in integers
                )
                message = f"expected arguments with values in {expression.to_text(root)!r}"
                raise self.shape.wrong(name, f"{message}, {missing!r} has none")
            for name in ready:
                numbers[name] = self._evaluated(name, waiting.pop(name), integers)
        return numbers

    def _evaluated(self, name: str, root: Expression, values: Mapping[str, int]) -> int:
        try:
            return expression.evaluate(root, values)
        except ExpressionError as error:
            message = f"cannot evaluate {expression.to_text(root)!r}: {error}"
            raise self.shape.wrong(name, message) from None


def _names(root: Expression) -> list[str]:
    """Return the names of arguments and extents in an expression."""
    nodes = (expression.Name, expression.Extent)
    return [expression.to_text(node) for node in expression.walk(root) if isinstance(node, nodes)]


def _key(name: str) -> str:
    return f'"{name}"' if "." in name else name

"""The content of a manifest, as plain values: kernels, their axes, their expressions.

`manifest.py` makes them, `grid.py` expands them.

Invariant: a `Manifest` that `manifest.py` returns is consistent. Every argument has a type or a
default, every `tl.constexpr` parameter a value, a default or an autotuner, and every name in a grid
or a `where` is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from aotc.config import CONFIG_DEFAULTS
from aotc.ir.diagnostics import Loc, ManifestError, did_you_mean
from aotc.ir.expression import Expression, ExpressionError
from aotc.limits import DEFAULT_LIMITS, DEFAULT_SPILL_BYTES, CompileLimits
from aotc.package.manifest.argument_type import ArgumentType
from aotc.package.manifest.parameters import Function
from aotc.package.manifest.toml_table import Constant
from aotc.package.manifest.tuned import TunedConfig
from aotc.target import Target
from aotc.target import parse as parse_target
from aotc.tuple_type import TupleType

Axes: TypeAlias = tuple[tuple[str, tuple[Constant, ...]], ...]


@dataclass(frozen=True, slots=True)
class CartesianConfigs:
    """Every combination of the axes' values; no axes make one empty config."""

    axes: Axes = ()


@dataclass(frozen=True, slots=True)
class ListedConfigs:
    """The `[[kernel.config]]` tables, as listed."""

    configs: tuple[tuple[tuple[str, Constant], ...], ...]


@dataclass(frozen=True, slots=True)
class AutotuneConfigs:
    """The configs of the source's `@triton.autotune`, each with every combination of `computed`."""

    computed: Axes = ()


Configs: TypeAlias = CartesianConfigs | ListedConfigs | AutotuneConfigs


@dataclass(frozen=True, slots=True)
class ManifestExpression:
    """An expression and the location of its text, for errors that show only in a variant."""

    root: Expression
    loc: Loc

    def error(self, error: ExpressionError, remedy: str = "") -> ManifestError:
        """Return `error` as a manifest error at its column of the text."""
        loc = self.loc
        # The text starts after the opening quote; without a known end, one character is marked.
        col = loc.col + 1 + error.col
        inside = col < loc.end_col
        end_col = min(col + error.num_chars, loc.end_col - 1)
        place = Loc(loc.file, loc.line, col, max(end_col, col + 1)) if inside else loc
        return ManifestError(error.message, place, remedy=remedy)


@dataclass(frozen=True, slots=True)
class ValueRange:
    """What a buffer may hold when a kernel is verified: from `low` up to, but excluding, `high`.

    `is_distinct` integers come in any order, and none is repeated before all have occurred. What
    `is_cumulative` are sums of such integers, from 0 on. Others are multiples of `multiple_of`.
    """

    low: int | float | ManifestExpression
    high: int | float | ManifestExpression
    is_distinct: bool = False
    is_cumulative: bool = False
    multiple_of: int = 1


@dataclass(frozen=True, slots=True)
class PointeeSpec:
    """What the addresses in a buffer point to when a kernel is verified: `count` buffers.

    With a `shape` the buffer holds tensor maps instead, of tensors of this shape.
    """

    element: str
    count: int | ManifestExpression
    shape: tuple[int | ManifestExpression, ...] = ()


@dataclass(frozen=True, slots=True)
class VerifySpec:
    """A `[kernel.verify]` table: inputs of a kernel that its code does not determine.

    `values` are used in turn, `expressions` are over the other arguments, `ranges` are for the data
    of pointers, `pointees` for pointers to addresses, `sizes` are elements of buffers; `tolerance` is an error allowed besides the
    computed bounds. Unless `in_place`, an argument that is written never aliases another one.
    """

    values: dict[str, tuple[int | float, ...]] = field(
        default_factory=dict[str, tuple[int | float, ...]]
    )
    expressions: dict[str, ManifestExpression] = field(
        default_factory=dict[str, ManifestExpression]
    )
    ranges: dict[str, ValueRange] = field(default_factory=dict[str, ValueRange])
    pointees: dict[str, PointeeSpec] = field(default_factory=dict[str, PointeeSpec])
    sizes: dict[str, int | ManifestExpression] = field(
        default_factory=dict[str, "int | ManifestExpression"]
    )
    grid: tuple[ManifestExpression, ...] | None = None
    tolerance: float = 0.0
    max_programs: int | None = None
    in_place: bool = True


@dataclass(frozen=True, slots=True)
class BenchSpec:
    """A `[kernel.bench]` table: the work of a launch, and extents of what libraries do instead."""

    flops: ManifestExpression | None = None
    bytes: ManifestExpression | None = None
    peers: Mapping[str, tuple[ManifestExpression, ...]] = field(
        default_factory=dict[str, tuple[ManifestExpression, ...]]
    )


# Which combinations of optional promises are built: all 2^n, or just all and none.
Guards: TypeAlias = Literal["each", "together"]


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One `[[kernel]]` table; mappings keep the order of the function's parameters.

    `targets` are those of the package's that it is built for, empty for all.
    `signature` has the items of each argument of `tuples` in place of it. `limits` bound each compile,
    `spill_bytes` what a variant that is shipped may spill if another serves, or if the limit `is_strict`.
    `captures` are values of variables of the functions around the kernel's.
    """

    name: str
    source: str
    function: Function
    signature: dict[str, ArgumentType]
    types: dict[str, tuple[str, ...]]
    constants: dict[str, Constant]
    choices: dict[str, tuple[Constant, ...]]
    configs: Configs
    grid: tuple[ManifestExpression, ...] | None
    where: ManifestExpression | None
    guards: Guards
    loc: Loc
    configs_loc: Loc
    verify: VerifySpec = field(default_factory=VerifySpec)
    bench: BenchSpec = field(default_factory=BenchSpec)
    limits: CompileLimits = DEFAULT_LIMITS
    spill_bytes: int = DEFAULT_SPILL_BYTES
    is_strict: bool = False
    targets: tuple[str, ...] = ()
    tuples: dict[str, TupleType] = field(default_factory=dict[str, TupleType])
    enable_fp_fusion: bool = True
    enable_reflect_ftz: bool = True
    captures: dict[str, Constant] = field(default_factory=dict[str, Constant])

    def targets_among(self, targets: Sequence[Target]) -> tuple[Target, ...]:
        """Return those of some targets that the kernel is built for."""
        return tuple(
            target for target in targets if target.name in (self.targets or (target.name,))
        )

    def joined(self, types: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        """Return the type of each argument of the function, given those of what launches pass."""
        joined: list[tuple[str, str]] = []
        for parameter in self.function.arguments:
            name = parameter.name
            if name in self.tuples:
                joined.append((name, self.tuples[name].text(name, types)))
            elif name in types:
                joined.append((name, types[name]))
        return tuple(joined)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A whole manifest; `path` is the file it was read from.

    `without` names the target features that the package does not use. `facts` are what files are told of
    the GPU, by target; `tuned` is what autotuners chose of the kernels' configs.
    """

    path: str
    name: str
    version: str
    targets: tuple[Target, ...]
    kernels: tuple[KernelSpec, ...]
    without: tuple[str, ...] = ()
    facts: dict[str, tuple[tuple[str, Constant], ...]] = field(
        default_factory=dict[str, tuple[tuple[str, Constant], ...]]
    )
    tuned: tuple[TunedConfig, ...] = ()

    def targets_for(self, names: Sequence[str], without: Sequence[str]) -> tuple[Target, ...]:
        """Return the named targets, or all of the package's if none is named.

        They exclude the features that the package excludes, and those in `without`.

        Raises:
            ManifestError: there is no such target or feature; suggests the nearest name.
        """
        named = [parse_target(name) for name in dict.fromkeys(names)] or self.targets
        return tuple(
            replace(target, facts=self.facts.get(target.name, ())).excluding(
                [*self.without, *without]
            )
            for target in named
        )

    def select(
        self, names: Sequence[str], targets: Sequence[Target]
    ) -> list[tuple[KernelSpec, tuple[Target, ...]]]:
        """Return the named kernels, or all, each with those of `targets` that it is built for.

        Of all kernels, leave out those that are built for other targets only.

        Raises:
            ManifestError: there is no such kernel, or none for these targets.
        """
        wanted = [self.kernel(name) for name in dict.fromkeys(names)] or self.kernels
        selected = [
            (kernel, kernel.targets_among(targets)) for kernel in self.kernels if kernel in wanted
        ]
        for kernel, among in selected:
            if not among and (names or not any(held for _, held in selected)):
                given = ", ".join(str(target) for target in targets)
                message = f"expected a target of {kernel.name!r}, got {given}"
                remedy = f"its targets are {', '.join(kernel.targets)}"
                raise ManifestError(message, kernel.loc, remedy=remedy)
        return [(kernel, among) for kernel, among in selected if among]

    def kernel(self, name: str) -> KernelSpec:
        """Return the kernel called `name`.

        Raises:
            ManifestError: there is none; suggests the nearest name.
        """
        for kernel in self.kernels:
            if kernel.name == name:
                return kernel
        names = [kernel.name for kernel in self.kernels]
        message = f"expected a kernel of {self.path} ({', '.join(names)}), got {name!r}"
        raise ManifestError(message, remedy=did_you_mean(name, names))


def missing_constexpr(function: Function, given: set[str]) -> str | None:
    """Return the first constexpr parameter that is neither given nor has a default.

    A parameter named like a config key with a default, such as `num_warps`, always has a value.
    """
    known = {*given, *CONFIG_DEFAULTS}
    for parameter in function.constexprs:
        if parameter.name not in known and not parameter.has_default:
            return parameter.name
    return None

"""Define the content of a manifest as plain values: kernels, their axes, their expressions.

`read.py` makes them, `variant_grid.py` expands them.

Invariant: a `Manifest` from `read.py` is consistent. Every argument has a type or a default. Every
`tl.constexpr` parameter has a value, a default or an autotuner. Every name in a grid or a `where`
is valid.
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
from aotc.target import DEFAULT_TOOLCHAIN, Target
from aotc.target import parse_set as parse_target_set
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
    """An expression and the location of its text, for errors found later in a variant."""

    root: Expression
    loc: Loc

    def error(self, error: ExpressionError, remedy: str = "") -> ManifestError:
        """Return `error` as a manifest error at its column of the text."""
        loc = self.loc
        # The text starts after the opening quote; without a known end, one character is marked.
        col = loc.col + 1 + error.col
        inside = col < loc.end_col
        end_col = min(col + error.num_chars, loc.end_col - 1)
        error_loc = Loc(loc.file, loc.line, col, max(end_col, col + 1)) if inside else loc
        return ManifestError(error.message, error_loc, remedy=remedy)


@dataclass(frozen=True, slots=True)
class ValueRange:
    """The values of a buffer's integers during verification, from `low` to `high`, excluded.

    `is_distinct` integers come in any order, each once before any repeats. `is_cumulative` values
    are running sums of such integers, from 0 on. Others are multiples of `multiple_of`.
    """

    low: int | float | ManifestExpression
    high: int | float | ManifestExpression
    is_distinct: bool = False
    is_cumulative: bool = False
    multiple_of: int = 1


@dataclass(frozen=True, slots=True)
class PointeeSpec:
    """The target of the addresses in a buffer during verification: `count` buffers.

    With a `shape` the buffer holds tensor maps instead, of tensors of this shape.
    """

    element: str
    count: int | ManifestExpression
    shape: tuple[int | ManifestExpression, ...] = ()


@dataclass(frozen=True, slots=True)
class VerifySpec:
    """A `[kernel.verify]` table: inputs of a kernel not determined by its code.

    `values` are used in turn, `expressions` are over the other arguments. `ranges` are for the data
    of pointers, `pointees` for pointers to addresses, `sizes` are elements of buffers. `tolerance`
    is an error allowed besides the computed bounds. Unless `in_place`, a written argument never
    aliases another one.
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
    """A `[kernel.bench]` table: the work of a launch, and extents of equivalent library calls."""

    flops: ManifestExpression | None = None
    bytes: ManifestExpression | None = None
    peers: Mapping[str, tuple[ManifestExpression, ...]] = field(
        default_factory=dict[str, tuple[ManifestExpression, ...]]
    )


# The combinations of optional promises to build: all 2^n, or only all and none.
Guards: TypeAlias = Literal["each", "together"]


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One `[[kernel]]` table; mappings keep the order of the function's parameters.

    `targets` is a subset of the package's targets, empty for all. `signature` lists the items of
    each argument of `tuples` in its place. `limits` bound each compile. `spill_bytes` bounds the
    spills of a shipped variant if another variant serves, or if the limit `is_strict`. `captures`
    are values of variables of the enclosing functions.
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
    launch_cooperative_grid: bool = False
    captures: dict[str, Constant] = field(default_factory=dict[str, Constant])

    def targets_among(self, targets: Sequence[Target]) -> tuple[Target, ...]:
        """Return the subset of `targets` this kernel is built for."""
        return tuple(
            target for target in targets if target.name in (self.targets or (target.name,))
        )

    def joined(self, types: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        """Return the type of each function argument, given the types of the launch arguments."""
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
    """A whole manifest; `path` is its file.

    `without` names the target features not used by the package. `facts` answer the source's queries
    about the GPU, by target; `tuned` holds the autotuners' chosen configs. `included` lists the files
    of other manifests. `toolchain` is the CUDA release of ptxas.
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
    included: tuple[str, ...] = ()
    toolchain: str = DEFAULT_TOOLCHAIN

    @property
    def inputs(self) -> tuple[str, ...]:
        """Paths of the manifests, and of the sources named in them."""
        named = (*self.kernels, *self.tuned)
        return (self.path, *self.included, *(table.source for table in named))

    def targets_for(self, names: Sequence[str], without: Sequence[str]) -> tuple[Target, ...]:
        """Return the named targets, or all of the package's if none is named.

        They exclude the package's excluded features, and the features in `without`.

        Raises:
            ManifestError: there is no such target or feature; suggests the nearest name.
        """
        targets = tuple(
            dict.fromkeys(target for name in names for target in parse_target_set(name))
        )
        return tuple(
            replace(target, facts=self.facts.get(target.name, ()))
            .excluding([*self.without, *without])
            .assembled_by(self.toolchain)
            for target in targets or self.targets
        )

    def select(
        self, names: Sequence[str], targets: Sequence[Target]
    ) -> list[tuple[KernelSpec, tuple[Target, ...]]]:
        """Return the named kernels, or all, each with its subset of `targets`.

        Without names, kernels built only for other targets are left out.

        Raises:
            ManifestError: there is no such kernel, or none for these targets.
        """
        requested = [self.kernel(name) for name in dict.fromkeys(names)] or self.kernels
        selected = [
            (kernel, kernel.targets_among(targets))
            for kernel in self.kernels
            if kernel in requested
        ]
        for kernel, among in selected:
            if not among and (names or not any(kernel_targets for _, kernel_targets in selected)):
                target_names = ", ".join(str(target) for target in targets)
                message = f"expected a target of {kernel.name!r}, got {target_names}"
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


def missing_constexpr(function: Function, fixed_names: set[str]) -> str | None:
    """Return the first constexpr parameter with neither a value nor a default.

    A parameter named like a config key with a default, such as `num_warps`, always has a value.
    """
    names_with_value = {*fixed_names, *CONFIG_DEFAULTS}
    for parameter in function.constexprs:
        if parameter.name not in names_with_value and not parameter.has_default:
            return parameter.name
    return None

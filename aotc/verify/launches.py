"""The launches at which a kernel is verified: arguments where compilers are wrong.

Mistakes in masks, tails and loops show where an extent meets the block it is covered in: one below,
one above, exactly, a single element, several blocks and a part of one, none at all. Each extent
goes through these classes in turn, several extents out of step, so that a few launches bring each
class of each extent. Promises of divisibility are kept, and where none is made it does not hold.
Strides are chosen so that rows do not overlap, dense and padded in turn.

Invariant: the arguments of a launch satisfy the conditions it is chosen under, its grid has at most
`max_programs` programs, and equal seeds choose equal launches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from aotc.ir.core import Kernel
from aotc.ir.types import I32, DescriptorType, PointerType, ScalarType
from aotc.verify.dataflow import Roles, StrideTerm, upper_bound

Scalar: TypeAlias = int | float
Values: TypeAlias = dict[str, Scalar]

CLASSES = ("over", "under", "full", "one", "several", "none")
DEFAULT_MAX_PROGRAMS = 32

_MAX_TRIALS = 4096
_FALLBACKS: dict[str, tuple[str, ...]] = {
    "over": ("two thirds", "half"),
    "several": ("half", "two thirds"),
}
_COUNTS = {"over": 2, "under": 1, "full": 3, "one": 2, "several": 1, "none": 2}
_OTHERS = (1, 2, 3, 5, 1, 2)
_MAX_INDEX = 512
_PADDING = 3


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: what scalar arguments are, how many programs there are, what is drawn.

    `index_high` bounds loaded indices; with `misaligned` a pointer that is promised no alignment
    is one element off. Unless `in_step`, an emulator is to run warps in an order drawn from `seed`.
    """

    label: str
    scalars: Mapping[str, Scalar]
    grid: tuple[int, ...]
    seed: int
    index_high: int
    misaligned: bool
    in_step: bool = True

    @property
    def shape(self) -> str:
        """The arguments as a message shows them."""
        return ", ".join(f"{name} = {_shown(value)}" for name, value in self.scalars.items())


def _shown(value: Scalar) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class Choice:
    """What the user says of a scalar argument: values in turn, or a function of the others."""

    values: tuple[Scalar, ...] = ()
    function: Callable[[Mapping[str, int]], int] | None = None


@dataclass(frozen=True, slots=True)
class Conditions:
    """What launches must satisfy.

    `grid` gives the grid of scalar arguments, None if the caller of a launch does; `admits` says
    whether the variant is the one that such arguments get; it refuses values that are no multiples
    of `divisors`. `fixed` are arguments whose value is compiled in.
    """

    grid: Callable[[Mapping[str, int]], tuple[int, ...]] | None
    admits: Callable[[Mapping[str, int]], bool]
    fixed: Mapping[str, int] = field(default_factory=dict[str, int])
    divisors: Mapping[str, int] = field(default_factory=dict[str, int])
    choices: Mapping[str, Choice] = field(default_factory=dict[str, Choice])
    max_programs: int = DEFAULT_MAX_PROGRAMS


_ROW_ELEMS = 16


@dataclass(slots=True)
class Chooser:
    """Choose launches of a kernel, one for each class of extents; equal seeds, equal launches."""

    kernel: Kernel
    roles: Roles
    conditions: Conditions
    seed: int
    scalars: dict[str, ScalarType] = field(default_factory=dict[str, ScalarType])
    divisors: dict[str, int] = field(default_factory=dict[str, int])
    _is_free: bool = False  # whether a pointer may be misaligned

    def __post_init__(self) -> None:
        for info, arg in zip(self.kernel.params, self.kernel.body.args, strict=True):
            if isinstance(arg.type, PointerType):
                self._is_free |= info.divisibility == 1
            if isinstance(arg.type, ScalarType):
                self.scalars[info.name] = arg.type
                wanted = self.conditions.divisors.get(info.name, 1)
                self.divisors[info.name] = math.lcm(info.divisibility, wanted)
            elif isinstance(arg.type, DescriptorType):
                last = len(arg.type.block) - 1
                for axis in range(last + 1):
                    self.scalars[f"{info.name}.shape[{axis}]"] = I32
                    # The launcher wants rows of whole 16-byte pieces, whatever the element.
                    self.divisors[f"{info.name}.shape[{axis}]"] = _ROW_ELEMS if axis == last else 1

    @property
    def count(self) -> int:
        """Number of launches to choose; several may turn out the same."""
        lengths = [len(choice.values) for choice in self.conditions.choices.values()]
        return max([len(CLASSES), *lengths])

    def launch(self, index: int, stride_scale: int = 1) -> Launch | None:
        """Return the launch for a class, None if no arguments of it satisfy the conditions.

        A `stride_scale` above 1 leaves more room for a row than its extent.
        """
        label = CLASSES[index % len(CLASSES)]
        rng = np.random.default_rng((self.seed, index))
        others = self._others(index, rng)
        for extents in self._trials(index):
            values = {**others, **extents}
            chosen = self._completed(values, index, stride_scale)
            if chosen is None:
                continue
            values, grid = chosen
            if math.prod(grid) <= self.conditions.max_programs and self._admitted(values):
                ordered = {name: values[name] for name in self.scalars}
                high = min(self._width(values), _MAX_INDEX) + 1
                seed = int(rng.integers(1 << 30))
                is_off = self._is_free and index % 2 == 1
                return Launch(label, ordered, grid, seed, high, is_off, in_step=index % 3 != 1)
        return None

    def _integers(self, values: Mapping[str, Scalar]) -> dict[str, int]:
        known = {name: value for name, value in values.items() if isinstance(value, int)}
        return {**known, **self.conditions.fixed}

    def _admitted(self, values: Mapping[str, Scalar]) -> bool:
        known = self._integers(values)
        promised = all(value % self.divisors.get(name, 1) == 0 for name, value in known.items())
        return promised and self.conditions.admits(known)

    # ---- extents -----------------------------------------------------------------------------

    def _trials(self, index: int) -> Iterator[Values]:
        """Yield values of all extents, the ones that are wanted first."""
        listed = [name for name, choice in self.conditions.choices.items() if choice.values]
        names = [n for n in self.scalars if n in self.roles.extents or n in listed]
        blocked = [name for name in names if self.roles.extents.get(name, 1) > 1]
        ranks = {name: at for at, name in enumerate(blocked)}
        options = [self._options(name, ranks.get(name, 0), index) for name in names]
        for values in itertools.islice(itertools.product(*options), _MAX_TRIALS):
            yield dict(zip(names, values, strict=True))

    def _options(self, name: str, at: int, index: int) -> list[Scalar]:
        chosen = self.conditions.choices.get(name)
        if chosen is not None and chosen.values:
            start = index % len(chosen.values)
            return [*chosen.values[start:], *chosen.values[:start]]
        block, divisor = self.roles.extents[name], self.divisors[name]
        regular = CLASSES[:-1]
        if CLASSES[index % len(CLASSES)] == "none":
            first: tuple[str, ...] = ("none",)
            start = 0
        else:
            start = (index + 2 * at) % len(regular)
            first = (regular[start], *_FALLBACKS.get(regular[start], ()))
        order = (*first, *(regular[(start + step) % len(regular)] for step in range(len(regular))))
        least = int(_is_extent(name))  # tensors have no empty axes
        return list(dict.fromkeys(max(least, extent_of(kind, block, divisor)) for kind in order))

    # ---- the rest ----------------------------------------------------------------------------

    def _others(self, index: int, rng: np.random.Generator) -> Values:
        values: Values = {}
        for name, kind in self.scalars.items():
            if kind.is_float:
                values[name] = float(rng.uniform(0.5, 1.5))
            elif kind.is_bool:
                values[name] = index % 2
            else:
                values[name] = _OTHERS[index % len(_OTHERS)] * self.divisors[name]
        return values

    def _completed(
        self, values: Values, index: int, stride_scale: int
    ) -> tuple[Values, tuple[int, ...]] | None:
        """Return the values with strides and functions of others, and the grid."""
        # Twice: a grid may name a stride, strides depend on the grid, and functions on all.
        first = self._computed(values)
        grid = self._grid(first)
        if grid is None:
            return None
        final = self._computed({**first, **self._strides(first, grid, index, stride_scale)})
        grid = self._grid(final)
        return None if grid is None else (final, grid)

    def _computed(self, values: Values) -> Values:
        """Return the values with those that the user gives as functions of the others."""
        done = dict(values)
        for name, choice in self.conditions.choices.items():
            if choice.function is not None and name in self.scalars:
                done[name] = choice.function(self._integers(done))
        return done

    def _grid(self, values: Values) -> tuple[int, ...] | None:
        if self.conditions.grid is not None:
            grid = self.conditions.grid(self._integers(values))
            return grid if all(extent >= 0 for extent in grid) else None
        known = self._integers(values)
        return tuple(
            self._programs(axis, known) for axis in range(max(self.roles.axes, default=0) + 1)
        )

    def _programs(self, axis: int, known: Mapping[str, int]) -> int:
        """Return how many programs an axis seems to need."""
        if axis not in self.roles.axes:
            return 1
        blocks = [
            -(-known[name] // self.roles.extents[name])
            for name in self.roles.axes[axis]
            if name in known and self.roles.extents.get(name, 1) > 1
        ]
        return math.prod(blocks) if blocks else 2

    def _width(self, values: Values) -> int:
        """Return how many elements a row may have."""
        known = self._integers(values)
        extents = [known[name] for name in self.roles.extents if name in known]
        is_masked = any(block > 1 for block in self.roles.extents.values())
        return max([1, *extents, *([] if is_masked else [self.roles.largest_tile])])

    def _strides(
        self, values: Values, grid: Sequence[int], index: int, stride_scale: int
    ) -> Values:
        """Return strides under which rows lie apart, the last of the signature the innermost."""
        width = self._width(values)
        if stride_scale > 1:  # rows are longer than any extent: whole tiles, or several of them
            width = max(width, self.roles.largest_tile) * stride_scale // 2
        reach: dict[str, int] = {}
        for pointer in self.roles.strides:
            reach[pointer] = width if pointer in self.roles.unit else 1
        found: Values = {}
        for name in reversed([n for n in self.scalars if n in self.roles.stride_names]):
            if name in self.roles.extents or name in self.conditions.choices:
                continue
            users = [
                (pointer, term)
                for pointer, terms in self.roles.strides.items()
                for term in terms
                if term.stride == name
            ]
            divisor = self.divisors[name]
            stride = max(reach[pointer] for pointer, _ in users)
            if index % 2 and stride > 1:
                # Each more than the one before: so one that is taken for another shows.
                stride += (len(found) + 1) * (divisor if divisor > 1 else _PADDING)
            stride = -(-stride // divisor) * divisor
            found[name] = stride
            for pointer, term in users:
                reach[pointer] = stride * self._count(term, grid, values, width)
        return found

    def _count(self, term: StrideTerm, grid: Sequence[int], values: Values, width: int) -> int:
        """Return how many values the index of a stride may have."""
        known = self._integers(values)
        params = zip(self.kernel.params, self.kernel.body.args, strict=True)
        scalars = {arg: known[info.name] for info, arg in params if info.name in known}
        bounds = [upper_bound(index, grid, scalars) for index in term.indices]
        numbers = [bound for bound in bounds if bound is not None]
        return max(1, sum(numbers) + 1) if len(numbers) == len(bounds) else width


def _is_extent(name: str) -> bool:
    """Return whether a value is one of a tensor's extents, such as `x.shape[0]`."""
    return "." in name


def extent_of(kind: str, block: int, divisor: int) -> int:
    """Return an extent of a class, for blocks of `block`: a multiple of `divisor`.

    An extent that is covered one at a time is a number of programs: 1 to 3.
    """
    if block == 1:
        return _COUNTS.get(kind, 1) * divisor
    whole = -(-block // divisor)
    values = {
        "over": block // divisor + 1,
        "under": max(1, whole - 1),
        "full": whole,
        "one": 1,
        "several": _next_prime((2 * block + block // 3) // divisor + 1),
        "two thirds": max(1, 2 * whole // 3),
        "half": whole // 2 + 1,
        "none": 0,
    }
    return values[kind] * divisor


def _next_prime(value: int) -> int:
    while value > 2 and any(value % factor == 0 for factor in range(2, math.isqrt(value) + 1)):
        value += 1
    return value

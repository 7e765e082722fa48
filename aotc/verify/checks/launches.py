"""Choose the launches for verifying a kernel: arguments that break compilers.

Each extent goes through the classes of `extents.py` in turn, several extents out of step, so
that few launches cover every class of every extent. Then come launches of one purpose each:

    deep        loops run more than twice as often as they have stages: every slot is reused
    sums        the same for thousands of positive numbers, where tensor cores add fp8 in few bits
    apart       counts of blocks, rows and programs differ from each other
    persistent  each persistent program takes three tiles, or each of its groups two
    special     buffers hold NaN, infinities, zeros, subnormals, ties, the largest numbers
    float       a float argument is negative, minus zero, large, infinite, or NaN
    far         offsets of rows need more than 32 bits
    long        an extent is almost 2**31, and a few of its programs run; longer, if it has 64 bits
    in place    a written argument aliases an argument read

Promised divisibility holds; an argument without a promise is not divisible.

Invariant: the arguments of a launch satisfy its conditions, at most `max_programs` of its
programs run, and equal seeds choose equal launches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from aotc.ir.core import Kernel, Value
from aotc.ir.dialects import scf
from aotc.ir.dialects.descriptor import TENSOR_ALIGNMENT_BYTES
from aotc.ir.types import I32, DescriptorType, PointerType, ScalarType
from aotc.verify.checks.dataflow import Roles, adds_up_fp8
from aotc.verify.checks.extents import (
    APART,
    CLASSES,
    COUNTS,
    FLOATS,
    LONG,
    LONG_SUM,
    candidates,
    extent_of,
    is_deep,
    is_float,
    is_long,
    just_below,
    last_in_part,
    part_beyond,
)
from aotc.verify.checks.grid_limits import is_launchable, long_blocks
from aotc.verify.checks.integers import LaunchValues, value_at, value_in_last
from aotc.verify.checks.launch import BACKWARDS, Launch, Scalar
from aotc.verify.checks.strides import FAR, FAR_ELEMS, NEAR, Rows, Spacing

Values: TypeAlias = dict[str, Scalar]

DEFAULT_MAX_PROGRAMS = 32
DEFAULT_NUM_STAGES = 3

_MAX_TRIALS, _MAX_LISTINGS, _MAX_INDEX = 4096, 8, 512
_MAX_PERSISTENT_PROGRAMS = 256
_OTHERS = (1, 2, 3, 5, 1, 2)
_FAR_APART = 1 << 20  # elements: the rows of all programs may exceed memory
_PROGRAMS = (2, 8, 132, 148)  # of persistent kernels without a number of their own
_COVERED = -1  # a tensor's extent, to be as large as any other


@dataclass(frozen=True, slots=True)
class Choice:
    """The user's choice for a scalar argument: values in turn, or a function of the others."""

    values: tuple[Scalar, ...] = ()
    function: Callable[[Mapping[str, int]], int] | None = None


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions on launches.

    `grid` computes the grid from scalar arguments; None if a launch passes it. `admits` tells whether
    the dispatcher selects this variant, and checks `divisors`. Both read only the arguments
    `named`; None stands for all. `fixed` are arguments with compiled-in values. `num_stages` is the
    default of loops; `num_groups` of warps take a program's tiles in turn. With `may_be_left_out`, a
    launch may exceed `max_programs`, and only some of its programs run. Without `may_alias` no two
    arguments share memory. `num_ctas` run a program. Only a grid that `may_change_grid` is retried.
    """

    grid: Callable[[Mapping[str, int]], tuple[int, ...]] | None
    admits: Callable[[Mapping[str, int]], bool]
    named: Collection[str] | None = None
    fixed: Mapping[str, int] = field(default_factory=dict[str, int])
    divisors: Mapping[str, int] = field(default_factory=dict[str, int])
    choices: Mapping[str, Choice] = field(default_factory=dict[str, Choice])
    max_programs: int = DEFAULT_MAX_PROGRAMS
    num_stages: int = DEFAULT_NUM_STAGES
    num_groups: int = 1
    may_be_left_out: bool = False
    may_alias: bool = True
    num_ctas: int = 1
    may_change_grid: bool = True


@dataclass(slots=True)
class Chooser:
    """Choose one launch of a kernel for each label; equal seeds give equal launches."""

    kernel: Kernel
    roles: Roles
    conditions: Conditions
    seed: int
    scalars: dict[str, ScalarType] = field(default_factory=dict[str, ScalarType])
    divisors: dict[str, int] = field(default_factory=dict[str, int])
    labels: tuple[str, ...] = ()
    is_whole: bool = False  # all extents are one block
    stride_names: list[str] = field(default_factory=list[str])  # without strides the user fixes
    _num_loops: int = 0  # of the kernel
    _has_functions: bool = False  # whether the user gives some arguments as functions of others
    _is_free: bool = False  # whether a pointer may be misaligned
    _has_rows: bool = False  # whether a tensor has several axes

    def __post_init__(self) -> None:
        for info, arg in zip(self.kernel.params, self.kernel.body.args, strict=True):
            if isinstance(arg.type, PointerType):
                self._is_free |= info.divisibility == 1
            if isinstance(arg.type, ScalarType):
                self.scalars[info.name] = arg.type
                required = self.conditions.divisors.get(info.name, 1)
                mapped = self.roles.mapped.get(info.name, 1)
                self.divisors[info.name] = math.lcm(info.divisibility, required, mapped)
            elif isinstance(arg.type, DescriptorType):
                last = len(arg.type.block) - 1
                self._has_rows |= last > 0
                for axis in range(last + 1):
                    self.scalars[f"{info.name}.shape[{axis}]"] = I32
                    # The launcher requires rows of whole 16-byte units.
                    elems = max(1, TENSOR_ALIGNMENT_BYTES // arg.type.element.size_bytes)
                    self.divisors[f"{info.name}.shape[{axis}]"] = elems if axis == last else 1
        self._num_loops = sum(isinstance(op, scf.For) for op in self.kernel.walk())
        fixed_names = (*self.roles.extents, *self.conditions.choices)
        strides = self.roles.stride_names
        self.stride_names = [n for n in self.scalars if n in strides and n not in fixed_names]
        choices = self.conditions.choices.values()
        self._has_functions = any(choice.function is not None for choice in choices)
        count = max([len(CLASSES), *(len(choice.values) for choice in choices)])
        self.labels = (*itertools.islice(itertools.cycle(CLASSES), count), *self._more_labels())

    @property
    def count(self) -> int:
        """Number of launches to choose; several may coincide."""
        return len(self.labels)

    def _more_labels(self) -> Iterator[str]:
        """Yield the labels of this kernel's single-purpose launches."""
        if self.roles.loops:
            yield "deep"
            if adds_up_fp8(self.kernel):
                yield "sums"
        if self.roles.extents or self.roles.axes:
            yield "apart"
        if self.roles.persistent:
            yield "persistent"
        if self.roles.read:
            yield "special"
        for name, kind in self.scalars.items():
            if kind.is_float and name not in self.conditions.choices:
                yield from (f"float: {name} is {size}" for size in FLOATS)
        if self.stride_names or self._has_rows:
            yield "far"
        if self.conditions.may_be_left_out:
            if self._reversed_strides():
                yield BACKWARDS  # needs a hole before pointers, which only an emulator's memory has
            yield from self._long_labels()
        if self.conditions.may_alias:
            yield from (f"in place: {out} is {source}" for out, source in self._pairs())

    def _reversed_strides(self) -> list[str]:
        """Return the strides that may be negative: signed ones, of pointers only."""
        described = [
            term.stride for terms in self.roles.strides.values() for term in terms if term.rows
        ]
        return [
            name
            for name in self.stride_names
            if self.scalars[name].is_signed and name not in described
        ]

    def _long_labels(self) -> Iterator[str]:
        """Yield a label for each extent tiled by programs, with no loop over it."""
        excluded = (*self.roles.loops, *self.conditions.choices, *self.conditions.fixed)
        for name in self.roles.axes.get(0, ()):
            if name in excluded or name not in self.scalars or _is_extent(name):
                continue
            if self.roles.extents.get(name, 1) > 1:
                yield f"long: {name}"
                if self.scalars[name].bits == 64:
                    yield f"longer: {name}"

    def _pairs(self) -> Iterator[tuple[str, str]]:
        """Yield the pairs of pointers allowed to share memory: one written, the other read."""
        params = zip(self.kernel.params, self.kernel.body.args, strict=True)
        kinds = {i.name: (arg.type, i) for i, arg in params if isinstance(arg.type, PointerType)}
        for out in self.roles.written:
            for source in self.roles.read:
                if out == source or out not in kinds or source not in kinds:
                    continue
                if out in self.roles.locks or source in self.roles.locks:
                    continue  # programs would spin on data
                (left, out_info), (right, info) = kinds[out], kinds[source]
                is_same = (
                    not out_info.noalias
                    and not info.noalias
                    and left == right
                    and out_info.divisibility == info.divisibility
                )
                if is_same and source not in self.roles.indices:
                    yield out, source

    def is_optional(self, index: int) -> bool:
        """Return whether a launch may make no sense for a correct kernel."""
        return self.labels[index].startswith(("far", BACKWARDS, "long", "in place", "float"))

    def spacings(self, index: int) -> Sequence[Spacing]:
        """Return the spacings of rows to try in order."""
        if self.labels[index].startswith(("in place", "long")):
            return NEAR[:1]  # more room changes nothing
        return FAR if self.labels[index] in ("far", BACKWARDS) else NEAR

    def launch(self, index: int, spacing: Spacing = NEAR[0]) -> Launch | None:
        """Return the launch for a label, None if no arguments satisfy the conditions."""
        label = self.labels[index]
        rng = np.random.default_rng((self.seed, index))
        base = self._other_values(index, rng)
        best: tuple[Values, tuple[int, ...]] | None = None
        most = (-1, 0)
        for trials in self._trials(index):
            candidate = self._first_valid(
                ({**base, **extents} for extents in trials), index, spacing
            )
            # Prefer deep loops, then few programs.
            if candidate is not None:
                worth = self._num_deep_loops(label, *candidate), -math.prod(candidate[1])
                best, most = (candidate, worth) if worth > most else (best, most)
            if most == (self._num_loops, -1):
                break
        if best is None:
            return None
        values, grid = self._shrink_deep(best, index, spacing) if label == "deep" else best
        out, _, source = label.removeprefix("in place: ").partition(" is ")
        return Launch(
            label,
            scalars={name: values[name] for name in self.scalars},
            grid=grid,
            seed=int(rng.integers(1 << 30)),
            index_high=min(self._width(values), _MAX_INDEX) + 1,
            misaligned=self._is_free and index % 2 == 1,
            in_step=not is_deep(label) and (index % 3 != 1 or label not in CLASSES),
            is_special=label == "special",
            is_sparse=label in ("far", BACKWARDS, "persistent")
            or spacing == NEAR[-1]
            or max(self._integers(values).values(), default=0) >= _FAR_APART,
            aliases={out: source} if label.startswith("in place") else {},
            programs=self._programs_to_run(label, grid),
            apart=self._apart(values, spacing) if label == "far" else 0,
        )

    def _apart(self, values: Values, spacing: Spacing) -> int:
        """Return the distance of each tensor's last row from its first; 0 if a guard forbids it."""
        integers = self._integers(values)
        step = spacing.far * FAR_ELEMS // 32 * 32
        strides = {
            f"{info.name}.strides[{axis}]": step
            for info, arg in zip(self.kernel.params, self.kernel.body.args, strict=True)
            if isinstance(arg.type, DescriptorType)
            for axis in range(len(arg.type.block) - 1)
        }
        return step if strides and self.conditions.admits({**integers, **strides}) else 0

    def _first_valid(
        self, trials: Iterator[Values], index: int, spacing: Spacing
    ) -> tuple[Values, tuple[int, ...]] | None:
        """Return the first trial within the conditions, completed, and its grid."""
        label = self.labels[index]
        limit = self.conditions.max_programs
        if label == "persistent" and not self.conditions.may_be_left_out:
            limit = max(limit, _MAX_PERSISTENT_PROGRAMS)
        for trial in trials:
            chosen = self._complete(trial, index, spacing)
            if chosen is None:
                continue
            values, grid = chosen
            count = len(self._programs_to_run(label, grid)) or math.prod(grid)
            fits = count <= limit and is_launchable(grid, self.conditions.num_ctas)
            if not fits or not self._is_admitted(values):
                continue
            if label != "persistent" or self._takes_several_tiles(values, grid):
                return chosen
        return None

    def _num_deep_loops(self, label: str, values: Values, grid: Sequence[int]) -> int:
        """Count the last program's deep loops.

        A deep loop reuses each of its stages; for a float argument it runs more than once.
        """
        count = 0
        for op, ends in self._loop_ends(values, grid):
            lower, upper, step = (0 if end is None else end for end in ends)
            span = step + 1 if is_float(label) else self._deep_trips(op.num_stages) * step
            count += None not in ends and upper - lower >= span
        return count

    def _loop_ends(
        self, values: Values, grid: Sequence[int]
    ) -> Iterator[tuple[scf.For, list[int | None]]]:
        """Yield the loops, each with its lower end, upper end and step in the last program."""
        launch = self._launch_values(values, grid)
        for op in self.kernel.walk():
            if isinstance(op, scf.For):
                yield op, [value_in_last(value, launch) for value in (op.lower, op.upper, op.step)]

    def _deep_trips(self, num_stages: int) -> int:
        """Return the trip count to reuse each stage twice; 0 stages mean the default."""
        return 2 * (num_stages or self.conditions.num_stages) + 1

    def _shrink_deep(
        self, smallest: tuple[Values, tuple[int, ...]], index: int, spacing: Spacing
    ) -> tuple[Values, tuple[int, ...]]:
        """Shrink a launch while as many loops run deep."""
        # Allow for one more masked block: its iterations may be peeled.
        if any(None in ends for _, ends in self._loop_ends(*smallest)):
            return smallest
        most = self._num_deep_loops("deep", *smallest)
        for name, loop in self.roles.loops.items():
            if name not in smallest[0] or name in self.conditions.choices:
                continue
            blocks = self._deep_trips(loop.stages) - -self.roles.extents.get(name, 1) // loop.block
            size = part_beyond(blocks, loop.block, self.divisors[name])
            if size < smallest[0][name]:
                smaller = self._first_valid(iter([{**smallest[0], name: size}]), index, spacing)
                if smaller is not None and self._num_deep_loops("deep", *smaller) >= most:
                    smallest = smaller
        return smallest

    def _integers(self, values: Mapping[str, Scalar]) -> dict[str, int]:
        integers = {name: value for name, value in values.items() if isinstance(value, int)}
        return {**integers, **self.conditions.fixed}

    def _is_admitted(self, values: Mapping[str, Scalar]) -> bool:
        integers = self._integers(values)
        promised = all(value % self.divisors.get(name, 1) == 0 for name, value in integers.items())
        return promised and self.conditions.admits(integers)

    # ---- extents -----------------------------------------------------------------------------

    def _trials(self, index: int) -> Iterator[Iterator[Values]]:
        """Yield groups of trial values of all extents, the preferred ones first.

        From each group the first trial within the conditions competes. A loop bounded
        by several extents, as in causal attention, runs deep if any one is large. So each
        extent also gets a group of its own, which needs fewer programs.
        """
        listed = [name for name, choice in self.conditions.choices.items() if choice.values]
        names = [n for n in self.scalars if n in self.roles.extents or n in listed]
        blocked = [name for name in names if self.roles.extents.get(name, 1) > 1]
        ranks = {name: position for position, name in enumerate(blocked)}
        names.sort(key=lambda name: name in self.roles.loops)  # others advance first
        options = {
            n: self._options(n, position, ranks.get(n, 0), index)
            for position, n in enumerate(names)
        }
        options = {name: self._relevant_values(name, values) for name, values in options.items()}
        loops = [name for name in names if name in self.roles.loops and name not in listed]
        if not is_deep(self.labels[index]) and not is_float(self.labels[index]):
            yield self._products(options)
            return
        # The first names vary slowest; the last are the most expendable.
        names.sort(key=lambda n: (n not in loops, _is_extent(n) and n not in blocked))
        # A loop may run deep for only some of the user's values.
        listed_loops = [name for name in names if name in self.roles.loops and name in listed]
        every = itertools.product(
            *([(name, [value]) for value in options[name]] for name in listed_loops)
        )
        listings = list(itertools.islice(every, _MAX_LISTINGS))
        for deep in [*([name] for name in loops if len(loops) > 1), loops]:
            shallow = {n: self._shallow(n) for n in loops if n not in deep}
            for listing in listings if is_deep(self.labels[index]) else [()]:
                yield self._products({**{n: options[n] for n in names}, **shallow, **dict(listing)})

    def _relevant_values(self, name: str, values: Sequence[Scalar]) -> Sequence[Scalar]:
        """Return the values of an argument to try: only one, if no condition reads it."""
        named = self.conditions.named
        is_free = named is not None and name not in named
        divisor = self.divisors[name]
        fits = [v for v in values if v == _COVERED or isinstance(v, float) or v % divisor == 0]
        is_any = is_free and name not in self.roles.tiled and name not in self.roles.loops
        return (fits or values)[: 1 if is_any else None]

    def _shallow(self, name: str) -> list[Scalar]:
        block, divisor = self.roles.extents[name], self.divisors[name]
        return [just_below(1, block, divisor), extent_of("full", block, divisor)]

    def _products(self, options: Mapping[str, Sequence[Scalar]]) -> Iterator[Values]:
        for values in itertools.islice(itertools.product(*options.values()), _MAX_TRIALS):
            trial = dict(zip(options, values, strict=True))
            largest = max([1, *(v for v in trial.values() if isinstance(v, int))])
            for name, value in trial.items():
                if value == _COVERED:
                    trial[name] = -(-largest // self.divisors[name]) * self.divisors[name]
            yield trial

    def _options(self, name: str, position: int, rank: int, index: int) -> list[Scalar]:
        choice = self.conditions.choices.get(name)
        if choice is not None and choice.values:
            label = self.labels[index]
            if is_float(label) or label == "sums":  # shows at small sizes; in long loops
                return sorted(choice.values, reverse=label == "sums" and name in self.roles.loops)
            start = index % len(choice.values)
            return [*choice.values[start:], *choice.values[:start]]
        block, divisor = self.roles.extents[name], self.divisors[name]
        if self.is_whole:
            return [extent_of("full", block, divisor)]
        kind, _, long_name = self.labels[index].partition(": ")
        if is_long(kind) and name == long_name:
            # Leave room beyond the last tile, for kernels rounding up.
            counts = long_blocks(LONG[kind] // block - 1, self.conditions.num_ctas)
            return [last_in_part(count, block, divisor, 0) for count in counts]
        preferred = self._preferred_extents(self.labels[index], name, position)
        if preferred and self.labels[index] not in CLASSES:
            index %= len(CLASSES) - 1  # any class but "none"
        order = [*preferred, *candidates(index, rank, block, divisor)]
        least = int(_is_extent(name) or name in self.roles.mapped)  # tensors have no empty axes
        return list(dict.fromkeys(v if v == _COVERED else max(least, v) for v in order))

    def _preferred_extents(self, label: str, name: str, position: int) -> list[int]:
        """Return the preferred extents for a single-purpose launch."""
        block, divisor = self.roles.extents[name], self.divisors[name]
        loop = self.roles.loops.get(name)
        is_free = _is_extent(name) and loop is None and name not in self.roles.tiled
        match label:
            case "deep" | "sums" if loop is not None:
                least = LONG_SUM // block if label == "sums" else 0
                return [part_beyond(max(least, self._deep_trips(loop.stages)), block, divisor)]
            case "deep" | "sums" if is_free and block == 1:
                return [_COVERED, divisor]  # it may count programs
            case _ if is_float(label) and is_free and block > 1:
                return [_COVERED]
            case _ if is_float(label) and loop is not None:
                return [last_in_part(2, min(loop.block, block), divisor, position)]
            case _ if is_float(label) and self.roles.loops:
                return [
                    last_in_part(1, block, divisor, position)
                ]  # other launches test several tiles
            case "deep" | "sums" | "persistent" if is_free:
                return [_COVERED]
            case "deep" | "sums":
                return [just_below(1, block, divisor)]
            case "persistent" if name in self.roles.tiled:
                return self._preferred_tiles(name)
            case "apart" if loop is None:
                return [last_in_part(APART[position % len(APART)], block, divisor, position)]
            case "far" | "backwards":
                return [just_below(4 if block == 1 else 2, block, divisor)]
            case _ if is_long(label):
                return [extent_of("one", block, divisor)]
            case _ if label not in CLASSES:
                return [last_in_part(2, block, divisor, position)]
            case _:
                return []

    def _preferred_tiles(self, name: str) -> list[int]:
        """Return extents in tiles: a few, and along the last enough for three per program."""
        block, divisor = self.roles.extents[name], self.divisors[name]
        few = just_below(3, block, divisor)
        if name != self.roles.tiled[-1]:
            return [few]
        sizes: list[int] = []
        for loop in self.roles.persistent:
            step = value_at(loop.step, LaunchValues((), {}))
            for distance in _PROGRAMS if step is None else (step,):
                tiles = 2 * self.conditions.num_groups * distance + 2
                many = -(-tiles // 3 ** (len(self.roles.tiled) - 1))
                sizes.append(just_below(max(3, many), block, divisor))
        return sorted(sizes)

    def _takes_several_tiles(self, values: Values, grid: Sequence[int]) -> bool:
        launch = self._launch_values(values, grid)
        for loop in self.roles.persistent:
            tiles, step = value_at(loop.upper, launch), value_at(loop.step, launch)
            if tiles is None or step is None:
                continue
            if tiles > 2 * self.conditions.num_groups * step:
                return True
        return False

    def _launch_values(self, values: Values, grid: Sequence[int]) -> LaunchValues:
        integers = self._integers(values)
        scalars: dict[Value, int] = {}
        extents: dict[tuple[Value, int], int] = {}
        for info, arg in zip(self.kernel.params, self.kernel.body.args, strict=True):
            if info.name in integers:
                scalars[arg] = integers[info.name]
            elif isinstance(arg.type, DescriptorType):
                for axis in range(len(arg.type.block)):
                    extents[arg, axis] = integers[f"{info.name}.shape[{axis}]"]
        return LaunchValues(grid, scalars, extents)

    def _programs_to_run(self, label: str, grid: tuple[int, ...]) -> tuple[int, ...]:
        """Return the programs to run of a large grid, empty for all."""
        total = math.prod(grid)
        may_be_left_out = label == "persistent" or is_long(label)
        if not (may_be_left_out and self.conditions.may_be_left_out) or total <= 3:
            return ()
        return (0, 1, total - 1)

    # ---- other arguments --------------------------------------------------------------------

    def _other_values(self, index: int, rng: np.random.Generator) -> Values:
        values: Values = {}
        position = 0
        odd, _, size = self.labels[index].removeprefix("float: ").partition(" is ")
        for name, kind in self.scalars.items():
            if kind.is_float:
                factor = FLOATS[size] if name == odd and is_float(self.labels[index]) else 1.0
                sign = -1.0 if math.isinf(factor) and self.seed % 2 else 1.0
                drawn = float(rng.uniform(0.5, 1.5))
                values[name] = math.nan if math.isnan(factor) else drawn * sign * factor
            elif kind.is_bool:
                values[name] = index % 2
            else:
                values[name] = _OTHERS[(index + position) % len(_OTHERS)] * self.divisors[name]
                position += name not in self.roles.extents
        return values

    def _complete(
        self, values: Values, index: int, spacing: Spacing
    ) -> tuple[Values, tuple[int, ...]] | None:
        """Return the values completed with strides and user functions, and the grid."""
        # Twice: a grid may use a stride, strides depend on the grid, and functions on everything.
        first = self._compute(values)
        grid = self._grid(first, index)
        if grid is None:
            return None
        if not self.stride_names and not self._has_functions:
            return first, grid
        rows = Rows(
            *(self.kernel, self.roles, self.divisors, self.stride_names),
            *(self._integers(first), grid, self._width(first)),
        )
        is_padded = index % 2 == 1 or self.labels[index] not in CLASSES
        strides = rows.strides(spacing, is_padded=is_padded)
        if self.labels[index] == BACKWARDS:
            strides.update({name: -strides[name] for name in self._reversed_strides()})
        final = self._compute({**first, **strides})
        grid = self._grid(final, index)
        return None if grid is None else (final, grid)

    def _compute(self, values: Values) -> Values:
        """Add the user's functions of the other values."""
        complete = dict(values)
        for name, choice in self.conditions.choices.items():
            if choice.function is not None and name in self.scalars:
                complete[name] = choice.function(self._integers(complete))
        return complete

    def _grid(self, values: Values, index: int) -> tuple[int, ...] | None:
        if self.conditions.grid is not None:
            grid = self.conditions.grid(self._integers(values))
            return grid if all(extent >= 0 for extent in grid) else None
        integers = self._integers(values)
        axes = range(max(self.roles.axes, default=0) + 1)
        return tuple(self._programs(axis, integers, index) for axis in axes)

    def _programs(self, axis: int, integers: Mapping[str, int], index: int) -> int:
        """Return how many programs an axis seems to need."""
        if axis not in self.roles.axes:
            return 1
        blocks = [
            -(-integers[name] // self.roles.extents[name])
            for name in self.roles.axes[axis]
            if name in integers and self.roles.extents.get(name, 1) > 1
        ]
        if blocks:
            return math.prod(blocks)
        return COUNTS.get(self.labels[index], (2, 2, 2))[axis]

    def _width(self, values: Values) -> int:
        """Return the largest number of elements in a row."""
        integers = self._integers(values)
        extents = [integers[name] for name in self.roles.extents if name in integers]
        is_masked = any(block > 1 for block in self.roles.extents.values())
        return max([1, *extents, *([] if is_masked else [self.roles.largest_tile])])


def _is_extent(name: str) -> bool:
    """Return whether a value is one of a tensor's extents, such as `x.shape[0]`."""
    return "." in name

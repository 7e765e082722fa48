"""The launches at which a kernel is verified: arguments where compilers are wrong.

Each extent goes through the classes of `extents.py` in turn, several extents out of step, so that a
few launches bring each class of each extent. Then come launches of one purpose each:

    deep        loops run more often than they have stages, twice and more: every slot is used again
    sums        the same of thousands of positive numbers, where tensor cores add up fp8 with few bits
    apart       counts of blocks, rows and programs differ from each other
    persistent  programs that take one tile after the other take three of them, or groups two each
    special     buffers hold NaN, infinities, zeros, subnormals, ties, the largest numbers
    float       an argument that is a float is negative, minus zero, large, infinite, or NaN
    far         offsets of rows need more than 32 bits
    long        an extent is almost 2**31, of whose programs a few run; longer, if it has 64 bits
    in place    an argument that is written is the same memory as one that is read

Promises of divisibility are kept, and where none is made it does not hold.

Invariant: the arguments of a launch satisfy the conditions it is chosen under, at most
`max_programs` of its programs run, and equal seeds choose equal launches.
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
from aotc.verify.checks.integers import Known, value_at, value_in_last
from aotc.verify.checks.launch import BACKWARDS, Launch, Scalar
from aotc.verify.checks.strides import FAR, FAR_ELEMS, NEAR, Rows, Spacing

Values: TypeAlias = dict[str, Scalar]

DEFAULT_MAX_PROGRAMS = 32
DEFAULT_NUM_STAGES = 3

_MAX_TRIALS, _MAX_LISTINGS, _MAX_INDEX = 4096, 8, 512
_MAX_PERSISTENT_PROGRAMS = 256
_OTHERS = (1, 2, 3, 5, 1, 2)
_FAR_APART = 1 << 20  # elements: so many of each program may be too much to hold
_PROGRAMS = (2, 8, 132, 148)  # of persistent kernels that do not say how many there are
_COVERED = -1  # an extent of a tensor that is to be as large as any other


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
    of `divisors`. Both look at no argument but those `named`; None stands for all. `fixed` are
    arguments whose value is compiled in. Loops have `num_stages` unless they say otherwise, and
    `num_groups` of warps take a program's tiles in turn. Where some programs of a grid
    `may_be_left_out`, a launch may have more than `max_programs` of which only some run. Without
    `may_alias` no two arguments are one memory. `num_ctas` run a program.
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


@dataclass(slots=True)
class Chooser:
    """Choose launches of a kernel, one for each label; equal seeds, equal launches."""

    kernel: Kernel
    roles: Roles
    conditions: Conditions
    seed: int
    scalars: dict[str, ScalarType] = field(default_factory=dict[str, ScalarType])
    divisors: dict[str, int] = field(default_factory=dict[str, int])
    labels: tuple[str, ...] = ()
    stride_names: list[str] = field(default_factory=list[str])  # of those that are ours to choose
    _num_loops: int = 0  # of the kernel
    _has_functions: bool = False  # whether the user gives some as functions of others
    _is_free: bool = False  # whether a pointer may be misaligned
    _has_rows: bool = False  # whether a tensor has several axes

    def __post_init__(self) -> None:
        for info, arg in zip(self.kernel.params, self.kernel.body.args, strict=True):
            if isinstance(arg.type, PointerType):
                self._is_free |= info.divisibility == 1
            if isinstance(arg.type, ScalarType):
                self.scalars[info.name] = arg.type
                wanted = self.conditions.divisors.get(info.name, 1)
                mapped = self.roles.mapped.get(info.name, 1)
                self.divisors[info.name] = math.lcm(info.divisibility, wanted, mapped)
            elif isinstance(arg.type, DescriptorType):
                last = len(arg.type.block) - 1
                self._has_rows |= last > 0
                for axis in range(last + 1):
                    self.scalars[f"{info.name}.shape[{axis}]"] = I32
                    # The launcher wants rows of whole 16-byte pieces.
                    elems = max(1, TENSOR_ALIGNMENT_BYTES // arg.type.element.size_bytes)
                    self.divisors[f"{info.name}.shape[{axis}]"] = elems if axis == last else 1
        self._num_loops = sum(isinstance(op, scf.For) for op in self.kernel.walk())
        taken = (*self.roles.extents, *self.conditions.choices)
        strides = self.roles.stride_names
        self.stride_names = [n for n in self.scalars if n in strides and n not in taken]
        choices = self.conditions.choices.values()
        self._has_functions = any(choice.function is not None for choice in choices)
        lengths = [len(choice.values) for choice in self.conditions.choices.values()]
        regular = itertools.islice(itertools.cycle(CLASSES), max([len(CLASSES), *lengths]))
        self.labels = (*regular, *self._more_labels())

    @property
    def count(self) -> int:
        """Number of launches to choose; several may turn out the same."""
        return len(self.labels)

    def _more_labels(self) -> Iterator[str]:
        """Yield the launches of one purpose that this kernel has a use for."""
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
                yield BACKWARDS  # room before pointers is a hole only in an emulator's memory
            yield from self._long_labels()
        if self.conditions.may_alias:
            yield from (f"in place: {out} is {source}" for out, source in self._pairs())

    def _reversed_strides(self) -> list[str]:
        """Return the strides that may be negative: those of pointers alone, with a sign."""
        described = [
            term.stride for terms in self.roles.strides.values() for term in terms if term.rows
        ]
        return [
            name
            for name in self.stride_names
            if self.scalars[name].is_signed and name not in described
        ]

    def _long_labels(self) -> Iterator[str]:
        """Yield a launch for each extent that programs divide into tiles and no loop goes through."""
        taken = (*self.roles.loops, *self.conditions.choices, *self.conditions.fixed)
        for name in self.roles.axes.get(0, ()):
            if name in taken or name not in self.scalars or _is_extent(name):
                continue
            if self.roles.extents.get(name, 1) > 1:
                yield f"long: {name}"
                if self.scalars[name].bits == 64:
                    yield f"longer: {name}"

    def _pairs(self) -> Iterator[tuple[str, str]]:
        """Yield the pairs of pointers that may be one memory: one is written, the other read."""
        params = zip(self.kernel.params, self.kernel.body.args, strict=True)
        kinds = {i.name: (arg.type, i) for i, arg in params if isinstance(arg.type, PointerType)}
        for out in self.roles.written:
            for source in self.roles.read:
                if out == source or out not in kinds or source not in kinds:
                    continue
                if out in self.roles.locks or source in self.roles.locks:
                    continue  # programs would wait for what data happens to be
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
        """Return whether a launch need not mean anything to a kernel that is right."""
        return self.labels[index].startswith(("far", BACKWARDS, "long", "in place", "float"))

    def spacings(self, index: int) -> Sequence[Spacing]:
        """Return how far apart rows are to be set, the first that gives a result is taken."""
        if self.labels[index].startswith(("in place", "long")):
            return NEAR[:1]  # more room changes nothing
        return FAR if self.labels[index] in ("far", BACKWARDS) else NEAR

    def launch(self, index: int, spacing: Spacing = NEAR[0]) -> Launch | None:
        """Return the launch for a label, None if no arguments of it satisfy the conditions."""
        label = self.labels[index]
        rng = np.random.default_rng((self.seed, index))
        others = self._others(index, rng)
        best: tuple[Values, tuple[int, ...]] | None = None
        most = (-1, 0)
        for trials in self._trials(index):
            found = self._first(({**others, **extents} for extents in trials), index, spacing)
            # Of launches whose loops run as deep, one of fewer programs.
            if found is not None:
                worth = self._num_deep_loops(label, *found), -math.prod(found[1])
                best, most = (found, worth) if worth > most else (best, most)
            if most == (self._num_loops, -1):
                break
        if best is None:
            return None
        values, grid = self._least_deep(best, index, spacing) if label == "deep" else best
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
        """Return how far the last row of each tensor is from its first; 0 if a guard forbids it."""
        known = self._integers(values)
        step = spacing.far * FAR_ELEMS // 32 * 32
        strides = {
            f"{info.name}.strides[{axis}]": step
            for info, arg in zip(self.kernel.params, self.kernel.body.args, strict=True)
            if isinstance(arg.type, DescriptorType)
            for axis in range(len(arg.type.block) - 1)
        }
        return step if strides and self.conditions.admits({**known, **strides}) else 0

    def _first(
        self, trials: Iterator[Values], index: int, spacing: Spacing
    ) -> tuple[Values, tuple[int, ...]] | None:
        """Return the first trial that satisfies the conditions, completed, and its grid."""
        label = self.labels[index]
        limit = self.conditions.max_programs
        if label == "persistent" and not self.conditions.may_be_left_out:
            limit = max(limit, _MAX_PERSISTENT_PROGRAMS)
        for trial in trials:
            chosen = self._completed(trial, index, spacing)
            if chosen is None:
                continue
            values, grid = chosen
            count = len(self._programs_to_run(label, grid)) or math.prod(grid)
            fits = count <= limit and is_launchable(grid, self.conditions.num_ctas)
            if not fits or not self._admitted(values):
                continue
            if label != "persistent" or self._takes_several_tiles(values, grid):
                return chosen
        return None

    def _num_deep_loops(self, label: str, values: Values, grid: Sequence[int]) -> int:
        """Return how many loops of the last program use each stage again, for a float run more than once."""
        count = 0
        for op, ends in self._loop_ends(values, grid):
            lower, upper, step = (0 if end is None else end for end in ends)
            wanted = step + 1 if is_float(label) else self._deep_trips(op.num_stages) * step
            count += None not in ends and upper - lower >= wanted
        return count

    def _loop_ends(
        self, values: Values, grid: Sequence[int]
    ) -> Iterator[tuple[scf.For, list[int | None]]]:
        """Yield the loops, and where each begins and ends, and its step, in the last program."""
        known = self._known(values, grid)
        for op in self.kernel.walk():
            if isinstance(op, scf.For):
                yield op, [value_in_last(value, known) for value in (op.lower, op.upper, op.step)]

    def _deep_trips(self, num_stages: int) -> int:
        """Return how often a loop runs to use each of its stages, 0 for all loops', twice more."""
        return 2 * (num_stages or self.conditions.num_stages) + 1

    def _least_deep(
        self, found: tuple[Values, tuple[int, ...]], index: int, spacing: Spacing
    ) -> tuple[Values, tuple[int, ...]]:
        """Return a smaller launch at which as many loops run deep, else the one that was found."""
        # One block of what it is compared with is added: iterations for masks may be peeled.
        if any(None in ends for _, ends in self._loop_ends(*found)):
            return found
        most = self._num_deep_loops("deep", *found)
        for name, loop in self.roles.loops.items():
            if name not in found[0] or name in self.conditions.choices:
                continue
            blocks = self._deep_trips(loop.stages) - -self.roles.extents.get(name, 1) // loop.block
            size = part_beyond(blocks, loop.block, self.divisors[name])
            if size < found[0][name]:
                smaller = self._first(iter([{**found[0], name: size}]), index, spacing)
                if smaller is not None and self._num_deep_loops("deep", *smaller) >= most:
                    found = smaller
        return found

    def _integers(self, values: Mapping[str, Scalar]) -> dict[str, int]:
        known = {name: value for name, value in values.items() if isinstance(value, int)}
        return {**known, **self.conditions.fixed}

    def _admitted(self, values: Mapping[str, Scalar]) -> bool:
        known = self._integers(values)
        promised = all(value % self.divisors.get(name, 1) == 0 for name, value in known.items())
        return promised and self.conditions.admits(known)

    # ---- extents -----------------------------------------------------------------------------

    def _trials(self, index: int) -> Iterator[Iterator[Values]]:
        """Yield groups of values of all extents, in each the ones that are wanted first.

        The best of each group's first that satisfies the conditions is to be taken. Where a loop is
        bounded by several extents, as that of causal attention, it need not run deep for each of
        them to be large; so there is a group for each alone, which takes fewer programs.
        """
        listed = [name for name, choice in self.conditions.choices.items() if choice.values]
        names = [n for n in self.scalars if n in self.roles.extents or n in listed]
        blocked = [name for name in names if self.roles.extents.get(name, 1) > 1]
        ranks = {name: at for at, name in enumerate(blocked)}
        names.sort(key=lambda name: name in self.roles.loops)  # so that others are counted first
        options = {n: self._options(n, at, ranks.get(n, 0), index) for at, n in enumerate(names)}
        options = {name: self._that_matter(name, values) for name, values in options.items()}
        loops = [name for name in names if name in self.roles.loops and name not in listed]
        if not is_deep(self.labels[index]) and not is_float(self.labels[index]):
            yield self._products(options)
            return
        # What varies first is what a launch can best do without.
        names.sort(key=lambda n: (n not in loops, _is_extent(n) and n not in blocked))
        # Of values that the user lists, others may let a loop run deep where these do not.
        given = [name for name in names if name in self.roles.loops and name in listed]
        every = itertools.product(*([(name, [value]) for value in options[name]] for name in given))
        listings = list(itertools.islice(every, _MAX_LISTINGS))
        for deep in [*([name] for name in loops if len(loops) > 1), loops]:
            shallow = {n: self._shallow(n) for n in loops if n not in deep}
            for listing in listings if is_deep(self.labels[index]) else [()]:
                yield self._products({**{n: options[n] for n in names}, **shallow, **dict(listing)})

    def _that_matter(self, name: str, values: Sequence[Scalar]) -> Sequence[Scalar]:
        """Return which values of an argument a launch may need: one, if no condition names it."""
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

    def _options(self, name: str, at: int, rank: int, index: int) -> list[Scalar]:
        chosen = self.conditions.choices.get(name)
        if chosen is not None and chosen.values:
            label = self.labels[index]
            if is_float(label) or label == "sums":  # shows at small sizes; in long loops
                return sorted(chosen.values, reverse=label == "sums" and name in self.roles.loops)
            start = index % len(chosen.values)
            return [*chosen.values[start:], *chosen.values[:start]]
        block, divisor = self.roles.extents[name], self.divisors[name]
        kind, _, long_name = self.labels[index].partition(": ")
        if is_long(kind) and name == long_name:
            # Beyond the last tile there is room for what a kernel adds to round up.
            counts = long_blocks(LONG[kind] // block - 1, self.conditions.num_ctas)
            return [last_in_part(count, block, divisor, 0) for count in counts]
        wanted = self._wanted(self.labels[index], name, at)
        if wanted and self.labels[index] not in CLASSES:
            index %= len(CLASSES) - 1  # any class but that of nothing
        order = [*wanted, *candidates(index, rank, block, divisor)]
        least = int(_is_extent(name) or name in self.roles.mapped)  # tensors have no empty axes
        return list(dict.fromkeys(v if v == _COVERED else max(least, v) for v in order))

    def _wanted(self, label: str, name: str, at: int) -> list[int]:
        """Return what a launch of one purpose wants an extent to be."""
        block, divisor = self.roles.extents[name], self.divisors[name]
        loop = self.roles.loops.get(name)
        is_free = _is_extent(name) and loop is None and name not in self.roles.tiled
        match label:
            case "deep" | "sums" if loop is not None:
                least = LONG_SUM // block if label == "sums" else 0
                return [part_beyond(max(least, self._deep_trips(loop.stages)), block, divisor)]
            case "deep" | "sums" if is_free and block == 1:
                return [_COVERED, divisor]  # it may be what counts programs
            case _ if is_float(label) and is_free and block > 1:
                return [_COVERED]
            case _ if is_float(label) and loop is not None:
                return [last_in_part(2, min(loop.block, block), divisor, at)]
            case _ if is_float(label) and self.roles.loops:
                return [last_in_part(1, block, divisor, at)]  # tiles apart show at other launches
            case "deep" | "sums" | "persistent" if is_free:
                return [_COVERED]
            case "deep" | "sums":
                return [just_below(1, block, divisor)]
            case "persistent" if name in self.roles.tiled:
                return self._tiles_wanted(name)
            case "apart" if loop is None:
                return [last_in_part(APART[at % len(APART)], block, divisor, at)]
            case "far" | "backwards":
                return [just_below(4 if block == 1 else 2, block, divisor)]
            case _ if is_long(label):
                return [extent_of("one", block, divisor)]
            case _ if label not in CLASSES:
                return [last_in_part(2, block, divisor, at)]
            case _:
                return []

    def _tiles_wanted(self, name: str) -> list[int]:
        """Return an extent in tiles: a few, of the last one so many that programs take three."""
        block, divisor = self.roles.extents[name], self.divisors[name]
        few = just_below(3, block, divisor)
        if name != self.roles.tiled[-1]:
            return [few]
        wanted: list[int] = []
        for loop in self.roles.persistent:
            step = value_at(loop.step, Known((), {}))
            for distance in _PROGRAMS if step is None else (step,):
                tiles = 2 * self.conditions.num_groups * distance + 2
                many = -(-tiles // 3 ** (len(self.roles.tiled) - 1))
                wanted.append(just_below(max(3, many), block, divisor))
        return sorted(wanted)

    def _takes_several_tiles(self, values: Values, grid: Sequence[int]) -> bool:
        known = self._known(values, grid)
        for loop in self.roles.persistent:
            tiles, step = value_at(loop.upper, known), value_at(loop.step, known)
            if tiles is None or step is None:
                continue
            if tiles > 2 * self.conditions.num_groups * step:
                return True
        return False

    def _known(self, values: Values, grid: Sequence[int]) -> Known:
        integers = self._integers(values)
        scalars: dict[Value, int] = {}
        extents: dict[tuple[Value, int], int] = {}
        for info, arg in zip(self.kernel.params, self.kernel.body.args, strict=True):
            if info.name in integers:
                scalars[arg] = integers[info.name]
            elif isinstance(arg.type, DescriptorType):
                for axis in range(len(arg.type.block)):
                    extents[arg, axis] = integers[f"{info.name}.shape[{axis}]"]
        return Known(grid, scalars, extents)

    def _programs_to_run(self, label: str, grid: tuple[int, ...]) -> tuple[int, ...]:
        """Return the programs of a large grid that run, empty for all."""
        total = math.prod(grid)
        may_be_left_out = label == "persistent" or is_long(label)
        if not (may_be_left_out and self.conditions.may_be_left_out) or total <= 3:
            return ()
        return (0, 1, total - 1)

    # ---- the rest ----------------------------------------------------------------------------

    def _others(self, index: int, rng: np.random.Generator) -> Values:
        values: Values = {}
        at = 0
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
                values[name] = _OTHERS[(index + at) % len(_OTHERS)] * self.divisors[name]
                at += name not in self.roles.extents
        return values

    def _completed(
        self, values: Values, index: int, spacing: Spacing
    ) -> tuple[Values, tuple[int, ...]] | None:
        """Return the values with strides and functions of others, and the grid."""
        # Twice: a grid may name a stride, strides depend on the grid, and functions on all.
        first = self._computed(values)
        grid = self._grid(first, index)
        if grid is None:
            return None
        if not self.stride_names and not self._has_functions:
            return first, grid
        rows = Rows(
            self.kernel,
            self.roles,
            self.divisors,
            self.stride_names,
            self._integers(first),
            grid,
            self._width(first),
        )
        is_padded = index % 2 == 1 or self.labels[index] not in CLASSES
        strides = rows.strides(spacing, is_padded=is_padded)
        if self.labels[index] == BACKWARDS:
            strides.update({name: -strides[name] for name in self._reversed_strides()})
        final = self._computed({**first, **strides})
        grid = self._grid(final, index)
        return None if grid is None else (final, grid)

    def _computed(self, values: Values) -> Values:
        """Return the values with those that the user gives as functions of the others."""
        done = dict(values)
        for name, choice in self.conditions.choices.items():
            if choice.function is not None and name in self.scalars:
                done[name] = choice.function(self._integers(done))
        return done

    def _grid(self, values: Values, index: int) -> tuple[int, ...] | None:
        if self.conditions.grid is not None:
            grid = self.conditions.grid(self._integers(values))
            return grid if all(extent >= 0 for extent in grid) else None
        known = self._integers(values)
        axes = range(max(self.roles.axes, default=0) + 1)
        return tuple(self._programs(axis, known, index) for axis in axes)

    def _programs(self, axis: int, known: Mapping[str, int], index: int) -> int:
        """Return how many programs an axis seems to need."""
        if axis not in self.roles.axes:
            return 1
        blocks = [
            -(-known[name] // self.roles.extents[name])
            for name in self.roles.axes[axis]
            if name in known and self.roles.extents.get(name, 1) > 1
        ]
        if blocks:
            return math.prod(blocks)
        return COUNTS.get(self.labels[index], (2, 2, 2))[axis]

    def _width(self, values: Values) -> int:
        """Return how many elements a row may have."""
        known = self._integers(values)
        extents = [known[name] for name in self.roles.extents if name in known]
        is_masked = any(block > 1 for block in self.roles.extents.values())
        return max([1, *extents, *([] if is_masked else [self.roles.largest_tile])])


def _is_extent(name: str) -> bool:
    """Return whether a value is one of a tensor's extents, such as `x.shape[0]`."""
    return "." in name

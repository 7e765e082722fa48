"""Axis analysis: facts about integers and addresses along each axis of a tile.

For every integer or pointer value it finds, axis by axis,

    contiguity c     elements come in runs of c that count up by one, each run starting at an
                     index divisible by c
    divisibility d   the first element of every such run is a multiple of d (bytes for a pointer)
    constancy k      elements come in aligned runs of k equal values

and, for scalars, the value itself if it is constant. All numbers are powers of two. Coalescing,
vector widths and the pipeline's `cp.async` widths all rest on it. It works on tile IR and on gpu IR
alike, since the ops are the same.

Invariant: every fact holds for all launches that keep the promises of the signature and the guards,
and divide numbers of 0 or more by positive ones alone. Unknown ops have no facts (1 everywhere), so a new op
is safe before it is precise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.dialects import arith, scf, tile
from aotc.ir.effects import Trait
from aotc.ir.params import GRID_SOURCES
from aotc.ir.types import PointerType, ScalarType, TileType, Type, element_of

# Divisibility of zero: as good as any relevant power of two.
_MAX_DIVISIBILITY = 1 << 30
_MAX_LOOP_ROUNDS = 8
_LIKELY_DIVISOR = 16
_MAX_STEP = 4

Facts = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AxisInfo:
    """The facts of one value; a scalar is a tile with one axis of extent 1."""

    contiguity: Facts
    divisibility: Facts
    constancy: Facts
    constant: int | None = None
    nonnegative: bool = False

    @property
    def rank(self) -> int:
        return len(self.contiguity)

    def divisible_at(self, axis: int, granularity: int) -> int:
        """Return a divisor of every element whose index is a multiple of `granularity`."""
        if granularity >= self.contiguity[axis]:
            return self.divisibility[axis]
        return gcd(self.divisibility[axis], granularity)

    def meet(self, other: AxisInfo) -> AxisInfo:
        """Return the facts common to both."""
        return AxisInfo(
            _gcds(self.contiguity, other.contiguity),
            tuple(
                gcd(
                    self.divisible_at(axis, gcd(self.contiguity[axis], other.contiguity[axis])),
                    other.divisible_at(axis, gcd(self.contiguity[axis], other.contiguity[axis])),
                )
                for axis in range(self.rank)
            ),
            _gcds(self.constancy, other.constancy),
            self.constant if self.constant == other.constant else None,
            self.nonnegative and other.nonnegative,
        )


def _gcds(left: Facts, right: Facts) -> Facts:
    return tuple(map(gcd, left, right))


def largest_power_of_two(value: int) -> int:
    """Return the largest power of two dividing `value`."""
    return min(value & -value, _MAX_DIVISIBILITY) if value else _MAX_DIVISIBILITY


def _shape(type_: Type) -> tuple[int, ...]:
    return type_.shape if isinstance(type_, TileType) else (1,)


def unknown(type_: Type) -> AxisInfo:
    """Return the facts of an unknown value."""
    unit_runs = (1,) * len(_shape(type_))
    return AxisInfo(unit_runs, unit_runs, unit_runs)


def constant(type_: Type, value: int) -> AxisInfo:
    """Return the facts of a constant `value`."""
    shape = _shape(type_)
    unit_runs = (1,) * len(shape)
    return AxisInfo(
        unit_runs, (largest_power_of_two(value),) * len(shape), shape, value, value >= 0
    )


class AxisAnalysis:
    """The facts of every value of a kernel; see the module docstring.

    `supposed` are facts of arguments assumed besides the promises of the signature. With
    `counts_steps`, runs may count up by a few, not by one.
    """

    def __init__(
        self,
        kernel: Kernel,
        supposed: Mapping[Value, AxisInfo] | None = None,
        *,
        counts_steps: bool = False,
    ) -> None:
        self.kernel = kernel
        self._counts_steps = counts_steps
        self._infos: dict[Value, AxisInfo] = {}
        guarded = {guard.removesuffix(" >= 0") for guard in kernel.guards}
        for info, arg in zip(kernel.params, kernel.body.args, strict=True):
            divisor = info.divisibility & -info.divisibility
            source = info.source or info.name
            nonnegative = source in guarded or source in GRID_SOURCES
            self._infos[arg] = AxisInfo((1,), (divisor,), (1,), nonnegative=nonnegative)
        self._infos |= supposed or {}
        self._likely: AxisAnalysis | None = None
        self._visit_block(kernel.body)

    def __getitem__(self, value: Value) -> AxisInfo:
        """Return the facts of `value`."""
        info = self._infos.get(value)
        return unknown(value.type) if info is None else info

    def likely(self, value: Value) -> AxisInfo:
        """Return facts of most elements of `value`: no more than a hint on their order.

        Quotients and remainders by arguments have runs, each long, whose ends are unknown.
        """
        if max(self[value].contiguity) > 1:
            return self[value]
        if self._likely is None:
            likely_facts = {
                arg: replace(
                    self[arg],
                    divisibility=(max(_LIKELY_DIVISOR, *self[arg].divisibility),),
                    nonnegative=True,
                )
                for arg in self.kernel.body.args
                if isinstance(arg.type, ScalarType) and arg.type.is_int
            }
            self._likely = AxisAnalysis(self.kernel, likely_facts, counts_steps=True)
        return self._likely[value]

    # -- control flow ----------------------------------------------------------

    def _visit_block(self, block: Block) -> None:
        for op in block:
            if isinstance(op, scf.For):
                self._visit_for(op)
            elif isinstance(op, scf.While):
                self._visit_while(op)
            elif isinstance(op, scf.If):
                for nested in op.blocks:
                    self._visit_block(nested)
                self._meet(op.outs, op.then.terminator.operands, op.orelse.terminator.operands)
            else:
                self._visit_op(op)

    def _visit_op(self, op: Op) -> None:
        rule = _RULES.get(type(op)) or (_same if op.has(Trait.SAME_VALUES) else None)
        if rule is None or not op.results:
            return
        value = op.results[0]
        if not _is_integral(value.type):
            return
        infos = [self[operand] for operand in op.operands]
        self._infos[value] = rule(op, infos)
        if self._counts_steps and isinstance(op, arith.Mul):
            self._infos[value] = _in_steps(self._infos[value], infos)

    def _visit_for(self, op: scf.For) -> None:
        lower, step = self[op.lower], self[op.step]
        start = gcd(lower.divisibility[0], step.divisibility[0])
        counts_up = lower.nonnegative and step.nonnegative
        self._infos[op.induction] = AxisInfo((1,), (start,), (1,), nonnegative=counts_up)
        self._fixpoint(op.carried, op.init, op.body, lambda: op.body.terminator.operands)
        self._meet(op.outs, op.init, op.body.terminator.operands)

    def _visit_while(self, op: scf.While) -> None:
        def run_both() -> Sequence[Value]:
            passed = op.before.terminator.operands[1:]
            for arg, value in zip(op.after.args, passed, strict=True):
                self._infos[arg] = self[value]
            self._visit_block(op.after)
            return op.after.terminator.operands

        self._fixpoint(op.before.args, op.init, op.before, run_both)
        passed = op.before.terminator.operands[1:]
        for out, value in zip(op.outs, passed, strict=True):
            self._infos[out] = self[value]

    def _fixpoint(
        self,
        args: Sequence[Value],
        init: Sequence[Value | None],
        body: Block,
        yielded: Callable[[], Sequence[Value]],
    ) -> None:
        """Start from the initial values and drop facts broken by an iteration."""
        for arg, value in zip(args, init, strict=True):
            if value is not None:
                self._infos[arg] = self[value]
        for _ in range(_MAX_LOOP_ROUNDS):
            self._visit_block(body)
            changed = False
            for arg, value in zip(args, yielded(), strict=True):
                met = self[arg].meet(self[value])
                changed |= met != self[arg]
                self._infos[arg] = met
            if not changed:
                return
        for arg in args:
            self._infos[arg] = unknown(arg.type)
        self._visit_block(body)

    def _meet(
        self, outs: Sequence[Value], left: Sequence[Value | None], right: Sequence[Value]
    ) -> None:
        for out, first, second in zip(outs, left, right, strict=True):
            if first is not None:
                self._infos[out] = self[first].meet(self[second])


def _is_integral(type_: Type) -> bool:
    element = element_of(type_)
    return isinstance(element, PointerType) or element.is_int


# ---- rules: one function an op ----------------------------------------------------------------

Rule = Callable[[Op, list[AxisInfo]], AxisInfo]


def _constant(op: Op, _: list[AxisInfo]) -> AxisInfo:
    assert isinstance(op, arith.Constant)
    return constant(op.type, int(op.value))


def _arange(op: Op, _: list[AxisInfo]) -> AxisInfo:
    assert isinstance(op, tile.Arange)
    start = largest_power_of_two(op.start)
    return AxisInfo((op.end - op.start,), (start,), (1,), nonnegative=op.start >= 0)


def _grid(op: Op, _: list[AxisInfo]) -> AxisInfo:
    return replace(unknown(op.results[0].type), nonnegative=True)


def _splat(op: Op, infos: list[AxisInfo]) -> AxisInfo:
    shape = _shape(op.results[0].type)
    unit_runs = (1,) * len(shape)
    return replace(
        infos[0],
        contiguity=unit_runs,
        divisibility=infos[0].divisibility * len(shape),
        constancy=shape,
    )


def _sum_facts(op: Op, left: AxisInfo, right: AxisInfo, scale: int, *, negate: bool) -> AxisInfo:
    """Facts of `left ± scale * right`."""
    shape = _shape(op.results[0].type)
    contiguity: list[int] = []
    divisibility: list[int] = []
    for axis in range(len(shape)):
        runs = gcd(left.contiguity[axis], right.constancy[axis])
        if not negate:
            runs = max(runs, gcd(left.constancy[axis], right.contiguity[axis]))
        contiguity.append(runs)
        divisibility.append(
            gcd(left.divisible_at(axis, runs), scale * right.divisible_at(axis, runs))
        )
    constancy = _gcds(left.constancy, right.constancy)
    nonnegative = left.nonnegative and right.nonnegative and not negate
    return AxisInfo(tuple(contiguity), tuple(divisibility), constancy, nonnegative=nonnegative)


def _add(op: Op, infos: list[AxisInfo]) -> AxisInfo:
    left, right = infos
    if left.constant is not None and right.constant is not None:
        return constant(op.results[0].type, left.constant + right.constant)
    if left.constant == 0:
        return right
    return _sum_facts(op, left, right, 1, negate=False)


def _sub(op: Op, infos: list[AxisInfo]) -> AxisInfo:
    left, right = infos
    if left.constant is not None and right.constant is not None:
        return constant(op.results[0].type, left.constant - right.constant)
    return _sum_facts(op, left, right, 1, negate=True)


def _addptr(op: Op, infos: list[AxisInfo]) -> AxisInfo:
    pointer = element_of(op.results[0].type)
    assert isinstance(pointer, PointerType)
    return _sum_facts(op, infos[0], infos[1], pointer.pointee.size_bytes, negate=False)


def _product(op: Op, left: AxisInfo, right: AxisInfo) -> AxisInfo:
    if left.constant is not None and right.constant is not None:
        return constant(op.results[0].type, left.constant * right.constant)
    if left.constant == 1:
        return right
    if right.constant == 1:
        return left
    unit_runs = (1,) * left.rank
    divisibility = tuple(
        min(left.divisible_at(axis, 1) * right.divisible_at(axis, 1), _MAX_DIVISIBILITY)
        for axis in range(left.rank)
    )
    return AxisInfo(
        unit_runs,
        divisibility,
        _gcds(left.constancy, right.constancy),
        nonnegative=left.nonnegative and right.nonnegative,
    )


def _in_steps(product: AxisInfo, infos: list[AxisInfo]) -> AxisInfo:
    """Keep the runs of a number multiplied by a small one."""
    for info, factor in (infos, infos[::-1]):
        if 1 < (factor.constant or 0) <= _MAX_STEP:
            return replace(product, contiguity=info.contiguity)
    return product


def _mul(op: Op, infos: list[AxisInfo]) -> AxisInfo:
    return _product(op, *infos)


def _shl(op: Op, infos: list[AxisInfo]) -> AxisInfo:
    left, right = infos
    if right.constant is None or not 0 <= right.constant < 31:
        return _constant_runs(op, infos)
    return _product(op, left, constant(op.results[0].type, 1 << right.constant))


def _div(op: Op, infos: list[AxisInfo]) -> AxisInfo:
    left, right = infos
    if right.constant == 1:
        return left
    if right.constant is not None and right.constant <= 0:
        return _constant_runs(op, infos)
    constancy = _gcds(left.constancy, right.constancy)
    if left.nonnegative:
        # Aligned runs cross no multiple of the divisor; below zero, truncation splits them. An
        # unknown divisor is taken to be positive, as in `signs`.
        constancy = tuple(
            max(
                run,
                gcd(
                    left.contiguity[axis],
                    left.divisibility[axis],
                    right.divisible_at(axis, 1),
                    right.constancy[axis],
                ),
            )
            for axis, run in enumerate(constancy)
        )
    if right.constant is None:
        return replace(
            unknown(op.results[0].type), constancy=constancy, nonnegative=left.nonnegative
        )
    divisor = largest_power_of_two(right.constant)
    divisibility = tuple(
        max(1, left.divisible_at(axis, 1) // divisor) if divisor == right.constant else 1
        for axis in range(left.rank)
    )
    return AxisInfo((1,) * left.rank, divisibility, constancy, nonnegative=left.nonnegative)


def _rem(op: Op, infos: list[AxisInfo]) -> AxisInfo:
    left, right = infos
    if right.constant == 1:
        return constant(op.results[0].type, 0)
    # x % m keeps counting up to the next multiple of m; runs from multiples of a common power of
    # two stay whole when m is a multiple of it. Below zero it jumps after multiples.
    contiguity = tuple(
        gcd(left.contiguity[axis], left.divisibility[axis], right.divisibility[axis])
        if left.nonnegative
        and right.constancy[axis] >= left.contiguity[axis]
        and right.contiguity[axis] == 1
        else 1
        for axis in range(left.rank)
    )
    divisibility = tuple(
        gcd(left.divisible_at(axis, contiguity[axis]), right.divisible_at(axis, 1))
        for axis in range(left.rank)
    )
    return AxisInfo(
        contiguity,
        divisibility,
        _gcds(left.constancy, right.constancy),
        nonnegative=left.nonnegative,
    )


def _shr(op: Op, infos: list[AxisInfo]) -> AxisInfo:
    left, right = infos
    if right.constant is None or not 0 <= right.constant < 31:
        return _constant_runs(op, infos)
    # A shift rounds down, also below zero: aligned runs are never split.
    divisor = 1 << right.constant
    axes = range(left.rank)
    runs = [gcd(left.contiguity[axis], left.divisibility[axis], divisor) for axis in axes]
    divisibility = tuple(max(1, left.divisible_at(axis, 1) // divisor) for axis in axes)
    constancy = tuple(map(max, left.constancy, runs))
    return AxisInfo((1,) * left.rank, divisibility, constancy, nonnegative=left.nonnegative)


def _and(op: Op, infos: list[AxisInfo]) -> AxisInfo:
    left, right = infos if infos[1].constant is not None else infos[::-1]
    facts = _bounded(op, infos)
    modulus = (right.constant or 0) + 1
    if modulus <= 1 or modulus & (modulus - 1):
        return facts
    # The remainder of a division rounded down: runs count up to a multiple of the modulus.
    axes = range(left.rank)
    contiguity = tuple(
        gcd(left.contiguity[axis], left.divisibility[axis], modulus) for axis in axes
    )
    divisibility = tuple(gcd(left.divisible_at(axis, contiguity[axis]), modulus) for axis in axes)
    return replace(facts, contiguity=contiguity, divisibility=divisibility)


def _bounded(op: Op, infos: list[AxisInfo]) -> AxisInfo:
    """Facts of a minimum, maximum or bitwise and."""
    facts = _constant_runs(op, infos)
    signs = [info.nonnegative for info in infos]
    nonnegative = all(signs) if isinstance(op, arith.Min) else any(signs)
    return replace(facts, nonnegative=nonnegative)


def _constant_runs(op: Op, infos: list[AxisInfo]) -> AxisInfo:
    """Facts of any function of the operands: constant where they all are."""
    base = unknown(op.results[0].type)
    constancy = infos[0].constancy
    for info in infos[1:]:
        constancy = _gcds(constancy, info.constancy)
    return AxisInfo(base.contiguity, base.divisibility, constancy)


def _compare(op: Op, infos: list[AxisInfo]) -> AxisInfo:
    assert isinstance(op, arith.Compare)
    left, right = infos
    facts = _constant_runs(op, infos)
    # A run from a multiple of g crosses a bound divisible by g only between groups of g, if
    # "crossing" is between bound - 1 and bound.
    if op.predicate in ("lt", "ge"):
        counting, bound = left, right
    elif op.predicate in ("gt", "le"):
        counting, bound = right, left
    else:
        return facts
    constancy = tuple(
        max(
            facts.constancy[axis],
            gcd(
                counting.contiguity[axis],
                counting.divisibility[axis],
                bound.divisible_at(axis, 1),
                bound.constancy[axis],
            ),
        )
        for axis in range(left.rank)
    )
    return AxisInfo(facts.contiguity, facts.divisibility, constancy)


def _select(_: Op, infos: list[AxisInfo]) -> AxisInfo:
    condition, if_true, if_false = infos
    met = if_true.meet(if_false)
    contiguity = _gcds(met.contiguity, condition.constancy)
    divisibility = tuple(
        gcd(if_true.divisible_at(a, contiguity[a]), if_false.divisible_at(a, contiguity[a]))
        for a in range(met.rank)
    )
    constancy = _gcds(met.constancy, condition.constancy)
    return replace(met, contiguity=contiguity, divisibility=divisibility, constancy=constancy)


def _cast(op: Op, infos: list[AxisInfo]) -> AxisInfo:
    source = element_of(op.operands[0].type)
    target = element_of(op.results[0].type)
    if isinstance(source, PointerType) or isinstance(target, PointerType):
        return _constant_runs(op, infos)
    if source.is_int and target.is_int and target.bits >= source.bits > 1:
        return infos[0]
    return _constant_runs(op, infos)


def _expand_dims(op: Op, infos: list[AxisInfo]) -> AxisInfo:
    assert isinstance(op, tile.ExpandDims)
    info, axis = infos[0], op.axis
    every = info.divisibility[0]
    for other in range(info.rank):
        every = gcd(every, info.divisible_at(other, 1))
    return replace(
        info,
        contiguity=_inserted(info.contiguity, axis, 1),
        divisibility=_inserted(info.divisibility, axis, every),
        constancy=_inserted(info.constancy, axis, 1),
    )


def _inserted(facts: Facts, axis: int, value: int) -> Facts:
    return (*facts[:axis], value, *facts[axis:])


def _broadcast(op: Op, infos: list[AxisInfo]) -> AxisInfo:
    info = infos[0]
    source, shape = _shape(op.operands[0].type), _shape(op.results[0].type)
    constancy = tuple(
        want if have == 1 else run
        for have, want, run in zip(source, shape, info.constancy, strict=True)
    )
    return replace(info, constancy=constancy)


def _trans(op: Op, infos: list[AxisInfo]) -> AxisInfo:
    assert isinstance(op, tile.Trans)
    info = infos[0]
    return replace(
        info,
        contiguity=tuple(info.contiguity[axis] for axis in op.order),
        divisibility=tuple(info.divisibility[axis] for axis in op.order),
        constancy=tuple(info.constancy[axis] for axis in op.order),
    )


def _hint(op: Op, infos: list[AxisInfo]) -> AxisInfo:
    assert isinstance(op, tile.Hint)
    info = infos[0]

    def raised(facts: Facts, promised: tuple[int, ...]) -> Facts:
        if not promised:
            return facts
        powers = [largest_power_of_two(value) for value in promised]
        return tuple(max(a, b) for a, b in zip(facts, powers, strict=True))

    shape = _shape(op.results[0].type)
    contiguity = tuple(map(min, raised(info.contiguity, op.contiguity), shape))
    return replace(
        info,
        contiguity=contiguity,
        divisibility=raised(info.divisibility, op.divisibility),
        constancy=tuple(map(min, raised(info.constancy, op.constancy), shape)),
    )


def _same(_: Op, infos: list[AxisInfo]) -> AxisInfo:
    """Facts of another layout of the same tile: they are of its elements."""
    return infos[0]


_RULES: dict[type[Op], Rule] = {
    arith.Constant: _constant,
    arith.Add: _add,
    arith.Sub: _sub,
    arith.AddPtr: _addptr,
    arith.Mul: _mul,
    arith.Shl: _shl,
    arith.Div: _div,
    arith.Rem: _rem,
    arith.Compare: _compare,
    arith.Select: _select,
    arith.Cast: _cast,
    arith.Bitcast: _cast,
    arith.And: _and,
    arith.Or: _constant_runs,
    arith.Xor: _constant_runs,
    arith.Shr: _shr,
    arith.Min: _bounded,
    arith.Max: _bounded,
    tile.ProgramId: _grid,
    tile.NumPrograms: _grid,
    tile.Arange: _arange,
    tile.Splat: _splat,
    tile.ExpandDims: _expand_dims,
    tile.Broadcast: _broadcast,
    tile.Trans: _trans,
    tile.Hint: _hint,
    tile.Load: _constant_runs,
}

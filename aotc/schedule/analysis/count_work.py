"""Count the work of a scheduled kernel: segments of straight-line code, their runs and costs.

For the cost model alone: inexpressible counts are guessed, and compiled code does not depend on
them. A segment's stall is the longest chain of dependent ops, at least the time to issue all of
them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aotc.ir import expression
from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.dialects import arith, gpu, roles, scf, wgmma
from aotc.ir.effects import Trait
from aotc.ir.expression import Binary, Expression, Integer, Name
from aotc.schedule.analysis.global_transfers import GlobalTransfers
from aotc.schedule.analysis.launch_values import LaunchValues, Number, joined, middle
from aotc.schedule.analysis.op_costs import (
    BARRIER_LATENCY,
    DOT_LATENCY,
    MACS_PER_CYCLE,
    OpCosts,
    is_shared_write,
)
from aotc.work import UNKNOWN, Segment, Transfer, Work

_WHILE_ITERATIONS = 8
_MAX_DEPTH = 8  # of conditions in a condition
_ZERO, _ONE = Integer(0), Integer(1)


def count_work(kernel: Kernel) -> Work:
    """Return the work of a kernel in gpu IR."""
    counter = _Counter(kernel)
    counter.visit(kernel.body, _Context(-1, _ONE, None, kernel.num_warps))
    return Work(tuple(counter.segments), counter.values.named_texts)


@dataclass(frozen=True, slots=True)
class _Context:
    """A block's runs for each run of a segment, the loop around it, and its warps."""

    parent: int
    times: Expression
    loop: scf.For | None
    num_warps: int
    is_producer: bool = False


@dataclass(slots=True)
class _Totals:
    """The costs of a segment as they add up, and when values and shared memory are ready."""

    instructions: float = 0
    special: float = 0
    wavefronts: float = 0
    dots: dict[str, int] = field(default_factory=dict[str, int])
    transfers: list[Transfer] = field(default_factory=list[Transfer])
    issued: float = 0
    ready: dict[Value, float] = field(default_factory=dict["Value", float])
    written: float = 0
    barrier: float = 0
    dots_end: list[float] = field(default_factory=lambda: [0.0])

    @property
    def end(self) -> float:
        last = max(self.ready.values(), default=0.0)
        return max(self.issued, last, self.barrier)


class _Counter:
    """Visit the blocks of a kernel and note a segment of each."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.values = LaunchValues(kernel)
        self._costs = OpCosts(kernel)
        self._transfers = GlobalTransfers(kernel, self.values)
        self.segments: list[Segment] = []

    def visit(self, block: Block, context: _Context) -> None:
        """Record the segment of a block, then the segments of the blocks in it."""
        index = len(self.segments)
        totals = _Totals()
        self.segments.append(_segment(context, totals))
        for op in block:
            self._add(op, context, totals)
            self._visit_nested(op, context, index)
        self.segments[index] = _segment(context, totals)

    def _visit_nested(self, op: Op, context: _Context, index: int) -> None:
        match op:
            case scf.For():
                trips = self._trips(op)
                self.visit(
                    op.body, _Context(index, trips, op, context.num_warps, context.is_producer)
                )
            case scf.While():
                often = Integer(_WHILE_ITERATIONS)
                for block in op.blocks:
                    self.visit(
                        block, _Context(index, often, None, context.num_warps, context.is_producer)
                    )
            case scf.If():
                count_then = self._taken(op.condition, context.times, context.loop)
                either = _half(context.times) if count_then is None else count_then
                count_else = (
                    _half(context.times)
                    if count_then is None
                    else _minus(context.times, count_then)
                )
                for block, times in ((op.then, either), (op.orelse, count_else)):
                    self.visit(block, _arm_context(context, self._short(times)))
            case roles.Specialize():
                inner = _Context(index, _ONE, None, context.num_warps)
                self.visit(op.consumers, inner)
                warps = self._kernel.producer_warps if roles.copies_by_threads(op) else 1
                self.visit(op.producer, _Context(index, _ONE, None, warps, is_producer=True))
            case roles.Beside():
                self.visit(op.body, _arm_context(context, context.times))
            case _:
                return

    # -- how often ---------------------------------------------------------------

    def _trips(self, loop: scf.For) -> Expression:
        """Return the iterations of a loop; in a persistent kernel's program loop, one a program."""
        if loop in self.values.persistent:
            return _ONE
        step = self.values[loop.step] or Number(_ONE)
        bounds = [self.values[value] for value in (loop.lower, loop.upper)]
        if bounds[0] is None or bounds[1] is None:
            return Binary("cdiv", Name(UNKNOWN), step.root)
        ends = [self._settled(bound) for bound in bounds if bound is not None]
        distance = joined("-", ends[1], ends[0])
        return self._short(_at_least_0(Binary("cdiv", distance.root, step.root)))

    def _short(self, times: Expression) -> Expression:
        """Return a name for an expression, unless it is as short: others have it several times."""
        return times if isinstance(times, Integer | Name) else self.values.named(times)

    def _settled(self, number: Number) -> Number:
        """Return a number in the middle iteration of its loop."""
        return number if number.loop is None else middle(number, self._trips(number.loop))

    def _taken(
        self, condition: Value, times: Expression, loop: scf.For | None, depth: int = 0
    ) -> Expression | None:
        """Return in how many of `times` runs a condition is true; None if unknown."""
        op = condition.op
        if isinstance(op, arith.And | arith.Or):
            if depth == _MAX_DEPTH:
                return None
            sides = [self._taken(side, times, loop, depth + 1) for side in (op.lhs, op.rhs)]
            counts = [side for side in sides if side is not None]
            if len(counts) < len(sides) or isinstance(op, arith.Or):
                return counts[0] if counts else None
            return Binary("min", counts[0], counts[1])
        if isinstance(op, arith.Compare):
            left, right = self.values[op.lhs], self.values[op.rhs]
            if left is None or right is None:
                return None
            difference = joined("-", left, right)
            if loop is not None and difference.loop is loop and difference.step:
                return _compared(op.predicate, difference, times)
        number = self.values[condition]
        if number is None:
            return None
        return Binary("*", Binary("!=", number.root, _ZERO), times)

    # -- costs -------------------------------------------------------------

    def _add(self, op: Op, context: _Context, totals: _Totals) -> None:
        cost = self._costs.of(op, context.num_warps)
        issue = cost.instructions + cost.special
        totals.instructions += issue * context.num_warps
        totals.special += cost.special * context.num_warps
        totals.wavefronts += cost.wavefronts
        totals.issued += issue
        totals.transfers += self._transfers.of(op, context.loop)
        start = max([totals.barrier, *(totals.ready.get(value, 0.0) for value in op.operands)])
        end = start + issue + cost.latency
        if cost.dot is not None:
            kind, macs = cost.dot
            totals.dots[kind] = totals.dots.get(kind, 0) + macs
            groups = max(1, context.num_warps // 4)
            end = max(start, totals.dots_end[-1]) + macs / groups / MACS_PER_CYCLE
            totals.dots_end.append(end)
            end += DOT_LATENCY if isinstance(op, gpu.Dot) else 0
        elif isinstance(op, wgmma.WgmmaWait):
            waited = totals.dots_end[max(0, len(totals.dots_end) - 1 - op.pending)]
            end = max(start, waited + DOT_LATENCY)
            totals.barrier = max(totals.barrier, end)
        elif op.has(Trait.BARRIER):
            end = totals.barrier = max(totals.barrier, totals.written) + BARRIER_LATENCY
        if is_shared_write(op):
            totals.written = max(totals.written, end)
        for out in op.results:
            totals.ready[out] = end


def _arm_context(context: _Context, times: Expression) -> _Context:
    """Return the context of an arm: it runs a part of the enclosing block's times."""
    return _Context(context.parent, times, context.loop, context.num_warps, context.is_producer)


def _segment(context: _Context, totals: _Totals) -> Segment:
    return Segment(
        parent=context.parent,
        times=expression.to_text(context.times),
        is_producer=context.is_producer,
        instructions=totals.instructions,
        special=totals.special,
        wavefronts=totals.wavefronts,
        dots=tuple(sorted(totals.dots.items())),
        stall=totals.end,
        transfers=tuple(totals.transfers),
    )


def _at_least_0(root: Expression) -> Expression:
    return root if isinstance(root, Integer) and root.value >= 0 else Binary("max", root, _ZERO)


def _half(times: Expression) -> Expression:
    return times if times == _ONE else Binary("cdiv", times, Integer(2))


def _minus(times: Expression, subset: Expression) -> Expression:
    return Binary("-", times, subset)


def _compared(predicate: str, difference: Number, times: Expression) -> Expression | None:
    """Return in how many iterations a stepping difference compares with 0."""
    step, root = difference.step, difference.root
    if predicate in ("eq", "ne"):
        once = Binary("min", _ONE, times)
        return once if predicate == "eq" else _minus(times, once)
    if predicate in ("gt", "ge"):
        opposite = _compared("le" if predicate == "gt" else "lt", difference, times)
        return None if opposite is None else _minus(times, opposite)
    bound = root if predicate == "lt" else Binary("-", root, _ONE)  # below 0
    if step > 0:
        first = Binary("cdiv", Binary("-", _ZERO, bound), Integer(step))
        return Binary("min", _at_least_0(first), times)
    not_yet = Binary("+", Binary("//", bound, Integer(-step)), _ONE)
    return _minus(times, Binary("min", _at_least_0(not_yet), times))

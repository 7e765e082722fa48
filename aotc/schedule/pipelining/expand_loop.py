"""Expand the schedule of a loop: prologue, body, and epilogue.

With ops at distances up to d, the loop

    for i: issue(i); compute(i)                    issue at distance d, compute at 0

becomes

    for k < d: if iteration k exists: issue(k)
    for i: if iteration i+d exists: issue(i+d); compute(i)

What runs ahead of its iteration is under the condition that the iteration exists: a comparison of
the induction variable with an upper bound lowered by whole steps, which saturates, so no bound is
too large, and a loop of few or no iterations needs no case of its own. A load takes the condition
into its mask, a copy as its own; a TMA load stands in a branch, which neighbours share. What only
reads shared memory, commits or waits for copies, runs unconditionally: the values are unused. Any
other op has no condition to take, so the last iterations are peeled:

    if there is an iteration:
        issue(0)
        for i, while iteration i+1 exists: issue(i+1); compute(i)
        compute(the last)

Values are keyed by the iteration that they are of. A value is carried from the iteration of the new
loop that computes it to the one that uses it; pure ops are computed again for each distance that needs
them, from variables carried at that distance, so that nothing waits for what runs later. A stage
index ahead is the stage index of the loop's own iteration and a number of stages.

Invariant: each op with effects runs once for every iteration, and in each as often as it did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from aotc.ir.core import Block, Op, Value, build
from aotc.ir.diagnostics import IRError, at
from aotc.ir.dialects import arith, gpu, scf, wgmma
from aotc.ir.effects import Resource
from aotc.ir.rewrite import Builder, is_pure
from aotc.ir.types import SharedType
from aotc.ir.walks import Steps, run
from aotc.schedule.analysis.global_order import free_operands
from aotc.schedule.analysis.loop_bounds import lowered_bounds
from aotc.schedule.pipelining.loop_schedule import LoopSchedule, Step
from aotc.schedule.pipelining.mask_condition import and_condition, splat_like


@dataclass(frozen=True)
class Expanded:
    """The new loop, and the value of each variable of the old one after it."""

    loop: scf.For
    outs: dict[Value, Value]


def expand_loop(schedule: LoopSchedule) -> Expanded:
    """Replace a loop by the loop of its schedule. Raises: IRError if a value comes too late."""
    with at(schedule.loop.loc):
        return _Expansion(schedule).run()


def reorder_body(schedule: LoopSchedule) -> None:
    """Put the ops of a loop, all at distance 0, into the order of its schedule."""
    body = schedule.loop.body
    for step in schedule.steps:
        step.op.remove()
        body.insert(step.op, before=body.terminator)


# ---- conditions -------------------------------------------------------------------------------


def _mapped_slots(op: Op, mapping: dict[Value, Value]) -> list[Value | None]:
    return [None if value is None else mapping.get(value, value) for value in op.slots]


def _enabled_copy(op: Op, mapping: dict[Value, Value], exists: Value, builder: Builder) -> Op:
    assert isinstance(op, gpu.AsyncCopy)
    pointer, buffer, mask, _ = _mapped_slots(op, mapping)
    return builder(build(gpu.AsyncCopy, [pointer, buffer, mask, exists], op.attributes, (), op.loc))


def _masked_load(op: Op, mapping: dict[Value, Value], exists: Value, builder: Builder) -> Op:
    assert isinstance(op, gpu.Load)
    pointer, mask, other = _mapped_slots(op, mapping)
    assert pointer is not None
    if mask is not None:
        mask = and_condition(mask, exists, builder)
    else:
        mask = splat_like(exists, pointer, builder)
    return builder(build(gpu.Load, [pointer, mask, other], op.attributes, (), op.loc))


_CONDITIONS: dict[type[Op], Callable[[Op, dict[Value, Value], Value, Builder], Op]] = {
    gpu.AsyncCopy: _enabled_copy,
    gpu.Load: _masked_load,
}
"""How an op is run under the condition that its iteration exists."""


def _takes_condition(op: Op) -> bool:
    return type(op) in _CONDITIONS or _stands_in_branch(op)


def _stands_in_branch(op: Op) -> bool:
    """Return whether one thread issues an op, which so costs no more in a branch: a TMA load."""
    return bool(op.effects_on(Resource.MBARRIER, "start"))


def _is_unconditional(op: Op) -> bool:
    """Return whether nobody minds an op of an iteration that does not exist.

    It reads shared memory, or counts commit groups, of which each iteration has one.
    """
    only_reads = all(
        effect.access == "read" and effect.resource is Resource.SHARED for effect in op.effects
    )
    return only_reads or bool(op.effects_on(Resource.COPIES, "write", "order"))


# ---- the loop ---------------------------------------------------------------------------------


class _Expansion:
    """Emit prologue, body and epilogue.

    The body runs `schedule.unroll` copies of the steps; copy j runs a step for the iteration that is
    j and the step's distance ahead of the induction variable. That is the value's *offset*.
    """

    def __init__(self, schedule: LoopSchedule) -> None:
        self.schedule = schedule
        self.loop = schedule.loop
        self.distances = schedule.distances()
        self.ahead = schedule.max_distance
        # A pure op that is listed ahead only is not computed again: its value is carried.
        self.first_distances: dict[Op, int] = {}
        for step in schedule.steps:
            first = self.first_distances.get(step.op, step.distance)
            self.first_distances[step.op] = min(first, step.distance)
        early = [step.op for step in schedule.steps if step.distance and not is_pure(step.op)]
        self.peels = any(not _takes_condition(op) and not _is_unconditional(op) for op in early)
        self.conditional = {
            step.distance: None
            for step in schedule.steps
            if step.distance and _takes_condition(step.op) and not self.peels
        }
        if (self.peels and self.ahead > 1) or (schedule.unroll > 1 and not self.peels):
            raise IRError(f"no epilogue for a distance of {self.ahead}", self.loop.loc)
        self.carried: dict[tuple[Value, int], Value] = {}
        self._runs_ahead: dict[tuple[Value, int], bool] = {}

    def run(self) -> Expanded:
        """Replace the loop."""
        loop, outer = self.loop, Builder.before_op(self.loop)
        runs = outer(arith.Compare(loop.lower, loop.upper, "lt")).out if self.peels else None
        needs_bounds = self.peels or self.conditional
        count = self.ahead + self.schedule.unroll - 1 if needs_bounds else 0
        self.bounds = lowered_bounds(loop, count, outer) if needs_bounds else [loop.upper]
        self.strides = {
            distance: self._multiple_of_step(distance, outer) for distance in self.conditional
        }
        if runs is None:
            pipelined, _ = self._pipelined(outer)
            outs = {
                arg: pipelined.outs[self._index_of(arg, 0)]
                for arg in loop.carried
                if (arg, 0) in self.carried
            }
            for arg, out in zip(loop.carried, loop.outs, strict=True):
                if arg in outs:
                    out.replace_all_uses_with(outs[arg])
            loop.erase()
            return Expanded(pipelined, outs)
        then, otherwise = Block(), Block()
        Builder(otherwise)(scf.Yield(list(loop.init)))
        within = Builder(then)
        pipelined, results = self._pipelined(within)
        within(scf.Yield(results))
        branch = outer(build(scf.If, [runs], {}, [then, otherwise], loop.loc))
        outs = dict(zip(loop.carried, branch.outs, strict=True))
        loop.replace_with(branch.outs)
        return Expanded(pipelined, outs)

    def _pipelined(self, outer: Builder) -> tuple[scf.For, list[Value]]:
        """Emit all that runs if there are iterations; return the loop, and its results if peeled."""
        loop, unroll = self.loop, self.schedule.unroll
        indices = self._early_indices(outer)
        self.prologue = _Region(self, outer, self._initial, indices, is_prologue=True)
        for copy in range(-self.ahead, 0):
            self.prologue.run(copy)
        self.block = Block([loop.induction.type], [loop.induction.hint])
        self.inits: list[Value] = []
        body = _Region(self, Builder(self.block), self.carry, {0: self.block.args[0]})
        for key in self.schedule.carried:
            self.carry(*key)
        if not self.peels:
            for arg, out in zip(loop.carried, loop.outs, strict=True):
                if out.users:
                    self.carry(arg, 0)
        for copy in range(unroll):
            body.run(copy)
        tail = self._tail() if self.peels else None
        yielded: list[Value] = []
        for value, offset in self._growing():
            yielded.append(self._next_value(body, value, offset))
        body.place(scf.Yield(yielded))
        attributes = dict(loop.attributes)
        bound, step = loop.upper, loop.step
        if self.peels:
            bound = self.bounds[-1]
            attributes["unroll"] = attributes["unroll"] or scf.NEVER_UNROLLED
        if unroll > 1:
            step = self._multiple_of_step(unroll, outer)
        inits = [loop.lower, bound, step, *self.inits]
        pipelined = outer(build(scf.For, inits, attributes, [self.block], loop.loc))
        return pipelined, tail.land(pipelined.outs, outer) if tail else []

    def _multiple_of_step(self, count: int, outer: Builder) -> Value:
        step = self.loop.step
        return outer(arith.Mul(step, outer(arith.Constant(count, step.type)).out)).out

    def _early_indices(self, outer: Builder) -> dict[int, Value]:
        """Return the induction variable of each iteration of the prologue."""
        indices = {0: self.loop.lower}
        for iteration in range(1, self.ahead):
            indices[iteration] = outer(arith.Add(indices[iteration - 1], self.loop.step)).out
        return indices

    # -- values carried --------------------------------------------------------

    def yielded(self, arg: Value) -> Value:
        """Return what an iteration of the old loop passes on for a variable."""
        return self.loop.body.terminator.operands[arg.index - 1]

    def _initial(self, value: Value, offset: int) -> Value:
        if offset or value.op is not None:
            raise IRError(f"{value!r} of iteration {offset} comes too late", self.loop.loc)
        init = self.loop.init[value.index - 1]
        assert init is not None
        return init

    def carry(self, value: Value, offset: int) -> Value:
        """Return the block argument that has a value of an iteration when the body begins."""
        key = value, offset
        if key not in self.carried:
            if value is self.loop.induction:
                self.inits.append(self.loop.lower)
            else:
                self.inits.append(self.prologue.get(value, offset, offset))
            self.carried[key] = self.block.add_arg(value.type, value.hint)
        return self.carried[key]

    def _index_of(self, value: Value, offset: int) -> int:
        return self.carried[value, offset].index - 1

    def _growing(self) -> Iterator[tuple[Value, int]]:
        """Yield the values carried, with those that are added meanwhile."""
        position = 0
        while position < len(self.carried):
            yield list(self.carried)[position]
            position += 1

    def _next_value(self, body: _Region, value: Value, offset: int) -> Value:
        """Return what a carried value is in the next iteration of the new loop."""
        unroll = self.schedule.unroll
        if value is self.loop.induction or value.op is not None:
            return body.get(value, offset + unroll, offset)
        return body.get(self.yielded(value), offset + unroll - 1, offset)

    def runs_ahead(self, value: Value, distance: int) -> bool:
        """Return whether nothing that a value of the body is computed from runs later."""
        return run(self._learn_ahead(value, distance))

    def _learn_ahead(self, value: Value, distance: int) -> Steps[bool]:
        key = value, distance
        if key not in self._runs_ahead:
            op, is_ahead = value.op, True
            if op in self.distances:
                is_ahead = self.distances[op] >= distance
            elif op is not None and op.block is self.loop.body:
                for operand in free_operands(op):
                    if not (yield self._learn_ahead(operand, distance)):
                        is_ahead = False
                        break
            self._runs_ahead[key] = is_ahead
        return self._runs_ahead[key]

    def counts_stages(self, value: Value) -> bool:
        """Return whether a variable is a stage index, which each iteration moves by one."""
        if value.owner is not self.loop.body or not value.index:
            return False
        op = self.yielded(value).op
        return isinstance(op, gpu.NextStage) and op.index is value and op.ahead == 1

    def pending(self, wait: wgmma.WgmmaWait, copy: int, limit: int | None) -> int:
        """Return how many newer dots a wait leaves in flight, if it or its dots change places.

        Counted are those that exist whenever its dots do, being of the same iterations, later ones
        or this run of the body, unless they have been waited for.
        """
        dots = self._dots_of(wait)
        is_moved = any(self.distances[op] for op in (wait, *dots))
        if not is_moved and not self.schedule.reorders_dots:
            return wait.pending
        offset = copy + self.distances[wait]
        newer: list[tuple[Op | None, int]] = []
        for number in range(-self.ahead, copy + 1):
            for step in self.schedule.steps:
                if step.op is wait and number == copy:
                    return len(newer)
                now = number + step.distance
                if limit is not None and now >= limit:
                    continue
                if isinstance(step.op, wgmma.WgmmaWait):
                    awaited = [(op, now) for op in self._dots_of(step.op)]
                    last = max((newer.index(dot) for dot in awaited if dot in newer), default=-1)
                    newer = newer[last + 1 :]
                elif isinstance(step.op, wgmma.Wgmma) and (number >= 0 or now >= offset):
                    newer = [] if step.op in dots and now == offset else [*newer, (step.op, now)]
        raise IRError("a wait is in no schedule", wait.loc)

    def _dots_of(self, wait: wgmma.WgmmaWait) -> list[Op]:
        """Return the dots of the loop that a wait is for."""
        return [value.op for value in wait.values if value.op in self.distances]

    # -- the last iterations ---------------------------------------------------

    def _tail(self) -> _Tail:
        """Emit the iterations that are left after the loop: as many as are ahead, or more."""
        block = Block()
        tail = _Tail(block)

        def enter(value: Value, offset: int) -> Value:
            self.carry(value, offset)
            return tail.arg(self._index_of(value, offset), value)

        fewest, most = self.ahead, self.ahead + self.schedule.unroll - 1
        tail.results = self._last(Builder(block), enter, fewest, most)
        return tail

    def _last(
        self,
        builder: Builder,
        enter: Callable[[Value, int], Value],
        fewest: int,
        most: int,
    ) -> list[Value]:
        """Emit the last iterations, `fewest` to `most` of them; return the results."""
        if most > fewest:
            index = enter(self.loop.induction, 0)
            exists = builder(arith.Compare(index, self.bounds[most - 1], "lt")).out
            arms = Block(), Block()
            for arm, (low, high) in zip(arms, ((most, most), (fewest, most - 1)), strict=True):
                within = Builder(arm)
                within(scf.Yield(self._last(within, enter, low, high)))
            return list(builder(build(scf.If, [exists], {}, arms, self.loop.loc)).outs)
        region = _Region(self, builder, enter, {}, limit=most)
        for copy in range(most):
            region.run(copy)
        return [region.get(arg, most, 0) for arg in self.loop.carried]


@dataclass
class _Tail:
    """The ops after the loop, in a block whose arguments stand for results of the loop."""

    block: Block
    results: list[Value] = field(default_factory=list[Value])
    args: dict[int, Value] = field(default_factory=dict[int, Value])

    def arg(self, index: int, value: Value) -> Value:
        """Return the argument for a result of the loop."""
        if index not in self.args:
            self.args[index] = self.block.add_arg(value.type, value.hint)
        return self.args[index]

    def land(self, outs: Sequence[Value], builder: Builder) -> list[Value]:
        """Move the ops to after the loop; return the results."""
        stands_for = {arg: outs[index] for index, arg in self.args.items()}
        for arg, out in stands_for.items():
            arg.replace_all_uses_with(out)
        for op in list(self.block):
            op.remove()
            builder(op)
        return [stands_for.get(value, value) for value in self.results]


# ---- one place --------------------------------------------------------------------------------


class _Region:
    """Emit steps at one place; `enter` gives the values that are there when it begins.

    No iteration of an offset of `limit` or more exists.
    """

    def __init__(
        self,
        expansion: _Expansion,
        builder: Builder,
        enter: Callable[[Value, int], Value],
        indices: dict[int, Value],
        *,
        limit: int | None = None,
        is_prologue: bool = False,
    ) -> None:
        self.expansion = expansion
        self.loop = expansion.loop
        self.place = builder
        self.limit = limit
        self._enter = enter
        self._indices = indices
        self._values: dict[tuple[Value, int], Value] = {}
        self._exists: dict[int, Value] = {}
        self._is_prologue = is_prologue

    def run(self, copy: int) -> None:
        """Emit the steps of one copy."""
        steps = self.expansion.schedule.steps
        position = 0
        while position < len(steps):
            step = steps[position]
            offset = copy + step.distance
            position += 1
            if offset < 0 or (self.limit is not None and offset >= self.limit):
                continue
            if not self._is_conditional(step):
                self._emit_once(step.op, offset, step.distance, copy)
                continue
            exists = self._exists_at(offset)
            if not _stands_in_branch(step.op):
                self._emit(step.op, offset, step.distance, exists=exists)
                continue
            group: list[Op] = [step.op]
            while position < len(steps) and self._joins(steps[position], step):
                group.append(steps[position].op)
                position += 1
            self._emit_branch(group, offset, step.distance, exists)

    def _is_conditional(self, step: Step) -> bool:
        """Return whether a step runs under the condition that its iteration exists."""
        expansion = self.expansion
        return not expansion.peels and step.distance > 0 and _takes_condition(step.op)

    @staticmethod
    def _joins(step: Step, first: Step) -> bool:
        return _stands_in_branch(step.op) and step.distance == first.distance

    # -- values ----------------------------------------------------------------

    def get(self, value: Value, offset: int, distance: int) -> Value:
        """Return a value of the iteration `offset`, for an op that runs at `distance`."""
        return run(self._get(value, offset, distance))

    def _get(self, value: Value, offset: int, distance: int) -> Steps[Value]:
        op = value.op
        if (op.block if op is not None else value.owner) is not self.loop.body:
            return value
        key = value, offset
        if key not in self._values:
            self._values[key] = yield self._compute(value, offset, distance)
        return self._values[key]

    def _compute(self, value: Value, offset: int, distance: int) -> Steps[Value]:
        op, expansion = value.op, self.expansion
        if op is None and value.index == 0:
            return self._index(offset)
        if op is None:
            if self._carries(value, offset, distance):
                return self._enter(value, offset)
            earlier = distance - 1 if offset == distance else distance
            return (yield self._get(expansion.yielded(value), offset - 1, max(earlier, 0)))
        if op in expansion.distances:
            if self._is_prologue or offset >= expansion.distances[op]:
                raise IRError(f"{op.opcode} comes too late for its use", op.loc)
            return self._enter(value, offset)
        if not is_pure(op):
            raise IRError(f"{op.opcode} is in no schedule", op.loc)
        if offset < expansion.first_distances.get(op, 0) and not self._is_prologue:
            return self._enter(value, offset)
        yield self._emit_of(op, offset, distance)
        return self._values[value, offset]

    def _carries(self, value: Value, offset: int, distance: int) -> bool:
        """Return whether a variable of the old loop comes from before, at this distance."""
        if offset == 0:
            return True
        if self._is_prologue or offset != distance or self.expansion.counts_stages(value):
            return False
        return self.expansion.runs_ahead(self.expansion.yielded(value), distance)

    def _index(self, offset: int) -> Value:
        """Return the induction variable of an iteration."""
        if 0 not in self._indices:
            self._indices[0] = self._enter(self.loop.induction, 0)
        if offset not in self._indices:
            stride = self.expansion.strides.get(offset)
            if stride is None:
                first, stride = self._index(offset - 1), self.loop.step
            else:
                first = self._indices[0]
            self._indices[offset] = self.place(arith.Add(first, stride)).out
        return self._indices[offset]

    def _exists_at(self, offset: int) -> Value:
        """Return whether an iteration exists."""
        if offset not in self._exists:
            bound = self.expansion.bounds[offset]
            self._exists[offset] = self.place(arith.Compare(self._indices[0], bound, "lt")).out
        return self._exists[offset]

    # -- ops -------------------------------------------------------------------

    def _emit_once(self, op: Op, offset: int, distance: int, copy: int) -> None:
        """Emit an op, unless a use has had it computed already."""
        if distance in self.expansion.conditional:
            self._exists_at(offset)
            self._index(offset)
        if is_pure(op):
            if not any((value, offset) in self._values for value in op.results):
                self._emit(op, offset, distance)
            return
        copied = self._emit(op, offset, distance)
        if isinstance(op, wgmma.WgmmaWait) and isinstance(copied, wgmma.WgmmaWait):
            copied.pending = self.expansion.pending(op, copy, self.limit)

    def _emit(self, op: Op, offset: int, distance: int, exists: Value | None = None) -> Op:
        return run(self._emit_of(op, offset, distance, exists))

    def _emit_of(
        self, op: Op, offset: int, distance: int, exists: Value | None = None
    ) -> Steps[Op]:
        with at(op.loc):
            if isinstance(op, gpu.SharedStage | gpu.NextStage) and self._counts_on(op, offset):
                copied = yield self._later_stage(op, offset, distance)
            else:
                mapping: dict[Value, Value] = {}
                for value in free_operands(op):
                    mapping[value] = yield self._get(value, offset, distance)
                if exists is None:
                    copied = self.place(op.clone(mapping))
                else:
                    copied = _CONDITIONS[type(op)](op, mapping, exists, self.place)
        for old, new in zip(op.results, copied.results, strict=True):
            new.hint = old.hint
            self._values[old, offset] = new
        return copied

    def _counts_on(self, op: gpu.SharedStage | gpu.NextStage, offset: int) -> bool:
        return offset > 0 and self.expansion.counts_stages(op.index)

    def _later_stage(
        self, op: gpu.SharedStage | gpu.NextStage, offset: int, distance: int
    ) -> Steps[gpu.SharedStage | gpu.NextStage]:
        """Return the stage, or stage index, that is `offset` iterations after the current one."""
        index = yield self._get(op.index, 0, 0)
        if isinstance(op, gpu.NextStage):
            ahead = (op.ahead + offset) % op.num_stages
            return self.place(gpu.NextStage(index, op.num_stages, ahead))
        buffer = yield self._get(op.buffer, offset, distance)
        assert isinstance(buffer.type, SharedType)
        ahead = (op.ahead + offset) % buffer.type.num_stages
        return self.place(gpu.SharedStage(buffer, index, ahead))

    def _emit_branch(self, ops: Sequence[Op], offset: int, distance: int, exists: Value) -> None:
        """Emit ops under the condition that their iteration exists."""
        mapping = {value: self.get(value, offset, distance) for op in ops for value in op.operands}
        arms = Block(), Block()
        for op in ops:
            Builder(arms[0])(op.clone(mapping))
        for arm in arms:
            Builder(arm)(scf.Yield([]))
        self.place(scf.If(exists, *arms))

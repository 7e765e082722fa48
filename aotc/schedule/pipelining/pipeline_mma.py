"""Issue a dot an iteration ahead of the ops that use its result.

Where threads compute with the result of each dot of a loop (scale and add it, say), the tensor
cores wait for the threads, and then the threads for the tensor cores. So the loop

    for i: p = dot i; wait for p; compute with p

becomes, unrolled by two so that each of the two dots in flight keeps its registers,

    p = dot 0
    for i: q = dot i + 1; wait for p; compute with p
           p = dot i + 2; wait for q; compute with q
    the last one or two

The ops that issue a dot, with the waits for its operands, run an iteration ahead of the rest;
the stage indices that both need are computed twice.

It is opt-in (`mma_stages = 2`), since the second accumulator takes registers.

Invariant: each iteration computes what it did, in the same order; its dots are issued after
all that it waited for, and a stage is released where it was, after the wait for its readers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from aotc.ir.core import Block, Kernel, Op, Value, build
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, gpu, roles, scf, tma, wgmma
from aotc.ir.rewrite import Builder, is_pure, is_unobserved
from aotc.ir.types import SharedType, TileType
from aotc.schedule.analysis.loop_bounds import lowered_bounds
from aotc.schedule.analysis.register_budget import registers_of, reserve_registers
from aotc.schedule.context import Schedule
from aotc.schedule.remarks import Reason, Remark

_NEVER_UNROLLED = 1
_MIN_SLOTS = 2
# What a thread needs besides accumulators and results of dots: addresses, counters, scales.
_WORKING_REGISTERS = 40


def pipeline_mma(kernel: Kernel, schedule: Schedule) -> None:
    """Rewrite every loop whose dots can be issued ahead, if the config asks for it."""
    if schedule.config.mma_stages < 2:
        return
    roles_ = [op for op in kernel.body if isinstance(op, roles.Specialize)]
    if not roles_:
        text = Remark.MMA_NOT_PIPELINED(reason=Reason.NO_PRODUCER())
        schedule.remark(kernel.loc, text)
    for role in roles_:
        for loop in [op for op in role.consumers.walk() if isinstance(op, scf.For)]:
            products = [op for op in loop.body if isinstance(op, wgmma.Wgmma)]
            if products:
                found = _find(loop, products)
                if isinstance(found, _Start):
                    found = _advance(found, role, kernel, schedule)
                remark = Remark.MMA_NOT_PIPELINED if found else Remark.MMA_PIPELINED
                schedule.remark(loop.loc, remark(reason=found))


def _advance(start: _Start, role: roles.Specialize, kernel: Kernel, schedule: Schedule) -> str:
    """Rewrite a loop, or return why not."""
    needed = _needed_registers(start)
    if not reserve_registers(needed, role, kernel, schedule):
        return Reason.TWO_RESULTS(registers=needed)
    with at(start.loop.loc):
        _Advance(start).rewrite()
    return ""


# ---- where ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Start:
    """The dots of a loop, and the ops that issue them: waits, and what is computed twice.

    `state` are the indices of the carried variables that they need. The ops that compute these for
    the next iteration are among `ops`, too.
    """

    loop: scf.For
    products: Sequence[wgmma.Wgmma]
    ops: Mapping[Op, None]
    state: Sequence[int]


def _find(loop: scf.For, products: Sequence[wgmma.Wgmma]) -> _Start | str:
    """Return how to issue ahead the dots of a loop whose results are used in it, or why not."""
    products = [op for op in products if _is_looked_at(op, loop)]
    if not products:
        return Reason.NO_FRESH_ACCUMULATOR()
    for op in products:
        if not isinstance(op.a.type, SharedType):
            return Reason.OPERAND_IN_REGISTERS()
        if not all(_stays(value, loop) for value in (op.a, op.b)):
            return Reason.OPERAND_WRITTEN()
    body = list(loop.body)
    before = body[: body.index(products[-1]) + 1]
    waits = [op for op in before if isinstance(op, tma.MbarrierWait)]
    if any(_num_slots(op) < _MIN_SLOTS for op in waits):
        return Reason.ONE_STAGE()
    found = _slice(loop, [*products, *waits])
    if found is None:
        return Reason.STAGE_OF_LATER_STEPS()
    for op in found.ops:
        if op not in products and not isinstance(op, tma.MbarrierWait) and not is_pure(op):
            return Reason.STAGE_DEPENDS(op=op.opcode)
    # The dots pass these ops. A load that runs an iteration late reads the same.
    for op in before:
        if op not in found.ops and not is_unobserved(op):
            return Reason.NOT_REORDERED(op=op.opcode)
    return replace(found, products=products)


def _is_looked_at(op: wgmma.Wgmma, loop: scf.For) -> bool:
    """Return whether a dot with a fresh accumulator is waited for in its iteration."""
    waits = [user for user in op.out.users if isinstance(user, wgmma.WgmmaWait)]
    begins = isinstance(op.acc.op, gpu.Undefined) and op.acc.op.block is not loop.body
    alone = len(op.out.users) == len(waits) == 1 and len(waits[0].values) == 1
    return begins and alone and waits[0].block is loop.body


def _stays(value: Value, loop: scf.For) -> bool:
    """Return whether no thread writes an operand in the loop."""
    buffer = _buffer_of(value)
    if buffer.op is None or buffer.op.block is loop.body:
        return False
    writes = [op for op in loop.body.walk() if isinstance(op, gpu.SharedStore | gpu.AsyncCopy)]
    return all(_buffer_of(op.buffer) is not buffer for op in writes)


def _buffer_of(value: Value) -> Value:
    """Return the ring that an operand, or a mbarrier, is a stage of."""
    while isinstance(value.op, gpu.SharedTrans | gpu.SharedStage):
        value = value.op.buffer
    return value


def _num_slots(wait: tma.MbarrierWait) -> int:
    kind = _buffer_of(wait.barrier).type
    assert isinstance(kind, SharedType)
    return kind.num_stages


def _slice(loop: scf.For, roots: Sequence[Op]) -> _Start | None:
    """Return what ops of a loop need, in this iteration and to be ready for the next one."""
    found: dict[Op, None] = {}
    state: dict[int, None] = {}
    worklist: list[Op] = list(roots)
    while worklist:
        op = worklist.pop()
        if op in found:
            continue
        if op.blocks:
            return None
        found[op] = None
        for value in op.operands:
            needed = value
            if value.owner is loop.body and value.index > 0:
                if value.index - 1 in state:
                    continue
                state[value.index - 1] = None
                needed = loop.body.terminator.operands[value.index - 1]
            if needed.op is not None and needed.op.block is loop.body:
                worklist.append(needed.op)
            elif needed.owner is loop.body and needed.index - 1 not in state and needed.index:
                return None  # yielded from another variable
    ordered = {op: None for op in loop.body if op in found}
    return _Start(loop, (), ordered, sorted(state))


def _needed_registers(start: _Start) -> int:
    """Return the registers of a thread for carried values, fragments, and two results of dots."""
    products = [op.out for op in start.products]
    held = [*start.loop.carried, *products, *products]
    held += [op.a for op in start.loop.body if isinstance(op, wgmma.Wgmma)]
    tiles = [value for value in held if isinstance(value.type, TileType)]
    return sum(map(registers_of, tiles)) + _WORKING_REGISTERS


# ---- rewriting --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Turn:
    """The values of an iteration: induction variable, carried values, results of its dots."""

    induction: Value
    carried: Sequence[Value]
    products: Sequence[Value] = ()


class _Advance:
    """Rewrite a loop: an iteration is begun with its dots, and finished with all the rest."""

    def __init__(self, start: _Start) -> None:
        self.start = start
        self.loop = start.loop
        self.body = [op for op in start.loop.body if not op.terminator]
        self.waits = {next(iter(op.out.users)): op for op in start.products}

    def rewrite(self) -> None:
        """Replace the loop by one over pairs of iterations, guarded against no iterations."""
        loop = self.loop
        outer = Builder.before_op(loop)
        runs = outer(arith.Compare(loop.lower, loop.upper, "lt")).out
        _, one_more, two_more = lowered_bounds(loop, 2, outer)
        then, otherwise = Block(), Block()
        Builder(otherwise)(scf.Yield(list(loop.init)))
        place = Builder(then)
        first = self._begin(loop.lower, loop.init, place)
        pairs = self._pairs(first, two_more, place)
        count = len(loop.init)
        last = _Turn(pairs.outs[count], pairs.outs[:count], pairs.outs[count + 1 :])
        has_next = place(arith.Compare(last.induction, one_more, "lt")).out
        ends = place(scf.If(has_next, self._last(last, 2), self._last(last, 1)))
        place(scf.Yield(list(ends.results)))
        branch = outer(scf.If(runs, then, otherwise))
        loop.replace_with(branch.results)

    def _pairs(self, first: _Turn, upper: Value, outer: Builder) -> scf.For:
        """Return the loop over pairs, as long as two more iterations follow the one begun.

        It carries what the old one did, the induction variable of the iteration that has begun, and
        the results of its dots.
        """
        loop = self.loop
        step = outer(arith.Add(loop.step, loop.step)).out
        inits = [*first.carried, first.induction, *first.products]
        body = Block(
            [loop.lower.type, *(value.type for value in inits)],
            [loop.induction.hint, *(value.hint for value in loop.carried)],
        )
        place = Builder(body)
        count = len(first.carried)
        args = body.args[1:]
        turn = _Turn(args[count], args[:count], args[count + 1 :])
        for _ in range(2):
            turn = self._go_on(turn, place)
        place(scf.Yield([*turn.carried, turn.induction, *turn.products]))
        attributes = {**loop.attributes, "unroll": loop.attributes["unroll"] or _NEVER_UNROLLED}
        slots = [loop.lower, upper, step, *inits]
        return outer(build(scf.For, slots, attributes, [body], loop.loc))

    def _last(self, turn: _Turn, count: int) -> Block:
        """Return the block that does the last `count` iterations, one of which has begun."""
        block = Block()
        place = Builder(block)
        for _ in range(count - 1):
            turn = self._go_on(turn, place)
        place(scf.Yield(self._finish(turn, place, pending=0)))
        return block

    # -- an iteration ----------------------------------------------------------

    def _go_on(self, turn: _Turn, place: Builder) -> _Turn:
        """Begin the next iteration and finish one; return the next one."""
        following = self._begin_next(turn, place)
        carried = self._finish(turn, place, pending=len(self.start.products))
        return replace(following, carried=carried)

    def _begin(self, induction: Value, carried: Sequence[Value], place: Builder) -> _Turn:
        """Issue the dots of an iteration; of `carried`, only `state` is used."""
        mapping = self._mapping(induction, carried)
        for op in self.start.ops:
            place(op.clone(mapping))
        products = [mapping[op.out] for op in self.start.products]
        return _Turn(induction, carried, products)

    def _begin_next(self, turn: _Turn, place: Builder) -> _Turn:
        """Issue the dots of the iteration after one."""
        mapping = self._mapping(turn.induction, turn.carried)
        for op in self.start.ops:
            if is_pure(op):
                place(op.clone(mapping))
        carried = list(turn.carried)
        yielded = self.loop.body.terminator.operands
        for index in self.start.state:
            carried[index] = mapping.get(yielded[index], yielded[index])
        induction = place(arith.Add(turn.induction, self.loop.step)).out
        return self._begin(induction, carried, place)

    def _finish(self, turn: _Turn, place: Builder, pending: int) -> list[Value]:
        """Finish an iteration, with `pending` dots issued since; return what it yields."""
        mapping = self._mapping(turn.induction, turn.carried)
        for op, product in zip(self.start.products, turn.products, strict=True):
            mapping[op.out] = product
        for op in self.body:
            if op in self.start.ops and not is_pure(op):
                continue
            made = place(op.clone(mapping))
            if op in self.waits:
                assert isinstance(made, wgmma.WgmmaWait)
                made.pending += pending
        yielded = self.loop.body.terminator.operands
        return [mapping.get(value, value) for value in yielded]

    def _mapping(self, induction: Value, carried: Sequence[Value]) -> dict[Value, Value]:
        return dict(zip(self.loop.body.args, [induction, *carried], strict=True))

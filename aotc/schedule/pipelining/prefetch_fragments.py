"""Carry the first fragments of a loop's dots over the back edge, so that it begins with them.

An iteration of a pipelined loop waits for its copies, meets a barrier, and reads the first
fragments before the first MMA; with one or two warps a scheduler, the tensor cores are idle for
that long. So the loop

    for i: wait for copy i; barrier; a = read(i, 0); b = read(i, 1); multiply(a); …; multiply(z)

becomes

    wait for copy 0; barrier; a = read(0, 0)
    for i: b = read(i, 1); multiply(a); …; wait for copy i+1; barrier; a = read(i+1, 0); multiply(z)

and the last MMA of an iteration runs while the next one's first fragments are read.
The barrier still separates the last read of a stage from the copies that refill it: those
are the next iteration's. The last iteration reads a stage that nothing was copied to: the memory
exists, and the values are unused.

Invariant: an iteration reads from its stages what it read before, after the same copies.
"""

from __future__ import annotations

from dataclasses import dataclass

from aotc.ir.core import Block, Kernel, Op, Value, build
from aotc.ir.diagnostics import at
from aotc.ir.dialects import gpu, scf
from aotc.ir.rewrite import Builder, is_pure
from aotc.schedule.context import Schedule


def prefetch_fragments(kernel: Kernel, schedule: Schedule) -> None:
    """Rewrite every loop whose first dot reads what asynchronous copies brought."""
    del schedule
    for loop in [op for op in kernel.walk() if isinstance(op, scf.For)]:
        turn = _find_turn(loop)
        if turn is not None:
            with at(loop.loc):
                _rewrite(turn)


@dataclass
class _Turn:
    """The wait and the `loads` of a loop that move to before the dot `last`."""

    loop: scf.For
    wait: gpu.AsyncWait
    loads: dict[Op, gpu.SharedStage]
    last: gpu.Dot


def _find_turn(loop: scf.For) -> _Turn | None:
    """Return what to move in a loop, or None if the rewrite does not apply."""
    ops = {op: number for number, op in enumerate(loop.body)}
    waits = [op for op in ops if isinstance(op, gpu.AsyncWait)]
    dots = [op for op in ops if isinstance(op, gpu.Dot)]
    if len(waits) != 1 or not dots or not dots[0].shape or _uses_slots_otherwise(loop):
        return None
    wait, last = waits[0], dots[-1]
    reads = {op: slot for op in ops if (slot := _slot_read(op)) is not None}
    commits = [op for op in ops if isinstance(op, gpu.AsyncCommit)]
    if any(ops[op] > ops[last] for op in (*reads, *commits)) or ops[wait] > ops[dots[0]]:
        return None
    needed = _needed(dots[0], loop.body)
    copied = [slot.buffer for op in ops if (slot := _slot_copied_to(op)) is not None]
    loads = {
        op: slot
        for op, slot in reads.items()
        if op in needed and slot.buffer in copied and _is_current(slot, loop)
    }
    return _Turn(loop, wait, loads, last) if loads else None


def _uses_slots_otherwise(loop: scf.For) -> bool:
    """Return whether threads write a stage, or a nested block reads one."""
    for op in loop.body.walk():
        if isinstance(op, gpu.SharedStore) and isinstance(op.buffer.op, gpu.SharedStage):
            return True
        if op.block is not loop.body and _slot_read(op) is not None:
            return True
    return False


def _slot_read(op: Op) -> gpu.SharedStage | None:
    """Return the stage that an op reads, or None."""
    slot = op.buffer.op if isinstance(op, gpu.SharedLoad) else None
    return slot if isinstance(slot, gpu.SharedStage) else None


def _slot_copied_to(op: Op) -> gpu.SharedStage | None:
    """Return the stage that an op starts a copy to, or None."""
    slot = op.buffer.op if isinstance(op, gpu.AsyncCopy) else None
    return slot if isinstance(slot, gpu.SharedStage) else None


def _is_current(slot: gpu.SharedStage, loop: scf.For) -> bool:
    """Return whether a stage is the current iteration's, by a stage index that the loop advances."""
    counter = slot.index
    if counter.owner is not loop.body or counter.index == 0 or slot.ahead:
        return False
    following = loop.body.terminator.operands[counter.index - 1].op
    return isinstance(following, gpu.NextStage) and following.index is counter


def _needed(dot: gpu.Dot, body: Block) -> dict[Op, None]:
    """Return the ops of the body that the operands of a dot are computed from."""
    needed: dict[Op, None] = {}
    worklist = [dot.a, dot.b]
    while worklist:
        op = worklist.pop().op
        if op is not None and op.block is body and op not in needed:
            needed[op] = None
            if is_pure(op):
                worklist += op.operands
    return needed


def _rewrite(turn: _Turn) -> None:
    """Rebuild the loop, with the first iteration's wait and loads peeled off before it."""
    old = turn.loop
    before = Builder.before_op(old)
    before(gpu.AsyncWait(turn.wait.pending))
    first = _read(turn, before, None)
    body = Block([arg.type for arg in old.body.args], [arg.hint for arg in old.body.args])
    mapping = dict(zip(old.body.args, body.args, strict=True))
    for load, value in zip(turn.loads, first, strict=True):
        mapping[load.results[0]] = body.add_arg(value.type, load.results[0].hint)
    add = Builder(body)
    following: list[Value] = []
    for op in old.body:
        if op is turn.last:
            add(gpu.AsyncWait(turn.wait.pending))
            following = _read(turn, add, mapping)
        if op.terminator:
            yielded = [mapping.get(value, value) for value in op.operands]
            add(scf.Yield([*yielded, *following]))
        elif op is not turn.wait and op not in turn.loads:
            add(op.clone(mapping))
    inits = [old.lower, old.upper, old.step, *old.init, *first]
    new = before(build(scf.For, inits, old.attributes, [body], old.loc))
    old.replace_with(new.outs[: len(old.outs)])


def _read(turn: _Turn, add: Builder, mapping: dict[Value, Value] | None) -> list[Value]:
    """Read the first fragments: of the iteration after that of `mapping`, or of the first."""
    slots: dict[gpu.SharedStage, Value] = {}
    values: list[Value] = []
    for load, slot in turn.loads.items():
        if slot not in slots:
            index, ahead = turn.loop.init[slot.index.index - 1], 0
            if mapping is not None:
                index, ahead = mapping[slot.index], 1
            slots[slot] = add(gpu.SharedStage(slot.buffer, index, ahead)).out
        copy = add(load.clone({slot.out: slots[slot]}))
        values.append(copy.results[0])
    return values

"""Release what a producer fills as soon as its last reader is done.

`specialize_warps` places an arrival after the loop whose dots read a buffer, as it does for the
queries of attention, which all iterations read. Then dots are moved: the last iteration of a loop
whose scores run ahead is peeled, and stands between the loop and the arrival, though it reads no
queries. Meanwhile the producer waits, and with it all that it would load for the next tile.

Where the last reader is in a branch, as a loop is that runs its first iteration ahead if it has any, the
arrival goes into both arms.

Invariant: an arrival comes after every op that reads what it releases, and after the wait for every
dot that does.
"""

from __future__ import annotations

from collections.abc import Iterator

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.dialects import arith, mbarrier, roles, scf, wgmma
from aotc.ir.effects import Resource, Trait
from aotc.ir.rewrite import Builder, is_inside, is_pure
from aotc.ir.walks import users_through_views
from aotc.schedule.analysis.alias import allocation_of
from aotc.schedule.analysis.loop_bounds import lowered_bounds
from aotc.schedule.context import Schedule
from aotc.schedule.warp_roles.read_ends import done_at


def release_early(kernel: Kernel, schedule: Schedule) -> None:
    """Move arrivals of consumers up to where what they release has been read."""
    del schedule
    for role in [op for op in kernel.body if isinstance(op, roles.Specialize)]:
        filled, again = _filled_after(role), _awaited_again(role)
        arrivals: dict[Value, list[mbarrier.MbarrierArrive]] = {}
        for op in role.consumers.walk():
            if isinstance(op, mbarrier.MbarrierArrive):
                arrivals.setdefault(allocation_of(op.barrier), []).append(op)
        for barrier, ops in arrivals.items():
            if len(ops) == 1 and barrier in filled:
                _move_up(ops[0], filled[barrier], is_again=barrier in again)


def _filled_after(role: roles.Specialize) -> dict[Value, dict[Value, None]]:
    """Return the buffers that the producer fills after it has waited at each mbarrier."""
    filled: dict[Value, dict[Value, None]] = {}
    for op in role.producer.walk():
        buffers = [getattr(op, effect.of) for effect in op.effects_on(Resource.SHARED, "write")]
        if not buffers or not op.effects_on(Resource.MBARRIER, "start"):
            continue
        wait = op.prev
        while wait is not None and not isinstance(wait, mbarrier.MbarrierWait):
            wait = wait.prev
        if wait is not None:
            allocations = filled.setdefault(allocation_of(wait.barrier), {})
            allocations.update(dict.fromkeys(map(allocation_of, buffers)))
    return filled


def _awaited_again(role: roles.Specialize) -> dict[Value, None]:
    """Return the mbarriers that the producer waits at more than once: the first time it waits for no arrival.

    It waits once for buffers that are filled once in a program, unless a CTA runs several programs.
    """
    waits: dict[Value, dict[Op, bool]] = {}
    for op in role.producer.walk():
        if isinstance(op, mbarrier.MbarrierWait):
            is_in_loop = any(ancestor.has(Trait.LOOP) for ancestor in op.ancestors())
            waits.setdefault(allocation_of(op.barrier), {})[op] = is_in_loop
    return {ancestor: None for ancestor, ops in waits.items() if len(ops) > 1 or any(ops.values())}


def _move_up(
    arrival: mbarrier.MbarrierArrive, buffers: dict[Value, None], *, is_again: bool
) -> None:
    block = arrival.block
    assert block is not None
    readers = [reader for buffer in buffers for reader in _readers(buffer)]
    if not readers or not all(_is_in(reader, block) for reader in readers):
        return
    ends: dict[Op, Op] = {}
    for reader in readers:
        end = done_at(reader, block)
        if end is None or end[1]:
            return  # it is done an iteration later
        ends[reader] = end[0]
    order = {op: number for number, op in enumerate(block)}
    last = max(ends.values(), key=order.__getitem__)
    inputs = _inputs(arrival, order[last], order)
    if order[last] >= order[arrival] or not all(map(is_pure, inputs)):
        return
    into_arms = isinstance(last, scf.If) and not any(_uses(op, last) for op in [*inputs, arrival])
    for op in inputs:
        op.remove()
    builder = Builder.before_op(last) if into_arms else Builder.after_op(last)
    for op in inputs:
        builder(op)
    if into_arms:
        readers = [reader for reader, op in ends.items() if op is last]
        _arrive_in_arms(arrival, last, readers, is_again=is_again)
        arrival.erase()
    else:
        arrival.remove()
        Builder.after_op(inputs[-1] if inputs else last)(arrival)


def _arrive_in_arms(
    arrival: mbarrier.MbarrierArrive, branch: Op, readers: list[Op], *, is_again: bool
) -> None:
    """Arrive in every arm of a branch, after the readers in it, which are waited for there."""
    for arm in branch.blocks:
        order = {op: number for number, op in enumerate(arm)}
        last: Op | None = None
        for reader in readers:
            if not _is_in(reader, arm):
                continue
            end = done_at(reader, arm)
            if end is None or end[1]:
                reader.error("is waited for outside of its branch")
            last = end[0] if last is None else max(last, end[0], key=order.__getitem__)
        if isinstance(last, scf.If):
            inside = [candidate for candidate in readers if is_inside(candidate, last)]
            _arrive_in_arms(arrival, last, inside, is_again=is_again)
            continue
        builder = Builder(arm, arm.first) if last is None else Builder.after_op(last)
        if is_again and isinstance(last, scf.For) and _runs_in(last, arm):
            inside = [candidate for candidate in readers if is_inside(candidate, last)]
            if _arrive_in_last_iteration(arrival, last, inside):
                continue
        builder(arrival.clone({}))


def _runs_in(loop: scf.For, arm: Block) -> bool:
    """Return whether a loop has an iteration, as its branch says."""
    branch = arm.parent
    test = branch.condition.op if isinstance(branch, scf.If) and branch.then is arm else None
    return (
        isinstance(test, arith.Compare)
        and test.predicate == "lt"
        and (test.lhs, test.rhs) == (loop.lower, loop.upper)
    )


def _arrive_in_last_iteration(
    arrival: mbarrier.MbarrierArrive, loop: scf.For, readers: list[Op]
) -> bool:
    """Arrive in the last iteration of a loop, after readers in it are done; return whether that is worth it.

    It is if dots of an iteration are in flight when the next one begins: those of the last one then take
    threads the time to compute with others.
    """
    waits = [op for op in loop.body if isinstance(op, wgmma.WgmmaWait)]
    reader_ends = [done_at(end, loop.body) for end in readers]
    ends = [end[0] for end in reader_ends if end is not None and not end[1]]
    if len(ends) < len(reader_ends) or not any(op.values[0] in loop.carried for op in waits):
        return False
    order = {op: number for number, op in enumerate(loop.body)}
    builder = Builder.after_op(max(ends, key=order.__getitem__))
    bound = lowered_bounds(loop, 1, Builder.before_op(loop))[1]
    is_last = builder(arith.Compare(loop.induction, bound, "ge")).out
    builder(mbarrier.MbarrierArrive(arrival.barrier, arrival.count, is_last, arrival.num_ctas))
    return True


def _is_in(op: Op, block: Block) -> bool:
    return any(outer.block is block for outer in (op, *op.ancestors()))


def _uses(op: Op, of: Op) -> bool:
    return any(value.op is of for value in op.operands)


def _readers(buffer: Value) -> Iterator[Op]:
    """Yield the ops that read a buffer, a stage or a view of it."""
    for user in users_through_views(buffer):
        if not user.has(Trait.ALIAS) and not user.effects_on(Resource.MBARRIER, "start"):
            yield user


def _inputs(op: Op, after: int, order: dict[Op, int]) -> list[Op]:
    """Return the ops of its block after number `after` that an op needs, in order."""
    inputs: dict[Op, None] = {}
    worklist = [op]
    while worklist:
        for value in worklist.pop().operands:
            if value.op is not None and order.get(value.op, -1) > after and value.op not in inputs:
                inputs[value.op] = None
                worklist.append(value.op)
    return sorted(inputs, key=order.__getitem__)

"""Two dots of a loop, the second of what threads compute with the first: what runs an iteration ahead.

Attention is such a loop: scores are a dot, weights are computed with them (the softmax), and the
second dot adds the weighted values to an accumulator. The loop

    for i: s = dot i; wait for s; p = weights of s; acc = scale acc; acc += p @ values i; wait for acc

becomes

    s = dot 0; wait for s; p = weights of s
    for i: start s = dot i + 1; acc = scale acc; start acc += p @ values i
           wait for s; p' = weights of s
           wait for acc; p = p'
    acc = scale acc; acc += p @ the last values; wait for acc

so the tensor cores have both dots while threads compute weights. Weights become the operand of the next
dot only when the last one has been waited for, since that reads its operand from registers.

Invariant: what is computed with the accumulator of the second dot keeps its iteration; of all else no op
with an effect is moved but waits for the first dot's operands, the dot, its wait, reads of rows that a
producer loads, tiles that CTAs of a cluster exchange, and arrivals that give what is read back, unless
others read the same stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from aotc.ir.core import Op, Value
from aotc.ir.diagnostics import at
from aotc.ir.dialects import cluster, gpu, mbarrier, scf, tma, wgmma
from aotc.ir.effects import Resource, Trait
from aotc.ir.rewrite import Builder, is_pure, is_unobserved
from aotc.ir.types import SharedType
from aotc.schedule.analysis.alias import is_written_by_threads, stage_of
from aotc.schedule.analysis.global_order import free_operands, synchronizes
from aotc.schedule.pipelining.loop_schedule import LoopSchedule, Step

_FEWEST_STAGES = 2
# What stands between the first dots and weights, with effects of its own, and runs ahead with them.
_FED = (wgmma.WgmmaWait, cluster.ClusterPermute)
_CHEAP = (Trait.SHAPE_ONLY, Trait.SAME_VALUES, Trait.VIEW)


@dataclass(frozen=True)
class DotChain:
    """The ops of a loop that run an iteration ahead of its second dots.

    `issue` starts the first dots, `reads` are of what comes with their operands, `compute` waits for the dots
    and computes weights, `fills` wait for what the second dots read, and `fragments` turn weights into their
    operands.
    """

    issue: Sequence[Op]
    reads: Sequence[Op]
    compute: Sequence[Op]
    fills: Sequence[Op]
    fragments: Sequence[Op]
    seconds: Sequence[wgmma.Wgmma]

    def schedule(self, loop: scf.For) -> LoopSchedule:
        """Return the schedule of the loop."""
        reads = [*self.reads]
        if reads:
            with at(reads[-1].loc):
                reads.append(Builder.after_op(reads[-1])(tma.ProxyFence()))
        ahead = {*self.issue, *reads, *self.compute, *self.fills, *self.fragments}
        # Of pure ops those that the second chain computes with stay; the rest is computed on demand.
        late = _depending(loop, [dot.out for dot in self.seconds])
        rest = [op for op in loop.body if not op.terminator and op not in ahead]
        rest = [op for op in rest if op in late or not is_pure(op)]
        position = rest.index(self.seconds[-1]) + 1
        steps = [Step(op, 1) for op in (*self.issue, *reads)]
        steps += [Step(op) for op in rest[:position]]
        steps += [Step(op, 1) for op in (*self.compute, *self.fills)]
        after = [index for index, op in enumerate(rest) if isinstance(op, wgmma.WgmmaWait)][-1] + 1
        steps += [Step(op) for op in rest[position:after]]
        steps += [Step(op, 1) for op in self.fragments]
        steps += [Step(op) for op in rest[after:]]
        return LoopSchedule(loop, steps)


def find_chain(
    loop: scf.For, firsts: Sequence[wgmma.Wgmma], issue: Sequence[Op]
) -> DotChain | None:
    """Return what of a loop can run ahead of the dots that `firsts` feed; None without such dots.

    `issue` are the ops with effects that start `firsts`.
    """
    seconds = [op for op in loop.body if isinstance(op, wgmma.Wgmma) and op not in firsts]
    late = _depending(loop, [dot.out for dot in seconds])
    fed = _forward(loop, [dot.out for dot in firsts])
    is_chain = seconds and not any(dot in late for dot in firsts)
    if not is_chain or not all(_is_fed(dot, fed, late) for dot in seconds):
        return None
    waits = [op for op in fed if isinstance(op, _FED) and op not in late]
    early = [op for op in fed if op not in late and is_pure(op)]
    fragments = {dot.a.op: None for dot in seconds if dot.a.op is not None}
    trimmed = _without_cheap_tail(early, fragments)
    early_ops = (op for op in (*trimmed, *waits) if op not in fragments)
    if any(value.op in fragments for op in early_ops for value in free_operands(op)):
        # They would be computed while the second dots read those of the iteration before.
        return None
    loads = _loads_of(loop, [*trimmed, *fragments], {*issue, *waits, *early})
    if loads is None:
        return None
    arrives = _arrivals(loop, [*firsts, *loads], seconds[0])
    order = {op: number for number, op in enumerate(loop.body)}
    reads = _reads_ahead_of_stores(loop, [op for op in loads if op not in issue])
    compute = {*waits, *loads, *arrives, *trimmed} - {*issue, *fragments, *reads}
    fills = [op for op in _fills(loop, seconds) if op not in issue and op not in loads]
    compute, fragments = (sorted(ops, key=order.__getitem__) for ops in (compute, fragments))
    return DotChain(issue, reads, compute, fills, fragments, seconds)


def keeps_all_stages(firsts: Sequence[wgmma.Wgmma], seconds: Sequence[wgmma.Wgmma]) -> bool:
    """Return whether both dots, an iteration apart, would read all stages of one buffer.

    So it is where keys are values, too, and have two stages: nothing could be loaded meanwhile.
    """
    read = [stage.buffer for stage in stages_of(firsts)]
    shared = [stage for stage in stages_of(seconds) if stage.buffer in read]
    return any(_num_stages(stage) <= _FEWEST_STAGES for stage in shared)


def _is_fed(dot: wgmma.Wgmma, fed: dict[Op, None], late: dict[Op, None]) -> bool:
    """Return whether a dot takes from registers what was computed with others alone."""
    op = dot.a.op
    return not isinstance(dot.a.type, SharedType) and op in fed and op not in late and is_pure(op)


def _forward(loop: scf.For, roots: Iterable[Value]) -> dict[Op, None]:
    """Return the ops of the loop's body that need the roots in the same iteration, in order."""
    reached: dict[Value, None] = dict.fromkeys(roots)
    users: dict[Op, None] = {}
    for op in loop.body:
        if not op.terminator and any(value in reached for value in free_operands(op)):
            users[op] = None
            reached.update(dict.fromkeys(op.results))
    return users


def _depending(loop: scf.For, roots: Sequence[Value]) -> dict[Op, None]:
    """Return the ops that need the roots, in the same iteration or through carried variables."""
    reached: dict[Value, None] = dict.fromkeys(roots)
    while True:
        users = _forward(loop, reached)
        results = [*reached, *(value for op in users for value in op.results)]
        yields = loop.body.terminator.operands
        carried = [arg for arg, value in zip(loop.carried, yields, strict=True) if value in results]
        new = [arg for arg in carried if arg not in reached]
        if not new:
            return users
        reached.update(dict.fromkeys(new))


def _without_cheap_tail(early: Sequence[Op], fragments: dict[Op, None]) -> list[Op]:
    """Leave out ops that spread what was computed for the second chain alone.

    A factor of each row is carried to the next iteration, not the tile that it is broadcast to.
    """
    trimmed = dict.fromkeys(early)
    for op in reversed(early):
        is_needed = op in fragments or any(
            user in trimmed or user.terminator for value in op.results for user in value.users
        )
        if not is_needed and op.has(*_CHEAP):
            del trimmed[op]
    return list(trimmed)


def _loads_of(loop: scf.For, ops: Sequence[Op], visited: Iterable[Op]) -> dict[Op, None] | None:
    """Return the loads that ops need besides what is known; None if they need other effects.

    Of what a producer loads those are the wait for it and the read. If the loop writes memory, an iteration
    early a load may read what was there before.
    """
    seen, loads = dict.fromkeys(visited), dict[Op, None]()
    worklist = [value.op for op in ops for value in free_operands(op)]
    while worklist:
        op = worklist.pop()
        if op is None or op.block is not loop.body or op in seen:
            continue
        seen[op] = None
        stage = stage_of(op.buffer) if isinstance(op, gpu.SharedLoad) else None
        if stage is not None and not is_written_by_threads(stage.out, loop):
            filled = mbarrier_ops(_before(loop, op), mbarrier.MbarrierWait, [stage])
            loads.update(dict.fromkeys([*filled, op]))
        elif not is_pure(op):
            if not isinstance(op, gpu.Load) or not is_unobserved(op) or _writes(loop):
                return None
            loads[op] = None
        worklist += [value.op for value in free_operands(op)]
    return loads


def _reads_ahead_of_stores(loop: scf.For, loads: Sequence[Op]) -> list[Op]:
    """Return reads of what comes with the operands of the first dots, if the loop stores.

    They are fenced before the stage is given back, and a fence waits for what threads have stored to memory,
    too. Ahead of the stores it need not.
    """
    stores = any(isinstance(op, gpu.Store) for op in loop.body.walk())
    if not stores or not all(isinstance(op, gpu.SharedLoad) for op in loads):
        return []
    return [op for op in loop.body if op in loads]


def _writes(loop: scf.For) -> bool:
    return any(op.writes(Resource.GLOBAL) or synchronizes(op) for op in loop.body.walk())


def _arrivals(loop: scf.For, readers: Sequence[Op], second: Op) -> list[Op]:
    """Return the arrivals that give back what nothing else reads, ahead of the second dot."""
    other_reads = [op for op in loop.body.walk() if op.reads(Resource.SHARED) and op not in readers]
    shared = [stage.index for stage in stages_of(other_reads)]
    stages = [stage for stage in stages_of(readers) if stage.index not in shared]
    return mbarrier_ops(_before(loop, second), mbarrier.MbarrierArrive, stages)


def _before(loop: scf.For, end: Op) -> Iterator[Op]:
    return takewhile(lambda op: op is not end, loop.body)


def stages_of(ops: Iterable[Op]) -> list[gpu.SharedStage]:
    """Return the stages of rings that ops take as operands."""
    return [stage for op in ops for value in op.operands if (stage := stage_of(value))]


def _fills(loop: scf.For, seconds: Sequence[wgmma.Wgmma]) -> list[Op]:
    """Return the waits for what the second dots read, if the next iteration has another stage."""
    stages = [stage for dot in seconds if (stage := stage_of(dot.b))]
    if any(_num_stages(stage) < _FEWEST_STAGES for stage in stages):
        return []
    return mbarrier_ops(_before(loop, seconds[0]), mbarrier.MbarrierWait, stages)


def mbarrier_ops(
    ops: Iterable[Op],
    kind: type[mbarrier.MbarrierArrive | mbarrier.MbarrierWait],
    stages: Sequence[gpu.SharedStage],
) -> list[Op]:
    """Return those of ops of a kind that are on mbarriers of the stages."""
    indices = [stage.index for stage in stages]
    mbarriers: list[Op] = []
    for op in ops:
        if isinstance(op, kind):
            stage = stage_of(op.barrier)
            if stage is not None and stage.index in indices:
                mbarriers.append(op)
    return mbarriers


def _num_stages(stage: gpu.SharedStage) -> int:
    assert isinstance(stage.buffer.type, SharedType)
    return stage.buffer.type.num_stages

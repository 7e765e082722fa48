"""Two dots of a loop with an exchange between CTAs in between: an iteration for the exchange.

What threads compute with the first dot they give to another CTA, and the second dot is of what they take
from one. A tile is on its way for as long as a dot takes, so an iteration that gives, takes and then
multiplies has the tensor cores wait for it, even if its first dot is an iteration ahead (`chained_dots`). So
here it is two ahead:

    for i: start s = dot i + 2; start acc += p @ values i
           p' = what was given an iteration ago, and w
           wait for s; w = weights of s; give w
           wait for acc; p = p'

The loop is expanded twice. First what ends with giving runs an iteration ahead of all else, then all of that
loop but its second dots.

Invariant: tiles are taken in the order in which they are given, one iteration later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aotc.ir.core import Op
from aotc.ir.dialects import cluster, gpu, mbarrier, scf, wgmma
from aotc.ir.rewrite import Builder, is_pure
from aotc.ir.types import SharedType, TileType
from aotc.schedule.analysis.global_order import free_operands
from aotc.schedule.pipelining.chained_dots import (
    DotChain,
    depending,
    fills_ahead,
    forward,
    mbarrier_ops,
    stages_of,
)
from aotc.schedule.pipelining.expand_loop import expand_loop
from aotc.schedule.pipelining.loop_schedule import LoopSchedule, Step

# What else has an effect stays in the order of the program, which these change.
_MOVED = (
    *(wgmma.Wgmma, wgmma.WgmmaWait, mbarrier.MbarrierWait, mbarrier.MbarrierArrive),
    *(gpu.SharedLoad, cluster.ClusterPermute),
)


def exchanges_of(loop: scf.For, chain: DotChain) -> list[cluster.ClusterPermute]:
    """Return the exchanges between the dots of a chain that can take an iteration.

    Where a CTA gives and takes nothing it runs ahead of the one that does: there is nothing to wait for.
    """
    found = [op for op in chain.compute if isinstance(op, cluster.ClusterPermute)]
    others = [op for op in loop.body if not isinstance(op, _MOVED) and not op.terminator]
    if any(cluster.NOBODY in op.to for op in found) or not all(map(is_pure, others)):
        return []
    return found


def advance_exchanges(loop: scf.For, chain: DotChain, first_number: int) -> None:
    """Expand a loop so that its exchanges, numbered from `first_number` on, take an iteration."""
    gives: list[Op] = []
    for number, op in enumerate(exchanges_of(loop, chain), first_number):
        place, kind = Builder.before_op(op), op.value.type
        assert isinstance(kind, TileType)
        give = place(cluster.ClusterGive(op.value, op.to, number))
        op.replace_with([place(cluster.ClusterTake(give.out, kind, op.to, number)).out])
        gives.append(give)
    expanded = expand_loop(_until_given(loop, chain, gives))
    expand_loop(_but_second_dots(expanded.loop))


def _until_given(loop: scf.For, chain: DotChain, gives: Sequence[Op]) -> LoopSchedule:
    """Return the schedule by which what tiles that are given are computed from runs an iteration ahead."""
    needed = _needed_by(loop, gives)
    needed |= {op: None for op in chain.compute if isinstance(op, mbarrier.MbarrierArrive)}
    fed = forward(loop, [op.out for op in chain.issue if isinstance(op, wgmma.Wgmma)])
    computed = [op for op in loop.body if op in needed and (op in fed or not is_pure(op))]
    computed = [op for op in computed if op not in chain.issue]
    rest = _rest(loop, [*chain.issue, *computed], chain.seconds)
    place = rest.index(chain.seconds[-1]) + 1
    steps = _steps(chain.issue, 1) + _steps(rest[:place])
    steps += _steps(computed, 1) + _steps(rest[place:])
    return LoopSchedule(loop, steps)


def _but_second_dots(loop: scf.For) -> LoopSchedule:
    """Return the schedule of a loop that gives ahead by which all but its second dots runs ahead."""
    body = [op for op in loop.body if not op.terminator]
    dots = [op for op in body if isinstance(op, wgmma.Wgmma)]
    seconds = [dot for dot in dots if not isinstance(dot.a.type, SharedType)]
    first = max(body.index(dot) for dot in dots if dot not in seconds)
    issue = [op for op in body[: first + 1] if not is_pure(op)]
    late = depending(loop, [dot.out for dot in seconds])
    begun = [op for op in body if isinstance(op, cluster.ClusterTake)]
    using = {*begun, *forward(loop, [op.out for op in begun])} - {*late}
    begun += [op for op in body if isinstance(op, wgmma.WgmmaWait) and op not in late]
    fed = forward(loop, [value for op in begun for value in op.results])
    released = mbarrier_ops(body, mbarrier.MbarrierArrive, stages_of(seconds))
    filled = mbarrier_ops(body, mbarrier.MbarrierWait, stages_of(seconds))
    fragments = [op for op in body if any(dot.a.op is op for dot in seconds)]
    known = {*issue, *late, *released, *filled, *fragments, *seconds}
    computed = [op for op in body if op not in known and (op in fed or not is_pure(op))]
    fills = [op for op in fills_ahead(loop, seconds) if op not in issue]
    # What is read is fenced before the next copy may come, and a fence waits for what has been given. So all
    # is read before that.
    reads = [op for op in computed if isinstance(op, gpu.SharedLoad)]
    taken = [op for op in computed if op in using]
    given = [op for op in computed if op not in reads and op not in using]
    rest = _rest(loop, [*issue, *computed, *fills, *fragments], seconds)
    place = rest.index(seconds[-1]) + 1
    after = [index for index, op in enumerate(rest) if isinstance(op, wgmma.WgmmaWait)][-1] + 1
    steps = _steps(issue, 1) + _steps(rest[:place])
    steps += _steps([*reads, *taken, *given, *fills], 1)
    steps += _steps(rest[place:after]) + _steps(fragments, 1) + _steps(rest[after:])
    return LoopSchedule(loop, steps)


def _steps(ops: Iterable[Op], distance: int = 0) -> list[Step]:
    return [Step(op, distance) for op in ops]


def _rest(loop: scf.For, ahead: Sequence[Op], seconds: Sequence[wgmma.Wgmma]) -> list[Op]:
    """Return the ops that stay: those with effects, and what is computed with second dots."""
    late = depending(loop, [dot.out for dot in seconds])
    rest = [op for op in loop.body if not op.terminator and op not in ahead]
    return [op for op in rest if op in late or not is_pure(op)]


def _needed_by(loop: scf.For, roots: Sequence[Op]) -> dict[Op, None]:
    """Return the ops of the body that roots need in the same iteration, waits for loads included."""
    found: dict[Op, None] = {}
    worklist: list[Op | None] = list(roots)
    while worklist:
        op = worklist.pop()
        if op is None or op in found or op.block is not loop.body:
            continue
        found[op] = None
        if isinstance(op, gpu.SharedLoad):
            worklist += mbarrier_ops(loop.body, mbarrier.MbarrierWait, stages_of([op]))
        worklist += [value.op for value in free_operands(op)]
    return found

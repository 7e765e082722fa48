"""Two dots of a loop with an exchange between CTAs in between: an iteration for the exchange.

What threads compute with the first dot they give to another CTA, and the second dot is of what they take
from one. A tile is on its way for as long as a dot takes, so an iteration that gives, takes and then
multiplies has the tensor cores wait for it, even if its first dot is an iteration ahead (`chained_dots`). So
here it is two ahead:

    for i: start s = dot i + 2; start acc += p @ values i
           wait for s; w' = weights of s; give w'
           p' = what was given an iteration ago, and w
           wait for acc; p = p'; w = w'

The loop is expanded twice. First what ends with giving runs an iteration ahead of all else, then all of that
loop but its second dots.

Invariant: tiles are taken in the order in which they are given, one iteration later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aotc.ir.core import Op, Value
from aotc.ir.dialects import cluster, gpu, mbarrier, scf, wgmma
from aotc.ir.rewrite import Builder, is_pure
from aotc.ir.types import SharedType, TileType
from aotc.schedule.analysis.global_order import free_operands
from aotc.schedule.pipelining.chained_dots import (
    DotChain,
    depending,
    forward,
    mbarrier_ops,
    stages_of,
)
from aotc.schedule.pipelining.expand_loop import expand_loop
from aotc.schedule.pipelining.loop_schedule import LoopSchedule, Step

_AHEAD = 2


def exchanges_of(chain: DotChain) -> list[cluster.ClusterPermute]:
    """Return the exchanges between the dots, if all CTAs give and take; else there is none to wait for."""
    found = [op for op in chain.compute if isinstance(op, cluster.ClusterPermute)]
    return [] if any(cluster.NOBODY in op.to for op in found) else found


def advance_exchanges(loop: scf.For, chain: DotChain, first_number: int) -> None:
    """Expand a loop so that its exchanges, numbered from `first_number` on, take an iteration."""
    gives: list[Op] = []
    for number, op in enumerate(exchanges_of(chain), first_number):
        place, kind = Builder.before_op(op), op.value.type
        assert isinstance(kind, TileType)
        give = place(cluster.ClusterGive(op.value, op.to, number))
        op.replace_with([place(cluster.ClusterTake(give.out, kind, op.to, number)).out])
        gives.append(give)
    expanded = expand_loop(_until_given(loop, chain, gives))
    expand_loop(_but_second_dots(expanded.loop))


def _until_given(loop: scf.For, chain: DotChain, gives: Sequence[Op]) -> LoopSchedule:
    """Return the schedule by which all that giving needs runs an iteration ahead."""
    needed = _needed_by(loop, gives)
    computed = [op for op in loop.body if op in needed and op not in chain.issue]
    first = forward(loop, [dot.out for dot in chain.issue if isinstance(dot, wgmma.Wgmma)])
    computed = [op for op in computed if not is_pure(op) or op in first]
    rest = _rest(loop, {*chain.issue, *computed})
    place = rest.index(chain.seconds[-1]) + 1
    steps = [Step(op, 1) for op in chain.issue]
    steps += [Step(op) for op in rest[:place]]
    steps += [Step(op, 1) for op in computed]
    steps += [Step(op) for op in rest[place:]]
    return LoopSchedule(loop, steps)


def _but_second_dots(loop: scf.For) -> LoopSchedule:
    """Return the schedule of the loop that gives ahead by which all but its second dots is ahead."""
    dots = [op for op in loop.body if isinstance(op, wgmma.Wgmma)]
    seconds = [dot for dot in dots if not isinstance(dot.a.type, SharedType)]
    firsts = [dot for dot in dots if dot not in seconds]
    late = depending(loop, [dot.out for dot in seconds])
    body = list(loop.body)
    arrives = mbarrier_ops(body, mbarrier.MbarrierArrive, stages_of(seconds))
    issue = [op for op in body[: body.index(firsts[-1]) + 1] if not is_pure(op)]
    fragments = {dot.a.op: None for dot in seconds if dot.a.op is not None}
    begun = [op for op in body if isinstance(op, cluster.ClusterTake)]
    begun += [op for op in body if isinstance(op, wgmma.WgmmaWait) and op not in late]
    known = [value for op in begun for value in op.results]
    fed = {*begun, *forward(loop, known)}
    ahead = [
        op
        for op in body
        if not op.terminator
        and op not in (*seconds, *late, *arrives, *issue, *fragments)
        and (op in fed if is_pure(op) else True)
    ]
    takes = [op for op in body if isinstance(op, cluster.ClusterTake)]
    using = {*takes, *forward(loop, [op.out for op in takes])}
    taken, ahead = (
        [op for op in ahead if op in using],
        [op for op in ahead if op not in using],
    )
    rest = _rest(loop, {*issue, *taken, *ahead, *fragments})
    place = rest.index(seconds[-1]) + 1
    after = [index for index, op in enumerate(rest) if isinstance(op, wgmma.WgmmaWait)][-1] + 1
    steps = [Step(op, 1) for op in issue]
    steps += [Step(op) for op in rest[:place]]
    import os
    order = (*taken, *ahead) if os.environ.get("TAKEFIRST") else (*ahead, *taken)
    steps += [Step(op, 1) for op in order]
    steps += [Step(op) for op in rest[place:after]]
    steps += [Step(op, 1) for op in fragments]
    steps += [Step(op) for op in rest[after:]]
    return LoopSchedule(loop, steps)


def _rest(loop: scf.For, ahead: Iterable[Op]) -> list[Op]:
    """Return the ops that stay: those with effects, and what is computed with second dots."""
    dots = [op for op in loop.body if isinstance(op, wgmma.Wgmma) and op not in ahead]
    late = depending(loop, [dot.out for dot in dots])
    rest = [op for op in loop.body if not op.terminator and op not in ahead]
    return [op for op in rest if op in late or not is_pure(op)]


def _needed_by(loop: scf.For, roots: Sequence[Op]) -> dict[Op, None]:
    """Return the ops of the body that roots need in the same iteration, waits for loads included."""
    found: dict[Op, None] = {}
    worklist: list[Op] = list(roots)
    while worklist:
        op = worklist.pop()
        if op in found or op.block is not loop.body:
            continue
        found[op] = None
        if isinstance(op, gpu.SharedLoad):
            worklist += mbarrier_ops(loop.body, mbarrier.MbarrierWait, stages_of([op]))
        worklist += [value.op for value in _values(op) if value.op is not None]
    return found


def _values(op: Op) -> list[Value]:
    return list(free_operands(op))

"""Let two warpgroups issue their dots in turn, so that one computes while the other one multiplies.

Warpgroups that issue at once share the tensor cores: both wait twice as long, and then both compute,
with the tensor cores idle. Nothing moves them apart: whoever is ahead by some cycles stays ahead by
as many, and whatever both wait for, as operands that come late, brings them together. So in a loop
of attention that issues its second dot and the next scores in a row, and waits for both,

    take the turn
    loop:  start scores; pass the turn on; wait for the second dot and the scores; compute
           take the turn; start the second dot
    pass the turn on

The other warpgroup's dots queue behind these, and it computes half an iteration later. The first
warpgroup begins. Stages are waited for within a turn, which the producer fills when both have read
them; they read in the order of turns, so neither waits for what the other will do in a later one.

Invariant: both warpgroups come to as many turns; nothing that a warp decides for itself is around them.
"""

from __future__ import annotations

from itertools import pairwise

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, gpu, roles, scf, wgmma
from aotc.ir.effects import Resource, Trait
from aotc.ir.rewrite import Builder
from aotc.ir.types import TileType
from aotc.schedule.context import Schedule
from aotc.schedule.layout.layouts import WARPGROUP_WARPS

_MIN_DOTS = 2


def take_turns(kernel: Kernel, schedule: Schedule) -> None:
    """Let the two consumer warpgroups of a kernel take turns in loops with dots in a row."""
    del schedule
    if kernel.num_warps != 2 * WARPGROUP_WARPS or kernel.num_consumer_groups > 1:
        return
    for role in [op for op in kernel.body if isinstance(op, roles.Specialize)]:
        loops = [op for op in role.consumers.walk() if isinstance(op, scf.For)]
        rows = [(loop, row) for loop in loops if (row := _dots_in_a_row(loop))]
        for loop, (*scoring, weighing) in rows:
            with at(weighing.loc):
                for builder in (Builder.before_op(loop), Builder.before_op(weighing)):
                    builder(wgmma.Turn("take"))
                for builder in (Builder.after_op(scoring[-1]), Builder.after_op(loop)):
                    builder(wgmma.Turn("pass"))
        if rows and role.consumers.first is not None:
            with at(rows[0][1][0].loc):
                Builder.before_op(role.consumers.first)(wgmma.Turn("begin"))


def _dots_in_a_row(loop: scf.For) -> list[wgmma.Wgmma]:
    """Return the dots of an iteration if that is all a loop does with its scores, and none otherwise.

    All but the last one make scores, which threads compute the operand of the last one with. It is in flight when
    the next iteration begins with its scores.
    """
    ops = list(loop.body.walk())
    dots = [op for op in ops if isinstance(op, wgmma.Wgmma)]
    if len(dots) < _MIN_DOTS or any(op.block is not loop.body for op in dots):
        return []
    written = any(op.writes(Resource.SHARED) or op.writes(Resource.GLOBAL) for op in ops)
    if written or any(op.has(Trait.BARRIER) for op in ops):
        return []  # a barrier within a turn would wait for who waits for the turn
    order = {op: number for number, op in enumerate(loop.body)}
    waits = [order[op] for op in order if isinstance(op, wgmma.WgmmaWait)]
    *scoring, weighing = dots
    if not waits or min(waits) < order[scoring[-1]] or max(waits) > order[weighing]:
        return []
    if not _are_chained(weighing, *scoring):
        return []
    return [] if any(map(_is_of_a_warp, loop.ancestors())) else dots


def _are_chained(weighing: wgmma.Wgmma, scoring: wgmma.Wgmma, *rest: wgmma.Wgmma) -> bool:
    begins = scoring.accumulate is not None and _is_false(scoring.accumulate)
    sums = (dot.acc is before.out for before, dot in pairwise((scoring, *rest)))
    return isinstance(weighing.a.type, TileType) and begins and all(sums)


def _is_false(value: Value) -> bool:
    return isinstance(value.op, arith.Constant) and not value.op.value


def _is_of_a_warp(op: Op) -> bool:
    """Return whether warps may go different ways."""
    return isinstance(op, scf.If) and isinstance(op.condition.op, gpu.WarpAll)

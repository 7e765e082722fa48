"""Let two warpgroups issue their dots in turn, so that one computes while the other one multiplies.

Warpgroups that issue at once share the tensor cores: both wait twice as long, and then both compute,
with the tensor cores idle. Nothing moves them apart: whoever is ahead by some cycles stays ahead by
as many, and whatever both wait for, as operands that come late, brings them together. So in a loop
of attention that issues its second dot and the next scores in a row, and waits for both,

    loop:  compute; take the turn; start dots; pass the turn on; wait for the dots

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
        rows = [row for row in map(_dots_in_a_row, loops) if row]
        for row in rows:
            with at(row[0].loc):
                Builder.before_op(row[0])(wgmma.Turn("take"))
                Builder.after_op(row[-1])(wgmma.Turn("pass"))
                branch = row[-1].parent_op
                if isinstance(branch, scf.If):
                    Builder(branch.orelse, branch.orelse.first)(wgmma.Turn("pass"))
        if rows and role.consumers.first is not None:
            with at(rows[0][0].loc):
                Builder.before_op(role.consumers.first)(wgmma.Turn("begin"))


def _dots_in_a_row(loop: scf.For) -> list[wgmma.Wgmma]:
    """Return the dots of an iteration if that is all a loop does with its scores, and none otherwise.

    Threads compute the operand of the first one, and the others make the next scores, which may be in a branch:
    the last iteration has none.
    """
    ops = list(loop.body.walk())
    dots = [op for op in ops if isinstance(op, wgmma.Wgmma)]
    if len(dots) < _MIN_DOTS:
        return []
    inside, branch = list(loop.body), dots[-1].parent_op
    if isinstance(branch, scf.If) and branch in inside:
        inside = [*inside[: inside.index(branch)], *branch.then]
    if any(op not in inside for op in dots):
        return []
    written = any(op.writes(Resource.SHARED) or op.writes(Resource.GLOBAL) for op in ops)
    if written or any(op.has(Trait.BARRIER) for op in ops):
        return []  # a barrier within a turn would wait for who waits for the turn
    waits = [at for at, op in enumerate(inside) if isinstance(op, wgmma.WgmmaWait)]
    if not waits or min(waits) < inside.index(dots[-1]) or not _are_chained(*dots):
        return []
    return [] if any(map(_is_of_a_warp, dots[-1].ancestors())) else dots


def _are_chained(weighing: wgmma.Wgmma, scoring: wgmma.Wgmma, *rest: wgmma.Wgmma) -> bool:
    begins = scoring.accumulate is not None and _is_false(scoring.accumulate)
    sums = (each.acc is before.out for before, each in pairwise((scoring, *rest)))
    return isinstance(weighing.a.type, TileType) and begins and all(sums)


def _is_false(value: Value) -> bool:
    return isinstance(value.op, arith.Constant) and not value.op.value


def _is_of_a_warp(op: Op) -> bool:
    """Return whether warps may go different ways."""
    return isinstance(op, scf.If) and isinstance(op.condition.op, gpu.WarpAll)

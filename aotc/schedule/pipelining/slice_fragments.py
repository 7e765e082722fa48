"""Slice a dot with operand A in registers along K, to compute a slice while the last one is multiplied.

Weights that threads convert on their way to a dot are such an operand. While a dot is in flight, its
operand must stay in registers, so what follows is computed in others: ptxas would wait for each dot
(C7514) if a loop computed its next operand in the same ones. So the dot

    for i: a = convert(w[i]); acc += a @ x[i]; wait for the dot before

becomes as many dots as there are slices, at least two, each a commit group:

    for i: a = convert(w[i], slice 0); acc += a @ x[i, slice 0]; wait for the dot before
           b = convert(w[i], slice 1); acc += b @ x[i, slice 1]; wait for the dot before

A slice has registers of its own until the dot after it is waited for, in the next iteration if it is
the last one. Slices are as long as their registers allow, so that few instructions wait.

Invariant: every slice is multiplied once, and no more than the newest is in flight when the next one is
computed.
"""

from __future__ import annotations

from aotc.ir.core import Value, build
from aotc.ir.dialects import scf, wgmma
from aotc.ir.rewrite import Builder
from aotc.ir.tiles import tile_shape
from aotc.ir.types import SharedType, TileType, element_of
from aotc.ir.wgmma_tiling import K_BYTES
from aotc.schedule.analysis.register_budget import FRAGMENT_SLICE_BUDGET, registers_of
from aotc.schedule.layout.parts import Parts

_FEWEST_SLICES = 2


def is_computed_in(dot: wgmma.Wgmma, loop: scf.For) -> bool:
    """Return whether operand A is in registers that each iteration of a loop writes."""
    if isinstance(dot.a.type, SharedType):
        return False
    return dot.a.owner is loop.body or (dot.a.op is not None and dot.a.op.block is loop.body)


def slice_elems(dot: wgmma.Wgmma) -> int:
    """Return the K of the slices that operand A can be computed in, 0 if there are none."""
    assert isinstance(dot.a.type, TileType)
    whole, step = dot.a.type.shape[1], 8 * K_BYTES // element_of(dot.a.type).bits
    count = _FEWEST_SLICES
    while registers_of(dot.a) > count * FRAGMENT_SLICE_BUDGET and whole // count > step:
        count *= 2
    size = whole // count
    is_cut = dot.a.op is not None and not dot.size_k and size >= step
    return size if is_cut and Parts(dot.a, dot, 1, movable=()).can_cut(size) else 0


def slice_fragments(loop: scf.For) -> None:
    """Slice the dots of a loop that are in flight with operands that it computes."""
    dots = [op for op in loop.body if isinstance(op, wgmma.Wgmma)]
    sliced = [dot for dot in dots if is_computed_in(dot, loop)]
    if not sliced:
        return
    waits = [op for op in loop.body if isinstance(op, wgmma.WgmmaWait) and op.pending]
    for dot in sliced:
        _slice(dot)
    for wait in waits:
        wait.pending = 1


def _slice(dot: wgmma.Wgmma) -> None:
    """Replace a dot by those of its slices, each but the last with a wait for the one before."""
    size, parts = slice_elems(dot), Parts(dot.a, dot, 1, movable=())
    place = Builder.before_op(dot)
    acc: Value = dot.acc
    begins: Value | None = dot.accumulate
    for start in range(0, tile_shape(dot.a)[1], size):
        if start:
            acc = place(wgmma.WgmmaWait([acc], 1, (dot.num_columns,))).outs[0]
        slots = [parts.part(start, size, place), dot.b, acc, begins]
        attributes = {**dot.attributes, "start_k": start, "size_k": size}
        acc, begins = place(build(wgmma.Wgmma, slots, attributes, (), dot.loc)).results[0], None
    dot.replace_with([acc])
    parts.erase_whole()

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

To cut registers is no instruction, so something in each slice has to write them: an elementwise op, or a
read of shared memory where the operand was exchanged between threads last. If that cannot be, because two
dots take the same operand, say, dots are whole, and wait where the next iteration writes their operands:

    for i: w = load; wait for the dots before; a = convert(w); acc += a @ x[i]; other += a @ y[i]

Invariant: every slice is multiplied once, and no more than the newest is in flight when the registers of
the next one are written; a whole operand is written when no dot that reads it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Op, Value, build
from aotc.ir.dialects import scf, wgmma
from aotc.ir.order import enclosing_in
from aotc.ir.rewrite import Builder, is_inside
from aotc.ir.tiles import tile_shape
from aotc.ir.types import SharedType, TileType, element_of
from aotc.ir.wgmma_tiling import K_BYTES
from aotc.schedule.analysis.register_budget import FRAGMENT_SLICE_BUDGET, registers_of
from aotc.schedule.analysis.register_writers import register_writers
from aotc.schedule.layout.parts import Parts

_FEWEST_SLICES = 2


def is_computed_in(dot: wgmma.Wgmma, loop: scf.For) -> bool:
    """Return whether operand A is in registers that each iteration of a loop writes."""
    if isinstance(dot.a.type, SharedType):
        return False
    return dot.a.owner is loop.body or (dot.a.op is not None and dot.a.op.block is loop.body)


def keeps_registers(dot: wgmma.Wgmma, loop: scf.For) -> bool:
    """Return whether a dot may be in flight while the next iteration begins to compute its operand A."""
    size, parts = _slices(dot, loop)
    return size > 0 and (_writes_slices(parts, dot, loop) or _first_write([dot], loop) is not None)


def slice_fragments(loop: scf.For) -> None:
    """Slice the dots of a loop that are in flight with operands that it computes, or wait before these."""
    dots = [op for op in loop.body if isinstance(op, wgmma.Wgmma)]
    computed = [dot for dot in dots if is_computed_in(dot, loop)]
    if not computed:
        return
    if not all(_writes_slices(_slices(dot, loop)[1], dot, loop) for dot in computed):
        _wait_before_writes(dots, computed, loop)
        return
    waits = [op for op in loop.body if isinstance(op, wgmma.WgmmaWait) and op.pending]
    for dot in computed:
        _slice(dot, loop)
    for wait in waits:
        wait.pending = 1


# ---- slices -----------------------------------------------------------------------------------


def _slices(dot: wgmma.Wgmma, loop: scf.For) -> tuple[int, Parts]:
    """Return the K of slices of operand A, 0 if there are none, and what is computed for each.

    Reads of shared memory are whole where slices are written without them.
    """
    assert isinstance(dot.a.type, TileType)
    whole, step = dot.a.type.shape[1], 8 * K_BYTES // element_of(dot.a.type).bits
    count = _FEWEST_SLICES
    while registers_of(dot.a) > count * FRAGMENT_SLICE_BUDGET and whole // count > step:
        count *= 2
    size = whole // count
    parts = Parts(dot.a, dot, 1, movable=())
    if not _writes_slices(parts, dot, loop):
        read = Parts(dot.a, dot, 1)
        if _writes_slices(read, dot, loop) and read.can_cut(size):
            parts = read
    is_cut = dot.a.op is not None and not dot.size_k and size >= step
    return size if is_cut and parts.can_cut(size) else 0, parts


def _writes_slices(parts: Parts, dot: wgmma.Wgmma, loop: scf.For) -> bool:
    """Return whether the registers of each slice are written with it, or by nothing in the loop."""
    inside = [value.op for value in parts.inside]
    return all(owner in inside or not is_inside(owner, loop) for owner in register_writers(dot.a))


def _slice(dot: wgmma.Wgmma, loop: scf.For) -> None:
    """Replace a dot by those of its slices, each but the last with a wait for the one before."""
    size, parts = _slices(dot, loop)
    builder = Builder.before_op(dot)
    acc: Value = dot.acc
    begins: Value | None = dot.accumulate
    for start in range(0, tile_shape(dot.a)[1], size):
        if start:
            acc = builder(wgmma.WgmmaWait([acc], 1, (dot.num_columns,))).outs[0]
        slots = [parts.part(start, size, builder), dot.b, acc, begins]
        attributes = {**dot.attributes, "start_k": start, "size_k": size}
        acc, begins = builder(build(wgmma.Wgmma, slots, attributes, (), dot.loc)).results[0], None
    dot.replace_with([acc])
    parts.erase_whole()


# ---- whole operands ---------------------------------------------------------------------------


def _first_write(dots: Sequence[wgmma.Wgmma], loop: scf.For) -> Op | None:
    """Return the first op of an iteration that writes operands of dots; None if they are passed to it."""
    owners = [owner for dot in dots for owner in register_writers(dot.a) if is_inside(owner, loop)]
    if loop.body in owners:
        return None
    ops = [owner if isinstance(owner, Op) else owner.parent for owner in owners]
    writes = [enclosing_in(op, loop.body) for op in ops if isinstance(op, Op)]
    order = {op: number for number, op in enumerate(loop.body)}
    return min(writes, key=order.__getitem__, default=None)


def _wait_before_writes(
    dots: Sequence[wgmma.Wgmma], computed: Sequence[wgmma.Wgmma], loop: scf.For
) -> None:
    """Wait for the dots of the iteration before where this one first writes what they read."""
    first_write = _first_write(computed, loop)
    assert first_write is not None
    order = {op: number for number, op in enumerate(loop.body)}
    later = [dot for dot in dots if order[dot] > order[first_write]]
    pending, columns = len(dots) - len(later), tuple(dot.num_columns for dot in later)
    wait = Builder.before_op(first_write)(
        wgmma.WgmmaWait([dot.acc for dot in later], pending, columns)
    )
    for dot, acc in zip(later, wait.outs, strict=True):
        dot.replace_operand(dot.acc, acc)

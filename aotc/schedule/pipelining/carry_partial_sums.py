"""Let each thread carry a sum of its own through a loop, and add up those of all threads once, behind it.

A loop that sums along an axis over which threads are spread, as attention sums the weights of each row,

    s = 0;  for i: s = s * f + sum of x i

exchanges by shuffles, or through shared memory, in every iteration what is needed after the last one. The sum of
what a thread holds is the same linear recurrence, and what it adds up to is s:

    p = 0;  for i: p = p * f + sum of this thread's x i
    s = sum of p over threads

Sums of floats are taken in another order, as they may be of any reduction, and each part is scaled by itself.

Invariant: nothing in the loop uses the sum but the sum itself, which begins at zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from aotc.ir.core import Kernel, Value, clone_block
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, gpu, scf, tile
from aotc.ir.rewrite import Builder, append_carried, pass_on
from aotc.ir.tiles import is_tile, tile_shape
from aotc.ir.types import TileType
from aotc.schedule.cleanup.drop_carried import drop_unused_carried
from aotc.schedule.context import Schedule
from aotc.schedule.layout.decompose_reductions import (
    axis_columns,
    bit_groups,
    layout_of,
    reduce_in_warp,
    split_axis,
)


def carry_partial_sums(kernel: Kernel, schedule: Schedule) -> None:
    """Rewrite every sum of a loop that threads only share after it."""
    del schedule
    for loop in [op for op in kernel.walk() if isinstance(op, scf.For)]:
        sums = [sum_ for arg in loop.carried if (sum_ := _sum_of(loop, arg)) is not None]
        if sums:
            with at(loop.loc):
                _carry_parts(loop, sums)


@dataclass(frozen=True)
class _Sum:
    """What a carried variable of a loop adds up: the next one is it, times a factor, and a reduction."""

    arg: Value
    factor: Value | None
    reduction: tile.Reduce
    across: int
    """The bits of the reduced axis that threads are on."""


def _sum_of(loop: scf.For, arg: Value) -> _Sum | None:
    index = arg.index - 1
    init, total = loop.init[index], loop.body.terminator.operands[index]
    if not loop.outs[index].users or not _is_zero(init):
        return None
    add = total.op
    if not isinstance(add, arith.Add) or add.block is not loop.body or len(total.users) != 1:
        return None
    for carried, added in ((add.lhs, add.rhs), (add.rhs, add.lhs)):
        factor = _factor(carried, arg)
        reduction = added.op
        is_own = len(arg.users) == 1 and len(added.users) == 1
        if is_own and isinstance(reduction, tile.Reduce) and (carried is arg or factor is not None):
            across = _bits_of_threads(reduction)
            if _adds(reduction) and reduction.block is loop.body and across:
                return _Sum(arg, factor, reduction, across)
    return None


def _is_zero(value: Value | None) -> bool:
    op = None if value is None else value.op
    return isinstance(op, arith.Constant) and not op.value


def _factor(product: Value, arg: Value) -> Value | None:
    """Return what a variable is multiplied by, for nothing but the sum."""
    op = product.op
    if not isinstance(op, arith.Mul) or len(product.users) != 1 or op.lhs is op.rhs:
        return None
    return op.rhs if op.lhs is arg else op.lhs if op.rhs is arg else None


def _adds(reduction: tile.Reduce) -> bool:
    ops = list(reduction.combine)
    return len(ops) == 2 and isinstance(ops[0], arith.Add)


def _bits_of_threads(reduction: tile.Reduce) -> int:
    """Return the bits of the axis that lanes and warps are on, 0 if they cannot be told apart."""
    layout, axis = layout_of(reduction.inputs[0]), reduction.axis
    mask = 0
    for basis in (*layout.bases("lane"), *layout.bases("warp")):
        along = basis[axis]
        if along and (along & (along - 1) or sum(map(bool, basis)) > 1 or mask & along):
            return 0
        mask |= along
    return 0 if any(column & mask for column in axis_columns(layout, "register", axis)) else mask


def _carry_parts(loop: scf.For, sums: list[_Sum]) -> None:
    inits: list[Value] = []
    parts: list[Value] = []
    outer = Builder.before_op(loop)
    for partial_sum in sums:
        total = loop.body.terminator.operands[partial_sum.arg.index - 1].op
        assert total is not None
        builder = Builder.before_op(total)
        added = _sum_of_thread(partial_sum, builder)
        part = loop.body.add_arg(added.type, partial_sum.arg.hint)
        scaled = part if partial_sum.factor is None else _scaled(part, partial_sum, builder)
        parts.append(builder(arith.Add(scaled, added)).out)
        inits.append(outer(arith.Constant(0.0, added.type)).out)
    pass_on(loop.body, parts)
    rewritten = append_carried(loop, inits)
    after = Builder.after_op(rewritten)
    for partial_sum, out in zip(sums, rewritten.outs[-len(sums) :], strict=True):
        old = rewritten.outs[partial_sum.arg.index - 1]
        combine = clone_block(partial_sum.reduction.combine, {})
        whole = after(tile.Reduce([out], partial_sum.reduction.axis, combine)).outs[0]
        if whole.type != old.type:
            assert isinstance(old.type, TileType)
            assert old.type.layout is not None
            whole = after(gpu.Convert(whole, old.type.layout)).out
        old.replace_all_uses_with(whole)
    drop_unused_carried(rewritten)


def _sum_of_thread(sum_: _Sum, builder: Builder) -> Value:
    """Return the sum of what each thread holds, with an axis for the threads that share a sum."""
    (value,), axis = sum_.reduction.inputs, sum_.reduction.axis
    groups = bit_groups(layout_of(value).out_bits(f"dim{axis}"), sum_.across)
    parts = split_axis([value], axis, [1 << count for count, _ in groups], builder)
    for number, (_, is_across) in reversed(list(enumerate(groups))):
        if not is_across:
            parts = reduce_in_warp(parts, axis + number, sum_.reduction.combine, builder)
    shape = tile_shape(parts[0])
    rest = len(tile_shape(value)) - axis - 1
    end = len(shape) - rest
    count = 1
    for extent in shape[axis:end]:
        count *= extent
    target = (*shape[:axis], count, *shape[end:])
    return parts[0] if target == shape else builder(tile.Reshape(parts[0], target)).out


def _scaled(part: Value, sum_: _Sum, builder: Builder) -> Value:
    """Return a part times the factor of its sum."""
    assert sum_.factor is not None
    layout, shape = layout_of(part), tile_shape(part)
    if not is_tile(sum_.factor):
        return builder(arith.Mul(part, builder(tile.Splat(sum_.factor, shape, layout)).out)).out
    factor = builder(tile.ExpandDims(sum_.factor, sum_.reduction.axis)).out
    target = layout.broadcast_source(tile_shape(factor))
    if layout_of(factor) != target:
        factor = builder(gpu.Convert(factor, target)).out
    factor = builder(tile.Broadcast(factor, shape, layout)).out
    return builder(arith.Mul(part, factor)).out

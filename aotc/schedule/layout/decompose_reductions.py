"""Decompose reductions across warps: reduce inside each warp, then the warps' results.

A warp reduces its own elements by registers and shuffles (`gpu.reduce`). If warps hold different
slices of the axis, the axis is split into the bits of warps and the others. The others are reduced
in place, leaving one result a warp. A layout conversion puts the results into the registers of
every thread, and they are reduced there. So the exchange through shared memory is an ordinary
conversion of a tiny tile, planned as any other.

Invariant: afterwards there is no `tile.reduce` left, and no `gpu.reduce` crosses warps.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Block, Kernel, Value, clone_block
from aotc.ir.diagnostics import at
from aotc.ir.dialects import gpu, tile
from aotc.ir.layout import LinearLayout
from aotc.ir.rewrite import Builder
from aotc.ir.tiles import tile_shape
from aotc.ir.types import TileType
from aotc.schedule.context import Schedule
from aotc.schedule.layout.layouts import default_blocked, shared_among_warps


def decompose_reductions(kernel: Kernel, schedule: Schedule) -> None:
    """Turn every `tile.reduce` into reductions inside warps."""
    del schedule
    for op in list(kernel.walk()):
        if isinstance(op, tile.Reduce):
            with at(op.loc):
                builder = Builder.before_op(op)
                outs = [*_reduce(list(op.operands), op.axis, op.combine, kernel.num_warps, builder)]
                for position, (new, old) in enumerate(zip(outs, op.results, strict=True)):
                    if isinstance(old.type, TileType) and new.type != old.type:
                        outs[position] = _in_layout_of(new, old, builder)
                op.replace_with(outs)


def _in_layout_of(new: Value, old: Value, builder: Builder) -> Value:
    """Return a result in the layout of the old one, if it is used in other layouts than its own."""
    assert isinstance(old.type, TileType)
    assert old.type.layout is not None
    for user in list(old.users):
        if isinstance(user, gpu.Convert) and user.out.type == new.type:
            user.replace_with([new])
    return builder(gpu.Convert(new, old.type.layout)).out if old.users else new


def layout_of(value: Value) -> LinearLayout:
    """Return the layout of a tile of gpu IR."""
    assert isinstance(value.type, TileType)
    assert value.type.layout is not None
    return value.type.layout


def _reduce(
    inputs: list[Value], axis: int, combine: Block, num_warps: int, builder: Builder
) -> list[Value]:
    layout = layout_of(inputs[0])
    across = warp_bits(layout, axis)
    if across is None:
        layout = default_blocked(tile_shape(inputs[0]), num_warps)
        across = warp_bits(layout, axis) or 0
        inputs = [builder(gpu.Convert(value, layout)).out for value in inputs]
    groups = bit_groups(layout.out_bits(f"dim{axis}"), across)
    inputs = split_axis(inputs, axis, [1 << count for count, _ in groups], builder)
    parts = [is_across for _, is_across in groups]
    while False in parts:
        part = _cheapest(layout_of(inputs[0]), axis, parts)
        inputs = reduce_in_warp(inputs, axis + part, combine, builder)
        del parts[part]
    for _ in parts:
        gathered = in_registers(layout_of(inputs[0]), axis)
        num_rest = gathered.in_bits("register") - gathered.out_bits(f"dim{axis}")
        gathered = shared_among_warps(gathered, num_rest)
        inputs = [builder(gpu.Convert(value, gathered)).out for value in inputs]
        inputs = reduce_in_warp(inputs, axis, combine, builder)
    return inputs


def _cheapest(layout: LinearLayout, axis: int, parts: Sequence[bool]) -> int:
    """Return the part, not across warps, to reduce next: registers first, they need no shuffle."""
    inside = [part for part, is_across in enumerate(parts) if not is_across]
    return min(inside, key=lambda part: any(axis_columns(layout, "lane", axis + part)))


def reduce_in_warp(
    inputs: Sequence[Value], axis: int, combine: Block, builder: Builder
) -> list[Value]:
    """Place a `gpu.reduce` with a copy of `combine`; return its results."""
    return builder(gpu.Reduce(inputs, axis, clone_block(combine, {}))).results


def split_axis(
    inputs: Sequence[Value], axis: int, extents: Sequence[int], builder: Builder
) -> list[Value]:
    """Reshape `axis` into axes of `extents`."""
    shape = tile_shape(inputs[0])
    new_shape = (*shape[:axis], *extents, *shape[axis + 1 :])
    if new_shape == shape:
        return list(inputs)
    return [builder(tile.Reshape(value, new_shape)).out for value in inputs]


def axis_columns(layout: LinearLayout, in_dim: str, axis: int) -> list[int]:
    """Return the contribution of each bit of `in_dim` to the coordinate along `axis`."""
    return [basis[axis] for basis in layout.bases(in_dim)]


def warp_bits(layout: LinearLayout, axis: int) -> int | None:
    """Return the mask of the bits of `axis` on warps.

    None if they are not separable from the rest: a warp bit moves along more than one bit or axis,
    or a register or lane bit is on the same place.
    """
    mask = 0
    for basis in layout.bases("warp"):
        along = basis[axis]
        if along and (along & (along - 1) or sum(map(bool, basis)) > 1 or mask & along):
            return None
        mask |= along
    other_columns = axis_columns(layout, "register", axis) + axis_columns(layout, "lane", axis)
    return None if any(column & mask for column in other_columns) else mask


def bit_groups(bits: int, mask: int) -> list[tuple[int, bool]]:
    """Cut `bits` bits, from the highest, into runs inside or outside of `mask`: (count, is in)."""
    groups: list[tuple[int, bool]] = []
    for bit in reversed(range(bits)):
        inside = bool(mask >> bit & 1)
        if groups and groups[-1][1] == inside:
            groups[-1] = (groups[-1][0] + 1, inside)
        else:
            groups.append((1, inside))
    return groups or [(0, False)]


def in_registers(layout: LinearLayout, axis: int) -> LinearLayout:
    """Return `layout` with all of `axis` in the lowest registers of every thread."""
    rest = layout.reduce(axis).remove_zero_bases().expand_dims(axis)
    extent = layout.shape[axis]
    shape = (*rest.shape[:axis], extent, *rest.shape[axis + 1 :])
    stacked = rest.broadcast_to(shape)
    columns = stacked.columns("register")
    added = extent.bit_length() - 1
    num_old = len(columns) - added
    return stacked.with_columns("register", (*columns[num_old:], *columns[:num_old]))

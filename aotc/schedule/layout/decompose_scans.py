"""Decompose scans across warps: scan the pieces, scan their totals, combine.

Inside a warp, `gpu.scan` needs the low bits of the axis on registers and the next on lanes, each in
order. Higher bits (warps, and the registers that repeat) count pieces. The totals of the pieces go
through an ordinary layout conversion into the registers of every thread. If there are too many,
they go to warps with some of them whole. They are scanned there, and the exclusive prefix of each
piece is combined into it.

Only associativity is used, never commutativity: operands keep their order throughout.

Invariant: afterwards there is no `tile.scan` left.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Block, Kernel, Value, clone_block
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, gpu, scf, tile
from aotc.ir.layout import LinearLayout
from aotc.ir.rewrite import Builder
from aotc.ir.tiles import tile_shape
from aotc.ir.types import I1, SCALARS, U8, ScalarType, element_of
from aotc.schedule.analysis.register_budget import SCAN_TOTALS_LIMIT
from aotc.schedule.context import Schedule
from aotc.schedule.layout.decompose_reductions import (
    in_registers,
    layout_of,
    reduce_in_warp,
    split_axis,
)
from aotc.schedule.layout.layouts import WARP_LANES, blocked


def decompose_scans(kernel: Kernel, schedule: Schedule) -> None:
    """Turn every `tile.scan` into scans inside warps."""
    del schedule
    for op in list(kernel.walk()):
        if isinstance(op, tile.Scan):
            with at(op.loc):
                op.replace_with(_decompose(op, kernel.num_warps, Builder.before_op(op)))


def _decompose(op: tile.Scan, num_warps: int, builder: Builder) -> list[Value]:
    inputs, home = list(op.operands), layout_of(op.operands[0])
    layout = home
    inner_bits = scannable_bits(layout, op.axis)
    if inner_bits is None:
        layout = _scan_layout(tile_shape(inputs[0]), op.axis, num_warps)
        inner_bits = scannable_bits(layout, op.axis) or 0
        inputs = [builder(gpu.Convert(value, layout)).out for value in inputs]
    shape = tile_shape(inputs[0])
    inner = 1 << inner_bits
    pieces = shape[op.axis] // inner
    if pieces == 1:
        outs = _scan(inputs, op, op.axis, builder)
    else:
        inputs = split_axis(inputs, op.axis, (pieces, inner), builder)
        outs = _scan_pieces(inputs, op, num_warps, builder)
        outs = [builder(tile.Reshape(value, shape)).out for value in outs]
    return [
        value if layout_of(value) == home else builder(gpu.Convert(value, home)).out
        for value in outs
    ]


def _scan(
    inputs: Sequence[Value], op: tile.Scan, axis: int, builder: Builder, *, exclusive: bool = False
) -> list[Value]:
    combine = clone_block(op.combine, {})
    return builder(gpu.Scan(inputs, axis, combine, op.reverse, exclusive)).results


def _scan_pieces(
    inputs: Sequence[Value], op: tile.Scan, num_warps: int, builder: Builder
) -> list[Value]:
    """Scan along axes (pieces, inner), at `op.axis` and after it."""
    pieces_axis, inner_axis = op.axis, op.axis + 1
    shape = tile_shape(inputs[0])
    local = _scan(inputs, op, inner_axis, builder)
    last = 0 if op.reverse else shape[inner_axis] - 1
    totals = [_pick(value, inner_axis, last, builder) for value in local]
    per_piece = layout_of(totals[0])
    gathered = _totals_layout(per_piece, pieces_axis, num_warps)
    totals = [builder(gpu.Convert(value, gathered)).out for value in totals]
    before = _scan(totals, op, pieces_axis, builder, exclusive=True)
    before = [builder(gpu.Convert(value, per_piece)).out for value in before]
    wide = [_repeat(value, inner_axis, layout_of(local[0]), builder) for value in before]
    # Joined along a new last axis, the two are combined in order, in registers.
    pairs = [builder(tile.Join(*pair)).out for pair in zip(wide, local, strict=True)]
    combined = reduce_in_warp(pairs, len(shape), op.combine, builder)
    first = shape[pieces_axis] - 1 if op.reverse else 0
    is_first = _at(layout_of(local[0]), pieces_axis, first, builder)
    return [
        builder(arith.Select(is_first, alone, _at_layout(total, alone, builder))).out
        for alone, total in zip(local, combined, strict=True)
    ]


def _totals_layout(per_piece: LinearLayout, axis: int, num_warps: int) -> LinearLayout:
    """Return a layout in which the totals of pieces along `axis` can be scanned."""
    gathered = in_registers(per_piece, axis)
    num_registers = gathered.in_size("register")
    if num_registers <= max(SCAN_TOTALS_LIMIT, per_piece.in_size("register")):
        return gathered
    return _scan_layout(per_piece.shape, axis, num_warps)


def _at_layout(value: Value, like: Value, builder: Builder) -> Value:
    layout = layout_of(like)
    return value if layout_of(value) == layout else builder(gpu.Convert(value, layout)).out


def _at(layout: LinearLayout, axis: int, index: int, builder: Builder) -> Value:
    """Return a mask of the coordinate `index` along `axis`."""
    shape = layout.shape
    line = layout
    for other in reversed(range(len(shape))):
        if other != axis:
            line = line.reduce(other)
    value = builder(tile.Arange(0, shape[axis], line.remove_zero_bases())).out
    constant = builder(arith.Constant(index, value.type)).out
    mask = builder(arith.Compare(value, constant, "eq")).out
    for other in range(len(shape)):
        if other != axis:
            mask = builder(tile.ExpandDims(mask, other)).out
    repeated = layout.broadcast_source(tile_shape(mask))
    if layout_of(mask) != repeated:
        mask = builder(gpu.Convert(mask, repeated)).out
    return builder(tile.Broadcast(mask, shape, layout)).out


def _repeat(value: Value, axis: int, layout: LinearLayout, builder: Builder) -> Value:
    """Repeat a tile along a new `axis`, into `layout`."""
    value = builder(tile.ExpandDims(value, axis)).out
    repeated = layout.broadcast_source(tile_shape(value))
    if layout_of(value) != repeated:
        value = builder(gpu.Convert(value, repeated)).out
    return builder(tile.Broadcast(value, layout.shape, layout)).out


def _pick(value: Value, axis: int, index: int, builder: Builder) -> Value:
    """Return the elements at `index` along `axis`: the only nonzero ones under a mask."""
    element = element_of(value.type)
    assert isinstance(element, ScalarType)
    bits = U8 if element == I1 else SCALARS[f"u{element.bits}"]
    word: Value
    if element == I1:
        word = builder(arith.Cast(value, U8)).out
    else:
        word = builder(arith.Bitcast(value, bits)).out
    zero = builder(arith.Constant(0, word.type)).out
    mask = _at(layout_of(value), axis, index, builder)
    word = builder(arith.Select(mask, word, zero)).out
    (picked,) = reduce_in_warp([word], axis, _or_block(bits), builder)
    if element == I1:
        return builder(arith.Cast(picked, I1)).out
    return builder(arith.Bitcast(picked, element)).out


def _or_block(kind: ScalarType) -> Block:
    block = Block([kind, kind])
    builder = Builder(block)
    builder(scf.Yield([builder(arith.Or(*block.args)).out]))
    return block


def scannable_bits(layout: LinearLayout, axis: int) -> int | None:
    """Return how many low bits of `axis` a warp can scan: registers, then lanes, each in order.

    None if a bit of any thread moves along several bits of the axis at once, or two bits along the
    same. None also if not even the lowest bit can be scanned.
    """
    columns: dict[str, list[int]] = {}
    every: list[int] = []
    for name in ("register", "lane", "warp"):
        along = [basis for basis in layout.bases(name) if basis[axis]]
        if any(sum(map(bool, basis)) > 1 for basis in along):
            return None
        columns[name] = [basis[axis] for basis in along]
        every += columns[name]
    if any(column & (column - 1) for column in every) or len(dict.fromkeys(every)) != len(every):
        return None
    bits = layout.out_bits(f"dim{axis}")
    bit = 0
    while bit < bits and 1 << bit in columns["register"]:
        bit += 1
    lanes = columns["lane"]
    for position, column in enumerate(lanes):
        if column != 1 << bit or (position and lanes[position - 1] >= column):
            break
        bit += 1
    return bit if bit or not bits else None


def _scan_layout(shape: tuple[int, ...], axis: int, num_warps: int) -> LinearLayout:
    """Return a layout with a whole `axis` per warp to scan: all warps share the other axes."""
    rank = len(shape)
    order = (axis, *(other for other in reversed(range(rank)) if other != axis))
    lanes = min(WARP_LANES, shape[axis])
    threads, warps = [1] * rank, [1] * rank
    threads[axis] = lanes
    slow = order[-1]
    threads[slow] *= WARP_LANES // lanes
    warps[slow] *= num_warps
    elems = tuple(shape[axis] // lanes if other == axis else 1 for other in range(rank))
    return blocked(shape, elems, tuple(threads), tuple(warps), order)

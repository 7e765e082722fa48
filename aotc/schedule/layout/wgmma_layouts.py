"""Choose the dots for wgmma, and the layouts of their tiles.

A warpgroup multiplies 64 rows at a time and reads B, and A unless it was just computed, from shared
memory: no thread holds them, so they cost neither registers nor `ldmatrix`. Warpgroups split the
rows first. Then each reads all of B but its own slice of A, and its result can be operand A of its
next dot in the same registers.

An operand in shared memory has the widest swizzle that its rows fill. Its contiguous axis is the
one in global memory, as far as the instruction allows it: elements of other than two bytes are
contiguous along K. Its layout is settled once the layout of the threads is known.

Invariant: `ir.wgmma_tiling` finds instructions for every dot chosen here.
"""

from __future__ import annotations

from collections.abc import Mapping

from aotc.ir.core import Op, Value
from aotc.ir.dialects import gpu, tile
from aotc.ir.effects import Trait
from aotc.ir.layout import LinearLayout, log2_exact
from aotc.ir.matrix_access import RUN_BYTES
from aotc.ir.rewrite import Builder
from aotc.ir.tiles import is_elementwise, tile_shape
from aotc.ir.types import FP32, FP64, TileType, element_of
from aotc.ir.wgmma_tiling import K_BYTES, MAX_COLUMNS, MIN_COLUMNS, ROWS, SWIZZLE_PERIOD_BYTES
from aotc.schedule.analysis.register_budget import ACCUMULATOR_LIMIT, TRIMMED_LIMIT
from aotc.schedule.layout.layouts import (
    WARP_LANES,
    WARPGROUP_WARPS,
    blocked,
    nvmma_shared,
    wgmma_accumulator,
    wgmma_operand_a,
)
from aotc.schedule.layout.preferred_layouts import DotLayouts
from aotc.schedule.layout.promoted_dots import product_part, promotion_interval
from aotc.schedule.layout.tensor_copies import write_buffer
from aotc.target import Feature, Target

_SPANS_BYTES = (128, 64, 32)


def wgmma_layouts(
    op: tile.Dot,
    num_warps: int,
    target: Target,
    *,
    replicas: int = 1,
    holds_a: bool = False,
    num_columns: int = 0,
) -> DotLayouts | None:
    """Return the layouts of a dot by wgmma, or None if it has to be computed otherwise.

    Only the first `num_columns` are computed, or the dot's own number. Each of `replicas` parts of
    the warps computes the whole result. With `holds_a` all warpgroups that need a computed operand
    A hold it, not only their own rows.
    """
    warpgroups = _divide(op, num_warps // replicas, num_columns)
    if Feature.WGMMA not in target.features or warpgroups is None or not _has_types(op):
        return None
    a = None
    if (warpgroups[1] == 1 or holds_a) and is_computed(op.a):
        a = wgmma_operand_a(_pair(op.a), warpgroups, element_of(op.a.type).bits)
    acc = wgmma_accumulator(_pair(op.acc), warpgroups, replicas=replicas)
    columns, bits = num_columns or op.num_columns, element_of(op.acc.type).bits
    if promotion_interval(op) and product_part(acc, bits, columns) is None:
        return None
    return DotLayouts((), a, None, acc, wgmma=True)


def warpgroups_along_columns(op: tile.Dot, num_warps: int) -> int:
    """Return how many warpgroups divide the columns of a dot's result; 1 if it is not by wgmma."""
    return (_divide(op, num_warps) or (1, 1))[1]


def operand_buffer(op: tile.Dot, operand: Value, layout: LinearLayout) -> LinearLayout:
    """Return the shared layout of an operand held by threads in layout `layout`."""
    row_axis = 0 if operand is op.a else 1
    bits, shape = element_of(operand.type).bits, _pair(operand)
    contiguous = 1 - row_axis
    if bits == 16 and shape[row_axis] * 2 >= _SPANS_BYTES[-1] and _fastest(layout) == row_axis:
        contiguous = row_axis
    row_bytes = shape[contiguous] * bits // 8
    span = next(span for span in _SPANS_BYTES if span <= row_bytes)
    return nvmma_shared(shape, bits, span, transposed=contiguous == 0)


def _fastest(layout: LinearLayout) -> int | None:
    """Return the axis along which a thread, or else the lanes, hold neighbours."""
    first = [*layout.bases("register")[:1], *layout.bases("lane")[:1]]
    return next((step.index(1) for step in first if sum(step) == 1), None)


def transposing_loads(
    dots: Mapping[Op, DotLayouts], anchors: Mapping[Op, LinearLayout], num_warps: int
) -> dict[Op, LinearLayout]:
    """Return other layouts for loads of operands transposed on the way to shared memory.

    A thread loads a box, with runs along both axes, and neighbouring lanes are along K: then both
    accesses are wide, and the stores of a warp have no bank conflicts.
    """
    box_layouts: dict[Op, LinearLayout] = {}
    for op in dots:
        if not isinstance(op, tile.Dot) or not dots[op].wgmma:
            continue
        for operand, layout in zip((op.a, op.b), dots[op].operands()[:2], strict=True):
            load, row_axis = operand.op, 0 if operand is op.a else 1
            if layout is not None or load is None or load not in anchors:
                continue
            anchor = anchors[load]
            is_only_use = len(operand.users) == 1 and element_of(operand.type).bits != 16
            if is_only_use and _fastest(anchor) == row_axis:
                box_layouts[load] = _box_layout(op, operand, anchor, num_warps)
    return box_layouts


def _box_layout(op: tile.Dot, operand: Value, anchor: LinearLayout, num_warps: int) -> LinearLayout:
    rows = 0 if operand is op.a else 1
    shape, size_bytes = _pair(operand), element_of(operand.type).size_bytes
    share = max(1, shape[0] * shape[1] // (WARP_LANES * num_warps))
    run, box, lanes, warps = anchor.num_consecutive(order=(rows, 1 - rows)), [1, 1], [1, 1], [1, 1]
    box[rows] = min(run, RUN_BYTES // size_bytes)
    box[1 - rows] = min(RUN_BYTES // size_bytes, shape[1 - rows], max(1, share // box[rows]))
    row_of_banks = 8 * RUN_BYTES // size_bytes
    lanes[1 - rows] = min(WARP_LANES, min(shape[1 - rows], row_of_banks) // box[1 - rows])
    lanes[rows] = WARP_LANES // lanes[1 - rows]
    warps[rows] = min(num_warps, max(1, shape[rows] // (box[rows] * lanes[rows])))
    warps[1 - rows] = num_warps // warps[rows]
    layout = blocked(
        shape, (box[0], box[1]), (lanes[0], lanes[1]), (warps[0], warps[1]), (rows, 1 - rows)
    )
    along_rows, columns = log2_exact(lanes[rows]), layout.columns("lane")
    return layout.with_columns("lane", (*columns[along_rows:], *columns[:along_rows]))


def store_operand(value: Value, layout: LinearLayout, target: Target, builder: Builder) -> Value:
    """Write a tile to a new buffer of `layout`; return the buffer."""
    kind = value.type
    assert isinstance(kind, TileType)
    element = gpu.memory_element(kind)
    buffer = builder(
        gpu.SharedAlloc(element, kind.shape, layout, alignment_bytes=SWIZZLE_PERIOD_BYTES)
    ).out
    # A loaded tile may be copied there without passing registers, if no lanes exchange it.
    write_buffer(value, buffer, target, builder, matrices=not _is_loaded(value))
    return buffer


def _is_loaded(value: Value) -> bool:
    op: Op | None = value.op
    while op is not None and op.has(Trait.VIEW):
        op = op.operands[0].op
    return isinstance(op, gpu.Load)


def _pair(value: Value) -> tuple[int, int]:
    rows, columns = tile_shape(value)
    return rows, columns


def _divide(op: tile.Dot, num_warps: int, num_columns: int = 0) -> tuple[int, int] | None:
    bits = element_of(op.acc.type).bits
    return divide_warpgroups(tile_shape(op.acc), bits, num_warps, num_columns or op.num_columns)


def divide_warpgroups(
    shape: tuple[int, ...], bits: int, num_warps: int, num_columns: int = 0
) -> tuple[int, int] | None:
    """Return the warpgroups along M and N of a result, or None without work for all.

    `bits` is the element width; there are at least as many warpgroups along M as along N. Of more
    columns than an instruction has, `num_columns` may be computed, unless that is 0.
    """
    if len(shape) != 2 or shape[0] < ROWS or num_warps % WARPGROUP_WARPS:
        return None
    warpgroups = num_warps // WARPGROUP_WARPS
    along_m = min(warpgroups, shape[0] // ROWS)
    along_n = warpgroups // along_m
    if shape[1] < along_n * MIN_COLUMNS:
        return None
    trims = shape[1] > MAX_COLUMNS and num_columns
    columns, limit = (num_columns, TRIMMED_LIMIT) if trims else (shape[1], ACCUMULATOR_LIMIT)
    registers = shape[0] * columns // (num_warps * 32) * bits // 32
    return (along_m, along_n) if registers <= limit else None


def _has_types(op: tile.Dot) -> bool:
    element = element_of(op.a.type)
    if element == FP64 or (element == FP32 and op.input_precision != "tf32"):
        return False
    return tile_shape(op.a)[1] * element.size_bytes >= K_BYTES


def is_computed(value: Value) -> bool:
    """Return whether a value is in registers anyway: computed, not merely loaded or moved."""
    op: Op | None = value.op
    while isinstance(op, tile.Hint):
        op = op.value.op
    return isinstance(op, tile.Dot) or (op is not None and is_elementwise(op))

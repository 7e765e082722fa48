"""Find the warpgroup of each box of a tile, so it may store its own boxes without the others.

A wgmma's warpgroups hold 64 rows each. If a tensor map's boxes have as many, each warpgroup stores
its own rows after a barrier of its own 128 threads, while the others still compute. Such boxes cost
more copies, so only a tensor stored to by such tiles alone has them.

Invariant: no other warpgroup writes any element of a warpgroup's box.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from aotc.ir import gf2
from aotc.ir.layout import LinearLayout, log2_exact
from aotc.ir.types import TensorMapType
from aotc.ir.wgmma_tiling import ROWS

_GROUP_WARP_BITS = 2
_MIN_AXES = 2
_MIN_SPAN_BYTES = 64  # narrower rows are written by parts of a line


@lru_cache(maxsize=256)
def box_warpgroups(layout: LinearLayout, box: tuple[int, ...]) -> tuple[int, ...]:
    """Return the warpgroup of each box, in order from the last axis, or () if boxes are shared.

    () also if there is one warpgroup only.
    """
    columns = [*layout.columns("register"), *layout.columns("lane"), *layout.columns("warp")]
    first_group_bit = len(columns) - layout.in_bits("warp") + _GROUP_WARP_BITS
    if first_group_bit >= len(columns):
        return ()
    span = gf2.Span(columns)
    if span.rank < sum(bits for _, bits in layout.outs):
        return ()  # other CTAs of a cluster hold some

    def group_of(coords: Sequence[int]) -> int:
        holder = span.solve(layout.pack(coords))
        assert holder is not None
        return holder >> first_group_bit

    for axis, extent in enumerate(box):
        for bit in range(log2_exact(extent)):
            inside = [1 << bit if axis == other else 0 for other in range(len(box))]
            if group_of(inside):
                return ()
    starts = [range(0, size, step) for size, step in zip(layout.shape, box, strict=True)]
    return tuple(map(group_of, itertools.product(*starts)))


def in_warpgroup_boxes(tensor: TensorMapType, layouts: Sequence[LinearLayout]) -> TensorMapType:
    """Return the map with boxes held by warpgroups, or unchanged if some layout has none.

    `layouts` are of the stored tiles. Boxes have fewer rows than the tensor map's, or columns of
    half its swizzle, for a warpgroup's part of a tile stored transposed.
    """
    for smaller in _smaller_maps(tensor) if layouts else ():
        if all(_is_held(layout, smaller.box) for layout in layouts):
            return smaller
    return tensor


def _smaller_maps(tensor: TensorMapType) -> Iterator[TensorMapType]:
    """Yield the maps to try in turn, the given one among them where its boxes may be held already."""
    if len(tensor.box) < _MIN_AXES:
        return
    *outer, rows, columns = tensor.box
    if rows > ROWS:
        yield replace(tensor, box=(*outer, ROWS, columns))
    elif tensor.swizzle_bytes > _MIN_SPAN_BYTES:
        yield tensor
        span_bytes = tensor.swizzle_bytes // 2
        narrow = (*outer, rows, span_bytes // tensor.element.size_bytes)
        yield replace(tensor, box=narrow, swizzle_bytes=span_bytes)


def _is_held(layout: LinearLayout, box: tuple[int, ...]) -> bool:
    return len(layout.shape) == len(box) and bool(box_warpgroups(layout, box))

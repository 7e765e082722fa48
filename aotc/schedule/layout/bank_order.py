"""Permute registers by lane before a shared store, so lanes access different banks.

Where a buffer's layout is given, as by a tensor map, and the fragments of fp32 dots are written to
it, lanes of one phase conflict: all of them write the same columns of their rows first. If half of
them begin with later columns instead, each phase takes one wavefront. In terms of layouts the
column of a lane bit gets a register's column added. The conversion is a select a register:

    register=[…,[0,16],…] lane=[[0,2],[0,4],…]  ->  register=[…,[0,16],…] lane=[[0,2],[0,20],…]

Invariant: no element changes its thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from aotc.ir.core import Value
from aotc.ir.dialects import gpu
from aotc.ir.layout import LinearLayout
from aotc.ir.matrix_access import MatrixMode
from aotc.ir.rewrite import Builder
from aotc.ir.types import SharedType, TileType
from aotc.schedule.layout.conversions import plan_warp_shuffle
from aotc.schedule.layout.scratch import bank_conflicts
from aotc.schedule.layout.tensor_copies import access_cost, buffer_access, write_modes
from aotc.target import Target


def in_bank_order(value: Value, buffer: Value, target: Target, builder: Builder) -> Value:
    """Return a tile in the layout cheapest to write to a buffer."""
    tile_kind, kind = value.type, buffer.type
    assert isinstance(tile_kind, TileType)
    assert isinstance(kind, SharedType)
    assert tile_kind.layout is not None
    modes = write_modes(tile_kind.layout, target)
    layout = bank_order(tile_kind.layout, kind.layout, kind.element.bits, modes)
    return value if layout == tile_kind.layout else builder(gpu.Convert(value, layout)).out


@lru_cache(maxsize=256)
def bank_order(
    layout: LinearLayout, buffer: LinearLayout, element_bits: int, modes: Sequence[MatrixMode]
) -> LinearLayout:
    """Return the layout cheapest for writing a tile of `layout` to a buffer."""
    vector, mode = buffer_access(layout, buffer, element_bits, modes)
    if mode or not bank_conflicts(layout, buffer, vector, element_bits):
        return layout
    num_warps = 1 << layout.in_bits("warp")
    plain_cost = access_cost(layout, buffer, element_bits, modes)
    best, best_cost = layout, plain_cost
    while True:
        costs = {
            neighbour: access_cost(neighbour, buffer, element_bits, ("",))
            for neighbour in _neighbours(best)
        }
        cheapest = min(costs, key=lambda neighbour: costs[neighbour], default=best)
        if costs.get(cheapest, best_cost) >= best_cost:
            break
        best, best_cost = cheapest, costs[cheapest]
    swaps = plan_warp_shuffle(layout, best, element_bits)
    worth = swaps is not None and num_warps * best_cost + swaps.cost < num_warps * plain_cost
    return best if worth else layout


def _neighbours(layout: LinearLayout) -> Iterator[LinearLayout]:
    """Yield the layouts with one lane bit flipping one more register bit."""
    columns = dict(layout.ins)
    lanes = columns["lane"]
    for bit, lane in enumerate(lanes):
        for register in columns["register"]:
            if lane and register:
                changed = (*lanes[:bit], lane ^ register, *lanes[bit + 1 :])
                ins = [(name, changed if name == "lane" else c) for name, c in layout.ins]
                yield LinearLayout.from_columns(ins, layout.outs)

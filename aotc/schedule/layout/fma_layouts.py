"""Layouts of dots on CUDA cores: each thread computes a box of the result by FMAs.

No instruction fixes the shape of a thread's box, so threads divide the result evenly: no element is
computed twice as long as there are enough elements. The chosen division is the one with warps that
read the fewest rows of 128 bytes of the operands from shared memory: an outer product of boxes near
a square.

Invariant: with as many elements of the result as threads, or more, no two threads hold the same.
"""

from __future__ import annotations

from typing import NamedTuple

from aotc.ir.diagnostics import IRError
from aotc.ir.dialects import tile
from aotc.ir.layout import LinearLayout
from aotc.ir.tiles import tile_shape
from aotc.ir.types import element_of
from aotc.schedule.layout.layouts import WARP_LANES, blocked
from aotc.schedule.layout.preferred_layouts import DotLayouts

# Elements of one access of 16 bytes; a thread's box is made of boxes of this edge.
_BOX = 4
_ROW_LANES = 8
_BANKS = 32


class _Division(NamedTuple):
    """Lanes and warps along M and N; a thread computes `rows` by `columns` elements."""

    lanes: tuple[int, int]
    warps: tuple[int, int]
    rows: int
    columns: int


def fma_layouts(op: tile.Dot, num_warps: int, *, along_m: bool) -> DotLayouts:
    """Return the layouts of a dot with a box of the result per thread.

    With `along_m`, as for a chain of dots, a warp holds whole rows if it can.
    """
    shape = tile_shape(op.acc)
    if element_of(op.a.type) != element_of(op.acc.type):
        raise IRError(f"no way to multiply {op.a.type} and {op.b.type}", op.loc)
    *batch, m_size, n_size = shape
    lanes_left, warps_left = WARP_LANES, num_warps
    lanes, warps = [1] * len(batch), [1] * len(batch)
    # Products along the batch share no operand, so batches are divided first: whole ones among
    # warps, and the rest, too small for a warp, among lanes.
    for axis, size in enumerate(batch):
        lanes[axis] = min(size, max(1, lanes_left // (m_size * n_size)))
        warps[axis] = min(size // lanes[axis], warps_left)
        lanes_left, warps_left = lanes_left // lanes[axis], warps_left // warps[axis]
    division = min(_divisions(m_size, n_size, lanes_left, warps_left, along_m=along_m), key=_cost)
    box = (min(_BOX, division.rows), min(_BOX, division.columns))
    rank = len(shape)
    acc = blocked(
        shape,
        (*[1] * len(batch), *box),
        (*lanes, *division.lanes),
        (*warps, *division.warps),
        tuple(range(rank - 1, -1, -1)),
    )
    return DotLayouts(
        (),
        _factor(acc, rank - 1, tile_shape(op.a)),
        _factor(acc, rank - 2, tile_shape(op.b)),
        acc,
    )


def _divisions(
    m_size: int, n_size: int, num_lanes: int, num_warps: int, *, along_m: bool
) -> list[_Division]:
    """Return the divisions with the least recomputation."""
    listed = [
        _Division(
            (num_lanes // lanes_n, lanes_n),
            (num_warps // warps_n, warps_n),
            max(1, m_size * lanes_n * warps_n // (num_lanes * num_warps)),
            max(1, n_size // (lanes_n * warps_n)),
        )
        for lanes_n in _powers(num_lanes)
        for warps_n in _powers(num_warps)
    ]
    fewest = min(division.rows * division.columns for division in listed)
    even = [division for division in listed if division.rows * division.columns == fewest]
    whole_rows = [division for division in even if division.warps[1] == 1]
    return whole_rows if along_m and whole_rows else even


def _cost(division: _Division) -> tuple[int, ...]:
    """Return the costs of a division for every four values of K, the dearest first.

    A thread reads a row of A by one access and `columns` elements of B by four rows of accesses.
    Rows of A read by the lanes of an access lie in different banks, eight lanes at a time.
    """
    lanes_m, lanes_n = division.lanes
    box_n = min(_BOX, division.columns)
    accesses_of_b = _BOX * (division.columns // box_n)
    rows = division.rows * -(-lanes_m // _ROW_LANES)
    rows += accesses_of_b * -(-lanes_n * box_n // _BANKS)
    accesses = division.rows + accesses_of_b
    return rows, accesses, abs(lanes_n - _ROW_LANES), division.columns


def _powers(count: int) -> list[int]:
    """Return the powers of two up to `count`."""
    return [1 << bit for bit in range(count.bit_length())]


def _factor(acc: LinearLayout, axis: int, shape: tuple[int, ...]) -> LinearLayout:
    """Return the layout of a thread's operand for its elements of `acc`: all of K, along `axis`."""
    factor = acc.reduce(axis).remove_zero_bases().expand_dims(axis)
    return factor.broadcast_to(shape)

"""The layout of a tile copied from one shared buffer to another, both given.

Tensor maps determine the layout of tiles in shared memory, so a transposition in between cannot
choose a swizzle as a conversion does (`scratch`). Only the assignment of elements to threads is
free. Where the runs of both buffers are in registers, both accesses are wide. Lanes served together
are chosen to access different banks on either side. With `ldmatrix` and `stmatrix` a lane addresses
rows of 16 bytes, as the swizzles of tensor maps intend.

Invariant: a new layout costs less, reads and writes together, than the current one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from aotc.ir import gf2
from aotc.ir.layout import LinearLayout, log2_exact
from aotc.ir.matrix_access import RUN_BYTES
from aotc.schedule.analysis.costs import SHARED_ACCESS_COST, WAVEFRONT_COST
from aotc.schedule.layout.scratch import LINE_BYTES, phase_lane_bits, wavefronts_per_access
from aotc.schedule.layout.tensor_copies import (
    access_cost,
    read_modes,
    write_modes,
)
from aotc.target import Target

_LANE_BITS = 5
_MATRIX_RUN_BITS = 3
_MATRIX_BYTES = 2
_MAX_STEPS = 1000


@lru_cache(maxsize=256)
def copy_layout(
    current: LinearLayout,
    buffers: tuple[LinearLayout, LinearLayout],
    element_bits: tuple[int, int],
    target: Target,
) -> LinearLayout:
    """Return the best layout to read a tile from the first buffer and write it to the second.

    Both are in terms of the tile read; its elements may have other bits when written.
    """

    def cost(layout: LinearLayout) -> int:
        modes = read_modes(target), write_modes(layout, target)
        sides = zip(buffers, element_bits, modes, strict=True)
        return sum(access_cost(layout, *side) for side in sides)

    sides = [
        _Side(buffer, max(1, bits // 8)) for buffer, bits in zip(buffers, element_bits, strict=True)
    ]
    best, least = current, sum(side.least_cost(current.in_bits("register")) for side in sides)
    for candidate in _candidates(current, sides):
        if cost(best) <= least:
            break
        best = min(best, candidate, key=cost)
    return best


def _candidates(current: LinearLayout, sides: Sequence[_Side]) -> Iterator[LinearLayout]:
    """Yield layouts over as many warps: one of matrices, and the widest without conflicts."""
    num_bits, warp_bits = current.total_out_bits, current.in_bits("warp")
    room = max(0, num_bits - _LANE_BITS - warp_bits)
    if all(side.size_bytes == _MATRIX_BYTES for side in sides) and room:
        # Rows of matrices on one side are columns of them on the other.
        first, second = (side.run for side in sides)
        if gf2.rank([*first, *second]) == 2 * _MATRIX_RUN_BITS:
            yield _filled(current, first[:1], [*first[1:], *second])
    widths = [range(len(side.run) + 1) for side in sides]
    pairs = [(first_width, second_width) for first_width in widths[0] for second_width in widths[1]]
    for bits in sorted(pairs, key=lambda pair: 0.5 ** pair[0] + 0.5 ** pair[1]):
        runs = [side.run[:width] for side, width in zip(sides, bits, strict=True)]
        registers = gf2.independent([*runs[0], *runs[1]])
        if len(registers) <= room:
            lanes = _Search(sides, bits, registers, num_bits).lanes()
            if lanes is not None:
                yield _filled(current, registers, lanes)
                return


class _Side:
    """The offsets of a tile's elements in one buffer; `run` spans 16 bytes of it."""

    def __init__(self, buffer: LinearLayout, size_bytes: int) -> None:
        columns = buffer.columns("offset")
        self.run = list(columns[: log2_exact(RUN_BYTES // size_bytes)])
        self.size_bytes = size_bytes
        self._places = gf2.Span(columns)

    def offset(self, element: int) -> int:
        """Return the offset of an element, in elements."""
        offset = self._places.solve(element)
        assert offset is not None
        return offset

    def least_cost(self, register_bits: int) -> int:
        """Return a lower bound of a warp's cost to access a tile, in terms of `access_cost`."""
        bytes_per_thread = self.size_bytes << register_bits
        wavefronts = max(1, bytes_per_thread * (1 << _LANE_BITS) // LINE_BYTES)
        return (
            SHARED_ACCESS_COST * max(1, bytes_per_thread // RUN_BYTES) + WAVEFRONT_COST * wavefronts
        )

    def in_phase(self, num_elems: int) -> int:
        """Return how many lane bits are served together, by accesses of so many elements."""
        return phase_lane_bits(num_elems * self.size_bytes)


class _Search:
    """Search lanes without bank conflicts on either side, by accesses of 2**`bits` elements."""

    def __init__(
        self, sides: Sequence[_Side], bits: Sequence[int], registers: Sequence[int], num_bits: int
    ) -> None:
        self.sides = sides
        self.widths = [1 << width for width in bits]
        self.registers = registers
        free = [1 << bit for bit in range(num_bits) if self._is_between_vectors(1 << bit)]
        sums = [first ^ second for index, first in enumerate(free) for second in free[index + 1 :]]
        self.pool = [*free, *sums]
        self.count = min(_LANE_BITS, num_bits - len(registers))
        self.steps = 0

    def _is_between_vectors(self, element: int) -> bool:
        side_widths = zip(self.sides, self.widths, strict=True)
        return all(side.offset(element) & (width - 1) == 0 for side, width in side_widths)

    def lanes(self) -> list[int] | None:
        """Return where lane bits lead, or None if none were found in a few steps."""
        return self._extended([])

    def _extended(self, lanes: list[int]) -> list[int] | None:
        if len(lanes) == self.count:
            return lanes
        for element in self.pool:
            self.steps += 1
            if self.steps > _MAX_STEPS:
                return None
            longer = [*lanes, element]
            if gf2.rank([*self.registers, *longer]) == len(self.registers) + len(longer):
                completed = self._extended(longer) if self._is_free(longer) else None
                if completed is not None:
                    return completed
        return None

    def _is_free(self, lanes: Sequence[int]) -> bool:
        for side, width in zip(self.sides, self.widths, strict=True):
            offsets = [side.offset(lane) for lane in lanes[: side.in_phase(width)]]
            if wavefronts_per_access(offsets, width, side.size_bytes) > 1:
                return False
        return True


def _filled(current: LinearLayout, registers: Sequence[int], lanes: Sequence[int]) -> LinearLayout:
    """Return the layout of these registers and lanes, with warps on the farthest elements."""
    num_bits = current.total_out_bits
    units = [1 << bit for bit in range(num_bits)]
    rest = gf2.independent(units, [*registers, *lanes])
    warp_bits = min(current.in_bits("warp"), len(rest))
    warps = rest[len(rest) - warp_bits :]
    idle_lanes = (0,) * (_LANE_BITS - len(lanes))
    idle_warps = (0,) * (current.in_bits("warp") - warp_bits)
    columns_by_input = {
        "register": (*registers, *rest[: len(rest) - warp_bits]),
        "lane": (*lanes, *idle_lanes),
        "warp": (*warps, *idle_warps),
    }
    return LinearLayout.from_columns(
        [(name, columns_by_input.get(name, columns)) for name, columns in current.ins], current.outs
    )

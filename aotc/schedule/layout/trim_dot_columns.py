"""Skip dot columns with unused results.

Tiles have powers of two columns, and a matrix may be better cut otherwise: 112 columns make 64
tiles of 7168, done by 132 SMs in one wave instead of two. A kernel expresses it by storing slices
of the accumulator only, and all else follows from the uses:

    acc (128, 128) -> reshape, trans, split … -> 8 slices of 16 columns, 7 of them stored
    dot: only 112 columns of the accumulator and of B are used

Liveness goes backwards from users, through ops that move elements within a row, accumulators and
carried variables. It is a set of positions in a row, for any axes of the row: (M, 2, 64) has rows
of 128 as (M, 128) has. An op without a rule uses all of its operands.

Only wgmma has instructions for any number of columns, so only its dots are trimmed. Unused rows of
B are known later, with the buffers (`trim_operand_loads`).

Invariant: no skipped element reaches memory, a branch, or a used element.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import tile
from aotc.ir.effects import Trait
from aotc.ir.rewrite import is_pure
from aotc.ir.tiles import is_elementwise, is_tile, joins_of, tile_shape
from aotc.ir.types import element_of
from aotc.ir.wgmma_tiling import instruction_columns
from aotc.schedule.context import Schedule
from aotc.schedule.layout.wgmma_layouts import wgmma_layouts
from aotc.schedule.remarks import Remark
from aotc.target import Feature

_MATRIX_AXES = 2


def trim_dot_columns(kernel: Kernel, schedule: Schedule) -> None:
    """Set the number of used columns of dots by wgmma; see the module docstring."""
    dots = [op for op in kernel.walk() if isinstance(op, tile.Dot) and _is_matrix(op)]
    if not dots or Feature.WGMMA not in schedule.target.features:
        return
    demand = _Demand(kernel)
    for dot in dots:
        columns = tile_shape(dot.out)[1]
        looked_at = demand.places(dot.out).bit_length()
        num_columns = instruction_columns(looked_at, element_of(dot.acc.type))
        if 0 < num_columns < columns and _may_narrow(dot, num_columns, schedule):
            dot.num_columns = num_columns
            schedule.remark(dot.loc, Remark.COLUMNS_TRIMMED(used=num_columns, columns=columns))


def _is_matrix(dot: tile.Dot) -> bool:
    return len(tile_shape(dot.out)) == _MATRIX_AXES


def _may_narrow(dot: tile.Dot, num_columns: int, schedule: Schedule) -> bool:
    """Return whether instructions of one warpgroup compute all columns of its rows."""
    layouts = wgmma_layouts(
        dot, schedule.config.num_warps, schedule.target, num_columns=num_columns
    )
    return layouts is not None and all(column == 0 for _, column in layouts.acc.bases("warp"))


class _Demand:
    """The used positions of their rows, as the bits of a number, for all tiles."""

    def __init__(self, kernel: Kernel) -> None:
        self._places: dict[Value, int] = {}
        ops = list(kernel.walk())[::-1]
        self._grew = True
        while self._grew:
            self._grew = False
            for op in ops:
                self._visit(op)

    def places(self, value: Value) -> int:
        """Return the used positions of each row."""
        return self._places.get(value, 0)

    def add(self, value: Value, positions: int) -> None:
        """Mark positions as used."""
        before = self.places(value)
        if is_tile(value) and positions | before != before:
            self._places[value] = positions | before
            self._grew = True

    def add_whole(self, op: Op) -> None:
        """Mark all operands of an op as used."""
        for value in op.operands:
            self.add(value, _whole(value))

    def _visit(self, op: Op) -> None:
        for join in joins_of(op):
            demanded = 0
            for target in join.targets:
                demanded |= self.places(target)
            for source in join.sources:
                self.add(source, demanded)
        if op.has(Trait.CONTROL_FLOW, Trait.TERMINATOR):
            return
        if is_pure(op) and not any(map(self.places, op.results)) and all(map(is_tile, op.results)):
            return
        rule = _RULES.get(type(op)) or (_same_places if is_elementwise(op) else _Demand.add_whole)
        rule(self, op)


def _whole(value: Value) -> int:
    return (1 << _row_elems(value)) - 1 if is_tile(value) else 0


def _row_elems(value: Value) -> int:
    return prod(tile_shape(value)[1:])


# ---- rules: the elements of its operands an op uses, if its results are used --------------------


def _same_places(demand: _Demand, op: Op) -> None:
    for value in op.operands:
        demand.add(value, demand.places(op.results[0]))


def _by_reshape(demand: _Demand, op: Op) -> None:
    assert isinstance(op, tile.Reshape)
    if tile_shape(op.value)[:1] == tile_shape(op.out)[:1]:
        demand.add(op.value, demand.places(op.out))
    else:
        demand.add_whole(op)


def _by_trans(demand: _Demand, op: Op) -> None:
    assert isinstance(op, tile.Trans)
    if op.order[0] != 0:
        demand.add_whole(op)
        return
    positions = demand.places(op.out)
    if positions == _whole(op.out):
        demand.add(op.value, positions)
        return
    # The stride in the operand's row of each axis of the result's.
    source = tile_shape(op.value)
    steps: dict[int, int] = {}
    step = 1
    for axis in range(len(source) - 1, 0, -1):
        steps[axis] = step
        step *= source[axis]
    offsets = [0]
    for axis in op.order[1:]:
        offsets = [
            offset + index * steps[axis] for offset in offsets for index in range(source[axis])
        ]
    source_bits = (
        1 << source_offset
        for number, source_offset in enumerate(offsets)
        if positions >> number & 1
    )
    demand.add(op.value, sum(source_bits))


def _by_split(demand: _Demand, op: Op) -> None:
    assert isinstance(op, tile.Split)
    positions = 0
    for side, half in enumerate(op.results):
        half_positions = demand.places(half)
        positions |= sum(
            1 << 2 * index + side
            for index in range(_row_elems(half))
            if half_positions >> index & 1
        )
    demand.add(op.value, positions)


def _by_dot(demand: _Demand, op: Op) -> None:
    """Use all of A and B: unused rows of B follow from the number of columns."""
    assert isinstance(op, tile.Dot)
    demand.add(op.a, _whole(op.a))
    demand.add(op.b, _whole(op.b))
    demand.add(op.acc, demand.places(op.out) if _is_matrix(op) else _whole(op.acc))


_RULES: dict[type[Op], Callable[[_Demand, Op], None]] = {
    tile.Reshape: _by_reshape,
    tile.Trans: _by_trans,
    tile.Split: _by_split,
    tile.Dot: _by_dot,
}

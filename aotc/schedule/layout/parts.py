"""A value and its computation, sliced along one axis.

Elementwise ops, and loads that may be delayed to the use of the value, are computed slice by slice;
everything else is there already and is sliced in registers, at no cost. Only values without other
users are computed so, since the whole is dropped.

Invariant: slices have the same layout, so every thread computes its share of each; a load sinks
below no write to its memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from aotc.ir import gf2
from aotc.ir.core import Block, Op, Value
from aotc.ir.dialects import gpu
from aotc.ir.effects import Effect, Resource
from aotc.ir.matrix_access import matrix_view
from aotc.ir.rewrite import Builder
from aotc.ir.sub_tile import sub_tile, within
from aotc.ir.tiles import is_elementwise, is_tile, tile_shape
from aotc.ir.types import SharedType, TileType
from aotc.schedule.analysis.alias import may_alias
from aotc.schedule.analysis.global_order import fences


class BlockOrder:
    """The positions of a block's ops and its fences for loads, until the block changes."""

    def __init__(self, block: Block) -> None:
        self.numbers: dict[Op, int] = {}
        self._fences: list[int] = []
        num_fences = 0
        for number, op in enumerate(block):
            self.numbers[op] = number
            num_fences += next(fences([op]), None) is not None
            self._fences.append(num_fences)

    def has_fence(self, after: Op, before: Op) -> bool:
        """Return whether loads must not cross an op between two others of the block."""
        start, end = self.numbers[after], self.numbers[before]
        return start >= end or self._fences[end - 1] > self._fences[start]


MayMove = Callable[[Op, Op, BlockOrder], bool]
"""Whether a load may be issued before another op instead of where it is."""


class Parts:
    """Slice `value`, needed at the op `end` of its block, along `axis`.

    `inside` are the values to compute slice by slice, users first, `loads` the memory reads among
    them, and `leaves` the tiles sliced in registers. `movable` are the classes of loads allowed in
    `loads`.
    """

    def __init__(
        self,
        value: Value,
        end: Op,
        axis: int,
        movable: tuple[type[Op], ...] = (gpu.SharedLoad,),
        order: BlockOrder | None = None,
    ) -> None:
        self.value = value
        self.end = end
        self.axis = axis
        self.movable = movable
        self.inside: dict[Value, None] = {}
        self.loads: list[gpu.SharedLoad | gpu.Load] = []
        self.leaves: dict[Value, None] = {}
        assert end.block is not None
        self._collect(value, BlockOrder(end.block) if order is None else order)

    def _collect(self, value: Value, order: BlockOrder) -> None:
        """Add the ops needed by this value alone, the last to be computed first."""
        pending: dict[Value, None] = {}
        users: dict[Op, None] = {self.end: None}
        latest: list[tuple[int, Op]] = []

        def want(value: Value) -> None:
            op = value.op
            if value not in pending and op in order.numbers and value is op.results[0]:
                heapq.heappush(latest, (-order.numbers[op], op))
            pending[value] = None

        want(value)
        while latest:
            op = heapq.heappop(latest)[1]
            out = op.results[0]
            del pending[out]
            if is_tile(out) and all(user in users for user in out.users) and self._take(op, order):
                users[op] = self.inside[out] = None
                for source in filter(is_tile, op.operands):
                    want(source)
            else:
                self.leaves[out] = None
        self.leaves.update(pending)

    def _take(self, op: Op, order: BlockOrder) -> bool:
        """Return whether an op can be computed slice by slice at the end."""
        if type(op) not in self.movable:
            return is_elementwise(op)
        if not _MAY_MOVE[type(op)](op, self.end, order):
            return False
        assert isinstance(op, gpu.SharedLoad | gpu.Load)
        self.loads.append(op)
        return True

    def can_cut(self, size: int) -> bool:
        """Return whether threads hold all slices of `size` alike, and no access crosses slices."""
        kind = self.value.type
        assert isinstance(kind, TileType)
        assert kind.layout is not None
        part = sub_tile(kind.layout, self._shape(kind.shape, size))
        return part is not None and all(self._can_load(load, size) for load in self.loads)

    def _can_load(self, load: gpu.SharedLoad | gpu.Load, size: int) -> bool:
        if isinstance(load, gpu.SharedLoad):
            return self._can_read(load, size)
        kind = load.out.type
        assert isinstance(kind, TileType)
        assert kind.layout is not None
        runs = kind.layout.bases("register")[: (load.vector - 1).bit_length()]
        return all(basis[self.axis] < size for basis in runs)

    def _can_read(self, load: gpu.SharedLoad, size: int) -> bool:
        buffer = load.buffer.type
        assert isinstance(buffer, SharedType)
        part = sub_tile(load.layout, self._shape(buffer.shape, size))
        if part is None:
            return False
        view = matrix_view(within(part, buffer.shape), buffer.element.bits, load.matrix)
        if view is None:
            return False
        offsets = buffer.layout.columns("offset")
        registers, span = gf2.Span(view.columns("register")), gf2.Span(offsets)
        # Slices begin where accesses do: at multiples of a vector's length.
        extent = buffer.shape[self.axis]
        starts = [size << bit for bit in range((extent // size).bit_length() - 1)]
        origins = [
            span.solve(buffer.layout.pack(self._start(len(buffer.shape), start)))
            for start in starts
        ]
        inside_vector = load.vector - 1
        aligned = all(origin is not None and not origin & inside_vector for origin in origins)
        return aligned and all(
            column in registers for column in offsets[: inside_vector.bit_length()]
        )

    def _shape(self, shape: tuple[int, ...], size: int) -> tuple[int, ...]:
        return (*shape[: self.axis], size, *shape[self.axis + 1 :])

    def _start(self, rank: int, start: int) -> tuple[int, ...]:
        return tuple(start if axis == self.axis else 0 for axis in range(rank))

    def part(self, start: int, size: int, builder: Builder) -> Value:
        """Return the slice of the value at `start`, computed at `builder`."""
        slices: dict[Value, Value] = {}
        shape = self._shape(tile_shape(self.value), size)
        first = self._start(len(shape), start)

        def cut(value: Value) -> Value:
            if value not in slices:
                slices[value] = builder(gpu.Extract(value, first, shape)).out
            return slices[value]

        for value in reversed(self.inside):
            op = value.op
            assert op is not None
            if isinstance(op, gpu.SharedLoad):
                layout = sub_tile(op.layout, shape)
                copy = builder(op.clone({}, layout=layout, start=first))
            else:
                sources = {source: cut(source) for source in op.operands if is_tile(source)}
                copy = builder(op.clone(sources))
            slices[value] = copy.results[0]
        return cut(self.value)

    def erase_whole(self) -> None:
        """Erase the computation of the whole value; users come first in `inside`."""
        for value in self.inside:
            if value.op is not None and not value.users:
                value.op.erase()


# ---- sinking loads ------------------------------------------------------------------------------


def _may_read_later(load: Op, end: Op, order: BlockOrder) -> bool:
    """Return whether nothing between a load from a buffer and `end` writes to the buffer."""
    del order
    assert isinstance(load, gpu.SharedLoad)
    if load.start:
        return False
    op = load.next
    while op is not None and op is not end:
        for nested in (op, *(inner for block in op.blocks for inner in block.walk())):
            written = nested.effects_on(Resource.SHARED, "write")
            if any(_may_write(nested, writer, load.buffer) for writer in written):
                return False
        op = op.next
    return op is end


def _may_write(op: Op, effect: Effect, buffer: Value) -> bool:
    return not effect.of or may_alias(getattr(op, effect.of), buffer)


def _may_load_later(load: Op, end: Op, order: BlockOrder) -> bool:
    """Return whether nothing between a load from global memory and `end` may write there."""
    assert isinstance(load, gpu.Load)
    return not load.volatile and not order.has_fence(load, end)


_MAY_MOVE: dict[type[Op], MayMove] = {gpu.SharedLoad: _may_read_later, gpu.Load: _may_load_later}

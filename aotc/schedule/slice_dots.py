"""Cut matrix products along K, so that few fragments of the operands are in registers at a time.

A product reads whole operands; held at once they would cost more registers than the accumulator.
Cut to the K of one instruction, the fragments of the next part are read while this one is
multiplied, and the assembler sees loads and products in the order to run them in.

What an operand is computed from is cut along with it: its load from shared memory, and whatever is
elementwise on the way. A value that is in registers already is cut there, which costs nothing.
Where the accumulator must not be the tensor core's (`max_num_imprecise_acc`), parts are summed
apart from it and added now and then.

Invariant: every part is multiplied once; a load moves down past no write to its buffer.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir import gf2
from aotc.ir.core import Kernel, Op, Value
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, gpu, tma
from aotc.ir.matrix_access import matrix_view
from aotc.ir.rewrite import Builder
from aotc.ir.sub_tile import sub_tile, within
from aotc.ir.types import FP8E4NV, FP8E5, SharedType, TileType, element_of
from aotc.schedule.context import Schedule
from aotc.schedule.homes import is_elementwise, is_tile, tile_shape

# Parts of a product by threads: one access of 16 bytes to a row of A.
_THREAD_K = 4


def slice_dots(kernel: Kernel, schedule: Schedule) -> None:
    """Cut every product whose operands are read from shared memory."""
    del schedule
    for op in list(kernel.walk()):
        if isinstance(op, gpu.Dot):
            with at(op.loc):
                _slice(op)


def _slice(op: gpu.Dot) -> None:
    rank = len(tile_shape(op.acc))
    operands = [_Operand(op, op.a, rank - 1), _Operand(op, op.b, rank - 2)]
    size = _part_size(op, operands)
    starts = range(0, tile_shape(op.a)[-1], size)
    loads = len(starts) > 1 and any(operand.loads for operand in operands)
    if not loads and not _sums_apart(op):
        return
    place = Builder.before_op(op)
    sum_ = _Sum(op, size, place)
    following = [operand.part(0, size, place) for operand in operands]
    for start in starts:
        a, b = following
        if start + size in starts:
            following = [operand.part(start + size, size, place) for operand in operands]
        sum_.add(a, b)
    op.replace_with([sum_.total()])
    for operand in operands:
        operand.erase_whole()


def _sums_apart(op: gpu.Dot) -> bool:
    """Return whether few products at a time are to be summed before they meet the accumulator."""
    return op.max_num_imprecise_acc > 0 and element_of(op.a.type) in (FP8E4NV, FP8E5)


class _Sum:
    """Add up the parts of a product: in its accumulator, or apart from it, some at a time."""

    def __init__(self, op: gpu.Dot, size: int, place: Builder) -> None:
        self.op, self.place = op, place
        self.acc = op.acc
        self.apart: Value | None = None
        self.room = self.most = max(1, op.max_num_imprecise_acc // size) if _sums_apart(op) else 0

    def add(self, a: Value, b: Value) -> None:
        """Multiply a part and add it."""
        if self.most and self.apart is None:
            self.apart = self.place(arith.Constant(0.0, self.acc.type)).out
        into = self.acc if self.apart is None else self.apart
        out = self.place(gpu.Dot(a, b, into, self.op.shape, self.op.input_precision)).out
        if self.apart is None:
            self.acc = out
            return
        self.apart, self.room = out, self.room - 1
        if not self.room:
            self.acc, self.apart, self.room = self.total(), None, self.most

    def total(self) -> Value:
        """Return all that was added."""
        if self.apart is None:
            return self.acc
        return self.place(arith.Add(self.acc, self.apart)).out


def _part_size(op: gpu.Dot, operands: Sequence[_Operand]) -> int:
    """Return the extent along K of the smallest parts that both operands can be cut into."""
    size = op.shape[2] if op.shape else _THREAD_K
    whole = tile_shape(op.a)[-1]
    while size < whole and not all(operand.can_cut(size) for operand in operands):
        size *= 2
    return min(size, whole)


class _Operand:
    """Cut one operand of a product, and what it is computed from, along `axis`.

    `inside` are the values to be computed part by part; all others are cut in registers.
    """

    def __init__(self, dot: gpu.Dot, value: Value, axis: int) -> None:
        self.dot = dot
        self.value = value
        self.axis = axis
        self.inside: dict[Value, None] = {}
        self.loads: list[gpu.SharedLoad] = []
        self._collect(value, dot)

    def _collect(self, value: Value, user: Op) -> None:
        """Add a value that only `user` needs, and what it is computed from."""
        op = value.op
        if op is None or op.block is not self.dot.block or list(value.users) != [user]:
            return
        if isinstance(op, gpu.SharedLoad) and not op.start and _may_sink(op, self.dot):
            self.inside[value] = None
            self.loads.append(op)
        elif is_elementwise(op):
            self.inside[value] = None
            for source in dict.fromkeys(op.operands):
                self._collect(source, op)

    def can_cut(self, size: int) -> bool:
        """Return whether threads hold all parts of `size` alike and whole accesses lie in one."""
        kind = self.value.type
        assert isinstance(kind, TileType)
        assert kind.layout is not None
        shape = self._shape(kind.shape, size)
        part = sub_tile(kind.layout, shape)
        return part is not None and all(self._can_read(load, size) for load in self.loads)

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
        held, places = gf2.Span(view.columns("register")), gf2.Span(offsets)
        # Parts begin where accesses do: at multiples of a vector's length.
        extent = buffer.shape[self.axis]
        starts = [size << bit for bit in range((extent // size).bit_length() - 1)]
        origins = [
            places.solve(buffer.layout.pack(self._start(len(buffer.shape), start)))
            for start in starts
        ]
        inside_vector = load.vector - 1
        aligned = all(origin is not None and not origin & inside_vector for origin in origins)
        return aligned and all(column in held for column in offsets[: inside_vector.bit_length()])

    def _shape(self, shape: tuple[int, ...], size: int) -> tuple[int, ...]:
        return (*shape[: self.axis], size, *shape[self.axis + 1 :])

    def _start(self, rank: int, start: int) -> tuple[int, ...]:
        return tuple(start if axis == self.axis else 0 for axis in range(rank))

    def part(self, start: int, size: int, place: Builder) -> Value:
        """Return the part of the operand that begins at `start`, computed at `place`."""
        return self._part(self.value, start, size, place, {})

    def erase_whole(self) -> None:
        """Erase what computed the operand as a whole; users come first in `inside`."""
        for value in self.inside:
            if value.op is not None and not value.users:
                value.op.erase()

    def _part(
        self, value: Value, start: int, size: int, place: Builder, done: dict[Value, Value]
    ) -> Value:
        if value in done:
            return done[value]
        shape = self._shape(tile_shape(value), size)
        first, op = self._start(len(shape), start), value.op
        if value not in self.inside or op is None:
            made: Value = place(gpu.Extract(value, first, shape)).out
        elif isinstance(op, gpu.SharedLoad):
            layout = sub_tile(op.layout, shape)
            made = place(op.clone({}, layout=layout, start=first)).results[0]
        else:
            sources = {
                source: self._part(source, start, size, place, done) if is_tile(source) else source
                for source in op.operands
            }
            made = place(op.clone(sources)).results[0]
        done[value] = made
        return made


def _may_sink(load: gpu.SharedLoad, dot: Op) -> bool:
    """Return whether nothing between a load and the product writes to the buffer."""
    op = load.next
    while op is not None and op is not dot:
        for nested in (op, *(inner for block in op.blocks for inner in block.walk())):
            writes = isinstance(nested, gpu.SharedStore | gpu.AsyncCopy | tma.TmaFetch)
            if writes and _may_be_one(nested.buffer, load.buffer):
                return False
        op = op.next
    return op is dot


def _may_be_one(left: Value, right: Value) -> bool:
    """Return whether two buffers, or slots of buffers, may be the same."""
    if not isinstance(left.op, gpu.SharedSlot) or not isinstance(right.op, gpu.SharedSlot):
        return _allocation(left) is _allocation(right)
    same_index = left.op.index is right.op.index
    apart = same_index and left.op.ahead != right.op.ahead
    return not apart and _allocation(left) is _allocation(right)


def _allocation(buffer: Value) -> Value:
    return buffer.op.buffer if isinstance(buffer.op, gpu.SharedSlot) else buffer

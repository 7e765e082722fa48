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

from aotc.ir.core import Kernel, Value
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, gpu
from aotc.ir.rewrite import Builder
from aotc.ir.tiles import tile_shape
from aotc.ir.types import FP8E4NV, FP8E5, element_of
from aotc.schedule.context import Schedule
from aotc.schedule.layout.parts import Parts

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
    operands = [Parts(op.a, op, rank - 1), Parts(op.b, op, rank - 2)]
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


def _part_size(op: gpu.Dot, operands: Sequence[Parts]) -> int:
    """Return the extent along K of the smallest parts that both operands can be cut into."""
    size = op.shape[2] if op.shape else _THREAD_K
    whole = tile_shape(op.a)[-1]
    while size < whole and not all(operand.can_cut(size) for operand in operands):
        size *= 2
    return min(size, whole)

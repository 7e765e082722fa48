"""Slice dots along K, so that few fragments of the operands are in registers at a time.

A dot reads whole operands; held at once they would take more registers than the accumulator.
Sliced to the K of one instruction, the fragments of the next slice are read while this one is
multiplied, and ptxas sees loads and MMAs in the order to run them in.

What an operand is computed from is sliced along with it: its load from shared memory, and
elementwise ops in between. A value that is in registers already is sliced there, at no cost.
Where few imprecise additions are allowed (`max_num_imprecise_acc`), slices are accumulated
apart and promoted to the accumulator at intervals. On Hopper, where `mma.sync` multiplies fp8 as
fp16, all its sums are precise; Ada's has some 13 bits, and of later ones nobody has measured it.

Invariant: every slice is multiplied once; a load sinks below no write to its buffer.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Kernel, Value
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, gpu
from aotc.ir.rewrite import Builder
from aotc.ir.tiles import tile_shape
from aotc.ir.types import FP8E4NV, FP8E5, element_of
from aotc.schedule.analysis.register_budget import (
    COMFORTABLE_REGISTERS,
    PROMOTION_LIMIT,
    registers_of,
    registers_of_tiles,
)
from aotc.schedule.context import Schedule
from aotc.schedule.layout.parts import Parts
from aotc.target import Feature

# K of a slice on CUDA cores: one access of 16 bytes to a row of A.
_THREAD_K = 4


def slice_dots(kernel: Kernel, schedule: Schedule) -> None:
    """Slice every dot whose operands are read from shared memory."""
    is_precise = Feature.WGMMA in schedule.target.features
    for op in list(kernel.walk()):
        if isinstance(op, gpu.Dot):
            interval = 0 if is_precise else _promotion_interval(op)
            with at(op.loc):
                _slice(op, interval)


def _slice(op: gpu.Dot, interval: int) -> None:
    rank = len(tile_shape(op.acc))
    operands = [Parts(op.a, op, rank - 1), Parts(op.b, op, rank - 2)]
    size = _part_size(op, operands)
    starts = range(0, tile_shape(op.a)[-1], size)
    loads = len(starts) > 1 and any(operand.loads for operand in operands)
    if not loads and not interval:
        return
    builder = Builder.before_op(op)
    most = interval and max(1, interval // size)
    if registers_of(op.acc) * 2 > PROMOTION_LIMIT:
        # A sum of many slices would be live beside the accumulator, and spill.
        most = min(most, 1)
    sum_ = _Sum(op, most, builder)
    following = [operand.part(0, size, builder) for operand in operands]
    is_ahead = _fits_twice(op, following)
    for start in starts:
        if start and not is_ahead:
            following = [operand.part(start, size, builder) for operand in operands]
        a, b = following
        if is_ahead and start + size in starts:
            following = [operand.part(start + size, size, builder) for operand in operands]
        sum_.add(a, b)
    op.replace_with([sum_.total()])
    for operand in operands:
        operand.erase_whole()


def _promotion_interval(op: gpu.Dot) -> int:
    """Return how much of K is to be accumulated apart and promoted then, 0 for all in place."""
    return op.max_num_imprecise_acc if element_of(op.a.type) in (FP8E4NV, FP8E5) else 0


def _fits_twice(op: gpu.Dot, parts: Sequence[Value]) -> bool:
    """Return whether two slices fit beside the accumulator, so that the next may be read early.

    Fragments of an MMA are small. For FMAs threads hold whole rows and columns of a slice.
    """
    if op.shape:
        return True
    return registers_of(op.acc) + 2 * registers_of_tiles(parts) <= COMFORTABLE_REGISTERS


class _Sum:
    """Accumulate the slices of a dot: in its accumulator, or `most` apart, which are then promoted."""

    def __init__(self, op: gpu.Dot, most: int, builder: Builder) -> None:
        self.op, self.place = op, builder
        self.acc = op.acc
        self.apart: Value | None = None
        self.room = self.most = most

    def add(self, a: Value, b: Value) -> None:
        """Multiply a slice and add it."""
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
        """Return the accumulator with all slices added."""
        if self.apart is None:
            return self.acc
        return self.place(arith.Add(self.acc, self.apart)).out


def _part_size(op: gpu.Dot, operands: Sequence[Parts]) -> int:
    """Return the K of the smallest slices that both operands can be cut into."""
    size = op.shape[2] if op.shape else _THREAD_K
    whole = tile_shape(op.a)[-1]
    while size < whole and not all(operand.can_cut(size) for operand in operands):
        size *= 2
    return min(size, whole)

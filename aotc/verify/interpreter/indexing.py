"""Rules for gathers and histograms, on whole tiles and in shared memory."""

from __future__ import annotations

import numpy as np

from aotc.ir.dialects import gpu, indexing
from aotc.ir.types import TileType
from aotc.verify.arrays import Array, reshape
from aotc.verify.interpreter.numerics import dtype_of
from aotc.verify.interpreter.program import Program, Rules


def _taken(source: Array, index: Array, axis: int) -> Array:
    """Return the elements at an index along an axis, modulo its extent."""
    return np.take_along_axis(source, index.astype(np.int64) % source.shape[axis], axis)


def _gather(program: Program, op: indexing.Gather, source: Array, index: Array) -> Array:
    del program
    return _taken(source, index, op.axis)


def _counted(value: Array, mask: Array | None, num_bins: int) -> Array:
    """Return a mask of the counted values."""
    inside = (value >= 0) & (value < num_bins)
    return inside if mask is None else inside & mask


def _histogram(program: Program, op: indexing.Histogram, value: Array, mask: Array | None) -> Array:
    del program
    values = reshape(value[_counted(value, mask, op.num_bins)].astype(np.int64), -1)
    return np.bincount(values, minlength=op.num_bins).astype(np.int32)


def _shared_gather(
    program: Program, op: indexing.SharedGather, buffer: Array, index: Array
) -> Array:
    kind = op.out.type
    assert isinstance(kind, TileType)
    assert kind.layout is not None
    addresses = reshape(buffer, gpu.shared_type(op, op.buffer).shape)
    picked = reshape(_taken(addresses, index, op.axis), -1)
    return reshape(program.shared.load(picked, dtype_of(kind.element), kind.layout), kind.shape)


def _shared_count(
    program: Program, op: indexing.SharedCount, buffer: Array, value: Array, mask: Array | None
) -> None:
    kind = op.value.type
    assert isinstance(kind, TileType)
    assert kind.layout is not None
    counted = _counted(value, mask, len(buffer))
    addresses = buffer[np.where(counted, value, 0).astype(np.int64)]
    program.shared.count(reshape(addresses, -1), reshape(counted, -1), kind.layout)


INDEXING_RULES: Rules = {
    indexing.Gather: _gather,
    indexing.Histogram: _histogram,
    indexing.SharedGather: _shared_gather,
    indexing.SharedCount: _shared_count,
}

"""Lower gathers and histograms: through a shared buffer addressed by computed indices.

The buffer is row-major. The accessed elements are unknown, so no order of banks is better than
another, and a row of neighbours is stored and zeroed in wide accesses.
"""

from __future__ import annotations

from aotc.ir.core import Value
from aotc.ir.dialects import arith, gpu, indexing
from aotc.ir.layout import LinearLayout
from aotc.ir.rewrite import Builder
from aotc.ir.types import I32, ScalarType, TileType
from aotc.schedule.layout.layouts import row_major_shared
from aotc.schedule.layout.tensor_copies import read_buffer, write_buffer
from aotc.target import Target


def emit_gather(source: Value, index: Value, axis: int, target: Target, builder: Builder) -> Value:
    """Store a tile and load the elements at an index, in the index's layout."""
    kind = source.type
    assert isinstance(kind, TileType)
    assert isinstance(kind.element, ScalarType)
    buffer = builder(gpu.SharedAlloc(kind.element, kind.shape, row_major_shared(kind.shape))).out
    write_buffer(source, buffer, target, builder)
    return builder(indexing.SharedGather(buffer, index, axis)).out


def emit_histogram(
    value: Value, mask: Value | None, home: LinearLayout, target: Target, builder: Builder
) -> Value:
    """Count values in shared memory; return the counts in layout `home`."""
    zeros = builder(arith.Constant(0, TileType(I32, home.shape, home))).out
    buffer = builder(gpu.SharedAlloc(I32, home.shape, row_major_shared(home.shape))).out
    write_buffer(zeros, buffer, target, builder)
    builder(indexing.SharedCount(buffer, value, mask))
    return read_buffer(buffer, home, target, builder)

"""Expand reductions across a cluster: every CTA stores its scalar to all, then each reduces them.

Scalars go through distributed shared memory, one element of a small buffer for each CTA. The
cluster barrier before the stores says that the others have begun and have read what the buffer, or
another one at its place, had before; the one after them, that all scalars are there. No CTA stores
to another one after that, so none can end too early.

Invariant: afterwards there is no `grid.cluster_reduce` left.
"""

from __future__ import annotations

from aotc.ir.core import Kernel, Value, clone_block
from aotc.ir.diagnostics import at
from aotc.ir.dialects import gpu, grid
from aotc.ir.rewrite import Builder
from aotc.ir.types import ScalarType
from aotc.schedule.context import Schedule
from aotc.schedule.layout.layouts import replicated, row_major_shared
from aotc.schedule.remarks import Remark

_VECTOR_BYTES = 16


def expand_cluster_reductions(kernel: Kernel, schedule: Schedule) -> None:
    """Turn every `grid.cluster_reduce` into stores to all CTAs and a reduction in each."""
    for op in list(kernel.walk()):
        if isinstance(op, grid.ClusterReduce):
            with at(op.loc):
                op.replace_with(_expand(op, kernel, Builder.before_op(op)))
            schedule.remark(op.loc, Remark.CLUSTER_REDUCED(count=kernel.num_ctas))


def _expand(op: grid.ClusterReduce, kernel: Kernel, place: Builder) -> list[Value]:
    shape = (kernel.num_ctas,)
    buffers: list[Value] = []
    for value in op.inputs:
        assert isinstance(value.type, ScalarType)
        buffers.append(place(gpu.SharedAlloc(value.type, shape, row_major_shared(shape))).out)
    place(grid.ClusterBarrier())
    for value, buffer in zip(op.inputs, buffers, strict=True):
        place(grid.ClusterStore(value, buffer))
    place(grid.ClusterBarrier())
    layout = replicated(shape, kernel.num_warps)
    gathered: list[Value] = []
    for value, buffer in zip(op.inputs, buffers, strict=True):
        assert isinstance(value.type, ScalarType)
        vector = min(kernel.num_ctas, _VECTOR_BYTES // value.type.size_bytes)
        gathered.append(place(gpu.SharedLoad(buffer, layout, vector)).out)
    return list(place(gpu.Reduce(gathered, 0, clone_block(op.combine, {}))).outs)

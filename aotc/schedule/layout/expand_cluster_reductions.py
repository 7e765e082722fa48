"""Expand reductions across a cluster: every CTA gives its scalar to all, then each reduces them.

Scalars go through distributed shared memory, one element of a small buffer for each CTA, in one of
two ways. If no reduction is in a loop or branch, each has buffers and a mbarrier of its own, used
once. CTAs send (`st.async`), and wait for as many bytes as all of them send. Before, they wait only
for all CTAs to have begun: they arrive at the barrier of the cluster at once, and wait there before
they first send.

Otherwise there are two barriers of the cluster. At the one before the stores all CTAs have begun
and have read the earlier contents of the buffer, or of another one at its place. At the one after
them all scalars are there.

A CTA with all scalars of its last reduction receives no more stores, so none ends too early.

Invariant: afterwards there is no `grid.cluster_reduce` left.
"""

from __future__ import annotations

from aotc.ir.core import Kernel, Value, clone_block
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, gpu, grid, mbarrier
from aotc.ir.rewrite import Builder
from aotc.ir.types import I32, U64, ScalarType, element_of
from aotc.schedule.context import Schedule
from aotc.schedule.layout.layouts import replicated, row_major_shared
from aotc.schedule.remarks import Remark

_VECTOR_BYTES = 16


def expand_cluster_reductions(kernel: Kernel, schedule: Schedule) -> None:
    """Turn every `grid.cluster_reduce` into stores to all CTAs and a reduction in each."""
    reductions = [op for op in kernel.walk() if isinstance(op, grid.ClusterReduce)]
    if not reductions:
        return
    happens_once = all(op.block is kernel.body for op in reductions)
    barriers = _begin(kernel, reductions) if happens_once else [None] * len(reductions)
    for op, barrier in zip(reductions, barriers, strict=True):
        with at(op.loc):
            op.replace_with(_expand(op, kernel, barrier, Builder.before_op(op)))
        schedule.remark(op.loc, Remark.CLUSTER_REDUCED(count=kernel.num_ctas))


def _begin(kernel: Kernel, reductions: list[grid.ClusterReduce]) -> list[Value]:
    """Initialize a mbarrier for each reduction, tell the others, and wait for them before the first."""
    start = Builder.before_op(next(iter(kernel.body)))
    barriers: list[Value] = []
    with at(kernel.loc):
        for op in reductions:
            shape = (1,)
            barrier = start(gpu.SharedAlloc(U64, shape, row_major_shared(shape))).out
            sent = sum(_exchanged(value).size_bytes for value in op.inputs)
            start(mbarrier.MbarrierInit(barrier, expected_bytes=kernel.num_ctas * sent))
            barriers.append(barrier)
        start(grid.ClusterArrive())
    with at(reductions[0].loc):
        Builder.before_op(reductions[0])(grid.ClusterWait())
    return barriers


def _expand(
    op: grid.ClusterReduce, kernel: Kernel, barrier: Value | None, builder: Builder
) -> list[Value]:
    shape = (kernel.num_ctas,)
    values = [_cast(value, _exchanged(value), builder) for value in op.inputs]
    buffers = [
        builder(gpu.SharedAlloc(_scalar(value), shape, row_major_shared(shape))).out
        for value in values
    ]
    if barrier is None:
        builder(grid.ClusterBarrier())
    for value, buffer in zip(values, buffers, strict=True):
        if barrier is None:
            builder(grid.ClusterStore(value, buffer))
        else:
            builder(grid.ClusterSend(value, buffer, barrier))
    if barrier is None:
        builder(grid.ClusterBarrier())
    else:
        builder(mbarrier.MbarrierWait(barrier, builder(arith.Constant(0, I32)).out))
    layout = replicated(shape, kernel.num_warps)
    gathered: list[Value] = []
    for value, buffer in zip(op.inputs, buffers, strict=True):
        vector = min(kernel.num_ctas, _VECTOR_BYTES // _exchanged(value).size_bytes)
        loaded = builder(gpu.SharedLoad(buffer, layout, vector)).out
        gathered.append(_cast(loaded, _scalar(value), builder))
    return list(builder(gpu.Reduce(gathered, 0, clone_block(op.combine, {}))).outs)


def _cast(value: Value, kind: ScalarType, builder: Builder) -> Value:
    """Return a value in another type: a wider one and back, without loss."""
    return value if element_of(value.type) == kind else builder(arith.Cast(value, kind)).out


def _exchanged(value: Value) -> ScalarType:
    return grid.exchanged_type(_scalar(value))


def _scalar(value: Value) -> ScalarType:
    assert isinstance(value.type, ScalarType)
    return value.type

"""Expand reductions across a cluster: every CTA gives its scalar to all, then each reduces them.

Scalars go through distributed shared memory, one element of a small buffer for each CTA, in one of
two ways. Where no reduction is in a loop or branch, each has buffers and a mbarrier of its own, which
are used once: CTAs send (`st.async`), and wait until as many bytes as all send have come. All they wait
for before is that the others have begun: they arrive at the barrier of the cluster at once, and
wait there before they first send.

Otherwise there are two barriers of the cluster. The one before the stores says that the others have
begun and have read what the buffer, or another one at its place, had before; the one after them, that
all scalars are there.

No CTA stores to another one after that has all scalars of its last reduction, so none ends too early.

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
    found = [op for op in kernel.walk() if isinstance(op, grid.ClusterReduce)]
    if not found:
        return
    happens_once = all(op.block is kernel.body for op in found)
    barriers = _begin(kernel, found) if happens_once else [None] * len(found)
    for op, barrier in zip(found, barriers, strict=True):
        with at(op.loc):
            op.replace_with(_expand(op, kernel, barrier, Builder.before_op(op)))
        schedule.remark(op.loc, Remark.CLUSTER_REDUCED(count=kernel.num_ctas))


def _begin(kernel: Kernel, found: list[grid.ClusterReduce]) -> list[Value]:
    """Initialize a mbarrier for each reduction, tell the others, and wait for them before the first."""
    start = Builder.before_op(next(iter(kernel.body)))
    barriers: list[Value] = []
    with at(kernel.loc):
        for op in found:
            shape = (1,)
            barrier = start(gpu.SharedAlloc(U64, shape, row_major_shared(shape))).out
            sent = sum(_exchanged(value).size_bytes for value in op.inputs)
            start(mbarrier.MbarrierInit(barrier, expected_bytes=kernel.num_ctas * sent))
            barriers.append(barrier)
        start(grid.ClusterArrive())
    with at(found[0].loc):
        Builder.before_op(found[0])(grid.ClusterWait())
    return barriers


def _expand(
    op: grid.ClusterReduce, kernel: Kernel, barrier: Value | None, place: Builder
) -> list[Value]:
    shape = (kernel.num_ctas,)
    values = [_cast(value, _exchanged(value), place) for value in op.inputs]
    buffers = [
        place(gpu.SharedAlloc(_scalar(value), shape, row_major_shared(shape))).out
        for value in values
    ]
    if barrier is None:
        place(grid.ClusterBarrier())
    for value, buffer in zip(values, buffers, strict=True):
        if barrier is None:
            place(grid.ClusterStore(value, buffer))
        else:
            place(grid.ClusterSend(value, buffer, barrier))
    if barrier is None:
        place(grid.ClusterBarrier())
    else:
        place(mbarrier.MbarrierWait(barrier, place(arith.Constant(0, I32)).out))
    layout = replicated(shape, kernel.num_warps)
    gathered: list[Value] = []
    for value, buffer in zip(op.inputs, buffers, strict=True):
        vector = min(kernel.num_ctas, _VECTOR_BYTES // _exchanged(value).size_bytes)
        loaded = place(gpu.SharedLoad(buffer, layout, vector)).out
        gathered.append(_cast(loaded, _scalar(value), place))
    return list(place(gpu.Reduce(gathered, 0, clone_block(op.combine, {}))).outs)


def _cast(value: Value, kind: ScalarType, place: Builder) -> Value:
    """Return a value in another type: a wider one and back, which loses nothing."""
    return value if element_of(value.type) == kind else place(arith.Cast(value, kind)).out


def _exchanged(value: Value) -> ScalarType:
    return grid.exchanged_type(_scalar(value))


def _scalar(value: Value) -> ScalarType:
    assert isinstance(value.type, ScalarType)
    return value.type

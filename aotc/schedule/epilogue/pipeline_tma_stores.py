"""Keep TMA stores in flight: wait before the buffer's reuse, not at the issue.

A store in a loop gets an unshared buffer, and drains while the next iteration computes:

    for i: write b ... store b, wait        for i: wait, write b ... store b      wait

If shared memory has no room for the whole tile, it is stored in slices, the columns of one box each,
through fewer buffers than slices. The wait for the next slice's buffer goes before the barrier ahead of
this slice's issue, so that a slice costs one barrier. Consecutive tiles of one kind are treated alike:
their slices rotate together. Without room for two buffers, or with slices in different layouts, a store is
waited for at once.

A store outside of loops is waited for at the end of its block, if that takes no more memory. In all cases
warpgroups writing boxes of their own also issue them.

Stores reach this pass whole (`staged_stores`) and are expanded by it.

Invariant: no buffer is written while a store reading it may be in flight. A wait with later readers of the
tensor stays in place. No staged store is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from aotc.ir.core import Kernel, Op
from aotc.ir.diagnostics import at
from aotc.ir.dialects import gpu, tma
from aotc.ir.effects import Resource
from aotc.ir.order import number_ops
from aotc.ir.rewrite import Builder
from aotc.ir.types import SharedType, TensorMapType, TileType
from aotc.schedule.analysis.shared_budget import shared_budget_bytes
from aotc.schedule.context import Schedule
from aotc.schedule.epilogue.staged_stores import (
    allocate_slice,
    buffer_of,
    deferrable_stores,
    erase,
    expand,
    num_slices,
    outermost_loop,
    sharing_key,
    slice_shape,
    store_slice,
)
from aotc.schedule.layout.warpgroup_boxes import box_warpgroups
from aotc.schedule.remarks import Remark
from aotc.schedule.shared_memory.allocate_shared import place_buffers
from aotc.schedule.shared_memory.live_ranges import live_ranges
from aotc.target import Target


@dataclass(frozen=True, slots=True)
class _Plan:
    """The form of a tile's stores: whole, or in slices rotating over buffers.

    Buffers of stores kept `in_flight` are live throughout their loop.
    """

    in_flight: bool
    num_buffers: int = 0
    """Of slices; 0 for whole tiles, each with a buffer of its own."""


def pipeline_tma_stores(kernel: Kernel, schedule: Schedule) -> None:
    """Expand staged stores, whole or in slices, each with its wait as late as possible."""
    stores = list(deferrable_stores(list(kernel.walk())))
    waits: list[tma.TmaStoreWait] = []
    for _, alike in groupby(stores, _sharing):
        series = list(alike)
        with at(series[0].loc):
            waits += _overlap(series, kernel, schedule)
    for op in list(kernel.walk()):
        if isinstance(op, tma.StagedStore):  # it is to be complete where it stands
            expand(op, schedule.target)
    for wait in waits:
        _wait_at_the_end(wait, kernel)
    for op in kernel.walk():
        if isinstance(op, tma.TensorStore):
            op.issuers = _issuers(op)


# ---- planning -----------------------------------------------------------------------------------


def _sharing(store: tma.StagedStore) -> object:
    """Return a key equal for stores that may share buffers, else unique."""
    return (store.block, sharing_key(store)) if outermost_loop(store) else store


def _overlap(
    series: Sequence[tma.StagedStore], kernel: Kernel, schedule: Schedule
) -> list[tma.TmaStoreWait]:
    """Expand stores by the best plan there is room for; return the waits that may move."""
    plan, target = _choose(series, kernel, schedule), schedule.target
    if plan is not None and plan.num_buffers:
        _remark_slices(series, plan, schedule)
        return _rotate(series, plan, target)
    if plan is not None and plan.in_flight:
        for store in series:
            _defer_wait(store, target)
        return []
    in_loop = outermost_loop(series[0]) is not None
    if plan is not None and in_loop:
        size = _buffer_bytes(series[0])
        schedule.remark(series[0].loc, Remark.STORE_AWAITED(size=size))
    waits = [expand(store, target) for store in series]
    return [] if in_loop else waits


def _choose(series: Sequence[tma.StagedStore], kernel: Kernel, schedule: Schedule) -> _Plan | None:
    """Return the best plan that fits shared memory, or None."""
    loop, numbers = outermost_loop(series[0]), number_ops(kernel)
    buffers = live_ranges(kernel, numbers)
    allocs = {buffer_of(store): store for store in series}
    mine = [buffer for buffer in buffers if buffer.op in allocs]
    unrelated = [buffer for buffer in buffers if buffer.op not in allocs]
    limit = shared_budget_bytes(kernel, schedule.target, place_buffers(unrelated))
    for plan in _plans(series):
        staging = mine
        if plan.num_buffers:
            part = replace(mine[0], size_bytes=_slice_bytes(series[0]))
            staging = [replace(part) for _ in range(plan.num_buffers)]
        if plan.in_flight and loop:
            start, end = numbers[loop]
            staging = [replace(buffer, start=start, end=end) for buffer in staging]
        if place_buffers([*unrelated, *staging]) <= limit:
            return plan
    return None


def _plans(series: Sequence[tma.StagedStore]) -> Iterator[_Plan]:
    """Yield the plans for a series of tiles, best first."""
    in_loop = outermost_loop(series[0]) is not None
    count = sum(map(num_slices, series))
    yield _Plan(in_loop)
    for num_buffers in range(count - 1, 1, -1):
        yield _Plan(in_loop, num_buffers)
    if in_loop:
        yield _Plan(in_flight=False)
    if count > 1:
        yield _Plan(in_loop, 1)


def _remark_slices(series: Sequence[tma.StagedStore], plan: _Plan, schedule: Schedule) -> None:
    remark = Remark.STORES_SLICED if len(series) > 1 else Remark.STORE_SLICED
    slices, size = sum(map(num_slices, series)), _slice_bytes(series[0])
    text = remark(stores=len(series), slices=slices, buffers=plan.num_buffers, size=size)
    schedule.remark(series[0].loc, text)


def _buffer_bytes(store: tma.StagedStore) -> int:
    kind = store.buffer.type
    assert isinstance(kind, SharedType)
    return kind.size_bytes


def _slice_bytes(store: tma.StagedStore) -> int:
    return _buffer_bytes(store) // num_slices(store)


# ---- rewriting ----------------------------------------------------------------------------------


def _defer_wait(store: tma.StagedStore, target: Target) -> None:
    """Give a store a buffer live throughout its loop, and wait before its next write."""
    loop, builder = outermost_loop(store), Builder.before_op(store)
    assert loop is not None
    buffer = allocate_slice(store, buffer_of(store).shape, Builder.before_op(loop))
    builder(tma.TmaStoreWait(pending=_num_copies(store) - 1))
    with at(store.loc):
        store_slice(store, None, buffer, target, builder)
    erase(store)
    _drain_after(loop)


def _rotate(
    series: Sequence[tma.StagedStore], plan: _Plan, target: Target
) -> list[tma.TmaStoreWait]:
    """Store slices through fewer buffers than slices; return the movable waits."""
    first, count = series[0], plan.num_buffers
    loop = outermost_loop(first)
    outer = Builder.before_op(loop or first)
    buffers = [allocate_slice(first, slice_shape(first), outer) for _ in range(count)]
    if loop:
        num_pending = _num_copies(first) - len(series)
        Builder.before_op(first)(tma.TmaStoreWait(pending=num_pending))
    slices = [(store, part) for store in series for part in range(num_slices(store))]
    for number, (store, part) in enumerate(slices):
        builder, buffer = Builder.before_op(store), buffers[number % count]
        reuses = count <= number + 1 < len(slices)
        pending = count - 2 if reuses and count > 1 else None
        store_slice(store, part, buffer, target, builder, max_pending=pending)
        if reuses and count == 1:
            builder(tma.TmaStoreWait())
    waits: list[tma.TmaStoreWait] = []
    for store in series:
        if loop is None:
            with at(store.loc):
                waits.append(Builder.before_op(store)(tma.TmaStoreWait()))
        erase(store)
    if loop:
        _drain_after(loop)
    return waits


def _num_copies(store: tma.StagedStore) -> int:
    """Return a lower bound of the stores issued between two iterations of a store."""
    assert store.block is not None
    return sum(_is_copy(op) or isinstance(op, tma.StagedStore) for op in store.block)


def _is_copy(op: Op) -> bool:
    return bool(op.effects_on(Resource.STORES, "start"))


def _drain_after(loop: Op) -> None:
    """Wait after a loop for the stores in flight, unless a wait follows already."""
    if not isinstance(loop.next, tma.TmaStoreWait):
        Builder.after_op(loop)(tma.TmaStoreWait())


def _issuers(copy: tma.TensorStore) -> tuple[int, ...]:
    """Return the warpgroups writing their own boxes of a copy, or ().

    A map built by one warp is acquired by that warp alone.
    """
    if isinstance(copy.tensor.op, tma.MakeTensorMap):
        return ()
    waits = [user for user in copy.buffer.users if isinstance(user, tma.TmaBufferWait)]
    accesses = [user for user in copy.buffer.users if not _is_copy(user) and user not in waits]
    layouts = [op.value.type for op in accesses if isinstance(op, gpu.SharedStore)]
    kinds = dict.fromkeys(layouts)
    tensor, kind = copy.tensor.type, next(iter(kinds), None)
    if len(kinds) > 1 or len(layouts) < len(accesses) or not isinstance(kind, TileType):
        return ()
    assert isinstance(tensor, TensorMapType)
    assert kind.layout is not None
    lacking = len(tensor.box) - len(kind.shape)
    return box_warpgroups(kind.layout, tensor.box[lacking:])


def _wait_at_the_end(wait: tma.TmaStoreWait, kernel: Kernel) -> None:
    """Move a wait to the end of the block, merged with others, if that takes no more memory."""
    block, following = wait.block, wait.next
    assert block is not None
    end = block.terminator
    if following is end:
        return
    before_bytes = _shared_bytes(kernel)
    wait.remove()
    if not isinstance(end.prev, tma.TmaStoreWait) or end.prev.pending:
        block.insert(wait, end)
    if _shared_bytes(kernel) > before_bytes:
        if wait.block is not None:
            wait.remove()
        block.insert(wait, following)


def _shared_bytes(kernel: Kernel) -> int:
    return place_buffers(live_ranges(kernel, number_ops(kernel)))

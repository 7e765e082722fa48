"""Keep TMA stores in flight: wait for one before its buffer is reused, not where it is issued.

A store in a loop gets a buffer that nothing else shares, so that it drains while the next
iteration computes:

    for i: write b ... store b, wait        for i: wait, write b ... store b      wait

If shared memory has no room for the whole tile, it is stored in slices, the columns of one box
each, through fewer buffers than slices. The wait for the next slice's buffer goes before the
barrier after which this slice is issued, so that a slice costs one barrier. The same holds for
tiles of one kind that are stored one after the other: their slices rotate together. Where there is
no room for two buffers, or threads hold slices in different ways, a store is waited for at once.

A store outside of loops is waited for at the end of its block, if that takes no more memory. In
all cases warpgroups that write boxes of their own issue these themselves.

Invariant: nothing is written to a buffer while a store that reads it may be in flight. A wait that
others rely on, since they may read the tensor, stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from aotc.ir.core import Kernel
from aotc.ir.diagnostics import at
from aotc.ir.dialects import gpu, tma
from aotc.ir.order import number_ops
from aotc.ir.rewrite import Builder
from aotc.ir.types import TensorMapType, TileType
from aotc.schedule.context import Schedule
from aotc.schedule.epilogue.store_sites import (
    COPIES,
    TENSOR_COPIES,
    StoreSite,
    copy_part,
    store_sites,
    write_part,
)
from aotc.schedule.layout.warpgroup_boxes import box_warpgroups
from aotc.schedule.remarks import Remark
from aotc.schedule.shared_memory.allocate_shared import place_buffers
from aotc.schedule.shared_memory.live_ranges import live_ranges
from aotc.target import Target


@dataclass(frozen=True, slots=True)
class _Plan:
    """How tiles are stored: whole, or in slices that rotate over some buffers.

    The buffers of stores that stay in flight are live throughout their loop.
    """

    runs_on: bool
    num_buffers: int = 0
    """Of slices; 0 for whole tiles, each with a buffer of its own."""


def pipeline_tma_stores(kernel: Kernel, schedule: Schedule) -> None:
    """Move and split stores; see the module docstring."""
    sites = list(store_sites(list(kernel.walk())))
    for _, alike in groupby(sites, _turns):
        series = list(alike)
        with at(series[0].copy.loc):
            _overlap(series, kernel, schedule)
    for site in sites:
        if site.loop is None:
            _wait_at_the_end(site.wait, kernel)
    for op in kernel.walk():
        if isinstance(op, TENSOR_COPIES):
            op.issuers = _issuers(op)


# ---- how ----------------------------------------------------------------------------------------


def _turns(site: StoreSite) -> object:
    """Return a key that is equal for stores that may share buffers; unique for others."""
    return (site.copy.block, site.kind) if site.loop else site


def _overlap(series: Sequence[StoreSite], kernel: Kernel, schedule: Schedule) -> None:
    """Apply the best plan that shared memory has room for."""
    limit_bytes = schedule.target.max_shared_bytes
    loop, numbers = series[0].loop, number_ops(kernel)
    buffers = live_ranges(kernel, numbers)
    allocs = {site.alloc: site for site in series}
    mine = [buffer for buffer in buffers if buffer.op in allocs]
    others = [buffer for buffer in buffers if buffer.op not in allocs]
    block_bytes = next(each.size_bytes for each in mine if each.op is series[0].alloc)
    part_bytes = block_bytes // series[0].num_parts
    for plan in _plans(series):
        span = numbers[loop] if plan.runs_on and loop else None
        taken = mine
        if plan.num_buffers:
            part = replace(mine[0], size_bytes=part_bytes)
            taken = [replace(part) for _ in range(plan.num_buffers)]
        if span is not None:
            taken = [replace(each, start=span[0], end=span[1]) for each in taken]
        if place_buffers([*others, *taken]) <= limit_bytes:
            break
    else:
        return
    if plan.num_buffers:
        num_parts = sum(site.num_parts for site in series)
        remark = Remark.STORES_SLICED if len(series) > 1 else Remark.STORE_SLICED
        sizes = {"slices": num_parts, "buffers": plan.num_buffers, "size": part_bytes}
        schedule.remark(series[0].copy.loc, remark(stores=len(series), **sizes))
        _take_turns(series, plan, schedule.target)
    elif plan.runs_on:
        for site in series:
            _run_on(site)
    elif loop:
        schedule.remark(series[0].copy.loc, Remark.STORE_AWAITED(size=block_bytes))


def _plans(series: Sequence[StoreSite]) -> Iterator[_Plan]:
    """Yield the ways to store some tiles, the best first."""
    in_loop, num_parts = series[0].loop is not None, sum(site.num_parts for site in series)
    yield _Plan(in_loop)
    for count in range(num_parts - 1, 1, -1):
        yield _Plan(in_loop, count)
    if in_loop:
        yield _Plan(runs_on=False)
    if num_parts > 1:
        yield _Plan(in_loop, 1)


# ---- rewriting ----------------------------------------------------------------------------------


def _run_on(site: StoreSite) -> None:
    """Give a store a buffer that is live throughout its loop, and wait before it is rewritten."""
    assert site.loop is not None
    place = Builder.before_op(site.copy)
    buffer = site.place_buffer(site.alloc.shape, Builder.before_op(site.loop))
    place(tma.TmaStoreWait(pending=_num_copies(site) - 1))
    place(site.write.clone({site.write.buffer: buffer}))
    copy_part(site, site.coords, 0, buffer, place)
    _finish([site])


def _take_turns(series: Sequence[StoreSite], plan: _Plan, target: Target) -> None:
    """Store slices through fewer buffers than there are slices."""
    loop, count = series[0].loop, plan.num_buffers
    around = loop if plan.runs_on and loop else series[0].copy
    first = Builder.before_op(around)
    buffers = [series[0].place_buffer(series[0].part_shape, first) for _ in range(count)]
    if plan.runs_on:
        others = _num_copies(series[0]) - len(series)
        Builder.before_op(series[0].copy)(tma.TmaStoreWait(pending=others))
    parts = [(site, part) for site in series for part in range(site.num_parts)]
    for number, (site, part) in enumerate(parts):
        place, buffer = Builder.before_op(site.copy), buffers[number % count]
        write_part(site, site.write.value, part, buffer, target, place)
        waits = count <= number + 1 < len(parts)
        if waits and count > 1:
            place(tma.TmaStoreWait(pending=count - 2))
        copy_part(site, site.coords, part, buffer, place)
        if waits and count == 1:
            place(tma.TmaStoreWait())
    _finish(series)


def _num_copies(site: StoreSite) -> int:
    """Return a lower bound of the stores issued between two iterations of a store."""
    assert site.copy.block is not None
    return sum(isinstance(op, COPIES) for op in site.copy.block)


def _finish(series: Sequence[StoreSite]) -> None:
    """Erase what was replaced; drain the stores in flight after the loop."""
    for site in series:
        for op in (site.copy, site.write, site.alloc):
            op.erase()
        if site.loop is not None:
            site.wait.erase()
            if not isinstance(site.loop.next, tma.TmaStoreWait):
                Builder.after_op(site.loop)(tma.TmaStoreWait())


def _issuers(copy: tma.TmaStore | tma.TmaReduce) -> tuple[int, ...]:
    """Return the warpgroups that write the boxes of a copy, each its own, or ()."""
    others = [user for user in copy.buffer.users if not isinstance(user, COPIES)]
    layouts = [op.value.type for op in others if isinstance(op, gpu.SharedStore)]
    kinds = dict.fromkeys(layouts)
    tensor, kind = copy.tensor.type, next(iter(kinds), None)
    if len(kinds) > 1 or len(layouts) < len(others) or not isinstance(kind, TileType):
        return ()
    assert isinstance(tensor, TensorMapType)
    assert kind.layout is not None
    lacking = len(tensor.box) - len(kind.shape)
    return box_warpgroups(kind.layout, tensor.box[lacking:])


def _wait_at_the_end(wait: tma.TmaStoreWait, kernel: Kernel) -> None:
    """Wait at the end of the block, together with others, if that takes no more memory."""
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

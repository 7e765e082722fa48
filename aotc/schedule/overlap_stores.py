"""Let tensor stores run on: wait for one where its buffer is needed again, not where it is issued.

A store in a loop gets a buffer that nothing else shares, so that it drains while the next
iteration computes:

    for i: write b ... store b, wait        for i: wait, write b ... store b      wait

If shared memory has no room for the whole block, the block goes in parts, the columns of one box
each, through fewer buffers than parts. The buffer of the next part is waited for ahead of the
barrier behind which this part is issued, so that a part costs one barrier. Where there is no room
for two, or threads hold parts in different ways, a store is waited for at once, if that fits.

A store that is in no loop is waited for at the end of its block, if that takes no more memory. In
all cases warpgroups that write boxes of their own issue these themselves.

Invariant: nothing is written to a buffer while a store that reads it may be in flight. A wait that
others rely on, since they may read the tensor, stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aotc.ir.core import Kernel
from aotc.ir.diagnostics import at
from aotc.ir.dialects import gpu, tma
from aotc.ir.rewrite import Builder
from aotc.ir.types import TensorMapType, TileType
from aotc.schedule.allocate_shared import Buffer, lives, number_ops, place_buffers
from aotc.schedule.context import Schedule
from aotc.schedule.store_sites import (
    COPIES,
    TENSOR_COPIES,
    StoreSite,
    copy_part,
    store_sites,
    write_part,
)
from aotc.schedule.warpgroup_boxes import box_warpgroups
from aotc.target import Target


@dataclass(frozen=True, slots=True)
class _Plan:
    """Say how a block is stored: in how many parts, through how many buffers.

    The buffers of a store that `runs_on` live as long as its loop.
    """

    num_parts: int = 1
    num_buffers: int = 1
    runs_on: bool = False


def overlap_stores(kernel: Kernel, schedule: Schedule) -> None:
    """Move and split stores; see the module docstring."""
    sites = list(store_sites(list(kernel.walk())))
    for site in sites:
        with at(site.copy.loc):
            _overlap(site, kernel, schedule)
    for site in sites:
        if site.loop is None:
            _wait_at_the_end(site.wait, kernel)
    for op in kernel.walk():
        if isinstance(op, TENSOR_COPIES):
            op.issuers = _issuers(op)


# ---- how ----------------------------------------------------------------------------------------


def _overlap(site: StoreSite, kernel: Kernel, schedule: Schedule) -> None:
    """Store in the best of the ways that shared memory has room for."""
    limit_bytes = schedule.target.max_shared_bytes
    numbers = number_ops(kernel)
    buffers = lives(kernel, numbers)
    (mine,) = (buffer for buffer in buffers if buffer.op is site.alloc)
    others = [buffer for buffer in buffers if buffer is not mine]
    for plan in _plans(site):
        size_bytes = mine.size_bytes // plan.num_parts
        span = numbers[site.loop] if plan.runs_on and site.loop else (mine.start, mine.end)
        taken = [
            Buffer(site.alloc, size_bytes, *span, mine.num_copies) for _ in range(plan.num_buffers)
        ]
        if place_buffers([*others, *taken]) <= limit_bytes:
            break
    else:
        return
    if plan.num_parts > 1:
        schedule.remark(
            site.copy.loc,
            f"the store goes in {plan.num_parts} parts, through {plan.num_buffers} buffers of "
            f"{size_bytes} bytes: there is no room for the whole block",
        )
    elif site.loop and not plan.runs_on:
        schedule.remark(
            site.copy.loc,
            f"the store is waited for at once: there is no room to keep {size_bytes} bytes for it",
        )
    _rewrite(site, plan, schedule.target)


def _plans(site: StoreSite) -> Iterator[_Plan]:
    """Yield the ways to store a block, the best first."""
    in_loop, num_parts = site.loop is not None, site.num_parts
    yield _Plan(runs_on=in_loop)
    for count in range(num_parts - 1, 1, -1):
        yield _Plan(num_parts, count, in_loop)
    if in_loop:
        yield _Plan()
    if num_parts > 1:
        yield _Plan(num_parts, 1, in_loop)


# ---- rewriting ----------------------------------------------------------------------------------


def _rewrite(site: StoreSite, plan: _Plan, target: Target) -> None:
    if plan == _Plan():
        return
    around = site.loop if plan.runs_on and site.loop else site.copy
    place, first = Builder.before_op(site.copy), Builder.before_op(around)
    shape = site.part_shape if plan.num_parts > 1 else site.alloc.shape
    buffers = [site.place_buffer(shape, first) for _ in range(plan.num_buffers)]
    if plan.runs_on:
        place(tma.TmaStoreWait(pending=_num_other_copies(site)))
    for number in range(plan.num_parts):
        buffer = buffers[number % plan.num_buffers]
        if plan.num_parts == 1:
            place(site.write.clone({site.write.buffer: buffer}))
        else:
            write_part(site, site.write.value, number, buffer, target, place)
        waits = plan.num_buffers <= number + 1 < plan.num_parts
        if waits and plan.num_buffers > 1:
            place(tma.TmaStoreWait(pending=plan.num_buffers - 2))
        copy_part(site, site.coords, number, buffer, place)
        if waits and plan.num_buffers == 1:
            place(tma.TmaStoreWait())
    site.copy.erase()
    site.write.erase()
    site.alloc.erase()
    if plan.runs_on:
        assert site.loop is not None
        site.wait.erase()
        if not isinstance(site.loop.next, tma.TmaStoreWait):
            Builder.after_op(site.loop)(tma.TmaStoreWait())


def _num_other_copies(site: StoreSite) -> int:
    """Return how many stores are surely issued between this one and the next turn of it."""
    assert site.copy.block is not None
    return sum(isinstance(op, COPIES) for op in site.copy.block) - 1


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
    return place_buffers(lives(kernel, number_ops(kernel)))

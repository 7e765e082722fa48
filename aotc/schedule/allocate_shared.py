"""Give every shared buffer its place: buffers that live at different times share bytes.

A buffer lives from its allocation to the last use of it or of one of its slots; a use inside a loop
that the allocation is outside of keeps it alive for the whole loop. While copies into it are in
flight it lives too: up to the next wait for all of them. Buffers are placed largest first, each at the lowest
offset where nothing that lives at the same time is. A mbarrier lives from its making to the end
of the kernel. The small buffers of reductions live as long
as the kernel while they fit a few kilobytes: sharing bytes would cost a barrier each time.

Several groups of consumers do not wait for each other, so nobody knows what lives at the same time
in different ones. What they allocate is placed as for one, behind all else, and that once for each.

Invariant: two buffers whose lives overlap do not overlap in bytes; barriers against the reuse of
bytes are `insert_barriers`' business.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.dialects import gpu, roles, tma, wgmma
from aotc.ir.types import SharedType
from aotc.schedule.context import Schedule

_SMALL_BUFFER_BYTES = 512
_SMALL_BUFFERS_BYTES = 4096


@dataclass(eq=False)
class Buffer:
    """Say how long a buffer lives: from the op numbered `start` to the one numbered `end`.

    There are `num_copies`, one for each group of consumers, `group_bytes` apart.
    """

    op: gpu.SharedAlloc
    size_bytes: int
    start: int
    end: int
    num_copies: int = 1
    offset_bytes: int = 0
    group_bytes: int = 0

    def overlaps_in_time(self, other: Buffer) -> bool:
        return self.start <= other.end and other.start <= self.end


def allocate_shared(kernel: Kernel, schedule: Schedule) -> None:
    """Set the offset of every buffer and the kernel's `shared_bytes`."""
    del schedule
    buffers = lives(kernel, number_ops(kernel))
    kernel.shared_bytes = place_buffers(buffers)
    for buffer in buffers:
        buffer.op.offset_bytes = buffer.offset_bytes
        buffer.op.group_bytes = buffer.group_bytes


def place_buffers(buffers: list[Buffer]) -> int:
    """Set the offsets of buffers; return how many bytes they take together."""
    of_groups = [buffer for buffer in buffers if buffer.num_copies > 1]
    end = _place_beside([buffer for buffer in buffers if buffer.num_copies == 1])
    if not of_groups:
        return end
    alignment = max(buffer.op.alignment_bytes for buffer in of_groups)
    start = _rounded(end, alignment)
    group_bytes = _rounded(_place_beside(of_groups), alignment)
    for buffer in of_groups:
        buffer.offset_bytes += start
        buffer.group_bytes = group_bytes
    return start + group_bytes * of_groups[0].num_copies


def _place_beside(buffers: list[Buffer]) -> int:
    """Set the offsets of buffers from 0 on; return where they end."""
    placed: list[Buffer] = []
    for buffer in sorted(buffers, key=lambda each: -each.size_bytes):
        buffer.offset_bytes = _lowest_gap(buffer, placed)
        placed.append(buffer)
    return max((buffer.offset_bytes + buffer.size_bytes for buffer in buffers), default=0)


def _rounded(size_bytes: int, alignment: int) -> int:
    return -(-size_bytes // alignment) * alignment


def _lowest_gap(buffer: Buffer, placed: list[Buffer]) -> int:
    alignment = buffer.op.alignment_bytes
    offset = 0
    rivals = [other for other in placed if other.overlaps_in_time(buffer)]
    for other in sorted(rivals, key=lambda each: each.offset_bytes):
        if offset + buffer.size_bytes <= other.offset_bytes:
            break
        end = other.offset_bytes + other.size_bytes
        offset = max(offset, _rounded(end, alignment))
    return offset


def number_ops(kernel: Kernel) -> dict[Op, tuple[int, int]]:
    """Number all ops in program order: the first and the last of what is nested in each."""
    numbers: dict[Op, tuple[int, int]] = {}
    _number(kernel.body, numbers, 0)
    return numbers


def lives(kernel: Kernel, numbers: dict[Op, tuple[int, int]]) -> list[Buffer]:
    """Return every buffer with the numbers of its first and last op."""
    buffers: list[Buffer] = []
    for op in numbers:
        if not isinstance(op, gpu.SharedAlloc):
            continue
        assert isinstance(op.out.type, SharedType)
        start = numbers[op][0]
        users = list(_users(op.out))
        end = max((numbers[enclosing_in(user, op.block)][1] for user in users), default=start)
        if any(isinstance(user, tma.MbarrierInit) for user in users):
            end = numbers[kernel.body.terminator][1]  # it may be waited for to the end
        of_group = any(isinstance(outer, roles.Specialize) for outer in op.ancestors())
        num_copies = kernel.num_consumer_groups if of_group else 1
        buffers.append(Buffer(op, op.out.type.size_bytes, start, end, num_copies))
    small = [buffer for buffer in buffers if buffer.size_bytes <= _SMALL_BUFFER_BYTES]
    if sum(buffer.size_bytes for buffer in small) <= _SMALL_BUFFERS_BYTES:
        for buffer in small:
            buffer.start, buffer.end = 0, numbers[kernel.body.terminator][1]
    return buffers


def _number(block: Block, numbers: dict[Op, tuple[int, int]], counter: int) -> int:
    for op in block:
        first = counter
        numbers[op] = (first, first)
        counter += 1
        for nested in op.blocks:
            counter = _number(nested, numbers, counter)
        numbers[op] = (first, counter)
        counter += 1
    return counter


def _users(buffer: Value) -> Iterator[Op]:
    """Yield what uses a buffer or its slots, and the ops that wait for copies into it."""
    for user in buffer.users:
        yield user
        if isinstance(user, gpu.SharedStage | gpu.SharedTrans):
            yield from _users(user.out)
        else:
            wait = _wait_after(user, _WAITS.get(type(user), ()))
            if wait is not None:
                yield wait


_WAITS: dict[type[Op], tuple[type[Op], ...]] = {
    gpu.AsyncCopy: (gpu.AsyncWait,),
    tma.TmaLoad: (tma.MbarrierWait,),
    tma.BulkLoad: (tma.MbarrierWait,),
    tma.TmaStore: (tma.TmaStoreWait,),
    tma.TmaReduce: (tma.TmaStoreWait,),
    tma.BulkStore: (tma.TmaStoreWait,),
    wgmma.Wgmma: (wgmma.WgmmaWait,),
}
"""What waits for the copies or products that an op starts."""


def _wait_after(copy: Op, waits: tuple[type[Op], ...]) -> Op | None:
    """Return the next op after `copy`, or after an op around it, that waits for all copies."""
    outer: Op | None = copy if waits else None
    while outer is not None:
        following = outer.next
        while following is not None:
            if isinstance(following, waits) and not getattr(following, "pending", 0):
                return following
            following = following.next
        outer = outer.parent_op
    return None


def enclosing_in(user: Op, block: Block | None) -> Op:
    """Return the op around `user`, or itself, that is in `block`."""
    outer = user
    for ancestor in user.ancestors():
        if outer.block is block:
            break
        outer = ancestor
    return outer

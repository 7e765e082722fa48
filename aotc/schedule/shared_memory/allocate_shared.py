"""Allocate shared memory: buffers with disjoint live ranges share bytes.

Live ranges come from `live_ranges`. Buffers are placed largest first, each at the lowest offset without
overlap with a simultaneously live buffer.

Consumer groups do not wait for each other, so live ranges of different groups' buffers cannot be compared.
A group's buffers are placed after all others, once for each group.

Invariant: two buffers with overlapping live ranges do not overlap in bytes. `insert_barriers` inserts the
barriers for reused bytes.
"""

from __future__ import annotations

from aotc.ir.core import Kernel
from aotc.ir.order import number_ops
from aotc.schedule.context import Schedule
from aotc.schedule.shared_memory.live_ranges import Buffer, live_ranges


def allocate_shared(kernel: Kernel, schedule: Schedule) -> None:
    """Set the offset of every buffer and the kernel's `shared_bytes`."""
    del schedule
    buffers = live_ranges(kernel, number_ops(kernel))
    kernel.shared_bytes = place_buffers(buffers)
    for buffer in buffers:
        buffer.op.offset_bytes = buffer.offset_bytes
        buffer.op.group_bytes = buffer.group_bytes


def place_buffers(buffers: list[Buffer]) -> int:
    """Set the offsets of buffers; return their total bytes."""
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
    """Set the offsets of buffers, starting at 0; return their end."""
    placed: list[Buffer] = []
    for buffer in sorted(buffers, key=lambda key_buffer: -key_buffer.size_bytes):
        buffer.offset_bytes = _lowest_gap(buffer, placed)
        placed.append(buffer)
    return max((buffer.offset_bytes + buffer.size_bytes for buffer in buffers), default=0)


def _rounded(size_bytes: int, alignment: int) -> int:
    return -(-size_bytes // alignment) * alignment


def _lowest_gap(buffer: Buffer, placed: list[Buffer]) -> int:
    alignment = buffer.op.alignment_bytes
    offset = 0
    rivals = [other for other in placed if other.overlaps_in_time(buffer)]
    for other in sorted(rivals, key=lambda rival: rival.offset_bytes):
        if offset + buffer.size_bytes <= other.offset_bytes:
            break
        end = other.offset_bytes + other.size_bytes
        offset = max(offset, _rounded(end, alignment))
    return offset

"""Live ranges of shared buffers, in ops numbered in program order.

A buffer is live from its allocation to the last use of it or of a stage. A use in a loop around which the
buffer is allocated extends it over the whole loop. It is also live while copies into it are in flight, up
to the next wait for all of them. A mbarrier is live from its initialization to the end of the kernel. Small
buffers of reductions are live throughout the kernel while they fit a few kilobytes: sharing bytes would
cost a barrier each time. A buffer accessed by other CTAs is live throughout, since they run earlier or
later than this CTA.

A buffer filled by a producer warp is live until the consumers' last read: they have waited for every copy
by then. So stores at a program's end can be staged in its operands' bytes, unless the next program's
operands are loaded meanwhile.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.dialects import cluster, gpu, grid, mbarrier, roles
from aotc.ir.effects import Resource, Trait
from aotc.ir.order import enclosing_in
from aotc.ir.types import SharedType
from aotc.ir.walks import users_through_views
from aotc.schedule.analysis.alias import allocation_of

_SMALL_BUFFER_BYTES = 512


_SMALL_BUFFERS_BYTES = 4096

_REMOTE = (grid.ClusterSend, cluster.SendTile, cluster.SendParts, cluster.RemoteLoad)


@dataclass(eq=False)
class Buffer:
    """A buffer with its live range, from op number `start` to `end`.

    There are `num_copies` of the buffer, one for each consumer group, `group_bytes` apart.
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


def live_ranges(kernel: Kernel, numbers: dict[Op, tuple[int, int]]) -> list[Buffer]:
    """Return every buffer with the numbers of its first and last op."""
    buffers: list[Buffer] = []
    for op in numbers:
        if not isinstance(op, gpu.SharedAlloc):
            continue
        assert isinstance(op.out.type, SharedType)
        start = numbers[op][0]
        users = list(_users(op.out))
        end = max((_last_of(user, op.block, numbers) for user in _readers(users)), default=start)
        if any(isinstance(user, mbarrier.MbarrierInit) for user in users):
            end = numbers[kernel.body.terminator][1]  # it may be waited for to the end
        of_group = any(isinstance(outer, roles.Specialize) for outer in op.ancestors())
        num_copies = kernel.num_consumer_groups if of_group else 1
        buffers.append(Buffer(op, op.out.type.size_bytes, start, end, num_copies))
    sent = {allocation_of(op.buffer) for op in numbers if isinstance(op, _REMOTE)}
    small = [buffer for buffer in buffers if buffer.size_bytes <= _SMALL_BUFFER_BYTES]
    permanent = [buffer for buffer in buffers if buffer.op.out in sent]
    if sum(buffer.size_bytes for buffer in small) <= _SMALL_BUFFERS_BYTES:
        permanent += small
    for buffer in permanent:
        buffer.start, buffer.end = 0, numbers[kernel.body.terminator][1]
    return buffers


def _readers(users: list[Op]) -> list[Op]:
    """Return the users without a producer's copies, if consumers read all of these."""
    of_consumers = {user: role for user in users if (role := _role_of(user)) is not None}
    if True not in of_consumers.values():
        return users
    return [user for user in users if of_consumers.get(user, True) or not _only_fills(user)]


def _only_fills(op: Op) -> bool:
    return op.has(Trait.ALIAS) or bool(op.effects_on(Resource.MBARRIER, "start"))


def _role_of(op: Op) -> bool | None:
    """Return whether an op belongs to the consumers, or None outside of roles."""
    inner = op.block
    for outer in op.ancestors():
        if isinstance(outer, roles.Specialize):
            return inner is outer.consumers
        inner = outer.block
    return None


def _last_of(user: Op, block: Block | None, numbers: dict[Op, tuple[int, int]]) -> int:
    """Return the number of the last op of `user`'s ancestor in `block`.

    Roles run once and side by side, so only the consumers' ops count: the outermost loop, or the user alone,
    since no op after it in a branch runs it again.
    """
    outer = enclosing_in(user, block)
    if isinstance(outer, roles.Specialize) and _role_of(user):
        inside = [user, *itertools.takewhile(lambda op: op is not outer, user.ancestors())]
        outer = next((op for op in reversed(inside) if op.has(Trait.LOOP)), user)
    return numbers[outer][1]


def _users(buffer: Value) -> Iterator[Op]:
    """Yield the users of a buffer or its stages, and the waits for copies into it."""
    for user in users_through_views(buffer):
        yield user
        if not user.has(Trait.ALIAS):
            for effect in user.effects_on(None, "start"):
                wait = _wait_after(user, effect.resource)
                if wait is not None:
                    yield wait


def _wait_after(start: Op, resource: Resource) -> Op | None:
    """Return the next wait for all in flight after `start` or an op around it."""
    outer: Op | None = start
    while outer is not None:
        following = outer.next
        while following is not None:
            if following.orders(resource) and not getattr(following, "pending", 0):
                return following
            following = following.next
        outer = outer.parent_op
    return None

"""Double-buffer the shared-memory exchanges of dots and reductions in a loop.

An operand that threads compute in an iteration reaches the dot through shared memory:

    for i: write b; barrier; t = dot of b; wait for t; …

With one buffer, a barrier has to stand between the dot and the next write as well, since other warps may
still wait for their part of the dot. With two, which iterations take in turn, the one barrier orders both:
who has come to it has waited for the dot of the iteration before, whose buffer is written next.

So with what warps have reduced, in a loop over rows: who has come to the barrier has read what the iteration
before wrote. Where an iteration has several such exchanges, one after the other, their barriers order each other.

Invariant: the buffer belongs to its iteration: nothing but the dot, or the reduction, reads it, and it is written
before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard

from aotc.ir.core import Kernel, Op, Value, build
from aotc.ir.dialects import arith, gpu, roles, scf, tma, wgmma
from aotc.ir.effects import Trait
from aotc.ir.order import number_ops
from aotc.ir.rewrite import Builder, append_carried, pass_on
from aotc.ir.types import I32, SharedType
from aotc.ir.walks import users_through_views
from aotc.schedule.context import Schedule
from aotc.schedule.shared_memory.allocate_shared import place_buffers
from aotc.schedule.shared_memory.live_ranges import live_ranges
from aotc.target import Target

_NUM_STAGES = 2
_SMALL_BYTES = 1024  # of what warps have reduced, at most; a larger tile is worth its barrier


def rotate_exchanges(kernel: Kernel, schedule: Schedule) -> None:
    """Give exchanges in loops a second buffer, if there is room for it.

    These are exchanges for dots in loops of consumers, and for reductions in kernels without dots.
    """
    if not any(op.has(Trait.DOT) for op in kernel.walk()):
        for loop in [op for op in kernel.walk() if isinstance(op, scf.For)]:
            _rotate_reductions(loop, kernel, schedule.target)
        return
    for role in [op for op in kernel.body if isinstance(op, roles.Specialize)]:
        for loop in [op for op in role.consumers.walk() if isinstance(op, scf.For)]:
            for exchange in [op for op in loop.body if _is_exchange(op)]:
                if _has_room(exchange, loop, kernel, schedule.target):
                    loop = _rotate(exchange, loop)  # noqa: PLW2901 - the loop that replaces it


def _is_exchange(op: Op) -> TypeGuard[gpu.SharedAlloc]:
    """Return whether an op allocates one buffer that threads write and one dot alone reads, once."""
    if not isinstance(op, gpu.SharedAlloc) or op.num_stages > 1:
        return False
    users = list(_users(op.out))
    readers = [user for user in users if not isinstance(user, gpu.SharedStore)]
    is_alone = len(readers) == 1 and isinstance(readers[0], wgmma.Wgmma)
    return is_alone and all(user.block is op.block for user in users)


def _rotate_reductions(loop: scf.For, kernel: Kernel, target: Target) -> None:
    """Give the exchanges of a loop second buffers if they share one barrier."""
    exchanges = [op for op in loop.body if _is_of_reduction(op)]
    order = {op: number for number, op in enumerate(loop.body)}
    stores = [order[user] for op in exchanges for user in op.out.users if user.writes()]
    loads = [order[user] for op in exchanges for user in op.out.users if not user.writes()]
    if not exchanges or max(stores) > min(loads):
        return
    for exchange in exchanges:
        if _has_room(exchange, loop, kernel, target):
            loop = _rotate(exchange, loop)


def _is_of_reduction(op: Op) -> TypeGuard[gpu.SharedAlloc]:
    """Return whether an op allocates one small buffer that threads write once and then read."""
    if not isinstance(op, gpu.SharedAlloc) or op.num_stages > 1:
        return False
    kind = op.out.type
    if not isinstance(kind, SharedType) or kind.size_bytes > _SMALL_BYTES:
        return False
    users = list(op.out.users)
    stores = [user for user in users if isinstance(user, gpu.SharedStore)]
    loads = [user for user in users if isinstance(user, gpu.SharedLoad)]
    is_whole = len(stores) == 1 and bool(loads) and len(loads) + 1 == len(users)
    return is_whole and all(user.block is op.block for user in users)


def _has_room(exchange: gpu.SharedAlloc, loop: scf.For, kernel: Kernel, target: Target) -> bool:
    """Return whether the second buffer fits, beside those of the loop's stores in flight."""
    stores = [op for op in loop.body.walk() if isinstance(op, tma.StagedStore)]
    kinds = [exchange.out.type, *(store.buffer.type for store in stores)]
    more_bytes = sum(kind.size_bytes for kind in kinds if isinstance(kind, SharedType))
    taken_bytes = place_buffers(live_ranges(kernel, number_ops(kernel)))
    return taken_bytes + more_bytes <= target.max_shared_bytes


def _rotate(exchange: gpu.SharedAlloc, loop: scf.For) -> scf.For:
    """Replace a buffer of each iteration by the stages of a ring; return the loop that has it."""
    outer = Builder.before_op(loop)
    attributes = {**exchange.attributes, "num_stages": _NUM_STAGES}
    ring = outer(build(gpu.SharedAlloc, (), attributes, (), exchange.loc)).out
    first = outer(arith.Constant(0, I32)).out
    index = loop.body.add_arg(I32, "stage")
    exchange.replace_with([Builder.before_op(exchange)(gpu.SharedStage(ring, index)).out])
    end = Builder.before_op(loop.body.terminator)
    pass_on(loop.body, [end(gpu.NextStage(index, _NUM_STAGES)).out])
    return append_carried(loop, [first])


def _users(buffer: Value) -> Iterator[Op]:
    """Return the ops that access a buffer or a view of it."""
    return (user for user in users_through_views(buffer) if not user.has(Trait.ALIAS))

"""Expand tensor loads into their issue by one thread and the wait of all at a mbarrier.

Adjacent loads, none of which depends on another, are issued at once and awaited once. All of a
kernel share a ring of one stage, since each is awaited where it is issued: its parity begins with
0, flips with each wait, and is carried by every loop and branch that contains one.
`insert_barriers` keeps a thread from issuing into a phase that another still waits for.

Invariant: on every path through the kernel, waits have the parities 0, 1, 0, 1, …
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aotc.ir.carried_state import CarriedState, State
from aotc.ir.core import Kernel, Op
from aotc.ir.diagnostics import at
from aotc.ir.dialects import tma
from aotc.ir.effects import Resource
from aotc.ir.rewrite import Builder, is_pure
from aotc.ir.types import SharedType
from aotc.schedule.context import Schedule
from aotc.schedule.shared_memory.mbarrier_ring import MbarrierRing, RingPosition


def expand_tensor_loads(kernel: Kernel, schedule: Schedule) -> None:
    """Replace every tensor load by its issue and a wait."""
    if not any(isinstance(op, tma.SyncLoad) for op in kernel.walk()):
        return
    ring = MbarrierRing(Builder(kernel.body, kernel.body.first))
    expansion = _Expansion(ring, schedule.target.max_shared_bytes // 2)
    expansion.visit(kernel.body, [ring.start])


class _Expansion(CarriedState):
    """Walk the kernel with the parity of the next wait."""

    def __init__(self, ring: MbarrierRing, max_group_bytes: int) -> None:
        self.ring = ring
        self.max_group_bytes = max_group_bytes

    def updated_by(self, op: Op, state: State) -> State | None:
        """Expand the tensor loads that begin with `op`."""
        if not isinstance(op, tma.SyncLoad):
            return None
        group = list(_gather(op, self.max_group_bytes))
        builder = Builder.after_op(group[-1])
        position = RingPosition(self.ring.start, *state)
        with at(op.loc):
            loads = [(sync_load, sync_load.buffer, sync_load.inputs) for sync_load in group]
            for async_load, load in zip(
                self.ring.fill(loads, position, builder), group, strict=True
            ):
                async_load.loc = load.loc
            self.ring.await_full(position, builder)
            after = self.ring.next(position, builder)
        for sync_load in group:
            sync_load.erase()
        return [after.parity]

    def indices_in(self, op: Op) -> Sequence[int]:
        nested = (inner for block in op.blocks for inner in block.walk())
        return (0,) if any(isinstance(inner, tma.SyncLoad) for inner in nested) else ()

    def hint(self, index: int) -> str:
        del index
        return "parity"


# ---- groups -----------------------------------------------------------------------------------


def _gather(first: tma.SyncLoad, max_bytes: int) -> Iterator[tma.SyncLoad]:
    """Yield a load and those after it that need not wait for it, moved up after each other."""
    yield first
    last: Op = first
    left = max_bytes - _buffer_bytes(first)
    passed: dict[Op, None] = {}
    op = first.next
    while op is not None:
        following = op.next
        if isinstance(op, tma.SyncLoad):
            sources = _needed(op, passed)
            left -= _buffer_bytes(op)
            if sources is None or left < 0:
                return
            for source in [*(candidate for candidate in passed if candidate in sources), op]:
                passed.pop(source, None)
                source.remove()
                Builder.after_op(last)(source)
                last = source
            yield op
        elif _can_stand_after(op):
            passed[op] = None
        else:
            return
        op = following


def _can_stand_after(op: Op) -> bool:
    """Return whether an op may be passed by a load: it only computes, or allocates or reads a buffer."""
    if op.terminator or op.blocks:
        return False
    on_buffers = op.effects_on(Resource.SHARED, "allocate", "read")
    return is_pure(op) or (bool(on_buffers) and len(on_buffers) == len(op.effects_on(None)))


def _needed(load: Op, passed: dict[Op, None]) -> dict[Op, None] | None:
    """Return what must move up with a load, or None if it depends on what was loaded."""
    sources: dict[Op, None] = {}
    worklist = [load]
    while worklist:
        for value in worklist.pop().operands:
            op = value.op
            if op is None or op not in passed or op in sources:
                continue
            if op.reads(Resource.SHARED):
                return None
            sources[op] = None
            worklist.append(op)
    return sources


def _buffer_bytes(load: tma.SyncLoad) -> int:
    assert isinstance(load.buffer.type, SharedType)
    return load.buffer.type.size_bytes

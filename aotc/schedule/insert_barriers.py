"""Insert the barriers that accesses to shared memory need, and no others.

Walking in program order, the pass remembers the byte ranges read and written since the last
barrier. An access that meets an earlier one of another thread (a read after a write, a write
after either) gets a barrier in front. A loop's body is walked until what its end leaves is
what its start assumes, so that an access meets those of the iteration before.

Invariant: between two accesses that overlap in bytes, one of them a write, stands a barrier on
every path. Both arms of a branch that is the same for all threads of the block may hold one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.diagnostics import at
from aotc.ir.dialects import gpu, scf, tile
from aotc.ir.rewrite import Builder
from aotc.ir.types import SharedType
from aotc.schedule.context import Schedule

Range = tuple[int, int]


@dataclass
class _Pending:
    """Hold the byte ranges touched since the last barrier."""

    reads: dict[Range, None] = field(default_factory=dict[Range, None])
    writes: dict[Range, None] = field(default_factory=dict[Range, None])

    def clear(self) -> None:
        self.reads.clear()
        self.writes.clear()

    def copy(self) -> _Pending:
        return _Pending(dict(self.reads), dict(self.writes))

    def merge(self, other: _Pending) -> None:
        self.reads.update(other.reads)
        self.writes.update(other.writes)


def insert_barriers(kernel: Kernel, schedule: Schedule) -> None:
    """Insert `gpu.barrier` wherever shared-memory accesses need it."""
    del schedule
    _visit(kernel.body, _Pending())


def _visit(block: Block, pending: _Pending) -> None:
    for op in block:
        if isinstance(op, gpu.Barrier | tile.Barrier):
            pending.clear()
        elif isinstance(op, gpu.SharedStore):
            span = _range(op.buffer)
            if _meets(span, pending.reads) or _meets(span, pending.writes):
                _barrier_before(op, pending)
            pending.writes[span] = None
        elif isinstance(op, gpu.SharedLoad):
            span = _range(op.buffer)
            if _meets(span, pending.writes):
                _barrier_before(op, pending)
            pending.reads[span] = None
        elif isinstance(op, scf.If):
            _visit_branch(op, pending)
        elif isinstance(op, scf.For):
            _visit_loop((op.body,), pending)
        elif isinstance(op, scf.While):
            _visit_loop((op.before, op.after), pending)


def _visit_branch(op: scf.If, pending: _Pending) -> None:
    other = pending.copy()
    _visit(op.then, pending)
    _visit(op.orelse, other)
    pending.merge(other)


def _visit_loop(blocks: Iterable[Block], pending: _Pending) -> None:
    """Walk the body twice: the second time, what its end left is pending at its start."""
    entry = pending.copy()
    for _ in range(2):
        for block in blocks:
            _visit(block, pending)
        pending.merge(entry)


def _range(buffer: Value) -> Range:
    op = buffer.op
    assert isinstance(op, gpu.SharedAlloc)
    assert isinstance(buffer.type, SharedType)
    return op.offset_bytes, op.offset_bytes + buffer.type.size_bytes


def _meets(span: Range, others: Iterable[Range]) -> bool:
    return any(span[0] < end and start < span[1] for start, end in others)


def _barrier_before(op: Op, pending: _Pending) -> None:
    with at(op.loc):
        Builder.before_op(op)(gpu.Barrier())
    pending.clear()

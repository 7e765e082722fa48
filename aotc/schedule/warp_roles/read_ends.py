"""Find the op after which a reader is done with a buffer.

Threads are done at the op itself. A dot goes on after it: it is done at the wait that covers it.

Invariant: nothing reads the buffer for a reader after the op at which it is done.
"""

from __future__ import annotations

from aotc.ir.core import Block, Op
from aotc.ir.dialects import scf, wgmma


def done_at(reader: Op, block: Block) -> tuple[Op, bool] | None:
    """Return the op of `block` that completes a reader in it, and whether that is an iteration later.

    A dot is done after the wait that covers it; it is None if none is found in or around its block.
    """
    if not isinstance(reader, wgmma.Wgmma):
        return _enclosing(reader, block), False
    op: Op = reader
    newer = 0
    while True:
        wait, newer = _wait_after(op.next, newer)
        if wait is not None:
            return _enclosing(wait, block), False
        if op.block is block:
            wait, _ = _wait_after(block.first, newer)
            return None if wait is None else (wait, True)
        parent = op.parent_op
        if parent is None:
            return None
        if not isinstance(parent, scf.If):
            newer = 0
        op = parent


def _wait_after(op: Op | None, newer: int) -> tuple[Op | None, int]:
    """Return the first wait from `op` on that leaves at most `newer` dots in flight."""
    while op is not None:
        if isinstance(op, wgmma.Wgmma):
            newer += 1
        elif isinstance(op, wgmma.WgmmaWait) and op.pending <= newer:
            return op, newer
        op = op.next
    return None, newer


def _enclosing(op: Op, block: Block) -> Op:
    """Return the op of `block` that is `op` or contains it."""
    while op.block is not block:
        parent = op.parent_op
        if parent is None:
            op.error("is not in the block of what it reads")
        op = parent
    return op

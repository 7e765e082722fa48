"""Locks that programs take: words that a loop tries to swap until it succeeds.

What such a word holds before a launch decides whether programs exclude each other, or wait forever:
it must be free.

Invariant: only loops whose condition depends on an atomic's result count, as a program that does not
wait may find anything.
"""

from __future__ import annotations

from collections.abc import Iterator

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import arith, scf, tile
from aotc.ir.parameter_access import pointer_roots
from aotc.verify.checks.value_flow import backward, strip


def free_locks(kernel: Kernel) -> dict[str, int]:
    """Return the pointers at locks, by name, and the value of a word that is free."""
    names = {arg: info.name for arg, info in zip(kernel.body.args, kernel.params, strict=True)}
    found: dict[str, int] = {}
    for op in _attempts(kernel):
        free = _free_value(op)
        if free is None:
            continue
        for root in pointer_roots(op.pointer):
            if root in names:
                found.setdefault(names[root], free)
    return found


def _attempts(kernel: Kernel) -> Iterator[tile.AtomicCas | tile.AtomicRmw]:
    """Yield the swaps inside loops that go on depending on what they return."""
    for loop in kernel.walk():
        if not isinstance(loop, scf.While):
            continue
        for value in backward([loop.before.terminator.operands[0]]):
            op = value.op
            if isinstance(op, tile.AtomicCas | tile.AtomicRmw) and loop in op.ancestors():
                yield op


def _free_value(op: Op) -> int | None:
    """Return what the word of a swap holds at first; None where nothing says."""
    if isinstance(op, tile.AtomicCas):
        free = _constant(op.compare)
        is_poll = free is not None and free == _constant(op.value)
        if is_poll:  # it waits for a signal
            return int(free == 0)
        return free or 0  # turns that are computed begin with 0
    if isinstance(op, tile.AtomicRmw) and op.kind == "xchg":
        taken = _constant(op.value)
        return None if taken is None else int(taken == 0)
    return None


def _constant(value: Value) -> int | None:
    op = strip(value).op
    if not isinstance(op, arith.Constant) or op.value != int(op.value):
        return None
    return int(op.value)

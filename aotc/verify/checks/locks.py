"""Find locks of programs: words swapped in a loop until it succeeds.

The word's value before a launch decides whether programs exclude each other, or wait forever:
it must be free.

Invariant: only loops whose condition depends on an atomic's result count; a program that does
not spin may start from any value.
"""

from __future__ import annotations

from collections.abc import Iterator

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import arith, scf, tile
from aotc.ir.parameter_access import pointer_roots
from aotc.verify.checks.value_flow import backward, strip


def free_locks(kernel: Kernel) -> dict[str, int]:
    """Return the pointers to locks, by name, each with the value of a free lock."""
    names = {arg: info.name for arg, info in zip(kernel.body.args, kernel.params, strict=True)}
    locks: dict[str, int] = {}
    for op in _attempts(kernel):
        free = _free_value(op)
        if free is None:
            continue
        for root in pointer_roots(op.pointer):
            if root in names:
                locks.setdefault(names[root], free)
    return locks


def _attempts(kernel: Kernel) -> Iterator[tile.AtomicCas | tile.AtomicRmw]:
    """Yield the swaps inside loops whose condition depends on their results."""
    for loop in kernel.walk():
        if not isinstance(loop, scf.While):
            continue
        for value in backward([loop.before.terminator.operands[0]]):
            op = value.op
            if isinstance(op, tile.AtomicCas | tile.AtomicRmw) and loop in op.ancestors():
                yield op


def _free_value(op: Op) -> int | None:
    """Return the first value expected by a swap; None if unknown."""
    if isinstance(op, tile.AtomicCas):
        free = _constant(op.compare)
        is_poll = free is not None and free == _constant(op.value)
        if is_poll:  # it waits for a signal
            return int(free == 0)
        return free or 0  # computed turns begin with 0
    if isinstance(op, tile.AtomicRmw) and op.kind == "xchg":
        locked = _constant(op.value)
        return None if locked is None else int(locked == 0)
    return None


def _constant(value: Value) -> int | None:
    op = strip(value).op
    if not isinstance(op, arith.Constant) or op.value != int(op.value):
        return None
    return int(op.value)

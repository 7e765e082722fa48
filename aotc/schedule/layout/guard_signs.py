"""Guard signs of arguments where divisions then keep runs of neighbours together.

`offs // D` is constant, and `offs % D` counts up, along aligned runs of offsets that are 0 or more.
Below zero, truncation splits the runs. The sign of an argument is known to the caller alone, so it
becomes a guard: other launches take the kernel built without guards.

Invariant: each guard is necessary for the width of an access.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import arith
from aotc.ir.types import ScalarType, TileType
from aotc.schedule.analysis.axis import AxisAnalysis
from aotc.schedule.analysis.global_order import accessed_pointer
from aotc.schedule.context import Schedule
from aotc.schedule.layout.access import MAX_ACCESS_BYTES, memory_order, pointee_bytes


def guard_signs(kernel: Kernel, schedule: Schedule) -> None:
    """Add guards on arguments, `name >= 0`, for which accesses become wider."""
    if not schedule.map_pointers:
        return
    divided = [
        op.operands[0]
        for op in kernel.walk()
        if isinstance(op, arith.Div | arith.Rem) and isinstance(op.results[0].type, TileType)
    ]
    if not divided:
        return
    facts = AxisAnalysis(kernel)
    if all(facts[value].nonnegative for value in divided):
        return
    accesses = [
        op
        for op in kernel.walk()
        if (pointer := accessed_pointer(op)) is not None and isinstance(pointer.type, TileType)
    ]
    needed = [
        arg
        for arg in kernel.body.args
        if isinstance(arg.type, ScalarType) and arg.type.is_int and not facts[arg].nonnegative
    ]
    guarded_widths = _widths_if_guarded(kernel, needed, accesses)
    if guarded_widths == _widths(facts, accesses):
        return
    for arg in list(needed):
        fewer = [other for other in needed if other is not arg]
        if _widths_if_guarded(kernel, fewer, accesses) == guarded_widths:
            needed = fewer
    params = [kernel.params[arg.index] for arg in needed]
    guards = [f"{info.source or info.name} >= 0" for info in params]
    kernel.guards = tuple(dict.fromkeys((*kernel.guards, *guards)))


def _widths_if_guarded(kernel: Kernel, args: Sequence[Value], accesses: Sequence[Op]) -> list[int]:
    facts = AxisAnalysis(kernel)
    supposed = {arg: replace(facts[arg], nonnegative=True) for arg in args}
    return _widths(AxisAnalysis(kernel, supposed), accesses)


def _widths(facts: AxisAnalysis, accesses: Sequence[Op]) -> list[int]:
    """Return the most bytes that one access of each op could move by these facts."""
    widths: list[int] = []
    for op in accesses:
        pointer, mask = accessed_pointer(op), getattr(op, "mask", None)
        assert pointer is not None
        info, element_bytes = facts[pointer], pointee_bytes(pointer)
        fast = memory_order(info)[0]
        run = min(info.contiguity[fast], max(1, info.divisibility[fast] // element_bytes))
        if isinstance(mask, Value):
            run = min(run, facts[mask].constancy[fast])
        widths.append(min(run * element_bytes, MAX_ACCESS_BYTES))
    return widths

"""Promises of the signature that would establish a missing fact: found by trying.

A remark that names a remedy is believed, so none is named that does not help. The facts are
computed once more as if arguments were promised to be multiples of 16, and, where that does not
suffice, as if one of them were 1; what is not needed is then left out.

Invariant: with the promises that are named, the fact holds; without any one of them it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from aotc.ir.core import Block, Kernel, Value
from aotc.ir.dialects import scf
from aotc.ir.types import PointerType, ScalarType
from aotc.schedule.analysis.axis import AxisAnalysis, AxisInfo, constant

_MULTIPLE = 16
_SIXTEENTH = AxisInfo((1,), (_MULTIPLE,), (1,))

Holds = Callable[[AxisAnalysis], bool]


def find_promises(kernel: Kernel, values: Iterable[Value], holds: Holds) -> str:
    """Return the promises that would make `holds` true, as advice; an empty string if none would.

    `values` are those whose facts it looks up: what they are not made from is not tried.
    """
    open_args = _unpromised(values, kernel)
    names = dict(zip(kernel.body.args, (info.name for info in kernel.params), strict=True))
    multiples = dict.fromkeys(open_args, _SIXTEENTH)
    if open_args and holds(AxisAnalysis(kernel, multiples)):
        needed = _needed(kernel, multiples, holds)
        return promise_multiples([names[arg] for arg in needed])
    for arg in open_args:
        one = {arg: constant(arg.type, 1)}
        if isinstance(arg.type, PointerType) or not holds(AxisAnalysis(kernel, multiples | one)):
            continue
        needed = _needed(kernel, multiples | one, holds)
        rest = [names[each] for each in needed if each is not arg]
        also = f"; {promise_multiples(rest)}" if rest else ""
        return f"promise that {names[arg]} is 1, with '=1' in the signature{also}"
    return ""


def promise_multiples(names: Sequence[str]) -> str:
    """Return the advice to promise that arguments are multiples of 16."""
    listed = ", ".join(names)
    return f"promise ':16' in the signature, or ':16?' to have both variants built, of {listed}"


def _needed(kernel: Kernel, given: Mapping[Value, AxisInfo], holds: Holds) -> dict[Value, AxisInfo]:
    """Return as few of the promises as suffice together."""
    kept = dict(given)
    for arg in given:
        fewer = {each: info for each, info in kept.items() if each is not arg}
        if holds(AxisAnalysis(kernel, fewer)):
            kept = fewer
    return kept


def _unpromised(values: Iterable[Value], kernel: Kernel) -> list[Value]:
    """Return the arguments that values are made from and that nothing is promised of."""
    seen: dict[Value, None] = {}
    worklist = list(values)
    while worklist:
        current = worklist.pop()
        if current in seen:
            continue
        seen[current] = None
        worklist += [] if current.op is None else current.op.operands
        worklist += _entering(current)
    return [
        arg
        for arg, info in zip(kernel.body.args, kernel.params, strict=True)
        if arg in seen
        and info.divisibility % _MULTIPLE
        and (
            isinstance(arg.type, PointerType)
            or (isinstance(arg.type, ScalarType) and arg.type.is_int)
        )
    ]


def _entering(value: Value) -> list[Value]:
    """Return what a carried variable of a loop begins as and becomes."""
    loop = value.owner.parent if isinstance(value.owner, Block) else None
    if not isinstance(loop, scf.For) or value.index == 0:
        return []
    init = loop.init[value.index - 1]
    return [each for each in (init, loop.body.terminator.operands[value.index - 1]) if each]

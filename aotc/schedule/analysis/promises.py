"""Find promises of the signature to establish a missing fact, by trying them.

Users believe a remedy in a remark, so it must help. The facts are recomputed as if arguments were
promised to be multiples of 16, and, where that does not suffice, as if one of them were 1. Unneeded
promises are then left out.

Invariant: with the named promises the fact is true; without any one of them it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from aotc.ir.core import Block, Kernel, Value
from aotc.ir.dialects import scf
from aotc.ir.types import PointerType, ScalarType
from aotc.schedule.analysis.axis import AxisAnalysis, AxisInfo, constant

_MULTIPLE = 16
_SIXTEENTH = AxisInfo((1,), (_MULTIPLE,), (1,), nonnegative=True)

Holds = Callable[[AxisAnalysis], bool]


def find_promises(kernel: Kernel, values: Iterable[Value], holds: Holds) -> str:
    """Return the promises that would make `holds` true, as advice, or an empty string.

    `values` are those whose facts `holds` uses: only their sources are tried.
    """
    open_args = _unpromised(values, kernel)
    names = dict(zip(kernel.body.args, (info.name for info in kernel.params), strict=True))
    multiples = dict.fromkeys(open_args, _SIXTEENTH)
    if open_args and holds(_facts(kernel, multiples)):
        promises = _sufficient(kernel, multiples, holds)
        return promise_multiples([names[arg] for arg in promises])
    for arg in open_args:
        unit = {arg: constant(arg.type, 1)}
        if isinstance(arg.type, PointerType) or not holds(_facts(kernel, multiples | unit)):
            continue
        promises = _sufficient(kernel, multiples | unit, holds)
        rest = [names[other] for other in promises if other is not arg]
        also = f"; {promise_multiples(rest)}" if rest else ""
        return f"promise that {names[arg]} is 1, with '=1' in the signature{also}"
    return ""


def promise_multiples(names: Sequence[str]) -> str:
    """Return the advice to promise multiples of 16 for arguments."""
    listed = ", ".join(names)
    return f"promise ':16' in the signature, or ':16?' to have both variants built, of {listed}"


def _sufficient(
    kernel: Kernel, promises: Mapping[Value, AxisInfo], holds: Holds
) -> dict[Value, AxisInfo]:
    """Return as few of the promises as suffice together."""
    sufficient = dict(promises)
    for arg in promises:
        fewer = {other: info for other, info in sufficient.items() if other is not arg}
        if holds(_facts(kernel, fewer)):
            sufficient = fewer
    return sufficient


def _facts(kernel: Kernel, promises: Mapping[Value, AxisInfo]) -> AxisAnalysis:
    """Return the facts with these promises, of numbers that `guard_signs` could guard."""
    facts = AxisAnalysis(kernel)
    signs = {
        arg: replace(facts[arg], nonnegative=True)
        for arg in kernel.body.args
        if isinstance(arg.type, ScalarType) and arg.type.is_int
    }
    return AxisAnalysis(kernel, signs | dict(promises))


def _unpromised(values: Iterable[Value], kernel: Kernel) -> list[Value]:
    """Return the sources of values among arguments without a promise."""
    seen: dict[Value, None] = {}
    worklist = list(values)
    while worklist:
        current = worklist.pop()
        if current in seen:
            continue
        seen[current] = None
        worklist += [] if current.op is None else current.op.operands
        worklist += _loop_values(current)
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


def _loop_values(value: Value) -> list[Value]:
    """Return the initial and the yielded value of a loop-carried variable."""
    loop = value.owner.parent if isinstance(value.owner, Block) else None
    if not isinstance(loop, scf.For) or value.index == 0:
        return []
    init = loop.init[value.index - 1]
    return [
        operand for operand in (init, loop.body.terminator.operands[value.index - 1]) if operand
    ]

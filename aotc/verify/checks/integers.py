"""What integers of a kernel are, or may be at most, at a launch.

Where a loop ends, how many tiles there are and how far an index goes follows from the arguments,
through a few ops on scalars.

Invariant: `value_at` says what a program computes; `upper_bound` is for choosing sizes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from aotc.ir.core import Block, Op, Value
from aotc.ir.dialects import arith, descriptor, scf, tile
from aotc.ir.walks import Steps, run
from aotc.verify.checks.value_flow import SHAPES

_Combine: TypeAlias = Callable[[list[int]], int]


@dataclass(frozen=True, slots=True)
class Known:
    """Hold what a launch gives: its grid, parameters by value, tensors' extents by axis.

    The grid is empty where it is not known.
    """

    grid: Sequence[int]
    scalars: Mapping[Value, int]
    extents: Mapping[tuple[Value, int], int] = field(default_factory=dict[tuple[Value, int], int])

    def programs(self, axis: int) -> int:
        """Return how many programs there are along an axis."""
        return self.grid[axis] if axis < len(self.grid) else 1


def value_at(value: Value, known: Known) -> int | None:
    """Return what a scalar of parameters, extents and constants is; None if it is of others too.

    Quotients are of nonnegative numbers.
    """
    return _combined(value, known, _EXACT, _leaf)


def value_in_last(value: Value, known: Known) -> int | None:
    """Return what a scalar is in the last program, as `value_at` does in any."""
    return _combined(value, known, _EXACT, _limit)


def upper_bound(value: Value, known: Known) -> int | None:
    """Return what an index made of program ids and parameters cannot exceed; None for others.

    It is meant for choosing sizes: parameters and differences are taken to be nonnegative.
    """
    return _combined(value, known, _BOUNDS, _upper_limit)


def _upper_limit(value: Value, known: Known) -> int | None:
    """Return the largest value of a program id, a parameter, or the variable of a loop."""
    loop = value.owner.parent if isinstance(value.owner, Block) else None
    if isinstance(loop, scf.For) and value.index == 0:
        end = upper_bound(loop.upper, known)
        return None if end is None else max(0, end - 1)
    return _limit(value, known)


def _combined(
    value: Value,
    known: Known,
    rules: Mapping[type[Op], _Combine],
    leaf: Callable[[Value, Known], int | None],
) -> int | None:
    answers: dict[Value, int | None] = {}

    def answer(value: Value) -> Steps[int | None]:
        if value not in answers:
            answers[value] = yield learn(value)
        return answers[value]

    def learn(value: Value) -> Steps[int | None]:
        found = leaf(value, known)
        rule = rules.get(type(value.op)) if value.op is not None else None
        if found is not None or value.op is None or rule is None:
            return found
        numbers: list[int] = []
        for operand in value.op.operands:
            part = yield answer(operand)
            if part is None:
                return None
            numbers.append(part)
        return rule(numbers)

    return run(answer(value))


def _leaf(value: Value, known: Known) -> int | None:
    op = value.op
    if value in known.scalars:
        return known.scalars[value]
    if isinstance(op, arith.Constant):
        return int(op.value)
    if isinstance(op, tile.NumPrograms):
        return known.programs(op.axis) if known.grid else None
    if isinstance(op, descriptor.DescriptorExtent):
        return known.extents.get((op.descriptor, op.axis))
    return None


def _limit(value: Value, known: Known) -> int | None:
    op = value.op
    return known.programs(op.axis) - 1 if isinstance(op, tile.ProgramId) else _leaf(value, known)


_EXACT: dict[type[Op], _Combine] = {
    **dict.fromkeys(SHAPES, lambda numbers: numbers[0]),
    arith.Add: sum,
    arith.Sub: lambda numbers: numbers[0] - numbers[1],
    arith.Mul: lambda numbers: numbers[0] * numbers[1],
    arith.Min: min,
    arith.Max: max,
    arith.Div: lambda numbers: numbers[0] // max(1, numbers[1]),
    arith.Rem: lambda numbers: numbers[0] % max(1, numbers[1]),
}
_BOUNDS: dict[type[Op], _Combine] = {
    **_EXACT,
    **dict.fromkeys((arith.Sub, arith.Div, arith.Rem), lambda numbers: numbers[0]),
}

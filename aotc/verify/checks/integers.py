"""Evaluate or bound integers of a kernel at a launch.

The end of a loop, the number of tiles and the range of an index follow from the arguments,
through a few ops on scalars.

Invariant: `value_at` is exact; use `upper_bound` only for choosing sizes.
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
class LaunchValues:
    """The values of a launch: its grid, its scalar parameters, and tensors' extents by axis.

    The grid is empty if unknown.
    """

    grid: Sequence[int]
    scalars: Mapping[Value, int]
    extents: Mapping[tuple[Value, int], int] = field(default_factory=dict[tuple[Value, int], int])

    def programs(self, axis: int) -> int:
        """Return the number of programs along an axis."""
        return self.grid[axis] if axis < len(self.grid) else 1


def value_at(value: Value, launch: LaunchValues) -> int | None:
    """Return a scalar made of parameters, extents and constants only, else None.

    Quotients are of nonnegative numbers.
    """
    return _combined(value, launch, _EXACT, _leaf)


def value_in_last(value: Value, launch: LaunchValues) -> int | None:
    """Return the value of a scalar in the last program, as `value_at` does in any."""
    return _combined(value, launch, _EXACT, _limit)


def upper_bound(value: Value, launch: LaunchValues) -> int | None:
    """Bound an index made of program ids and parameters from above; None for others.

    It is meant for choosing sizes: parameters and differences are taken to be nonnegative.
    """
    return _combined(value, launch, _BOUNDS, _upper_limit)


def _upper_limit(value: Value, launch: LaunchValues) -> int | None:
    """Return the largest value of a program id, a parameter, or the variable of a loop."""
    loop = value.owner.parent if isinstance(value.owner, Block) else None
    if isinstance(loop, scf.For) and value.index == 0:
        end = upper_bound(loop.upper, launch)
        return None if end is None else max(0, end - 1)
    return _limit(value, launch)


def _combined(
    value: Value,
    launch: LaunchValues,
    rules: Mapping[type[Op], _Combine],
    leaf: Callable[[Value, LaunchValues], int | None],
) -> int | None:
    answers: dict[Value, int | None] = {}

    def answer(value: Value) -> Steps[int | None]:
        if value not in answers:
            answers[value] = yield learn(value)
        return answers[value]

    def learn(value: Value) -> Steps[int | None]:
        leaf_value = leaf(value, launch)
        rule = rules.get(type(value.op)) if value.op is not None else None
        if leaf_value is not None or value.op is None or rule is None:
            return leaf_value
        numbers: list[int] = []
        for operand in value.op.operands:
            part = yield answer(operand)
            if part is None:
                return None
            numbers.append(part)
        return rule(numbers)

    return run(answer(value))


def _leaf(value: Value, launch: LaunchValues) -> int | None:
    op = value.op
    if value in launch.scalars:
        return launch.scalars[value]
    if isinstance(op, arith.Constant):
        return int(op.value)
    if isinstance(op, tile.NumPrograms):
        return launch.programs(op.axis) if launch.grid else None
    if isinstance(op, descriptor.DescriptorExtent):
        return launch.extents.get((op.descriptor, op.axis))
    return None


def _limit(value: Value, launch: LaunchValues) -> int | None:
    op = value.op
    return launch.programs(op.axis) - 1 if isinstance(op, tile.ProgramId) else _leaf(value, launch)


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

"""Turn a subject's guards, grid, choices and input ranges into checks of its launches.

The manifest and the variant's record state these as expressions over the arguments; the checks take
them as functions of their chosen scalars.

Invariant: the launcher would give every checked launch to this variant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from aotc.ir import expression
from aotc.ir.expression import Binary, Expression, ExpressionError, Integer, Name
from aotc.ir.types import SCALARS
from aotc.package.manifest.argument_type import PROMISED_DIVISOR
from aotc.package.manifest.spec import ManifestExpression
from aotc.package.verify.subjects import Subject, VerifyOptions
from aotc.schedule.layout.tensor_copies import tensor_map_of
from aotc.verify.checks.check import Checks
from aotc.verify.checks.dataflow import shared_block
from aotc.verify.checks.inputs import DEFAULT_MAX_BUFFER_BYTES, Inputs, Pointees, Range
from aotc.verify.checks.launch import Scalar
from aotc.verify.checks.launches import DEFAULT_MAX_PROGRAMS, DEFAULT_NUM_STAGES, Choice, Conditions

_NO_GRID = (-1,)
_FAR, _MOST = 7, 1 << 14  # of values in a range: steps from its start, and the largest tried
_ADDRESS = 1 << 20
"""Assumed address of a pointer in guards: aligned, and not null."""


def checks_of(subject: Subject, options: VerifyOptions, *, may_be_left_out: bool) -> Checks:
    """Return the checks of a subject: its launches, their inputs, and the tolerance."""
    spec = subject.spec
    choices = {name: Choice(values=values) for name, values in spec.values.items()}
    for name, values in _values_in_ranges(subject.guards).items():
        choices.setdefault(name, Choice(values=values))
    for name, root in spec.expressions.items():
        choices[name] = Choice(function=_function(root, subject.values))
    grid: Sequence[Expression] = subject.grid or [parsed.root for parsed in spec.grid or ()]
    conditions = Conditions(
        grid=_grid(tuple(grid), subject.values),
        admits=_admits(subject),
        named=_named(
            (*grid, *subject.guards, *(parsed.root for parsed in spec.expressions.values()))
        ),
        fixed=subject.values,
        divisors=_divisors(subject.guards),
        choices=choices,
        max_programs=spec.max_programs or DEFAULT_MAX_PROGRAMS,
        num_stages=_num_stages(subject),
        num_groups=_num_groups(subject),
        may_be_left_out=may_be_left_out,
        may_alias=spec.in_place,
        num_ctas=subject.num_ctas,
    )
    ranges = {
        name: Range(
            _limit(parsed.low, subject.values),
            _limit(parsed.high, subject.values),
            is_distinct=parsed.is_distinct,
            is_cumulative=parsed.is_cumulative,
            multiple_of=parsed.multiple_of,
        )
        for name, parsed in spec.ranges.items()
    }
    pointees = {
        name: Pointees(
            SCALARS[parsed.element],
            _limit(parsed.count, subject.values),
            tuple(_limit(extent, subject.values) for extent in parsed.shape),
            tensor_map_of,
        )
        for name, parsed in spec.pointees.items()
    }
    sizes = {name: _limit(parsed, subject.values) for name, parsed in spec.sizes.items()}
    limit = min(DEFAULT_MAX_BUFFER_BYTES, options.max_memory_bytes)
    is_rescaled = bool(subject.values.get("conditional_rescaling", 0))
    inputs = Inputs(ranges, pointees, limit, sizes, is_rescaled)
    return Checks(
        *(conditions, inputs, options.seed, spec.tolerance),
        is_compared_later=options.is_compared_later,
    )


def _num_stages(subject: Subject) -> int:
    """Return the default number of pipeline stages of loops."""
    if subject.request is not None:
        return subject.request.config.num_stages
    return subject.values.get("num_stages", DEFAULT_NUM_STAGES)


def _num_groups(subject: Subject) -> int:
    """Return the number of consumer groups dividing the tiles of a persistent CTA."""
    if subject.request is not None:
        return subject.request.config.num_consumer_groups
    return subject.values.get("num_consumer_groups", 1)


def _function(
    parsed: ManifestExpression, values: Mapping[str, int]
) -> Callable[[Mapping[str, int]], int]:
    def function(scalars: Mapping[str, int]) -> int:
        try:
            return expression.evaluate(parsed.root, {**values, **scalars})
        except ExpressionError as error:
            raise parsed.error(error) from None

    return function


def _limit(
    end: float | ManifestExpression, values: Mapping[str, int]
) -> Callable[[Mapping[str, Scalar]], Scalar]:
    if not isinstance(end, ManifestExpression):
        return lambda _: end
    function = _function(end, values)
    return lambda scalars: function({n: v for n, v in scalars.items() if isinstance(v, int)})


def _grid(
    grid: tuple[Expression, ...], values: Mapping[str, int]
) -> Callable[[Mapping[str, int]], tuple[int, ...]] | None:
    if not grid:
        return None

    def extents(scalars: Mapping[str, int]) -> tuple[int, ...]:
        try:
            return tuple(expression.evaluate(root, {**values, **scalars}) for root in grid)
        except ExpressionError:
            return _NO_GRID

    return extents


def _admits(subject: Subject) -> Callable[[Mapping[str, int]], bool]:
    """Return whether a launch selects this variant: its guards hold.

    Pointers are assumed aligned and distinct.
    """

    def admits(scalars: Mapping[str, int]) -> bool:
        for guard in subject.guards:
            # A tensor's address and strides are aligned, and its last axis is dense.
            names = sorted(expression.free_names(guard))
            name_values = {name: _ADDRESS * number for number, name in enumerate(names, 1)}
            for node in expression.walk(guard):
                if isinstance(node, expression.Extent):
                    is_last = f"{node.name}.shape[{node.dim + 1}]" not in scalars
                    name_values[expression.to_text(node)] = 1 if is_last else PROMISED_DIVISOR
            try:
                if not expression.evaluate(guard, {**name_values, **subject.values, **scalars}):
                    return False
            except ExpressionError:
                return False
        return True

    return admits


def _named(roots: Iterable[Expression]) -> frozenset[str]:
    """Return the names in expressions: "n", "x.shape[0]"."""
    names = (expression.Name, expression.Extent)
    return frozenset(
        expression.to_text(node)
        for root in roots
        for node in expression.walk(root)
        if isinstance(node, names)
    )


def _divisors(guards: Iterable[Expression]) -> dict[str, int]:
    """Return the required divisor of each argument."""
    divisors: dict[str, int] = {}
    for guard in guards:
        for part in expression.conjuncts(guard):
            match part:
                case Binary("==", Binary("%", Name(name), Integer(divisor)), Integer(0)):
                    divisors[name] = math.lcm(divisors.get(name, 1), max(1, abs(divisor)))
                case _:
                    pass
    return divisors


def _values_in_ranges(guards: Iterable[Expression]) -> dict[str, tuple[int, ...]]:
    """Return values of the arguments whose range has none of the small ones tried by default."""
    divisors = _divisors(guards)
    values: dict[str, tuple[int, ...]] = {}
    for guard in guards:
        match tuple(expression.conjuncts(guard)):
            case (Binary("<=", Integer(low), Name(name)), Binary("<=", Name(other), Integer(high))):
                step = divisors.get(name, 1)
                first = -(-low // step) * step
                listed = (first, first + step, first + _FAR * step, high // step * step)
                if other == name and (low > 1 or high < 1):
                    usable = (value for value in listed if low <= value <= min(high, _MOST))
                    values[name] = tuple(dict.fromkeys(usable)) or (first,)
            case _:
                pass
    return values


def grid_blocks(grid: Iterable[Expression]) -> dict[str, int]:
    """Return the arguments in a grid, each with the tile size dividing it.

    >>> grid_blocks([expression.parse("cdiv(n, 128)"), expression.parse("rows")])
    {'n': 128, 'rows': 1}
    """
    blocks: dict[str, int] = {}
    for root in grid:
        for node in expression.walk(root):
            block = 1
            inside: Expression = node
            if isinstance(node, expression.Binary) and node.op in ("cdiv", "//"):
                block = node.rhs.value if isinstance(node.rhs, expression.Integer) else 1
                inside = node.lhs
            elif not isinstance(node, expression.Name):
                continue
            names = expression.free_names(inside)
            if any(
                isinstance(n, expression.Binary) and n.op == "*" for n in expression.walk(inside)
            ):
                block = shared_block(block, len(names))
            for name in names:
                blocks[name] = max(block, blocks.get(name, 1))
    return blocks

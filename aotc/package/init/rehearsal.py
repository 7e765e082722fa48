"""Launch a table's first variant in the interpreter, to test guesses that compile.

Two programs that store to one place, or a kernel that stores nothing, tell of a wrong guess, such
as a row stride of 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from aotc.compiler import translate_request
from aotc.ir import expression
from aotc.ir.dialects import scf
from aotc.ir.expression import Expression, ExpressionError
from aotc.package.manifest.configs import integer_values
from aotc.package.manifest.variant_grid import VariantSpec
from aotc.verify.checks.check import Checks, Execution, Unsuited, check_kernel
from aotc.verify.checks.dataflow import roles_of
from aotc.verify.checks.launches import Conditions
from aotc.verify.checks.reference import Reference

_MAX_LAUNCHES = 5


Outcome: TypeAlias = Literal["stores", "stores nothing", "passed over"]


def rehearse(variant: VariantSpec) -> Outcome:
    """Return what a launch of a variant does; it stores where that cannot be told."""
    kernel = translate_request(variant.request).kernel
    if any(isinstance(op, scf.While) for op in kernel.walk()):
        return "stores"  # programs may wait for each other
    values = {**integer_values(variant.values), **dict.fromkeys(variant.absent, 0)}
    conditions = Conditions(
        grid=None if not variant.grid else lambda scalars: _extents(variant.grid, values, scalars),
        admits=lambda _: True,
        fixed=values,
        may_change_grid=False,
    )
    roles = roles_of(kernel, {}, lambda _: False)  # one exact run of each launch
    num_stored: list[int] = []

    def execute(reference: Reference) -> Execution:
        num_stored.append(reference.num_stored)
        raise Unsuited("nothing is compared")

    findings = check_kernel(kernel, roles, Checks(conditions), execute)
    if any(sum(num_stored) for _ in zip(findings, range(_MAX_LAUNCHES), strict=False)):
        return "stores"
    return "stores nothing" if num_stored else "passed over"


def _extents(
    grid: Sequence[Expression], values: Mapping[str, int], scalars: Mapping[str, int]
) -> tuple[int, ...]:
    try:
        return tuple(expression.evaluate(root, {**values, **scalars}) for root in grid)
    except ExpressionError:
        return (-1,)

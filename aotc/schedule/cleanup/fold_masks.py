"""Fold comparisons decided by the ranges of their sides, so that no thread computes them.

`step % 4 * 32 + arange < 128` is true in every iteration. Triton kernels mask such accesses, as the
extent they are compared with is a constant by accident.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import arith
from aotc.ir.rewrite import Builder, rewrite
from aotc.schedule.analysis.value_ranges import Range, ValueRanges, is_integer
from aotc.schedule.cleanup.simplify import simplify
from aotc.schedule.context import Schedule


def fold_masks(kernel: Kernel, schedule: Schedule) -> None:
    """Replace decided comparisons of tiles and scalars by constants."""
    ranges = ValueRanges()

    def fold(op: Op, builder: Builder) -> Sequence[Value] | None:
        assert isinstance(op, arith.Compare)
        if not is_integer(op.lhs):
            return None
        outcome = _outcome(op.predicate, ranges[op.lhs], ranges[op.rhs])
        return None if outcome is None else [builder(arith.Constant(outcome, op.out.type)).out]

    if rewrite(kernel, {arith.Compare: [fold]}):
        simplify(kernel, schedule)


def _outcome(predicate: str, left: Range, right: Range) -> bool | None:
    """Return the outcome of a comparison, or None if it is not decided."""
    if predicate in ("gt", "ge"):
        return _outcome({"gt": "lt", "ge": "le"}[predicate], right, left)
    if predicate == "lt":
        return True if left[1] < right[0] else False if left[0] >= right[1] else None
    if predicate == "le":
        return True if left[1] <= right[0] else False if left[0] > right[1] else None
    if left[1] < right[0] or right[1] < left[0]:
        return predicate == "ne"
    return None

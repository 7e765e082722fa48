"""Comparison of two outcomes of a case, and the list of all cases."""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from tests.oracle.cases import Case, Outcome, Refused, Result
from tests.oracle.cases_functions import functions
from tests.oracle.cases_operators import operators
from tests.oracle.values import NUMPY, is_float


@cache
def cases() -> tuple[Case, ...]:
    """Return all cases, with unique names."""
    return (*operators(), *functions())


def disagreement(case: Case, expected: Outcome, actual: Outcome) -> str | None:
    """Describe the difference between two outcomes, or return None.

    NaNs are equal. Zeros of different signs are not, unless the case is approximate.
    """
    if isinstance(expected, Refused) or isinstance(actual, Refused):
        if isinstance(expected, Refused) and isinstance(actual, Refused):
            return None
        return f"{case.name}: Triton {_said(expected)}, aotc {_said(actual)}"
    for left, right in zip(expected, actual, strict=True):
        wrong = np.flatnonzero(~_same(case, left, right))
        if wrong.size:
            index = int(wrong[0])
            return (
                f"{case.name}: element {index} is {right.values[index]}, Triton has {left.values[index]}; "
                f"{wrong.size} of {left.values.size} differ"
            )
    return None


def _said(outcome: Outcome) -> str:
    return f"refuses ({outcome.message})" if isinstance(outcome, Refused) else "has a result"


def _same(case: Case, left: Result, right: Result) -> Any:
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        return np.zeros(left.values.size, bool)
    if not is_float(left.dtype):
        return left.values == right.values
    with np.errstate(all="ignore"):
        expected, actual = (side.values.astype(np.float64) for side in (left, right))
        same = (expected == actual) & (np.signbit(expected) == np.signbit(actual))
        same |= np.isnan(expected) & np.isnan(actual)
        if case.steps:
            info = ml_dtypes.finfo(NUMPY[left.dtype])
            bound = case.steps * float(info.eps) * np.abs(expected)
            same |= np.abs(expected - actual) <= bound + 2 * float(info.smallest_subnormal)
    return same

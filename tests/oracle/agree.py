"""Whether two outcomes of a case are the same, and all the cases there are."""

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
    """Return all cases, whose names differ."""
    return (*operators(), *functions())


def disagreement(case: Case, wanted: Outcome, got: Outcome) -> str | None:
    """Return how an outcome differs from the one that is wanted, or None.

    NaNs are alike. Zeros of different signs are not, unless the case is approximate.
    """
    if isinstance(wanted, Refused) or isinstance(got, Refused):
        if isinstance(wanted, Refused) and isinstance(got, Refused):
            return None
        return f"{case.name}: Triton {_said(wanted)}, aotc {_said(got)}"
    for one, two in zip(wanted, got, strict=True):
        wrong = np.flatnonzero(~_same(case, one, two))
        if wrong.size:
            at = int(wrong[0])
            return (
                f"{case.name}: element {at} is {two.values[at]}, Triton has {one.values[at]}; "
                f"{wrong.size} of {one.values.size} differ"
            )
    return None


def _said(outcome: Outcome) -> str:
    return f"refuses ({outcome.message})" if isinstance(outcome, Refused) else "has a result"


def _same(case: Case, one: Result, two: Result) -> Any:
    if (one.dtype, one.shape) != (two.dtype, two.shape):
        return np.zeros(one.values.size, bool)
    if not is_float(one.dtype):
        return one.values == two.values
    with np.errstate(all="ignore"):
        wanted, got = (each.values.astype(np.float64) for each in (one, two))
        same = (wanted == got) & (np.signbit(wanted) == np.signbit(got))
        same |= np.isnan(wanted) & np.isnan(got)
        if case.steps:
            info = ml_dtypes.finfo(NUMPY[one.dtype])
            bound = case.steps * float(info.eps) * np.abs(wanted)
            same |= np.abs(wanted - got) <= bound + 2 * float(info.smallest_subnormal)
    return same

"""Schedule a kernel and compare its results after every pass, in the interpreter.

Races are checked except between the first pass to use shared memory and the insertion of barriers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import pytest

from aotc.ir.core import Kernel
from aotc.ir.passes import Observer
from aotc.ir.text import print_kernel
from aotc.schedule.context import Schedule
from aotc.schedule.pipeline import schedule_kernel
from aotc.verify.interpreter.numerics import Array

SHARED_FROM, BARRIERS_COME_WITH = "plan_conversions", "insert_barriers"


def check_each_pass(
    kernel: Kernel,
    schedule: Schedule,
    outputs: Callable[[Kernel, bool], list[Array]],
    expected: list[Array],
    *,
    passes: Collection[str] | None = None,
) -> Kernel:
    """Schedule `kernel` and return it, compared to the bit after `passes`, by default after all.

    `outputs` interprets a kernel on fresh arguments; it is told whether to look for races.
    """
    has_barriers, last = True, ("", True)  # of the kernel last compared

    def compare(name: str, current: Kernel) -> None:
        nonlocal has_barriers, last
        if name in (SHARED_FROM, BARRIERS_COME_WITH):
            has_barriers = name == BARRIERS_COME_WITH
        if passes is not None and name not in passes:
            return
        # Most passes leave most kernels as they are, and printing is quicker than running.
        state = print_kernel(current), has_barriers
        if state == last:
            return
        last = state
        for number, (want, actual_array) in enumerate(
            zip(expected, outputs(current, has_barriers), strict=True)
        ):
            wrong = np.flatnonzero(_bytes(want) != _bytes(actual_array))[:5]
            if wrong.size:
                pytest.fail(
                    f"after {name}: array {number} differs at bytes {wrong}\n{print_kernel(current)}"
                )

    return schedule_kernel(kernel, schedule, Observer(verify_each=True, on_pass=compare))


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)

"""Tests of one pass on IR text with CHECK lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from aotc.config import Config
from aotc.ir.core import Kernel
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.verify import verify
from aotc.schedule.context import Schedule
from aotc.target import TARGETS
from aotc.verify.interpreter.run import run
from tests.support.checks import check, without_checks

Pass = Callable[[Kernel, Schedule], None]


def applied(
    text: str, *passes: Pass, target: str = "sm_90a", config: Config | None = None
) -> Kernel:
    """Run passes on the kernel of `text`; verify the IR and match the CHECK lines."""
    kernel = parse_kernel(without_checks(text))
    verify(kernel)
    _run(kernel, passes, Schedule(TARGETS[target], config or Config()))
    check(text, print_kernel(kernel))
    return kernel


def assert_same_meaning(
    text: str,
    kernel: Kernel,
    args: Sequence[npt.NDArray[np.generic] | int | float],
    grid: tuple[int, ...] = (1,),
    *,
    lower: Sequence[Pass] = (),
) -> None:
    """Interpret the kernel and the kernel of `text` on `args`, and compare the arrays.

    Both go through the passes `lower` first, and are checked for races.
    """
    original, kernel = parse_kernel(without_checks(text)), kernel.clone()
    for version in (original, kernel):
        _run(version, lower, Schedule(TARGETS["sm_90a"]))
    before, after = (
        [arg.copy() if isinstance(arg, np.ndarray) else arg for arg in args] for _ in range(2)
    )
    run(original, grid, before)
    run(kernel, grid, after)
    changed = False
    for old, was, now in zip(args, before, after, strict=True):
        np.testing.assert_array_equal(was, now)
        changed |= isinstance(old, np.ndarray) and not np.array_equal(old, np.asarray(was))
    assert changed, "the kernel stores nothing"


def _run(kernel: Kernel, passes: Sequence[Pass], schedule: Schedule) -> None:
    for run_pass in passes:
        run_pass(kernel, schedule)
        verify(kernel)

"""Accesses by quotients and remainders are wide where a launch's arguments are not negative."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from aotc.ir.core import Kernel
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.verify import verify
from aotc.schedule.context import Schedule
from aotc.schedule.layout.assign_layouts import assign_layouts
from aotc.schedule.layout.guard_signs import guard_signs
from aotc.target import TARGETS
from aotc.verify.interpreter.run import run
from tests.support.checks import check, without_checks

TEXT = Path(__file__).with_name("cases").joinpath("guard_signs.ir").read_text(encoding="utf-8")


def guarded(text: str, *, map_pointers: bool = True) -> Kernel:
    kernel = parse_kernel(without_checks(text))
    schedule = Schedule(TARGETS["sm_90a"], map_pointers=map_pointers)
    for scheduling_pass in (guard_signs, assign_layouts):
        scheduling_pass(kernel, schedule)
        verify(kernel)
    return kernel


@pytest.mark.parametrize("first", [0, 48])
def test_quotients_of_a_guarded_argument_keep_runs(first: int) -> None:
    kernel = guarded(TEXT)
    check(TEXT, print_kernel(kernel))
    rng = np.random.default_rng(first)
    x = rng.standard_normal(3000).astype(ml_dtypes.bfloat16)
    out = np.full(3000, -7, x.dtype)
    run(kernel, (1,), [x, out, first, 48, 64])
    offsets = first + np.arange(2048)
    places = offsets // 48 * 64 + offsets % 48
    expected = np.full(3000, -7, x.dtype)
    expected[places] = x[places]
    np.testing.assert_array_equal(out, expected)


def test_no_guards_without_a_launcher_to_check_them() -> None:
    assert guarded(TEXT, map_pointers=False).guards == ()


@pytest.mark.parametrize(
    "promise",
    [
        pytest.param("%first: i32 {divisibility = 16}", id="a start of unknown alignment"),
        pytest.param("%size: i32 {divisibility = 16}", id="rows of an odd size"),
    ],
)
def test_no_guards_where_accesses_stay_narrow(promise: str) -> None:
    assert promise in TEXT
    kernel = guarded(TEXT.replace(promise, promise.partition(" {")[0]))
    assert kernel.guards == ()

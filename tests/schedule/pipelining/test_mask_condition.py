"""A condition joins the part of a mask that a thread holds in the fewest registers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aotc.ir.core import Kernel
from aotc.ir.dialects import arith, gpu, tile
from aotc.ir.rewrite import Builder
from aotc.ir.types import I1
from aotc.schedule.context import Schedule
from aotc.schedule.layout.layouts import blocked_for
from aotc.schedule.pipelining.mask_condition import and_condition
from aotc.verify.interpreter.run import run
from tests.backend.programs import Program
from tests.support.pass_case import applied

TEXT = Path(__file__).with_name("cases").joinpath("mask_condition.ir").read_text(encoding="utf-8")


def _condition_load(kernel: Kernel, schedule: Schedule) -> None:
    del schedule
    (load,) = (op for op in kernel.walk() if isinstance(op, gpu.Load))
    assert load.mask is not None
    builder = Builder.before_op(load)
    mask = and_condition(load.mask, kernel.body.args[-1], builder)
    load.replace_with([builder(gpu.Load(load.pointer, mask, load.other)).out])


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize(("num_rows", "num_columns"), [(0, 5), (31, 32), (32, 1)])
def test_a_condition_joins_the_rows(num_rows: int, num_columns: int, *, exists: bool) -> None:
    kernel = applied(TEXT, _condition_load)
    x = np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32)
    out = np.full((32, 32), np.nan, np.float32)
    run(kernel, (1,), [x, out, num_rows, num_columns, exists])
    expected = np.zeros((32, 32), np.float32)
    if exists:
        expected[:num_rows, :num_columns] = x[:num_rows, :num_columns]
    np.testing.assert_array_equal(out, expected)


def test_a_mask_may_have_any_number_of_parts() -> None:
    program = Program(4)
    index = program.add(tile.Arange(0, 512, blocked_for((512,), (4,), 4))).out
    mask = program.add(arith.Compare(index, index, "eq")).out
    for _ in range(3000):
        mask = program.add(arith.And(program.add(arith.Compare(index, index, "eq")).out, mask)).out
    condition = program.add(arith.Constant(value=True, type=I1)).out
    assert mask.op is not None
    joined = and_condition(mask, condition, Builder.after_op(mask.op))
    assert joined.type == mask.type

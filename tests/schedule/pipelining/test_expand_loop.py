"""Loop schedules: carried values, guarded ops, and peeled iterations."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.ir.core import Kernel, Op
from aotc.ir.diagnostics import IRError
from aotc.ir.dialects import arith, gpu, mbarrier, scf, wgmma
from aotc.ir.passes import Pipeline
from aotc.ir.text import parse_kernel
from aotc.ir.verify import verify
from aotc.schedule import pipeline
from aotc.schedule.context import Schedule
from aotc.schedule.pipelining.expand_loop import expand_loop
from aotc.schedule.pipelining.loop_schedule import LoopSchedule, Step
from aotc.verify.interpreter.run import run
from tests.schedule.pipelining.test_pipeline_mma import ATTENTION, ATTENTION_SIGNATURE
from tests.support.descriptors import compiled, launch, like, tensor
from tests.support.pass_case import applied, assert_same_meaning

# A running maximum and a rescaled total, as in attention. `score` is loaded, the maximum so far
# rescales the total, and `value` is loaded for the sum.
ONLINE = """
kernel @k(%x: *fp32, %y: *fp32, %out: *fp32, %n: i32) {num_warps = 1} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
  %low = arith.constant {value = -1000.0, type = fp32} : fp32
  %none = arith.constant {value = 0.0, type = fp32} : fp32
  %most_after, %total_after = scf.for(%zero, %n, %one, %low, %none) (%i: i32, %most: fp32, %total: fp32) {
    %x_at = arith.addptr(%x, %i) : *fp32
    %score = gpu.load(%x_at, _, _) : fp32
    %new = arith.max(%most, %score) : fp32
    %change = arith.sub(%most, %new) : fp32
    %scale = arith.add(%change, %score) : fp32
    %y_at = arith.addptr(%y, %i) : *fp32
    %value = gpu.load(%y_at, _, _) : fp32
    %less = arith.mul(%total, %scale) : fp32
    %sum = arith.add(%less, %value) : fp32
    %out_at = arith.addptr(%out, %i) : *fp32
    gpu.store(%out_at, %sum)
    scf.yield(%new, %sum)
  } : fp32, fp32
  %last_at = arith.addptr(%out, %n) : *fp32
  %last = arith.add(%most_after, %total_after) : fp32
  gpu.store(%last_at, %last)
  scf.return
}
"""


def _loop(kernel: Kernel) -> scf.For:
    return next(op for op in kernel.walk() if isinstance(op, scf.For))


def _named(loop: scf.For, name: str) -> Op:
    return next(op for op in loop.body if any(value.hint == name for value in op.results))


def _outputs(kernel: Kernel, count: int) -> np.ndarray:
    random = np.random.default_rng(count)
    x, y = (random.integers(-3, 4, max(count, 1)).astype(np.float32) for _ in range(2))
    out = np.full(count + 1, 77, np.float32)
    run(kernel, (1,), [x, y, out, count])
    return out


def _assert_same(make: Any, counts: range = range(6)) -> Kernel:
    """Assert that a loop's schedule keeps its results, for any iteration count."""
    kernel = parse_kernel(ONLINE)
    expand_loop(make(_loop(kernel)))
    verify(kernel)
    for count in counts:
        expected = _outputs(parse_kernel(ONLINE), count)
        np.testing.assert_array_equal(_outputs(kernel, count), expected)
    return kernel


@given(st.integers(0, 4), st.integers(0, 4), st.integers(0, 5))
def test_loads_at_any_distances(first: int, second: int, count: int) -> None:
    def make(loop: scf.For) -> LoopSchedule:
        schedule = LoopSchedule.in_order(loop)
        schedule.move([_named(loop, "score")], before=_named(loop, "new"), distance=first)
        schedule.move([_named(loop, "value")], before=_named(loop, "less"), distance=second)
        return schedule

    _assert_same(make, range(count, count + 1))


def test_what_is_computed_ahead_only_is_carried() -> None:
    """The maximum and the scale run an iteration ahead of the sum, as softmax does of the second dot."""

    def make(loop: scf.For) -> LoopSchedule:
        schedule = LoopSchedule.in_order(loop)
        ahead = [_named(loop, name) for name in ("x_at", "score", "new", "change", "scale")]
        schedule.move(ahead, before=_named(loop, "y_at"), distance=1)
        return schedule

    kernel = _assert_same(make)
    body = list(_loop(kernel).body)
    assert sum(isinstance(op, arith.Max) for op in body) == 1
    assert sum(isinstance(op, gpu.Load) for op in body) == 2


@pytest.mark.parametrize("unroll", [1, 2, 3])
def test_iterations_are_peeled_for_what_takes_no_condition(unroll: int) -> None:
    """A store is an iteration ahead, with all its operands."""

    def make(loop: scf.For) -> LoopSchedule:
        schedule = LoopSchedule.in_order(loop)
        schedule.steps = [Step(step.op, 1) for step in schedule.steps]
        schedule.unroll = unroll
        return schedule

    _assert_same(make, range(8))


def test_a_value_that_comes_too_late_is_refused() -> None:
    kernel = parse_kernel(ONLINE)
    loop = _loop(kernel)
    late = LoopSchedule.in_order(loop)
    late.move([_named(loop, "value")], before=loop.body.terminator.prev)
    with pytest.raises(IRError, match="comes too late for its use"):
        expand_loop(late)


def test_an_op_with_effects_is_listed_once() -> None:
    loop = _loop(parse_kernel(ONLINE))
    twice = LoopSchedule.in_order(loop)
    twice.steps += [step for step in twice.steps if isinstance(step.op, gpu.Store)]
    with pytest.raises(IRError, match="scheduled twice"):
        twice.distances()


AHEAD = """
kernel @k(%x: *fp32, %out: *fp32, %n: i32) {num_warps = 1} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
  // CHECK: %[[FIRST:.*]] = gpu.load(%{{.*}}, %{{.*}}, _)
  // CHECK: scf.for(%zero, %n, %one, %[[FIRST]]) (%i: i32, %[[NOW:.*]]: fp32) {
  scf.for(%zero, %n, %one) (%i: i32) {
    %at = arith.addptr(%x, %i) : *fp32
    // CHECK: %[[EXISTS:.*]] = arith.compare(%i,
    // CHECK: %[[NEXT:.*]] = gpu.load(%{{.*}}, %[[EXISTS]], _)
    %value = gpu.load(%at, _, _) : fp32
    %out_at = arith.addptr(%out, %i) : *fp32
    // CHECK: gpu.store(%{{.*}}, %[[NOW]], _)
    gpu.store(%out_at, %value)
    // CHECK: scf.yield(%[[NEXT]])
    scf.yield()
  }
  scf.return
}
"""


def _load_ahead(kernel: Kernel, schedule: Schedule) -> None:
    del schedule
    loop = _loop(kernel)
    ahead = LoopSchedule.in_order(loop)
    load = _named(loop, "value")
    ahead.move([load], before=ahead.steps[0].op, distance=1)
    assert str(ahead).splitlines()[0] == " +1 gpu.load value"
    expand_loop(ahead)


def test_a_load_ahead_takes_its_condition_into_the_mask() -> None:
    kernel = applied(AHEAD, _load_ahead)
    x = np.random.default_rng(0).standard_normal(5).astype(np.float32)
    for count in (0, 1, 5):
        if count:
            assert_same_meaning(AHEAD, kernel, [x, np.full(5, 7, np.float32), count])


# ---- two chains of dots -----------------------------------------------------------------------


def _softmax_ahead(kernel: Kernel, schedule: Schedule) -> None:
    """Run the next iteration's scores and softmax beside the second dot."""
    del schedule
    loop = next(op for op in kernel.walk() if isinstance(op, scf.For) and len(_dots(op)) == 2)
    scores, second = _dots(loop)
    filled = [op for op in loop.body if isinstance(op, mbarrier.MbarrierWait)]
    waits = [op for op in loop.body if isinstance(op, wgmma.WgmmaWait)]
    softmax = []
    op = waits[0]
    while op is not None and op is not second:
        if op not in filled and (
            op is waits[0] or isinstance(op, mbarrier.MbarrierArrive) or _feeds(op, second)
        ):
            softmax.append(op)
        op = op.next
    ahead = LoopSchedule.in_order(loop)
    ahead.move([filled[0], scores], before=ahead.steps[0].op, distance=1)
    # The second dot reads its fragment from registers until it has been waited for.
    *softmax, fragment = softmax
    after = waits[1].next
    assert after is not None
    ahead.move(softmax, before=waits[1], distance=1)
    ahead.move([fragment], before=after, distance=1)
    expand_loop(ahead)
    pending = [op.pending for op in kernel.walk() if isinstance(op, wgmma.WgmmaWait)]
    # The first scores; in the loop the second dot is in flight meanwhile; the last second dot.
    assert pending == [0, 1, 0, 0]


def _dots(loop: scf.For) -> list[wgmma.Wgmma]:
    return [op for op in loop.body if isinstance(op, wgmma.Wgmma)]


def _feeds(op: Op, dot: wgmma.Wgmma) -> bool:
    value = dot.a
    while value.op is not None and value.op is not op and value.op.operands:
        value = value.op.operands[0]
    return value.op is op


@pytest.mark.emulated
@pytest.mark.parametrize("num_stages", [2, 3])
def test_softmax_runs_beside_the_second_dot(tmp_path: Path, num_stages: int) -> None:
    """Scores are an iteration ahead; their weights are carried in registers as operand A."""
    passes = tuple(
        _softmax_ahead if pass_.__name__ == "pipeline_mma" else pass_
        for pass_ in pipeline.TILE_TO_GPU.passes
    )
    with mock.patch.object(pipeline, "TILE_TO_GPU", Pipeline(passes)):
        kernel = compiled(tmp_path, ATTENTION, ATTENTION_SIGNATURE, num_stages=num_stages)
    for seed, n in enumerate((0, 64, 128, 192, 320)):
        a, b = np.sign(tensor((128, 64), "fp16")), np.sign(tensor((n or 1, 64), "fp16", seed=1))
        v, c = np.sign(tensor((n or 1, 64), "fp16", seed=2)), like(tensor((128, 64), "fp32"))
        launch(kernel, (2,), {"a": a, "b": b, "c": c, "v": v, "n": n}, seed=seed)
        keys, values = (pass_[:n].astype(np.float64) for pass_ in (b, v))
        np.testing.assert_array_equal(c, (0.5 * (a.astype(np.float64) @ keys.T)) @ values)

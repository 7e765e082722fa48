"""Unrolled loops run the same iterations in the same order."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.diagnostics import CompileError
from aotc.schedule.cleanup.unroll_loops import unroll_loops
from tests.support.pass_case import applied, assert_same_meaning
from tests.support.pipelined import Args, Case

LIMITS = {"i32": np.iinfo(np.int32), "i64": np.iinfo(np.int64), "u32": np.iinfo(np.uint32)}


def case_of(kind: str, step: int, factor: int) -> Case:
    signature = {"x_ptr": "*i32", "out_ptr": "*i64", "start": kind, "stop": kind}
    return Case("unrolled", signature, {"STEP": step, "FACTOR": factor}, num_stages=2)


@pytest.mark.parametrize("kind", LIMITS)
@pytest.mark.parametrize("factor", [2, 3, 8])
@pytest.mark.parametrize("step", [1, 3])
def test_every_length_and_place(kind: str, factor: int, step: int) -> None:
    """Order shows in the result; places are next to both ends of the type, where sums wrap."""
    case = case_of(kind, step, factor)
    assert case.gpu_ir.count("scf.for") == 2
    limits = LIMITS[kind]
    for length in (0, 1, step * factor - 1, step * factor, step * factor + 1, 5 * step * factor):
        for start in (int(limits.min), int(limits.max) - length, 7):

            def make(start: int = start, length: int = length) -> Args:
                x = np.random.default_rng(length).integers(-9, 10, length + 1).astype(np.int32)
                return [x, np.full(1, 77, np.int64), start, start + length]

            case.check(make)


@pytest.mark.parametrize("factor", [0, 1])
def test_a_factor_of_one_leaves_the_loop(factor: int) -> None:
    assert case_of("i32", 1, factor).gpu_ir.count("scf.for") == 1


def test_the_rest_is_not_pipelined() -> None:
    text = case_of("i32", 1, 4).gpu_ir
    assert text.count("num_stages = 1") == 1
    assert text.count("gpu.load") == 4 + 4 + 1  # before the loop, in it, in the rest


def test_a_factor_that_takes_too_many_operations() -> None:
    with pytest.raises(
        CompileError, match=r"expands to \d+ operations, the limit is 30000"
    ) as caught:
        case_of("i32", 1, 10_000)
    assert caught.value.remedy == "a loop_unroll_factor below 10000"


TEXT = """\
// CHECK: scf.for(
// CHECK: [[FIRST:%.*]] = arith.sub({{%.*}}, %acc)
// CHECK: [[SECOND:%.*]] = arith.sub({{%.*}}, [[FIRST]])
// CHECK: scf.yield([[SECOND]],
// CHECK: scf.for(
// CHECK: arith.sub(
// CHECK-NOT: arith.sub(
kernel @k(%x: *i32, %out: *i32, %n: i32) {num_warps = 4} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
  %r = scf.for(%zero, %n, %one, %zero) {unroll = 2} (%i: i32, %acc: i32) {
    %p = arith.addptr(%x, %i) : *i32
    %l = tile.load(%p, _, _) : i32
    %t = arith.sub(%l, %acc) : i32
    scf.yield(%t)
  } : i32
  tile.store(%out, %r, _)
  scf.return
}
"""


@pytest.mark.parametrize("n", [0, 1, 2, 3, 8, 9])
def test_iterations_follow_each_other_and_the_rest_has_a_loop_of_its_own(n: int) -> None:
    kernel = applied(TEXT, unroll_loops)
    x = np.random.default_rng(n).integers(-99, 99, 9).astype(np.int32)
    assert_same_meaning(TEXT, kernel, [x, np.full(1, 777, np.int32), n])

"""Partial sums of a loop: each thread carries its own, reduced once after the loop."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.text import parse_kernel, print_kernel
from aotc.schedule.context import Schedule
from aotc.schedule.pipelining.carry_partial_sums import carry_partial_sums
from aotc.target import TARGETS
from tests.support.checks import without_checks
from tests.support.pass_case import applied, assert_same_meaning

# Lanes and a warp are on the axis, registers between them.
LOOP = """\
// CHECK: [[PARTS:%.*]] = scf.for({{.*}} [[PART:%[a-z_0-9]+]]: tile<16x8xfp32,
// CHECK: [[CUT:%.*]] = tile.reshape(%v) {shape = [16, 2, 2, 4, 2]}
// CHECK-NEXT: [[HIGH:%.*]] = gpu.reduce([[CUT]]) {axis = 4}
// CHECK: [[OWN:%.*]] = gpu.reduce([[HIGH]]) {axis = 2}
// CHECK: [[ADDED:%.*]] = tile.reshape([[OWN]]) {shape = [16, 8]}
// CHECK: [[SCALED:%.*]] = arith.mul([[PART]],
// CHECK-NEXT: [[NEXT:%.*]] = arith.add([[SCALED]], [[ADDED]])
// CHECK-NEXT: scf.yield([[NEXT]])
// CHECK: [[SUM:%.*]] = tile.reduce([[PARTS]]) {axis = 1}
// CHECK: gpu.store({{.*}}, [[SUM]], _)
#0 = #ll<register=[[0,1],[0,8]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[[8,0],[0,16]] : [16,32]>
#1 = #ll<register=[] lane=[[0],[0],[1],[2],[4]] warp=[[8],[0]] : [16]>
#2 = #ll<register=[[1],[8]] lane=[[2],[4],[32],[64],[128]] warp=[[256],[16]] : [512]>
kernel @k(%x: *fp32, %f: *fp32, %out: *fp32, %n: i32) {num_warps = 4} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
  %size = arith.constant {value = 512, type = i32} : i32
  %none = arith.constant {value = 0.0, type = tile<16xfp32, #1>} : tile<16xfp32, #1>
  %row = tile.arange {start = 0, end = 16, layout = #1} : tile<16xi32, #1>
  %fs = tile.splat(%f) {shape = [16], layout = #1} : tile<16x*fp32, #1>
  %of_row = arith.addptr(%fs, %row) : tile<16x*fp32, #1>
  %factor = gpu.load(%of_row, _, _) : tile<16xfp32, #1>
  %at = tile.arange {start = 0, end = 512, layout = #2} : tile<512xi32, #2>
  %xs = tile.splat(%x) {shape = [512], layout = #2} : tile<512x*fp32, #2>
  %sum = scf.for(%zero, %n, %one, %none) (%k: i32, %s: tile<16xfp32, #1>) {
    %first = arith.mul(%k, %size) : i32
    %firsts = tile.splat(%first) {shape = [512], layout = #2} : tile<512xi32, #2>
    %where = arith.add(%firsts, %at) : tile<512xi32, #2>
    %p = arith.addptr(%xs, %where) : tile<512x*fp32, #2>
    %flat = gpu.load(%p, _, _) : tile<512xfp32, #2>
    %v = tile.reshape(%flat) {shape = [16, 32]} : tile<16x32xfp32, #0>
    %more = tile.reduce(%v) {axis = 1} (%l: fp32, %r: fp32) {
      %t = arith.add(%l, %r) : fp32
      scf.yield(%t)
    } : tile<16xfp32, #1>
    %scaled = arith.mul(%s, %factor) : tile<16xfp32, #1>
    %total = arith.add(%scaled, %more) : tile<16xfp32, #1>
    scf.yield(%total)
  } : tile<16xfp32, #1>
  %os = tile.splat(%out) {shape = [16], layout = #1} : tile<16x*fp32, #1>
  %q = arith.addptr(%os, %row) : tile<16x*fp32, #1>
  gpu.store(%q, %sum, _)
  scf.return
}
"""


def test_threads_carry_sums_of_their_own() -> None:
    kernel = applied(LOOP, carry_partial_sums)
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 9, 512 * 5).astype(np.float32)
    f = rng.choice([0.5, 1.0, 2.0], 16).astype(np.float32)
    for iterations in (0, 1, 2, 5):
        assert_same_meaning(LOOP, kernel, [x, f, np.full(16, 777, np.float32), iterations])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{value = 0.0,", "{value = 1.0,"),  # it does not begin at zero
        ("arith.add(%l, %r)", "arith.max(%l, %r)"),
        ("arith.mul(%s, %factor)", "arith.max(%s, %factor)"),
        ("arith.mul(%s, %factor)", "arith.mul(%s, %s)"),
        ("arith.add(%scaled, %more)", "arith.sub(%scaled, %more)"),
    ],
)
def test_what_is_no_sum_of_such_sums_stays(old: str, new: str) -> None:
    text = without_checks(LOOP).replace(old, new)
    kernel = parse_kernel(text)
    carry_partial_sums(kernel, Schedule(TARGETS["sm_90a"]))
    assert print_kernel(kernel) == print_kernel(parse_kernel(text))

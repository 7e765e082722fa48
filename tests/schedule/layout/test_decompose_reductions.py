"""Reductions become warp reductions plus conversions of tiny tiles across warps."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.layout import LinearLayout
from aotc.schedule.layout.decompose_reductions import bit_groups, decompose_reductions
from tests.support.pass_case import applied, assert_same_meaning

# Warps are on the middle bits of the axis: registers above them, lanes below.
ACROSS_WARPS = """\
// CHECK: #0 = #ll<register={{.*}}
// CHECK: [[CUT:%.*]] = tile.reshape(%a) {shape = [4, 4, 32]}
// CHECK-NEXT: [[BY_THREADS:%.*]] = gpu.reduce([[CUT]]) {axis = 0}
// CHECK: [[BY_WARPS:%.*]] = gpu.reduce([[BY_THREADS]]) {axis = 1}
// CHECK: tile<4xfp32
// CHECK-NEXT: [[EVERYWHERE:%.*]] = gpu.convert([[BY_WARPS]])
// CHECK-NEXT: [[SUM:%.*]] = gpu.reduce([[EVERYWHERE]]) {axis = 0}
// CHECK: gpu.store(%out, [[SUM]], _)
#0 = #ll<register=[[128],[256]] lane=[[1],[2],[4],[8],[16]] warp=[[32],[64]] : [512]>
kernel @k(%x: *fp32, %out: *fp32) {num_warps = 4} {
  %i = tile.arange {start = 0, end = 512, layout = #0} : tile<512xi32, #0>
  %xs = tile.splat(%x) {shape = [512], layout = #0} : tile<512x*fp32, #0>
  %p = arith.addptr(%xs, %i) : tile<512x*fp32, #0>
  %a = gpu.load(%p, _, _) : tile<512xfp32, #0>
  %s = tile.reduce(%a) {axis = 0} (%l: fp32, %r: fp32) {
    %t = arith.OP(%l, %r) : fp32
    scf.yield(%t)
  } : fp32
  gpu.store(%out, %s, _)
  scf.return
}
"""


@pytest.mark.parametrize("op", ["add", "max"])
def test_warps_reduce_what_they_hold_and_then_their_results(op: str) -> None:
    """Registers first, without shuffles; then lanes; then the warps' results in registers."""
    text = ACROSS_WARPS.replace("OP", op)
    kernel = applied(text, decompose_reductions)
    x = np.random.default_rng(1).integers(-99, 99, 512).astype(np.float32)
    assert_same_meaning(text, kernel, [x, np.full(1, 777, np.float32)])


INSIDE_WARPS = """\
// CHECK-NOT: gpu.convert
// CHECK: gpu.reduce([[X:%.*]]) {axis = 1}
// CHECK-NOT: gpu.reduce
#0 = #ll<register=[[0,1],[0,2]] lane=[[0,4],[0,8],[0,16],[1,0],[2,0]] warp=[[4,0],[8,0]] : [16,32]>
#1 = #ll<register=[] lane=[[0],[0],[0],[1],[2]] warp=[[4],[8]] : [16]>
kernel @k(%x: *fp32, %out: *fp32) {num_warps = 4} {
  %i = tile.arange {start = 0, end = 16, layout = #1} : tile<16xi32, #1>
  %one = arith.constant {value = 1.5, type = tile<16x32xfp32, #0>} : tile<16x32xfp32, #0>
  %s = tile.reduce(%one) {axis = 1} (%l: fp32, %r: fp32) {
    %t = arith.add(%l, %r) : fp32
    scf.yield(%t)
  } : tile<16xfp32, #1>
  %os = tile.splat(%out) {shape = [16], layout = #1} : tile<16x*fp32, #1>
  %q = arith.addptr(%os, %i) : tile<16x*fp32, #1>
  gpu.store(%q, %s, _)
  scf.return
}
"""


def test_an_axis_inside_warps_is_reduced_at_once() -> None:
    kernel = applied(INSIDE_WARPS, decompose_reductions)
    args = [np.ones(1, np.float32), np.full(16, 777, np.float32)]
    assert_same_meaning(INSIDE_WARPS, kernel, args)


@pytest.mark.parametrize(
    ("bits", "mask", "expected"),
    [
        (0, 0, [(0, False)]),
        (3, 0, [(3, False)]),
        (3, 0b111, [(3, True)]),
        (4, 0b0110, [(1, False), (2, True), (1, False)]),
    ],
)
def test_runs_of_bits_from_the_highest(
    bits: int, mask: int, expected: list[tuple[int, bool]]
) -> None:
    assert bit_groups(bits, mask) == expected


# Every warp has a row of a block of 16 x 128: 64 registers a thread. The sum is asked for in shares.
MANY = """\
// CHECK: [[ROWS:%.*]] = gpu.convert(%a)
// CHECK-NEXT: %s = gpu.reduce([[ROWS]]) {axis = 0}
// CHECK-NOT: gpu.convert
#0 = #ll<register=[[0,0,1],[0,8,0],[0,0,8],[0,0,16],[0,0,32],[0,0,64]] lane=[[0,0,2],[0,0,4],[0,1,0],[0,2,0],[0,4,0]] warp=[[1,0,0],[2,0,0]] : [4,16,128]>
#1 = #ll<register=[[0,1],[8,0],[0,8],[0,16],[0,32],[0,64]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[[0,0],[0,0]] : [16,128]>
#2 = #ll<register=[[0,1],[8,0],[0,8],[0,16]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[[0,64],[0,32]] : [16,128]>
kernel @k(%x: *fp32, %out: *fp32) {num_warps = 4} {
  %i = tile.arange {start = 0, end = 8192, layout = #3} : tile<8192xi32, #3>
  %b = tile.reshape(%i) {shape = [4, 16, 128]} : tile<4x16x128xi32, #0>
  %a = arith.cast(%b) {dtype = fp32} : tile<4x16x128xfp32, #0>
  %r = tile.reduce(%a) {axis = 0} (%l: fp32, %m: fp32) {
    %t = arith.add(%l, %m) : fp32
    scf.yield(%t)
  } : tile<16x128xfp32, #1>
  %s = gpu.convert(%r) {layout = #2} : tile<16x128xfp32, #2>
  %n = tile.arange {start = 0, end = 2048, layout = #4} : tile<2048xi32, #4>
  %at = tile.reshape(%n) {shape = [16, 128]} : tile<16x128xi32, #2>
  %os = tile.splat(%out) {shape = [16, 128], layout = #2} : tile<16x128x*fp32, #2>
  %q = arith.addptr(%os, %at) : tile<16x128x*fp32, #2>
  gpu.store(%q, %s, _)
  scf.return
}
"""


def test_warps_share_out_what_all_would_reduce() -> None:
    block = LinearLayout.from_text(_layout_text(MANY, 0))
    shares = LinearLayout.from_text(_layout_text(MANY, 2))
    more = f"#3 = {block.reshape((8192,))}\n#4 = {shares.reshape((2048,))}\n"
    text = MANY.replace("kernel @k", more + "kernel @k")
    kernel = applied(text, decompose_reductions)
    assert_same_meaning(text, kernel, [np.zeros(1, np.float32), np.zeros(2048, np.float32)])


def _layout_text(text: str, number: int) -> str:
    line = next(line for line in text.splitlines() if line.startswith(f"#{number} = "))
    return line.removeprefix(f"#{number} = ")

"""Scans become scans inside warps of pieces, a scan of the pieces' totals, and a combination."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.schedule.layout.decompose_scans import decompose_scans
from tests.support.pass_case import applied, assert_same_meaning

TEXT = """\
// CHECK: [[CUT:%.*]] = tile.reshape(%a) {shape = [16, 32]}
// CHECK-NEXT: [[PIECES:%.*]] = gpu.scan([[CUT]]) {axis = 1REVERSED}
// CHECK: arith.constant {value = LAST, type = tile<32xi32
// CHECK: [[TOTALS:%.*]] = gpu.convert({{.*}} : tile<16xfp32
// CHECK-NEXT: gpu.scan([[TOTALS]]) {axis = 0REVERSED, exclusive = true}
// CHECK: tile.join({{%.*}}, [[PIECES]])
// CHECK: gpu.reduce({{.*}}) {axis = 2}
// CHECK: arith.constant {value = FIRST, type = tile<16xi32
// CHECK: arith.select({{%.*}}, [[PIECES]],
// CHECK-NOT: tile.scan
#0 = #ll<register=[[128],[256]] lane=[[1],[2],[4],[8],[16]] warp=[[32],[64]] : [512]>
kernel @k(%x: *fp32, %out: *fp32) {num_warps = 4} {
  %i = tile.arange {start = 0, end = 512, layout = #0} : tile<512xi32, #0>
  %xs = tile.splat(%x) {shape = [512], layout = #0} : tile<512x*fp32, #0>
  %p = arith.addptr(%xs, %i) : tile<512x*fp32, #0>
  %a = gpu.load(%p, _, _) : tile<512xfp32, #0>
  %s = tile.scan(%a) {axis = 0REVERSED} (%l: fp32, %r: fp32) {
    %t = arith.add(%l, %r) : fp32
    scf.yield(%t)
  } : tile<512xfp32, #0>
  %os = tile.splat(%out) {shape = [512], layout = #0} : tile<512x*fp32, #0>
  %q = arith.addptr(%os, %i) : tile<512x*fp32, #0>
  gpu.store(%q, %s, _)
  scf.return
}
"""


@pytest.mark.parametrize(
    ("reverse", "last", "first"), [("", "31", "0"), (", reverse = true", "0", "15")]
)
def test_pieces_are_scanned_and_then_their_totals(reverse: str, last: str, first: str) -> None:
    """The total of a piece is its last element in the order of the scan; the first has none before."""
    text = TEXT.replace("REVERSED", reverse).replace("LAST", last).replace("FIRST", first)
    kernel = applied(text, decompose_scans)
    x = np.random.default_rng(2).integers(-99, 99, 512).astype(np.float32)
    assert_same_meaning(text, kernel, [x, np.full(512, 777, np.float32)])


# Gathered, the totals of 8 pieces of 8 columns would be 64 registers of each thread.
SHARED_OUT = """\
// CHECK: [[ALL:#[0-9]+]] = #ll<register=[[0,32]] lane=[[1,0],[2,0],[4,0],[0,1],[0,2]]
// CHECK: gpu.scan({{.*}}) {axis = 1}
// CHECK: [[TOTALS:%.*]] = gpu.convert({{.*}}) {layout = [[ALL]]}
// CHECK-NEXT: gpu.scan([[TOTALS]]) {axis = 0, exclusive = true}
#0 = #ll<register=[[1,0],[0,1],[0,2],[0,4]] lane=[[0,8],[0,16],[0,32],[2,0],[4,0]] warp=[[8,0],[16,0],[32,0]] : [64,64]>
#1 = #ll<register=[[1],[0],[0],[0]] lane=[[0],[0],[0],[2],[4]] warp=[[8],[16],[32]] : [64]>
#2 = #ll<register=[[0],[1],[2],[4]] lane=[[8],[16],[32],[0],[0]] warp=[[0],[0],[0]] : [64]>
#3 = #ll<register=[[1,0],[0,0],[0,0],[0,0]] lane=[[0,0],[0,0],[0,0],[2,0],[4,0]] warp=[[8,0],[16,0],[32,0]] : [64,1]>
#4 = #ll<register=[[0,0],[0,1],[0,2],[0,4]] lane=[[0,8],[0,16],[0,32],[0,0],[0,0]] warp=[[0,0],[0,0],[0,0]] : [1,64]>
kernel @k(%x: *i32, %out: *i32) {num_warps = 8} {
  %i = tile.arange {start = 0, end = 64, layout = #1} : tile<64xi32, #1>
  %rows = tile.expand_dims(%i) {axis = 1} : tile<64x1xi32, #3>
  %c64 = arith.constant {value = 64, type = tile<64x1xi32, #3>} : tile<64x1xi32, #3>
  %starts = arith.mul(%rows, %c64) : tile<64x1xi32, #3>
  %j = tile.arange {start = 0, end = 64, layout = #2} : tile<64xi32, #2>
  %cols = tile.expand_dims(%j) {axis = 0} : tile<1x64xi32, #4>
  %a = tile.broadcast(%starts) {shape = [64, 64], layout = #0} : tile<64x64xi32, #0>
  %b = tile.broadcast(%cols) {shape = [64, 64], layout = #0} : tile<64x64xi32, #0>
  %o = arith.add(%a, %b) : tile<64x64xi32, #0>
  %xs = tile.splat(%x) {shape = [64, 64], layout = #0} : tile<64x64x*i32, #0>
  %p = arith.addptr(%xs, %o) : tile<64x64x*i32, #0>
  %v = gpu.load(%p, _, _) : tile<64x64xi32, #0>
  %s = tile.scan(%v) {axis = 0} (%l: i32, %r: i32) {
    %t = arith.add(%l, %r) : i32
    scf.yield(%t)
  } : tile<64x64xi32, #0>
  %os = tile.splat(%out) {shape = [64, 64], layout = #0} : tile<64x64x*i32, #0>
  %q = arith.addptr(%os, %o) : tile<64x64x*i32, #0>
  gpu.store(%q, %s, _)
  scf.return
}
"""


def test_many_totals_are_scanned_by_warps_that_hold_some_of_them() -> None:
    kernel = applied(SHARED_OUT, decompose_scans)
    x = np.random.default_rng(3).integers(-99, 99, 64 * 64).astype(np.int32)
    assert_same_meaning(SHARED_OUT, kernel, [x, np.full(64 * 64, 777, np.int32)])

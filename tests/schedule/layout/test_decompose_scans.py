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

"""Full masks are branched around and scales fused, with results the same to the bit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aotc.ir.core import Kernel
from aotc.ir.text import parse_kernel, print_kernel
from aotc.schedule.cleanup.branch_on_masks import branch_on_masks
from tests.support.pass_case import applied, assert_same_meaning

HEAD = """\
#0 = #ll<register=[[0,1],[8,0],[0,8],[16,0]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[] : [32,16]>
#1 = #ll<register=[[1,0],[8,0],[0,8],[0,16]] lane=[[2,0],[4,0],[0,1],[0,2],[0,4]] warp=[] : [16,32]>
#2 = #ll<register=[[0,1],[8,0],[0,8],[0,16],[16,0]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[] : [32,32]>
#3 = #ll<register=[[8],[16]] lane=[[0],[0],[1],[2],[4]] warp=[] : [32]>
#4 = #ll<register=[[8,0],[16,0]] lane=[[0,0],[0,0],[1,0],[2,0],[4,0]] warp=[] : [32,1]>
#5 = #ll<register=[[0,0],[8,0],[0,0],[0,0],[16,0]] lane=[[0,0],[0,0],[1,0],[2,0],[4,0]] warp=[] : [32,1]>
#6 = #ll<register=[[1],[8],[16]] lane=[[2],[4],[0],[0],[0]] warp=[] : [32]>
#7 = #ll<register=[[0,1],[0,8],[0,16]] lane=[[0,2],[0,4],[0,0],[0,0],[0,0]] warp=[] : [1,32]>
#8 = #ll<register=[[0,1],[0,0],[0,8],[0,16],[0,0]] lane=[[0,2],[0,4],[0,0],[0,0],[0,0]] warp=[] : [1,32]>
kernel @k(%x: *fp32, %out: *fp32, %scale: fp32, %first: i32, %end: i32) {num_warps = 1} {
  %a = arith.constant {value = 0.0, type = tile<32x16xfp16, #0>} : tile<32x16xfp16, #0>
  %b = arith.constant {value = 0.0, type = tile<16x32xfp16, #1>} : tile<16x32xfp16, #1>
  %rows = tile.arange {start = 0, end = 32, layout = #3} : tile<32xi32, #3>
  %0 = tile.expand_dims(%rows) {axis = 1} : tile<32x1xi32, #4>
  %1 = gpu.convert(%0) {layout = #5} : tile<32x1xi32, #5>
  %2 = arith.constant {value = 32, type = tile<32x1xi32, #5>} : tile<32x1xi32, #5>
  %3 = arith.mul(%1, %2) : tile<32x1xi32, #5>
  %4 = tile.broadcast(%3) {shape = [32, 32], layout = #2} : tile<32x32xi32, #2>
  %cols = tile.arange {start = 0, end = 32, layout = #6} : tile<32xi32, #6>
  %5 = tile.expand_dims(%cols) {axis = 0} : tile<1x32xi32, #7>
  %6 = gpu.convert(%5) {layout = #8} : tile<1x32xi32, #8>
  %7 = tile.broadcast(%6) {shape = [32, 32], layout = #2} : tile<32x32xi32, #2>
  %8 = arith.add(%4, %7) : tile<32x32xi32, #2>
  %9 = tile.splat(%x) {shape = [32, 32], layout = #2} : tile<32x32x*fp32, #2>
  %10 = arith.addptr(%9, %8) : tile<32x32x*fp32, #2>
  %11 = gpu.load(%10, _, _) : tile<32x32xfp32, #2>
  %12 = tile.splat(%out) {shape = [32, 32], layout = #2} : tile<32x32x*fp32, #2>
  %13 = arith.addptr(%12, %8) : tile<32x32x*fp32, #2>
  %dot = gpu.dot(%a, %b, %11) {shape = [16, 8, 16]} : tile<32x32xfp32, #2>
"""
SOFTMAX = """\
  %max = gpu.reduce(%masked) {axis = 1} (%p: fp32, %q: fp32) {
    %r = arith.max(%p, %q) : fp32
    scf.yield(%r)
  } : tile<32xfp32, #3>
  %30 = tile.expand_dims(%max) {axis = 1} : tile<32x1xfp32, #4>
  %31 = gpu.convert(%30) {layout = #5} : tile<32x1xfp32, #5>
  %32 = tile.broadcast(%31) {shape = [32, 32], layout = #2} : tile<32x32xfp32, #2>
  %33 = arith.sub(%masked, %32) : tile<32x32xfp32, #2>
  gpu.store(%13, %33, _)
  scf.return
}
"""
SCALED = """\
  %20 = tile.splat(%scale) {shape = [32, 32], layout = #2} : tile<32x32xfp32, #2>
  %scores = arith.mul(%dot, %20) : tile<32x32xfp32, #2>
"""
MASK = """\
  %21 = tile.splat(%first) {shape = [32], layout = #6} : tile<32xi32, #6>
  %22 = arith.add(%21, %cols) : tile<32xi32, #6>
  %23 = tile.expand_dims(%22) {axis = 0} : tile<1x32xi32, #7>
  %24 = tile.splat(%end) {shape = [1, 32], layout = #7} : tile<1x32xi32, #7>
  %25 = arith.compare(%23, %24) {predicate = "lt"} : tile<1x32xi1, #7>
  %26 = gpu.convert(%25) {layout = #8} : tile<1x32xi1, #8>
  %27 = tile.broadcast(%26) {shape = [32, 32], layout = #2} : tile<32x32xi1, #2>
  %28 = arith.constant {value = -inff, type = tile<32x32xfp32, #2>} : tile<32x32xfp32, #2>
"""
BOTH = f"""\
{HEAD}{SCALED}{MASK}
  // CHECK: %[[X:.*]], %[[K:.*]] = scf.if(%{{{{.*}}}}) () {{
  // CHECK: scf.yield(%dot, %scale)
  // CHECK: %[[S:.*]] = arith.mul(%dot,
  // CHECK: %[[MASKED:.*]] = arith.select(%{{{{.*}}}}, %[[S]],
  // CHECK: scf.yield(%[[MASKED]], %
  // CHECK: gpu.reduce(%[[X]])
  // CHECK: tile.splat(%[[K]])
  // CHECK: %[[FUSED:.*]] = arith.mul(%[[X]],
  // CHECK: arith.sub(%[[FUSED]],
  %masked = arith.select(%27, %scores, %28) : tile<32x32xfp32, #2>
{SOFTMAX}"""
MASKED_ALONE = f"""\
{HEAD}{MASK}
  // CHECK: %[[X:.*]] = scf.if(%{{{{.*}}}}) () {{
  // CHECK: scf.yield(%dot)
  // CHECK: arith.select(%{{{{.*}}}}, %dot,
  // CHECK: gpu.reduce(%[[X]])
  // CHECK: arith.sub(%[[X]],
  %masked = arith.select(%27, %dot, %28) : tile<32x32xfp32, #2>
{SOFTMAX}"""
SCALED_ALONE = f"""\
{HEAD}{SCALED.replace("%scores", "%masked")}
  // CHECK: %[[X:.*]], %[[K:.*]] = scf.if(%{{{{.*}}}}) () {{
  // CHECK: scf.yield(%dot, %scale)
  // CHECK: gpu.reduce(%[[X]])
{SOFTMAX}"""

INT_MAX = (1 << 31) - 1
SCALES = (0.125, 1.0, -0.5, 0.0, -0.0, math.inf, -math.inf, math.nan, 1e-42)
# Hidden elements of a mask: none, the last, all, or wrapped ones.
BOUNDS = ((0, 32), (0, 31), (7, 39), (7, 38), (40, 40), (INT_MAX - 31, INT_MAX), (INT_MAX - 9, 5))


def _data(seed: int) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal(1024).astype(np.float32)
    special = (0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 3.4e38)
    rows = np.random.default_rng(seed + 1).choice(512, len(special), replace=False)
    x[rows] = special  # rows of the other half have none
    return x


@pytest.mark.parametrize("text", [BOTH, MASKED_ALONE, SCALED_ALONE])
@pytest.mark.parametrize("scale", SCALES)
def test_results_are_the_same_to_the_bit(text: str, scale: float) -> None:
    kernel = applied(text, branch_on_masks)
    for seed, (first, end) in enumerate(BOUNDS):
        out = np.full(1024, 77, np.float32)
        with np.errstate(all="ignore"):
            assert_same_meaning(text, kernel, [_data(seed), out, scale, first, end])


def _taken(kernel: Kernel, scale: float, first: int, end: int) -> bool:
    """Return whether the branch without the mask is the one taken: the other has no such op."""
    text = print_kernel(kernel)
    poisoned = text.replace("scf.yield(%dot, %scale)", "scf.yield(%11, %end_of_range)")
    assert poisoned != text
    zero = "  %end_of_range = arith.constant {value = 0.0, type = fp32} : fp32\n"
    start = poisoned.index("  %a = ")
    poisoned = parse_kernel(poisoned[:start] + zero + poisoned[start:])
    x, out = np.ones(1024, np.float32), np.full(1024, 77, np.float32)
    x[0] = 2.0
    try:
        assert_same_meaning(text, poisoned, [x, out, scale, first, end])
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize(("first", "end"), BOUNDS)
def test_the_branch_is_taken_where_nothing_is_hidden(first: int, end: int) -> None:
    kernel = applied(BOTH, branch_on_masks)
    assert _taken(kernel, 0.5, first, end) == (first + 31 < end)
    assert not _taken(kernel, -0.5, first, end)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%dot = gpu.dot(%a, %b, %11) {shape = [16, 8, 16]}", "%dot = arith.abs(%11)"),
        ('{predicate = "lt"} : tile<1x32', '{predicate = "eq"} : tile<1x32'),
    ],
)
def test_what_else_is_left_as_it_is(old: str, new: str) -> None:
    text = "\n".join(line for line in BOTH.split("\n") if "CHECK" not in line)
    assert old in text
    kernel = applied(text.replace(old, new) + "\n// CHECK-NOT: scf.if\n", branch_on_masks)
    assert "scf.if" not in print_kernel(kernel)


def test_what_no_iteration_changes_is_compared_ahead_of_the_loop() -> None:
    body = f"{SCALED}{MASK}  %masked = arith.select(%27, %scores, %28) : tile<32x32xfp32, #2>\n{SOFTMAX}"
    body = body.removesuffix("  scf.return\n}\n").replace("splat(%first)", "splat(%i)")
    text = f"""{HEAD}\
  %zero = arith.constant {{value = 0, type = i32}} : i32
  %step = arith.constant {{value = 32, type = i32}} : i32
  // CHECK: arith.compare(%{{{{.*}}}}, %scale)
  // CHECK: arith.compare(%scale, %
  // CHECK: scf.for
  // CHECK-NEXT: tile.splat(%scale)
  // CHECK: arith.cast(%i)
  // CHECK-NOT: arith.compare(%scale
  // CHECK-NOT: arith.cast(%end)
  // CHECK: scf.if
  scf.for(%zero, %end, %step) (%i: i32) {{
{body}
    scf.yield()
  }}
  scf.return
}}
"""
    kernel = applied(text, branch_on_masks)
    for end in (32, 33, 95):
        out = np.full(1024, 77, np.float32)
        with np.errstate(all="ignore"):
            assert_same_meaning(text, kernel, [_data(3), out, 0.5, 0, end])

"""Conditional rescaling: weights and sums are the source's times a power of two."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aotc.schedule.cleanup.rescale_lazily import rescale_lazily
from aotc.verify.interpreter.run import run
from tests.support.pass_case import applied, assert_same_meaning

SOFTMAX = """\
#0 = #ll<register=[[0,1],[8,0],[0,8],[0,16],[16,0]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[] : [32,32]>
#1 = #ll<register=[[8],[16]] lane=[[0],[0],[1],[2],[4]] warp=[] : [32]>
#2 = #ll<register=[[8,0],[16,0]] lane=[[0,0],[0,0],[1,0],[2,0],[4,0]] warp=[] : [32,1]>
#3 = #ll<register=[[0,0],[8,0],[0,0],[0,0],[16,0]] lane=[[0,0],[0,0],[1,0],[2,0],[4,0]] warp=[] : [32,1]>
#4 = #ll<register=[[1],[8],[16]] lane=[[2],[4],[0],[0],[0]] warp=[] : [32]>
#5 = #ll<register=[[0,1],[0,8],[0,16]] lane=[[0,2],[0,4],[0,0],[0,0],[0,0]] warp=[] : [1,32]>
#6 = #ll<register=[[0,1],[0,0],[0,8],[0,16],[0,0]] lane=[[0,2],[0,4],[0,0],[0,0],[0,0]] warp=[] : [1,32]>
kernel @k(%x: *fp32, %out: *fp32, %end: i32) {num_warps = 1} {
  %rows = tile.arange {start = 0, end = 32, layout = #1} : tile<32xi32, #1>
  %0 = tile.expand_dims(%rows) {axis = 1} : tile<32x1xi32, #2>
  %1 = gpu.convert(%0) {layout = #3} : tile<32x1xi32, #3>
  %2 = arith.constant {value = 32, type = tile<32x1xi32, #3>} : tile<32x1xi32, #3>
  %3 = arith.mul(%1, %2) : tile<32x1xi32, #3>
  %4 = tile.broadcast(%3) {shape = [32, 32], layout = #0} : tile<32x32xi32, #0>
  %cols = tile.arange {start = 0, end = 32, layout = #4} : tile<32xi32, #4>
  %5 = tile.expand_dims(%cols) {axis = 0} : tile<1x32xi32, #5>
  %6 = gpu.convert(%5) {layout = #6} : tile<1x32xi32, #6>
  %7 = tile.broadcast(%6) {shape = [32, 32], layout = #0} : tile<32x32xi32, #0>
  %8 = arith.add(%4, %7) : tile<32x32xi32, #0>
  %9 = tile.splat(%out) {shape = [32, 32], layout = #0} : tile<32x32x*fp32, #0>
  %10 = arith.addptr(%9, %8) : tile<32x32x*fp32, #0>
  %start = arith.constant {value = 0, type = i32} : i32
  %step = arith.constant {value = 1024, type = i32} : i32
  %lowest = arith.constant {value = -3e+38, type = tile<32xfp32, #1>} : tile<32xfp32, #1>
  %nothing = arith.constant {value = 0.0, type = tile<32xfp32, #1>} : tile<32xfp32, #1>
  %empty = arith.constant {value = 0.0, type = tile<32x32xfp32, #0>} : tile<32x32xfp32, #0>
  // CHECK: %{{.*}}, %[[SUM:.*]], %{{.*}} = scf.for(
  %max, %sum, %acc = scf.for(%start, %end, %step, %lowest, %nothing, %empty) (%i: i32, %m: tile<32xfp32, #1>, %s: tile<32xfp32, #1>, %a: tile<32x32xfp32, #0>) {
    %11 = arith.addptr(%x, %i) : *fp32
    %12 = tile.splat(%11) {shape = [32, 32], layout = #0} : tile<32x32x*fp32, #0>
    %13 = arith.addptr(%12, %8) : tile<32x32x*fp32, #0>
    // CHECK: %[[X:.*]] = gpu.load(
    %scores = gpu.load(%13, _, _) : tile<32x32xfp32, #0>
    // CHECK-NOT: arith.max
    // CHECK: %[[FIRST:.*]] = arith.compare(%i, %start) {predicate = "eq"}
    // CHECK: %[[Q:.*]], %[[T:.*]], %[[ALL:.*]] = scf.if(%[[FIRST]]) () {
    // CHECK: %[[EARLY:.*]] = arith.exp2(
    // CHECK: %[[TOTAL:.*]] = gpu.reduce(%[[EARLY]])
    // CHECK: %[[SMALL:.*]] = arith.compare(%[[TOTAL]], %{{.*}}) {predicate = "lt"}
    // CHECK: %[[VOTE:.*]] = gpu.warp_all(%[[SMALL]])
    // CHECK: scf.yield(%[[EARLY]], %[[TOTAL]], %[[VOTE]])
    // CHECK: scf.if(%[[ALL]]) () {
    // CHECK: scf.yield(%[[Q]], %[[T]], %m, %{{.*}}, %s, %a)
    // CHECK: gpu.reduce(%[[X]]) {axis = 1}
    // CHECK: arith.max
    // CHECK: arith.exp2
    // CHECK: arith.mul(%s,
    // CHECK: arith.mul(%a,
    // CHECK-NOT: gpu.warp_all
    %20 = gpu.reduce(%scores) {axis = 1} (%p0: fp32, %q0: fp32) {
      %r0 = arith.max(%p0, %q0) : fp32
      scf.yield(%r0)
    } : tile<32xfp32, #1>
    %21 = arith.ceil(%20) : tile<32xfp32, #1>
    %new = arith.max(%m, %21) {is_reference = true} : tile<32xfp32, #1>
    %22 = tile.expand_dims(%new) {axis = 1} : tile<32x1xfp32, #2>
    %23 = gpu.convert(%22) {layout = #3} : tile<32x1xfp32, #3>
    %24 = tile.broadcast(%23) {shape = [32, 32], layout = #0} : tile<32x32xfp32, #0>
    %25 = arith.sub(%scores, %24) : tile<32x32xfp32, #0>
    %power = arith.exp2(%25) : tile<32x32xfp32, #0>
    %26 = arith.sub(%m, %new) : tile<32xfp32, #1>
    %factor = arith.exp2(%26) : tile<32xfp32, #1>
    %27 = arith.mul(%s, %factor) : tile<32xfp32, #1>
    %28 = gpu.reduce(%power) {axis = 1} (%p1: fp32, %q1: fp32) {
      %r1 = arith.add(%p1, %q1) : fp32
      scf.yield(%r1)
    } : tile<32xfp32, #1>
    %29 = arith.add(%27, %28) : tile<32xfp32, #1>
    %30 = tile.expand_dims(%factor) {axis = 1} : tile<32x1xfp32, #2>
    %31 = gpu.convert(%30) {layout = #3} : tile<32x1xfp32, #3>
    %32 = tile.broadcast(%31) {shape = [32, 32], layout = #0} : tile<32x32xfp32, #0>
    %33 = arith.mul(%a, %32) : tile<32x32xfp32, #0>
    %34 = arith.add(%33, %power) : tile<32x32xfp32, #0>
    scf.yield(%new, %29, %34)
  } : tile<32xfp32, #1>, tile<32xfp32, #1>, tile<32x32xfp32, #0>
  %40 = tile.expand_dims(%sum) {axis = 1} : tile<32x1xfp32, #2>
  %41 = gpu.convert(%40) {layout = #3} : tile<32x1xfp32, #3>
  %42 = tile.broadcast(%41) {shape = [32, 32], layout = #0} : tile<32x32xfp32, #0>
  %43 = arith.div(%acc, %42) : tile<32x32xfp32, #0>
  gpu.store(%10, %43, _)
  scf.return
}
"""
PLAIN = "\n".join(line for line in SOFTMAX.split("\n") if "CHECK" not in line)
# The accumulator is rescaled an iteration later, as for weights computed ahead of their dot.
CARRIED = (
    PLAIN.replace("%max, %sum, %acc = ", "%max, %sum, %acc, %ahead, %last = ")
    .replace("%nothing, %empty)", "%nothing, %empty, %empty, %nothing)")
    .replace(
        "%a: tile<32x32xfp32, #0>)",
        "%a: tile<32x32xfp32, #0>, %w: tile<32x32xfp32, #0>, %f: tile<32xfp32, #1>)",
    )
    .replace("tile.expand_dims(%factor)", "tile.expand_dims(%f)")
    .replace("arith.add(%33, %power)", "arith.add(%33, %w)")
    .replace("scf.yield(%new, %29, %34)", "scf.yield(%new, %29, %34, %power, %factor)")
    .replace("%acc, %42)", "%51, %42)")
    .replace(
        "tile<32x32xfp32, #0>\n  %40",
        "tile<32x32xfp32, #0>, tile<32x32xfp32, #0>, tile<32xfp32, #1>\n"
        "  %48 = tile.expand_dims(%last) {axis = 1} : tile<32x1xfp32, #2>\n"
        "  %49 = gpu.convert(%48) {layout = #3} : tile<32x1xfp32, #3>\n"
        "  %50 = tile.broadcast(%49) {shape = [32, 32], layout = #0} : tile<32x32xfp32, #0>\n"
        "  %52 = arith.mul(%acc, %50) : tile<32x32xfp32, #0>\n"
        "  %51 = arith.add(%52, %ahead) : tile<32x32xfp32, #0>\n"
        "  %40",
    )
    .replace(
        "    %33 = ",
        '    // CHECK: %[[ONE:.*]] = arith.compare(%{{.*}}) {predicate = "eq"} : tile\n'
        "    // CHECK: %[[KEEP:.*]] = gpu.warp_all(%[[ONE]])\n"
        "    // CHECK: scf.if(%[[KEEP]]) () {\n"
        "    // CHECK-NEXT: scf.yield(%a)\n"
        "    // CHECK: arith.mul(%a,\n"
        "    %33 = ",
    )
    .replace("%52 = ", "// CHECK: gpu.warp_all\n  // CHECK: arith.mul\n  %52 = ")
)
STEPS = 6


def _scores(seed: int, grows: float) -> np.ndarray:
    """Return scores in eighths, with exact differences, and their growth per step."""
    eighths = np.random.default_rng(seed).integers(-80, 80, (STEPS, 32, 32)) / 8
    return (eighths + grows * np.arange(STEPS)[:, None, None]).astype(np.float32)


@pytest.mark.parametrize("grows", [0.0, 2.0, 14.5, 15.0, 40.0, 200.0, -60.0])
@pytest.mark.parametrize("text", [SOFTMAX, CARRIED], ids=["at once", "an iteration later"])
def test_results_are_the_same_to_the_bit(text: str, grows: float) -> None:
    kernel = applied(text, rescale_lazily)
    out = np.full(1024, 77, np.float32)
    assert_same_meaning(text, kernel, [_scores(7, grows).ravel(), out, STEPS * 1024])


@pytest.mark.parametrize("special", [math.inf, -math.inf, math.nan, 3e38, -3e38])
def test_special_scores_are_what_they_were(special: float) -> None:
    kernel = applied(SOFTMAX, rescale_lazily)
    for position in (0, 3, STEPS - 1):
        scores = _scores(position, 1.0)
        scores[position, 5, 9] = special
        scores[position, 6] = special
        args = [scores.ravel(), np.full(1024, 77, np.float32), STEPS * 1024]
        with np.errstate(all="ignore"):
            assert_same_meaning(PLAIN, kernel, args)


@pytest.mark.parametrize("grows", [0.0, 3.7, 11.3])
def test_the_error_against_float64_is_that_of_exponents(grows: float) -> None:
    scores = np.random.default_rng(5).normal(0.0, 4.0, (STEPS, 32, 32))
    scores = (scores + grows * np.arange(STEPS)[:, None, None]).astype(np.float32)
    out = np.full(1024, 77, np.float32)
    run(applied(SOFTMAX, rescale_lazily), (1,), [scores.ravel(), out, STEPS * 1024])
    exponents = scores.astype(np.float64) - scores.max((0, 2))[None, :, None]
    weights = np.exp2(exponents).sum(0)
    expected = weights / weights.sum(1)[:, None]
    error = np.abs(out.reshape(32, 32) - expected) / expected
    # Half an ulp of a number larger by at most 16 for the exponent; an ulp per op for the rest.
    num_roundings = 2 + STEPS + STEPS + 5 + 1
    bound = 2**-24 * (math.log(2) * (16 + np.abs(exponents).max()) + num_roundings)
    assert error.max() <= bound


def test_rows_of_which_nothing_is_seen_are_what_they_were() -> None:
    kernel = applied(SOFTMAX, rescale_lazily)
    scores = _scores(1, 0.0)
    scores[:2, 3], scores[:, 4] = -math.inf, -math.inf
    with np.errstate(all="ignore"):
        args = [scores.ravel(), np.full(1024, 77, np.float32), STEPS * 1024]
        assert_same_meaning(PLAIN, kernel, args)


def test_other_maxima_are_computed() -> None:
    text = PLAIN.replace(" {is_reference = true}", "")
    assert text != PLAIN
    applied(text + "// CHECK-NOT: warp_all\n", rescale_lazily)

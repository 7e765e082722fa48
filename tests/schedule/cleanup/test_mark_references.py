"""Softmax shifts are marked exactly where results do not depend on them."""

from __future__ import annotations

import pytest

from aotc.config import Config
from aotc.ir.text import parse_kernel
from aotc.schedule.cleanup.mark_references import mark_references
from aotc.schedule.context import Schedule
from aotc.target import TARGETS
from tests.support.pass_case import applied

SOFTMAX = """\
kernel @k(%x: *fp32, %v: *bf16, %out: *fp32, %lse: *fp32, %end: i32) {num_warps = 1} {
  %rows = tile.arange {start = 0, end = 32} : tile<32xi32>
  %columns = tile.arange {start = 0, end = 16} : tile<16xi32>
  %width = arith.constant {value = 16, type = tile<32x16xi32>} : tile<32x16xi32>
  %0 = tile.expand_dims(%rows) {axis = 1} : tile<32x1xi32>
  %1 = tile.broadcast(%0) {shape = [32, 16]} : tile<32x16xi32>
  %2 = tile.expand_dims(%columns) {axis = 0} : tile<1x16xi32>
  %3 = tile.broadcast(%2) {shape = [32, 16]} : tile<32x16xi32>
  %4 = arith.mul(%1, %width) : tile<32x16xi32>
  %5 = arith.add(%4, %3) : tile<32x16xi32>
  %6 = tile.splat(%x) {shape = [32, 16]} : tile<32x16x*fp32>
  %7 = arith.addptr(%6, %5) : tile<32x16x*fp32>
  %8 = tile.splat(%out) {shape = [32, 16]} : tile<32x16x*fp32>
  %9 = arith.addptr(%8, %5) : tile<32x16x*fp32>
  %10 = tile.splat(%lse) {shape = [32]} : tile<32x*fp32>
  %11 = arith.addptr(%10, %rows) : tile<32x*fp32>
  %values = arith.constant {value = 0.5, type = tile<16x16xbf16>} : tile<16x16xbf16>
  %start = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
  %lowest = arith.constant {value = -3e+38, type = tile<32xfp32>} : tile<32xfp32>
  %nothing = arith.constant {value = 0.0, type = tile<32xfp32>} : tile<32xfp32>
  %empty = arith.constant {value = 0.0, type = tile<32x16xfp32>} : tile<32x16xfp32>
  %max, %sum, %acc = scf.for(%start, %end, %one, %lowest, %nothing, %empty) (%i: i32, %m: tile<32xfp32>, %s: tile<32xfp32>, %a: tile<32x16xfp32>) {
    %scores = tile.load(%7, _, _) : tile<32x16xfp32>
    %20 = tile.reduce(%scores) {axis = 1} (%p0: fp32, %q0: fp32) {
      %r0 = arith.max(%p0, %q0) : fp32
      scf.yield(%r0)
    } : tile<32xfp32>
    %21 = arith.ceil(%20) : tile<32xfp32>
    // CHECK: arith.max({{.*}}) {is_reference = true}
    %new = arith.max(%m, %21) : tile<32xfp32>
    %22 = tile.expand_dims(%new) {axis = 1} : tile<32x1xfp32>
    %23 = tile.broadcast(%22) {shape = [32, 16]} : tile<32x16xfp32>
    %24 = arith.sub(%scores, %23) : tile<32x16xfp32>
    %power = arith.exp2(%24) : tile<32x16xfp32>
    %25 = arith.sub(%m, %new) : tile<32xfp32>
    %factor = arith.exp2(%25) : tile<32xfp32>
    %26 = arith.mul(%s, %factor) : tile<32xfp32>
    %27 = tile.reduce(%power) {axis = 1} (%p1: fp32, %q1: fp32) {
      %r1 = arith.add(%p1, %q1) : fp32
      scf.yield(%r1)
    } : tile<32xfp32>
    %28 = arith.add(%26, %27) : tile<32xfp32>
    %29 = tile.expand_dims(%factor) {axis = 1} : tile<32x1xfp32>
    %30 = tile.broadcast(%29) {shape = [32, 16]} : tile<32x16xfp32>
    %31 = arith.mul(%a, %30) : tile<32x16xfp32>
    %32 = arith.cast(%power) {dtype = bf16} : tile<32x16xbf16>
    %33 = tile.dot(%32, %values, %31) : tile<32x16xfp32>
    scf.yield(%new, %28, %33)
  } : tile<32xfp32>, tile<32xfp32>, tile<32x16xfp32>
  %40 = tile.expand_dims(%sum) {axis = 1} : tile<32x1xfp32>
  %41 = tile.broadcast(%40) {shape = [32, 16]} : tile<32x16xfp32>
  %42 = arith.div(%acc, %41) : tile<32x16xfp32>
  tile.store(%9, %42, _)
  %43 = arith.log2(%sum) : tile<32xfp32>
  %44 = arith.add(%max, %43) : tile<32xfp32>
  tile.store(%11, %44, _)
  scf.return
}
"""
ROWS = "tile<32xfp32>"
HALF = SOFTMAX.replace("bf16", "fp16")
UNMARKED = "\n".join(line for line in SOFTMAX.split("\n") if "CHECK" not in line)
UNMARKED += "// CHECK-NOT: is_reference\n"


@pytest.mark.parametrize("text", [SOFTMAX, HALF], ids=["bf16", "fp16"])
def test_the_reference_of_a_softmax_is_marked(text: str) -> None:
    applied(text, mark_references)


@pytest.mark.parametrize(("dtype", "is_marked"), [("bf16", True), ("fp16", False)])
def test_an_accumulator_may_be_too_large_for_fp16(*, dtype: str, is_marked: bool) -> None:
    wide = "tile<32x16xfp32>"
    narrow = wide.replace("fp32", dtype)
    div = f"  %42 = arith.div(%acc, %41) : {wide}\n"
    casts = "".join(
        f"  %{new} = arith.cast(%{old}) {{dtype = {dtype}}} : {narrow}\n"
        f"  %{new}0 = arith.cast(%{new}) {{dtype = fp32}} : {wide}\n"
        for old, new in (("acc", "52"), ("41", "53"))
    )
    text = SOFTMAX if is_marked else UNMARKED
    assert div in text
    applied(text.replace(div, f"{casts}  %42 = arith.div(%520, %530) : {wide}\n"), mark_references)


def test_a_comparison_of_a_reference_with_zero_depends_on_it() -> None:
    old = f"  %44 = arith.add(%max, %43) : {ROWS}\n"
    seen = '  %50 = arith.compare(%nothing, %max) {predicate = "lt"} : tile<32xi1>\n'
    shown = f"{old}{seen}  %51 = arith.select(%50, %44, %lowest) : {ROWS}\n"
    assert old in UNMARKED
    applied(
        UNMARKED.replace(old, shown).replace("store(%11, %44", "store(%11, %51"), mark_references
    )


def test_a_comparison_of_a_sum_with_zero_does_not_depend_on_it() -> None:
    old = f"  %43 = arith.log2(%sum) : {ROWS}\n"
    seen = '  %50 = arith.compare(%nothing, %sum) {predicate = "lt"} : tile<32xi1>\n'
    addition = f"  %44 = arith.add(%max, %43) : {ROWS}\n"
    shown = f"{addition}  %51 = arith.select(%50, %44, %lowest) : {ROWS}\n"
    text = SOFTMAX.replace(old, old + seen).replace(addition, shown)
    applied(text.replace("store(%11, %44", "store(%11, %51"), mark_references)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("arith.ceil(%20)", "arith.abs(%20)", id="no whole number"),
        pytest.param("{value = -3e+38", "{value = -0.5", id="does not begin as one"),
        pytest.param("store(%11, %44", "store(%11, %max", id="stores the reference"),
        pytest.param("store(%11, %44", "store(%11, %sum", id="stores the sum"),
        pytest.param("store(%9, %42", "store(%9, %acc", id="stores the accumulator"),
        pytest.param("arith.add(%max, %43)", "arith.sub(%max, %43)", id="other logarithm"),
        pytest.param("arith.add(%max, %43)", "arith.mul(%max, %43)", id="product of logarithms"),
        pytest.param("arith.div(%acc, %41)", "arith.mul(%acc, %41)", id="product with the sum"),
        pytest.param("arith.mul(%s, %factor)", "arith.add(%s, %factor)", id="sum not rescaled"),
        pytest.param("arith.mul(%a, %30)", "arith.abs(%a)", id="accumulator not rescaled"),
        pytest.param("arith.sub(%m, %new)", "arith.sub(%new, %m)", id="rescaled the other way"),
        pytest.param("arith.exp2(%24)", "arith.exp(%24)", id="no power of two"),
        pytest.param("arith.exp2(%24)", "arith.abs(%24)", id="no exponential"),
        pytest.param("dot(%32, %values, %31)", "dot(%32, %values, %scores)", id="another term"),
        pytest.param("{dtype = bf16}", "{dtype = fp8e5}", id="weights of eight bits"),
        pytest.param("scf.yield(%new, %28", "scf.yield(%21, %28", id="no running maximum"),
        pytest.param("scf.yield(%new, %28", "scf.yield(%new, %s", id="a sum of another iteration"),
    ],
)
def test_other_references_are_not(old: str, new: str) -> None:
    assert UNMARKED.count(old) == 1
    text = UNMARKED.replace(old, new)
    if "fp8e5" in new:
        text = text.replace("tile<32x16xbf16>", "tile<32x16xfp8e5>")
        text = text.replace("tile<16x16xbf16>", "tile<16x16xfp8e5>")
    applied(text, mark_references)


def test_a_sum_across_rows_is_none_of_one_row() -> None:
    def square(text: str) -> str:
        return text.replace("32x", "16x").replace("[32", "[16").replace("end = 32", "end = 16")

    applied(square(SOFTMAX), mark_references)
    along = "tile.reduce(%power) {axis = 1}"
    assert along in UNMARKED
    applied(square(UNMARKED.replace(along, "tile.reduce(%power) {axis = 0}")), mark_references)


def test_what_a_branch_sees_depends_on_it() -> None:
    store = "  tile.store(%11, %44, _)\n"
    branch = """\
  %60 = arith.compare(%end, %one) {predicate = "lt"} : i1
  scf.if(%60) () {
    tile.store(%11, %max, _)
    scf.yield()
  } () {
    scf.yield()
  }
"""
    assert store in UNMARKED
    applied(UNMARKED.replace(store, store + branch), mark_references)


# A running maximum as most sources have it.
UNROUNDED = [("arith.ceil(%20)", "arith.abs(%20)"), ("{value = -3e+38", "{value = -0.5")]
NATURAL = [("arith.exp2", "arith.exp"), ("arith.log2", "arith.log")]


def replaced(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize("changes", [UNROUNDED, [*UNROUNDED, *NATURAL], NATURAL])
def test_any_maximum_is_marked_on_request(changes: list[tuple[str, str]]) -> None:
    asked = Config(conditional_rescaling=True)
    applied(replaced(SOFTMAX, *changes), mark_references, config=asked)
    applied(replaced(UNMARKED, *changes), mark_references)


def test_a_maximum_to_be_asked_for_is_remarked() -> None:
    schedule = Schedule(TARGETS["sm_90a"])
    text, _, _ = replaced(UNMARKED, *UNROUNDED).partition("// CHECK")
    mark_references(parse_kernel(text), schedule)
    (remark,) = schedule.remarks
    assert "`conditional_rescaling = true` keeps the maximum" in remark


def test_no_maximum_is_marked_against_a_request() -> None:
    applied(UNMARKED, mark_references, config=Config(conditional_rescaling=False))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(("arith.exp2(%25)", "arith.exp(%25)"), id="two bases"),
        pytest.param(("store(%11, %44", "store(%11, %max"), id="stores the reference"),
        pytest.param(("{dtype = bf16}", "{dtype = fp32}"), id="weights that tf32 truncates"),
    ],
)
def test_other_maxima_are_not_marked_on_request(change: tuple[str, str]) -> None:
    text = replaced(UNMARKED, *UNROUNDED, change)
    if "fp32" in change[1]:
        text = text.replace("tile<32x16xbf16>", "tile<32x16xfp32>")
        text = text.replace("tile<16x16xbf16>", "tile<16x16xfp32>")
    applied(text, mark_references, config=Config(conditional_rescaling=True))

"""Tiles rematerialized after exchanges and in loops: tiles kept, and results."""

from __future__ import annotations

import numpy as np
import pytest
from ml_dtypes import bfloat16

from aotc.ir.core import Kernel
from aotc.ir.dialects import arith, opaque
from aotc.ir.text import parse_kernel
from aotc.ir.verify import verify
from aotc.schedule.cleanup.eliminate_common import eliminate_common
from aotc.schedule.cleanup.rematerialize_tiles import rematerialize_tiles
from aotc.schedule.cleanup.simplify import simplify
from aotc.schedule.context import Schedule
from aotc.schedule.shared_memory.insert_barriers import insert_barriers
from aotc.target import TARGETS
from tests.support.checks import without_checks
from tests.support.pass_case import Pass, applied, assert_same_meaning

SIZE, WARPS = 4096, 2  # 64 elements a thread
LAYOUT = (
    "#ll<register=[[1],[2],[4],[512],[1024],[2048]] "
    "lane=[[8],[16],[32],[64],[128]] warp=[[256]] : [4096]>"
)
HEAD = f"""\
#0 = {LAYOUT}
#1 = #ll<register=[[1],[2]] lane=[[0],[0],[0],[0],[0]] warp=[[0]] : [4]>
#2 = #ll<offset=[[1],[2]] : [4]>
kernel @k(%x: *bf16, %out: *fp32, %n: i32) {{num_warps = {WARPS}}} {{
  %i = tile.arange {{start = 0, end = 4096, layout = #0}} : tile<4096xi32, #0>
  %xs = tile.splat(%x) {{shape = [4096], layout = #0}} : tile<4096x*bf16, #0>
  %p = arith.addptr(%xs, %i) : tile<4096x*bf16, #0>
  %a = gpu.load(%p, _, _) {{vector = 1}} : tile<4096xbf16, #0>
  %wide = arith.cast(%a) {{dtype = fp32}} : tile<4096xfp32, #0>
  %double = arith.add(%wide, %wide) : tile<4096xfp32, #0>
  %os = tile.splat(%out) {{shape = [4096], layout = #0}} : tile<4096x*fp32, #0>
  %q = arith.addptr(%os, %i) : tile<4096x*fp32, #0>
  gpu.store(%q, %double, _) {{vector = 1}}
"""
EXCHANGE = """\
  %buffer = gpu.shared_alloc {element = fp32, shape = [4], layout = #2} : shared<4xfp32, #2>
  %some = arith.constant {value = 1.5, type = tile<4xfp32, #1>} : tile<4xfp32, #1>
  gpu.shared_store(%some, %buffer)
  %all = gpu.shared_load(%buffer) {layout = #1, vector = 4} : tile<4xfp32, #1>
  %sum = gpu.reduce(%all) {axis = 0} (%u: fp32, %v: fp32) {
    %w = arith.add(%u, %v) : fp32
    scf.yield(%w)
  } : fp32
  %sums = tile.splat(%sum) {shape = [4096], layout = #0} : tile<4096xfp32, #0>
"""
ACROSS = (
    """\
// CHECK: gpu.shared_store
// CHECK: %sum = gpu.reduce
// CHECK: [[KEPT:%.*]] = gpu.opaque(%a, %sum) : tile<4096xbf16, #0>
// CHECK-NEXT: [[WIDE:%.*]] = arith.cast([[KEPT]])
// CHECK-NEXT: [[DOUBLE:%.*]] = arith.add([[WIDE]], [[WIDE]])
// CHECK-NEXT: arith.mul([[DOUBLE]], %sums)
"""
    + HEAD
    + EXCHANGE
    + """\
  %result = arith.mul(%double, %sums) : tile<4096xfp32, #0>
  gpu.store(%q, %result, _) {vector = 1}
  scf.return
}
"""
)
INTO_A_LOOP = (
    """\
// CHECK: scf.for
// CHECK: (%k: i32, %acc: tile<4096xfp32, #0>
// CHECK-NEXT: [[KEPT:%.*]] = gpu.opaque(%a, %k) : tile<4096xbf16, #0>
// CHECK-NEXT: [[WIDE:%.*]] = arith.cast([[KEPT]])
// CHECK-NEXT: [[DOUBLE:%.*]] = arith.add([[WIDE]], [[WIDE]])
// CHECK-NEXT: arith.add(%acc, [[DOUBLE]])
"""
    + HEAD
    + """\
  %none = arith.constant {value = 0.0, type = tile<4096xfp32, #0>} : tile<4096xfp32, #0>
  %zero = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
  %total = scf.for(%zero, %n, %one, %none) (%k: i32, %acc: tile<4096xfp32, #0>) {
    %more = arith.add(%acc, %double) : tile<4096xfp32, #0>
    scf.yield(%more)
  } : tile<4096xfp32, #0>
  gpu.store(%q, %total, _) {vector = 1}
  scf.return
}
"""
)


def arguments(times: int = 3) -> list[np.ndarray | int]:
    x = np.random.default_rng(times).integers(-50, 50, SIZE).astype(np.float32)
    return [x.astype(bfloat16), np.full(SIZE, 77, np.float32), times]


def rematerialized(text: str, *others: Pass, schedule: Schedule | None = None) -> Kernel:
    kernel, schedule = parse_kernel(without_checks(text)), schedule or Schedule(TARGETS["sm_90a"])
    for run_pass in (rematerialize_tiles, *others):
        run_pass(kernel, schedule)
        verify(kernel)
    return kernel


def opaque_ops(kernel: Kernel) -> list[opaque.Opaque]:
    return [op for op in kernel.walk() if isinstance(op, opaque.Opaque)]


def test_what_is_narrower_is_kept_across_an_exchange() -> None:
    kernel = applied(ACROSS, rematerialize_tiles)
    assert_same_meaning(ACROSS, kernel, arguments(), lower=[insert_barriers])


def test_what_is_narrower_is_kept_in_a_loop() -> None:
    kernel = applied(INTO_A_LOOP, rematerialize_tiles)
    assert_same_meaning(INTO_A_LOOP, kernel, arguments())


def test_later_passes_do_not_merge_what_is_computed_again() -> None:
    kernel = rematerialized(ACROSS, simplify, eliminate_common)
    assert len(opaque_ops(kernel)) == 1
    assert sum(isinstance(op, arith.Cast) for op in kernel.walk()) == 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("arith.add(%wide, %wide)", "arith.div(%wide, %wide)"),  # too dear to compute again
        ("%result = arith.mul(%double, %sums)", "%result = arith.mul(%sums, %sums)"),  # not needed
    ],
)
def test_what_it_does_not_pay_for_stays(old: str, new: str) -> None:
    assert old in ACROSS
    assert not opaque_ops(rematerialized(ACROSS.replace(old, new)))


def test_few_registers_are_left_alone() -> None:
    small = ACROSS.replace(",[512],[1024],[2048]", "").replace("4096", "512")
    assert not opaque_ops(rematerialized(small))


def test_a_tile_that_is_used_after_the_loop_as_well_is_kept() -> None:
    later = INTO_A_LOOP.replace(
        "  gpu.store(%q, %total, _)",
        "  %end = arith.add(%total, %double) : tile<4096xfp32, #0>\n  gpu.store(%q, %end, _)",
    )
    assert not opaque_ops(rematerialized(later))


def test_a_remark_says_what_was_saved() -> None:
    schedule = Schedule(TARGETS["sm_90a"])
    rematerialized(ACROSS, schedule=schedule)
    assert "32 registers of a thread instead of 64" in schedule.remarks[0]


def test_joined_tiles_are_kept_as_they_are() -> None:
    """A join has two operands, and their registers."""
    joined = ACROSS.replace(
        "  %result = arith.mul(%double, %sums) : tile<4096xfp32, #0>\n",
        "  %both = tile.join(%double, %wide) : tile<4096x2xfp32, #3>\n"
        + EXCHANGE.replace("%buffer", "%again")
        .replace("%all", "%every")
        .replace("%some", "%few")
        .replace("%sums", "%totals")
        .replace("%sum", "%total")
        .replace("%u", "%c")
        .replace("%v", "%d")
        .replace("%w =", "%e =")
        .replace("(%w)", "(%e)")
        + "  %one, %two = tile.split(%both) : tile<4096xfp32, #0>, tile<4096xfp32, #0>\n"
        "  %result = arith.mul(%one, %totals) : tile<4096xfp32, #0>\n",
    ).replace(
        "kernel @k",
        "#3 = #ll<register=[[0,1],[1,0],[2,0],[4,0],[512,0],[1024,0],[2048,0]] "
        "lane=[[8,0],[16,0],[32,0],[64,0],[128,0]] warp=[[256,0]] : [4096,2]>\nkernel @k",
    )
    kernel = rematerialized(joined)
    assert opaque_ops(kernel)
    assert_same_meaning(joined, kernel, arguments(), lower=[insert_barriers])


def test_the_second_half_of_a_split_is_computed_again_as_such() -> None:
    halves = ACROSS.replace(
        EXCHANGE,
        "  %pair = tile.join(%double, %wide) : tile<4096x2xfp32, #3>\n"
        "  %one, %two = tile.split(%pair) : tile<4096xfp32, #0>, tile<4096xfp32, #0>\n" + EXCHANGE,
    ).replace("arith.mul(%double, %sums)", "arith.mul(%two, %sums)")
    halves = halves.replace(
        "kernel @k",
        "#3 = #ll<register=[[0,1],[1,0],[2,0],[4,0],[512,0],[1024,0],[2048,0]] "
        "lane=[[8,0],[16,0],[32,0],[64,0],[128,0]] warp=[[256,0]] : [4096,2]>\nkernel @k",
    )
    kernel = rematerialized(halves)
    assert opaque_ops(kernel)
    assert_same_meaning(halves, kernel, arguments(), lower=[insert_barriers])

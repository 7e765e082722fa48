"""Conversions become renamings, register moves, shuffles, or shared memory exchanges."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.text import parse_kernel
from aotc.schedule.context import Schedule
from aotc.schedule.layout.plan_conversions import plan_conversions
from aotc.schedule.shared_memory.allocate_shared import allocate_shared
from aotc.schedule.shared_memory.insert_barriers import insert_barriers
from aotc.target import TARGETS
from tests.support.checks import without_checks
from tests.support.pass_case import applied, assert_same_meaning

BODY = """\
kernel @k(%x: *fp32, %out: *fp32) {num_warps = 4} {
  %i = tile.arange {start = 0, end = 512, layout = #0} : tile<512xi32, #0>
  %xs = tile.splat(%x) {shape = [512], layout = #0} : tile<512x*fp32, #0>
  %p = arith.addptr(%xs, %i) : tile<512x*fp32, #0>
  %a = gpu.load(%p, _, _) : tile<512xfp32, #0>
  %b = gpu.convert(%a) {layout = #1} : tile<512xfp32, #1>
  %j = tile.arange {start = 0, end = 512, layout = #1} : tile<512xi32, #1>
  %os = tile.splat(%out) {shape = [512], layout = #1} : tile<512x*fp32, #1>
  %q = arith.addptr(%os, %j) : tile<512x*fp32, #1>
  gpu.store(%q, %b, _)
  scf.return
}
"""
HELD = "#0 = #ll<register=[[128],[256]] lane=[[1],[2],[4],[8],[16]] warp=[[32],[64]] : [512]>\n"
REGISTERS = """\
// CHECK: gpu.convert(%a)
// CHECK-NOT: gpu.shared_alloc
// CHECK-NOT: gpu.shuffle_convert
#1 = #ll<register=[[256],[128]] lane=[[1],[2],[4],[8],[16]] warp=[[32],[64]] : [512]>
"""
LANES = """\
// CHECK: [[B:%.*]] = gpu.shuffle_convert(%a)
// CHECK-NOT: gpu.shared_alloc
// CHECK: gpu.store({{%.*}}, [[B]], _)
#1 = #ll<register=[[128],[256]] lane=[[2],[1],[4],[8],[16]] warp=[[32],[64]] : [512]>
"""
WARPS = """\
// CHECK: [[BUFFER:%.*]] = gpu.shared_alloc {element = fp32, shape = [512]
// CHECK-NEXT: gpu.shared_store(%a, [[BUFFER]])
// CHECK-NEXT: [[B:%.*]] = gpu.shared_load([[BUFFER]]) {{.*}}vector = 4
// CHECK-NOT: gpu.convert
#1 = #ll<register=[[1],[2]] lane=[[4],[8],[16],[32],[64]] warp=[[128],[256]] : [512]>
"""


@pytest.mark.parametrize("layout", [REGISTERS, LANES, WARPS], ids=["registers", "lanes", "warps"])
def test_the_cheapest_way_is_written_down(layout: str) -> None:
    text = HELD + layout + BODY
    kernel = applied(text, plan_conversions)
    # `insert_barriers` adds the barrier between the store and the load.
    for run_pass in (allocate_shared, insert_barriers):
        run_pass(kernel, Schedule(TARGETS["sm_90a"]))
    x = np.random.default_rng(3).normal(size=512).astype(np.float32)
    assert_same_meaning(text, kernel, [x, np.full(512, 777, np.float32)])


def test_a_tile_that_goes_through_shared_memory_is_remarked_upon() -> None:
    kernel = parse_kernel(without_checks(HELD + WARPS + BODY))
    schedule = Schedule(TARGETS["sm_90a"])
    plan_conversions(kernel, schedule)
    assert any("2048 bytes of shared memory" in str(remark) for remark in schedule.remarks)


TWICE = """\
// CHECK: [[BUFFER:%.*]] = gpu.shared_alloc
// CHECK-NEXT: gpu.shared_store(%a, [[BUFFER]])
// CHECK: gpu.shared_load([[BUFFER]])
// CHECK: gpu.shared_load([[BUFFER]])
// CHECK-NOT: gpu.shared_store(
#1 = #ll<register=[[1],[2]] lane=[[4],[8],[16],[32],[64]] warp=[[128],[256]] : [512]>
#2 = #ll<register=[[64],[128]] lane=[[1],[2],[4],[8],[16]] warp=[[256],[32]] : [512]>
"""


def test_what_is_loaded_is_stored_once_for_all_its_conversions() -> None:
    body = BODY.replace(
        "  gpu.store(%q, %b, _)\n",
        """\
  gpu.store(%q, %b, _)
  %c = gpu.convert(%a) {layout = #2} : tile<512xfp32, #2>
  %l = tile.arange {start = 512, end = 1024, layout = #2} : tile<512xi32, #2>
  %ps = tile.splat(%out) {shape = [512], layout = #2} : tile<512x*fp32, #2>
  %r = arith.addptr(%ps, %l) : tile<512x*fp32, #2>
  gpu.store(%r, %c, _)
""",
    )
    text = HELD + TWICE + body
    kernel = applied(text, plan_conversions)
    for run_pass in (allocate_shared, insert_barriers):
        run_pass(kernel, Schedule(TARGETS["sm_90a"]))
    x = np.random.default_rng(3).normal(size=512).astype(np.float32)
    assert_same_meaning(text, kernel, [x, np.zeros(1024, np.float32)])

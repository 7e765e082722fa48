"""Dots in flight across iterations: ops that wait for them, and their operands until then."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.core import Kernel
from aotc.ir.dialects import roles, scf, wgmma
from aotc.ir.text import parse_kernel
from aotc.schedule.context import Schedule
from aotc.schedule.pipelining.defer_waits import LateWaits, defer_waits, find_late_waits
from aotc.schedule.shared_memory.allocate_shared import allocate_shared
from aotc.schedule.shared_memory.insert_barriers import insert_barriers
from tests.support.pass_case import applied, assert_same_meaning

CHECKS = """\
// CHECK: gpu.specialize
// CHECK: [[RUNS:%.*]] = arith.compare(%zero, %n) {predicate = "lt"}
// CHECK: scf.if([[RUNS]])
// CHECK: [[OUT:%[a-z_0-9]+]], {{.*}}, [[V_END:%[a-z_0-9]+]], {{%[a-z_0-9]+}} = scf.for({{.*}}, %none,
// CHECK-SAME: unroll = 1} (%i: i32, [[ACC:%[a-z_0-9]+]]: tile<64x64xfp32, #{{[0-9]+}}>,
// CHECK: %dot = gpu.wgmma(%a, %b, %fresh, %never)
// CHECK-NEXT: [[LATER:%.*]] = arith.compare(%i, %zero) {predicate = "ne"}
// CHECK-NEXT: [[WAITED:%.*]] = gpu.wgmma_wait([[ACC]]) {pending = 1, num_columns = [0]}
// CHECK-NEXT: [[BEFORE:%.*]] = gpu.shared_stage(%v_empty, %v_index) {ahead = 2}
// CHECK-NEXT: gpu.mbarrier_arrive([[BEFORE]], [[LATER]]) {count = 4}
// CHECK-NEXT: %part = gpu.wgmma_wait(%dot) {num_columns = [0]}
// CHECK: %less = arith.mul([[WAITED]], %half)
// CHECK: %more = gpu.wgmma(%weights, %v, %less, _)
// CHECK-NOT: gpu.wgmma_wait
// CHECK: scf.yield(%more,
// CHECK: [[DONE:%.*]] = gpu.wgmma_wait([[OUT]]) {num_columns = [0]}
// CHECK-NEXT: [[LAST:%.*]] = gpu.shared_stage(%v_empty, [[V_END]]) {ahead = 2}
// CHECK-NEXT: gpu.mbarrier_arrive([[LAST]], _) {count = 4}
// CHECK-NEXT: scf.yield([[DONE]],
// CHECK-NEXT: } () {
// CHECK-NEXT: scf.yield(%none,
"""
LOOP = """\
#0 = #ll<offset=[[0,1],[0,2],[0,4],[0,8],[0,16],[0,32],[1,8],[2,16],[4,32],[8,0],[16,0],[32,0]] : [64,64]>
#1 = #ll<offset=[] : [1]>
#2 = #ll<register=[[0,1],[8,0],[0,8],[0,16],[0,32]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[[16,0],[32,0]] : [64,64]>
#3 = #ll<register=[[1],[512],[8],[16],[32]] lane=[[2],[4],[64],[128],[256]] warp=[[1024],[2048]] : [4096]>
kernel @k(%x: map<64x64xfp16, 128>, %y: map<64x64xfp16, 128>, %out: *fp32, %n: i32) {num_warps = 4, producer_warps = 1} {
  %a_ring = gpu.shared_alloc {element = fp16, shape = [64, 64], layout = #0, alignment_bytes = 1024, num_stages = 2} : shared<64x64xfp16, #0, 2>
  %b_ring = gpu.shared_alloc {element = fp16, shape = [64, 64], layout = #0, alignment_bytes = 1024, num_stages = 2} : shared<64x64xfp16, #0, 2>
  %full = gpu.shared_alloc {element = u64, shape = [1], layout = #1, alignment_bytes = 8, num_stages = 2} : shared<1xu64, #1, 2>
  %empty = gpu.shared_alloc {element = u64, shape = [1], layout = #1, alignment_bytes = 8, num_stages = 2} : shared<1xu64, #1, 2>
  gpu.mbarrier_init(%full)
  gpu.mbarrier_init(%empty) {count = 4}
  %v_ring = gpu.shared_alloc {element = fp16, shape = [64, 64], layout = #0, alignment_bytes = 1024, num_stages = 3} : shared<64x64xfp16, #0, 3>
  %v_full = gpu.shared_alloc {element = u64, shape = [1], layout = #1, alignment_bytes = 8, num_stages = 3} : shared<1xu64, #1, 3>
  %v_empty = gpu.shared_alloc {element = u64, shape = [1], layout = #1, alignment_bytes = 8, num_stages = 3} : shared<1xu64, #1, 3>
  gpu.mbarrier_init(%v_full)
  gpu.mbarrier_init(%v_empty) {count = 4}
  gpu.barrier
  gpu.specialize () {
    %zero = arith.constant {value = 0, type = i32} : i32
    %one = arith.constant {value = 1, type = i32} : i32
    %none = arith.constant {value = 0.0, type = tile<64x64xfp32, #2>} : tile<64x64xfp32, #2>
    %half = arith.constant {value = 0.5, type = tile<64x64xfp32, #2>} : tile<64x64xfp32, #2>
    %fresh = gpu.undefined {type = tile<64x64xfp32, #2>} : tile<64x64xfp32, #2>
    %never = arith.constant {value = false, type = i1} : i1
    %total, %end, %last, %v_end, %v_last = scf.for(%zero, %n, %one, %none, %zero, %zero, %zero, %zero) (%i: i32, %acc: tile<64x64xfp32, #2>, %index: i32, %phase: i32, %v_index: i32, %v_phase: i32) {
      %filled = gpu.shared_stage(%full, %index) : shared<1xu64, #1>
      gpu.mbarrier_wait(%filled, %phase)
      %a = gpu.shared_stage(%a_ring, %index) : shared<64x64xfp16, #0>
      %b = gpu.shared_stage(%b_ring, %index) : shared<64x64xfp16, #0>
      %dot = gpu.wgmma(%a, %b, %fresh, %never) : tile<64x64xfp32, #2>
      %part = gpu.wgmma_wait(%dot) {num_columns = [0]} : tile<64x64xfp32, #2>
      %read = gpu.shared_stage(%empty, %index) : shared<1xu64, #1>
      gpu.mbarrier_arrive(%read, _) {count = 4}
      %weights = arith.cast(%part) {dtype = fp16} : tile<64x64xfp16, #2>
      %less = arith.mul(%acc, %half) : tile<64x64xfp32, #2>
      %v_filled = gpu.shared_stage(%v_full, %v_index) : shared<1xu64, #1>
      gpu.mbarrier_wait(%v_filled, %v_phase)
      %v = gpu.shared_stage(%v_ring, %v_index) : shared<64x64xfp16, #0>
      %more = gpu.wgmma(%weights, %v, %less, _) : tile<64x64xfp32, #2>
      %sum = gpu.wgmma_wait(%more) {num_columns = [0]} : tile<64x64xfp32, #2>
      %v_read = gpu.shared_stage(%v_empty, %v_index) : shared<1xu64, #1>
      gpu.mbarrier_arrive(%v_read, _) {count = 4}
      %next = gpu.next_stage(%index) {num_stages = 2} : i32
      %wraps = arith.compare(%next, %zero) {predicate = "eq"} : i1
      %flip = arith.cast(%wraps) {dtype = i32} : i32
      %flipped = arith.xor(%phase, %flip) : i32
      %v_next = gpu.next_stage(%v_index) {num_stages = 3} : i32
      %v_wraps = arith.compare(%v_next, %zero) {predicate = "eq"} : i1
      %v_flip = arith.cast(%v_wraps) {dtype = i32} : i32
      %v_flipped = arith.xor(%v_phase, %v_flip) : i32
      scf.yield(%sum, %next, %flipped, %v_next, %v_flipped)
    } : tile<64x64xfp32, #2>, i32, i32, i32, i32
    %flat = tile.reshape(%total) {shape = [4096]} : tile<4096xfp32, #3>
    %m = tile.arange {start = 0, end = 4096, layout = #3} : tile<4096xi32, #3>
    %os = tile.splat(%out) {shape = [4096], layout = #3} : tile<4096x*fp32, #3>
    %r = arith.addptr(%os, %m) : tile<4096x*fp32, #3>
    gpu.store(%r, %flat, _)
    scf.yield()
  } () {
    %zero_p = arith.constant {value = 0, type = i32} : i32
    %one_p = arith.constant {value = 1, type = i32} : i32
    %size = arith.constant {value = 64, type = i32} : i32
    %end_p, %last_p, %v_end_p, %v_last_p = scf.for(%zero_p, %n, %one_p, %zero_p, %zero_p, %zero_p, %zero_p) {unroll = 1} (%i_p: i32, %index_p: i32, %phase_p: i32, %v_index_p: i32, %v_phase_p: i32) {
      %at = arith.mul(%i_p, %size) : i32
      %before = arith.xor(%phase_p, %one_p) : i32
      %free = gpu.shared_stage(%empty, %index_p) : shared<1xu64, #1>
      gpu.mbarrier_wait(%free, %before)
      %fill = gpu.shared_stage(%full, %index_p) : shared<1xu64, #1>
      %a_free = gpu.shared_stage(%a_ring, %index_p) : shared<64x64xfp16, #0>
      gpu.tma_load(%x, %a_free, %fill, %zero_p, %at) {arrive = false}
      %b_free = gpu.shared_stage(%b_ring, %index_p) : shared<64x64xfp16, #0>
      gpu.tma_load(%y, %b_free, %fill, %at, %zero_p)
      %v_before = arith.xor(%v_phase_p, %one_p) : i32
      %v_free = gpu.shared_stage(%v_empty, %v_index_p) : shared<1xu64, #1>
      gpu.mbarrier_wait(%v_free, %v_before)
      %v_fill = gpu.shared_stage(%v_full, %v_index_p) : shared<1xu64, #1>
      %v_to = gpu.shared_stage(%v_ring, %v_index_p) : shared<64x64xfp16, #0>
      gpu.tma_load(%y, %v_to, %v_fill, %at, %zero_p)
      %next_p = gpu.next_stage(%index_p) {num_stages = 2} : i32
      %wraps_p = arith.compare(%next_p, %zero_p) {predicate = "eq"} : i1
      %flip_p = arith.cast(%wraps_p) {dtype = i32} : i32
      %flipped_p = arith.xor(%phase_p, %flip_p) : i32
      %v_next_p = gpu.next_stage(%v_index_p) {num_stages = 3} : i32
      %v_wraps_p = arith.compare(%v_next_p, %zero_p) {predicate = "eq"} : i1
      %v_flip_p = arith.cast(%v_wraps_p) {dtype = i32} : i32
      %v_flipped_p = arith.xor(%v_phase_p, %v_flip_p) : i32
      scf.yield(%next_p, %flipped_p, %v_next_p, %v_flipped_p)
    } : i32, i32, i32, i32
    scf.yield()
  }
  scf.return
}
"""


def found_in(kernel: Kernel) -> LateWaits | None:
    """Return the ops of the consumers' loop that may come later."""
    (role,) = (op for op in kernel.body if isinstance(op, roles.Specialize))
    (loop,) = (op for op in role.consumers if isinstance(op, scf.For))
    first, *last = (op for op in loop.body if isinstance(op, wgmma.Wgmma))
    return find_late_waits(loop, [first], last)


def defer(kernel: Kernel, schedule: Schedule) -> None:
    """Wait for the second dot of the loop in the next iteration."""
    del schedule
    late = found_in(kernel)
    assert late is not None
    defer_waits(late)


def assert_same_results(text: str, kernel: Kernel) -> None:
    """Assert equal results for loops of any length."""
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((64, 320), (320, 64)))
    for iterations in (0, 1, 2, 3, 4, 5):
        args = [x, y, np.full(4096, 77, np.float32), iterations]
        assert_same_meaning(text, kernel, args, lower=(allocate_shared, insert_barriers))


def test_the_last_dot_is_waited_for_once_the_next_is_issued() -> None:
    assert_same_results(LOOP, applied(CHECKS + LOOP, defer))


EARLY = "      %filled = gpu.shared_stage("
TYPE = "tile<64x64xfp32, #2>"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("scf.yield(%sum,", f"%twice = arith.add(%sum, %sum) : {TYPE}\n      scf.yield(%twice,"),
        (EARLY, f"      %twice = arith.add(%acc, %acc) : {TYPE}\n{EARLY}"),
        (
            "gpu.next_stage(%v_index) {num_stages = 3}",
            "gpu.next_stage(%v_index) {num_stages = 3, ahead = 2}",
        ),
        ("      %next = gpu.next_stage", "      gpu.proxy_fence\n      %next = gpu.next_stage"),
    ],
    ids=[
        "threads compute with its result",
        "the accumulator is used before the first dot",
        "the stage before is another one",
        "something else comes after it",
    ],
)
def test_where_a_wait_stays(old: str, new: str) -> None:
    assert old in LOOP
    assert found_in(parse_kernel(LOOP.replace(old, new))) is None
    assert found_in(parse_kernel(LOOP)) is not None


def test_a_wait_stays_ahead_of_what_writes_the_registers_of_its_dot() -> None:
    """The next iteration would compute the operand before it issues its first dot."""
    op = "%early = arith.cast(%half) {dtype = fp16} : tile<64x64xfp16, #2>"
    text = LOOP.replace("%more = gpu.wgmma(%weights,", "%more = gpu.wgmma(%early,")
    assert found_in(parse_kernel(text.replace(EARLY, f"      {op}\n{EARLY}"))) is None
    late = text.replace("      %v = gpu", f"      {op}\n      %v = gpu")
    assert found_in(parse_kernel(late)) is not None

"""Products in flight into the next iteration: selection, waits, and empty loops."""

from __future__ import annotations

import re

import numpy as np
import pytest

from aotc.compiler import CompileRequest, compile_kernel
from aotc.ir.core import Kernel, Op
from aotc.ir.dialects import arith, gpu, scf, tma, wgmma
from aotc.schedule.pipelining.overlap_wgmma import overlap_wgmma
from aotc.schedule.shared_memory.allocate_shared import allocate_shared
from aotc.schedule.shared_memory.insert_barriers import insert_barriers
from tests.support.hopper_cases import CASES, constants_of, scalar_of
from tests.support.pass_case import applied, assert_same_meaning
from tests.support.products import Matmul, interpreted


def ops(kernel: Kernel, *classes: type[Op]) -> list[Op]:
    return [op for op in kernel.walk() if isinstance(op, classes)]


def waits(kernel: Kernel) -> list[int]:
    return [op.pending for op in kernel.walk() if isinstance(op, wgmma.WgmmaWait)]


def loop_of(kernel: Kernel) -> scf.For:
    (loop,) = (op for op in kernel.walk() if isinstance(op, scf.For))
    return loop


def test_a_sum_runs_on_and_is_drained_after_the_loop() -> None:
    kernel = interpreted(Matmul())
    assert waits(kernel) == [1, 0]
    loop = loop_of(kernel)
    (drain,) = (user for out in loop.outs for user in out.users if user.opcode == "gpu.wgmma_wait")
    assert drain.block is loop.block


def test_an_iteration_waits_once_and_starts_with_the_product() -> None:
    """One barrier, fenced; then the product, and only then the copies for later iterations."""
    kinds = (gpu.AsyncWait, tma.ProxyFence, gpu.Barrier, wgmma.Wgmma, gpu.AsyncCopy)
    order = [op.opcode for op in loop_of(interpreted(Matmul())).body if isinstance(op, kinds)]
    assert order == [
        *("gpu.async_wait", "gpu.proxy_fence", "gpu.barrier", "gpu.wgmma"),
        *("gpu.async_copy", "gpu.async_copy"),
    ]


@pytest.mark.parametrize(("num_stages", "ahead", "pending"), [(3, 1, 0), (4, 2, 1), (5, 3, 2)])
def test_copies_leave_alone_the_slot_that_is_still_read(
    num_stages: int, ahead: int, pending: int
) -> None:
    loop = loop_of(interpreted(Matmul(shape=(64, 64, 384), num_stages=num_stages)))
    targets = [op.buffer.op for op in loop.body if isinstance(op, gpu.AsyncCopy)]
    assert [op.ahead for op in targets if isinstance(op, gpu.SharedStage)] == [ahead, ahead]
    assert [op.pending for op in loop.body if isinstance(op, gpu.AsyncWait)] == [pending]


def test_two_slots_are_too_few_to_run_on() -> None:
    kernel = interpreted(Matmul(num_stages=2))
    assert waits(kernel) == [0]
    assert len(ops(kernel, gpu.AsyncCopy)) == 4


def test_one_buffer_is_too_few_to_run_on() -> None:
    assert waits(interpreted(Matmul(num_stages=1))) == [0]


def test_two_sums_of_a_loop_run_on_together() -> None:
    kernel = interpreted(Matmul(way="two_sums"))
    assert waits(kernel) == [2, 0]
    assert all(len(op.operands) == 2 for op in ops(kernel, wgmma.WgmmaWait))


def test_what_is_computed_with_a_dot_does_not_run_on() -> None:
    assert set(waits(interpreted(Matmul(way="chained")))) == {0}


def test_sums_in_half_registers_do_not_run_on() -> None:
    assert waits(interpreted(Matmul("fp16", "fp16"))) == [0]


def test_the_first_product_begins_the_sum() -> None:
    kernel = interpreted(Matmul())
    (product,) = ops(kernel, wgmma.Wgmma)
    assert isinstance(product, wgmma.Wgmma)
    assert product.accumulate is not None
    assert isinstance(product.accumulate.op, arith.Compare)
    assert len(ops(kernel, gpu.Undefined)) == 1


def test_a_product_of_its_own_begins_with_nothing() -> None:
    kernel = interpreted(Matmul(way="chained"))
    flags = [op.accumulate for op in kernel.walk() if isinstance(op, wgmma.Wgmma)]
    ignored = [flag for flag in flags if flag is not None and isinstance(flag.op, arith.Constant)]
    assert len(flags) == 2
    assert [flag.op.value for flag in ignored if isinstance(flag.op, arith.Constant)] == [False]


@pytest.mark.parametrize("k", [0, 1, 64, 65])
def test_a_loop_that_may_not_run_is_an_arm_of_a_branch(k: int) -> None:
    """The zeros of the other arm join after the wait, and only there."""
    kernel = interpreted(Matmul(shape=(64, 64, k)))
    loop = loop_of(kernel)
    branch = loop.parent_op
    assert isinstance(branch, scf.If)
    assert [op.pending for op in branch.then if isinstance(op, wgmma.WgmmaWait)] == [0]
    assert [op.opcode for op in branch.orelse] == ["scf.yield"]


def test_scales_come_with_what_they_scale() -> None:
    """One wait is for all, and warpgroups do not wait for each other before they use the product."""
    case = CASES["blockwise"]
    constants = constants_of(case.builds[-1])
    rng = np.random.default_rng(0)
    launch = case.make(rng, scalar_of(case.dtypes[0]), case.shapes[-1], case.builds[-1])
    types = case.types(case.dtypes[0], constants, launch)
    request = CompileRequest(
        *(case.path, case.function, tuple(types.items()), tuple(constants.items()), "sm_90a"),
    )
    lines = compile_kernel(request, keep_asm=True).asm["gpu"].splitlines()
    (start,) = (index for index, line in enumerate(lines) if "gpu.wgmma(" in line)
    end = next(index for index in range(start, len(lines)) if "gpu.wgmma_wait" in lines[index])
    indent = " " * (len(lines[start]) - len(lines[start].lstrip()))
    body = next(index for index in range(start, 0, -1) if not lines[index].startswith(indent))
    assert any("gpu.shared_load" in line for line in lines[body:end])
    assert sum("gpu.mbarrier_wait" in line for line in lines[body:end]) == 1
    always = [line for line in lines[start : end + 8] if line.startswith(f"{indent}gpu.")]
    assert always
    assert not any("gpu.barrier" in line for line in always)


# ---- the resulting IR ---------------------------------------------------------------------------

IN_FLIGHT = """\
// CHECK: [[RUNS:%[0-9]+]] = arith.compare(%zero, %n) {predicate = "lt"}
// CHECK-NEXT: %total, {{.*}} = scf.if([[RUNS]]) () {
// CHECK-NEXT: [[BEGIN:%.*]] = gpu.undefined
// CHECK: [[LAST:%[0-9]+]], {{.*}} = scf.for(%zero, %n, %one, [[BEGIN]], {{.*}} {unroll = 1}
// CHECK-NEXT: gpu.async_wait
// CHECK-NEXT: %a_stage
// CHECK-NEXT: %b_stage
// CHECK-NEXT: [[KEEP:%.*]] = arith.compare(%step, %zero) {predicate = "ne"}
// CHECK-NEXT: %dot = gpu.wgmma(%a_stage, %b_stage, %acc, [[KEEP]])
// CHECK: gpu.async_copy(%a_ptrs
// CHECK: gpu.async_copy(%b_ptrs
// CHECK: %next = gpu.next_stage
// CHECK-NEXT: %sum = gpu.wgmma_wait(%dot) {pending = 1,
// CHECK-NEXT: scf.yield(%sum
// CHECK: [[TOTAL:%.*]] = gpu.wgmma_wait([[LAST]]) {num_columns
// CHECK-NEXT: scf.yield([[TOTAL]]
// CHECK-NEXT: } () {
// CHECK-NEXT: scf.yield(%zeros
"""
AWAITED = """\
// CHECK: scf.if(
// CHECK: scf.for(
// CHECK: %dot = gpu.wgmma(%a_stage
// CHECK: gpu.async_copy(%a_ptrs
// CHECK: %sum = gpu.wgmma_wait(%dot) {num_columns
// CHECK-NEXT: scf.yield(%sum
// CHECK-NOT: gpu.wgmma_wait
"""
LOOP = """\
#0 = #ll<register=[[1],[2],[4],[1024]] lane=[[8],[16],[32],[64],[128]] warp=[[256],[512]] : [2048]>
#1 = #ll<register=[[0,1],[0,2],[0,4],[32,0]] lane=[[0,8],[0,16],[1,0],[2,0],[4,0]] warp=[[8,0],[16,0]] : [64,32]>
#2 = #ll<offset=[[0,1],[0,2],[0,4],[0,8],[0,16],[1,0],[2,8],[4,16],[8,0],[16,0],[32,0]] : [64,32]>
#3 = #ll<register=[[1],[2],[4]] lane=[[8],[16],[32],[64],[128]] warp=[[256],[512]] : [1024]>
#4 = #ll<register=[[0,1],[0,2],[0,4]] lane=[[0,8],[0,16],[1,0],[2,0],[4,0]] warp=[[8,0],[16,0]] : [32,32]>
#5 = #ll<offset=[[0,1],[0,2],[0,4],[0,8],[0,16],[1,0],[2,8],[4,16],[8,0],[16,0]] : [32,32]>
#6 = #ll<register=[[0,1],[8,0],[0,8],[0,16]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[[16,0],[32,0]] : [64,32]>
#7 = #ll<register=[[1],[256],[8],[16]] lane=[[2],[4],[32],[64],[128]] warp=[[512],[1024]] : [2048]>
kernel @k(%x: *fp16 {divisibility = 16}, %y: *fp16 {divisibility = 16}, %out: *fp32, %n: i32) {num_warps = 4} {
  %i = tile.arange {start = 0, end = 2048, layout = #0} : tile<2048xi32, #0>
  %xs = tile.splat(%x) {shape = [2048], layout = #0} : tile<2048x*fp16, #0>
  %flat_a = arith.addptr(%xs, %i) : tile<2048x*fp16, #0>
  %a_first = tile.reshape(%flat_a) {shape = [64, 32]} : tile<64x32x*fp16, #1>
  %a_size = arith.constant {value = 2048, type = tile<64x32xi32, #1>} : tile<64x32xi32, #1>
  %a_second = arith.addptr(%a_first, %a_size) : tile<64x32x*fp16, #1>
  %j = tile.arange {start = 0, end = 1024, layout = #3} : tile<1024xi32, #3>
  %ys = tile.splat(%y) {shape = [1024], layout = #3} : tile<1024x*fp16, #3>
  %flat_b = arith.addptr(%ys, %j) : tile<1024x*fp16, #3>
  %b_first = tile.reshape(%flat_b) {shape = [32, 32]} : tile<32x32x*fp16, #4>
  %b_size = arith.constant {value = 1024, type = tile<32x32xi32, #4>} : tile<32x32xi32, #4>
  %b_second = arith.addptr(%b_first, %b_size) : tile<32x32x*fp16, #4>
  %zero = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
  %last = arith.sub(%n, %one) : i32
  %runs = arith.compare(%zero, %n) {predicate = "lt"} : i1
  %zeros = arith.constant {value = 0.0, type = tile<64x32xfp32, #6>} : tile<64x32xfp32, #6>
  %a_ring = gpu.shared_alloc {element = fp16, shape = [64, 32], layout = #2, alignment_bytes = 1024, num_stages = 3} : shared<64x32xfp16, #2, 3>
  %b_ring = gpu.shared_alloc {element = fp16, shape = [32, 32], layout = #5, alignment_bytes = 1024, num_stages = 3} : shared<32x32xfp16, #5, 3>
  %a_start = gpu.shared_stage(%a_ring, %zero) : shared<64x32xfp16, #2>
  gpu.async_copy(%a_first, %a_start, _, %runs) {vector = 8}
  %b_start = gpu.shared_stage(%b_ring, %zero) : shared<32x32xfp16, #5>
  gpu.async_copy(%b_first, %b_start, _, %runs) {vector = 8}
  gpu.async_commit
  %total, %a_end, %b_end, %end = scf.for(%zero, %n, %one, %zeros, %a_second, %b_second, %zero) (%step: i32, %acc: tile<64x32xfp32, #6>, %a_ptrs: tile<64x32x*fp16, #1>, %b_ptrs: tile<32x32x*fp16, #4>, %index: i32) {
    gpu.async_wait {pending = 0}
    %more = arith.compare(%step, %last) {predicate = "lt"} : i1
    %a_free = gpu.shared_stage(%a_ring, %index) {ahead = 1} : shared<64x32xfp16, #2>
    gpu.async_copy(%a_ptrs, %a_free, _, %more) {vector = 8}
    %b_free = gpu.shared_stage(%b_ring, %index) {ahead = 1} : shared<32x32xfp16, #5>
    gpu.async_copy(%b_ptrs, %b_free, _, %more) {vector = 8}
    gpu.async_commit
    %a_stage = gpu.shared_stage(%a_ring, %index) : shared<64x32xfp16, #2>
    %b_stage = gpu.shared_stage(%b_ring, %index) : shared<32x32xfp16, #5>
    %dot = gpu.wgmma(%a_stage, %b_stage, %acc, _) : tile<64x32xfp32, #6>
    %sum = gpu.wgmma_wait(%dot) {num_columns = [0]} : tile<64x32xfp32, #6>
    %a_next = arith.addptr(%a_ptrs, %a_size) : tile<64x32x*fp16, #1>
    %b_next = arith.addptr(%b_ptrs, %b_size) : tile<32x32x*fp16, #4>
    %next = gpu.next_stage(%index) {num_stages = 3} : i32
    scf.yield(%sum, %a_next, %b_next, %next)
  } : tile<64x32xfp32, #6>, tile<64x32x*fp16, #1>, tile<32x32x*fp16, #4>, i32
  gpu.async_wait {pending = 0}
  %flat = tile.reshape(%total) {shape = [2048]} : tile<2048xfp32, #7>
  %m = tile.arange {start = 0, end = 2048, layout = #7} : tile<2048xi32, #7>
  %os = tile.splat(%out) {shape = [2048], layout = #7} : tile<2048x*fp32, #7>
  %r = arith.addptr(%os, %m) : tile<2048x*fp32, #7>
  gpu.store(%r, %flat, _)
  scf.return
}
"""


@pytest.mark.parametrize(("checks", "num_stages"), [(IN_FLIGHT, 3), (AWAITED, 2)])
def test_a_dot_stays_in_flight_where_its_stages_outlive_the_iteration(
    checks: str, num_stages: int
) -> None:
    """A copy of the next iteration goes to the dot's own stage if there are two."""
    loop = LOOP.replace("num_stages = 3", f"num_stages = {num_stages}")
    text = checks + re.sub(r"(#\d), 3>", rf"\1, {num_stages}>", loop)
    kernel = applied(text, overlap_wgmma)
    for iterations in (0, 1, 2, 4):
        rng = np.random.default_rng(iterations)
        a, b = (rng.integers(-3, 4, iterations * size).astype(np.float16) for size in (2048, 1024))
        args = [a, b, np.full(2048, 77, np.float32), iterations]
        assert_same_meaning(text, kernel, args, lower=(allocate_shared, insert_barriers))

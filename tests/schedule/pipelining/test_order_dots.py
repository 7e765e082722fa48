"""Order and waits of independent dots in an iteration."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from aotc.config import Config
from aotc.ir.text import parse_kernel, print_kernel
from aotc.schedule.context import Schedule
from aotc.schedule.pipelining.order_dots import order_dots
from aotc.schedule.shared_memory.allocate_shared import allocate_shared
from aotc.schedule.shared_memory.insert_barriers import insert_barriers
from aotc.target import TARGETS
from tests.support.descriptors import compiled, launch, like, lowered, tensor
from tests.support.pass_case import applied, assert_same_meaning

REORDERED = "dots are issued before others are waited for"

CHECKS = """\
// CHECK: scf.for(
// CHECK: gpu.mbarrier_wait(%x_filled,
// CHECK: %s = gpu.wgmma(%a, %a, %fresh, %never)
// CHECK: gpu.mbarrier_wait(%y_filled,
// CHECK: %t = gpu.wgmma(%b, %b, %fresh, %never)
// CHECK: %score = gpu.wgmma_wait(%s) {pending = 1,
// CHECK: %weight = arith.cast(
// CHECK: %added = gpu.wgmma(%weight, %b, %acc, %always)
// CHECK: %other = gpu.wgmma_wait(%t) {pending = 1,
// CHECK: %sum = arith.add(%total, %other)
// CHECK: %complete = gpu.wgmma_wait(%added) {num_columns
// CHECK: gpu.mbarrier_arrive(%y_read,
// CHECK: scf.yield(
"""
LOOP = """\
#0 = #ll<offset=[[0,1],[0,2],[0,4],[0,8],[0,16],[0,32],[1,8],[2,16],[4,32],[8,0],[16,0],[32,0]] : [64,64]>
#1 = #ll<offset=[] : [1]>
#2 = #ll<register=[[0,1],[8,0],[0,8],[0,16],[0,32]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[[16,0],[32,0]] : [64,64]>
#3 = #ll<register=[[1],[512],[8],[16],[32]] lane=[[2],[4],[64],[128],[256]] warp=[[1024],[2048]] : [4096]>
kernel @k(%x: map<64x64xfp16, 128>, %y: map<64x64xfp16, 128>, %out: *fp32, %n: i32) {num_warps = 4, producer_warps = 1} {
  %a_ring = gpu.shared_alloc {element = fp16, shape = [64, 64], layout = #0, alignment_bytes = 1024, num_stages = STAGES} : shared<64x64xfp16, #0, STAGES>
  %b_ring = gpu.shared_alloc {element = fp16, shape = [64, 64], layout = #0, alignment_bytes = 1024, num_stages = STAGES} : shared<64x64xfp16, #0, STAGES>
  %x_full = gpu.shared_alloc {element = u64, shape = [1], layout = #1, alignment_bytes = 8, num_stages = STAGES} : shared<1xu64, #1, STAGES>
  %x_empty = gpu.shared_alloc {element = u64, shape = [1], layout = #1, alignment_bytes = 8, num_stages = STAGES} : shared<1xu64, #1, STAGES>
  %y_full = gpu.shared_alloc {element = u64, shape = [1], layout = #1, alignment_bytes = 8, num_stages = STAGES} : shared<1xu64, #1, STAGES>
  %y_empty = gpu.shared_alloc {element = u64, shape = [1], layout = #1, alignment_bytes = 8, num_stages = STAGES} : shared<1xu64, #1, STAGES>
  gpu.mbarrier_init(%x_full)
  gpu.mbarrier_init(%x_empty) {count = 4}
  gpu.mbarrier_init(%y_full)
  gpu.mbarrier_init(%y_empty) {count = 4}
  gpu.barrier
  gpu.specialize () {
    %zero = arith.constant {value = 0, type = i32} : i32
    %one = arith.constant {value = 1, type = i32} : i32
    %none = arith.constant {value = 0.0, type = tile<64x64xfp32, #2>} : tile<64x64xfp32, #2>
    %half = arith.constant {value = 0.5, type = tile<64x64xfp32, #2>} : tile<64x64xfp32, #2>
    %fresh = gpu.undefined {type = tile<64x64xfp32, #2>} : tile<64x64xfp32, #2>
    %never = arith.constant {value = false, type = i1} : i1
    %always = arith.constant {value = true, type = i1} : i1
    %end, %all, %m, %n_end, %m_end, %n_last = scf.for(%zero, %n, %one, %none, %none, %zero, %zero, %zero, %zero) {unroll = 1} (%k: i32, %acc: tile<64x64xfp32, #2>, %total: tile<64x64xfp32, #2>, %x_index: i32, %x_phase: i32, %y_index: i32, %y_phase: i32) {
      %x_filled = gpu.shared_stage(%x_full, %x_index) : shared<1xu64, #1>
      gpu.mbarrier_wait(%x_filled, %x_phase)
      %a = gpu.shared_stage(%a_ring, %x_index) : shared<64x64xfp16, #0>
      %s = gpu.wgmma(%a, %a, %fresh, %never) : tile<64x64xfp32, #2>
      %score = gpu.wgmma_wait(%s) {num_columns = [0]} : tile<64x64xfp32, #2>
      %x_read = gpu.shared_stage(%x_empty, %x_index) : shared<1xu64, #1>
      gpu.mbarrier_arrive(%x_read, _) {count = 4}
      %scaled = arith.mul(%score, %half) : tile<64x64xfp32, #2>
      %weight = arith.cast(%scaled) {dtype = fp16} : tile<64x64xfp16, #2>
      %y_filled = gpu.shared_stage(%y_full, %y_index) : shared<1xu64, #1>
      gpu.mbarrier_wait(%y_filled, %y_phase)
      %b = gpu.shared_stage(%b_ring, %y_index) : shared<64x64xfp16, #0>
      %added = gpu.wgmma(%weight, %b, %acc, %always) : tile<64x64xfp32, #2>
      %complete = gpu.wgmma_wait(%added) {num_columns = [0]} : tile<64x64xfp32, #2>
      %t = gpu.wgmma(%b, %b, %fresh, %never) : tile<64x64xfp32, #2>
      %other = gpu.wgmma_wait(%t) {num_columns = [0]} : tile<64x64xfp32, #2>
      %y_read = gpu.shared_stage(%y_empty, %y_index) : shared<1xu64, #1>
      gpu.mbarrier_arrive(%y_read, _) {count = 4}
      %sum = arith.add(%total, %other) : tile<64x64xfp32, #2>
      %x_next = gpu.next_stage(%x_index) {num_stages = STAGES} : i32
      %x_wraps = arith.compare(%x_next, %zero) {predicate = "eq"} : i1
      %x_flip = arith.cast(%x_wraps) {dtype = i32} : i32
      %x_flipped = arith.xor(%x_phase, %x_flip) : i32
      %y_next = gpu.next_stage(%y_index) {num_stages = STAGES} : i32
      %y_wraps = arith.compare(%y_next, %zero) {predicate = "eq"} : i1
      %y_flip = arith.cast(%y_wraps) {dtype = i32} : i32
      %y_flipped = arith.xor(%y_phase, %y_flip) : i32
      scf.yield(%complete, %sum, %x_next, %x_flipped, %y_next, %y_flipped)
    } : tile<64x64xfp32, #2>, tile<64x64xfp32, #2>, i32, i32, i32, i32
    %both = arith.add(%end, %all) : tile<64x64xfp32, #2>
    %flat = tile.reshape(%both) {shape = [4096]} : tile<4096xfp32, #3>
    %at = tile.arange {start = 0, end = 4096, layout = #3} : tile<4096xi32, #3>
    %os = tile.splat(%out) {shape = [4096], layout = #3} : tile<4096x*fp32, #3>
    %r = arith.addptr(%os, %at) : tile<4096x*fp32, #3>
    gpu.store(%r, %flat, _)
    scf.yield()
  } () {
    %zero_p = arith.constant {value = 0, type = i32} : i32
    %one_p = arith.constant {value = 1, type = i32} : i32
    %size = arith.constant {value = 64, type = i32} : i32
    %end_p, %last_p = scf.for(%zero_p, %n, %one_p, %zero_p, %zero_p) {unroll = 1} (%k_p: i32, %index_p: i32, %phase_p: i32) {
      %at_p = arith.mul(%k_p, %size) : i32
      %before = arith.xor(%phase_p, %one_p) : i32
      %x_free = gpu.shared_stage(%x_empty, %index_p) : shared<1xu64, #1>
      gpu.mbarrier_wait(%x_free, %before)
      %x_fill = gpu.shared_stage(%x_full, %index_p) : shared<1xu64, #1>
      %a_free = gpu.shared_stage(%a_ring, %index_p) : shared<64x64xfp16, #0>
      gpu.tma_load(%x, %a_free, %x_fill, %zero_p, %at_p)
      %y_free = gpu.shared_stage(%y_empty, %index_p) : shared<1xu64, #1>
      gpu.mbarrier_wait(%y_free, %before)
      %y_fill = gpu.shared_stage(%y_full, %index_p) : shared<1xu64, #1>
      %b_free = gpu.shared_stage(%b_ring, %index_p) : shared<64x64xfp16, #0>
      gpu.tma_load(%y, %b_free, %y_fill, %at_p, %zero_p)
      %next_p = gpu.next_stage(%index_p) {num_stages = STAGES} : i32
      %wraps_p = arith.compare(%next_p, %zero_p) {predicate = "eq"} : i1
      %flip_p = arith.cast(%wraps_p) {dtype = i32} : i32
      %flipped_p = arith.xor(%phase_p, %flip_p) : i32
      scf.yield(%next_p, %flipped_p)
    } : i32, i32
    scf.yield()
  }
  scf.return
}
"""


def _loop(num_stages: int) -> str:
    return LOOP.replace("STAGES", str(num_stages))


def test_dots_that_need_nothing_come_first_and_waits_come_late() -> None:
    text = CHECKS + _loop(2)
    kernel = applied(text, order_dots, config=Config(4))
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((64, 320), (320, 64)))
    for iterations in (0, 1, 2, 5):
        args = [x, y, np.full(4096, 77, np.float32), iterations]
        assert_same_meaning(text, kernel, args, lower=(allocate_shared, insert_barriers))


def _rewritten(text: str) -> str:
    kernel = parse_kernel(text)
    order_dots(kernel, Schedule(TARGETS["sm_90a"], Config(4)))
    return print_kernel(kernel)


def test_in_order_there_is_nothing_to_do() -> None:
    once = _rewritten(_loop(2))
    assert once != print_kernel(parse_kernel(_loop(2)))
    assert _rewritten(once) == once


def test_dots_whose_results_take_too_many_registers_stay() -> None:
    """Two carried tiles, a result and an operand take 112 of a thread, and more is needed for addresses."""
    text = _loop(2).replace("producer_warps = 1", "producer_warps = 1, maxnreg = 136")
    assert _rewritten(text) == print_kernel(parse_kernel(text))
    text = text.replace("136", "144")
    assert _rewritten(text) != print_kernel(parse_kernel(text))


SOURCE = """def k(a, b, c, d, n):
    row = tl.program_id(0) * 64
    query = a.load([row, 0])
    total = tl.zeros((64, 64), tl.float32)
    for key in range(0, n, 64):
        keys = b.load([key, 0])
        score = tl.dot(query, keys.T)
        values = c.load([key, 0])
        total = tl.dot((score * 0.5).to(tl.float16), values, total)
        other = tl.dot(query, values.T)
        total += tl.maximum(other, 0.0) * 0.25
    d.store([row, 0], total)
"""
SIGNATURE = {
    **dict.fromkeys("abc", "tensordesc<fp16[64,64]>"),
    "d": "tensordesc<fp32[64,64]>",
    "n": "i32",
}


@pytest.mark.emulated
@pytest.mark.parametrize("num_stages", [1, 2, 3])
@pytest.mark.parametrize("warp_specialize", [None, False])
def test_stages_are_waited_for_before_a_dot_that_moves_up(
    tmp_path: Path, num_stages: int, *, warp_specialize: bool | None
) -> None:
    """A producer's ring may have one stage; without a producer each copy of one stage is waited for alone."""
    options = {"num_stages": num_stages, "warp_specialize": warp_specialize}
    kernel = compiled(tmp_path, SOURCE, SIGNATURE, **options)
    for n in (1, 64, 65, 200, 64 * 5):
        a, b, c = (
            tensor(shape, "fp16", seed=n + index) / np.float16(64)
            for index, shape in enumerate(((64, 64), (n, 64), (n, 64)))
        )
        d = like(tensor((64, 64), "fp32"))
        launch(kernel, (1,), {"a": a, "b": b, "c": c, "d": d, "n": n}, seed=n)
        score, other = (a.astype(np.float64) @ matrix.astype(np.float64).T for matrix in (b, c))
        expected = score * 0.5 @ c.astype(np.float64)
        for first in range(0, n, 64):
            part = np.maximum(other[:, first : first + 64], 0.0)
            expected[:, : part.shape[1]] += part * 0.25
        np.testing.assert_allclose(d, expected, rtol=0, atol=2e-2 * np.abs(expected).max())


def test_remarks_and_waits_say_so(tmp_path: Path) -> None:
    text, remarks = lowered(tmp_path, SOURCE, SIGNATURE, 4, num_stages=2)
    assert REORDERED in remarks
    ops = re.findall(r"gpu\.(wgmma_wait|wgmma)\(", text)
    assert ops == ["wgmma", "wgmma", "wgmma_wait", "wgmma", "wgmma_wait", "wgmma_wait"]


def test_without_a_producer_they_are_reordered_too(tmp_path: Path) -> None:
    """Not where an iteration has its own buffers and waits for their copies one by one."""
    expected = {
        1: ["wgmma", "wgmma_wait"] * 3,
        2: ["wgmma", "wgmma", "wgmma_wait", "wgmma", "wgmma_wait", "wgmma_wait"],
    }
    for num_stages, ops in expected.items():
        options = {"num_stages": num_stages, "warp_specialize": False}
        text, remarks = lowered(tmp_path, SOURCE, SIGNATURE, 4, **options)
        assert (REORDERED in remarks) == (num_stages > 1)
        assert re.findall(r"gpu\.(wgmma_wait|wgmma)\(", text) == ops


def test_the_last_dot_runs_while_others_are_stored(tmp_path: Path) -> None:
    """It is waited for where the iteration ends."""
    source = SOURCE[: SOURCE.index("        total = tl.dot(")]
    source += """        weight = (score * 0.5).to(tl.float16)
        d.atomic_add([key, 0], tl.dot(weight.T, query))
        total = tl.dot(weight, values, total)
    d.store([row, 0], total)
"""
    text, remarks = lowered(tmp_path, source, SIGNATURE, 4, num_stages=2)
    assert REORDERED in remarks
    ops = re.findall(r"gpu\.(wgmma_wait|wgmma|tma_reduce)\(", text)
    before, after = ["wgmma", "wgmma_wait"], ["wgmma", "wgmma", "wgmma_wait"]
    assert ops == [*before, *after, "tma_reduce", "wgmma_wait"]

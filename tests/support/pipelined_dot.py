"""IR text of a loop with dot operands copied an iteration ahead, through two stages."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_HEAD = """\
#0 = #ll<register=[[1],[2],[4],[256]] lane=[[8],[16],[32],[64],[128]] warp=[] : [512]>
#1 = #ll<register=[[0,1],[0,2],[0,4],[8,0]] lane=[[0,8],[0,16],[1,0],[2,0],[4,0]] warp=[] : [16,32]>
#2 = #ll<offset=[[0,1],[0,2],[0,4],[0,8],[0,16],[1,0],[2,0],[4,0],[8,0]] : [16,32]>
#3 = #ll<register=[[0,1],[8,0],[0,8]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[] : [16,16]>
#4 = #ll<register=[[1],[2],[4]] lane=[[8],[16],[32],[64],[128]] warp=[] : [256]>
#5 = #ll<register=[[0,1],[0,2],[0,4]] lane=[[1,0],[2,0],[4,0],[8,0],[16,0]] warp=[] : [32,8]>
#6 = #ll<offset=[[0,1],[0,2],[0,4],[1,0],[2,0],[4,0],[8,0],[16,0]] : [32,8]>
#7 = #ll<register=[[1,0],[8,0]] lane=[[2,0],[4,0],[0,1],[0,2],[0,4]] warp=[] : [16,8]>
#8 = #ll<register=[[0,1],[8,0]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[] : [16,8]>
#9 = #ll<register=[[1],[64]] lane=[[2],[4],[8],[16],[32]] warp=[] : [128]>
kernel @k(%x: *fp16 {divisibility = 16}, %y: *fp16 {divisibility = 16}, %out: *fp32, %n: i32) {num_warps = 1} {
  %i = tile.arange {start = 0, end = 512, layout = #0} : tile<512xi32, #0>
  %xs = tile.splat(%x) {shape = [512], layout = #0} : tile<512x*fp16, #0>
  %flat_a = arith.addptr(%xs, %i) : tile<512x*fp16, #0>
  %a_first = tile.reshape(%flat_a) {shape = [16, 32]} : tile<16x32x*fp16, #1>
  %a_size = arith.constant {value = 512, type = tile<16x32xi32, #1>} : tile<16x32xi32, #1>
  %a_second = arith.addptr(%a_first, %a_size) : tile<16x32x*fp16, #1>
  %j = tile.arange {start = 0, end = 256, layout = #4} : tile<256xi32, #4>
  %ys = tile.splat(%y) {shape = [256], layout = #4} : tile<256x*fp16, #4>
  %flat_b = arith.addptr(%ys, %j) : tile<256x*fp16, #4>
  %b_first = tile.reshape(%flat_b) {shape = [32, 8]} : tile<32x8x*fp16, #5>
  %b_size = arith.constant {value = 256, type = tile<32x8xi32, #5>} : tile<32x8xi32, #5>
  %b_second = arith.addptr(%b_first, %b_size) : tile<32x8x*fp16, #5>
  %zero = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
  %last = arith.sub(%n, %one) : i32
  %runs = arith.compare(%zero, %n) {predicate = "lt"} : i1
  %empty = arith.constant {value = 0.0, type = tile<16x8xfp32, #8>} : tile<16x8xfp32, #8>
  %a_ring = gpu.shared_alloc {element = fp16, shape = [16, 32], layout = #2, num_stages = 2} : shared<16x32xfp16, #2, 2>
  %b_ring = gpu.shared_alloc {element = fp16, shape = [32, 8], layout = #6, num_stages = 2} : shared<32x8xfp16, #6, 2>
  %a_start = gpu.shared_stage(%a_ring, %zero) : shared<16x32xfp16, #2>
  gpu.async_copy(%a_first, %a_start, _, %runs) {vector = 8}
  %b_start = gpu.shared_stage(%b_ring, %zero) : shared<32x8xfp16, #6>
  gpu.async_copy(%b_first, %b_start, _, %runs) {vector = 8}
  gpu.async_commit
  %total, %a_end, %b_end, %end = scf.for(%zero, %n, %one, %empty, %a_second, %b_second, %zero) (%step: i32, %acc: tile<16x8xfp32, #8>, %a_ptrs: tile<16x32x*fp16, #1>, %b_ptrs: tile<32x8x*fp16, #5>, %index: i32) {
    gpu.async_wait {pending = 0}
    %a_stage = gpu.shared_stage(%a_ring, %index) : shared<16x32xfp16, #2>
    %b_stage = gpu.shared_stage(%b_ring, %index) : shared<32x8xfp16, #6>
    %more = arith.compare(%step, %last) {predicate = "lt"} : i1
    %a_free = gpu.shared_stage(%a_ring, %index) {ahead = 1} : shared<16x32xfp16, #2>
    gpu.async_copy(%a_ptrs, %a_free, _, %more) {vector = 8}
    %b_free = gpu.shared_stage(%b_ring, %index) {ahead = 1} : shared<32x8xfp16, #6>
    gpu.async_copy(%b_ptrs, %b_free, _, %more) {vector = 8}
    gpu.async_commit
"""
_TAIL = """\
    %a_next = arith.addptr(%a_ptrs, %a_size) : tile<16x32x*fp16, #1>
    %b_next = arith.addptr(%b_ptrs, %b_size) : tile<32x8x*fp16, #5>
    %next = gpu.next_stage(%index) {num_stages = 2} : i32
    scf.yield(%sum, %a_next, %b_next, %next)
  } : tile<16x8xfp32, #8>, tile<16x32x*fp16, #1>, tile<32x8x*fp16, #5>, i32
  gpu.async_wait {pending = 0}
  %flat = tile.reshape(%total) {shape = [128]} : tile<128xfp32, #9>
  %m = tile.arange {start = 0, end = 128, layout = #9} : tile<128xi32, #9>
  %os = tile.splat(%out) {shape = [128], layout = #9} : tile<128x*fp32, #9>
  %r = arith.addptr(%os, %m) : tile<128x*fp32, #9>
  gpu.store(%r, %flat, _)
  scf.return
}
"""
_SLICES = """\
    %a = gpu.shared_load(%a_stage) {layout = #3, vector = 2, start = [0, 0]} : tile<16x16xfp16, #3>
    %b = gpu.shared_load(%b_stage) {layout = #7, start = [0, 0]} : tile<16x8xfp16, #7>
    %c = gpu.shared_load(%a_stage) {layout = #3, vector = 2, start = [0, 16]} : tile<16x16xfp16, #3>
    %d = gpu.shared_load(%b_stage) {layout = #7, start = [16, 0]} : tile<16x8xfp16, #7>
"""


def pipelined_dots(*operands: str) -> str:
    """Return a kernel with a loop of dots of `operands`: two letters each, of A "ac" and B "bd"."""
    lines: list[str] = []
    acc = "%acc"
    for number, (left, right) in enumerate(operands, 1):
        out = "%sum" if number == len(operands) else f"%part{number}"
        dot = f"gpu.dot(%{left}, %{right}, {acc}) {{shape = [16, 8, 16]}}"
        lines.append(f"    {out} = {dot} : tile<16x8xfp32, #8>\n")
        acc = out
    return "".join((_HEAD, _SLICES, *lines, _TAIL))


def dot_args(iterations: int) -> list[npt.NDArray[np.generic] | int | float]:
    """Return arguments for so many iterations: A and B of the exact size, then poison."""
    rng = np.random.default_rng(iterations)
    a, b = (rng.integers(-3, 4, iterations * size).astype(np.float16) for size in (512, 256))
    return [a, b, np.full(128, 77, np.float32), iterations]

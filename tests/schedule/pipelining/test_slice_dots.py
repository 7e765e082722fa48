"""Dots sliced along K: their slices, permitted moves, and register use."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aotc.compiler import CompileRequest, compile_kernel
from aotc.config import Config
from aotc.ir.core import Kernel, Value
from aotc.ir.dialects import arith, gpu
from aotc.ir.rewrite import Builder
from aotc.ir.types import FP8E4NV, FP16, FP32, I32, ScalarType, TileType
from aotc.ir.verify import verify
from aotc.schedule.context import Schedule
from aotc.schedule.layout.conversions import plan_shared_exchange
from aotc.schedule.layout.layouts import blocked_for, dot_operand, mma_v2
from aotc.schedule.pipelining.slice_dots import slice_dots
from aotc.schedule.shared_memory.allocate_shared import allocate_shared
from aotc.schedule.shared_memory.insert_barriers import insert_barriers
from aotc.target import TARGETS
from tests.backend.programs import Program
from tests.support.pass_case import applied, assert_same_meaning

M, N, K = 32, 32, 64
WARPS = (2, 2)


class _Product:
    """Build a product with operands in stages of shared buffers."""

    def __init__(self, element: ScalarType = FP16, stages: int = 2) -> None:
        self.program = Program(4)
        self.add: Builder = self.program.add
        self.index = self.add(arith.Constant(0, I32)).out
        bits = element.bits
        self.layouts = [dot_operand(0, (M, K), WARPS, bits), dot_operand(1, (K, N), WARPS, bits)]
        self.buffers: list[gpu.SharedAlloc] = []
        self.vectors: list[tuple[int, object]] = []
        for layout, order in zip(self.layouts, ((1, 0), (0, 1)), strict=True):
            elems = [1, 1]
            elems[order[0]] = 128 // bits
            source = blocked_for(layout.shape, (elems[0], elems[1]), 4, order)
            trip = plan_shared_exchange(source, layout, bits, run_elems=128 // bits)
            self.vectors.append((trip.load_vector_elems, trip.load_matrix))
            alloc = gpu.SharedAlloc(element, layout.shape, trip.scratch, num_stages=stages)
            self.buffers.append(self.add(alloc))
        kind = TileType(FP32, (M, N), mma_v2((M, N), WARPS))
        self.acc = self.add(arith.Constant(0.0, kind)).out

    def stage(self, operand: int, ahead: int = 0) -> Value:
        return self.add(gpu.SharedStage(self.buffers[operand].out, self.index, ahead)).out

    def load(self, operand: int) -> Value:
        vector, matrix = self.vectors[operand]
        load = gpu.SharedLoad(self.stage(operand), self.layouts[operand], vector, matrix)  # type: ignore[arg-type]
        return self.add(load).out

    def finish(
        self,
        a: Value,
        b: Value,
        k: int = 16,
        max_num_imprecise_acc: int = 0,
        target: str = "sm_90a",
    ) -> Kernel:
        dot = gpu.Dot(a, b, self.acc, (16, 8, k), max_num_imprecise_acc=max_num_imprecise_acc)
        self.program.store(self.add(dot).out)
        kernel = self.program.kernel()
        slice_dots(kernel, Schedule(TARGETS[target]))
        verify(kernel)
        return kernel


def sequence(kernel: Kernel) -> str:
    """Return the loads from shared memory (L), products (D) and writes (W) in their order."""
    letters = {gpu.SharedLoad: "L", gpu.Dot: "D", gpu.SharedStore: "W"}
    return "".join(letters.get(type(op), "") for op in kernel.walk())


def test_the_next_parts_are_read_before_this_one_is_multiplied() -> None:
    product = _Product()
    kernel = product.finish(product.load(0), product.load(1))
    assert sequence(kernel) == "LLLLDLLDLLDD"
    starts = [op.start for op in kernel.walk() if isinstance(op, gpu.SharedLoad) and op.start]
    assert starts[::2] == [(0, 0), (0, 16), (0, 32), (0, 48)]
    assert starts[1::2] == [(0, 0), (16, 0), (32, 0), (48, 0)]


def test_what_is_elementwise_on_the_way_is_cut_too() -> None:
    product = _Product()
    b = product.add(arith.Neg(product.load(1))).out
    kernel = product.finish(product.load(0), b)
    assert sequence(kernel) == "LLLLDLLDLLDD"
    cut = [op for op in kernel.walk() if isinstance(op, arith.Neg)]
    assert [op.out.type.shape for op in cut] == [(16, N)] * 4  # type: ignore[union-attr]


def test_what_others_use_too_is_cut_in_registers() -> None:
    product = _Product()
    a = product.load(0)
    product.program.store(a)
    kernel = product.finish(a, product.load(1))
    assert sequence(kernel) == "LLLDLDLDD"
    assert sum(isinstance(op, gpu.Extract) for op in kernel.walk()) == 4


@pytest.mark.parametrize(("ahead", "moves"), [(0, False), (1, True)])
def test_a_load_moves_past_writes_to_other_slots_only(ahead: int, *, moves: bool) -> None:
    product = _Product()
    a, b = product.load(0), product.load(1)
    stored = product.program.load(FP16, product.layouts[0])
    product.add(gpu.SharedStore(stored, product.stage(0, ahead)))
    kernel = product.finish(a, b)
    assert sequence(kernel) == ("WLLLLDLLDLLDD" if moves else "LWLLDLDLDD")


def test_what_is_in_registers_is_not_cut() -> None:
    product = _Product()
    a, b = (product.program.load(FP16, layout) for layout in product.layouts)
    kernel = product.finish(a, b)
    assert sequence(kernel) == "D"


@pytest.mark.parametrize(
    ("target", "limit", "sums"),
    [
        *(("sm_89", 0, 0), ("sm_89", 1, 2), ("sm_89", 32, 2), ("sm_89", 63, 2), ("sm_89", 64, 1)),
        *(("sm_120a", 64, 1), ("sm_90a", 32, 0), ("sm_90a", 64, 0)),
    ],
)
def test_few_products_of_fp8_are_summed_apart(target: str, limit: int, sums: int) -> None:
    """Where a warp's sums may have few bits; on Hopper those of fp16."""
    product = _Product(FP8E4NV)
    kernel = product.finish(
        product.load(0), product.load(1), 32, max_num_imprecise_acc=limit, target=target
    )
    assert sum(isinstance(op, arith.Add) for op in kernel.walk()) == sums
    assert sequence(kernel) == "LLLLDD"


TEXT = """\
// CHECK: %a = gpu.shared_load(%a_buffer) {{.*}}start = [0, 0]} : tile<16x16xfp16
// CHECK-NEXT: %b = gpu.shared_load(%b_buffer) {{.*}}start = [0, 0]} : tile<16x8xfp16
// CHECK-NEXT: [[A:%.*]] = gpu.shared_load(%a_buffer) {{.*}}start = [0, 16]} : tile<16x16xfp16
// CHECK-NEXT: [[B:%.*]] = gpu.shared_load(%b_buffer) {{.*}}start = [16, 0]} : tile<16x8xfp16
// CHECK-NEXT: [[PART:%.*]] = gpu.dot(%a, %b, %zero)
// CHECK-NEXT: %c = gpu.dot([[A]], [[B]], [[PART]])
// CHECK-NOT: gpu.dot(
#0 = #ll<register=[[1],[2],[4],[256]] lane=[[8],[16],[32],[64],[128]] warp=[] : [512]>
#1 = #ll<register=[[0,1],[0,2],[0,4],[8,0]] lane=[[0,8],[0,16],[1,0],[2,0],[4,0]] warp=[] : [16,32]>
#2 = #ll<offset=[[0,1],[0,2],[0,4],[0,8],[0,16],[1,0],[2,0],[4,0],[8,0]] : [16,32]>
#3 = #ll<register=[[0,1],[8,0],[0,8],[0,16]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[] : [16,32]>
#4 = #ll<register=[[1],[2],[4]] lane=[[8],[16],[32],[64],[128]] warp=[] : [256]>
#5 = #ll<register=[[0,1],[0,2],[0,4]] lane=[[1,0],[2,0],[4,0],[8,0],[16,0]] warp=[] : [32,8]>
#6 = #ll<offset=[[0,1],[0,2],[0,4],[1,0],[2,0],[4,0],[8,0],[16,0]] : [32,8]>
#7 = #ll<register=[[1,0],[8,0],[16,0]] lane=[[2,0],[4,0],[0,1],[0,2],[0,4]] warp=[] : [32,8]>
#8 = #ll<register=[[0,1],[8,0]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[] : [16,8]>
#9 = #ll<register=[[1],[64]] lane=[[2],[4],[8],[16],[32]] warp=[] : [128]>
kernel @k(%x: *fp16 {divisibility = 16}, %y: *fp16 {divisibility = 16}, %out: *fp32 {divisibility = 16}) {num_warps = 1} {
  %i = tile.arange {start = 0, end = 512, layout = #0} : tile<512xi32, #0>
  %xs = tile.splat(%x) {shape = [512], layout = #0} : tile<512x*fp16, #0>
  %p = arith.addptr(%xs, %i) : tile<512x*fp16, #0>
  %flat_a = gpu.load(%p, _, _) {vector = 8} : tile<512xfp16, #0>
  %held_a = tile.reshape(%flat_a) {shape = [16, 32]} : tile<16x32xfp16, #1>
  %a_buffer = gpu.shared_alloc {element = fp16, shape = [16, 32], layout = #2} : shared<16x32xfp16, #2>
  gpu.shared_store(%held_a, %a_buffer) {vector = 8}
  %j = tile.arange {start = 0, end = 256, layout = #4} : tile<256xi32, #4>
  %ys = tile.splat(%y) {shape = [256], layout = #4} : tile<256x*fp16, #4>
  %q = arith.addptr(%ys, %j) : tile<256x*fp16, #4>
  %flat_b = gpu.load(%q, _, _) {vector = 8} : tile<256xfp16, #4>
  %held_b = tile.reshape(%flat_b) {shape = [32, 8]} : tile<32x8xfp16, #5>
  %b_buffer = gpu.shared_alloc {element = fp16, shape = [32, 8], layout = #6} : shared<32x8xfp16, #6>
  gpu.shared_store(%held_b, %b_buffer) {vector = 8}
  %a = gpu.shared_load(%a_buffer) {layout = #3, vector = 2} : tile<16x32xfp16, #3>
  %b = gpu.shared_load(%b_buffer) {layout = #7} : tile<32x8xfp16, #7>
  %zero = arith.constant {value = 0.0, type = tile<16x8xfp32, #8>} : tile<16x8xfp32, #8>
  %c = gpu.dot(%a, %b, %zero) {shape = [16, 8, 16]} : tile<16x8xfp32, #8>
  %flat = tile.reshape(%c) {shape = [128]} : tile<128xfp32, #9>
  %m = tile.arange {start = 0, end = 128, layout = #9} : tile<128xi32, #9>
  %os = tile.splat(%out) {shape = [128], layout = #9} : tile<128x*fp32, #9>
  %r = arith.addptr(%os, %m) : tile<128x*fp32, #9>
  gpu.store(%r, %flat, _)
  scf.return
}
"""


def test_fragments_of_a_slice_are_read_before_the_slice_before_is_multiplied() -> None:
    kernel = applied(TEXT, slice_dots, target="sm_80")
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-3, 4, size).astype(np.float16) for size in (512, 256))
    args = [a, b, np.full(128, 77, np.float32)]
    assert_same_meaning(TEXT, kernel, args, lower=(allocate_shared, insert_barriers))


# ---- purpose ----------------------------------------------------------------------------------

SOURCE = """
import triton
import triton.language as tl


@triton.jit
def matmul(a_ptr, b_ptr, out_ptr, K, stride_a, stride_b, stride_out,
           M: tl.constexpr, N: tl.constexpr, BLOCK_K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + m[:, None] * stride_a + k[None, :]
    b_ptrs = b_ptr + k[:, None] * stride_b + n[None, :]
    acc = tl.zeros((M, N), tl.float32)
    for start in range(0, K, BLOCK_K):
        acc = tl.dot(tl.load(a_ptrs), tl.load(b_ptrs), acc)
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K * stride_b
    tl.store(out_ptr + m[:, None] * stride_out + n[None, :], acc.to(tl.bfloat16))
"""


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("m", "n", "k", "num_warps"), [(128, 128, 32, 4), (128, 256, 64, 8)])
def test_standard_tiles_spill_nothing(
    tmp_path: Path, target: str, m: int, n: int, k: int, num_warps: int
) -> None:
    source = tmp_path / "matmul.py"
    source.write_text(SOURCE)
    pointers = [(name, "*bf16:16") for name in ("a_ptr", "b_ptr", "out_ptr")]
    sizes = [(name, "i32:16") for name in ("K", "stride_a", "stride_b", "stride_out")]
    constants = (("M", m), ("N", n), ("BLOCK_K", k))
    request = CompileRequest(
        *(str(source), "matmul", (*pointers, *sizes), constants, target),
        config=Config(num_warps),
        without=("wgmma",),
    )
    compiled_kernel = compile_kernel(request)
    assert compiled_kernel.metadata.spill_bytes == compiled_kernel.metadata.stack_bytes == 0
    assert compiled_kernel.metadata.ptxas_warnings == ()
    mma = compiled_kernel.asm["ptx"].count("mma.sync.aligned.m16n8k16")
    assert mma == m * n * k // (16 * 8 * 16) // num_warps
    # A warp reads its rows of A and columns of B once an iteration, four matrices at a time. The
    # first part of K is read before the loop.
    assert compiled_kernel.asm["ptx"].count("ldmatrix") * num_warps * 4 * 64 == (k + 16) * (
        m * (2 if num_warps == 4 else 4) + n * 2
    )

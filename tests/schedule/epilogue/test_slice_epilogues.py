"""Sliced epilogues: conditions, order of slices, and results."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.core import Kernel, Op
from aotc.ir.dialects import arith, gpu, tile
from aotc.ir.types import FP16, FP32, PointerType, TileType
from aotc.ir.verify import verify
from aotc.schedule.context import Schedule
from aotc.schedule.epilogue.slice_epilogues import slice_epilogues
from aotc.schedule.layout.conversions import plan_shared_exchange
from aotc.schedule.layout.layouts import blocked_for, mma_v2
from aotc.target import TARGETS
from aotc.verify.interpreter.run import run
from tests.backend.programs import Program
from tests.support.pass_case import applied, assert_same_meaning

WARPS = 4  # of 32 threads, so a tile of 8192 elements is 64 of each
LARGE, SMALL = (128, 64), (64, 64)


def epilogue(
    shape: tuple[int, int], *, overwrites: bool = False, uses_twice: bool = False
) -> Kernel:
    """Return `out = fp16(acc * acc + residual)`, the residual moved through shared memory."""
    program = Program(WARPS)
    add = program.add
    fragment, coalesced = mma_v2(shape, (2, 2)), blocked_for(shape, (1, 8), WARPS, (1, 0))
    trip = plan_shared_exchange(coalesced, fragment, FP16.bits, run_elems=8)
    acc, residual = program.load(FP32, fragment), program.load(FP16, coalesced)
    buffer = add(gpu.SharedAlloc(FP16, shape, trip.scratch)).out
    add(gpu.SharedStore(residual, buffer, trip.store_vector_elems, trip.store_matrix))
    add(gpu.Barrier())
    back = add(gpu.SharedLoad(buffer, fragment, trip.load_vector_elems, trip.load_matrix)).out
    if overwrites:
        add(gpu.Barrier())
        zeros = add(arith.Constant(0.0, TileType(FP16, shape, coalesced))).out
        add(gpu.SharedStore(zeros, buffer, trip.store_vector_elems, trip.store_matrix))
    wide = add(arith.Cast(back, FP32)).out
    sum_ = add(arith.Add(add(arith.Mul(acc, acc)).out, wide)).out
    out = add(arith.Cast(sum_, FP16)).out
    pointer = program.param(PointerType(FP16), 16)
    pointers = add(tile.Reshape(program.pointers(pointer, fragment), shape)).out
    add(gpu.Store(pointers, out))
    program.outputs.append((pointer, shape))
    if uses_twice:
        program.store(out)
    kernel = program.kernel()
    slice_epilogues(kernel, Schedule(TARGETS["sm_80"]))
    verify(kernel)
    return kernel


def opcodes(kernel: Kernel, *kinds: type[Op]) -> list[str]:
    return [op.opcode.partition(".")[2] for op in kernel.walk() if isinstance(op, kinds)]


def reads(kernel: Kernel) -> list[gpu.SharedLoad]:
    return [op for op in kernel.walk() if isinstance(op, gpu.SharedLoad)]


def test_a_large_tile_is_read_and_added_in_parts() -> None:
    kernel = epilogue(LARGE)
    op_names = opcodes(kernel, gpu.SharedLoad, arith.Mul, arith.Add, gpu.Concat, gpu.Store)
    assert op_names == ["shared_load", "mul", "add"] * 4 + ["concat", "store"]
    assert len({op.start for op in reads(kernel)}) == 4


def test_a_small_tile_stays_whole() -> None:
    assert opcodes(epilogue(SMALL), gpu.SharedLoad, gpu.Concat) == ["shared_load"]


def test_what_is_overwritten_is_read_before() -> None:
    """The read stays whole and in place; cutting the rest gains nothing."""
    kernel = epilogue(LARGE, overwrites=True)
    assert opcodes(kernel, gpu.SharedLoad, gpu.Concat) == ["shared_load"]


def test_what_something_else_uses_is_computed_once() -> None:
    assert opcodes(epilogue(LARGE, uses_twice=True), arith.Mul) == ["mul"]


@pytest.mark.parametrize("shape", [LARGE, (64, 128), (256, 64)])
def test_the_result_is_the_same(shape: tuple[int, int]) -> None:
    random = np.random.default_rng(2026)
    acc = random.integers(-9, 10, shape).astype(np.float32)
    residual = random.integers(-9, 10, shape).astype(np.float16)
    out = np.full(shape, 77, np.float16)
    kernel = epilogue(shape)
    assert opcodes(kernel, gpu.Concat)
    run(kernel, (1,), [acc.reshape(-1), residual.reshape(-1), out.reshape(-1)])
    assert (out == acc * acc + residual).all()


def elementwise(num_elems: int, *, stores_between: bool = False) -> Kernel:
    """Return `out = x * w`, x used before and w read where it is needed."""
    program = Program(1)
    add = program.add
    layout = blocked_for((num_elems,), (1,), 1)
    x = program.load(FP32, layout)
    program.store(add(arith.Add(x, x)).out)
    source = program.param(PointerType(FP16), 16)
    program.inputs.append(source)
    w = add(gpu.Load(program.pointers(source, layout))).out
    if stores_between:
        program.store(x)
    product = add(arith.Mul(x, add(arith.Cast(w, FP32)).out)).out
    program.store(product)
    kernel = program.kernel()
    for op in list(kernel.walk()):
        if isinstance(op, tile.Reshape):  # of one axis to itself
            op.replace_with([op.value])
    slice_epilogues(kernel, Schedule(TARGETS["sm_80"]))
    verify(kernel)
    return kernel


def test_a_load_from_global_memory_is_cut_where_registers_would_not_do() -> None:
    """128 elements of each of two tiles are more than a thread has registers."""
    assert opcodes(elementwise(128 * 32), gpu.Load).count("load") > 2
    assert opcodes(elementwise(64 * 32), gpu.Load).count("load") == 2


def test_a_load_stays_before_a_store() -> None:
    kernel = elementwise(128 * 32, stores_between=True)
    assert opcodes(kernel, gpu.Load, gpu.Store) == ["load", "store", "load", "store", "store"]


def test_elements_of_both_tiles_meet() -> None:
    random = np.random.default_rng(2026)
    num = 128 * 32
    x = random.integers(-9, 10, num).astype(np.float32)
    w = random.integers(-9, 10, num).astype(np.float16)
    twice, out = np.full((2, num), 77, np.float32)
    run(elementwise(num), (1,), [x, twice, w, out])
    assert (twice == x + x).all()
    assert (out == x * w).all()


TEXT = """\
// CHECK: gpu.store(%t_at, %double, _)
// CHECK: [[FIRSTS:%.*]] = gpu.extract(%ws) {start = [0], shape = [512]}
// CHECK-NEXT: [[INDEX:%.*]] = gpu.extract(%i) {start = [0], shape = [512]}
// CHECK-NEXT: [[AT:%.*]] = arith.addptr([[FIRSTS]], [[INDEX]])
// CHECK-NEXT: [[U:%.*]] = gpu.load([[AT]], _, _) {vector = 4} : tile<512xfp16
// CHECK-NEXT: [[WIDE:%.*]] = arith.cast([[U]]) {dtype = fp32}
// CHECK-NEXT: [[V:%.*]] = gpu.extract(%v) {start = [0], shape = [512]}
// CHECK-NEXT: [[FIRST:%.*]] = arith.mul([[V]], [[WIDE]])
// CHECK-NEXT: gpu.extract(%ws) {start = [512], shape = [512]}
// CHECK-COUNT-7: gpu.load({{.*}} : tile<512xfp16
// CHECK-NOT: gpu.load
// CHECK: [[OUT:%.*]] = gpu.concat([[FIRST]], {{.*}}) {axis = 0,
// CHECK: gpu.store(%o_at, [[OUT]], _)
#0 = #ll<register=[[1],[2],[128],[256],[512],[1024],[2048]] lane=[[4],[8],[16],[32],[64]] warp=[] : [4096]>
kernel @k(%x: *fp32, %w: *fp16, %twice: *fp32, %out: *fp32) {num_warps = 1} {
  %i = tile.arange {start = 0, end = 4096, layout = #0} : tile<4096xi32, #0>
  %xs = tile.splat(%x) {shape = [4096], layout = #0} : tile<4096x*fp32, #0>
  %x_at = arith.addptr(%xs, %i) : tile<4096x*fp32, #0>
  %v = gpu.load(%x_at, _, _) {vector = 4} : tile<4096xfp32, #0>
  %double = arith.add(%v, %v) : tile<4096xfp32, #0>
  %ts = tile.splat(%twice) {shape = [4096], layout = #0} : tile<4096x*fp32, #0>
  %t_at = arith.addptr(%ts, %i) : tile<4096x*fp32, #0>
  gpu.store(%t_at, %double, _) {vector = 4}
  %ws = tile.splat(%w) {shape = [4096], layout = #0} : tile<4096x*fp16, #0>
  %w_at = arith.addptr(%ws, %i) : tile<4096x*fp16, #0>
  %u = gpu.load(%w_at, _, _) {vector = 4} : tile<4096xfp16, #0>
  %wide = arith.cast(%u) {dtype = fp32} : tile<4096xfp32, #0>
  %scaled = arith.mul(%v, %wide) : tile<4096xfp32, #0>
  %os = tile.splat(%out) {shape = [4096], layout = #0} : tile<4096x*fp32, #0>
  %o_at = arith.addptr(%os, %i) : tile<4096x*fp32, #0>
  gpu.store(%o_at, %scaled, _) {vector = 4}
  scf.return
}
"""


def test_a_slice_is_loaded_and_multiplied_before_the_next_is_loaded() -> None:
    kernel = applied(TEXT, slice_epilogues)
    rng = np.random.default_rng(7)
    x, w = (rng.integers(-9, 10, 4096).astype(kind) for kind in (np.float32, np.float16))
    twice, out = np.full((2, 4096), 77, np.float32)
    assert_same_meaning(TEXT, kernel, [x, w, twice, out])

"""Indices recomputed after products and before stores: selection, position, results."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import arith, gpu, opaque, scf, tile
from aotc.ir.rewrite import Builder
from aotc.ir.types import FP16, FP32, I32, PointerType, TileType
from aotc.ir.verify import verify
from aotc.schedule.cleanup.recompute_addresses import recompute_addresses
from aotc.schedule.context import Schedule
from aotc.schedule.layout.layouts import blocked_for, dot_operand, mma_v2
from aotc.target import TARGETS
from tests.backend.programs import Program
from tests.support.pass_case import applied, assert_same_meaning

SHAPE = (32, 32)


def product(times: int, *, nested: bool = False) -> Program:
    """Return `out = times * (a @ b)`: pointers and a mask are made ahead of the loop."""
    program = Program(1)
    add = program.add
    a = program.load(FP16, dot_operand(0, SHAPE, (1, 1), 16))
    b = program.load(FP16, dot_operand(1, SHAPE, (1, 1), 16))
    layout = mma_v2(SHAPE, (1, 1))
    pointer = program.param(PointerType(FP32), 16)
    pointers = program.pointers(pointer, layout)
    flat = pointers.type
    assert isinstance(flat, TileType)
    assert flat.layout is not None
    index = add(tile.Arange(0, flat.num_elems, flat.layout)).out
    most = add(arith.Constant(1000, TileType(I32, flat.shape, flat.layout))).out
    mask = add(arith.Compare(index, most, "lt")).out
    acc = add(arith.Constant(0.0, TileType(FP32, SHAPE, layout))).out
    zero, step, end = (add(arith.Constant(value, I32)).out for value in (0, 1, times))

    def body(builder: Builder, args: list[Value]) -> list[Value]:
        return [builder(gpu.Dot(a, b, args[1], (16, 8, 16))).out]

    loop = scf.For(zero, end, step, [acc], body=program.block([I32, acc.type], body))
    if nested:
        condition = add(arith.Compare(zero, end, "lt")).out
        then = program.block([], lambda builder, _: [builder(loop).outs[0]])
        total = add(scf.If(condition, then, program.block([], lambda *_: [acc]))).outs[0]
    else:
        total = add(loop).outs[0]
    out = add(tile.Reshape(total, flat.shape)).out
    add(gpu.Store(pointers, out, mask))
    program.outputs.append((pointer, SHAPE))
    return program


def recomputed(program: Program) -> Kernel:
    kernel = program.kernel()
    recompute_addresses(kernel, Schedule(TARGETS["sm_80"]))
    verify(kernel)
    return kernel


def after(kernel: Kernel, first: type[Op]) -> list[Op]:
    """Return the ops of the kernel's own block behind the first one of a class."""
    ops = list(kernel.body)
    return ops[next(index for index, op in enumerate(ops) if isinstance(op, first)) + 1 :]


@pytest.mark.parametrize("nested", [False, True])
def test_pointers_and_mask_of_a_store_are_made_behind_the_loop(nested: bool) -> None:
    kernel = recomputed(product(3, nested=nested))
    later_ops = after(kernel, scf.If if nested else scf.For)
    assert isinstance(later_ops[0], opaque.OpaqueThreadId)
    results = {value for op in later_ops for value in op.results}
    operands = (value for op in later_ops for value in op.operands)
    tiles = {value for value in operands if isinstance(value.type, TileType)}
    loops = {value for op in kernel.body for value in op.results if op.blocks}
    assert tiles <= results | loops


def test_a_store_of_much_has_its_own() -> None:
    kernel = recomputed(product(3))
    renewals = [op for op in kernel.body if isinstance(op, opaque.OpaqueThreadId)]
    assert len(renewals) == 2
    last = after(kernel, gpu.Store)
    assert not any(isinstance(op, tile.Arange) for op in last)


def test_loaded_tiles_are_not_loaded_again() -> None:
    program = Program(1)
    layout = blocked_for((1024,), (1,), 1)
    program.store(program.load(FP32, layout))
    kernel = recomputed(program)
    assert sum(isinstance(op, gpu.Load) for op in kernel.walk()) == 1


def test_small_stores_without_products_stay_as_they_are() -> None:
    program = Program(1)
    program.store(program.load(FP32, blocked_for((128,), (1,), 1)))
    assert not any(isinstance(op, opaque.OpaqueThreadId) for op in recomputed(program).walk())


@pytest.mark.parametrize("times", [0, 1, 3])
@pytest.mark.parametrize("nested", [False, True])
def test_the_machine_computes_the_same(nested: bool, times: int) -> None:
    random = np.random.default_rng(times)
    a, b = (random.integers(-4, 5, SHAPE).astype(np.float16) for _ in range(2))
    program = product(times, nested=nested)
    recompute_addresses(program.kernel(), Schedule(TARGETS["sm_80"]))
    (out,) = program.run(a, b)
    expected = times * (a.astype(np.float32) @ b.astype(np.float32)).reshape(-1)
    assert (out.reshape(-1)[:1000] == expected[:1000]).all()
    assert (out.reshape(-1)[1000:].view(np.uint8) == 0xEE).all()


TEXT = """\
// CHECK: scf.for(
// CHECK: scf.yield(%sum)
// CHECK-NEXT: } : tile
// CHECK-NEXT: gpu.opaque_thread_id
// CHECK: [[OUT:%.*]] = tile.splat(%out)
// CHECK-NEXT: [[INDEX:%.*]] = tile.arange
// CHECK-NEXT: [[AT:%.*]] = arith.addptr([[OUT]], [[INDEX]])
// CHECK: [[INSIDE:%.*]] = arith.compare([[INDEX]], {{%.*}}) {predicate = "lt"}
// CHECK-NEXT: gpu.store([[AT]], %flat, [[INSIDE]])
#0 = #ll<register=[[0,1],[8,0],[0,8]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[] : [16,16]>
#1 = #ll<register=[[1,0],[8,0]] lane=[[2,0],[4,0],[0,1],[0,2],[0,4]] warp=[] : [16,8]>
#2 = #ll<register=[[0,1],[8,0]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[] : [16,8]>
#3 = #ll<register=[[1],[64]] lane=[[2],[4],[8],[16],[32]] warp=[] : [128]>
kernel @k(%out: *fp32, %size: i32, %n: i32) {num_warps = 1} {
  %i = tile.arange {start = 0, end = 128, layout = #3} : tile<128xi32, #3>
  %os = tile.splat(%out) {shape = [128], layout = #3} : tile<128x*fp32, #3>
  %p = arith.addptr(%os, %i) : tile<128x*fp32, #3>
  %sizes = tile.splat(%size) {shape = [128], layout = #3} : tile<128xi32, #3>
  %inside = arith.compare(%i, %sizes) {predicate = "lt"} : tile<128xi1, #3>
  %a = arith.constant {value = 2.0, type = tile<16x16xfp16, #0>} : tile<16x16xfp16, #0>
  %b = arith.constant {value = 0.5, type = tile<16x8xfp16, #1>} : tile<16x8xfp16, #1>
  %none = arith.constant {value = 0.0, type = tile<16x8xfp32, #2>} : tile<16x8xfp32, #2>
  %zero = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
  %total = scf.for(%zero, %n, %one, %none) (%k: i32, %acc: tile<16x8xfp32, #2>) {
    %sum = gpu.dot(%a, %b, %acc) {shape = [16, 8, 16]} : tile<16x8xfp32, #2>
    scf.yield(%sum)
  } : tile<16x8xfp32, #2>
  %flat = tile.reshape(%total) {shape = [128]} : tile<128xfp32, #3>
  gpu.store(%p, %flat, %inside)
  scf.return
}
"""


def test_the_addresses_of_a_store_are_computed_after_the_loop() -> None:
    kernel = applied(TEXT, recompute_addresses)
    assert_same_meaning(TEXT, kernel, [np.full(128, 77, np.float32), 100, 3])

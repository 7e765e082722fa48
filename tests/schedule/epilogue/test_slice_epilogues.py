"""What is stored, computed part by part: when, in what order, and to the same end."""

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

WARPS = 4  # of 32 threads, so a tile of 8192 elements is 64 of each
LARGE, SMALL = (128, 64), (64, 64)


def epilogue(
    shape: tuple[int, int], *, overwrites: bool = False, uses_twice: bool = False
) -> Kernel:
    """Return `out = fp16(acc * acc + residual)`, the residual moved through shared memory."""
    program = Program(WARPS)
    add = program.add
    held, coalesced = mma_v2(shape, (2, 2)), blocked_for(shape, (1, 8), WARPS, (1, 0))
    trip = plan_shared_exchange(coalesced, held, FP16.bits, run_elems=8)
    acc, residual = program.load(FP32, held), program.load(FP16, coalesced)
    buffer = add(gpu.SharedAlloc(FP16, shape, trip.scratch)).out
    add(gpu.SharedStore(residual, buffer, trip.store_vector_elems, trip.store_matrix))
    add(gpu.Barrier())
    back = add(gpu.SharedLoad(buffer, held, trip.load_vector_elems, trip.load_matrix)).out
    if overwrites:
        add(gpu.Barrier())
        zeros = add(arith.Constant(0.0, TileType(FP16, shape, coalesced))).out
        add(gpu.SharedStore(zeros, buffer, trip.store_vector_elems, trip.store_matrix))
    wide = add(arith.Cast(back, FP32)).out
    sum_ = add(arith.Add(add(arith.Mul(acc, acc)).out, wide)).out
    out = add(arith.Cast(sum_, FP16)).out
    pointer = program.param(PointerType(FP16), 16)
    places = add(tile.Reshape(program.pointers(pointer, held), shape)).out
    add(gpu.Store(places, out))
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
    found = opcodes(kernel, gpu.SharedLoad, arith.Mul, arith.Add, gpu.Concat, gpu.Store)
    assert found == ["shared_load", "mul", "add"] * 4 + ["concat", "store"]
    assert len({op.start for op in reads(kernel)}) == 4


def test_a_small_tile_stays_whole() -> None:
    assert opcodes(epilogue(SMALL), gpu.SharedLoad, gpu.Concat) == ["shared_load"]


def test_what_is_overwritten_is_read_before() -> None:
    """The read stays whole where it was, and nothing is gained by cutting what is left."""
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

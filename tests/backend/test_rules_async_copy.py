"""Asynchronous copies and the stages they go to, run by the lockstep machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aotc.backend import assemble, emit_ptx
from aotc.ir.core import Value
from aotc.ir.diagnostics import IRError
from aotc.ir.dialects import arith, gpu, tile
from aotc.ir.layout import LinearLayout
from aotc.ir.types import FP16, FP32, I32, PointerType, ScalarType
from aotc.target import TARGETS
from tests.backend.programs import NUMPY, SM_80, Program, row_layout
from tests.support.pipelined import Case

ELEMS = 256


def flat_memory(num_elems: int = ELEMS) -> LinearLayout:
    return LinearLayout(
        {"offset": [(1 << bit,) for bit in range(num_elems.bit_length() - 1)]}, (num_elems,)
    )


def copied(
    program: Program,
    element: ScalarType,
    vector: int,
    layout: LinearLayout,
    **options: Any,
) -> tuple[Value, Value]:
    """Copy an input to stage `index + 1` of three, and return the stage and the input's pointer."""
    pointer = program.param(PointerType(element), 16)
    program.inputs.append(pointer)
    buffer = program.add(
        gpu.SharedAlloc(element, (ELEMS,), flat_memory(), offset_bytes=64, num_stages=3)
    ).out
    index = program.param(I32)
    stage = program.add(gpu.SharedStage(buffer, index, ahead=1)).out
    program.add(gpu.AsyncCopy(program.pointers(pointer, layout), stage, vector=vector, **options))
    program.add(gpu.AsyncCommit())
    return stage, pointer


@pytest.mark.parametrize("element", [FP16, FP32], ids=str)
@pytest.mark.parametrize("size_bytes", [4, 8, 16])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_copies_land_in_their_stage(element: ScalarType, size_bytes: int, index: int) -> None:
    program = Program(num_warps=2)
    layout = row_layout(ELEMS, 2)
    vector = min(size_bytes // element.size_bytes, layout.in_size("register"))
    stage, _ = copied(program, element, vector, layout)
    program.add(gpu.AsyncWait(0))
    program.add(gpu.Barrier())
    program.store(program.add(gpu.SharedLoad(stage, layout)).out)
    x = np.random.default_rng(0).standard_normal(ELEMS).astype(NUMPY[element.name])
    (out,) = program.run(x, index, target=SM_80)
    assert (out == x).all()


def test_nothing_has_landed_before_the_wait() -> None:
    program = Program()
    layout = row_layout(ELEMS)
    stage, _ = copied(program, FP32, 4, layout)
    program.add(gpu.AsyncWait(1))
    program.store(program.add(gpu.SharedLoad(stage, layout)).out)
    x = np.random.default_rng(0).standard_normal(ELEMS).astype(np.float32)
    (out,) = program.run(x, 0, target=SM_80)
    assert (out.view(np.uint8) == 0xEE).all()


@pytest.mark.parametrize("limit", [0, 1, 255])
def test_masked_vectors_become_zero(limit: int) -> None:
    program = Program()
    layout = row_layout(ELEMS)
    bound = program.param(I32)
    ends = program.add(tile.Arange(0, ELEMS, layout)).out
    eight = program.add(arith.Constant(8, ends.type)).out
    group = program.add(arith.Div(ends, eight)).out
    mask = program.add(arith.Compare(group, program.splat(bound, layout), "lt")).out
    stage, _ = copied(program, FP32, 4, layout, mask=mask)
    program.add(gpu.AsyncWait(0))
    program.store(program.add(gpu.SharedLoad(stage, layout)).out)
    x = np.random.default_rng(0).standard_normal(ELEMS).astype(np.float32)
    (out,) = program.run(limit, x, 0, target=SM_80)
    assert (out == np.where(np.arange(ELEMS) // 8 < limit, x, 0)).all()


@pytest.mark.parametrize("enabled", [0, 1])
def test_copies_that_are_off_write_zeros(enabled: int) -> None:
    program = Program()
    layout = row_layout(ELEMS)
    flag = program.param(I32)
    zero = program.add(arith.Constant(0, I32)).out
    on = program.add(arith.Compare(flag, zero, "gt")).out
    stage, _ = copied(program, FP32, 4, layout, enabled=on)
    program.add(gpu.AsyncWait(0))
    program.store(program.add(gpu.SharedLoad(stage, layout)).out)
    x = np.random.default_rng(0).standard_normal(ELEMS).astype(np.float32)
    (out,) = program.run(enabled, x, 0, target=SM_80)
    assert (out == (x if enabled else 0)).all()


def test_threads_that_hold_copies_copy_once() -> None:
    program = Program(num_warps=4)
    layout = LinearLayout(
        {
            "register": [(1,), (2,)],
            "lane": [(4,), (8,), (16,), (32,), (64,)],
            "warp": [(0,), (128,)],
        },
        (ELEMS,),
    )
    stage, _ = copied(program, FP32, 4, layout)
    program.add(gpu.AsyncWait(0))
    program.store(program.add(gpu.SharedLoad(stage, layout)).out)
    x = np.random.default_rng(0).standard_normal(ELEMS).astype(np.float32)
    (out,) = program.run(x, 0, target=SM_80)
    assert (out == x).all()
    assert program.machine.copies == ELEMS // 4


def test_registers_out_of_order_are_refused() -> None:
    program = Program()
    columns = [(2,), (1,), *((1 << bit,) for bit in range(2, 8))]
    swapped = LinearLayout({"offset": columns}, (ELEMS,))
    pointer = program.param(PointerType(FP32), 16)
    buffer = program.add(gpu.SharedAlloc(FP32, (ELEMS,), swapped, offset_bytes=0)).out
    program.add(gpu.AsyncCopy(program.pointers(pointer, row_layout(ELEMS)), buffer, vector=4))
    with pytest.raises(IRError, match="which are not consecutive"):
        program.llvm_ir(SM_80)


@pytest.mark.parametrize("target", TARGETS.values(), ids=str)
@pytest.mark.parametrize("eviction", ["", "evict_first", "evict_last"])
def test_modifiers_assemble(target, eviction: str) -> None:
    program = Program()
    layout = row_layout(ELEMS)
    for vector, cache in ((4, ""), (4, "ca"), (2, "")):
        pointer = program.param(PointerType(FP32), 16)
        buffer = program.add(gpu.SharedAlloc(FP32, (ELEMS,), flat_memory(), offset_bytes=0)).out
        program.add(
            gpu.AsyncCopy(
                *(program.pointers(pointer, layout), buffer),
                vector=vector,
                cache=cache,
                eviction=eviction,
                prefetch_bytes=128,
            )
        )
    program.add(gpu.AsyncCommit())
    program.add(gpu.AsyncWait(0))
    ptx = emit_ptx(program.llvm_ir(target), target)
    hint = ".L2::cache_hint" if eviction else ""
    assert ptx.count(f"cp.async.cg.shared.global{hint}.L2::128B ") == 2
    assert ptx.count(f"cp.async.ca.shared.global{hint}.L2::128B ") == 2 + 4
    assert assemble(ptx, target).warnings == ()


def test_a_pipelined_loop_runs_as_it_is_interpreted() -> None:
    """The whole protocol: rotating stages, waits, barriers, masks, copies of later iterations."""
    from tests.schedule.pipelining.test_pipeline_loads import product_args, product_case

    for promise, num_stages, k_size in ((":16", 3, 144), (":2", 2, 38), ("", 4, 33)):
        case = product_case("fp16", promise, "k", num_stages=num_stages, num_warps=2)
        run_by_machine(case, product_args("bf16", promise, "k", k_size))


def run_by_machine(case: Case, make: Any) -> None:
    from aotc.backend import lower_kernel
    from tests.backend.simt import Machine

    args = [array.astype(np.float16) if i < 2 else array for i, array in enumerate(make())]
    machine = Machine()
    machine_args = [
        machine.alloc(array) if isinstance(array, np.ndarray) else array for array in args
    ]
    machine.run(lower_kernel(case.kernel, case.target).llvm_ir, machine_args)
    (expected,) = Case.outputs(case.kernel, lambda: args, (1,))[2:]
    actual = machine.read(machine_args[2], expected.dtype, expected.shape)
    assert (actual == expected).all()

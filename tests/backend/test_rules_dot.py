"""Matrix products on the lockstep machine, whose `mma` follows only the manual's formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aotc.backend import emit_ptx
from aotc.backend.ptxas import assemble
from aotc.ir.core import Value
from aotc.ir.diagnostics import IRError
from aotc.ir.dialects import gpu
from aotc.ir.layout import LinearLayout
from aotc.ir.types import SCALARS, TileType
from aotc.schedule.layout.conversions import plan_shared_exchange
from aotc.schedule.layout.layouts import blocked_for, dot_operand, mma_v2
from aotc.target import TARGETS
from tests.backend.programs import NUMPY, Program

# Operand types, accumulator, instruction, and targets with it.
ALL = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
FP8 = ALL[2:]
INSTRUCTIONS = [
    ("bf16", "bf16", "fp32", (16, 8, 16), ALL),
    ("bf16", "bf16", "fp32", (16, 8, 8), ALL),
    ("fp16", "fp16", "fp32", (16, 8, 16), ALL),
    ("fp16", "fp16", "fp32", (16, 8, 8), ALL),
    ("fp16", "fp16", "fp16", (16, 8, 16), ALL),
    ("fp16", "fp16", "fp16", (16, 8, 8), ALL),
    ("fp32", "fp32", "fp32", (16, 8, 8), ALL),
    ("fp32", "fp32", "fp32", (16, 8, 4), ALL),
    ("fp64", "fp64", "fp64", (8, 8, 4), ALL),
    ("i8", "i8", "i32", (16, 8, 32), ALL),
    ("i8", "i8", "i32", (16, 8, 16), ALL),
    ("u8", "u8", "i32", (16, 8, 32), ALL),
    ("fp8e4nv", "fp8e4nv", "fp32", (16, 8, 32), FP8),
    ("fp8e4nv", "fp8e5", "fp32", (16, 8, 32), FP8),
    ("fp8e5", "fp8e4nv", "fp16", (16, 8, 32), FP8),
    ("fp8e5", "fp8e5", "fp16", (16, 8, 32), FP8),
]


def small_integers(rng: np.random.Generator, shape: tuple[int, ...], element: str) -> Any:
    """Return values with exact products and sums in every type."""
    low = 0 if element == "u8" else -3
    return rng.integers(low, 4, shape).astype(NUMPY[element])


def product(
    shapes: tuple[tuple[int, ...], ...],
    elements: tuple[str, str, str],
    layouts: tuple[LinearLayout, ...],
    instruction: tuple[int, ...],
    num_warps: int,
) -> tuple[Program, list[Value]]:
    program = Program(num_warps)
    operands = [
        program.load(SCALARS[element], layout)
        for element, layout in zip(elements, layouts, strict=True)
    ]
    assert [value.type.shape for value in operands if isinstance(value.type, TileType)] == [*shapes]
    a, b, acc = operands
    program.store(program.add(gpu.Dot(a, b, acc, instruction)).out)
    return program, operands


def run_product(
    m: int,
    n: int,
    k: int,
    elements: tuple[str, str, str],
    instruction: tuple[int, ...],
    *,
    warps: tuple[int, ...] = (1, 1),
    k_width: int | None = None,
    batch: int = 0,
) -> None:
    lead = (batch,) if batch else ()
    shapes = ((*lead, m, k), (*lead, k, n), (*lead, m, n))
    bits = SCALARS[elements[0]].bits
    layouts = (
        dot_operand(0, shapes[0], warps, bits, k_width),
        dot_operand(1, shapes[1], warps, bits, k_width),
        mma_v2(shapes[2], warps),
    )
    program, _ = product(shapes, elements, layouts, instruction, int(np.prod(warps)))
    rng = np.random.default_rng(m * 7 + n * 3 + k)
    a, b, acc = (small_integers(rng, s, e) for s, e in zip(shapes, elements, strict=True))
    (out,) = program.run(a, b, acc)
    exact = np.matmul(a.astype(np.float64), b.astype(np.float64)) + acc.astype(np.float64)
    np.testing.assert_array_equal(out.astype(np.float64), exact)


@pytest.mark.parametrize(("a", "b", "acc", "instruction", "_targets"), INSTRUCTIONS)
def test_every_instruction(a: str, b: str, acc: str, instruction: tuple[int, ...], _targets: Any):
    k = instruction[2]
    run_product(32, 16, 2 * k, (a, b, acc), instruction)


@pytest.mark.parametrize("k", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (8, 4), (16, 8), (2, 64)])
def test_tiles_smaller_than_a_fragment(m: int, n: int, k: int):
    run_product(m, n, k, ("bf16", "bf16", "fp32"), (16, 8, 16))
    run_product(m, n, k, ("i8", "i8", "i32"), (16, 8, 32))
    run_product(m, n, k, ("fp64", "fp64", "fp64"), (8, 8, 4))


@pytest.mark.parametrize("warps", [(4, 1), (1, 4), (2, 2), (8, 1)])
@pytest.mark.parametrize("k_width", [None, 4, 8])
def test_warps_and_neighbours_along_k(warps: tuple[int, int], k_width: int | None):
    run_product(64, 32, 32, ("fp16", "fp16", "fp32"), (16, 8, 16), warps=warps, k_width=k_width)


@pytest.mark.parametrize("warps", [(1, 1, 1), (2, 1, 2), (4, 1, 1)])
def test_batches(warps: tuple[int, int, int]):
    run_product(16, 32, 16, ("bf16", "bf16", "fp32"), (16, 8, 16), warps=warps, batch=2)


def test_copies_along_k_are_zeroed_though_they_are_infinite():
    """With K = 2, three quarters of the lanes hold copies: infinities must not be summed twice."""
    layouts = (dot_operand(0, (16, 2), (1, 1), 16), dot_operand(1, (2, 8), (1, 1), 16))
    shapes = ((16, 2), (2, 8), (16, 8))
    program, _ = product(
        shapes, ("fp16", "fp16", "fp32"), (*layouts, mma_v2((16, 8), (1, 1))), (16, 8, 16), 1
    )
    a, b = np.ones((16, 2), np.float16), np.ones((2, 8), np.float16)
    a[3, 1] = np.inf
    (out,) = program.run(a, b, np.zeros((16, 8), np.float32))
    assert np.isinf(out[3]).all()
    assert (np.delete(out, 3, axis=0) == 2).all()


def test_multiply_add_by_threads():
    acc = blocked_for((16, 32), (2, 4), 2)
    a = acc.reduce(1).remove_zero_bases().expand_dims(1).broadcast_to((16, 8))
    b = acc.reduce(0).remove_zero_bases().expand_dims(0).broadcast_to((8, 32))
    for element in ("fp32", "fp64"):
        shapes = ((16, 8), (8, 32), (16, 32))
        program, _ = product(shapes, (element, element, element), (a, b, acc), (), 2)
        rng = np.random.default_rng(5)
        x, y, z = (small_integers(rng, shape, element) for shape in shapes)
        (out,) = program.run(x, y, z)
        np.testing.assert_array_equal(out, x @ y + z)


def test_layouts_that_disagree_are_refused():
    good = dot_operand(0, (16, 16), (1, 1), 16), dot_operand(1, (16, 8), (1, 1), 16)
    acc = mma_v2((16, 8), (1, 1))
    shapes, elements = ((16, 16), (16, 8), (16, 8)), ("fp16", "fp16", "fp32")
    wrong = (
        (dot_operand(0, (16, 16), (1, 1), 16, 4), good[1], acc, "along K"),
        (good[0], good[1], blocked_for((16, 8), (1, 4), 1), "along"),
        (good[0], blocked_for((16, 8), (2, 1), 1), acc, "along"),
    )
    for a, b, out, message in wrong:
        with pytest.raises(IRError, match=message):
            product(shapes, elements, (a, b, out), (16, 8, 16), 1)


# ---- matrices through shared memory -----------------------------------------------------------


@pytest.mark.parametrize(
    ("element", "operand", "order", "mode"),
    [
        ("bf16", 0, (1, 0), "b16"),
        ("bf16", 1, (0, 1), "b16"),
        ("bf16", 1, (1, 0), "b16.trans"),
        ("fp16", 0, (0, 1), "b16.trans"),
        ("i8", 0, (1, 0), "b16"),
        ("fp32", 0, (1, 0), "b16"),
    ],
)
@pytest.mark.parametrize("shape", [(16, 64), (32, 32), (64, 16)])
def test_ldmatrix(
    element: str, operand: int, order: tuple[int, int], mode: str, shape: tuple[int, int]
):
    bits = SCALARS[element].bits
    elems = [1, 1]
    elems[order[0]] = 128 // bits
    source = blocked_for(shape, tuple(elems), 2, order)
    target = dot_operand(operand, shape, (2, 1) if operand == 0 else (1, 2), bits)
    plan = plan_shared_exchange(source, target, bits, run_elems=128 // bits)
    if plan.load_matrix != mode:
        # Tiles too small for the rows of matrices go by plain vectors.
        assert min(shape) <= 16
    moved(element, source, target, plan)


@pytest.mark.parametrize("element", ["bf16", "i8", "fp32"])
@pytest.mark.parametrize("shape", [(16, 8), (32, 64), (64, 16)])
def test_stmatrix(element: str, shape: tuple[int, int]):
    bits = SCALARS[element].bits
    source = mma_v2(shape, (2, 1))
    target = blocked_for(shape, (1, min(shape[1], 128 // bits)), 2)
    moved(element, source, target, plan_shared_exchange(source, target, bits, stmatrix=True))


def moved(element: str, source: LinearLayout, target: LinearLayout, plan: Any) -> None:
    """Check that this plan's exchange brings every element to its place."""
    program = Program(2)
    value = program.load(SCALARS[element], source)
    buffer = gpu.SharedAlloc(SCALARS[element], source.shape, plan.scratch, offset_bytes=256)
    program.add(buffer)
    program.add(gpu.SharedStore(value, buffer.out, plan.store_vector_elems, plan.store_matrix))
    program.add(gpu.Barrier())
    load = gpu.SharedLoad(buffer.out, target, plan.load_vector_elems, plan.load_matrix)
    program.store(program.add(load).out)
    data = np.random.default_rng(3).integers(-120, 120, source.shape).astype(NUMPY[element])
    (out,) = program.run(data)
    np.testing.assert_array_equal(out, data)


# ---- the assembler's view ---------------------------------------------------------------------


@pytest.mark.parametrize("target", ALL)
def test_ptxas_accepts_every_instruction(target: str):
    """One kernel per target holds all its products, because assembling is slow."""
    program = Program(1)
    for a, b, acc, instruction, targets in INSTRUCTIONS:
        if target not in targets:
            continue
        m, n, k = 16, 8, instruction[2]
        shapes = ((m, k), (k, n), (m, n))
        bits = SCALARS[a].bits
        layouts = (
            *(dot_operand(i, shapes[i], (1, 1), bits) for i in (0, 1)),
            mma_v2((m, n), (1, 1)),
        )
        x, y, z = (
            program.load(SCALARS[element], layout)
            for element, layout in zip((a, b, acc), layouts, strict=True)
        )
        program.store(program.add(gpu.Dot(x, y, z, instruction)).out)
    ptx = emit_ptx(program.llvm_ir(TARGETS[target]), TARGETS[target])
    for *_, instruction, targets in INSTRUCTIONS:
        if target in targets:
            assert "mma.sync.aligned.m{}n{}k{}".format(*instruction) in ptx
    assert not assemble(ptx, TARGETS[target]).warnings

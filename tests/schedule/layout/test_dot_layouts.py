"""Matrix products through the whole schedule: interpreted after every pass, then run as LLVM IR.

Operands are small integers, so every product and sum is exact in every type. Results compare to
the bit, however a product was cut and summed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from aotc.backend import lower_kernel
from aotc.config import Config
from aotc.ir.core import Block, Kernel, Value
from aotc.ir.dialects import arith, gpu, scf, tile
from aotc.ir.params import ParamInfo
from aotc.ir.rewrite import Builder
from aotc.ir.types import BF16, FP16, FP32, I32, PointerType, ScalarType, TileType
from aotc.schedule.context import Schedule
from aotc.schedule.layout.dot_layouts import divide_warps
from aotc.schedule.pipeline import schedule_kernel
from aotc.target import TARGETS, Target
from aotc.verify.interpreter.run import run
from tests.backend.programs import NUMPY
from tests.backend.simt import Machine
from tests.support.each_pass import check_each_pass
from tests.support.run_op import scalar_of

Body = Callable[..., Value]


def small(shape: tuple[int, ...], element: str, seed: int = 0) -> Any:
    low = 0 if element.startswith("u") else -3
    values = np.random.default_rng(seed + len(shape)).integers(low, 4, shape)
    return values.astype(NUMPY[element])


def mma_sync(target: str) -> Target:
    """Return a target whose products all use `mma.sync`, or threads."""
    return TARGETS[target].excluding(["wgmma"])


def check(
    body: Body, *arrays: Any, num_warps: int = 4, target: str = "sm_90a", simt: bool = True
) -> Kernel:
    """Schedule a kernel around `body`; return it. Compare it before, during and after."""
    kernel, kind = kernel_around(body, arrays)
    empty = np.full(kind.shape, 77).astype(NUMPY[str(kind.element)])

    def outputs(current: Kernel, *, check_races: bool = True) -> Any:
        out = empty.copy()
        run(current, (1,), [*map(np.copy, arrays), out], check_races=check_races)
        return out

    expected = outputs(kernel)

    kernel = check_each_pass(
        kernel,
        Schedule(mma_sync(target), Config(num_warps)),
        lambda current, races: [outputs(current, check_races=races)],
        [expected],
        passes=("assign_layouts", "plan_conversions", "slice_dots", "insert_barriers"),
    )
    if simt:
        machine = Machine()
        addresses = [machine.alloc(array) for array in (*arrays, empty)]
        machine.run(lower_kernel(kernel, mma_sync(target)).llvm_ir, addresses)
        actual = machine.read(addresses[-1], empty.dtype, empty.shape)
        np.testing.assert_array_equal(actual, expected, "as LLVM IR")
    return kernel


def kernel_around(body: Body, arrays: Sequence[Any]) -> tuple[Kernel, TileType]:
    """Return a kernel with the usual row-major loads and a store of the tile from `body`."""
    elements = [scalar_of(array.dtype) for array in arrays]
    block = Block([PointerType(element) for element in elements])
    add = Builder(block)
    loaded = [
        add(tile.Load(pointers(add, base, array.shape))).out
        for base, array in zip(block.args, arrays, strict=True)
    ]
    out = body(add, *loaded)
    kind = out.type
    assert isinstance(kind, TileType)
    assert isinstance(kind.element, ScalarType)
    base = block.add_arg(PointerType(kind.element))
    add(tile.Store(pointers(add, base, kind.shape), out))
    add(scf.Return())
    params = tuple(ParamInfo(f"p{index}", 16) for index in range(len(block.args)))
    return Kernel("product", params, block), kind


def pointers(add: Builder, base: Value, shape: tuple[int, ...]) -> Value:
    """Return pointers to a row-major array, axis by axis."""
    addresses = add(tile.Splat(base, shape)).out
    stride = 1
    for axis in reversed(range(len(shape))):
        index = add(tile.Arange(0, shape[axis])).out
        steps = add(arith.Constant(stride, index.type)).out
        index = add(arith.Mul(index, steps)).out
        for other in range(len(shape)):
            if other != axis:
                index = add(tile.ExpandDims(index, other)).out
        if len(shape) > 1:
            index = add(tile.Broadcast(index, shape)).out
        addresses = add(arith.AddPtr(addresses, index)).out
        stride *= shape[axis]
    return addresses


def dot(acc: str = "fp32", precision: Any = "tf32") -> Body:
    """Return the product of two loaded tiles and a loaded accumulator."""

    def body(add: Builder, a: Value, b: Value, c: Value) -> Value:
        return add(tile.Dot(a, b, c, precision)).out

    return body


def tile_wgmma(
    a: str, b: str, acc: str, m: int, n: int, k: int, *, precision: str = "tf32", **options: Any
) -> Kernel:
    arrays = small((m, k), a), small((k, n), b, 1), small((m, n), acc, 2)
    return check(dot(acc, precision), *arrays, **options)


TYPES = [
    ("bf16", "bf16", "fp32"),
    ("fp16", "fp16", "fp16"),
    ("fp32", "fp32", "fp32"),
    ("fp64", "fp64", "fp64"),
    ("i8", "i8", "i32"),
    ("u8", "u8", "i32"),
    ("fp8e4nv", "fp8e5", "fp32"),
]


@pytest.mark.parametrize("num_warps", [1, 4, 8])
@pytest.mark.parametrize(("a", "b", "acc"), TYPES)
@pytest.mark.parametrize(("m", "n", "k"), [(16, 8, 16), (64, 32, 64)])
def test_products(a: str, b: str, acc: str, m: int, n: int, k: int, num_warps: int) -> None:
    # The lockstep machine is slow: one number of warps goes through it.
    tile_wgmma(a, b, acc, m, n, k, num_warps=num_warps, simt=num_warps == 4)


@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 1), (2, 4, 8), (1, 64, 16), (64, 1, 4), (8, 8, 2)]
)
@pytest.mark.parametrize(("a", "b", "acc"), TYPES[:5])
def test_tiles_smaller_than_an_instruction(
    a: str, b: str, acc: str, m: int, n: int, k: int
) -> None:
    tile_wgmma(a, b, acc, m, n, k, num_warps=2)


@pytest.mark.parametrize(
    ("m", "k", "shape"),
    [
        (1, 4, (8, 8, 4)),
        (4, 16, (8, 8, 4)),
        (8, 16, (8, 8, 4)),
        (16, 4, (16, 8, 4)),
        (16, 32, (16, 8, 16)),
    ],
)
def test_fp64_has_no_copies_of_rows(m: int, k: int, shape: tuple[int, ...]) -> None:
    kernel = tile_wgmma("fp64", "fp64", "fp64", m, 8, k, num_warps=1)
    assert {op.shape for op in dots_of(kernel)} == {shape}


@pytest.mark.parametrize("target", ["sm_80", "sm_86"])
def test_fp8_without_fp8_products(target: str) -> None:
    kernel = tile_wgmma("fp8e4nv", "fp8e4nv", "fp32", 32, 32, 64, target=target)
    (first, *_) = dots_of(kernel)
    assert first.shape == (16, 8, 16)
    # Shared memory holds fp8, not the widened type.
    assert {op.element.bits for op in kernel.walk() if isinstance(op, gpu.SharedAlloc)} >= {8}


@pytest.mark.parametrize(("m", "n", "k"), [(16, 16, 16), (64, 32, 8), (4, 2, 2), (1, 1, 1)])
@pytest.mark.parametrize("precision", ["ieee", "tf32x3", "bf16x3", "bf16x6"])
def test_fp32_beyond_tf32(precision: str, m: int, n: int, k: int) -> None:
    tile_wgmma("fp32", "fp32", "fp32", m, n, k, precision=precision)


def test_several_products_keep_the_bits_that_one_drops() -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((32, 64), (64, 16)))
    acc = np.zeros((32, 16), np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    for precision, bound in (("tf32x3", 4e-5), ("bf16x6", 4e-5), ("bf16x3", 2e-3), ("tf32", 4e-2)):
        kernel, _ = kernel_around(dot("fp32", precision), (a, b, acc))
        kernel = schedule_kernel(kernel, Schedule(TARGETS["sm_80"], Config(4)))
        out = np.zeros_like(acc)
        run(kernel, (1,), [a, b, acc, out])
        assert np.abs(out - exact).max() < bound
        if precision == "tf32":
            assert np.abs(out - exact).max() > 1e-3


@pytest.mark.parametrize("batch", [1, 2, 8])
@pytest.mark.parametrize("num_warps", [1, 4])
def test_batches(batch: int, num_warps: int) -> None:
    arrays = small((batch, 16, 32), "fp16"), small((batch, 32, 8), "fp16", 1)
    check(dot(), *arrays, small((batch, 16, 8), "fp32", 2), num_warps=num_warps)


# ---- operands computed by threads -------------------------------------------------------------


def dots_of(kernel: Kernel) -> list[gpu.Dot]:
    return [op for op in kernel.walk() if isinstance(op, gpu.Dot)]


def trips(kernel: Kernel) -> list[tuple[str, tuple[int, ...]]]:
    return [(op.element.name, op.shape) for op in kernel.walk() if isinstance(op, gpu.SharedAlloc)]


def test_a_dequantised_operand_makes_one_trip_and_as_it_was_loaded() -> None:
    def body(add: Builder, a: Value, b: Value, scale: Value, c: Value) -> Value:
        wide = add(arith.Cast(b, FP32)).out
        factors = add(tile.Broadcast(add(tile.ExpandDims(scale, 0)).out, (64, 32))).out
        scaled = add(arith.Mul(wide, factors)).out
        return add(tile.Dot(a, add(arith.Cast(scaled, BF16)).out, c)).out

    kernel = check(
        body, small((32, 64), "bf16"), small((64, 32), "i8", 1), small((32,), "fp32", 2),
        small((32, 32), "fp32", 3),
    )  # fmt: skip
    assert ("i8", (64, 32)) in trips(kernel)
    assert not any(shape == (64, 32) and name != "i8" for name, shape in trips(kernel))


def test_neighbours_along_k_are_those_of_the_narrower_operand() -> None:
    def body(add: Builder, a: Value, b: Value, c: Value) -> Value:
        return add(tile.Dot(add(arith.Cast(a, FP16)).out, b, c)).out

    kernel = check(
        body, small((32, 64), "i8"), small((64, 16), "fp16", 1), small((32, 16), "fp32", 2)
    )
    loads = [op for op in kernel.walk() if isinstance(op, gpu.SharedLoad)]
    narrow = [op for op in loads if op.out.type.element.bits == 8]  # type: ignore[union-attr]
    assert narrow
    assert all(op.matrix == "b16" for op in narrow)


@pytest.mark.parametrize(("a", "b", "acc"), [("fp16", "i8", "fp32"), ("fp8e5", "fp8e5", "fp32"),
                                             ("i8", "i8", "i32")])  # fmt: skip
@pytest.mark.parametrize("num_warps", [1, 4])
def test_bytes_contiguous_along_n_are_moved_by_twos(
    a: str, b: str, acc: str, num_warps: int
) -> None:
    def body(add: Builder, x: Value, y: Value, c: Value) -> Value:
        wide = y if a == b else add(arith.Cast(y, FP16)).out
        return add(tile.Dot(x, wide, c)).out

    arrays = small((32, 64), a), small((64, 64), b, 1), small((32, 64), acc, 2)
    kernel = check(body, *arrays, num_warps=num_warps)
    loads = [op for op in kernel.walk() if isinstance(op, gpu.SharedLoad) and op.out.users]
    matrix_kinds = {op.matrix for op in loads if op.buffer.type.shape == (64, 64)}  # type: ignore[union-attr]
    assert matrix_kinds == {"b16.trans"}


def test_packed_nibbles_are_unpacked_where_they_are_multiplied() -> None:
    """Two elements a byte along K, joined and renamed: the trip moves the bytes."""

    def body(add: Builder, a: Value, packed: Value, c: Value) -> Value:
        kind = packed.type
        low = add(arith.And(packed, add(arith.Constant(15, kind)).out)).out
        high = add(arith.Shr(packed, add(arith.Constant(4, kind)).out)).out
        pair = add(tile.Join(low, high)).out  # (N, K/2, 2)
        rows = add(tile.Reshape(pair, (32, 64))).out
        wide = add(arith.Cast(rows, FP16)).out
        return add(tile.Dot(a, add(tile.Trans(wide, (1, 0))).out, c)).out

    packed = np.random.default_rng(1).integers(0, 256, (32, 32)).astype(np.uint8)
    kernel = check(body, small((32, 64), "fp16"), packed, small((32, 32), "fp32", 2))
    assert ("u8", (32, 32)) in trips(kernel)
    assert not any(shape in ((64, 32), (32, 64, 2)) for _, shape in trips(kernel))


def test_what_others_use_too_stays_where_it_was_loaded() -> None:
    def body(add: Builder, a: Value, b: Value, c: Value) -> Value:
        wide = add(arith.Cast(b, FP32)).out
        total = add(arith.Add(c, wide)).out
        return add(tile.Dot(a, add(arith.Cast(wide, FP16)).out, total)).out

    check(body, small((32, 32), "fp16"), small((32, 32), "i8", 1), small((32, 32), "fp32", 2))


# ---- chains -----------------------------------------------------------------------------------


@pytest.mark.parametrize("num_warps", [2, 4])
def test_the_second_product_of_a_chain_takes_its_operand_from_registers(num_warps: int) -> None:
    def body(add: Builder, q: Value, k: Value, v: Value) -> Value:
        zero = add(arith.Constant(0.0, TileType(FP32, (64, 32)))).out
        scores = add(tile.Dot(q, add(tile.Trans(k, (1, 0))).out, zero)).out
        weights = add(arith.Cast(scores, FP16)).out
        out = add(arith.Constant(0.0, TileType(FP32, (64, 16)))).out
        return add(tile.Dot(weights, v, out)).out

    arrays = small((64, 16), "fp16"), small((32, 16), "fp16", 1), small((32, 16), "fp16", 2)
    kernel = check(body, *arrays, num_warps=num_warps)
    assert sorted(shape for _, shape in trips(kernel) if shape != (64, 16)) == [(32, 16), (32, 16)]
    assert not any(isinstance(op, gpu.ShuffleConvert) for op in kernel.walk())


def test_an_accumulator_keeps_its_layout_through_a_loop() -> None:
    def body(add: Builder, a: Value, b: Value, c: Value) -> Value:
        lower, upper, step = (add(arith.Constant(value, I32)).out for value in (0, 3, 1))
        kind = TileType(FP32, (32, 32))
        block = Block([I32, kind])
        inner = Builder(block)
        half = inner(arith.Constant(0.5, kind)).out
        scaled = inner(arith.Mul(block.args[1], half)).out
        inner(scf.Yield([inner(tile.Dot(a, b, scaled)).out]))
        return add(scf.For(lower, upper, step, [c], block)).outs[0]

    kernel = check(body, small((32, 64), "bf16"), small((64, 32), "bf16", 1),
                   small((32, 32), "fp32", 2) * 8)  # fmt: skip
    (loop,) = (op for op in kernel.walk() if isinstance(op, scf.For))
    inside = [op for op in loop.body.walk() if isinstance(op, gpu.Convert | gpu.SharedStore)]
    assert not inside


# ---- warps ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "num_warps", "along_m", "expected"),
    [
        ((128, 128, 32), 4, False, (2, 2)),
        ((128, 256, 64), 8, False, (2, 4)),
        ((256, 128, 64), 8, False, (4, 2)),
        ((128, 64, 64), 4, True, (4, 1)),
        ((16, 256, 64), 4, False, (1, 4)),
        ((16, 8, 16), 4, False, (4, 1)),
        ((64, 64, 64), 8, True, (4, 2)),
        ((1, 1, 1), 8, False, (8, 1)),
    ],
)
def test_division_into_warps(
    shape: tuple[int, int, int],
    num_warps: int,
    along_m: bool,
    expected: tuple[int, int],
) -> None:
    m, n, k = shape
    a, b, acc = (
        arith.Constant(0.0, TileType(element, operand_shape)).out
        for element, operand_shape in ((FP16, (m, k)), (FP16, (k, n)), (FP32, (m, n)))
    )
    assert divide_warps(tile.Dot(a, b, acc), num_warps, along_m=along_m) == expected

"""FMA dots: no duplicate work among threads, and only the next operands in registers."""

from __future__ import annotations

import re
from math import prod

import pytest

import aotc
from aotc.ir.core import Block, Value
from aotc.ir.dialects import arith, gpu, tile
from aotc.ir.rewrite import Builder
from aotc.ir.types import FP32, TileType
from aotc.schedule.analysis.register_budget import registers_of
from aotc.schedule.layout.fma_layouts import fma_layouts
from tests.schedule.layout.test_dot_layouts import check, dot, small

SHAPES = [
    (16, 16),
    (32, 32),
    (64, 64),
    (16, 64),
    (64, 16),
    (128, 128),
    (1, 64),
    (64, 1),
    (8, 16, 16),
]
CHAIN = """import triton
import triton.language as tl

@triton.jit
def k(x, out, step, N: tl.constexpr):
    r = tl.arange(0, N)
    at = r[:, None] * N + r[None, :]
    a = tl.load(x + at)
    b = tl.load(x + step + at)
    c = tl.load(x + 2 * step + at)
    for _ in tl.static_range(4):
        a = tl.dot(tl.dot(a, b, input_precision="ieee"), c, input_precision="ieee")
        b = tl.dot(b, a, input_precision="ieee")
    tl.store(out + at, tl.dot(a, b, input_precision="ieee"))
"""


def dot_of(shape: tuple[int, ...], k: int = 16) -> tile.Dot:
    *batch, m, n = shape
    add = Builder(Block())
    a, b, acc = (
        add(arith.Constant(0.5, TileType(FP32, (*batch, *axes)))).out
        for axes in ((m, k), (k, n), (m, n))
    )
    return add(tile.Dot(a, b, acc, "ieee"))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("along_m", [False, True])
def test_threads_divide_a_result_evenly(shape: tuple[int, ...], *, along_m: bool) -> None:
    for num_warps in (1, 2, 4, 8, 16, 32):
        layouts = fma_layouts(dot_of(shape), num_warps, along_m=along_m)
        acc, a, b = layouts.acc, layouts.a, layouts.b
        assert a is not None
        assert b is not None
        num_registers = max(1, prod(shape) // (32 * num_warps))
        assert acc.in_size("register") == num_registers
        # Of as many elements a thread holds least of A and B if they are a square, or nearly.
        rows, columns = a.in_size("register") // 16, b.in_size("register") // 16
        if len(shape) == 2:
            assert rows * columns == num_registers
            is_square = rows <= 4 * columns and columns <= 4 * rows
            assert is_square or along_m or 1 in shape


@pytest.mark.parametrize(("size", "num_warps"), [(16, 4), (32, 8), (64, 8)])
def test_a_warp_of_a_chain_holds_whole_rows(size: int, num_warps: int) -> None:
    layouts = fma_layouts(dot_of((size, size)), num_warps, along_m=True)
    assert all(column == 0 for _, column in layouts.acc.bases("warp"))


@pytest.mark.parametrize(
    ("shape", "k"), [((16, 16), 16), ((32, 16), 1), ((1, 32), 64), ((2, 16, 16), 4)]
)
@pytest.mark.parametrize("num_warps", [1, 4, 8])
def test_products(shape: tuple[int, ...], k: int, num_warps: int) -> None:
    *batch, m, n = shape
    arrays = small((*batch, m, k), "fp32"), small((*batch, k, n), "fp32", 1)
    kernel = check(dot("fp32", "ieee"), *arrays, small(shape, "fp32", 2), num_warps=num_warps)
    (num_registers,) = {registers_of(op.acc) for op in kernel.walk() if isinstance(op, gpu.Dot)}
    assert num_registers == max(1, prod(shape) // (32 * num_warps))


@pytest.mark.parametrize("num_warps", [1, 4])
def test_operands_that_several_dots_take(num_warps: int) -> None:
    def body(add: Builder, a: Value, b: Value, c: Value) -> Value:
        zero = add(arith.Constant(0.0, c.type)).out
        first = add(tile.Dot(a, b, c, "ieee")).out
        second = add(tile.Dot(first, b, zero, "ieee")).out
        third = add(tile.Dot(b, first, zero, "ieee")).out
        return add(tile.Dot(second, third, first, "ieee")).out

    check(body, *(small((16, 16), "fp32", seed) for seed in range(3)), num_warps=num_warps)


@pytest.mark.parametrize(("size", "num_warps"), [(16, 1), (16, 4), (32, 4)])
def test_a_chain_spills_nothing_and_multiplies_once(size: int, num_warps: int) -> None:
    compiled_kernel = aotc.compile(
        "k",
        source=CHAIN,
        signature={"x": "*fp32:16", "out": "*fp32:16", "step": "i32:16"},
        constants={"N": size},
        num_warps=num_warps,
    )
    assert compiled_kernel.metadata.local_bytes == 0
    assert compiled_kernel.metadata.registers <= 128
    dots = 3 * 4 + 1
    counted = len(re.findall(r"\bFFMA\b", compiled_kernel.asm["sass"]))
    assert counted == dots * size**3 // (32 * num_warps)

"""Dots selected for warpgroups, and their operands' shared memory layouts."""

from __future__ import annotations

import pytest

from aotc.ir.core import Block, Value
from aotc.ir.dialects import arith, tile
from aotc.ir.rewrite import Builder
from aotc.ir.types import SCALARS, TileType
from aotc.ir.wgmma_tiling import matrix_in_memory
from aotc.schedule.layout.layouts import blocked, nvmma_shared, wgmma_accumulator, wgmma_operand_a
from aotc.schedule.layout.wgmma_layouts import operand_buffer, wgmma_layouts
from aotc.target import TARGETS

HOPPER = TARGETS["sm_90a"]


def dot(
    shape: tuple[int, int, int],
    dtype: str = "bf16",
    acc: str = "fp32",
    *,
    precision: str = "tf32",
    imprecise: int = 0,
    computed: bool = False,
    batch: tuple[int, ...] = (),
) -> tile.Dot:
    m, n, k = shape
    add = Builder(Block([TileType(SCALARS[dtype], (*batch, m, k))]))
    a: Value = add.block.args[0]
    if computed:
        a = add(arith.Add(a, a)).out
    b = add(arith.Constant(1, TileType(SCALARS[dtype], (*batch, k, n)))).out
    zero = add(arith.Constant(0, TileType(SCALARS[acc], (*batch, m, n)))).out
    return add(tile.Dot(a, b, zero, precision, imprecise))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shape", "num_warps", "groups"),
    [
        ((64, 8, 16), 4, (1, 1)),
        ((128, 128, 64), 4, (1, 1)),
        ((128, 128, 64), 8, (2, 1)),
        ((64, 256, 64), 8, (1, 2)),
        ((128, 128, 64), 16, (2, 2)),
        ((256, 16, 16), 16, (4, 1)),
    ],
)
def test_warpgroups_divide_the_rows_first(
    shape: tuple[int, int, int], num_warps: int, groups: tuple[int, int]
) -> None:
    layouts = wgmma_layouts(dot(shape), num_warps, HOPPER)
    assert layouts is not None
    assert layouts.operands() == (None, None, wgmma_accumulator(shape[:2], groups))
    assert layouts.wgmma


@pytest.mark.parametrize(
    ("op", "num_warps"),
    [
        (dot((32, 64, 64)), 4),  # too few rows
        (dot((64, 64, 64)), 2),  # no whole warpgroup
        (dot((64, 8, 64)), 8),  # no columns for the second warpgroup
        (dot((64, 64, 8)), 4),  # a step of K is 32 bytes
        (dot((128, 256, 64)), 4),  # too many registers
        (dot((64, 64, 64), "fp64", "fp64"), 4),
        (dot((64, 64, 64), "fp32", precision="ieee"), 4),
        (dot((64, 512, 64), "fp8e5", imprecise=32), 8),  # no half of it is every thread's
        (dot((64, 64, 64), batch=(2,)), 4),
    ],
)
def test_what_goes_to_other_instructions(op: tile.Dot, num_warps: int) -> None:
    assert wgmma_layouts(op, num_warps, HOPPER) is None


@pytest.mark.parametrize("target", ["sm_80", "sm_100a", "sm_120a"])
def test_only_hopper_has_them(target: str) -> None:
    assert wgmma_layouts(dot((64, 64, 64)), 4, TARGETS[target]) is None


def test_they_can_be_switched_off() -> None:
    assert wgmma_layouts(dot((64, 64, 64)), 4, HOPPER.excluding(["wgmma"])) is None


@pytest.mark.parametrize(("num_warps", "in_registers"), [(4, True), (8, False)])
def test_a_computed_operand_stays_in_registers(num_warps: int, *, in_registers: bool) -> None:
    """Unless warpgroups divide the columns, so that several need the whole operand."""
    layouts = wgmma_layouts(dot((64, 64, 32), computed=True), num_warps, HOPPER)
    assert layouts is not None
    assert layouts.a == (wgmma_operand_a((64, 32), (1, 1), 16) if in_registers else None)


@pytest.mark.parametrize(
    ("dtype", "fastest", "expected"),
    [
        ("bf16", 1, nvmma_shared((64, 64), 16, 128)),
        ("bf16", 0, nvmma_shared((64, 64), 16, 128, transposed=True)),
        ("i8", 1, nvmma_shared((64, 64), 8, 64)),
        ("i8", 0, nvmma_shared((64, 64), 8, 64)),
        ("fp32", 0, nvmma_shared((64, 64), 32, 128)),
    ],
)
def test_an_operand_lies_as_in_global_memory_where_it_may(
    dtype: str, fastest: int, expected: object
) -> None:
    op = dot((64, 64, 64), dtype, "i32" if dtype == "i8" else "fp32")
    per_thread = (1, 4) if fastest == 1 else (4, 1)
    layout = blocked((64, 64), per_thread, (8, 4), (4, 1), (fastest, 1 - fastest))
    assert operand_buffer(op, op.a, layout) == expected


@pytest.mark.parametrize("k", [16, 32, 64, 128])
@pytest.mark.parametrize("n", [8, 16, 32, 64, 256])
@pytest.mark.parametrize("fastest", [0, 1])
def test_every_buffer_has_a_descriptor(n: int, k: int, fastest: int) -> None:
    op = dot((64, n, k))
    layout = blocked((k, n), (1, 1), (8, 4), (4, 1), (fastest, 1 - fastest))
    matrix = matrix_in_memory(operand_buffer(op, op.b, layout), 1, n, 16)
    assert matrix.rows_contiguous == (fastest == 1 and n > 8)

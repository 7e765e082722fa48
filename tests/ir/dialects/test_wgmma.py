"""Warpgroup products as ops: operand checks."""

from __future__ import annotations

from typing import Any

import pytest

from aotc.ir.core import Block, Value
from aotc.ir.diagnostics import IRError
from aotc.ir.dialects import arith, gpu, wgmma
from aotc.ir.rewrite import Builder
from aotc.ir.types import BF16, FP16, FP32, I1, I32, ScalarType, TileType
from aotc.schedule.layout.layouts import (
    mma_v2,
    nvmma_shared,
    row_major_shared,
    wgmma_accumulator,
    wgmma_operand_a,
)

ADD = Builder(Block([I32]))
NUMBER = ADD.block.args[0]


def buffer(element: ScalarType, shape: tuple[int, int], stages: int = 1) -> Value:
    layout = nvmma_shared(shape, element.bits, min(128, shape[1] * element.size_bytes))
    return ADD(gpu.SharedAlloc(element, shape, layout, 1024, num_stages=stages)).out


def tile(element: ScalarType, shape: tuple[int, int], layout: Any) -> Value:
    return ADD(arith.Constant(0.0, TileType(element, shape, layout))).out


A, B = buffer(BF16, (64, 32)), buffer(BF16, (32, 16))
HELD = tile(BF16, (64, 32), wgmma_operand_a((64, 32), (1, 1), 16))
ACC = tile(FP32, (64, 16), wgmma_accumulator((64, 16), (1, 1)))
HALF_ACC = tile(FP32, (64, 8), wgmma_accumulator((64, 8), (1, 1)))
TALL_A = buffer(BF16, (128, 32))
TALL_HELD = tile(BF16, (128, 32), wgmma_operand_a((128, 32), (1, 1), 16))
WIDE_B = buffer(BF16, (32, 512))
WIDE_ACC = tile(FP32, (64, 512), wgmma_accumulator((64, 512), (1, 2)))
PLAIN = ADD(gpu.SharedAlloc(BF16, (64, 32), row_major_shared((64, 32)))).out


@pytest.mark.parametrize("a", [A, tile(BF16, (64, 16), wgmma_operand_a((64, 16), (1, 1), 16))])
def test_the_result_is_as_the_accumulator(a: Value) -> None:
    always = ADD(arith.Constant(value=True, type=I1)).out
    product = wgmma.Wgmma(a, B, ACC, always, start_k=16, size_k=16)
    assert product.out.type == ACC.type
    assert [out.type for out in wgmma.WgmmaWait([product.out, product.out]).outs] == [ACC.type] * 2


@pytest.mark.parametrize(
    ("operands", "attributes", "message"),
    [
        ((A, buffer(BF16, (64, 16)), ACC), {}, "do not fit"),
        ((A, buffer(BF16, (32, 32)), ACC), {}, "do not fit"),
        ((buffer(FP16, (64, 32)), B, ACC), {}, "no dot of fp16 and bf16 in fp32"),
        ((A, B, tile(FP16, (64, 16), wgmma_accumulator((64, 16), (1, 1)))), {}, "in fp16"),
        ((A, buffer(BF16, (32, 16), 2), ACC), {}, "a shared buffer of one stage"),
        ((A, HELD, ACC), {}, "expected a shared buffer"),
        ((PLAIN, B, ACC), {}, "no descriptor describes"),
        ((A, B, tile(FP32, (64, 16), mma_v2((64, 16), (2, 2)))), {}, "do not hold a result"),
        ((ACC, B, ACC), {}, "do not fit"),
        ((A, B, ACC, NUMBER), {}, "accumulate is i32"),
        ((HELD, B, ACC), {"size_k": 16}, "do not fit"),
        ((A, B, ACC), {"start_k": 8, "size_k": 16}, "no steps of 16"),
        ((A, B, ACC), {"start_k": 16, "size_k": 32}, "no steps of 16"),
        ((A, B, ACC), {"size_k": 8}, "no steps of 16"),
        ((A, B, ACC), {"num_columns": 4}, "4 columns of 16"),
        ((A, B, ACC), {"num_columns": 24}, "24 columns of 16"),
        ((A, B, ACC), {"start": (64, 0)}, "is no part of"),
        ((A, B, HALF_ACC), {"start": (0, 4)}, "is no part of"),
        ((A, B, HALF_ACC), {"start": (8,)}, "is no part of"),
        ((A, B, HALF_ACC), {}, "do not fit"),
        ((TALL_HELD, B, ACC), {"start": (64, 0)}, "do not fit"),
        ((A, WIDE_B, WIDE_ACC), {"num_columns": 8}, "8 of 512 columns are several warpgroups"),
    ],
)
def test_what_is_no_product(
    operands: tuple[Value, ...], attributes: dict[str, int], message: str
) -> None:
    with pytest.raises(IRError, match=message):
        wgmma.Wgmma(*operands, **attributes)


@pytest.mark.parametrize(
    ("operands", "start"),
    [((A, B, HALF_ACC), (0, 8)), ((TALL_A, B, ACC), (64, 0)), ((HELD, B, HALF_ACC), (64, 8))],
)
def test_a_part_of_a_product(operands: tuple[Value, Value, Value], start: tuple[int, int]) -> None:
    """An operand A in registers has the rows of the part alone, wherever it begins."""
    assert wgmma.Wgmma(*operands, start=start).out.type == operands[2].type


def test_waits_that_mean_nothing() -> None:
    with pytest.raises(IRError, match="waits for no accumulator"):
        wgmma.WgmmaWait([])
    with pytest.raises(IRError, match="-1 pending dots"):
        wgmma.WgmmaWait([ACC], pending=-1)
    with pytest.raises(IRError):
        wgmma.WgmmaWait([A])
    with pytest.raises(IRError, match="2 numbers for 1 results"):
        wgmma.WgmmaWait([ACC], num_columns=(8, 8))

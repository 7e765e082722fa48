"""Valid uses of the matrix multiplication ops, for `every_op`."""

from __future__ import annotations

from aotc.ir.core import Value
from aotc.ir.dialects import arith, gpu, tile, wgmma
from aotc.ir.types import FP16, FP32, TileType
from aotc.schedule.layout.layouts import (
    dot_operand,
    mma_v2,
    nvmma_shared,
    replicated,
    wgmma_accumulator,
    wgmma_operand_a,
)
from tests.support.op_sampler import Sampler

_DOT_SHAPES = ((2, 16, 32), (2, 32, 8), (2, 16, 8))


def sample_dot(s: Sampler) -> None:
    """Multiply constants, so that operands have layouts only if the arguments do."""
    a, b, acc = (s.add(arith.Constant(0.5, TileType(FP32, shape))).out for shape in _DOT_SHAPES)
    s.add(tile.Dot(a, b, acc))
    s.add(tile.Dot(a, b, acc, "tf32x3", max_num_imprecise_acc=32))
    s.add(tile.Dot(a, b, acc, num_columns=8))


def sample_gpu_dot(s: Sampler) -> None:
    """Multiply constants on tensor cores, and on threads with replicated operands."""
    shapes, warps = ((16, 16), (16, 8), (16, 8)), (1, 4)
    fragments = [dot_operand(operand, shapes[operand], warps, 16) for operand in (0, 1)]
    fragments.append(mma_v2(shapes[2], warps))
    kinds = ((FP16, FP16, FP32), fragments), ((FP32,) * 3, [replicated(x, 4) for x in shapes])
    for elements, layouts in kinds:
        a, b, acc = (
            s.add(arith.Constant(0.5, TileType(element, shape, layout))).out
            for element, shape, layout in zip(elements, shapes, layouts, strict=True)
        )
        tensor_cores = (16, 8, 16) if elements[0] == FP16 else ()
        s.add(gpu.Dot(a, b, acc, tensor_cores, "ieee", max_num_imprecise_acc=32))


def sample_products(s: Sampler) -> list[Value]:
    """Multiply shared-memory, then register operands into the same accumulator."""
    shapes, groups = ((64, 16), (16, 32), (64, 32)), (1, 1)
    a, b = (
        s.add(gpu.SharedAlloc(FP16, shape, nvmma_shared(shape, 16, 32), 1024)).out
        for shape in shapes[:2]
    )
    fragment, summed = (
        s.add(arith.Constant(0.5, TileType(element, shape, layout))).out
        for element, shape, layout in (
            (FP16, shapes[0], wgmma_operand_a(shapes[0], groups, 16)),
            (FP32, shapes[2], wgmma_accumulator(shapes[2], groups)),
        )
    )
    first = s.add(wgmma.Wgmma(a, b, summed, s.flag, "ieee")).out
    part = s.add(wgmma.Wgmma(a, b, summed, num_columns=24)).out
    return [first, part, s.add(wgmma.Wgmma(fragment, b, first, start_k=0, size_k=16)).out]

"""Maps, buffers and accesses of descriptors match hardware, without bank conflicts."""

from __future__ import annotations

import itertools
from math import prod

import numpy as np
import pytest

from aotc.ir.dialects.descriptor import MAX_RANK
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.types import BF16, FP32, FP64, I8, DescriptorType, ScalarType
from aotc.schedule.context import Schedule
from aotc.schedule.layout.layouts import dot_operand, mma_v2, nvmma_shared, tensor_shared
from aotc.schedule.layout.plan_conversions import plan_conversions
from aotc.schedule.layout.scratch import bank_conflicts
from aotc.schedule.layout.tensor_copies import (
    block_layout,
    buffer_access,
    buffer_layout,
    has_parts,
    tensor_map_of,
)
from aotc.target import TARGETS
from aotc.verify.emulator.memory.swizzle import swizzled

KINDS = [
    (BF16, (512,)),
    (BF16, (8,)),
    (BF16, (1, 1024)),
    (BF16, (64, 64)),
    (BF16, (64, 32)),
    (BF16, (64, 16)),
    (BF16, (64, 8)),
    (BF16, (4, 256)),
    (BF16, (512, 64)),
    (FP32, (16, 64)),
    (FP64, (16, 2)),
    (I8, (32, 512)),
    (I8, (2, 4, 8, 64)),
    (BF16, (2, 2, 2, 2, 128)),
]


@pytest.mark.parametrize(("element", "block"), KINDS)
def test_a_map_is_one_that_the_driver_encodes(element: ScalarType, block: tuple[int, ...]) -> None:
    tensor = tensor_map_of(DescriptorType(element, block))
    row_bytes = tensor.box[-1] * element.size_bytes
    assert all(extent <= 256 for extent in tensor.box)
    assert row_bytes % 16 == 0
    assert not tensor.swizzle_bytes or row_bytes <= tensor.swizzle_bytes
    assert prod(block) % prod(tensor.box) == 0


@pytest.mark.parametrize("columns", [16, 64, 256])
def test_a_buffer_of_merged_axes_is_that_of_a_block_with_one(columns: int) -> None:
    block = (128, columns)
    deep = tensor_map_of(DescriptorType(BF16, (1, 8, 2, 8, columns)))
    flat = tensor_map_of(DescriptorType(BF16, block))
    assert buffer_layout(deep, block) == buffer_layout(flat, block)


@pytest.mark.parametrize("num_parts", [2, 4])
@pytest.mark.parametrize("block", [(64, 256), (256, 64), (128, 128), (512, 64)])
def test_parts_of_a_cluster_lie_where_one_copy_would_put_them(
    block: tuple[int, ...], num_parts: int
) -> None:
    whole, parts = (tensor_map_of(DescriptorType(BF16, block, False, n)) for n in (1, num_parts))
    assert prod(parts.box) < prod(whole.box) or block[0] > 256
    assert buffer_layout(parts, block) == buffer_layout(whole, block)


@pytest.mark.parametrize(("element", "block"), KINDS)
def test_a_buffer_lies_as_hardware_writes_it(element: ScalarType, block: tuple[int, ...]) -> None:
    """Boxes one after the other, in each its rows, chunks where the swizzle puts them."""
    tensor = tensor_map_of(DescriptorType(element, block))
    layout, size = buffer_layout(tensor, block), element.size_bytes
    table = layout.table("offset")
    element_at = {element: offset for offset, element in enumerate(table)}
    num_boxes = [extent // box for extent, box in zip(block, tensor.box, strict=True)]
    for number, origin in enumerate(itertools.product(*map(range, num_boxes))):
        del number
        # The last axis counts fastest among boxes, and the next follows.
        position = int(np.ravel_multi_index(origin[::-1], num_boxes[::-1], order="F"))
        for inner in itertools.islice(np.ndindex(*tensor.box), 0, None, 7):
            coords = [o * b + i for o, b, i in zip(origin, tensor.box, inner, strict=True)]
            plain = (
                position * tensor.box_bytes + int(np.ravel_multi_index(inner, tensor.box)) * size
            )
            element_offset = swizzled(np.array([plain]), tensor.swizzle_bytes)[0]
            assert element_at[layout.pack(coords)] * size == element_offset


@pytest.mark.parametrize(("bits", "span"), [(16, 128), (16, 64), (8, 128), (32, 32)])
def test_two_axes_are_what_a_warpgroup_reads(bits: int, span: int) -> None:
    shape = (64, 2 * span * 8 // bits)
    box = (64, span * 8 // bits)
    assert tensor_shared(shape, bits, box, span) == nvmma_shared(shape, bits, span)


@pytest.mark.parametrize(("element", "block"), KINDS)
@pytest.mark.parametrize("num_warps", [1, 4, 8])
def test_rows_are_accessed_by_16_bytes_without_conflicts(
    element: ScalarType, block: tuple[int, ...], num_warps: int
) -> None:
    kind = DescriptorType(element, block)
    buffer = buffer_layout(tensor_map_of(kind), block)
    layout = block_layout(kind, num_warps)
    bits = element.size_bytes * 8
    vector, mode = buffer_access(layout, buffer, bits, ("",))
    per_thread = max(1, prod(block) // (32 * num_warps))
    assert mode == ""
    assert vector == min(128 // bits, per_thread, block[-1])
    assert bank_conflicts(layout, buffer, vector, bits) == 0


@pytest.mark.parametrize("operand", [0, 1])
def test_fragments_are_read_as_matrices(operand: int) -> None:
    """A is row-major as K is; B (K, N) is read from its transpose or transposing."""
    shape = (64, 64)
    buffer = buffer_layout(tensor_map_of(DescriptorType(BF16, shape)), shape)
    layout = dot_operand(operand, shape, (1, 4), 16)
    modes = ("", "b16", "b16.trans")
    assert buffer_access(layout, buffer, 16, modes) == (8, ("b16", "b16.trans")[operand])
    transposed = layout.transpose((1, 0))
    assert buffer_access(transposed, buffer, 16, modes) == (8, ("b16.trans", "b16")[operand])


def test_an_accumulator_is_written_as_matrices() -> None:
    shape = (64, 64)
    buffer = buffer_layout(tensor_map_of(DescriptorType(BF16, shape)), shape)
    assert buffer_access(mma_v2(shape, (4, 1)), buffer, 16, ("", "b16")) == (8, "b16")
    assert buffer_access(mma_v2(shape, (4, 1)), buffer, 16, ("",)) == (2, "")


CONVERSION = """\
#0 = #ll<offset=[[1],[2],[4],[8],[16],[32],[64]] : [128]>
#1 = #ll<register=[[1],[2]] lane=[[4],[8],[16],[32],[64]] : [128]>
#2 = #ll<register=[[32],[64]] lane=[[1],[2],[4],[8],[16]] : [128]>
kernel @k(%x: map<128xfp32, 0>, %i: i32, %p: tile<128x*fp32, #2>) {num_warps = 1} {
  %b = gpu.shared_alloc {element = fp32, shape = [128], layout = #0, alignment_bytes = 128} : shared<128xfp32, #0>
  gpu.sync_tma_load(%x, %b, %i)
  %v = gpu.shared_load(%b) {layout = #1, vector = 4} : tile<128xfp32, #1>
  EXTRA
  %w = gpu.convert(%v) {layout = #2} : tile<128xfp32, #2>
  gpu.store(%p, %w)
  scf.return
}
"""


@pytest.mark.parametrize(
    ("extra", "is_read_again"), [("", True), ("gpu.shared_store(%v, %b) {vector = 4}", False)]
)
def test_a_fetched_tile_is_read_again_not_exchanged(extra: str, is_read_again: bool) -> None:
    kernel = parse_kernel(CONVERSION.replace("EXTRA", extra))
    plan_conversions(kernel, Schedule(TARGETS["sm_90a"]))
    text = print_kernel(kernel)
    assert "gpu.convert" not in text
    assert ("%w = gpu.shared_load(%b)" in text) == is_read_again


@pytest.mark.parametrize(("element", "block"), KINDS)
def test_a_buffer_lies_the_same_without_first_axes_of_one(
    element: ScalarType, block: tuple[int, ...]
) -> None:
    alone = buffer_layout(tensor_map_of(DescriptorType(element, block)), block)
    for lacking in range(1, MAX_RANK + 1 - len(block)):
        whole = (*[1] * lacking, *block)
        tensor = tensor_map_of(DescriptorType(element, whole))
        assert buffer_layout(tensor, block).table("offset") == alone.table("offset")
        assert buffer_layout(tensor, whole).table("offset") == alone.table("offset")


@pytest.mark.parametrize(
    ("block", "num_parts", "expected"),
    [
        ((16, 64), 2, True),
        ((16, 16), 4, True),  # 4 rows of 32 bytes
        ((16, 8), 4, False),  # 64 bytes: no copy may begin there
        ((16, 8), 2, True),
        ((6, 64), 4, False),
        ((64,), 2, False),
        ((1, 16, 64), 2, True),
        ((1, 1, 64), 2, False),
    ],
)
def test_parts_begin_where_copies_may_write(
    block: tuple[int, ...], num_parts: int, expected: bool
) -> None:
    assert has_parts(DescriptorType(BF16, block), num_parts) == expected

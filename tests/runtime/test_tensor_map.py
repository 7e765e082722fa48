"""Maps of tensors for kernels with maps in memory: the driver's encoding requests."""

from __future__ import annotations

import struct
from math import prod
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aotc.ir.types import SCALARS, DescriptorType
from aotc.package.builder.assemble import DATA_TYPES
from aotc.runtime import ArgumentError, Library, StateError, Tensor
from aotc.schedule.layout.tensor_copies import tensor_map_of
from tests.runtime.conftest import Load
from tests.support.extent import examples
from tests.support.gpu_arrays import Content, CudaArray, DLPackArray

SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}


def _words(encoded: bytes) -> tuple[int, ...]:
    """Return the fake driver's map: address, rank and codes, five sizes, four strides, box."""
    return struct.unpack("<16Q", encoded)


@st.composite
def _blocks(draw: st.DrawFn) -> tuple[str, tuple[int, ...]]:
    dtype = draw(st.sampled_from(list(SCALARS)))
    extents = [1 << draw(st.integers(0, 9)) for _ in range(draw(st.integers(0, 4)))]
    least = 16 // SCALARS[dtype].size_bytes
    return dtype, (*extents, least << draw(st.integers(0, 6)))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(200))
@given(_blocks())
def test_a_map_is_the_one_that_the_compiler_expects(
    library: Library, chosen: tuple[str, tuple[int, ...]]
) -> None:
    dtype, block = chosen
    element = SCALARS[dtype]
    shape = tuple(range(3, 3 + len(block)))
    strides = tuple(1 << 8 * axis for axis in range(len(block)))[::-1]
    words = _words(library.tensor_map(Tensor(0x1000, dtype, shape, strides), block))
    expected = tensor_map_of(DescriptorType(element, block))
    codes = len(block) | DATA_TYPES[dtype] << 8 | SWIZZLES[expected.swizzle_bytes] << 16
    assert words[:2] == (0x1000, codes)
    assert words[2 : 2 + len(block)] == shape[::-1]
    steps = tuple(stride * element.size_bytes for stride in strides[-2::-1])
    assert words[7 : 7 + len(steps)] == steps
    assert words[11 : 11 + len(block)] == expected.box[::-1]
    assert prod(block) % prod(expected.box) == 0


@pytest.mark.parametrize(
    "array",
    [CudaArray(0x4000, "<f4", (100, 64)), DLPackArray(Content(0x4000, "fp32", (100, 64)))],
    ids=["cuda array", "DLPack"],
)
def test_arrays_of_libraries(library: Library, array: object) -> None:
    words = _words(library.tensor_map(array, block=[32, 32]))
    assert words[0] == 0x4000
    assert (words[2:4], words[7], words[11:13]) == ((64, 100), 256, (32, 32))


@pytest.mark.parametrize(
    ("tensor", "block", "message"),
    [
        (Tensor(0x1000, "bf16", (8, 64)), (8, 48), r"block\[1\]: expected a power of two, got 48"),
        (Tensor(0x1000, "bf16", (8, 64)), (8, 4), r"block\[1\]: expected 8 or more, got 4"),
        (Tensor(0x1000, "bf16", (8, 64)), (64,), "expected a tensor of rank 1, got rank 2"),
        (Tensor(0x1000, "bf16", (8, 64)), (), "expected 1 to 5 extents, got 0"),
        (Tensor(0x1000, "bf16", (8, 64)), (8,) * 6, "expected 1 to 5 extents, got 6"),
        (Tensor(0x1000, "bf16", (8, 64)), (8, -1), "powers of two, got -1"),
        (Tensor(0x1000, "bf16", (8, 64)), (8, "64"), "powers of two, got str"),
        (Tensor(0x1000, "bf16", (8, 64)), 64, "expected a sequence of extents, got int"),
        (Tensor(0x1008, "bf16", (8, 64)), (8, 64), "a multiple of 16, got 0x1008"),
        (Tensor(0x1000, "bf16", (8, 65)), (8, 64), "stride of dimension 1"),
        (Tensor(0x1000, "bf16", (8, 64), (128, 2)), (8, 64), "a last axis without gaps"),
        (Tensor(0x1000, "bf16", (0, 64)), (8, 64), "size of dimension 1"),
        (0x1000, (8, 64), "expected a tensor with shape and strides, got an address"),
        ("x", (8, 64), "argument 'tensor'"),
    ],
)
def test_what_no_map_describes(
    library: Library, tensor: object, block: object, message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        library.tensor_map(tensor, block)  # type: ignore[arg-type]


def test_a_closed_library_makes_none(load: Load, archives: Path) -> None:
    library = load(archives / "golden.aotc")
    library.close()
    with pytest.raises(StateError, match="closed"):
        library.tensor_map(Tensor(0x1000, "fp32", (4,)), (4,))

"""Tensors passed to a compiled kernel: the launcher's maps and parameters."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from aotc.package.archive.file import encode
from aotc.package.archive.index import Archive
from aotc.runtime import ArgumentError, Library, Tensor
from tests.support.descriptor_manifest import built
from tests.support.fake_gpu import FakeGpu
from tests.support.gpu_arrays import Content, DLPackArray

FIRST_MAP = 48  # aligned to 64 bytes where the block of parameters begins
X, Y = 0x7F00_0000_1000, 0x7F00_0010_0000


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("descriptors")
    return encode(Archive("descriptors", "0.1.0", (built(folder),)))


@pytest.fixture
def library(load: Callable[..., Library], content: bytes) -> Library:
    return load(content)


def _tensor(
    address: int, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...]
) -> DLPackArray:
    return DLPackArray(Content(address, dtype, shape, strides))


def test_maps_are_encoded_from_what_the_tensors_are(library: Library, gpu: FakeGpu) -> None:
    x = _tensor(X, "bf16", (100, 72), (80, 1))
    y = _tensor(Y, "fp32", (100, 72), (96, 1))
    library["scale"](x, y, 0.5)
    launch = gpu.last()
    assert launch.grid == (7, 1, 1)
    # The fake driver's encoding: address, type and swizzle, dims, strides.
    words = struct.unpack_from("<32Q", launch.params, FIRST_MAP)
    assert words[:4] == (X, 2 | 9 << 8 | 3 << 16, 72, 100)
    assert words[7] == 160
    assert words[16:20] == (Y, 2 | 7 << 8 | 3 << 16, 72, 100)
    assert words[23] == 384
    assert struct.unpack_from("<fi", launch.params, FIRST_MAP + 256) == (0.5, 72)


@pytest.mark.parametrize(
    ("address", "shape", "strides", "message"),
    [
        (X + 8, (100, 72), (72, 1), "x is 16-byte aligned, its last axis dense"),
        (X, (100, 72), (144, 2), "x is 16-byte aligned, its last axis dense"),
        (X, (100, 72), (71, 1), "argument 'x': expected stride of dimension 1"),
        (X, (100, 72), (1 << 40, 1), "argument 'x': expected stride of dimension 1"),
        (X, (100, 72, 1), (72, 1, 1), "a tensor of rank 2"),
        (X, (100, 0), (72, 1), "argument 'x': expected size of dimension 0"),
    ],
)
def test_what_a_map_cannot_describe_is_named(
    library: Library,
    gpu: FakeGpu,
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    message: str,
) -> None:
    x, y = _tensor(address, "bf16", shape, strides), _tensor(Y, "fp32", (100, 72), (80, 1))
    with pytest.raises(ArgumentError, match=message):
        library["scale"](x, y, 0.5)
    assert gpu.launches == 0


@pytest.mark.parametrize("columns", [1, 63, 70, 71, 73])
def test_extents_are_free_for_loads_alone(library: Library, gpu: FakeGpu, columns: int) -> None:
    loaded = _tensor(X, "bf16", (100, columns), (80, 1))
    library["scale"](loaded, _tensor(Y, "fp32", (100, 72), (96, 1)), 0.5)
    words = struct.unpack_from("<32Q", gpu.last().params, FIRST_MAP)
    assert words[2:4] == (columns, 100)
    stored = _tensor(Y, "fp32", (100, columns), (96, 1))
    with pytest.raises(ArgumentError, match="y is 16-byte aligned, .* a multiple of 4 elements"):
        library["scale"](loaded, stored, 0.5)


def test_no_rows_are_no_launch(library: Library, gpu: FakeGpu) -> None:
    x, y = _tensor(X, "bf16", (0, 72), (72, 1)), _tensor(Y, "fp32", (0, 72), (80, 1))
    library["scale"](x, y, 0.5)
    assert gpu.launches == 0


def test_a_tensor_that_no_library_owns(library: Library, gpu: FakeGpu) -> None:
    y = _tensor(Y, "fp32", (100, 64), (64, 1))
    library["scale"](Tensor(X, "bf16", (100, 64)), y, 0.5)
    words = struct.unpack_from("<32Q", gpu.last().params, FIRST_MAP)
    assert (words[0], words[2:4], words[7]) == (X, (64, 100), 128)
    library["scale"](Tensor(X, "bf16", (100, 64), (72, 1)), y, 0.5)
    assert struct.unpack_from("<Q", gpu.last().params, FIRST_MAP + 56) == (144,)


@pytest.mark.parametrize(
    "passed",
    [
        (X, "bf16", (100,), None),
        (X, "fp16", (100, 64), None),
        (X, "bfloat", (100, 64), None),
        (X, "bf16", [100, 64], None),
        (X, "bf16", (100, "64"), None),
        (X, "bf16", (100, 64), (64,)),
        (-1, "bf16", (100, 64), None),
        (1 << 64, "bf16", (100, 64), None),
        (1.5, "bf16", (100, 64), None),
        (X, "bf16", (100, 64)),
        (X, 16, (100, 64), None),
    ],
)
def test_what_is_no_such_tensor(library: Library, gpu: FakeGpu, passed: object) -> None:
    with pytest.raises(ArgumentError, match="argument 'x'"):
        library["scale"](passed, _tensor(Y, "fp32", (100, 64), (64, 1)), 0.5)
    assert gpu.launches == 0

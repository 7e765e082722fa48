"""Kernels with their own descriptors: the launcher's maps, and its choice of the other form."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from aotc.cli import EXIT_DONE, run
from aotc.runtime import ArgumentError, Library
from tests.support.fake_gpu import FakeGpu

pytestmark = pytest.mark.usefixtures("one_worker")

SOURCE = """
import triton
import triton.language as tl


@triton.jit
def copy(x, out_ptr, step, BLOCK: tl.constexpr):
    z = tl.program_id(1)
    out = tl.make_tensor_descriptor(
        out_ptr + z * step, x.shape, x.strides[:-1] + (1,), x.block_shape
    )
    i = tl.program_id(0) * BLOCK
    out.store([i, 0], x.load([i, 0]))


@triton.jit
def gather(x_ptrs, out_ptr, n, n_tensors, BLOCK: tl.constexpr):
    x = tl.load(x_ptrs + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    tensor = tl.make_tensor_descriptor(x, [n, 32], [32, 1], [BLOCK, 32])
    i = tl.arange(0, BLOCK * 32)
    tl.store(out_ptr + tl.program_id(0) * BLOCK * 32 + i, tensor.load([0, 0]).reshape(BLOCK * 32))
"""
MANIFEST = """
[package]
name = "made"
version = "0.1.0"
targets = ["sm_90a"]
[[kernel]]
source = "kernels.py:copy"
grid = ["cdiv(x.shape[0], BLOCK)", "2"]
signature = { x = "tensordesc<fp32[BLOCK,32]>", out_ptr = "*fp32:16", step = "i32" }
constants = { BLOCK = 16 }
[[kernel]]
source = "kernels.py:gather"
grid = ["n_tensors", "2"]
signature = { x_ptrs = "*i64", out_ptr = "*fp32", n = "i32", n_tensors = "i32" }
constants = { BLOCK = 16 }
"""
X, OUT, SCRATCH = 0x7F00_0000_1000, 0x7F00_0010_0000, 0x7F00_0020_0000


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("made")
    (folder / "kernels.py").write_text(SOURCE)
    (folder / "kernels.toml").write_text(MANIFEST)
    assert run(["build", str(folder / "kernels.toml"), "-o", str(folder)]) == EXIT_DONE
    return (folder / "made.aotc").read_bytes()


@pytest.fixture
def library(load: Callable[..., Library], content: bytes) -> Library:
    return load(content)


def _tensor(rows: int, columns: int, stride: int) -> tuple[object, ...]:
    return X, "fp32", (rows, columns), (stride, 1)


def _maps(gpu: FakeGpu) -> list[tuple[int, ...]]:
    """Return address, extents and strides of the maps of a launch, as the fake driver writes them."""
    params, maps = gpu.last().params, []
    for offset in range(0, len(params) - 127, 8):
        words = struct.unpack_from("<16Q", params, offset)
        if words[0] in (X, OUT) and words[11] == 32:  # the box's columns
            maps.append((words[0], *words[2:5], *words[7:9]))
    return maps


def test_sizes_of_one_tensor_describe_another(library: Library, gpu: FakeGpu) -> None:
    library["copy"](_tensor(40, 32, 64), OUT, 4096)
    assert gpu.last().grid == (3, 2, 1)
    assert gpu.calls("cuTensorMapEncodeTiled") == 2
    x, out = _maps(gpu)
    assert x[:3] == (X, 32, 40)
    # The step of programs is the outermost axis, and has no end.
    assert out == (OUT, 32, 40, (1 << 31) - 1, 64 * 4, 4096 * 4)


@pytest.mark.parametrize("step", [4097, -4096])
def test_what_no_map_describes_is_stored_through_pointers(
    library: Library, gpu: FakeGpu, step: int
) -> None:
    library["copy"](_tensor(40, 32, 64), OUT, step)
    assert gpu.calls("cuTensorMapEncodeTiled") == 1
    assert [record[0] for record in _maps(gpu)] == [X]


def test_maps_that_the_kernel_makes_take_scratch_memory(library: Library, gpu: FakeGpu) -> None:
    """128 bytes for each program, at a multiple of 128, from a pool if the caller passes none."""
    args = X, OUT, 7, 3
    chosen = library["gather"].select(args)
    assert chosen.scratch_bytes == 3 * 2 * 128
    with pytest.raises(ArgumentError, match="768 bytes of device memory, aligned to 128"):
        library["gather"].launch(args, scratch=(SCRATCH, 767))
    with pytest.raises(ArgumentError, match="scratch"):
        library["gather"].launch(args, scratch=(SCRATCH + 64, 768))
    assert gpu.calls("cuMemAllocFromPoolAsync") == 0
    for count in (1, 2):
        library["gather"](*args)
        assert struct.unpack_from("<4Q", gpu.last().params)[-1] % 128 == 0
        assert gpu.calls("cuMemAllocFromPoolAsync") == gpu.calls("cuMemFreeAsync") == count
    library["gather"].launch(args, scratch=(SCRATCH, 768))
    assert gpu.calls("cuMemAllocFromPoolAsync") == 2
    assert gpu.last().grid == (3, 2, 1)
    assert struct.unpack_from("<4Q", gpu.last().params)[-1] == SCRATCH
    assert gpu.calls("cuTensorMapEncodeTiled") == 0

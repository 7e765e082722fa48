"""Kernels from `aotc.compile` launch themselves, on the fake driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import aotc
from aotc import LaunchableKernel
from aotc.ir.diagnostics import CompileError
from aotc.package.archive.file import decode
from aotc.runtime import ArgumentError
from tests.runtime.conftest import driver, frameworks, gpu
from tests.support.fake_gpu import AMPERE, ROOT, FakeGpu
from tests.support.gpu_arrays import CudaArray, TorchTensor
from tests.support.written_module import written_module
from tests.test_compiler import MATMUL, TILES

__all__ = ["driver", "frameworks", "gpu"]  # fixtures

TEXT = """
import triton
import triton.language as tl

@triton.jit
def add(x, y, n, bias, scale, BLOCK: tl.constexpr, ACT: tl.constexpr = "none"):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n) * scale
    if bias is not None:
        v += tl.load(bias)
    if ACT == "relu":
        v = tl.maximum(v, 0.0)
    tl.store(y + at, v, mask=at < n)

@triton.jit
def fill(x, shape, count: tl.int64, flag):
    rows, cols = shape
    at = tl.arange(0, 64)
    tl.store(x + at, (rows * cols + count).to(tl.float32), mask=(at < rows) & flag)
"""
X, Y = 0x7F00_0000_1000, 0x7F00_0000_2000
Make = Callable[..., LaunchableKernel]


@pytest.fixture
def make(gpu: FakeGpu) -> Iterator[Make]:
    """`aotc.compile` of a kernel of TEXT, loaded on the fake driver."""
    kernels: list[LaunchableKernel] = []

    def compiled(name: str, *args: object, **options: Any) -> LaunchableKernel:
        arg_options = {"args": args} if args else {}
        kernels.append(aotc.compile(name, source=TEXT, **arg_options, **options))
        kernels[-1].load(driver=str(gpu.path))
        return kernels[-1]

    yield compiled
    for kernel in kernels:
        kernel.close()


def test_arguments_tell_types_promises_and_constants(make: Make) -> None:
    kernel = make("add", CudaArray(X), CudaArray(Y + 4), 96, None, 0.5, 256)
    assert dict(kernel.request.signature) == {
        "x": "*fp32:16", "y": "*fp32", "n": "i32:16", "bias": "none", "scale": "fp32",
    }  # fmt: skip
    assert dict(kernel.request.constants) == {"BLOCK": 256}
    plain = make("add", CudaArray(X), CudaArray(Y), 1, None, 0.5, constants={"BLOCK": 64})
    assert dict(plain.request.signature)["n"] == "i32=1"
    half = CudaArray(X, "<f2")
    annotated = make("add", half, half, 1 << 33, half, 2.0, 64, signature={"n": "i64"})
    assert dict(annotated.request.signature) == {
        "x": "*fp16:16", "y": "*fp16:16", "n": "i64", "bias": "*fp16:16", "scale": "fp32",
    }  # fmt: skip


def test_a_launch_is_written_as_in_triton(make: Make, gpu: FakeGpu) -> None:
    args = (CudaArray(X), CudaArray(Y), 1000, None, 0.5)
    kernel = make("add", *args, constants={"BLOCK": 256}, num_warps=2)
    kernel[lambda meta: (-(-meta["n"] // meta["BLOCK"]),)](*args)
    launch = gpu.last()
    assert (launch.grid, launch.block) == ((4, 1, 1), (64, 1, 1))
    assert launch.unpack("QQif") == (X, Y, 1000, 0.5)
    kernel[2, 3](args[0], y=args[1], n=7, scale=2.0, BLOCK=256, num_warps=2)
    assert gpu.last().grid == (2, 3, 1)
    assert gpu.last().unpack("QQif") == (X, Y, 7, 2.0)
    stream = gpu.stream()
    kernel.launch(args, grid=5, stream=stream)
    assert gpu.last().stream == stream


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        ({3: CudaArray(X)}, {}, "add, bias: expected none, got .*compile it again"),
        ({}, {"BLOCK": 128}, "BLOCK: expected 256, got 128; compile it again"),
        ({}, {"num_warps": 8}, "num_warps: expected 4, got 8"),
        ({}, {"BLOCKS": 1}, "got 'BLOCKS'; did you mean 'BLOCK'?"),
        ({}, {"n": 3}, "n: expected each argument once, got it twice"),
        ({}, {"ACT": "relu"}, "ACT: expected no value.*among the constants when it is compiled"),
        ({4: "x"}, {}, "argument 'scale': expected a number for fp32, got str"),
        ({0: CudaArray(X + 4)}, {}, "x"),
        ({0: CudaArray(X, "<f2")}, {}, "argument 'x'"),
    ],
)
def test_a_launch_of_something_else_is_refused(
    make: Make, change: dict[int, object], words: dict[str, object], message: str
) -> None:
    args: list[object] = [CudaArray(X), CudaArray(Y), 1000, None, 0.5]
    kernel = make("add", *args, constants={"BLOCK": 256})
    for position, value in change.items():
        args[position] = value
    with pytest.raises(ArgumentError, match=message):
        kernel[1](*args, **words)
    with pytest.raises(ArgumentError, match="y: expected .*fp32:16, got nothing"):
        kernel[1](args[0])
    with pytest.raises(ArgumentError, match="at most 7 arguments, got 8"):
        kernel[1](*range(8))


CLOSURES = """
from typing import NamedTuple
import triton
import triton.language as tl

class Closure(NamedTuple):
    fn: tl.constexpr
    captured: tuple

def make():
    @triton.jit
    def act(x, a, b):
        return x * tl.load(a) + b
    return act

def make_other():
    @triton.jit
    def act(x):
        return x + 1
    return act

@triton.jit
def apply(p, closure):
    tl.store(p, closure.fn(tl.load(p), *closure.captured))
"""


class Shape(NamedTuple):
    rows: int
    cols: int


def test_tuples_annotations_and_truth_values(make: Make, gpu: FakeGpu) -> None:
    args = (CudaArray(X), Shape(48, 1), 5, True)
    kernel = make("fill", *args)
    assert dict(kernel.request.signature) == {
        "x": "*fp32:16", "shape": "(rows: i32:16, cols: i32=1)", "count": "i64", "flag": "i1",
    }  # fmt: skip
    kernel[1](*args)
    assert gpu.last().unpack("Qi4xq?") == (X, 48, 5, True)
    with pytest.raises(ArgumentError, match=r"shape.cols: expected i32=1, got 2"):
        kernel[1](args[0], (48, 2), 5, True)
    with pytest.raises(ArgumentError, match="a tuple of 2"):
        kernel[1](args[0], 48, 5, True)


def test_functions_and_nothing_in_tuples(tmp_path: Path, gpu: FakeGpu) -> None:
    """Closures in Triton's form: a function and its captured values, possibly none."""
    closures = written_module(tmp_path / "closures.py", CLOSURES)
    mul, other = closures.make(), closures.make_other()
    args = (CudaArray(X), closures.Closure(mul, (CudaArray(Y), 3.0)))
    kernel = aotc.compile(closures.apply, args=args)
    kernel.load(driver=str(gpu.path))
    kernel[1](*args)
    assert gpu.last().unpack("QQf") == (X, Y, 3.0)
    with pytest.raises(ArgumentError, match="closure_fn: expected the function"):
        kernel[1](args[0], closures.Closure(other, args[1].captured))
    kernel.close()
    args = (CudaArray(X), closures.Closure(other, ()))
    kernel = aotc.compile(closures.apply, args=args)
    kernel.load(driver=str(gpu.path))
    kernel[1](*args)
    assert gpu.last().unpack("Q") == (X,)
    with pytest.raises(ArgumentError, match="a tuple of 0"):
        kernel[1](args[0], closures.Closure(other, (1,)))
    kernel.close()


def test_tensor_maps_are_encoded_where_they_can_be(gpu: FakeGpu) -> None:
    """With a fallback for launches without a valid map."""
    source = f"{ROOT}/kernels/matmul.py:matmul_kernel"
    kernel = aotc.compile(source, signature=MATMUL, constants=TILES, map_pointers=True)
    assert any(slot.tensor_map for slot in kernel.metadata.params)
    kernel.load(driver=str(gpu.path))
    addresses = dict.fromkeys(("a_ptr", "b_ptr", "bias_ptr", "residual_ptr", "out_ptr"), X)
    strides = dict.fromkeys(("stride_am", "stride_bk", "stride_om"), 256)
    encoded: list[int] = []
    for size in (256, 0):
        sizes = dict.fromkeys("MNK", size)
        kernel.launch((), {**addresses, **strides, **sizes}, grid=16)
        encoded.append(gpu.calls("cuTensorMapEncodeTiled"))
    assert encoded == [3, 3]  # the second launch has none
    kernel.close()


def test_its_archive_is_an_archive(make: Make) -> None:
    kernel = make("add", CudaArray(X), CudaArray(Y), 7, None, 0.5, 64)
    (record,) = decode(kernel.to_archive()).kernels
    assert [param.name for param in record.params] == ["x", "y", "n", "scale"]
    assert record.variants[0].cubin == kernel.cubin
    assert kernel.to_archive() == kernel.to_archive()


def test_it_is_loaded_where_tensors_lie(
    gpu: FakeGpu,
    frameworks: None,
) -> None:
    kernel = aotc.compile("add", source=TEXT, args=(CudaArray(X), CudaArray(Y), 7, None, 0.5, 64))
    gpu.reset((9, 0, 232448), (9, 0, 232448))
    kernel.load(0, driver=str(gpu.path))
    kernel[1](*(TorchTensor(array, device=1) for array in (X, Y)), 7, None, 0.5, 64)
    assert gpu.last().device == 1
    kernel.close()


def test_what_cannot_be_compiled_says_so() -> None:
    with pytest.raises(CompileError, match="expected the types of the kernel's arguments"):
        aotc.compile("add", source=TEXT)
    with pytest.raises(CompileError, match="args names 'z'.*") as caught:
        aotc.compile("add", source=TEXT, args={"z": 1})
    assert "its parameters are x, y, n" in caught.value.remedy
    with pytest.raises(CompileError, match="expected at most 7 arguments"):
        aotc.compile("add", source=TEXT, args=range(8))
    with pytest.raises(CompileError, match="the type of scale must be like"):
        aotc.compile("add", source=TEXT, args=(CudaArray(X), CudaArray(Y), 7, None, "half", 64))


def test_the_native_target_is_that_of_the_first_gpu(
    gpu: FakeGpu,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from aotc.package import launchable
    from aotc.package.inspect import cuda_driver

    gpu.reset(AMPERE)
    monkeypatch.setattr(launchable, "ask", lambda: cuda_driver.ask(str(gpu.path)))
    kernel = aotc.compile(
        "fill", source=TEXT, args=((CudaArray(X)), (3, 4), 5, False), target="native"
    )
    assert kernel.metadata.target == "sm_80"
    monkeypatch.setattr(launchable, "ask", lambda: cuda_driver.ask("no-driver.so"))
    with pytest.raises(CompileError, match="expected a GPU that aotc has a target for, got none"):
        aotc.compile("fill", source=TEXT, args=(CudaArray(X), (3, 4), 5, False), target="native")

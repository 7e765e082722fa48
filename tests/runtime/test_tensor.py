"""Address, dtype, shape and strides of pointers and tensors, by each protocol."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from aotc.runtime import ArgumentError, Kernel, Library, Pointer
from tests.support.array_makers import (
    BUFFER,
    Maker,
    cuda_array,
    dlpack,
    each_protocol,
    old_dlpack,
    torch_tensor,
)
from tests.support.fake_gpu import FakeGpu
from tests.support.gpu_arrays import (
    Content,
    CudaArray,
    DLPackArray,
    ExchangeArray,
    TorchTensor,
    packed_strides,
)

Load = Callable[..., Library]

pytestmark = pytest.mark.usefixtures("frameworks")


# ------------------------------------------------------------------------------ address and dtype


@each_protocol
def test_address_and_dtype(scale: Kernel, gpu: FakeGpu, make: Maker) -> None:
    for dtype in ("fp16", "fp32", "i64", "i1"):
        scale(make(BUFFER, dtype), make(BUFFER + 64, dtype), True if dtype == "i1" else 1, 128)
        assert gpu.last().symbol == f"scale_{dtype}"
        assert gpu.last().unpack("QQ") == (BUFFER, BUFFER + 64)


@pytest.mark.parametrize("make", [ExchangeArray, torch_tensor, dlpack])
def test_bfloat16(scale: Kernel, gpu: FakeGpu, make: Maker) -> None:
    scale(make(BUFFER, "bf16"), make(BUFFER, "bf16"), 1.0, 1)
    assert gpu.last().symbol == "scale_bf16"


@pytest.mark.parametrize(
    ("dtype", "typestr"),
    [("i1", "|b1"), ("i8", "|i1"), ("i16", "<i2"), ("i32", "<i4"), ("i64", "<i8"), ("u8", "|u1"),
     ("u16", "<u2"), ("u32", "<u4"), ("u64", "<u8"), ("fp16", "<f2"), ("fp32", "<f4"), ("fp64", "<f8"),
     ("bf16", ""), ("fp8e4nv", ""), ("fp8e5", "")],
)  # fmt: skip
def test_every_dtype_is_known(shape: Kernel, dtype: str, typestr: str) -> None:
    """`shape` takes bf16 alone: every other dtype is refused by its name, so it was understood."""
    arrays = [ExchangeArray(BUFFER, dtype, (4, 4)), DLPackArray(Content(BUFFER, dtype, (4, 4)))]
    if typestr:
        arrays.append(CudaArray(BUFFER, typestr, (4, 4)))
    for array in arrays:
        if dtype == "bf16":
            shape(array, grid=1)
            continue
        with pytest.raises(ArgumentError, match=f"argument 'a': expected bf16, got {dtype}"):
            shape(array, grid=1)


def test_every_dtype_of_torch_is_known(shape: Kernel) -> None:
    names = {"float32": "fp32", "float16": "fp16", "int32": "i32", "int64": "i64", "bool": "i1",
             "int8": "i8", "uint8": "u8", "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5"}  # fmt: skip
    for name, dtype in names.items():
        with pytest.raises(ArgumentError, match=f"'a': expected bf16, got {dtype}"):
            shape(TorchTensor(BUFFER, name, (4, 4)), grid=1)


@pytest.mark.parametrize(
    ("array", "actual"),
    [
        (ExchangeArray(BUFFER, "complex64"), "DLPack dtype code 5, 64 bits"),
        (ExchangeArray(BUFFER, "fp32", lanes=4), "4 lanes"),
        (DLPackArray(Content(BUFFER, "complex64")), "DLPack dtype code 5"),
        (CudaArray(BUFFER, "<c8"), "type string <c8"),
        (CudaArray(BUFFER, ">f4"), "type string >f4"),
        (CudaArray(BUFFER, "|V2"), "type string |V2"),
        (CudaArray(BUFFER, ""), "type string"),
        (TorchTensor(BUFFER, "complex64"), "torch.complex64"),
    ],
)
def test_dtypes_that_no_kernel_has(scale: Kernel, array: object, actual: str) -> None:
    with pytest.raises(
        ArgumentError, match="'x_ptr': expected a pointer to fp16 or bf16 or"
    ) as error:
        scale(array, 16, 1.0, 1)
    assert actual in str(error.value)


def test_dtypes_that_this_kernel_has_not(library: Library) -> None:
    with pytest.raises(ArgumentError, match="'x_ptr': expected fp16, fp32 for T, got i64"):
        library["add"](torch_tensor(BUFFER, "i64"), 16, 32, 1)


def test_dtypes_that_differ(library: Library) -> None:
    with pytest.raises(ArgumentError, match="'y_ptr': expected fp16, as the arguments of type T"):
        library["add"](torch_tensor(BUFFER, "fp16"), torch_tensor(BUFFER, "fp32"), 32, 1)


@each_protocol
def test_empty_arrays_have_address_0(scale: Kernel, gpu: FakeGpu, make: Maker) -> None:
    scale(make(0, shape=(0,)), make(0, shape=(0,)), 1.0, 1)
    assert gpu.last().unpack("QQ") == (0, 0)


def test_an_address_of_none_is_0(scale: Kernel, gpu: FakeGpu) -> None:
    scale(CudaArray(None), 32, 1.0, 1)
    assert gpu.last().unpack("Q") == (0,)


def test_byte_offset(scale: Kernel, gpu: FakeGpu) -> None:
    for make in (ExchangeArray, dlpack, old_dlpack):
        scale(make(BUFFER, byte_offset=48), make(BUFFER), 1.0, 1)
        assert gpu.last().unpack("QQ") == (BUFFER + 48, BUFFER)


# ------------------------------------------------------------------------------------ raw pointers


@pytest.mark.parametrize(
    "x",
    [(BUFFER, "fp32"), Pointer(BUFFER, "fp32"), (np.uint64(BUFFER), "fp32"),
     Pointer(np.int64(BUFFER), "fp32")],  # type: ignore[arg-type]
)  # fmt: skip
def test_pointers_with_a_dtype(scale: Kernel, gpu: FakeGpu, x: object) -> None:
    for out in (BUFFER + 8, np.uint64(BUFFER + 8)):
        scale(x, out, 1.0, 1)
        assert gpu.last().unpack("QQ") == (BUFFER, BUFFER + 8)
        assert gpu.last().stream == 0


@pytest.mark.parametrize("address", [0, 1, (1 << 64) - 1])
def test_addresses_at_their_ends(scale: Kernel, gpu: FakeGpu, address: int) -> None:
    scale((address, "fp32"), address, 1.0, 1)
    assert gpu.last().unpack("QQ") == (address, address)


@pytest.mark.parametrize("address", [-1, 1 << 64])
def test_addresses_beyond_them(scale: Kernel, address: int) -> None:
    with pytest.raises(ArgumentError, match="expected an address, 0 to"):
        scale((address, "fp32"), 16, 1.0, 1)


@pytest.mark.parametrize(
    ("x", "actual"),
    [
        ("text", "str"), (1.5, "float"), (None, "None"), (True, "bool"), (object(), "object"),
        ([1, 2], "list"), ((1, 2), "tuple"), ((1, "fp32", 3), "tuple"), ((1.5, "fp32"), "tuple"),
        ((True, "fp32"), "tuple"), (SimpleNamespace(ptr=3), "types.SimpleNamespace"),
    ],
)  # fmt: skip
def test_what_is_no_pointer(scale: Kernel, x: object, actual: str) -> None:
    with pytest.raises(
        ArgumentError, match=r"'x_ptr': expected a pointer to .*got " + actual
    ) as error:
        scale(x, 16, 1.0, 1)
    assert error.value.remedy == "pass a GPU tensor, an address, or (address, dtype)"


def test_a_class_is_no_tensor(scale: Kernel) -> None:
    with pytest.raises(ArgumentError, match="got type"):
        scale(CudaArray, 16, 1.0, 1)


# ----------------------------------------------------------------------------------- shape, strides


@pytest.mark.parametrize("make", [ExchangeArray, torch_tensor, dlpack, old_dlpack])
@pytest.mark.parametrize("extents", [(3, 5), (1, 1), (0, 7), (7, 0)])
def test_shape_and_strides(
    shape: Kernel, gpu: FakeGpu, make: Maker, extents: tuple[int, int]
) -> None:
    packed = packed_strides(extents)
    for strides in (packed, (1, 3), (100, 2), (0, 0), (-5, 1)):
        shape(make(BUFFER, "bf16", shape=extents, strides=strides), grid=1)
        assert gpu.last().unpack("QQQqq") == (BUFFER, *extents, *strides)


@pytest.mark.parametrize("make", [ExchangeArray, dlpack, old_dlpack])
def test_strides_that_are_left_out(shape: Kernel, gpu: FakeGpu, make: Maker) -> None:
    shape(make(BUFFER, "bf16", shape=(3, 5)), grid=1)
    assert gpu.last().unpack("QQQQQ") == (BUFFER, 3, 5, 5, 1)


@pytest.mark.parametrize("make", [ExchangeArray, torch_tensor, dlpack, old_dlpack])
@pytest.mark.parametrize("extents", [(-1, 5), (3, -(1 << 63)), (0, -1)])
def test_extents_below_zero(
    shape: Kernel, gpu: FakeGpu, make: Maker, extents: tuple[int, int]
) -> None:
    axis = extents.index(min(extents))
    expected = f"'a': expected extents of 0 or more, got {min(extents)} of axis {axis}"
    for array in (
        make(BUFFER, "bf16", shape=extents, strides=(5, 1)),
        (BUFFER, "bf16", extents, None),
    ):
        with pytest.raises(ArgumentError, match=expected):
            shape(array, grid=1)
    assert gpu.launches == 0


@pytest.mark.parametrize("make", [ExchangeArray, torch_tensor])
def test_memory_of_a_tensor_with_a_shape_said_apart(
    shape: Kernel, gpu: FakeGpu, make: Maker
) -> None:
    array = make(BUFFER, "bf16", shape=(7,))
    for extents, strides in (((3, 5), (8, 1)), ((0, 1), (-2, 0))):
        shape((array, extents, strides), grid=1)
        assert gpu.last().unpack("QQQqq") == (BUFFER, *extents, *strides)
    with pytest.raises(ArgumentError, match="expected a tensor of rank 2, got rank 3"):
        shape((array, (1, 1, 1), (1, 1, 1)), grid=1)
    for wrong in ((array, (3, 5), (8,)), (array, (3, 5), None), (array, 3, 5), (7, (3, 5), (8, 1))):
        with pytest.raises(ArgumentError, match="'a': expected a tensor of"):
            shape(wrong, grid=1)
    with pytest.raises(ArgumentError, match="says its memory without a stream, got .*DLPackArray"):
        shape((dlpack(BUFFER, "bf16", shape=(7,)), (3, 5), (8, 1)), grid=1)


def test_an_interface_of_the_object_alone(scale: Kernel, gpu: FakeGpu) -> None:
    """Its type knows nothing of it."""
    x = SimpleNamespace(__cuda_array_interface__=CudaArray(BUFFER).interface)
    scale(x, CudaArray(BUFFER), 2.0, 7)
    assert gpu.last().unpack("Q") == (BUFFER,)


@each_protocol
@pytest.mark.parametrize("extents", [(), (3,), (3, 5, 7), (1,) * 6])
def test_wrong_rank(shape: Kernel, make: Maker, extents: tuple[int, ...]) -> None:
    array = make(BUFFER, "fp32" if make is cuda_array else "bf16", shape=extents)
    with pytest.raises(
        ArgumentError, match=f"'a': expected a tensor of rank 2, got rank {len(extents)}"
    ):
        shape(array, grid=1)


def test_a_tensor_is_more_than_an_address(shape: Kernel) -> None:
    with pytest.raises(
        ArgumentError, match="expected a tensor with shape and strides, got an address"
    ):
        shape((BUFFER, "bf16"), grid=1)


class TwoFaces(DLPackArray):
    """An array with a dtype without a NumPy name: its CUDA array interface has `V2`."""

    def __init__(self, content: Content, interface: object) -> None:
        super().__init__(content)
        self.interface = interface

    @property
    def __cuda_array_interface__(self) -> object:
        if isinstance(self.interface, Exception):
            raise self.interface
        return self.interface


@pytest.mark.parametrize(
    "interface",
    [
        {"shape": (3, 5), "typestr": "<V2", "data": (BUFFER, False), "version": 3},
        RuntimeError("no such dtype"),
        {"version": 3},
    ],
)
def test_dlpack_helps_out(shape: Kernel, gpu: FakeGpu, interface: object) -> None:
    shape(TwoFaces(Content(BUFFER, "bf16", (3, 5)), interface), grid=1)
    assert gpu.last().unpack("QQQQQ") == (BUFFER, 3, 5, 5, 1)


def test_strides_of_the_cuda_array_interface_are_bytes(
    load: Load, gpu: FakeGpu, shape: Kernel, archives: Path
) -> None:
    """No typestr means bf16, so a kernel over fp32 matrices shows it."""
    from dataclasses import replace

    from aotc.package.archive.file import decode, encode

    archive = decode((archives / "loader.aotc").read_bytes())
    kernel = next(kernel for kernel in archive.kernels if kernel.name == "shape")
    params = (replace(kernel.params[0], element="fp32"),)
    over_floats = replace(archive, kernels=(replace(kernel, params=params),))
    kernel_over_floats = load(encode(over_floats))["shape"]
    for strides, seen in ((None, (5, 1)), ((20, 4), (5, 1)), ((4, 12), (1, 3)), ((0, -4), (0, -1))):
        kernel_over_floats(CudaArray(BUFFER, "<f4", (3, 5), strides=strides), grid=1)
        assert gpu.last().unpack("QQQqq") == (BUFFER, 3, 5, *seen)
    with pytest.raises(ArgumentError, match="strides of whole elements"):
        kernel_over_floats(CudaArray(BUFFER, "<f4", (3, 5), strides=(20, 3)), grid=1)
    for wrong in ((20,), (20, 4, 1), "ab", (20, "4")):
        with pytest.raises(ArgumentError, match="raised an exception") as error:
            kernel_over_floats(CudaArray(BUFFER, "<f4", (3, 5), strides=wrong), grid=1)
        assert error.value.__cause__ is not None

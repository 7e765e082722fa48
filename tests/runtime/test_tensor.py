"""What may be passed as a pointer or a tensor: every protocol, what each says, what is refused."""

from __future__ import annotations

import gc
import sys
import threading
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from aotc.runtime import ArgumentError, Kernel, Library, Pointer
from tests.support.fake_gpu import HOPPER, FakeGpu
from tests.support.gpu_arrays import (
    CPU,
    CUDA,
    CUDA_HOST,
    Content,
    CudaArray,
    DLPackArray,
    ExchangeArray,
    TorchTensor,
    packed_strides,
    torch,
)

Load = Callable[..., Library]
BUFFER = 0x7F00_0000_1000


@pytest.fixture(autouse=True)
def _frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the stand-in for torch be imported, with everybody's current stream the default one."""
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(ExchangeArray, "current", 0)
    monkeypatch.setattr(torch._C, "current", {})


@pytest.fixture
def loader(load: Load, archives: Path) -> Library:
    return load(archives / "loader.aotc")


@pytest.fixture
def scale(loader: Library) -> Kernel:
    """`scale(x_ptr, out_ptr, alpha, n)`: reads x, writes out; the tensors say the dtype."""
    return loader["scale"]


@pytest.fixture
def shape(loader: Library) -> Kernel:
    """`shape(a)`: is given address, shape and strides of a bf16 matrix."""
    return loader["shape"]


def _cuda_array(address: int, dtype: str = "fp32", **keywords: object) -> object:
    typestrs = {"fp16": "<f2", "fp32": "<f4", "fp64": "<f8", "i64": "<i8", "i1": "|b1"}
    return CudaArray(address, typestrs[dtype], **keywords)  # type: ignore[arg-type]


def _torch(address: int, dtype: str = "fp32", **keywords: object) -> object:
    names = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "i64": "int64", "i1": "bool"}
    return TorchTensor(address, names[dtype], **keywords)  # type: ignore[arg-type]


def _dlpack(address: int, dtype: str = "fp32", **keywords: object) -> object:
    return DLPackArray(Content(address, dtype, **keywords))  # type: ignore[arg-type]


def _old_dlpack(address: int, dtype: str = "fp32", **keywords: object) -> object:
    return DLPackArray(Content(address, dtype, **keywords), flags=None)  # type: ignore[arg-type]


MAKERS = {
    "exchange": ExchangeArray,
    "torch": _torch,
    "cuda_array": _cuda_array,
    "dlpack": _dlpack,
    "old_dlpack": _old_dlpack,
}
Maker = Callable[..., object]
each_protocol = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


# ------------------------------------------------------------------------------ address and dtype


@each_protocol
def test_address_and_dtype(scale: Kernel, gpu: FakeGpu, make: Maker) -> None:
    for dtype in ("fp16", "fp32", "i64", "i1"):
        scale(make(BUFFER, dtype), make(BUFFER + 64, dtype), True if dtype == "i1" else 1, 128)
        assert gpu.last().symbol == f"scale_{dtype}"
        assert gpu.last().unpack("QQ") == (BUFFER, BUFFER + 64)


@pytest.mark.parametrize("make", [ExchangeArray, _torch, _dlpack])
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
    ("array", "got"),
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
def test_dtypes_that_no_kernel_has(scale: Kernel, array: object, got: str) -> None:
    with pytest.raises(
        ArgumentError, match="'x_ptr': expected a pointer to fp16 or bf16 or"
    ) as error:
        scale(array, 16, 1.0, 1)
    assert got in str(error.value)


def test_dtypes_that_this_kernel_has_not(library: Library) -> None:
    with pytest.raises(ArgumentError, match="'x_ptr': expected fp16, fp32 for T, got i64"):
        library["add"](_torch(BUFFER, "i64"), 16, 32, 1)


def test_dtypes_that_differ(library: Library) -> None:
    with pytest.raises(ArgumentError, match="'y_ptr': expected fp16, as the arguments of type T"):
        library["add"](_torch(BUFFER, "fp16"), _torch(BUFFER, "fp32"), 32, 1)


@each_protocol
def test_empty_arrays_have_address_0(scale: Kernel, gpu: FakeGpu, make: Maker) -> None:
    scale(make(0, shape=(0,)), make(0, shape=(0,)), 1.0, 1)
    assert gpu.last().unpack("QQ") == (0, 0)


def test_an_address_of_none_is_0(scale: Kernel, gpu: FakeGpu) -> None:
    scale(CudaArray(None), 32, 1.0, 1)
    assert gpu.last().unpack("Q") == (0,)


def test_byte_offset(scale: Kernel, gpu: FakeGpu) -> None:
    for make in (ExchangeArray, _dlpack, _old_dlpack):
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
    ("x", "got"),
    [
        ("text", "str"), (1.5, "float"), (None, "None"), (True, "bool"), (object(), "object"),
        ([1, 2], "list"), ((1, 2), "tuple"), ((1, "fp32", 3), "tuple"), ((1.5, "fp32"), "tuple"),
        ((True, "fp32"), "tuple"), (SimpleNamespace(ptr=3), "types.SimpleNamespace"),
    ],
)  # fmt: skip
def test_what_is_no_pointer(scale: Kernel, x: object, got: str) -> None:
    with pytest.raises(
        ArgumentError, match=r"'x_ptr': expected a pointer to .*got " + got
    ) as error:
        scale(x, 16, 1.0, 1)
    assert error.value.remedy == "pass a GPU tensor, an address, or (address, dtype)"


def test_a_class_is_no_tensor(scale: Kernel) -> None:
    with pytest.raises(ArgumentError, match="got type"):
        scale(CudaArray, 16, 1.0, 1)


# ----------------------------------------------------------------------------------- shape, strides


@pytest.mark.parametrize("make", [ExchangeArray, _torch, _dlpack, _old_dlpack])
@pytest.mark.parametrize("extents", [(3, 5), (1, 1), (0, 7), (7, 0)])
def test_shape_and_strides(
    shape: Kernel, gpu: FakeGpu, make: Maker, extents: tuple[int, int]
) -> None:
    packed = packed_strides(extents)
    for strides in (packed, (1, 3), (100, 2), (0, 0), (-5, 1)):
        shape(make(BUFFER, "bf16", shape=extents, strides=strides), grid=1)
        assert gpu.last().unpack("QQQqq") == (BUFFER, *extents, *strides)


@pytest.mark.parametrize("make", [ExchangeArray, _dlpack, _old_dlpack])
def test_strides_that_are_left_out(shape: Kernel, gpu: FakeGpu, make: Maker) -> None:
    shape(make(BUFFER, "bf16", shape=(3, 5)), grid=1)
    assert gpu.last().unpack("QQQQQ") == (BUFFER, 3, 5, 5, 1)


@each_protocol
@pytest.mark.parametrize("extents", [(), (3,), (3, 5, 7), (1,) * 6])
def test_wrong_rank(shape: Kernel, make: Maker, extents: tuple[int, ...]) -> None:
    array = make(BUFFER, "fp32" if make is _cuda_array else "bf16", shape=extents)
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
    """An array whose dtype NumPy has no name for: its CUDA array interface says `V2`."""

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

    from aotc.package.archive import decode, encode

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


# ----------------------------------------------------------------------------- devices, read-only


@pytest.mark.parametrize(
    "array",
    [
        ExchangeArray(BUFFER, device=(CPU, 0)),
        DLPackArray(Content(BUFFER, device=(CPU, 0))),
        TorchTensor(BUFFER, device=-1),
        np.zeros(4, np.float32),
    ],
)
def test_host_tensors(scale: Kernel, array: object) -> None:
    with pytest.raises(
        ArgumentError, match="'x_ptr': expected a tensor on the GPU, got one in host"
    ):
        scale(array, 16, 1.0, 1)


def test_tensors_of_other_devices(scale: Kernel) -> None:
    for array in (
        ExchangeArray(BUFFER, device=(10, 0)),
        DLPackArray(Content(BUFFER, device=(10, 0))),
    ):
        with pytest.raises(ArgumentError, match="DLPack device type 10"):
            scale(array, 16, 1.0, 1)


def test_pinned_memory_is_the_gpus_as_well(scale: Kernel, gpu: FakeGpu) -> None:
    for make in (ExchangeArray, _dlpack):
        scale(make(BUFFER, device=(CUDA_HOST, 0)), make(BUFFER), 1.0, 1)
        assert gpu.last().unpack("Q") == (BUFFER,)


@pytest.fixture
def two_gpus(gpu: FakeGpu) -> FakeGpu:
    gpu.reset(HOPPER, HOPPER)
    gpu.make_current(0)
    return gpu


@pytest.mark.parametrize("make", [ExchangeArray, _dlpack])
def test_the_tensors_say_the_device(
    two_gpus: FakeGpu, load: Load, archives: Path, make: Maker
) -> None:
    scale = load(archives / "loader.aotc", device=(0, 1))["scale"]
    for device in (1, 0, 1):
        x = make(BUFFER, device=(CUDA, device))
        scale(x, x, 1.0, 1)
        assert two_gpus.last().device == device
    scale((BUFFER, "fp32"), BUFFER, 1.0, 1)
    assert two_gpus.last().device == 0  # and the current context is the one it was


def test_torch_tensors_say_device_and_stream(
    two_gpus: FakeGpu, load: Load, archives: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale = load(archives / "loader.aotc", device=(0, 1))["scale"]
    stream = two_gpus.stream(1)
    x = TorchTensor(BUFFER, device=1)
    for current in (stream, 0):
        monkeypatch.setattr(torch._C, "current", {1: current})
        scale(x, x, 1.0, 1)
        assert (two_gpus.last().device, two_gpus.last().stream) == (1, current)


def test_a_device_without_the_library(two_gpus: FakeGpu, load: Load, archives: Path) -> None:
    library = load(archives / "loader.aotc")
    x = ExchangeArray(BUFFER, device=(CUDA, 1))
    with pytest.raises(ArgumentError, match=r"'x_ptr'.*got one on device 1; call load\(device=1\)"):
        library["scale"](x, 16, 1.0, 1)
    library.load(device=1)
    library["scale"](x, 16, 1.0, 1)
    assert two_gpus.last().device == 1


def test_tensors_on_two_devices(two_gpus: FakeGpu, load: Load, archives: Path) -> None:
    scale = load(archives / "loader.aotc", device=(0, 1))["scale"]
    x, out = (ExchangeArray(BUFFER, device=(CUDA, device)) for device in (0, 1))
    with pytest.raises(
        ArgumentError, match="'out_ptr': expected a tensor on device 0, as 'x_ptr', got device 1"
    ):
        scale(x, out, 1.0, 1)


def test_a_stream_of_another_device(two_gpus: FakeGpu, load: Load, archives: Path) -> None:
    scale = load(archives / "loader.aotc", device=(0, 1))["scale"]
    x = ExchangeArray(BUFFER, device=(CUDA, 1))
    with pytest.raises(
        ArgumentError, match="'x_ptr': expected a tensor on device 0, as the stream"
    ):
        scale(x, x, 1.0, 1, stream=two_gpus.stream(0))


def test_threads_have_no_context(scale: Kernel, gpu: FakeGpu) -> None:
    """As in a worker thread of a server: the driver has no current context there."""
    failures: list[BaseException] = []

    def work() -> None:
        try:
            x = ExchangeArray(BUFFER)
            scale(x, x, 1.0, 1)
            scale((BUFFER, "fp32"), BUFFER, 1.0, 1)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failures == []
    assert gpu.launches == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: CudaArray(BUFFER, read_only=True),
        lambda: DLPackArray(Content(BUFFER), flags=1),
    ],
)
def test_read_only_arrays(scale: Kernel, gpu: FakeGpu, make: Maker) -> None:
    scale(make(), BUFFER, 1.0, 1)
    assert gpu.launches == 1
    with pytest.raises(ArgumentError, match="'out_ptr': expected an array that may be written"):
        scale((BUFFER, "fp32"), make(), 1.0, 1)


# ----------------------------------------------------------------------------------------- streams


def test_exchange_launches_on_the_current_stream(
    scale: Kernel, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = gpu.stream()
    monkeypatch.setattr(ExchangeArray, "current", stream)
    monkeypatch.setattr(ExchangeArray, "asked", 0)
    x = ExchangeArray(BUFFER)
    scale(x, x, 1.0, 1)
    assert gpu.last().stream == stream
    assert ExchangeArray.asked == 1
    scale(x, x, 1.0, 1, stream=0)
    assert gpu.last().stream == 0
    assert ExchangeArray.asked == 1


def test_torch_launches_on_the_current_stream(
    scale: Kernel, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = gpu.stream()
    monkeypatch.setattr(torch._C, "current", {0: stream})
    x = TorchTensor(BUFFER)
    scale(x, x, 1.0, 1)
    assert gpu.last().stream == stream


def test_cuda_arrays_name_their_stream(scale: Kernel, gpu: FakeGpu) -> None:
    stream = gpu.stream()
    scale(CudaArray(BUFFER, stream=stream), CudaArray(BUFFER, stream=None), 1.0, 1)
    assert gpu.last().stream == stream
    scale(CudaArray(BUFFER, stream=1), CudaArray(BUFFER), 1.0, 1)  # the legacy default stream
    assert gpu.last().stream == 0
    for wrong in ("s", -1, 1 << 64):
        with pytest.raises(ArgumentError, match="an array whose stream is a number"):
            scale(CudaArray(BUFFER, stream=wrong), BUFFER, 1.0, 1)


def test_streams_that_differ_are_the_callers_to_order(scale: Kernel, gpu: FakeGpu) -> None:
    first, second = gpu.stream(), gpu.stream()
    x, out = CudaArray(BUFFER, stream=first), CudaArray(BUFFER, stream=second)
    with pytest.raises(
        ArgumentError, match=f"'out_ptr': expected an array of stream {first:#x}, as"
    ):
        scale(x, out, 1.0, 1)
    scale(x, out, 1.0, 1, stream=second)
    assert gpu.last().stream == second
    # torch's default stream and the number 1 are the same stream.
    scale(ExchangeArray(BUFFER), CudaArray(BUFFER, stream=1), 1.0, 1)
    assert gpu.last().stream == 0


def test_dlpack_is_told_the_stream(
    scale: Kernel, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = gpu.stream()
    for flags in (0, None):
        array = DLPackArray(Content(BUFFER), flags=flags)
        scale(array, BUFFER, 1.0, 1)
        scale(array, BUFFER, 1.0, 1, stream=stream)
        # Another argument decides, though it comes later.
        scale(array, CudaArray(BUFFER, stream=stream), 1.0, 1)
        monkeypatch.setattr(ExchangeArray, "current", stream)
        scale(array, ExchangeArray(BUFFER), 1.0, 1)
        assert array.streams == [1, stream, stream, stream]
        assert gpu.last().stream == stream


# -------------------------------------------------------------------------------------- bad arrays


def _raise(error: BaseException) -> object:
    raise error


def _broken(protocol: str, error: BaseException) -> object:
    """Return an array that raises when it is asked by a protocol."""
    members: dict[str, dict[str, object]] = {
        "cuda_array": {"__cuda_array_interface__": property(lambda self: _raise(error))},
        "dlpack": {
            "__dlpack_device__": lambda self: (CUDA, 0),
            "__dlpack__": lambda self, **keywords: _raise(error),
        },
        "dlpack_device": {
            "__dlpack_device__": lambda self: _raise(error),
            "__dlpack__": lambda self, **keywords: None,
        },
    }
    if protocol == "torch":
        return type("Broken", (_BrokenTensor,), {"dtype": property(lambda self: _raise(error))})(1)
    return type("Broken", (), members[protocol])()


class _BrokenTensor(TorchTensor):
    def __init__(self, address: int) -> None:
        self.address = address
        self.device_index = 0


@pytest.mark.parametrize("protocol", ["cuda_array", "dlpack", "dlpack_device", "torch"])
def test_arrays_that_raise(scale: Kernel, protocol: str) -> None:
    cause = BufferError("not now")
    with pytest.raises(ArgumentError, match="'x_ptr': .*raised an exception") as error:
        scale(_broken(protocol, cause), 16, 1.0, 1)
    assert error.value.__cause__ is cause
    with pytest.raises(KeyboardInterrupt):
        scale(_broken(protocol, KeyboardInterrupt()), 16, 1.0, 1)


def test_an_exchange_table_that_fails(scale: Kernel) -> None:
    with pytest.raises(ArgumentError, match="a tensor that DLPack can describe"):
        scale(ExchangeArray(BUFFER, fails=True), 16, 1.0, 1)


@pytest.mark.parametrize(
    "interface",
    [None, 7, {}, {"data": (1, False)}, {"data": 1, "typestr": "<f4"}, {"data": (1,), "typestr": "<f4"},
     {"data": (1, False), "typestr": 4}, {"data": ("1", False), "typestr": "<f4"},
     {"data": (-1, False), "typestr": "<f4"}, {"data": (1 << 64, False), "typestr": "<f4"}],
)  # fmt: skip
def test_broken_cuda_array_interfaces(scale: Kernel, interface: object) -> None:
    array = CudaArray(BUFFER)
    array.interface = interface  # type: ignore[assignment]
    with pytest.raises(ArgumentError, match="'x_ptr': expected a pointer to"):
        scale(array, 16, 1.0, 1)


@pytest.mark.parametrize("shape_entry", [None, 3, [3, 5], (3, "5"), (3, 1 << 70)])
def test_broken_shapes(load: Load, archives: Path, shape_entry: object) -> None:
    """The kernel wants bf16, which NumPy cannot name; DLPack's strides are C integers already."""
    shape = load(archives / "loader.aotc")["shape"]
    array = TorchTensor(BUFFER, "bfloat16", (3, 5))
    array.shape = shape_entry  # type: ignore[assignment]
    with pytest.raises(ArgumentError):
        shape(array, grid=1)


@pytest.mark.parametrize("device", [None, (CUDA,), ("a", "b"), [CUDA, 0], 3])
def test_broken_dlpack_devices(scale: Kernel, device: object) -> None:
    array = type("Odd", (), {"__dlpack_device__": lambda self: device, "__dlpack__": None})()
    with pytest.raises(ArgumentError, match="a tensor with a DLPack device"):
        scale(array, 16, 1.0, 1)


def test_broken_capsules(scale: Kernel) -> None:
    odd = type(
        "Odd", (), {"__dlpack_device__": lambda self: (CUDA, 0), "__dlpack__": lambda self, **k: 3}
    )()
    with pytest.raises(ArgumentError, match="expected a DLPack capsule, got int"):
        scale(odd, 16, 1.0, 1)
    with pytest.raises(ArgumentError, match=r"expected DLPack 1\.x, got 2\.3"):
        scale(DLPackArray(Content(BUFFER), major=2), 16, 1.0, 1)
    with pytest.raises(ArgumentError, match="a copy that DLPack made"):
        scale(DLPackArray(Content(BUFFER), flags=2), 16, 1.0, 1)


@pytest.mark.parametrize("make", [ExchangeArray, _torch, _cuda_array, _dlpack])
def test_tensors_are_no_scalars(scale: Kernel, make: Maker) -> None:
    x = make(BUFFER)
    with pytest.raises(ArgumentError, match=r"'n': expected a number for i32.*x\.item\(\)"):
        scale(x, x, 1.0, x)
    with pytest.raises(ArgumentError, match=r"'alpha': expected a number for fp32.*x\.item\(\)"):
        scale(x, x, x, 1)


# ------------------------------------------------------------------------------------------ memory


@pytest.mark.parametrize("make", [DLPackArray, lambda content: DLPackArray(content, flags=None)])
def test_capsules_are_given_back(scale: Kernel, gpu: FakeGpu, make: Maker) -> None:
    x, out = make(Content(BUFFER)), make(Content(BUFFER))
    scale(x, out, 1.0, 1)
    with pytest.raises(ArgumentError):
        scale(x, out, "one", 1)
    with pytest.raises(ArgumentError):
        scale(x, _broken("dlpack", BufferError()), 1.0, 1)
    assert len(x.streams) >= 2  # type: ignore[attr-defined]
    assert (x.alive, out.alive) == (0, 0)  # type: ignore[attr-defined]


def test_a_hundred_thousand_launches_leak_nothing(scale: Kernel, gpu: FakeGpu) -> None:
    gpu.record(on=False)
    arrays = [make(BUFFER) for make in MAKERS.values()]
    for array in arrays:
        # A type of its own: objects of other tests may still be about, and go while this one runs.
        kind = type(array)
        array.__class__ = type(kind.__name__, (kind,), {"__module__": kind.__module__})
    stream = SimpleNamespace(cuda_stream=0)
    big = 1 << 29  # no cached integer

    def launch(rounds: int) -> None:
        for _ in range(rounds):
            for array in arrays[3:]:
                array.streams.clear()  # type: ignore[attr-defined]
            for array in arrays:
                scale(array, array, 1.0, big)
            scale(Pointer(BUFFER, "fp32"), BUFFER, alpha=1.0, n=big, stream=stream)
            scale.launch([arrays[0], BUFFER, 1.0, big], grid=(1, 2), config={}, choices={})
            for wrong in (None, "x", np.zeros(1)):
                with suppress(ArgumentError):
                    scale(wrong, BUFFER, 1.0, big)

    try:
        launch(300)
        gc.collect()
        watched = [*arrays, stream, big, scale]
        references = [sys.getrefcount(thing) for thing in watched]
        types = [sys.getrefcount(type(array)) for array in arrays]
        tracemalloc.start()
        launch(100)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        launch(1000)
        for _ in range(100_000):
            scale(arrays[2], BUFFER, 1.0, big)
        gc.collect()
        # An object leaked in any kind of launch would be 16 bytes or more, a thousand times.
        assert tracemalloc.get_traced_memory()[0] - before < 16_000
        assert [sys.getrefcount(thing) for thing in watched] == references
        # A type is remembered or not, as the addresses of the others have it: one reference or none.
        growth = [
            sys.getrefcount(type(array)) - count for array, count in zip(arrays, types, strict=True)
        ]
        assert all(-1 <= more <= 1 for more in growth)
    finally:
        tracemalloc.stop()
        gpu.record(on=True)


def test_more_types_than_are_remembered(scale: Kernel, gpu: FakeGpu) -> None:
    for number in range(300):
        kind = type(f"Array{number}", (CudaArray,), {})
        scale(kind(BUFFER + 16 * number, "<f4"), BUFFER, 1.0, 1)
        assert gpu.last().unpack("Q") == (BUFFER + 16 * number,)


def test_closing_while_an_argument_is_asked(load: Load, archives: Path) -> None:
    """An argument's own code may close the library; the launch must notice."""
    library = load(archives / "loader.aotc")

    class Closes(CudaArray):
        @property
        def __cuda_array_interface__(self) -> dict[str, object]:
            library.close()
            return self.interface

    with pytest.raises(Exception, match="closed"):
        library["scale"](Closes(BUFFER), BUFFER, 1.0, 1)

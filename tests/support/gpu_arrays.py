"""Arrays claimed to lie on a GPU, one class per protocol of the loader.

None has memory behind it: the fake driver never follows an address. DLPack's structs are made with
ctypes, so these tests need neither torch nor CuPy.
"""

from __future__ import annotations

import ctypes
from types import ModuleType
from typing import NamedTuple

CPU, CUDA, CUDA_HOST = 1, 2, 3

_DL_DTYPES = {
    "i1": (6, 8), "i8": (0, 8), "i16": (0, 16), "i32": (0, 32), "i64": (0, 64),
    "u8": (1, 8), "u16": (1, 16), "u32": (1, 32), "u64": (1, 64),
    "fp16": (2, 16), "bf16": (4, 16), "fp32": (2, 32), "fp64": (2, 64),
    "fp8e4nv": (10, 8), "fp8e5": (12, 8), "complex64": (5, 64),
}  # fmt: skip
"""Code and bits by dtype."""


def packed_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a C-contiguous array, in elements."""
    strides: list[int] = []
    stride = 1
    for extent in reversed(shape):
        strides.append(stride)
        stride *= extent
    return tuple(reversed(strides))


class CudaArray:
    """An array with `__cuda_array_interface__`, as CuPy's and Numba's."""

    def __init__(self, address: int | None, typestr: str = "<f4", shape: tuple[int, ...] = (8,),
                 *, read_only: bool = False, **entries: object) -> None:  # fmt: skip
        self.interface = {
            "shape": shape, "typestr": typestr, "data": (address, read_only), "version": 3, **entries,
        }  # fmt: skip
        self.asked = 0

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        self.asked += 1
        return self.interface


# ------------------------------------------------------------------------------------------ DLPack


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (
        ("tensor", DLTensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class _ManagedVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )


_capsule_new = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)(("PyCapsule_New", ctypes.pythonapi))
_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Content(NamedTuple):
    """The fields of a DLTensor."""

    address: int
    dtype: str = "fp32"
    shape: tuple[int, ...] = (8,)
    strides: tuple[int, ...] | None = None
    device: tuple[int, int] = (CUDA, 0)
    byte_offset: int = 0
    lanes: int = 1


def fill(tensor: DLTensor, content: Content) -> list[object]:
    """Write a content into a struct; the returned object must outlive the struct."""
    rank = len(content.shape)
    shape = (ctypes.c_int64 * rank)(*content.shape)
    strides = (ctypes.c_int64 * rank)(*(content.strides or content.shape))
    tensor.data = content.address
    tensor.device_type, tensor.device_id = content.device
    tensor.rank = rank
    tensor.code, tensor.bits = _DL_DTYPES[content.dtype]
    tensor.lanes = content.lanes
    tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    pointer = ctypes.POINTER(ctypes.c_int64)
    tensor.strides = pointer() if content.strides is None else ctypes.cast(strides, pointer)
    tensor.byte_offset = content.byte_offset
    return [shape, strides]


class DLPackArray:
    """An array with `__dlpack__`. It counts its live capsules.

    `flags` go into a versioned capsule; None stands for a producer from before DLPack 1.0.
    """

    def __init__(self, content: Content, *, flags: int | None = 0, major: int = 1) -> None:
        self.content = content
        self.flags = flags
        self.major = major
        self.streams: list[object] = []
        self.alive = 0
        self._kept: list[object] = []
        self._destructor = _Destructor(self._forget)

    def _forget(self, _capsule: int) -> None:
        self.alive -= 1
        if self.alive == 0:
            self._kept.clear()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.content.device

    def __dlpack__(self, **keywords: object) -> object:
        if self.flags is None and set(keywords) != {"stream"}:
            raise TypeError("__dlpack__() got an unexpected keyword argument")
        self.streams.append(keywords["stream"])
        if self.flags is None:
            managed, name = _Managed(), b"dltensor"
        else:
            managed, name = _ManagedVersioned(), b"dltensor_versioned"
            managed.major, managed.minor, managed.flags = self.major, 3, self.flags
        self._kept += [managed, name, *fill(managed.tensor, self.content)]
        self.alive += 1
        return _capsule_new(ctypes.addressof(managed), name, self._destructor)


class _Exchange(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("managed_from_object", ctypes.c_void_p),
        ("managed_to_object", ctypes.c_void_p),
        ("tensor_from_object", ctypes.c_void_p),
        ("current_stream", ctypes.c_void_p),
    )


_FromObject = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
_CurrentStream = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)
)


class ExchangeArray:
    """An array with DLPack's C exchange table, as torch's; `current` is the framework's stream."""

    current: int = 0
    asked = 0

    def __init__(self, *arguments: object, fails: bool = False, **keywords: object) -> None:
        self.content = Content(*arguments, **keywords)  # type: ignore[arg-type]
        self.fails = fails
        self.kept: list[object] = []


@_FromObject
def _from_object(array: ExchangeArray, tensor: object) -> int:
    array.kept = fill(tensor.contents, array.content)  # type: ignore[attr-defined]
    return -1 if array.fails else 0


@_CurrentStream
def _current_stream(_device_type: int, _device: int, stream: object) -> int:
    ExchangeArray.asked += 1
    stream[0] = ExchangeArray.current  # type: ignore[index]
    return 0


_NEXT_MAJOR = _Exchange(2, 0)
_TABLE = _Exchange(
    1,
    3,
    tensor_from_object=ctypes.cast(_from_object, ctypes.c_void_p),
    current_stream=ctypes.cast(_current_stream, ctypes.c_void_p),
)
# As in a newer framework: its own table first, the one of our major version behind it.
_NEXT_MAJOR.previous = ctypes.addressof(_TABLE)
_EXCHANGE_NAME = b"dlpack_exchange_api"
ExchangeArray.__dlpack_c_exchange_api__ = _capsule_new(  # type: ignore[attr-defined]
    ctypes.addressof(_NEXT_MAJOR), _EXCHANGE_NAME, None
)


# ------------------------------------------------------------------------------------------- torch


class _TorchDtype:
    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"torch.{self.name}"


torch = ModuleType("torch")
"""A torch from before the exchange table, with what the loader asks of it."""

torch._C = ModuleType("torch._C")  # type: ignore[attr-defined]
torch._C.current = {}  # stream by device
torch._C._cuda_getCurrentRawStream = lambda device: torch._C.current.get(device, 0)
for _name in ("float32", "float16", "bfloat16", "int32", "int64", "bool", "int8", "uint8",
              "complex64", "float8_e4m3fn", "float8_e5m2"):  # fmt: skip
    setattr(torch, _name, _TorchDtype(_name))


class TorchTensor:
    """`torch.Tensor`; `device` is -1 for a tensor in host memory."""

    def __init__(self, address: int, dtype: str = "float32", shape: tuple[int, ...] = (8,),
                 strides: tuple[int, ...] | None = None, device: int = 0) -> None:  # fmt: skip
        self.address = address
        self.dtype = getattr(torch, dtype)
        self.shape = shape
        self.strides = strides or packed_strides(shape)
        self.device_index = device

    def data_ptr(self) -> int:
        return self.address

    def get_device(self) -> int:
        return self.device_index

    def is_pinned(self) -> object:
        return False

    def stride(self) -> tuple[int, ...]:
        return self.strides


torch.Tensor = TorchTensor  # type: ignore[attr-defined]

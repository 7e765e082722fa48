"""The GPU's side: modules loaded and kernels launched through the driver.

Invariant: after `launch` the arrays hold the kernel's memory, as in the emulator.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from aotc.ir.types import SCALARS
from aotc.verify.checks.check import ExecutionFault
from aotc.verify.checks.device import Driver
from aotc.verify.emulator.async_copies.tensor_argument import PlacedTensor, TensorArgument
from benchmarks.calibration.case import Argument, Array

_SCALARS = {2: "<e", 4: "<f", 8: "<d"}
_ELEMENT_TYPES = {
    **dict.fromkeys(("i1", "i8", "u8", "fp8e4nv", "fp8e5"), "UINT8"),
    **dict.fromkeys(("i16", "u16"), "UINT16"),
    "u32": "UINT32",
    "i32": "INT32",
    "u64": "UINT64",
    "i64": "INT64",
    "fp16": "FLOAT16",
    "bf16": "BFLOAT16",
    "fp32": "FLOAT32",
    "fp64": "FLOAT64",
}
_DATA_TYPES = {
    "float8_e4m3fn": "UINT8",
    "float8_e5m2": "UINT8",
    "int8": "UINT8",
    "uint8": "UINT8",
    "int16": "UINT16",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "int32": "INT32",
    "uint64": "UINT64",
    "int64": "INT64",
    "float16": "FLOAT16",
    "bfloat16": "BFLOAT16",
    "float32": "FLOAT32",
    "float64": "FLOAT64",
}


class Param(Protocol):
    """A parameter of a kernel."""

    @property
    def size_bytes(self) -> int: ...


class Entry(Protocol):
    """Launch properties of a kernel."""

    @property
    def name(self) -> str: ...

    @property
    def params(self) -> Sequence[Param]: ...

    @property
    def cta_threads(self) -> tuple[int, int, int]: ...


class Gpu(Driver):
    """The first GPU of this machine."""

    def __init__(self) -> None:
        """Raises: NoDeviceError."""
        super().__init__()
        self._device = self._checked(self._cuda.cuDeviceGet(0))
        self._modules: dict[bytes, Any] = {}

    @property
    def name(self) -> str:
        """The driver's name of the GPU, with its version of CUDA."""
        name = self._checked(self._cuda.cuDeviceGetName(96, self._device))
        version = self._checked(self._cuda.cuDriverGetVersion())
        text = name.split(b"\0")[0].decode()
        return f"{text}, driver for CUDA {version // 1000}.{version % 1000 // 10}"

    def launch(
        self,
        cubin: bytes,
        kernel: Entry,
        args: Sequence[Argument | PlacedTensor],
        grid: tuple[int, ...],
        shared_bytes: int,
    ) -> None:
        """Run a kernel of a cubin to its end; arrays are changed in place.

        Raises: ExecutionFault for a fault of the kernel.
        """
        if cubin not in self._modules:
            self._modules[cubin] = self._checked(self._cuda.cuModuleLoadData(cubin))
        module = self._modules[cubin]
        function = self._checked(self._cuda.cuModuleGetFunction(module, kernel.name.encode()))
        attribute = self._cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._checked(self._cuda.cuFuncSetAttribute(function, attribute, shared_bytes))
        placed: list[tuple[Array, int]] = []
        buffers: list[Any] = []
        try:
            for param, arg in zip(kernel.params, args, strict=True):
                data = self._parameter(arg, param.size_bytes, placed)
                # A tensor map has to be aligned here too.
                room = ctypes.create_string_buffer(len(data) + 64)
                start = -(-ctypes.addressof(room) // 64) * 64
                ctypes.memmove(start, data, len(data))
                buffers.append((room, start))
            pointers = (ctypes.c_void_p * len(buffers))(*(start for _, start in buffers))
            self._checked(
                self._cuda.cuLaunchKernel(
                    function,
                    *(*grid, 1, 1)[:3],
                    *kernel.cta_threads,
                    shared_bytes,
                    0,
                    ctypes.addressof(pointers),
                    0,
                )
            )
            self.synchronize()
            for owner, address in placed:
                if owner.size:
                    _bytes_of(owner)[:] = self.read(address, owner.nbytes)
        finally:
            for _, address in placed:
                self.free(address)

    def unload(self, cubin: bytes) -> None:
        """Unload a launched cubin; an error is left to the next call to report."""
        module = self._modules.pop(cubin, None)
        if module is not None:
            self._cuda.cuModuleUnload(module)

    def _parameter(
        self, arg: Argument | PlacedTensor, size_bytes: int, placed: list[tuple[Array, int]]
    ) -> bytes:
        if isinstance(arg, int):
            return (arg & (1 << 8 * size_bytes) - 1).to_bytes(size_bytes, "little")
        if isinstance(arg, float):
            return struct.pack(_SCALARS[size_bytes], arg)
        if isinstance(arg, TensorArgument):
            array = arg.array
            return self._tensor_map(
                _DATA_TYPES[array.dtype.name],
                self._place(array, placed),
                array.shape,
                array.strides[:-1],
                arg,
                arg.element_strides or (1,) * array.ndim,
            )
        if isinstance(arg, PlacedTensor):
            size = SCALARS[arg.element].size_bytes
            return self._tensor_map(
                _ELEMENT_TYPES[arg.element],
                self._place(arg.array, placed),
                arg.shape,
                [stride * size for stride in arg.strides[:-1]],
                arg,
                (1,) * len(arg.shape),
            )
        return self._place(arg, placed).to_bytes(8, "little")

    def _place(self, array: Array, placed: list[tuple[Array, int]]) -> int:
        """Copy an array's base memory; return the address of the array's first element."""
        owner = array if array.base is None else array.base
        assert isinstance(owner, np.ndarray)
        addresses = [address for placed_array, address in placed if placed_array is owner]
        if not addresses:
            addresses.append(self.allocate(max(owner.nbytes, 1)))
            placed.append((owner, addresses[0]))
            if owner.size:
                self.write(addresses[0], _bytes_of(owner))
        offset = array.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
        return addresses[0] + offset

    def _tensor_map(
        self,
        data_type: str,
        address: int,
        shape: Sequence[int],
        strides_bytes: Sequence[int],
        form: TensorArgument | PlacedTensor,
        element_strides: Sequence[int],
    ) -> bytes:
        """Encode a map; extents and strides are outermost first, the last axis is dense."""
        cuda = self._cuda
        wide, narrow = cuda.cuuint64_t, cuda.cuuint32_t
        span = form.swizzle_bytes
        swizzle = f"CU_TENSOR_MAP_SWIZZLE_{f'{span}B' if span else 'NONE'}"
        fill = "NAN_REQUEST_ZERO_FMA" if form.fill_nan else "NONE"
        tensor_map = self._checked(
            cuda.cuTensorMapEncodeTiled(
                getattr(cuda.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{data_type}"),
                len(shape),
                address,
                [wide(extent) for extent in shape[::-1]],
                # Of one dimension there are no strides, but a list of none would be a null pointer.
                [wide(stride) for stride in strides_bytes[::-1]] or [wide(16)],
                [narrow(extent) for extent in form.box[::-1]],
                [narrow(stride) for stride in element_strides[::-1]],
                cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
                getattr(cuda.CUtensorMapSwizzle, swizzle),
                cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
                getattr(cuda.CUtensorMapFloatOOBfill, f"CU_TENSOR_MAP_FLOAT_OOB_FILL_{fill}"),
            )
        )
        return ctypes.string_at(tensor_map.getPtr(), 128)


def _bytes_of(owner: Array) -> Array:
    """Return the memory of a contiguous array as bytes."""
    flat = owner.ravel(order="K").view(np.uint8)
    assert np.may_share_memory(flat, owner) or not owner.size
    return flat


def describe_fault(error: ExecutionFault) -> str:
    """Return the driver's error name and text."""
    return str(error).removeprefix("the driver reports ")

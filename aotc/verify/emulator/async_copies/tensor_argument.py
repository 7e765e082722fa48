"""Kernel arguments holding tensor maps, encoded once addresses are assigned.

Invariant: the map describes the array as it is, its last axis innermost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from aotc.verify.arrays import copied, name_of
from aotc.verify.emulator.async_copies.tensor_map import ELEMENT_TYPES, TensorMap, TensorMapError
from aotc.verify.emulator.errors import EmulationError
from aotc.verify.emulator.memory.global_memory import GlobalMemory

_ELEMENT_TYPES = {
    "uint8": "u8",
    "int8": "u8",
    "float8_e4m3fn": "u8",
    "float8_e5m2": "u8",
    "uint16": "u16",
    "int16": "u16",
    "uint32": "u32",
    "int32": "s32",
    "uint64": "u64",
    "int64": "s64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
}

_SCALAR_TYPES = {
    **dict.fromkeys(("i1", "i8", "u8", "fp8e4nv", "fp8e5"), "u8"),
    **dict.fromkeys(("i16", "u16"), "u16"),
    "i32": "s32",
    "u32": "u32",
    "i64": "s64",
    "u64": "u64",
    "fp16": "f16",
    "bf16": "bf16",
    "fp32": "f32",
    "fp64": "f64",
}

_SWIZZLES_BYTES = (0, 32, 64, 128)  # by their code in a map


@dataclass(frozen=True)
class TensorArgument:
    """Describe an array and its boxes; `box` and `element_strides` have one entry per axis.

    `swizzle_bytes` is 0, 32, 64 or 128. With `fill_nan`, out-of-bounds elements read as NaN, else
    as zero.
    """

    array: npt.NDArray[Any]
    box: tuple[int, ...]
    swizzle_bytes: int = 0
    element_strides: tuple[int, ...] = ()
    fill_nan: bool = False

    def encode(
        self,
        memory: GlobalMemory,
        name: str,
        readable: npt.NDArray[np.bool_] | None = None,
        writable: npt.NDArray[np.bool_] | None = None,
    ) -> bytes:
        """Map the array into memory and return the bytes of its tensor map.

        Raises: EmulationError for a map the driver would refuse.
        """
        array = self.array
        element = _ELEMENT_TYPES.get(name_of(array.dtype))
        if element is None or self.swizzle_bytes not in _SWIZZLES_BYTES:
            raise EmulationError(
                f"{name}: no tensor map of {array.dtype} with a swizzle of {self.swizzle_bytes}"
            )
        if array.ndim and array.shape[-1] > 1 and array.strides[-1] != array.itemsize:
            raise EmulationError(f"{name}: the last axis is not dense")
        tensor = TensorMap(
            element,
            memory.add(name, array, readable, writable),
            array.shape[::-1],
            array.strides[-2::-1] if array.ndim > 1 else (),
            self.box[::-1],
            self.element_strides[::-1],
            swizzle=_SWIZZLES_BYTES.index(self.swizzle_bytes),
            fill=int(self.fill_nan),
        )
        return _to_bytes(tensor, name)


@dataclass(frozen=True)
class PlacedTensor:
    """Describe a tensor at the start of `array`, of any dtype: see `TensorArgument`.

    `element` is a dtype's name; `strides` are in elements, outermost first. The array holds the
    used part of the tensor.
    """

    array: npt.NDArray[Any]
    element: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle_bytes: int = 0
    fill_nan: bool = False

    def encode(
        self,
        memory: GlobalMemory,
        name: str,
        readable: npt.NDArray[np.bool_] | None = None,
        writable: npt.NDArray[np.bool_] | None = None,
    ) -> bytes:
        """Map the array into memory and return the bytes of the tensor's map.

        Raises: EmulationError for a map the driver would refuse.
        """
        return self.encode_at(memory.add(name, self.array, readable, writable), name)

    def encode_at(self, address: int, name: str) -> bytes:
        """Return the bytes of the tensor's map for a tensor at `address`.

        Raises: EmulationError for a map the driver would refuse.
        """
        element = _SCALAR_TYPES[self.element]
        size_bytes = ELEMENT_TYPES[element][1]
        tensor = TensorMap(
            element,
            address,
            self.shape[::-1],
            tuple(stride * size_bytes for stride in self.strides[-2::-1]),
            self.box[::-1],
            swizzle=_SWIZZLES_BYTES.index(self.swizzle_bytes),
            fill=int(self.fill_nan),
        )
        return _to_bytes(tensor, name)


@dataclass(frozen=True)
class TensorTable:
    """Describe consecutive tensor maps in global memory; the kernel gets their address.

    `masks` give the readable and the writable elements of each tensor.
    """

    tensors: tuple[TensorArgument | PlacedTensor, ...]
    masks: tuple[tuple[npt.NDArray[np.bool_] | None, npt.NDArray[np.bool_] | None], ...] = ()

    def place(self, memory: GlobalMemory, name: str) -> int:
        """Map the arrays and their tensor maps into memory; return the address of the first map.

        Raises: EmulationError as `TensorArgument.encode`.
        """
        masks = self.masks or ((None, None),) * len(self.tensors)
        maps = [
            tensor.encode(memory, f"{name}[{index}]", *mask)
            for index, (tensor, mask) in enumerate(zip(self.tensors, masks, strict=True))
        ]
        return memory.add(name, copied(np.frombuffer(b"".join(maps), np.uint8)))


def _to_bytes(tensor: TensorMap, name: str) -> bytes:
    try:
        return tensor.to_bytes()
    except TensorMapError as error:
        raise EmulationError(f"{name}: {error}") from None

"""A torch without a GPU: the part used by `examples/multi_gpu`, over the fake driver.

Memory is NumPy's, and everything is synchronous. A launch computes the kernel's result on its device
from the parameters at the driver (`kernels.py`). So results are right exactly if launches are. With
TORCH_STAND_IN_COMPUTES=0 it computes nothing. At exit, the driver's verdict goes to stderr.

With PYTHONPATH at this package's folder and LD_LIBRARY_PATH at the fake driver's, `import torch` finds it.
"""

from __future__ import annotations

import weakref
from typing import ClassVar, NamedTuple

import numpy as np

from . import _C, cuda, kernels

__all__ = ["_C", "cuda", "kernels"]

ALIGNMENT_BYTES = 256
random = np.random.default_rng()


class dtype:  # noqa: N801 - torch's names, here and below
    """One of torch's types, known by identity."""

    def __init__(self, name: str) -> None:
        self.numpy = np.dtype(name)


float32, int64 = dtype("float32"), dtype("int64")


class device(NamedTuple):  # noqa: N801
    type: str
    index: int


class Tensor:
    """A contiguous tensor on one device; operations return new tensors."""

    alive: ClassVar[weakref.WeakValueDictionary[int, Tensor]] = weakref.WeakValueDictionary()
    """By address."""

    def __init__(self, values: np.ndarray, where: device) -> None:
        room = np.empty(values.nbytes + ALIGNMENT_BYTES, np.uint8)
        start = -room.ctypes.data % ALIGNMENT_BYTES
        self.values = room[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
        self.values[...] = values
        self.device = where
        self.alive[self.data_ptr()] = self

    @property
    def dtype(self) -> dtype:
        return next(dtype for dtype in (float32, int64) if dtype.numpy == self.values.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def T(self) -> Tensor:  # noqa: N802
        return Tensor(self.values.T, self.device)

    def data_ptr(self) -> int:
        return self.values.ctypes.data

    def get_device(self) -> int:
        return self.device.index

    def stride(self) -> tuple[int, ...]:
        return tuple(stride // self.values.itemsize for stride in self.values.strides)

    def numel(self) -> int:
        return self.values.size

    def float(self) -> Tensor:
        return Tensor(self.values.astype(np.float32), self.device)

    def flatten(self) -> Tensor:
        return Tensor(self.values.reshape(-1), self.device)

    def copy_(self, source: Tensor) -> Tensor:
        self.values[...] = source.values
        return self

    def fill_(self, value: float) -> Tensor:
        self.values[...] = value
        return self

    def __add__(self, other: Tensor | float) -> Tensor:
        return Tensor(self.values + _operand(self, other), self.device)

    def __mod__(self, other: Tensor | float) -> Tensor:
        return Tensor(self.values % _operand(self, other), self.device)


def _operand(tensor: Tensor, other: Tensor | float) -> np.ndarray | float:
    if not isinstance(other, Tensor):
        return other
    if other.device != tensor.device:
        raise RuntimeError("Expected all tensors to be on the same device")
    return other.values


def arange(end: int, *, device: device) -> Tensor:
    return Tensor(np.arange(end), device)


def empty(*shape: int, device: device) -> Tensor:
    return Tensor(np.full(shape, np.nan, np.float32), device)


def randint(low: int, high: int, size: tuple[int, ...], *, device: device) -> Tensor:
    return Tensor(random.integers(low, high, size), device)


def equal(a: Tensor, b: Tensor) -> bool:
    return np.array_equal(a.values, _operand(a, b))

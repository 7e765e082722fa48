"""Arrays of a workload: torch's on a GPU, NumPy's on the host, where the interpreter reads them.

References are computed by NumPy in float64, from the parts that `wide` and `rows` return. Both
kinds of array have the same shapes, views and slices, so a workload is written once.
"""

from __future__ import annotations

import importlib
import math
from typing import Any, NamedTuple, Protocol

import numpy as np

Array = Any
Wide = np.ndarray[Any, Any]
Arguments = dict[str, Any]


class Arrays(Protocol):
    """A source of operands; dtypes have the manifest's names."""

    num_sms: int

    def normal(self, *shape: int, dtype: str = "bf16") -> Array:
        """Return normally distributed numbers."""
        ...

    def uniform(self, *shape: int, low: float = 0.0, dtype: str = "fp32") -> Array:
        """Return numbers between `low` and `low` + 1."""
        ...

    def integers(self, low: int, high: int, *shape: int, dtype: str = "i32") -> Array:
        """Return integers from `low` to below `high`."""
        ...

    def empty(self, *shape: int, dtype: str = "bf16") -> Array:
        """Return an array with any contents."""
        ...

    def zeros(self, *shape: int, dtype: str = "i32") -> Array:
        """Return an array of zeros."""
        ...

    def array(self, values: Any, dtype: str = "i32") -> Array:
        """Return an array of these values."""
        ...

    def cast(self, array: Array, dtype: str) -> Array:
        """Return the values in another dtype."""
        ...

    def view(self, array: Array, dtype: str) -> Array:
        """Return the bytes as another dtype."""
        ...

    def contiguous(self, array: Array) -> Array:
        """Return the values in row-major order."""
        ...

    def wide(self, array: Array) -> Wide:
        """Return the values in float64, on the host."""
        ...

    def poison(self, array: Array) -> None:
        """Set every bit: NaN in all formats of floats."""
        ...

    def address(self, array: Array) -> int:
        """Return the address of an array, for tables of pointers."""
        ...


def picked(arrays: Arrays, array: Array, rows: Wide) -> Wide:
    """Return rows in float64, one by one: torch does not index every kind of fp8."""
    return np.stack([arrays.wide(array[int(row)]) for row in rows])


class Part(NamedTuple):
    """The expected values of an operand, of its part at `index`."""

    name: str
    index: Any
    values: Wide


class Tolerance(NamedTuple):
    """The error of an element: shares of its value, of the largest and of the typical one."""

    value: float = 0.0
    largest: float = 0.0
    typical: float = 0.0

    def error(self, actual: Wide, expected: Wide) -> float:
        """Return the largest error as a multiple of what is tolerated, infinite for NaN."""
        magnitude = np.abs(expected)
        bound = magnitude * self.value + magnitude.max(initial=0.0) * self.largest
        bound = bound + np.sqrt(np.square(expected).mean()) * self.typical
        difference = np.abs(actual - expected)
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.where(difference == 0, 0.0, difference / bound).max(initial=0.0)
        return math.inf if np.isnan(error) else float(error)


class HostArrays:
    """Small arrays in host memory, for the interpreter."""

    num_sms = 4

    def __init__(self, seed: int = 0) -> None:
        from aotc.ir.types import SCALARS
        from aotc.verify.interpreter.numerics import dtype_of

        self._rng = np.random.default_rng(seed)
        self._dtype = lambda name: dtype_of(SCALARS[name])

    def normal(self, *shape: int, dtype: str = "bf16") -> Array:
        return self._rng.standard_normal(shape, np.float32).astype(self._dtype(dtype))

    def uniform(self, *shape: int, low: float = 0.0, dtype: str = "fp32") -> Array:
        return (self._rng.random(shape, np.float32) + low).astype(self._dtype(dtype))

    def integers(self, low: int, high: int, *shape: int, dtype: str = "i32") -> Array:
        return self._rng.integers(low, high, shape).astype(self._dtype(dtype))

    def empty(self, *shape: int, dtype: str = "bf16") -> Array:
        return np.zeros(shape, self._dtype(dtype))

    def zeros(self, *shape: int, dtype: str = "i32") -> Array:
        return np.zeros(shape, self._dtype(dtype))

    def array(self, values: Any, dtype: str = "i32") -> Array:
        return np.asarray(values).astype(self._dtype(dtype))

    def cast(self, array: Array, dtype: str) -> Array:
        return array.astype(self._dtype(dtype))

    def view(self, array: Array, dtype: str) -> Array:
        return array.view(self._dtype(dtype))

    def contiguous(self, array: Array) -> Array:
        return np.ascontiguousarray(array)

    def wide(self, array: Array) -> Wide:
        return np.asarray(array).astype(np.float64)

    def poison(self, array: Array) -> None:
        array.view(np.uint8)[...] = 0xFF

    def address(self, array: Array) -> int:
        return array.ctypes.data


_TORCH = {
    "bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64", "i1": "bool",
    "fp8e4nv": "float8_e4m3fn", "fp8e5": "float8_e5m2", "i8": "int8", "u8": "uint8",
    "i16": "int16", "i32": "int32", "i64": "int64",
}  # fmt: skip


class GpuArrays:
    """torch's tensors on the current GPU."""

    def __init__(self, seed: int = 0) -> None:
        self._torch: Any = importlib.import_module("torch")
        self._torch.manual_seed(seed)
        self.num_sms: int = self._torch.cuda.get_device_properties(0).multi_processor_count

    def _dtype(self, name: str) -> Any:
        return getattr(self._torch, _TORCH[name])

    def normal(self, *shape: int, dtype: str = "bf16") -> Array:
        return self._torch.randn(shape, device="cuda").to(self._dtype(dtype))

    def uniform(self, *shape: int, low: float = 0.0, dtype: str = "fp32") -> Array:
        return (self._torch.rand(shape, device="cuda") + low).to(self._dtype(dtype))

    def integers(self, low: int, high: int, *shape: int, dtype: str = "i32") -> Array:
        return self._torch.randint(low, high, shape, device="cuda").to(self._dtype(dtype))

    def empty(self, *shape: int, dtype: str = "bf16") -> Array:
        return self._torch.empty(shape, device="cuda", dtype=self._dtype(dtype))

    def zeros(self, *shape: int, dtype: str = "i32") -> Array:
        return self._torch.zeros(shape, device="cuda", dtype=self._dtype(dtype))

    def array(self, values: Any, dtype: str = "i32") -> Array:
        return self._torch.as_tensor(np.asarray(values)).to("cuda", self._dtype(dtype))

    def cast(self, array: Array, dtype: str) -> Array:
        return array.to(self._dtype(dtype))

    def view(self, array: Array, dtype: str) -> Array:
        return array.view(self._dtype(dtype))

    def contiguous(self, array: Array) -> Array:
        return array.contiguous()

    def wide(self, array: Array) -> Wide:
        return array.double().cpu().numpy()

    def poison(self, array: Array) -> None:
        array.view(self._torch.uint8).fill_(0xFF)

    def address(self, array: Array) -> int:
        return array.data_ptr()

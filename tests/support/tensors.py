"""Arrays for kernel tests: random inputs, poisoned outputs, guard zones, chosen misalignment.

Every tensor lies in its own allocation, with guard zones before and after it, and between its rows
if the stride is larger than a row. A comparison with the old allocation shows writes outside the
tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from aotc.ir.types import SCALARS, ScalarType
from aotc.verify.interpreter.numerics import dtype_of

Array = npt.NDArray[Any]

# A multiple of 16 bytes for every element size, so the requested misalignment is exact.
GUARD_ELEMS = 64


@dataclass
class Tensor:
    """An allocation, and the view of it for a kernel.

    `base` is one-dimensional; `view` starts `offset_elems` into it.
    """

    base: Array
    view: Array
    offset_elems: int
    before: Array = field(init=False)

    def __post_init__(self) -> None:
        self.before = self.base.copy()

    def check_surroundings(self, after: Array | None = None) -> None:
        """Assert that the allocation is unchanged outside the view.

        `after` is the allocation copied back from the device, if the kernel ran there.
        """
        outside = np.ones(self.base.shape, np.bool_)
        strides = [stride // self.base.itemsize for stride in self.view.strides]
        np.lib.stride_tricks.as_strided(outside[self.offset_elems :], self.view.shape, strides)[
            ...
        ] = False
        bits = f"u{self.base.itemsize}"
        now = (self.base if after is None else after).view(bits)[outside]
        assert (now == self.before.view(bits)[outside]).all(), "wrote outside of a tensor"


def tensor(content: Array, *, stride_elems: int = 0, misaligned_elems: int = 0) -> Tensor:
    """Return a tensor of `content`, its rows `stride_elems` apart (0: contiguous).

    The rest of the allocation is poison. The tensor starts `misaligned_elems` past a multiple of
    16 bytes.
    """
    shape = content.shape
    row = stride_elems or prod(shape[1:])
    offset = GUARD_ELEMS + misaligned_elems
    base = poison((offset + (shape[0] if shape else 1) * row + GUARD_ELEMS,), content.dtype)
    itemsize = content.dtype.itemsize
    strides = (row * itemsize, *content.strides[1:]) if shape else ()
    # NumPy's as_strided does not know every type of ml_dtypes.
    raw = base.view(np.uint8)
    view: Array = np.ndarray(shape, content.dtype, raw, offset * itemsize, strides)
    view[...] = content
    return Tensor(base, view, offset)


def poison(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return an array of unlikely results: NaN, or 0xA5 in every byte."""
    if dtype.kind in "iub":
        return np.full(prod(shape) * dtype.itemsize, 0xA5, np.uint8).view(dtype).reshape(shape)
    return np.full(shape, np.nan, dtype)


def normal(rng: np.random.Generator, shape: tuple[int, ...], scalar: ScalarType) -> Array:
    """Return normally distributed values rounded to `scalar`."""
    return rng.standard_normal(shape).astype(np.float32).astype(dtype_of(scalar))


def scalar_named(name: str) -> ScalarType:
    """Return the scalar type called `name`."""
    return SCALARS[name]


def wide(array: Array) -> Array:
    """Return the values in fp64."""
    return array.astype(np.float64)


def rounding_error(reference: Array, scalar: ScalarType) -> Array:
    """Return how far rounding `reference` to `scalar` may move it: half a unit in the last place.

    Below the normal range the spacing is constant, so half the smallest subnormal is added.
    """
    half_ulp = 2.0 ** -(scalar.mantissa_bits + 1)
    exponent_bits = scalar.bits - 1 - scalar.mantissa_bits
    smallest = 2.0 ** (2 - (1 << exponent_bits - 1) - scalar.mantissa_bits)
    return np.abs(reference) * half_ulp + smallest / 2

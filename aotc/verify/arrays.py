"""Typed wrappers of NumPy functions whose stubs leave types partly unknown.

Each function does the same as the method or ufunc of its name. Overloads of `ndarray.view`,
`reshape` and a few more have result types strict checking cannot name, for any array.

Invariant: exemptions from strict checking for NumPy's stubs stand in this file alone.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
_Scalar = TypeVar("_Scalar", bound=np.generic)


class _Reduce(Protocol):
    def __call__(
        self, array: npt.ArrayLike, /, *, axis: int | None = 0, initial: Any = ..., out: Any = None
    ) -> Any: ...


reduce_and = cast("_Reduce", np.bitwise_and.reduce)
reduce_or = cast("_Reduce", np.bitwise_or.reduce)
reduce_min = cast("_Reduce", np.minimum.reduce)
reduce_max = cast("_Reduce", np.maximum.reduce)


def view(array: Array | np.generic, dtype: npt.DTypeLike) -> Array:
    """Return the same bytes as elements of another dtype."""
    return array.view(dtype)


def reshape(array: npt.NDArray[_Scalar], *shape: int | Sequence[int]) -> npt.NDArray[_Scalar]:
    """Return the same elements, in row-major order, in another shape."""
    return array.reshape(cast("Any", shape if len(shape) != 1 else shape[0]))


def copied(array: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
    """Return a copy with its own memory."""
    return array.copy()


def listed(array: Array) -> list[int]:
    """Return the elements of a vector of integers as Python integers."""
    return array.tolist()


def name_of(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype, such as "float32"."""
    return dtype.name


def indices_in(span: slice) -> npt.NDArray[np.int64]:
    """Return the indices in a slice with a start and a stop."""
    return np.arange(span.start, span.stop)


def ones(count: int, dtype: npt.DTypeLike) -> Array:
    """Return a vector of ones."""
    return np.ones(count, dtype)


def clipped(array: Array | np.generic, low: Any, high: Any) -> Array:
    """Return the elements clipped to a range."""
    return np.clip(array, low, high)


def any_in_rows(flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return whether each row of (n, k) flags has one set: a fast `any(axis=1)` for short rows."""
    width = flags.shape[1]
    if not flags.flags.c_contiguous or not width or (width not in (1, 2, 4) and width % 8):
        return cast("npt.NDArray[np.bool_]", flags.any(axis=1))
    words: Array = flags.view(f"u{min(width, 8)}")
    union = words[:, 0]
    for column in range(1, words.shape[1]):
        union = union | words[:, column]
    return cast("npt.NDArray[np.bool_]", union != 0)


def owner_of(array: Array) -> Array:
    """Return the owner of the memory of `array`."""
    owner: Array = array
    while True:
        base: Any = owner.base
        if not isinstance(base, np.ndarray):
            base = getattr(base, "base", None)  # `as_strided` puts an object of its own between
        if not isinstance(base, np.ndarray):
            return owner
        owner = cast("Array", base)

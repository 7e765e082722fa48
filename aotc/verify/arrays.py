"""NumPy as the rest of `aotc.verify` uses it: what NumPy's own stubs leave partly unknown, typed.

Each function does what the method or ufunc of its name does. Overloads of `ndarray.view`, `reshape`
and a few more have results that strict checking cannot name, whatever the array; here they have one.

Invariant: exemptions from strict checking that NumPy's stubs need stand in this file alone.
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
    """Return a copy that owns its memory."""
    return array.copy()


def listed(array: Array) -> list[int]:
    """Return the elements of a vector of integers as Python's own numbers."""
    return array.tolist()


def name_of(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype, such as "float32"."""
    return dtype.name


def indices_in(span: slice) -> npt.NDArray[np.int64]:
    """Return the numbers in a slice that has a start and a stop."""
    return np.arange(span.start, span.stop)


def ones(count: int, dtype: npt.DTypeLike) -> Array:
    """Return a vector of ones."""
    return np.ones(count, dtype)


def clipped(array: Array | np.generic, low: Any, high: Any) -> Array:
    """Return each element, or the nearer end of the range where it lies outside."""
    return np.clip(array, low, high)


def any_in_rows(flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Say which rows (n, k) hold one that is set: `any(axis=1)`, but quick for short rows."""
    width = flags.shape[1]
    if not flags.flags.c_contiguous or not width or (width not in (1, 2, 4) and width % 8):
        return cast("npt.NDArray[np.bool_]", flags.any(axis=1))
    words: Array = flags.view(f"u{min(width, 8)}")
    found = words[:, 0]
    for column in range(1, words.shape[1]):
        found = found | words[:, column]
    return cast("npt.NDArray[np.bool_]", found != 0)


def owner_of(array: Array) -> Array:
    """Return the array that owns the memory that `array` is a view of."""
    owner: Array = array
    while True:
        base: Any = owner.base
        if not isinstance(base, np.ndarray):
            base = getattr(base, "base", None)  # `as_strided` puts an object of its own between
        if not isinstance(base, np.ndarray):
            return owner
        owner = cast("Array", base)

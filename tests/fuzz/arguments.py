"""Launch arguments of a random kernel: arrays and numbers, made from a description.

A description is small and prints on a line, so that a failure can be recorded; each run makes the
arrays anew. Data makes comparisons sharp: small multiples of powers of two where sums are to be
exact. Elsewhere it has each type's special values: extremes, ties of roundings, subnormals,
infinities and NaNs.
"""

# NumPy's own stubs leave overloads of ndarray's methods partly unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from aotc.ir.types import SCALARS, ScalarType
from aotc.verify.interpreter.numerics import dtype_of
from tests.fuzz.facts import Facts

Array: TypeAlias = npt.NDArray[Any]
Fill = Literal["exact", "any", "indices", "poison"]


@dataclass(frozen=True, slots=True)
class Scalar:
    """Describe a number."""

    name: str
    value: int

    def make(self) -> int:
        """Return the number."""
        return self.value


@dataclass(frozen=True, slots=True)
class Buffer:
    """Describe an array of `size` elements of type `dtype`, `skew` elements off its alignment.

    "exact" fills it with multiples of 2**lo up to 2**hi, "indices" with integers below 2**hi,
    "any" with everything there is, "poison" with a pattern. `steps` is how far results in it may
    be off.
    """

    name: str
    dtype: str
    size: int
    fill: Fill
    lo: int = 0
    hi: int = 0
    seed: int = 0
    skew: int = 0
    steps: float = 0.0

    @property
    def element(self) -> ScalarType:
        return SCALARS[self.dtype]

    def make(self) -> Array:
        """Return the array, made anew."""
        return _filled(self, self.size + self.skew)[self.skew :]


@dataclass(frozen=True, slots=True)
class Tensor:
    """Describe an array with axes, whose rows begin at multiples of 16 bytes.

    A row has `padding` times 16 spare bytes; the rest is as in a `Buffer`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    fill: Fill
    lo: int = 0
    hi: int = 0
    seed: int = 0
    padding: int = 0
    steps: float = 0.0

    @property
    def element(self) -> ScalarType:
        return SCALARS[self.dtype]

    @property
    def row_elems(self) -> int:
        """Distance between consecutive rows."""
        unit = 16 // self.element.size_bytes
        return (-(-self.shape[-1] // unit) + self.padding) * unit

    def make(self) -> Array:
        """Return a new array: a view of one with longer rows."""
        shape = (*self.shape[:-1], self.row_elems)
        return _filled(self, prod(shape)).reshape(shape)[..., : self.shape[-1]]


Argument: TypeAlias = "Scalar | Buffer | Tensor"


def _filled(argument: Buffer | Tensor, size: int) -> Array:
    """Return `size` elements as an argument has them, in memory of their own."""
    element, fill = argument.element, argument.fill
    random, dtype = np.random.default_rng([argument.seed, size]), dtype_of(element)
    if fill == "poison":
        poison = np.full(size * dtype.itemsize, 0x5A, np.uint8)
        return np.ones(size, np.bool_) if element.is_bool else poison.view(dtype)
    if fill == "indices":
        return random.integers(0, 1 << argument.hi, size).astype(dtype)
    if element.is_bool:
        return random.integers(0, 2, size).astype(np.bool_)
    if fill == "exact":
        return _exact(random, element, Facts(lo=argument.lo, hi=argument.hi), size)
    return _integers(random, dtype, size) if element.is_int else _floats(random, element, size)


def _exact(random: np.random.Generator, element: ScalarType, facts: Facts, size: int) -> Array:
    limit = 1 << (facts.hi - facts.lo)
    low = -limit if element.is_float or element.is_signed else 0
    values = random.integers(low, limit, size, endpoint=True)
    if element.is_int:
        return values.astype(dtype_of(element))
    return np.ldexp(values.astype(np.float64), facts.lo).astype(dtype_of(element))


def _integers(random: np.random.Generator, dtype: np.dtype[Any], size: int) -> Array:
    """Return random bits, small numbers, and sums of two powers of two and a little."""
    bits = 8 * dtype.itemsize
    raw = np.frombuffer(random.bytes(size * dtype.itemsize), dtype).copy()
    powers = np.uint64(1) << random.integers(0, bits, (2, size)).astype(np.uint64)
    ties = powers[0] + powers[1] + random.integers(-1, 2, size).astype(np.uint64)
    kind = random.integers(0, 4, size)
    with np.errstate(all="ignore"):
        small = random.integers(-4, 5, size).astype(dtype)
        return np.choose(kind, [raw, raw, small, ties.astype(dtype)])


def _floats(random: np.random.Generator, element: ScalarType, size: int) -> Array:
    """Return random bits besides numbers of usual size and special ones."""
    dtype = dtype_of(element)
    usual = random.standard_normal(size) * 4
    special = random.choice([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, 65504.0], size)
    kind = random.integers(0, 8, size)
    with np.errstate(all="ignore"):
        raw = np.frombuffer(random.bytes(size * dtype.itemsize), dtype).astype(np.float64)
        return np.choose(kind, [usual] * 5 + [raw, raw, special]).astype(dtype)

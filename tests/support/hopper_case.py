"""Cases of the matrix kernels for Hopper, and helpers to make them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from aotc.ir.types import BF16, FP32, ScalarType
from aotc.package.manifest import argument_type
from aotc.verify.interpreter.numerics import dtype_of
from tests.support import references
from tests.support.kernel_cases import Launch
from tests.support.references import Expected
from tests.support.tensors import Array, Tensor, normal, poison, tensor

KERNELS = Path(__file__).resolve().parents[2] / "kernels"

Shape = tuple[int, ...]
Constants = Mapping[str, Any]
Make = Callable[[np.random.Generator, ScalarType, Shape, Constants], Launch]


@dataclass(frozen=True)
class HopperCase:
    """One kernel with its fused epilogue: launches, shapes and builds.

    The last shape is for long runs. `extra` are arguments of some builds only, in the order of the
    kernel's parameters.
    """

    name: str
    source: str
    signature: Mapping[str, str]
    make: Make
    grid: Callable[[Mapping[str, Any]], tuple[int, ...]]
    shapes: tuple[Shape, ...]
    builds: tuple[Constants, ...]
    dtypes: tuple[str, ...] = ("bf16",)
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The path of the source file."""
        return str(KERNELS / self.source.rpartition(":")[0])

    @property
    def function(self) -> str:
        """The name of the kernel in it."""
        return self.source.rpartition(":")[2]

    @property
    def may_specialize(self) -> bool:
        """Return whether the kernel has an option for warp specialization."""
        return any(word in self.source for word in ("persistent", "descriptor", "split_tail"))

    def types(self, dtype: str, build: Constants, launch: Launch) -> dict[str, str]:
        """Return the signature of a build for a launch."""
        dtypes = {"T": dtype}
        return {
            name: argument_type.parse(text, ("T",)).concrete(dtypes, build)
            for name, text in (*self.signature.items(), *self.extra.items())
            if name in launch.args
        }

    def grid_of(self, launch: Launch, build: Constants) -> tuple[int, ...]:
        """Return the grid of a launch."""
        return self.grid({**launch.args, **build})


def matrix(content: Array) -> Tensor:
    """Return a tensor with rows at multiples of 16 bytes, and slack between them."""
    unit = 16 // content.itemsize
    row = int(np.prod(content.shape[1:]))
    return tensor(content, stride_elems=-(-row // unit) * unit + (unit if content.ndim == 2 else 0))


def output(shape: Shape, scalar: ScalarType = BF16) -> Tensor:
    return matrix(poison(shape, dtype_of(scalar)))


def operands(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, columns: int
) -> tuple[Array, Array]:
    """Return A (M, K), and B (columns, K)."""
    m, _, k = shape
    return normal(rng, (m, k), scalar), normal(rng, (columns, k), scalar)


def sizes_of(shape: Shape) -> dict[str, int]:
    return dict(zip(("M", "N", "K"), shape, strict=True))


def shared_tiles(parts: Shape, tiles: int) -> tuple[dict[str, Tensor], dict[str, Expected]]:
    """Return workspace and counters for split-K; the kernel resets the counters to zero."""
    counters = np.zeros(tiles, np.int32)
    args = {"workspace_ptr": tensor(poison(parts, dtype_of(FP32))), "counter_ptr": tensor(counters)}
    unchecked = Expected(np.zeros(parts), np.full(parts, np.inf))
    return args, {"workspace_ptr": unchecked, "counter_ptr": references.exact(counters)}


def split_tiles(build: Constants, tiles: int) -> tuple[dict[str, Tensor], dict[str, Expected]]:
    """Return workspace and counters if programs share a tile."""
    splits = build["SPLIT_K"]
    parts = (tiles * splits * build["BLOCK_N"], build["BLOCK_M"])
    return ({}, {}) if splits == 1 else shared_tiles(parts, tiles)


def cdiv(value: int, by: int) -> int:
    return -(-value // by)


def tile_grid(values: Mapping[str, Any]) -> tuple[int, ...]:
    width = values.get("COLUMNS", values["BLOCK_N"])
    tiles = cdiv(values["M"], values["BLOCK_M"]) * cdiv(values["N"], width)
    return (min(values["NUM_SMS"], values.get("batches", 1) * tiles),)


def part_grid(values: Mapping[str, Any]) -> tuple[int, ...]:
    tiles = (cdiv(values[name], values[f"BLOCK_{name}"]) for name in "MN")
    return (*tiles, values["SPLIT_K"])


SIZES = dict.fromkeys(("M", "N", "K"), "i32")
SHARED = {"workspace_ptr": "*fp32:16", "counter_ptr": "*i32:16"}

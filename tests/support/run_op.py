"""Run a few ops on arrays, in a kernel to load the arrays and store the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from aotc.ir.core import Block, Kernel, Value
from aotc.ir.dialects import arith, scf, tile
from aotc.ir.params import ParamInfo
from aotc.ir.rewrite import Builder
from aotc.ir.types import (
    SCALARS,
    PointerType,
    ScalarType,
    TileType,
    element_of,
    shape_of,
)
from aotc.ir.verify import verify
from aotc.verify.interpreter.numerics import dtype_of
from aotc.verify.interpreter.run import run

Array = npt.NDArray[Any]
Body = Callable[..., Value | Sequence[Value]]


def scalar_of(dtype: np.dtype[Any]) -> ScalarType:
    """Return the IR type of `dtype`."""
    return next(scalar for scalar in SCALARS.values() if dtype_of(scalar) == dtype)


def offsets(add: Builder, shape: tuple[int, ...]) -> Value:
    """Return the i32 tile of row-major indices of `shape`."""
    flat = add(tile.Arange(0, prod(shape))).out
    return flat if len(shape) == 1 else add(tile.Reshape(flat, shape)).out


def pointers(add: Builder, base: Value, shape: tuple[int, ...]) -> Value:
    """Return pointers to the elements of a row-major array of `shape`; () gives `base` itself."""
    if not shape:
        return base
    return add(arith.AddPtr(add(tile.Splat(base, shape)).out, offsets(add, shape))).out


def op_kernel(arrays: Sequence[Array], body: Body) -> tuple[Kernel, list[TileType | Any]]:
    """Return a kernel to apply `body(builder, *tiles)` and store its results.

    Its parameters are pointers to the arrays, then to the results. Their types are the second part.
    """
    block = Block([PointerType(scalar_of(array.dtype)) for array in arrays])
    add = Builder(block)
    loaded = [
        add(tile.Load(pointers(add, base, array.shape))).out
        for base, array in zip(block.args, arrays, strict=True)
    ]
    outs = body(add, *loaded)
    outs = [outs] if isinstance(outs, Value) else list(outs)
    for out in outs:
        element = element_of(out.type)
        assert isinstance(element, ScalarType)
        base = block.add_arg(PointerType(element))
        add(tile.Store(pointers(add, base, shape_of(out.type)), out))
    add(scf.Return())
    names = tuple(ParamInfo(f"p{index}") for index in range(len(block.args)))
    return Kernel("op", names, block), [out.type for out in outs]


def run_op(body: Body, *arrays: Array, poison_seed: int = 0) -> list[Array]:
    """Return the results of `body(builder, *tiles)` on `arrays`, with extents of powers of two."""
    kernel, types = op_kernel(arrays, body)
    verify(kernel)
    outs = [np.empty(shape_of(kind), dtype_of(element_of(kind))) for kind in types]
    run(kernel, (1,), [*arrays, *outs], poison_seed=poison_seed)
    return outs

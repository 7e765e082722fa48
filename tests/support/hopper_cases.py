"""Products through tensor descriptors and of few rows: inputs, odd shapes and the right answers.

As in `matrix_cases`, a case makes launches and knows nothing of how they are run. Signatures are
written as a manifest has them, so that blocks of descriptors follow the constants of a build.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from aotc.ir.types import BF16, FP32, I8, SCALARS, ScalarType
from aotc.package import argument_type
from aotc.verify.interpreter.numerics import dtype_of
from aotc.weights import repack_mx_scales
from tests.support import references
from tests.support.kernel_cases import Launch
from tests.support.references import EPS, Approximate, Expected
from tests.support.tensors import Array, Tensor, normal, poison, tensor, wide

KERNELS = Path(__file__).resolve().parents[2] / "kernels"

Shape = tuple[int, ...]
Constants = Mapping[str, Any]
Make = Callable[[np.random.Generator, ScalarType, Shape, Constants], Launch]


@dataclass(frozen=True)
class HopperCase:
    """One kernel with what is fused into it: how to launch it, at which shapes, in which builds.

    The last shape is the one for runs that take long. `extra` are arguments that only some builds
    have, in the order of the kernel's parameters.
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
        """Whether the kernel can be told to give warps roles of their own."""
        return any(word in self.source for word in ("persistent", "descriptor", "split_tail"))

    def types(self, dtype: str, build: Constants, launch: Launch) -> dict[str, str]:
        """Return the signature of a build that a launch fits."""
        known = {"T": dtype}
        return {
            name: argument_type.parse(text, ("T",)).concrete(known, build)
            for name, text in (*self.signature.items(), *self.extra.items())
            if name in launch.args
        }

    def grid_of(self, launch: Launch, build: Constants) -> tuple[int, ...]:
        """Return the grid of a launch."""
        return self.grid({**launch.args, **build})


def matrix(content: Array) -> Tensor:
    """Return a tensor whose rows begin at multiples of 16 bytes, with slack between them."""
    unit = 16 // content.itemsize
    row = int(np.prod(content.shape[1:]))
    return tensor(content, stride_elems=-(-row // unit) * unit + (unit if content.ndim == 2 else 0))


def _output(shape: Shape, scalar: ScalarType = BF16) -> Tensor:
    return matrix(poison(shape, dtype_of(scalar)))


def _operands(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, columns: int
) -> tuple[Array, Array]:
    """Return A (M, K), and B (columns, K)."""
    m, _, k = shape
    return normal(rng, (m, k), scalar), normal(rng, (columns, k), scalar)


def _sizes(shape: Shape) -> dict[str, int]:
    return dict(zip(("M", "N", "K"), shape, strict=True))


# ---- persistent products ----------------------------------------------------------------------

_SCALES = {"scale_a_ptr": "*fp32", "scale_b_ptr": "*fp32"}


def _scales(
    rng: np.random.Generator, kind: str, rows: int, columns: int
) -> tuple[dict[str, Tensor], Array]:
    """Return the arguments, and what a product is to be multiplied by."""
    if kind == "none":
        return {}, np.ones((1, 1))
    rows, columns = (1, 1) if kind == "tensor" else (rows, columns)
    a, b = (np.abs(normal(rng, (extent,), FP32)) for extent in (rows, columns))
    return {"scale_a_ptr": tensor(a), "scale_b_ptr": tensor(b)}, wide(a)[:, None] * wide(b)


def _persistent(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, build: Constants
) -> Launch:
    m, n, _ = shape
    a, b = _operands(rng, scalar, shape, n)
    bias, residual = normal(rng, (n,), BF16), normal(rng, (m, n), BF16)
    scales, factor = _scales(rng, build.get("SCALES", "none"), m, n)
    exact = references.dot(a, b.T, scalar) * factor
    fused: dict[str, Tensor] = {}
    if build.get("FUSED"):
        exact += wide(bias)
        fused = {"bias_ptr": tensor(bias), "residual": matrix(residual)}
    exact = references.activate(exact, build.get("ACTIVATION", "none"))
    if fused:
        exact += wide(residual)
    stored = b if build.get("TRANSPOSED", True) else np.ascontiguousarray(b.T)
    args = {"a": matrix(a), "b": matrix(stored), "c": _output((m, n)), **_sizes(shape)}
    if "REST_N" in build:
        fused["c_rest"] = args["c"]
    return Launch({**args, **fused, **scales}, {"c": exact.rounded(BF16)})


def _split_tail(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, build: Constants
) -> Launch:
    launch = _persistent(rng, scalar, shape, build)
    width = build.get("COLUMNS", build["BLOCK_N"])
    tiles = _cdiv(shape[0], build["BLOCK_M"]) * _cdiv(shape[1], width)
    parts = (tiles % build["NUM_SMS"] * build["SPLIT_K"] * build["BLOCK_M"], width)
    shared, expected = _shared_tiles(parts, tiles)
    return Launch({**launch.args, **shared}, {**launch.expected, **expected})


def _swiglu(rng: np.random.Generator, scalar: ScalarType, shape: Shape, build: Constants) -> Launch:
    m, n, _ = shape
    a, b = _operands(rng, scalar, shape, 2 * n)
    scales, factor = _scales(rng, build.get("SCALES", "none"), m, 2 * n)
    both = references.dot(a, b.T, scalar) * np.broadcast_to(factor, (m, 2 * n))
    up = Approximate(both.value[:, n:], both.error[:, n:])
    gate = references.activate(Approximate(both.value[:, :n], both.error[:, :n]), "silu")
    value = gate.value * up.value
    error = gate.error * (np.abs(up.value) + up.error) + np.abs(gate.value) * up.error
    args = {"a": matrix(a), "b": matrix(b), "c": _output((m, n)), **_sizes(shape), **scales}
    expected = Approximate(value, error + EPS * np.abs(value)).rounded(BF16)
    return Launch(args, {"c": expected})


def _blockwise(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, build: Constants
) -> Launch:
    del build
    m, n, k = shape
    a, b = _operands(rng, scalar, shape, n)
    blocks_n, blocks_k = -(-n // 128), -(-k // 128)
    scale_a = np.abs(normal(rng, (blocks_k, m), FP32))
    scale_b = np.abs(normal(rng, (blocks_n, blocks_k), FP32))
    wide_a = wide(a) * np.repeat(wide(scale_a).T, 128, 1)[:, :k]
    wide_b = wide(b) * np.repeat(np.repeat(wide(scale_b), 128, 0), 128, 1)[:n, :k]
    product = references.dot(wide_a, wide_b.T, scalar)
    size = np.abs(wide_a) @ np.abs(wide_b.T)
    args = {
        "a": matrix(a), "b": matrix(b), "c": _output((m, n)), "scale_a": matrix(scale_a),
        "scale_b_ptr": tensor(scale_b), **_sizes(shape), "stride_sb": blocks_k,
    }  # fmt: skip
    error = product.error + EPS * (4 + blocks_k) * size
    return Launch(args, {"c": Approximate(product.value, error).rounded(BF16)})


def _batched(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, build: Constants
) -> Launch:
    batches, m, n, k = shape
    a, b = normal(rng, (batches, m, k), scalar), normal(rng, (batches, n, k), scalar)
    stored = b if build["TRANSPOSED"] else np.ascontiguousarray(b.swapaxes(1, 2))
    args = {
        "a": matrix(a), "b": matrix(stored), "c": _output((batches, m, n), scalar),
        "batches": batches, **_sizes(shape[1:]),
    }  # fmt: skip
    exact = references.dot(a, b.swapaxes(1, 2), scalar)
    return Launch(args, {"c": exact.rounded(scalar)})


# ---- few rows ---------------------------------------------------------------------------------


def _shared_tiles(parts: Shape, tiles: int) -> tuple[dict[str, Tensor], dict[str, Expected]]:
    """Return what programs that share tiles need; the counters are zeros again afterwards."""
    counters = np.zeros(tiles, np.int32)
    args = {"workspace_ptr": tensor(poison(parts, dtype_of(FP32))), "counter_ptr": tensor(counters)}
    anything = Expected(np.zeros(parts), np.full(parts, np.inf))
    return args, {"workspace_ptr": anything, "counter_ptr": references.exact(counters)}


def _split(build: Constants, tiles: int) -> tuple[dict[str, Tensor], dict[str, Expected]]:
    """Return what programs that share a tile need, if any do."""
    splits = build["SPLIT_K"]
    parts = (tiles * splits * build["BLOCK_N"], build["BLOCK_M"])
    return ({}, {}) if splits == 1 else _shared_tiles(parts, tiles)


def _small(rng: np.random.Generator, scalar: ScalarType, shape: Shape, build: Constants) -> Launch:
    m, n, _ = shape
    x, w = _operands(rng, scalar, shape, n)
    out, stored = _output((m, n), scalar), {"w": matrix(w), "x": matrix(x)}
    strides = {"w": "stride_wn", "x": "stride_xm"}
    args: dict[str, Any] = stored
    if "EVEN" in build:
        args = {f"{name}_ptr": each for name, each in stored.items()}
    args = {**args, "out_ptr": out, **_sizes(shape)}
    if "EVEN" in build:
        args |= {
            strides[name]: each.view.strides[0] // each.view.itemsize
            for name, each in stored.items()
        }
    args["stride_om"] = out.view.strides[0] // out.view.itemsize
    shared, expected = _split(build, _cdiv(m, build["BLOCK_M"]) * _cdiv(n, build["BLOCK_N"]))
    exact = references.dot(x, w.T, scalar)
    return Launch({**args, **shared}, {"out_ptr": exact.rounded(scalar), **expected})


def _matvec(rng: np.random.Generator, scalar: ScalarType, shape: Shape, build: Constants) -> Launch:
    del build
    n, k = shape
    w, x = normal(rng, (n, k), scalar), normal(rng, (k,), scalar)
    stored = matrix(w)
    args = {
        "w_ptr": stored, "x_ptr": tensor(x), "out_ptr": tensor(poison((n,), dtype_of(scalar))),
        "N": n, "K": k, "stride_wn": stored.view.strides[0] // stored.view.itemsize,
    }  # fmt: skip
    exact = references.dot(w, x[:, None], scalar)
    column = Approximate(exact.value[:, 0], exact.error[:, 0])
    return Launch(args, {"out_ptr": column.rounded(scalar)})


# ---- weights of few bits ----------------------------------------------------------------------


def _weight_only(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, build: Constants
) -> Launch:
    del build
    m, n, k = shape
    x = normal(rng, (m, k), BF16)
    numbers = rng.integers(-128, 128, (n, k)) if scalar == I8 else normal(rng, (n, k), scalar)
    w, scale = numbers.astype(dtype_of(scalar)), np.abs(normal(rng, (n,), FP32))
    product = references.dot(x, w.astype(dtype_of(BF16)).T, BF16)
    args = {
        "x": matrix(x), "w": matrix(w), "c": _output((m, n)), "scale_ptr": tensor(scale),
        **_sizes(shape),
    }  # fmt: skip
    return Launch(args, {"c": (product * wide(scale)).rounded(BF16)})


def _int4(
    rng: np.random.Generator,
    scalar: ScalarType,
    shape: Shape,
    build: Constants,
    *,
    has_zeros: bool = False,
) -> Launch:
    m, n, k = shape
    groups, group = _cdiv(k, build["BLOCK_K"] // build["GROUPS_K"]), build["BLOCK_K"]
    group //= build["GROUPS_K"]
    x, numbers = normal(rng, (m, k), scalar), rng.integers(0, 16, (n, k))
    element = np.arange(8)
    words = (numbers.reshape(n, -1, 8) << element // 2 * 4 + element % 2 * 16).sum(2)
    scales = normal(rng, (groups, n), scalar)
    zeros = np.full((groups, n), 8)
    asked: dict[str, Tensor] = {}
    if has_zeros:
        zeros = rng.integers(0, 16, (groups, n))
        asked = {"zeros": matrix(zeros.astype(dtype_of(scalar)))}
    each_zero, each_scale = (each.T.repeat(group, 1)[:, :k] for each in (zeros, wide(scales)))
    w = (numbers - each_zero) * each_scale
    out = _output((m, n), scalar)
    shared, expected = _split(build, _cdiv(m, build["BLOCK_M"]) * _cdiv(n, build["BLOCK_N"]))
    args = {
        "w": matrix(words.astype(np.uint32).view(np.int32)), "x": matrix(x),
        "scales": matrix(scales), "out_ptr": out, **_sizes(shape),
        "stride_om": out.view.strides[0] // out.view.itemsize, **asked,
    }  # fmt: skip
    exact = references.dot(x, w.astype(dtype_of(scalar)).T, scalar)
    return Launch({**args, **shared}, {"out_ptr": exact.rounded(scalar), **expected})


def _mxfp4(rng: np.random.Generator, scalar: ScalarType, shape: Shape, build: Constants) -> Launch:
    m, n, k = shape
    x, w = normal(rng, (m, k), scalar), rng.integers(0, 256, (n, k // 2)).astype(np.uint8)
    exponents = rng.integers(116, 129, (n, k // 32)).astype(np.uint8)
    codes = np.stack((w & 15, w >> 4), 2).reshape(n, k)
    numbers = np.array((0, 0.5, 1, 1.5, 2, 3, 4, 6))[codes & 7] * np.where(codes & 8, -1, 1)
    scaled = numbers * np.exp2(exponents - 127.0).repeat(32, 1)
    out = _output((m, n), scalar)
    shared, expected = {}, {}
    stored: dict[str, Any] = {"c": out}
    if "SPLIT_K" in build:
        tiles = _cdiv(m, build["BLOCK_M"]) * _cdiv(n, build["BLOCK_N"])
        shared, expected = _split(build, tiles)
        stored = {"out_ptr": out, "stride_om": out.view.strides[0] // out.view.itemsize}
    args = {
        "w": matrix(w), "x": matrix(x), "scales": matrix(repack_mx_scales(exponents)), **stored,
        **_sizes(shape),
    }  # fmt: skip
    exact = references.dot(x, scaled.astype(dtype_of(scalar)).T, scalar).rounded(scalar)
    return Launch({**args, **shared}, {"c" if "c" in stored else "out_ptr": exact, **expected})


# ---- the table --------------------------------------------------------------------------------


def _cdiv(value: int, by: int) -> int:
    return -(-value // by)


def _tiles(known: Mapping[str, Any]) -> tuple[int, ...]:
    width = known.get("COLUMNS", known["BLOCK_N"])
    tiles = _cdiv(known["M"], known["BLOCK_M"]) * _cdiv(known["N"], width)
    return (min(known["NUM_SMS"], known.get("batches", 1) * tiles),)


def _parts(known: Mapping[str, Any]) -> tuple[int, ...]:
    tiles = (_cdiv(known[name], known[f"BLOCK_{name}"]) for name in "MN")
    return (*tiles, known["SPLIT_K"])


def _rows(known: Mapping[str, Any]) -> tuple[int, ...]:
    return (_cdiv(known["N"], known["BLOCK_N"]),)


_INT = dict.fromkeys(("M", "N", "K"), "i32")
_LINEAR = {
    "a": "tensordesc<T[BLOCK_M,BLOCK_K]>",
    "b": "tensordesc<T[BLOCK_N,BLOCK_K]>",
    "c": "tensordesc<bf16[BLOCK_M,EPILOGUE_N]>",
    **_INT,
}
_POINTERS = dict.fromkeys(("w_ptr", "x_ptr", "out_ptr"), "*T:16")
_SHARED = {"workspace_ptr": "*fp32:16", "counter_ptr": "*i32:16"}
_BLOCKS = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 2, "NUM_SMS": 3}
_SHAPES = ((1, 8, 8), (64, 64, 32), (65, 56, 24), (63, 72, 40), (130, 136, 104))
_FP8_BLOCKS = {**_BLOCKS, "BLOCK_K": 64}
_FP8_SHAPES = ((1, 16, 16), (64, 64, 64), (65, 144, 208))
_FEW_BLOCKS = {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 32}
_FEW_SHAPES = ((1, 8, 8), (2, 64, 32), (15, 65, 0), (17, 64, 96), (35, 136, 200))
_WEIGHT_BLOCKS = {"BLOCK_M": 32, "BLOCK_N": 64, "GROUP_N": 2, "NUM_SMS": 3}
_INT4 = {
    "w": "tensordesc<i32[BLOCK_N,WORDS_K]>",
    "x": "tensordesc<T[BLOCK_M,BLOCK_K]>",
    "scales": "tensordesc<T[GROUPS_K,BLOCK_N]>",
    "out_ptr": "*T:16",
    **_INT,
    "stride_om": "i32",
}
_INT4_BLOCKS = {"BLOCK_M": 16, "BLOCK_N": 64}
_PERSISTENT = "persistent_matmul.py:persistent_matmul_kernel"

CASES: dict[str, HopperCase] = {
    case.name: case
    for case in (
        HopperCase(
            *("linear", _PERSISTENT, _LINEAR, _persistent, _tiles, _SHAPES),
            (
                {**_BLOCKS, "EPILOGUE_N": 64},
                {**_BLOCKS, "EPILOGUE_N": 16, "NUM_SMS": 1, "WARP_SPECIALIZE": True},
                {**_BLOCKS, "EPILOGUE_N": 32, "FLATTEN": False, "GROUP_M": 1},
            ),
            ("bf16", "fp16"),
        ),
        HopperCase(
            *("fused", _PERSISTENT, _LINEAR, _persistent, _tiles, _SHAPES),
            tuple(
                {**_BLOCKS, "EPILOGUE_N": 64 >> at % 3, "FUSED": True, "ACTIVATION": name}
                for at, name in enumerate(("none", "relu", "gelu", "silu"))
            ),
            extra={"bias_ptr": "*bf16:16", "residual": "tensordesc<bf16[BLOCK_M,EPILOGUE_N]>"},
        ),
        HopperCase(
            *("columns", _PERSISTENT, _LINEAR, _persistent, _tiles, (*_SHAPES, (33, 200, 72))),
            (
                {**_BLOCKS, "EPILOGUE_N": 16, "COLUMNS": 48, "FUSED": True, "ACTIVATION": "silu"},
                {**_BLOCKS, "BLOCK_N": 256, "EPILOGUE_N": 64, "COLUMNS": 192},
                {**_BLOCKS, "BLOCK_N": 128, "EPILOGUE_N": 16, "COLUMNS": 112},
                {**_BLOCKS, "BLOCK_N": 128, "EPILOGUE_N": 64, "COLUMNS": 112, "REST_N": 16},
                {**_BLOCKS, "BLOCK_N": 256, "EPILOGUE_N": 64, "COLUMNS": 200, "REST_N": 8},
            ),
            extra={
                "bias_ptr": "*bf16:16",
                "residual": "tensordesc<bf16[BLOCK_M,EPILOGUE_N]>",
                "c_rest": "tensordesc<bf16[BLOCK_M,REST_N]>",
            },
        ),
        HopperCase(
            *("split_tail", "split_tail.py:split_tail_matmul_kernel"),
            {**_LINEAR, **_SHARED},
            *(_split_tail, lambda known: (known["NUM_SMS"],)),
            (*_SHAPES, (65, 72, 520), (200, 200, 72)),
            (
                {**_BLOCKS, "EPILOGUE_N": 64, "SPLIT_K": 2},
                {**_BLOCKS, "EPILOGUE_N": 32, "SPLIT_K": 3, "NUM_SMS": 7, "WARP_SPECIALIZE": True},
                {**_BLOCKS, "EPILOGUE_N": 16, "SPLIT_K": 4, "COLUMNS": 48, "NUM_SMS": 5},
            ),
        ),
        HopperCase(
            *("matmul", _PERSISTENT, {**_LINEAR, "b": "tensordesc<T[BLOCK_K,BLOCK_N]>"}),
            *(_persistent, _tiles, _SHAPES),
            ({**_BLOCKS, "EPILOGUE_N": 64, "TRANSPOSED": False},),
        ),
        HopperCase(
            *("linear_fp8", _PERSISTENT, _LINEAR, _persistent, _tiles, _FP8_SHAPES),
            tuple(
                {**_FP8_BLOCKS, "EPILOGUE_N": columns, "SCALES": kind}
                for kind, columns in (("tensor", 64), ("row", 32))
            ),
            ("fp8e4nv", "fp8e5"),
            _SCALES,
        ),
        HopperCase(
            *("swiglu", "persistent_matmul.py:persistent_swiglu_kernel"),
            {**_LINEAR, "c": "tensordesc<bf16[BLOCK_M,BLOCK_N]>"},
            *(_swiglu, _tiles, _SHAPES, (_BLOCKS,)),
        ),
        HopperCase(
            *("swiglu_fp8", "persistent_matmul.py:persistent_swiglu_kernel"),
            {**_LINEAR, "c": "tensordesc<bf16[BLOCK_M,BLOCK_N]>"},
            *(_swiglu, _tiles, _FP8_SHAPES),
            tuple({**_FP8_BLOCKS, "SCALES": kind} for kind in ("tensor", "row")),
            *(("fp8e4nv",), _SCALES),
        ),
        HopperCase(
            *("blockwise", "persistent_matmul.py:persistent_blockwise_kernel"),
            {
                **_LINEAR,
                "c": "tensordesc<bf16[BLOCK_M,BLOCK_N]>",
                "scale_a": "tensordesc<fp32[1,BLOCK_M]>",
                "scale_b_ptr": "*fp32",
                "stride_sb": "i32",
            },
            *(_blockwise, _tiles, ((4, 16, 16), (68, 144, 128), (132, 208, 272))),
            ({**_BLOCKS, "BLOCK_K": 128}, {**_BLOCKS, "BLOCK_N": 128, "BLOCK_K": 128}),
            ("fp8e4nv",),
        ),
        HopperCase(
            *("batched", "batched_matmul.py:batched_matmul_descriptor_kernel"),
            {
                "a": "tensordesc<T[1,BLOCK_M,BLOCK_K]>",
                "b": "tensordesc<T[1,BLOCK_N,BLOCK_K]>",
                "c": "tensordesc<T[1,BLOCK_M,BLOCK_N]>",
                "batches": "i32",
                **_INT,
            },
            *(_batched, _tiles, ((1, 1, 8, 8), (3, 64, 64, 32), (3, 65, 72, 40))),
            ({**_BLOCKS, "TRANSPOSED": True},),
        ),
        HopperCase(
            *("batched_by_rows", "batched_matmul.py:batched_matmul_descriptor_kernel"),
            {
                "a": "tensordesc<T[1,BLOCK_M,BLOCK_K]>",
                "b": "tensordesc<T[1,BLOCK_K,BLOCK_N]>",
                "c": "tensordesc<T[1,BLOCK_M,BLOCK_N]>",
                "batches": "i32",
                **_INT,
            },
            *(_batched, _tiles, ((1, 1, 8, 8), (2, 65, 72, 40))),
            ({**_BLOCKS, "TRANSPOSED": False},),
            ("fp16",),
        ),
        HopperCase(
            *("small", "small_matmul.py:small_matmul_kernel"),
            {**_POINTERS, **_INT, **dict.fromkeys(("stride_wn", "stride_xm", "stride_om"), "i32")},
            *(_small, _parts, _FEW_SHAPES),
            tuple({**_FEW_BLOCKS, "SPLIT_K": parts, "EVEN": False} for parts in (1, 3)),
            *(("bf16", "fp16"), _SHARED),
        ),
        HopperCase(
            *("small_even", "small_matmul.py:small_matmul_kernel"),
            {**_POINTERS, **_INT, **dict.fromkeys(("stride_wn", "stride_xm", "stride_om"), "i32")},
            *(_small, _parts, ((1, 64, 32), (16, 128, 0), (11, 64, 160))),
            tuple({**_FEW_BLOCKS, "SPLIT_K": p, "EVEN": True, "PDL": p > 1} for p in (1, 4)),
            extra=_SHARED,
        ),
        HopperCase(
            *("small_descriptor", "small_matmul.py:small_matmul_descriptor_kernel"),
            {
                "w": "tensordesc<T[BLOCK_N,BLOCK_K]>",
                "x": "tensordesc<T[BLOCK_M,BLOCK_K]>",
                "out_ptr": "*T:16",
                **_INT,
                "stride_om": "i32",
            },
            *(_small, _parts, tuple(shape for shape in _FEW_SHAPES if shape[2])),
            (
                *({**_FEW_BLOCKS, "SPLIT_K": parts} for parts in (1, 2)),
                *({**_FEW_BLOCKS, "SPLIT_K": p, "PDL": True, "EARLY": 2} for p in (1, 2)),
            ),
            extra=_SHARED,
        ),
        HopperCase(
            *("weight_only", "weight_only_matmul.py:persistent_weight_only_kernel"),
            {
                "x": "tensordesc<bf16[BLOCK_M,BLOCK_K]>",
                "w": "tensordesc<T[BLOCK_N,BLOCK_K]>",
                "c": "tensordesc<bf16[BLOCK_M,BLOCK_N]>",
                "scale_ptr": "*fp32",
                **_INT,
            },
            *(_weight_only, _tiles, ((1, 16, 16), (64, 64, 64), (65, 144, 208))),
            (
                {**_WEIGHT_BLOCKS, "BLOCK_K": 32},
                {**_WEIGHT_BLOCKS, "BLOCK_K": 64, "WARP_SPECIALIZE": True},
            ),
            ("i8", "fp8e4nv"),
        ),
        HopperCase(
            *("small_int4", "weight_only_matmul.py:small_int4_kernel"),
            _INT4,
            # Rows of words are whole 16 bytes: K is a multiple of 32.
            *(_int4, _parts, ((1, 8, 32), (2, 64, 64), (17, 136, 224))),
            (
                {**_INT4_BLOCKS, "BLOCK_K": 32, "WORDS_K": 4, "GROUPS_K": 1, "SPLIT_K": 1},
                {**_INT4_BLOCKS, "BLOCK_K": 64, "WORDS_K": 8, "GROUPS_K": 2, "SPLIT_K": 2},
            ),
            ("bf16", "fp16"),
            _SHARED,
        ),
        HopperCase(
            *("small_int4_zeros", "weight_only_matmul.py:small_int4_kernel"),
            {**_INT4, "zeros": "tensordesc<T[GROUPS_K,BLOCK_N]>"},
            # Rows of words are whole 16 bytes: K is a multiple of 32.
            *(partial(_int4, has_zeros=True), _parts, ((1, 8, 32), (2, 64, 64), (17, 136, 224))),
            (
                {**_INT4_BLOCKS, "BLOCK_K": 32, "WORDS_K": 4, "GROUPS_K": 1, "SPLIT_K": 1},
                {**_INT4_BLOCKS, "BLOCK_K": 64, "WORDS_K": 8, "GROUPS_K": 2, "SPLIT_K": 2},
            ),
            ("fp16",),
            _SHARED,
        ),
        HopperCase(
            *("small_mxfp4", "weight_only_matmul.py:small_mxfp4_kernel"),
            {
                "w": "tensordesc<u8[BLOCK_N,BYTES_K]>",
                **{name: kind for name, kind in _INT4.items() if name != "w"},
                "scales": "tensordesc<i32[WORDS_K,BLOCK_N]>",
            },
            # Rows of bytes are whole 16 bytes: K is a multiple of 32.
            *(_mxfp4, _parts, ((1, 8, 32), (2, 64, 128), (17, 136, 352))),
            (
                {**_INT4_BLOCKS, "BLOCK_K": 64, "BYTES_K": 32, "WORDS_K": 1, "SPLIT_K": 1},
                {**_INT4_BLOCKS, "BLOCK_K": 128, "BYTES_K": 64, "WORDS_K": 1, "SPLIT_K": 2},
            ),
            ("bf16", "fp16"),
            _SHARED,
        ),
        HopperCase(
            *("small_mxfp4_decoded", "weight_only_matmul.py:small_mxfp4_kernel"),
            {
                "w": "tensordesc<u8[BLOCK_N,BYTES_K]>",
                **{name: kind for name, kind in _INT4.items() if name != "w"},
                "scales": "tensordesc<i32[WORDS_K,BLOCK_N]>",
            },
            *(_mxfp4, _parts, ((1, 8, 32), (2, 64, 128), (17, 136, 352))),
            tuple(
                {
                    **_INT4_BLOCKS,
                    "BLOCK_K": 32 << at,
                    "BYTES_K": 16 << at,
                    "WORDS_K": 1,
                    "SPLIT_K": at,
                    "DECODE": True,
                }
                for at in (1, 2)
            ),
            ("bf16",),
            _SHARED,
        ),
        HopperCase(
            *("mxfp4", "weight_only_matmul.py:persistent_mxfp4_kernel"),
            {
                "x": "tensordesc<T[BLOCK_M,BLOCK_K]>",
                "w": "tensordesc<u8[BLOCK_N,BYTES_K]>",
                "c": "tensordesc<T[BLOCK_M,BLOCK_N]>",
                "scales": "tensordesc<i32[WORDS_K,BLOCK_N]>",
                **_INT,
            },
            *(_mxfp4, _tiles, ((1, 16, 32), (64, 64, 64), (65, 144, 224))),
            (
                {**_WEIGHT_BLOCKS, "BLOCK_K": 64, "BYTES_K": 32, "WORDS_K": 1},
                {
                    **_WEIGHT_BLOCKS,
                    "BLOCK_K": 256,
                    "BYTES_K": 128,
                    "WORDS_K": 2,
                    "WARP_SPECIALIZE": True,
                },
            ),
            ("bf16",),
        ),
        HopperCase(
            *("matvec", "small_matmul.py:matvec_kernel"),
            {**_POINTERS, "N": "i32", "K": "i32", "stride_wn": "i32"},
            *(_matvec, _rows, ((1, 8), (8, 64), (9, 200), (5, 0))),
            ({"BLOCK_N": 4, "BLOCK_K": 64},),
            ("bf16", "fp16"),
        ),
        HopperCase(
            *("matvec_even", "small_matmul.py:matvec_kernel"),
            {**_POINTERS, "N": "i32", "K": "i32", "stride_wn": "i32"},
            *(_matvec, _rows, ((4, 64), (8, 192))),
            ({"BLOCK_N": 4, "BLOCK_K": 64, "EVEN": True, "PDL": True},),
        ),
    )
}


def constants_of(build: Constants) -> dict[str, Any]:
    """Return what the kernel takes as constants; FUSED says only which arguments there are."""
    return {name: value for name, value in build.items() if name != "FUSED"}


def points() -> list[tuple[HopperCase, str, int]]:
    """Return every case with each of its types and builds."""
    return [
        (case, dtype, build)
        for case in CASES.values()
        for dtype in case.dtypes
        for build in range(len(case.builds))
    ]


def scalar_of(dtype: str) -> ScalarType:
    """Return the scalar type that a case calls `dtype`."""
    return SCALARS[dtype]

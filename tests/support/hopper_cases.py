"""Products through tensor descriptors and of few rows: inputs, odd shapes and the right answers.

As in `matrix_cases`, a case makes launches and is independent of how they run. Signatures are
written as in a manifest, so that blocks of descriptors follow the constants of a build.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from aotc.ir.types import BF16, FP32, SCALARS, ScalarType
from aotc.verify.interpreter.numerics import dtype_of
from tests.support import references
from tests.support.hopper_case import (
    SHARED,
    SIZES,
    Constants,
    HopperCase,
    Shape,
    cdiv,
    matrix,
    operands,
    output,
    part_grid,
    shared_tiles,
    sizes_of,
    split_tiles,
    tile_grid,
)
from tests.support.kernel_cases import Launch
from tests.support.references import EPS, Approximate
from tests.support.tensors import Array, Tensor, normal, poison, tensor, wide
from tests.support.weight_cases import WEIGHT_CASES

# ---- persistent products ----------------------------------------------------------------------

_SCALES = {"scale_a_ptr": "*fp32", "scale_b_ptr": "*fp32"}


def _scales(
    rng: np.random.Generator, kind: str, rows: int, columns: int
) -> tuple[dict[str, Tensor], Array]:
    """Return the arguments, and the scale of the product."""
    if kind == "none":
        return {}, np.ones((1, 1))
    rows, columns = (1, 1) if kind == "tensor" else (rows, columns)
    a, b = (np.abs(normal(rng, (extent,), FP32)) for extent in (rows, columns))
    return {"scale_a_ptr": tensor(a), "scale_b_ptr": tensor(b)}, wide(a)[:, None] * wide(b)


def _persistent(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, build: Constants
) -> Launch:
    m, n, _ = shape
    a, b = operands(rng, scalar, shape, n)
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
    args = {"a": matrix(a), "b": matrix(stored), "c": output((m, n)), **sizes_of(shape)}
    if "REST_N" in build:
        fused["c_rest"] = args["c"]
    return Launch({**args, **fused, **scales}, {"c": exact.rounded(BF16)})


def _split_tail(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, build: Constants
) -> Launch:
    launch = _persistent(rng, scalar, shape, build)
    width = build.get("COLUMNS", build["BLOCK_N"])
    tiles = cdiv(shape[0], build["BLOCK_M"]) * cdiv(shape[1], width)
    parts = (tiles % build["NUM_SMS"] * build["SPLIT_K"] * build["BLOCK_M"], width)
    shared, expected = shared_tiles(parts, tiles)
    return Launch({**launch.args, **shared}, {**launch.expected, **expected})


def _swiglu(rng: np.random.Generator, scalar: ScalarType, shape: Shape, build: Constants) -> Launch:
    m, n, _ = shape
    a, b = operands(rng, scalar, shape, 2 * n)
    scales, factor = _scales(rng, build.get("SCALES", "none"), m, 2 * n)
    product = references.dot(a, b.T, scalar) * np.broadcast_to(factor, (m, 2 * n))
    up = Approximate(product.value[:, n:], product.error[:, n:])
    gate = references.activate(Approximate(product.value[:, :n], product.error[:, :n]), "silu")
    value = gate.value * up.value
    error = gate.error * (np.abs(up.value) + up.error) + np.abs(gate.value) * up.error
    args = {"a": matrix(a), "b": matrix(b), "c": output((m, n)), **sizes_of(shape), **scales}
    expected = Approximate(value, error + EPS * np.abs(value)).rounded(BF16)
    return Launch(args, {"c": expected})


def _blockwise(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, build: Constants
) -> Launch:
    del build
    m, n, k = shape
    a, b = operands(rng, scalar, shape, n)
    blocks_n, blocks_k = -(-n // 128), -(-k // 128)
    scale_a = np.abs(normal(rng, (blocks_k, m), FP32))
    scale_b = np.abs(normal(rng, (blocks_n, blocks_k), FP32))
    wide_a = wide(a) * np.repeat(wide(scale_a).T, 128, 1)[:, :k]
    wide_b = wide(b) * np.repeat(np.repeat(wide(scale_b), 128, 0), 128, 1)[:n, :k]
    product = references.dot(wide_a, wide_b.T, scalar)
    size = np.abs(wide_a) @ np.abs(wide_b.T)
    args = {
        "a": matrix(a), "b": matrix(b), "c": output((m, n)), "scale_a": matrix(scale_a),
        "scale_b_ptr": tensor(scale_b), **sizes_of(shape), "stride_sb": blocks_k,
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
        "a": matrix(a), "b": matrix(stored), "c": output((batches, m, n), scalar),
        "batches": batches, **sizes_of(shape[1:]),
    }  # fmt: skip
    exact = references.dot(a, b.swapaxes(1, 2), scalar)
    return Launch(args, {"c": exact.rounded(scalar)})


# ---- few rows ---------------------------------------------------------------------------------


def _small(rng: np.random.Generator, scalar: ScalarType, shape: Shape, build: Constants) -> Launch:
    m, n, _ = shape
    x, w = operands(rng, scalar, shape, n)
    out, stored = output((m, n), scalar), {"w": matrix(w), "x": matrix(x)}
    strides = {"w": "stride_wn", "x": "stride_xm"}
    args: dict[str, Any] = stored
    if "EVEN" in build:
        args = {f"{name}_ptr": array for name, array in stored.items()}
    args = {**args, "out_ptr": out, **sizes_of(shape)}
    if "EVEN" in build:
        args |= {
            strides[name]: array.view.strides[0] // array.view.itemsize
            for name, array in stored.items()
        }
    args["stride_om"] = out.view.strides[0] // out.view.itemsize
    shared, expected = split_tiles(build, cdiv(m, build["BLOCK_M"]) * cdiv(n, build["BLOCK_N"]))
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


# ---- the table --------------------------------------------------------------------------------


def _rows(values: Mapping[str, Any]) -> tuple[int, ...]:
    return (cdiv(values["N"], values["BLOCK_N"]),)


_LINEAR = {
    "a": "tensordesc<T[BLOCK_M,BLOCK_K]>",
    "b": "tensordesc<T[BLOCK_N,BLOCK_K]>",
    "c": "tensordesc<bf16[BLOCK_M,EPILOGUE_N]>",
    **SIZES,
}
_POINTERS = dict.fromkeys(("w_ptr", "x_ptr", "out_ptr"), "*T:16")
_BLOCKS = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 2, "NUM_SMS": 3}
_SHAPES = ((1, 8, 8), (64, 64, 32), (65, 56, 24), (63, 72, 40), (130, 136, 104))
_FP8_BLOCKS = {**_BLOCKS, "BLOCK_K": 64}
_FP8_SHAPES = ((1, 16, 16), (64, 64, 64), (65, 144, 208))
_FEW_BLOCKS = {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 32}
_FEW_SHAPES = ((1, 8, 8), (2, 64, 32), (15, 65, 0), (17, 64, 96), (35, 136, 200))
_PERSISTENT = "persistent_matmul.py:persistent_matmul_kernel"

CASES: dict[str, HopperCase] = {
    case.name: case
    for case in (
        *WEIGHT_CASES,
        HopperCase(
            *("linear", _PERSISTENT, _LINEAR, _persistent, tile_grid, _SHAPES),
            (
                {**_BLOCKS, "EPILOGUE_N": 64},
                {**_BLOCKS, "EPILOGUE_N": 16, "NUM_SMS": 1, "WARP_SPECIALIZE": True},
                {**_BLOCKS, "EPILOGUE_N": 32, "FLATTEN": False, "GROUP_M": 1},
            ),
            ("bf16", "fp16"),
        ),
        HopperCase(
            *("fused", _PERSISTENT, _LINEAR, _persistent, tile_grid, _SHAPES),
            tuple(
                {**_BLOCKS, "EPILOGUE_N": 64 >> index % 3, "FUSED": True, "ACTIVATION": name}
                for index, name in enumerate(("none", "relu", "gelu", "silu"))
            ),
            extra={"bias_ptr": "*bf16:16", "residual": "tensordesc<bf16[BLOCK_M,EPILOGUE_N]>"},
        ),
        HopperCase(
            *("columns", _PERSISTENT, _LINEAR, _persistent, tile_grid, (*_SHAPES, (33, 200, 72))),
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
            {**_LINEAR, **SHARED},
            *(_split_tail, lambda values: (values["NUM_SMS"],)),
            (*_SHAPES, (65, 72, 520), (200, 200, 72)),
            (
                {**_BLOCKS, "EPILOGUE_N": 64, "SPLIT_K": 2},
                {**_BLOCKS, "EPILOGUE_N": 32, "SPLIT_K": 3, "NUM_SMS": 7, "WARP_SPECIALIZE": True},
                {**_BLOCKS, "EPILOGUE_N": 16, "SPLIT_K": 4, "COLUMNS": 48, "NUM_SMS": 5},
            ),
        ),
        HopperCase(
            *("matmul", _PERSISTENT, {**_LINEAR, "b": "tensordesc<T[BLOCK_K,BLOCK_N]>"}),
            *(_persistent, tile_grid, _SHAPES),
            ({**_BLOCKS, "EPILOGUE_N": 64, "TRANSPOSED": False},),
        ),
        HopperCase(
            *("linear_fp8", _PERSISTENT, _LINEAR, _persistent, tile_grid, _FP8_SHAPES),
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
            *(_swiglu, tile_grid, _SHAPES, (_BLOCKS,)),
        ),
        HopperCase(
            *("swiglu_fp8", "persistent_matmul.py:persistent_swiglu_kernel"),
            {**_LINEAR, "c": "tensordesc<bf16[BLOCK_M,BLOCK_N]>"},
            *(_swiglu, tile_grid, _FP8_SHAPES),
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
            *(_blockwise, tile_grid, ((4, 16, 16), (68, 144, 128), (132, 208, 272))),
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
                **SIZES,
            },
            *(_batched, tile_grid, ((1, 1, 8, 8), (3, 64, 64, 32), (3, 65, 72, 40))),
            ({**_BLOCKS, "TRANSPOSED": True},),
        ),
        HopperCase(
            *("batched_by_rows", "batched_matmul.py:batched_matmul_descriptor_kernel"),
            {
                "a": "tensordesc<T[1,BLOCK_M,BLOCK_K]>",
                "b": "tensordesc<T[1,BLOCK_K,BLOCK_N]>",
                "c": "tensordesc<T[1,BLOCK_M,BLOCK_N]>",
                "batches": "i32",
                **SIZES,
            },
            *(_batched, tile_grid, ((1, 1, 8, 8), (2, 65, 72, 40))),
            ({**_BLOCKS, "TRANSPOSED": False},),
            ("fp16",),
        ),
        HopperCase(
            *("small", "small_matmul.py:small_matmul_kernel"),
            {**_POINTERS, **SIZES, **dict.fromkeys(("stride_wn", "stride_xm", "stride_om"), "i32")},
            *(_small, part_grid, _FEW_SHAPES),
            tuple({**_FEW_BLOCKS, "SPLIT_K": parts, "EVEN": False} for parts in (1, 3)),
            *(("bf16", "fp16"), SHARED),
        ),
        HopperCase(
            *("small_even", "small_matmul.py:small_matmul_kernel"),
            {**_POINTERS, **SIZES, **dict.fromkeys(("stride_wn", "stride_xm", "stride_om"), "i32")},
            *(_small, part_grid, ((1, 64, 32), (16, 128, 0), (11, 64, 160))),
            tuple({**_FEW_BLOCKS, "SPLIT_K": p, "EVEN": True, "PDL": p > 1} for p in (1, 4)),
            extra=SHARED,
        ),
        HopperCase(
            *("small_descriptor", "small_matmul.py:small_matmul_descriptor_kernel"),
            {
                "w": "tensordesc<T[BLOCK_N,BLOCK_K]>",
                "x": "tensordesc<T[BLOCK_M,BLOCK_K]>",
                "out_ptr": "*T:16",
                **SIZES,
                "stride_om": "i32",
            },
            *(_small, part_grid, tuple(shape for shape in _FEW_SHAPES if shape[2])),
            (
                *({**_FEW_BLOCKS, "SPLIT_K": parts} for parts in (1, 2)),
                *({**_FEW_BLOCKS, "SPLIT_K": p, "PDL": True, "EARLY": 2} for p in (1, 2)),
            ),
            extra=SHARED,
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
    """Return the kernel's constants; FUSED only selects arguments."""
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
    """Return the scalar type named `dtype` in a case."""
    return SCALARS[dtype]

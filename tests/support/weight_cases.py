"""Cases of products with weights of fewer bits than the rows; see `hopper_cases`."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from aotc.ir.types import BF16, FP32, I8, ScalarType
from aotc.verify.interpreter.numerics import dtype_of
from aotc.weights import repack_mx_scales
from tests.support import references
from tests.support.hopper_case import (
    SHARED,
    SIZES,
    Constants,
    HopperCase,
    Shape,
    cdiv,
    matrix,
    output,
    part_grid,
    sizes_of,
    split_tiles,
    tile_grid,
)
from tests.support.kernel_cases import Launch
from tests.support.tensors import Tensor, normal, tensor, wide


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
        "x": matrix(x), "w": matrix(w), "c": output((m, n)), "scale_ptr": tensor(scale),
        **sizes_of(shape),
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
    groups, group = cdiv(k, build["BLOCK_K"] // build["GROUPS_K"]), build["BLOCK_K"]
    group //= build["GROUPS_K"]
    x, numbers = normal(rng, (m, k), scalar), rng.integers(0, 16, (n, k))
    element = np.arange(8)
    words = (numbers.reshape(n, -1, 8) << element // 2 * 4 + element % 2 * 16).sum(2)
    scales = normal(rng, (groups, n), scalar)
    zeros = np.full((groups, n), 8)
    optional: dict[str, Tensor] = {}
    if has_zeros:
        zeros = rng.integers(0, 16, (groups, n))
        optional = {"zeros": matrix(zeros.astype(dtype_of(scalar)))}
    each_zero, each_scale = (
        group_numbers.T.repeat(group, 1)[:, :k] for group_numbers in (zeros, wide(scales))
    )
    w = (numbers - each_zero) * each_scale
    out = output((m, n), scalar)
    shared, expected = split_tiles(build, cdiv(m, build["BLOCK_M"]) * cdiv(n, build["BLOCK_N"]))
    args = {
        "w": matrix(words.astype(np.uint32).view(np.int32)), "x": matrix(x),
        "scales": matrix(scales), "out_ptr": out, **sizes_of(shape),
        "stride_om": out.view.strides[0] // out.view.itemsize, **optional,
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
    out = output((m, n), scalar)
    shared, expected = {}, {}
    stored: dict[str, Any] = {"c": out}
    if "SPLIT_K" in build:
        tiles = cdiv(m, build["BLOCK_M"]) * cdiv(n, build["BLOCK_N"])
        shared, expected = split_tiles(build, tiles)
        stored = {"out_ptr": out, "stride_om": out.view.strides[0] // out.view.itemsize}
    args = {
        "w": matrix(w), "x": matrix(x), "scales": matrix(repack_mx_scales(exponents)), **stored,
        **sizes_of(shape),
    }  # fmt: skip
    exact = references.dot(x, scaled.astype(dtype_of(scalar)).T, scalar).rounded(scalar)
    return Launch({**args, **shared}, {"c" if "c" in stored else "out_ptr": exact, **expected})


_WEIGHT_BLOCKS = {"BLOCK_M": 32, "BLOCK_N": 64, "GROUP_N": 2, "NUM_SMS": 3}
_INT4 = {
    "w": "tensordesc<i32[BLOCK_N,WORDS_K]>",
    "x": "tensordesc<T[BLOCK_M,BLOCK_K]>",
    "scales": "tensordesc<T[GROUPS_K,BLOCK_N]>",
    "out_ptr": "*T:16",
    **SIZES,
    "stride_om": "i32",
}
_INT4_BLOCKS = {"BLOCK_M": 16, "BLOCK_N": 64}
WEIGHT_CASES = (
    HopperCase(
        *("weight_only", "weight_only_matmul.py:persistent_weight_only_kernel"),
        {
            "x": "tensordesc<bf16[BLOCK_M,BLOCK_K]>",
            "w": "tensordesc<T[BLOCK_N,BLOCK_K]>",
            "c": "tensordesc<bf16[BLOCK_M,BLOCK_N]>",
            "scale_ptr": "*fp32",
            **SIZES,
        },
        *(_weight_only, tile_grid, ((1, 16, 16), (64, 64, 64), (65, 144, 208))),
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
        *(_int4, part_grid, ((1, 8, 32), (2, 64, 64), (17, 136, 224))),
        (
            {**_INT4_BLOCKS, "BLOCK_K": 32, "WORDS_K": 4, "GROUPS_K": 1, "SPLIT_K": 1},
            {**_INT4_BLOCKS, "BLOCK_K": 64, "WORDS_K": 8, "GROUPS_K": 2, "SPLIT_K": 2},
        ),
        ("bf16", "fp16"),
        SHARED,
    ),
    HopperCase(
        *("small_int4_zeros", "weight_only_matmul.py:small_int4_kernel"),
        {**_INT4, "zeros": "tensordesc<T[GROUPS_K,BLOCK_N]>"},
        # Rows of words are whole 16 bytes: K is a multiple of 32.
        *(partial(_int4, has_zeros=True), part_grid, ((1, 8, 32), (2, 64, 64), (17, 136, 224))),
        (
            {**_INT4_BLOCKS, "BLOCK_K": 32, "WORDS_K": 4, "GROUPS_K": 1, "SPLIT_K": 1},
            {**_INT4_BLOCKS, "BLOCK_K": 64, "WORDS_K": 8, "GROUPS_K": 2, "SPLIT_K": 2},
        ),
        ("fp16",),
        SHARED,
    ),
    HopperCase(
        *("small_mxfp4", "weight_only_matmul.py:small_mxfp4_kernel"),
        {
            "w": "tensordesc<u8[BLOCK_N,BYTES_K]>",
            **{name: kind for name, kind in _INT4.items() if name != "w"},
            "scales": "tensordesc<i32[WORDS_K,BLOCK_N]>",
        },
        # Rows of bytes are whole 16 bytes: K is a multiple of 32.
        *(_mxfp4, part_grid, ((1, 8, 32), (2, 64, 128), (17, 136, 352))),
        (
            {**_INT4_BLOCKS, "BLOCK_K": 64, "BYTES_K": 32, "WORDS_K": 1, "SPLIT_K": 1},
            {**_INT4_BLOCKS, "BLOCK_K": 128, "BYTES_K": 64, "WORDS_K": 1, "SPLIT_K": 2},
        ),
        ("bf16", "fp16"),
        SHARED,
    ),
    HopperCase(
        *("small_mxfp4_decoded", "weight_only_matmul.py:small_mxfp4_kernel"),
        {
            "w": "tensordesc<u8[BLOCK_N,BYTES_K]>",
            **{name: kind for name, kind in _INT4.items() if name != "w"},
            "scales": "tensordesc<i32[WORDS_K,BLOCK_N]>",
        },
        *(_mxfp4, part_grid, ((1, 8, 32), (2, 64, 128), (17, 136, 352))),
        tuple(
            {
                **_INT4_BLOCKS,
                "BLOCK_K": 32 << index,
                "BYTES_K": 16 << index,
                "WORDS_K": 1,
                "SPLIT_K": index,
                "DECODE": True,
            }
            for index in (1, 2)
        ),
        ("bf16",),
        SHARED,
    ),
    HopperCase(
        *("mxfp4", "weight_only_matmul.py:persistent_mxfp4_kernel"),
        {
            "x": "tensordesc<T[BLOCK_M,BLOCK_K]>",
            "w": "tensordesc<u8[BLOCK_N,BYTES_K]>",
            "c": "tensordesc<T[BLOCK_M,BLOCK_N]>",
            "scales": "tensordesc<i32[WORDS_K,BLOCK_N]>",
            **SIZES,
        },
        *(_mxfp4, tile_grid, ((1, 16, 32), (64, 64, 64), (65, 144, 224))),
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
)

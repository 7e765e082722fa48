"""Decode over paged caches, interpreted, against float64: the splits, then the combination."""

from __future__ import annotations

import math
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aotc.ir.types import BF16, FP8E4NV, FP32
from aotc.verify.interpreter.numerics import dtype_of
from tests.support.decode_cases import cdiv, decoded, interpret, paged_cache, translated
from tests.support.tensors import normal, poison

HEAD_DIM = 32
NUMBERS = dict.fromkeys(
    ("n_sequences", "n_heads", "n_kv_heads", "max_pages", "pages_per_split"), "i32"
)
OUTPUTS = {"part_ptr": "*fp32", "lse_ptr": "*fp32"}
TABLES = {"table_ptr": "*i32", "lengths_ptr": "*i32"}
DESCRIPTORS = {
    "q": "tensordesc<T[1,BLOCK_H,HEAD_DIM]>",
    "k": "tensordesc<C[1,1,ROWS,HEAD_DIM]>",
    "v": "tensordesc<C[1,1,ROWS,HEAD_DIM]>",
    **TABLES,
    **OUTPUTS,
    "scale_log2": "fp32",
    **NUMBERS,
}
STRIDES = ("stride_kp", "stride_kh", "stride_kn", "stride_vp", "stride_vh", "stride_vn")
POINTERS = {
    "q_ptr": "*T",
    "k_ptr": "*C",
    "v_ptr": "*C",
    **TABLES,
    **OUTPUTS,
    "scale_log2": "fp32",
    **NUMBERS,
    **dict.fromkeys(STRIDES, "i32"),
}
COMBINE = {
    **OUTPUTS,
    "lengths_ptr": "*i32",
    "out_ptr": "*bf16",
    **{name: "i32" for name in NUMBERS if name != "n_kv_heads"},
}
# Page, tokens of a copy, tokens of an iteration.
TILES = [(16, 16, 16), (16, 16, 64), (64, 64, 64), (64, 16, 32)]
# Heads, key heads, rows of a tile: also more heads than rows, and a number not a power of two.
HEADS = [(8, 1, 16), (6, 2, 16), (20, 1, 16), (2, 2, 64)]


def _lengths(page: int) -> tuple[int, ...]:
    return (1, page - 1, page, page + 1, 0, 5 * page + 7, 127)


def _decode(
    form: str,
    tile: tuple[int, int, int],
    heads: tuple[int, int, int],
    pages_per_split: int,
    *,
    fp8: bool = False,
    single: bool = False,
) -> None:
    seed = zlib.crc32(f"{form} {tile} {heads} {pages_per_split}".encode())
    rng = np.random.default_rng(seed)
    page, rows, block_n = tile
    n_heads, n_kv_heads, block_h = heads
    cached = FP8E4NV if fp8 else BF16
    cache = paged_cache(rng, _lengths(page), n_kv_heads, page, (HEAD_DIM, HEAD_DIM), cached)
    n_sequences, max_pages = cache.table.shape
    q = normal(rng, (n_sequences, n_heads, HEAD_DIM), BF16)
    scale = HEAD_DIM**-0.5
    n_splits = cdiv(max_pages, pages_per_split)
    shape = (n_sequences, n_heads, n_splits)
    values: dict[str, Any] = {
        "q": q.reshape(n_sequences * n_kv_heads, n_heads // n_kv_heads, HEAD_DIM),
        "q_ptr": q,
        "k": cache.keys,
        "k_ptr": cache.keys,
        "v": cache.values,
        "v_ptr": cache.values,
        "table_ptr": cache.table,
        "lengths_ptr": cache.lengths,
        "part_ptr": poison((*shape, HEAD_DIM), dtype_of(FP32)),
        "lse_ptr": poison(shape, dtype_of(FP32)),
        "scale_log2": scale * math.log2(math.e),
        "out_ptr": poison((n_sequences, n_heads, HEAD_DIM), dtype_of(BF16)),
        "n_sequences": n_sequences,
        "n_heads": n_heads,
        "n_kv_heads": n_kv_heads,
        "max_pages": max_pages,
        "pages_per_split": pages_per_split,
    }
    steps = [step // cached.bits * 8 for step in cache.keys.strides[:3]]
    values.update(zip(STRIDES, 2 * steps, strict=True))
    constants = {"HEAD_DIM": HEAD_DIM, "PAGE": page, "BLOCK_H": block_h, "BLOCK_N": block_n}
    signature = POINTERS if form == "pointers" else DESCRIPTORS
    source = "paged_decode.py:paged_decode_kernel"
    scales: dict[str, Any] = {}
    if form == "descriptors":
        source = "paged_decode.py:paged_decode_descriptor_kernel"
        constants["ROWS"] = rows
    if fp8:
        head_scales = np.abs(normal(rng, (2, n_kv_heads), FP32))
        scales = {"k_scale": head_scales[0], "v_scale": head_scales[1]}
        values.update({f"{name}_ptr": scale for name, scale in scales.items()})
        signature = {**signature, "k_scale_ptr": "*fp32", "v_scale_ptr": "*fp32"}
    if single:
        values["counter_ptr"] = np.zeros(n_sequences * n_heads, np.int32)
        signature = {**signature, "out_ptr": "*bf16", "counter_ptr": "*i32"}
        constants |= {"COMBINE_H": 4, "COMBINE_S": 2}
        if form == "descriptors":
            constants["PREFETCH"] = 2 * rows
    split = translated(source, signature, constants, T="bf16", C=str(cached))
    interpret(
        split, (n_kv_heads * cdiv(n_heads // n_kv_heads, block_h), n_sequences, n_splits), values
    )
    # Splits past the end of a sequence are not written.
    for sequence, length in enumerate(cache.lengths):
        count = cdiv(cdiv(int(length), page), pages_per_split)
        written = ~np.isnan(values["lse_ptr"][sequence])
        assert written[:, :count].all()
        assert not written[:, count:].any()
    if single:
        assert not values["counter_ptr"].any()
    else:
        sizes = {"HEAD_DIM": HEAD_DIM, "PAGE": page, "BLOCK_S": 4}
        combine = translated("paged_decode.py:combine_splits_kernel", COMBINE, sizes)
        interpret(combine, (n_heads, n_sequences), values)
    decoded(q, cache, scale, **scales).check("out", values["out_ptr"])


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_pages_that_are_copied(tile: tuple[int, int, int], heads: tuple[int, int, int]) -> None:
    for pages_per_split in (1, 3, 100):
        _decode("descriptors", tile, heads, pages_per_split)


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_the_last_split_combines(tile: tuple[int, int, int], heads: tuple[int, int, int]) -> None:
    for pages_per_split in (1, 3, 100):
        _decode("descriptors", tile, heads, pages_per_split, single=True)


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("page", [16, 64])
def test_tokens_that_are_gathered(page: int, heads: tuple[int, int, int]) -> None:
    for pages_per_split in (1, 3, 100):
        _decode("pointers", (page, page, 32), heads, pages_per_split)


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("form", ["descriptors", "pointers"])
def test_a_cache_in_fp8(form: str, *, single: bool) -> None:
    _decode(form, (64, 64, 64), (6, 2, 16), 2, fp8=True, single=single)


LATENT, ROPE = 64, 16
MLA = {
    "q_latent": "tensordesc<bf16[1,BLOCK_H,LATENT]>",
    "q_rope": "tensordesc<bf16[1,BLOCK_H,ROPE]>",
    "latent": "tensordesc<bf16[1,BLOCK_N,LATENT]>",
    "rope": "tensordesc<bf16[1,BLOCK_N,ROPE]>",
    **TABLES,
    **OUTPUTS,
    "scale_log2": "fp32",
    **{name: "i32" for name in NUMBERS if name != "n_kv_heads"},
}


@pytest.mark.parametrize("pages_per_split", [1, 3, 100])
@pytest.mark.parametrize("n_heads", [16, 20, 3])
@pytest.mark.parametrize(("page", "block_n"), [(16, 16), (64, 16)])
def test_latent_attention(page: int, block_n: int, n_heads: int, pages_per_split: int) -> None:
    rng = np.random.default_rng(zlib.crc32(f"{page} {n_heads} {pages_per_split}".encode()))
    width = LATENT + ROPE
    cache = paged_cache(rng, _lengths(page), 1, page, (width, LATENT))
    cache = replace(cache, values=cache.keys[..., :LATENT])
    n_sequences, max_pages = cache.table.shape
    q = normal(rng, (n_sequences, n_heads, width), BF16)
    scale = width**-0.5
    shape = (n_sequences, n_heads, cdiv(max_pages, pages_per_split))
    values = {
        "q_latent": q[..., :LATENT],
        "q_rope": q[..., LATENT:],
        "latent": cache.keys[:, 0, :, :LATENT],
        "rope": cache.keys[:, 0, :, LATENT:],
        "table_ptr": cache.table,
        "lengths_ptr": cache.lengths,
        "part_ptr": poison((*shape, LATENT), dtype_of(FP32)),
        "lse_ptr": poison(shape, dtype_of(FP32)),
        "out_ptr": poison((n_sequences, n_heads, LATENT), dtype_of(BF16)),
        "scale_log2": scale * math.log2(math.e),
        "n_sequences": n_sequences,
        "n_heads": n_heads,
        "max_pages": max_pages,
        "pages_per_split": pages_per_split,
    }
    constants = {"LATENT": LATENT, "ROPE": ROPE, "PAGE": page, "BLOCK_H": 16, "BLOCK_N": block_n}
    split = translated("mla_decode.py:mla_decode_kernel", MLA, constants)
    interpret(split, (cdiv(n_heads, 16), n_sequences, shape[2]), values)
    sizes = {"HEAD_DIM": LATENT, "PAGE": page, "BLOCK_S": 4}
    combine = translated("paged_decode.py:combine_splits_kernel", COMBINE, sizes)
    interpret(combine, (n_heads, n_sequences), values)
    decoded(q, cache, scale).check("out", values["out_ptr"])

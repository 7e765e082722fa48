"""Decode kernels of vLLM and SGLang on Triton, as peers of `decode.py`.

Sources and their launching functions are unchanged, with their choice of tiles, warps and
stages. The cache is the same as aotc's, through their strides. The servers' numbers of splits
are tried, and more.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import public_vllm
from decode_work import Tensors
from peers import Launch

OfSet = Callable[[int], Launch]

# vLLM's TritonAttentionBackend: segments of a sequence, and the grid size above which it uses
# none.
SEGMENTS, ENOUGH_PROGRAMS = 16, 128
# Splits of vLLM's decode; its backend for MLA uses 4.
VLLM_SPLITS = (4, 8, 16, 32, 64)
# SGLang's limit of splits: 8 by default.
SGLANG_SPLITS = (8, 16, 32, 64)


def stand_in(folder: Path) -> None:
    """Find both libraries in a folder, and replace their other imports by stand-ins."""
    sys.path.insert(0, str(folder))
    importlib.import_module("library_sglang")
    public_vllm.stand_in()


def candidates(tensors: Tensors) -> Iterator[tuple[str, OfSet]]:
    """Yield the launches of each kernel, for dense caches in bf16."""
    shape = tensors.shape
    if shape.mla or shape.fp8:
        return
    yield "vLLM unified", _unified(tensors)
    for splits in VLLM_SPLITS:
        yield f"vLLM decode, {splits} splits", _vllm_decode(tensors, splits)
    for most in SGLANG_SPLITS:
        yield f"SGLang decode, at most {most} splits", _sglang_decode(tensors, most)


def _unified(tensors: Tensors) -> OfSet:
    """Return launches of vLLM's attention of any number of tokens, as its backend calls it."""
    import torch

    module = importlib.import_module(f"{public_vllm.OPS}.triton_unified_attention")
    shape, device = tensors.shape, tensors.device
    firsts = torch.arange(shape.batch + 1, dtype=torch.int32, device=device)
    extents = (shape.batch, shape.heads, SEGMENTS)
    parts = torch.empty(*extents, shape.dim, dtype=torch.float32, device=device)
    largest, sums = (torch.empty(extents, dtype=torch.float32, device=device) for _ in range(2))
    k, v = (cache.transpose(1, 2) for cache in (tensors.k, tensors.v))

    def of_set(index: int) -> Launch:
        return lambda: module.unified_attention(
            q=tensors.q, k=k, v=v, out=tensors.out, cu_seqlens_q=firsts, max_seqlen_q=1,
            seqused_k=tensors.lengths, max_seqlen_k=shape.length, softmax_scale=shape.dim**-0.5,
            causal=True, window_size=(-1, -1), block_table=tensors.tables[index], softcap=0,
            q_descale=None, k_descale=None, v_descale=None,
            seq_threshold_3D=ENOUGH_PROGRAMS // shape.kv_heads, num_par_softmax_segments=SEGMENTS,
            softmax_segm_output=parts, softmax_segm_max=largest, softmax_segm_expsum=sums,
        )  # fmt: skip

    return of_set


def _vllm_decode(tensors: Tensors, splits: int) -> OfSet:
    """Return launches of vLLM's decode, as called by its MLA backend."""
    import torch

    module = importlib.import_module(f"{public_vllm.OPS}.triton_decode_attention")
    shape, device = tensors.shape, tensors.device
    parts = torch.empty(shape.batch, shape.heads, splits, shape.dim + 1, device=device)
    lse = torch.empty(shape.batch, shape.heads, device=device)
    unit_scale = torch.ones((), device=device)
    k, v = (cache.transpose(1, 2) for cache in (tensors.k, tensors.v))

    def of_set(index: int) -> Launch:
        return lambda: module.decode_attention_fwd(
            tensors.q, k, v, tensors.out, lse, tensors.tables[index], tensors.lengths, parts,
            splits, shape.dim**-0.5, shape.page, k_scale=unit_scale, v_scale=unit_scale,
        )  # fmt: skip

    return of_set


def _sglang_decode(tensors: Tensors, most: int) -> OfSet:
    """Return launches of SGLang's decode, with a table of tokens: here in units of a token's features."""
    import torch

    name = "sglang.srt.layers.attention.triton_ops.decode_attention"
    module = importlib.import_module(name)
    shape, device = tensors.shape, tensors.device
    parts = torch.empty(shape.batch, shape.heads, most, shape.dim, device=device)
    lse = torch.empty(shape.batch, shape.heads, most, device=device)
    splits = torch.tensor(_sglang_splits(tensors, most), dtype=torch.int32, device=device)
    starts = [sum(shape.lengths[:i]) for i in range(shape.batch + 1)]
    firsts = torch.tensor(starts, dtype=torch.int32, device=device)
    page_tokens = shape.kv_heads * shape.page
    extents = ((tensors.k.shape[0] - 1) * page_tokens + shape.page, shape.kv_heads, shape.dim)
    strides = (shape.dim, shape.page * shape.dim, 1)
    k, v = (cache.as_strided(extents, strides) for cache in (tensors.k, tensors.v))
    within = torch.arange(shape.page, device=device)

    def of_set(index: int) -> Launch:
        token_indices = tensors.tables[index].long()[:, :, None] * page_tokens + within
        rows = zip(token_indices.flatten(1), shape.lengths, strict=True)
        token_indices = torch.cat([row[:length] for row, length in rows])
        return lambda: module.decode_attention_fwd(
            tensors.q, k, v, tensors.out, firsts, token_indices, parts, lse, splits, most,
            shape.dim**-0.5,
        )  # fmt: skip

    return of_set


def _sglang_splits(tensors: Tensors, most: int) -> list[int]:
    """Return the splits of each sequence by the rule of SGLang's backend (`get_num_kv_splits_triton`)."""
    import torch

    shape = tensors.shape
    longest, shortest = max(shape.lengths), min(shape.lengths)
    if longest * 8 < shortest * 10:
        shortest = longest
    by_length = -(-longest // min(-(-longest // shortest), most))
    cores = torch.cuda.get_device_properties(tensors.device).multi_processor_count
    cores = int(cores * max(math.log2(longest / 64.0), 1.0))
    programs = shape.batch * -(-shape.heads // min(16, shape.heads // shape.kv_heads))
    by_cores = -(-longest // min(-(-cores // programs), most))
    return [max(-(-length // by_length), -(-length // by_cores)) for length in shape.lengths]

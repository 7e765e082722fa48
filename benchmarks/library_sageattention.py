"""Entry points of SageAttention (1.0.6) for `library_draw.py`."""

from __future__ import annotations

from typing import Any

import torch
from library_draw import Draw, EntryPoints


def _attention(draw: Draw) -> Any:
    layout, width = draw.one_of("HND", "NHD"), draw.one_of(64, 96, 128)
    length = draw.one_of(64, 100, 257, 1024)
    kv_heads = draw.one_of(draw.heads, draw.heads // 4)
    shapes = [
        (2, heads, length, width) if layout == "HND" else (2, length, heads, width)
        for heads in (draw.heads, kv_heads, kv_heads)
    ]
    dtype = draw.one_of(torch.float16, torch.bfloat16, torch.float32)
    q, k, v = (draw.tensor(*shape, dtype=dtype) for shape in shapes)
    words = {"is_causal": draw.flag(), "smooth_k": draw.flag()}
    return draw("sageattention:sageattn", q, k, v, tensor_layout=layout, **words)


def _varlen(draw: Draw) -> Any:
    width, lengths = draw.one_of(64, 128), draw.one_of((100, 28, 257), (64, 64), (1, 333, 512))
    starts = [sum(lengths[:index]) for index in range(len(lengths) + 1)]
    kv_heads = draw.one_of(draw.heads, draw.heads // 4)
    q, k, v = (draw.tensor(starts[-1], n, width) for n in (draw.heads, kv_heads, kv_heads))
    cuts, longest = draw.values(*starts), max(lengths)
    words = {"is_causal": draw.flag()}
    return draw("sageattention:sageattn_varlen", q, k, v, cuts, cuts, longest, longest, **words)


def _quantize(draw: Draw, width: int, path: str) -> Any:
    layout, length = draw.one_of("HND", "NHD"), draw.one_of(64, 100, 257, 1024)
    shape = (2, draw.heads, length) if layout == "HND" else (2, length, draw.heads)
    q, k = draw.tensor(*shape, width), draw.tensor(*shape, width)
    return draw(path, q, k, sm_scale=width**-0.5, tensor_layout=layout)


def _quantize_varlen(draw: Draw) -> Any:
    lengths = draw.one_of((100, 28, 257), (64, 64))
    starts = [sum(lengths[:index]) for index in range(len(lengths) + 1)]
    q, k = (draw.tensor(starts[-1], draw.heads, draw.one_of(64, 128)) for _ in range(2))
    cuts, longest = draw.values(*starts), max(lengths)
    path = "sageattention.quant_per_block_varlen:per_block_int8"
    return draw(path, q, k, cuts, cuts, longest, longest)


_PER_BLOCK = "sageattention.quant_per_block:per_block_int8"
_PER_BLOCK_96 = "sageattention.quant_per_block_hd96:per_block_int8_hd96"
ENTRY_POINTS: EntryPoints = {
    "sageattn": _attention,
    "sageattn_varlen": _varlen,
    "per_block_int8": lambda draw: _quantize(draw, draw.one_of(64, 128), _PER_BLOCK),
    "per_block_int8_hd96": lambda draw: _quantize(draw, 96, _PER_BLOCK_96),
    "per_block_int8_varlen": _quantize_varlen,
}

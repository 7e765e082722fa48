"""Entry points of fasterkernels (0.2.0) for `library_draw.py`."""

from __future__ import annotations

import sys
from typing import Any

import torch
from library_draw import Draw, EntryPoints
from library_program import StandIns

sys.meta_path.append(StandIns("transformers"))
_TRITON = "fskernels.triton"


def _attention(draw: Draw) -> Any:
    length, size = draw.one_of(64, 100, 512), draw.one_of(64, 128)
    inputs = (draw.tensor(2, draw.heads, length, size) for _ in range(3))
    return draw(f"{_TRITON}.triton_fa2:flash_attention_2_fwd", *inputs)


def _varlen(draw: Draw) -> Any:
    lengths, size, heads = (
        draw.one_of((100, 28, 257), (64, 64)),
        draw.one_of(64, 128),
        draw.one_of(1, 2),
    )
    starts = draw.values(*(sum(lengths[:index]) for index in range(len(lengths) + 1)))
    q = draw.tensor(len(lengths), 4 * heads, size)
    k, v = (draw.tensor(sum(lengths), heads, size) for _ in range(2))
    sink = draw.one_of(None, draw.fp32(4 * heads))
    return draw(f"{_TRITON}.triton_gqa_decode:flash_decode_gqa_varlen", q, k, v, starts, sink)


def _dense(draw: Draw) -> Any:
    batch, size, heads, length = draw.one_of(1, 4), draw.one_of(64, 128), draw.one_of(1, 2), 512
    q = draw.tensor(batch, 4 * heads, size)
    k, v = (draw.tensor(batch, heads, length, size) for _ in range(2))
    path = f"{_TRITON}.triton_gqa_decode_hf:flash_decode_gqa_hf_dense_optimized"
    return draw(
        path, q, k, v, draw.ints(batch, below=length, least=1), num_splits=draw.one_of(1, 8)
    )


def _fp8(draw: Draw) -> Any:
    batch, size, heads, length = draw.one_of(1, 4), draw.one_of(64, 128), draw.one_of(1, 2), 512
    shapes = (batch, 4 * heads, size), (batch, heads, length, size), (batch, heads, length, size)
    path = f"{_TRITON}.triton_gqa_decode_hf_fp8"
    quantized = [draw.get(f"{path}:quantize_to_fp8")(draw.fp32(*shape)) for shape in shapes]
    tensors, scales = zip(*quantized, strict=True)
    lengths = draw.ints(batch, below=length, least=1)
    return draw(f"{path}:flash_decode_gqa_hf_fp8", *tensors, lengths, *scales, torch.float16)


ENTRY_POINTS: EntryPoints = {
    "flash_attention_2": _attention,
    "flash_decode_varlen": _varlen,
    "flash_decode_dense": _dense,
    "flash_decode_fp8": _fp8,
}

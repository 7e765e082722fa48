"""Entry points of mlstm_kernels (2.0.6) for `library_draw.py`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from library_draw import Draw, EntryPoints
from library_program import StandIns

sys.meta_path.append(StandIns("omegaconf"))
_TORCH = "mlstm_kernels.torch"
_EQUAL = ((64, 64), (128, 128))  # widths of keys and values


def _inputs(draw: Draw, *widths: tuple[int, int], grad: bool = False) -> tuple[Any, ...]:
    batch, heads, length = draw.one_of(1, 2), draw.one_of(2, 4), draw.one_of(128, 256, 512)
    qk, hv = draw.one_of(*widths or ((64, 64), (64, 128), (128, 128)))
    dtype = draw.one_of(torch.bfloat16, torch.float32)
    q, k = (draw.tensor(batch, heads, length, qk, dtype=dtype, grad=grad) for _ in range(2))
    v = draw.tensor(batch, heads, length, hv, dtype=dtype, grad=grad)
    i, f = (draw.fp32(batch, heads, length, grad=grad) for _ in range(2))
    return q, k, v, i, f


def _sequence(path: str, *chunks: int, widths: Sequence[tuple[int, int]] = ()) -> Any:
    def run(draw: Draw) -> Any:
        words: dict[str, Any] = {
            "autocast_kernel_dtype": draw.one_of(torch.bfloat16, torch.float32)
        }
        words |= {"chunk_size": draw.one_of(*chunks)} if chunks else {}
        return draw(f"{_TORCH}.{path}", *_inputs(draw, *widths, grad=draw.flag()), **words)

    return run


def _forward(path: str, *widths: tuple[int, int]) -> Any:
    return lambda draw: draw(f"{_TORCH}.{path}", *_inputs(draw, *widths))


def _step(path: str) -> Any:
    def run(draw: Draw) -> Any:
        batch, heads, (qk, hv) = (
            draw.one_of(1, 8),
            draw.one_of(4, 8),
            draw.one_of((64, 128), (128, 256)),
        )
        dtype = draw.one_of(torch.bfloat16, torch.float32)
        q, k = (draw.tensor(batch, heads, qk, dtype=dtype) for _ in range(2))
        v, i, f, m = (
            draw.tensor(batch, heads, hv, dtype=dtype),
            *(draw.fp32(batch, heads, 1) for _ in range(3)),
        )
        states = draw.fp32(batch, heads, qk, hv), draw.fp32(batch, heads, qk), m
        return draw(f"{_TORCH}.{path}", q, k, v, i, f, *states)

    return run


ENTRY_POINTS: EntryPoints = {
    "limit_chunk": _sequence("chunkwise.triton_limit_chunk:mlstm_chunkwise__limit_chunk", 32, 64),
    "xl_chunk": _sequence("chunkwise.triton_xl_chunk:mlstm_chunkwise__xl_chunk", 64, 128),
    "siging_xl_chunk": _sequence(
        "chunkwise.triton_xl_chunk_siging:mlstm_siging_chunkwise__xl_chunk", 64, 128
    ),
    "limit_headdim": _sequence(
        "parallel.triton_limit_headdim:mlstm_parallel__limit_headdim", widths=_EQUAL
    ),
    "limit_chunk_forward": _forward("chunkwise.triton_limit_chunk.fw:mlstm_chunkwise_fw"),
    "xl_chunk_forward": _forward("chunkwise.triton_xl_chunk.fw:mlstm_chunkwise_fw"),
    "siging_forward": _forward("chunkwise.triton_xl_chunk_siging.fw:mlstm_siging_chunkwise_fw"),
    "limit_headdim_forward": _forward(
        "parallel.triton_limit_headdim.fw:mlstm_parallel_fw", *_EQUAL
    ),
    "step": _step("recurrent.triton_step:mlstm_recurrent_step__triton"),
    "step_alternate": _step(
        "recurrent.triton_step_alternate:mlstm_recurrent_step__triton_alternate"
    ),
}

"""Entry points of xFormers (0.0.35) for `library_draw.py`."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import torch
from library_draw import Draw, EntryPoints

# Its model of a matrix product asks for the clock.
_CLOCK: Any = SimpleNamespace(
    nvmlInit=lambda: None,
    nvmlDeviceGetHandleByIndex=lambda index: index,
    nvmlDeviceGetMaxClockInfo=lambda *_: 1980,
    NVML_CLOCK_SM=1,
)
sys.modules.setdefault("pynvml", _CLOCK)
_FMHA, _BIAS = "xformers.ops.fmha", "xformers.ops.fmha.attn_bias"


def _norm(name: str) -> Any:
    def run(draw: Draw) -> Any:
        inputs = [draw.tensor(draw.tokens, draw.width) for _ in range(1 + name.endswith("add"))]
        weight = draw.one_of(None, draw.tensor(draw.width))
        return draw(f"xformers.ops.rmsnorm:{name}", *inputs, weight)

    return run


def _decoded(draw: Draw, q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Call the operator itself: its dispatcher refuses without the compiled extension."""
    inputs = draw.get(f"{_FMHA}.common:Inputs")(q, k, v, mask)
    output, _ = draw.get(f"{_FMHA}.triton_splitk:FwOp.apply")(inputs, needs_gradient=False)
    return output


def _splitk(draw: Draw) -> Any:
    """Return a decode of grouped queries, of which keys have their own lengths or none."""
    batch, group, size = draw.one_of(1, 4), draw.one_of(1, 8), draw.one_of(64, 128)
    length, heads = draw.one_of(256, 1000), draw.one_of(1, 2)
    q = draw.tensor(batch, 1, heads, group, size)
    k, v = (
        draw.tensor(batch, length, heads, 1, size).expand(-1, -1, -1, group, -1) for _ in range(2)
    )
    return _decoded(draw, q, k, v, None)


def _splitk_padded(draw: Draw) -> Any:
    batch, group, size, length = draw.one_of(2, 4), draw.one_of(1, 8), 128, 512
    lengths = [draw.one_of(1, 77, 512) for _ in range(batch)]
    words: dict[str, Any] = {"q_seqlen": [1] * batch, "kv_seqlen": lengths, "kv_padding": length}
    mask = draw.get(f"{_BIAS}:BlockDiagonalCausalWithOffsetPaddedKeysMask").from_seqlens(**words)
    q = draw.tensor(1, batch, 1, group, size)
    k, v = (
        draw.tensor(1, batch * length, 1, 1, size).expand(-1, -1, -1, group, -1) for _ in range(2)
    )
    return _decoded(draw, q, k, v, mask.to("cuda"))


def _merge(draw: Draw) -> Any:
    parts, batch, length, heads, size = 3, 2, draw.one_of(1, 16), 4, draw.one_of(64, 128)
    outputs = [draw.tensor(batch, length, heads, size) for _ in range(parts)]
    sums = [draw.fp32(batch, heads, length) for _ in range(parts)]
    return draw(f"{_FMHA}:merge_attentions", outputs, sums)


def _rope(draw: Draw) -> Any:
    lengths, padding, size = [draw.one_of(1, 5), 3], 64, draw.one_of(64, 128)
    words = {"q_seqlen": lengths, "kv_seqlen": [20, 33], "kv_padding": padding}
    mask = draw.get(f"{_BIAS}:BlockDiagonalCausalWithOffsetPaddedKeysMask").from_seqlens(**words)
    tokens, heads = sum(lengths), draw.one_of(2, 4)
    q, k, v = (draw.tensor(1, tokens, n, size) for n in (draw.heads, heads, heads))
    caches = (draw.zeros(1, 2 * padding, heads, size) for _ in range(2))
    adjacents = {"adjacents": draw.flag()}
    return draw(
        "xformers.ops.rope_padded:rope_padded", q, k, v, *caches, mask.to("cuda"), **adjacents
    )


def _index_add(draw: Draw) -> Any:
    batch, rows, width = draw.one_of(16, 64), draw.one_of(1, 100), draw.one_of(256, 1024)
    x, source = draw.tensor(batch, rows, width), draw.tensor(batch // 2, rows, width)
    index = torch.randperm(batch, device="cuda")[: batch // 2]
    scaling = draw.one_of(None, draw.tensor(width))
    return draw(
        "xformers.ops._triton:scaled_index_add_fwd",
        x,
        index,
        source,
        scaling,
        draw.one_of(1.0, 0.5),
    )


def _index_select(draw: Draw) -> Any:
    rows, width = draw.one_of(64, 300), draw.one_of(256, 1024)
    source, index = draw.tensor(rows, width), torch.randperm(rows, device="cuda")[: rows // 2]
    return draw(
        "xformers.ops._triton:index_select_cat_fwd", draw.zeros(rows // 2, width), source, index
    )


def _index_select_backward(draw: Draw) -> Any:
    rows, width = draw.one_of(64, 300), draw.one_of(256, 1024)
    index = torch.randperm(rows, device="cuda")[: rows // 2]
    tensors = draw.zeros(rows, width), index, draw.tensor(rows // 2, width)
    return draw("xformers.ops._triton:index_select_cat_bwd", *tensors)


def _tiled_matmul(draw: Draw) -> Any:
    rows, columns, widths = (128, 256), (256,), draw.one_of((512,), (256, 128))
    a = [[draw.tensor(m, k) for k in widths] for m in rows]
    b = [[draw.tensor(k, n) for n in columns] for k in widths]
    return draw("xformers.ops.tiled_matmul:tiled_matmul", a, b)


def _tree(draw: Draw) -> Any:
    """Return the merge of two parts, as in tree attention."""
    outputs = [draw.tensor(2, 8, draw.heads, 64) for _ in range(2)]
    sums = [draw.fp32(2, draw.heads, 8) for _ in range(2)]
    return draw(f"{_FMHA}:merge_attentions", outputs, sums, write_lse=False)


ENTRY_POINTS: EntryPoints = {
    "rms_norm": _norm("rms_norm"),
    "rms_norm_add": _norm("rms_norm_add"),
    "splitk": _splitk,
    "splitk_padded": _splitk_padded,
    "merge_attentions": _merge,
    "merge_attentions_alone": _tree,
    "rope_padded": _rope,
    "scaled_index_add": _index_add,
    "index_select_cat": _index_select,
    "index_select_cat_backward": _index_select_backward,
    "tiled_matmul": _tiled_matmul,
}

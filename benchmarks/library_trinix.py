"""Entry points of trinix (0.1.4) for `library_draw.py`."""

from __future__ import annotations

from typing import Any

import torch
from library_draw import Draw, EntryPoints


def _activation(name: str, width: int) -> Any:
    """Return a call of an activation's layer on rows of `width` times the hidden size."""

    def run(draw: Draw) -> Any:
        layer = draw.get(f"trinix.layers.activation:{name}")(draw.width)
        return layer(draw.tensor(2, draw.tokens, width * draw.width, grad=draw.flag()))

    return run


def _norm(name: str) -> Any:
    def run(draw: Draw) -> Any:
        layer = draw.get(f"trinix:{name}")(draw.width).to("cuda").to(draw.dtype)
        return layer(draw.tensor(2, draw.tokens, draw.width, grad=draw.flag()))

    return run


def _attention(draw: Draw) -> Any:
    length, size = draw.one_of(64, 256), draw.one_of(64, 128)
    inputs = [draw.tensor(2, length, 4, size, grad=True) for _ in range(3)]
    words = {"causal": draw.flag()}
    return draw("trinix.layers.attention.functional:triton_attn_func", *inputs, **words)


def _rope(draw: Draw) -> Any:
    length, size = draw.one_of(64, 100), draw.one_of(64, 128)
    q, k = (draw.tensor(2, draw.heads, length, size) for _ in range(2))
    cos, sin = (draw.tensor(length, size) for _ in range(2))
    return draw("trinix.kernels.rope_kernel:TritonRoPEKernel.apply", q, k, cos, sin)


def _alibi(draw: Draw) -> Any:
    return draw.get("trinix:FastALiBiPositionEmbedding")(draw.heads).to("cuda")(
        draw.one_of(64, 100), 2
    )


def _optimizer(name: str) -> Any:
    """Return two steps of an optimizer."""

    def run(draw: Draw) -> Any:
        parameters = [torch.nn.Parameter(draw.fp32(draw.one_of(128, 100), draw.width))]
        optimizer = draw.get(f"trinix.optim:{name}")(parameters)
        for _ in range(2):
            parameters[0].grad = draw.fp32(*parameters[0].shape)
            optimizer.step()
        return [parameter.detach() for parameter in parameters]

    return run


_GATED, _PLAIN = (
    ("FastSwiGLU", "FastGeGLU", "FastReGLU"),
    ("FastQuickGELU", "FastMish", "FastSquaredReLU"),
)
_OPTIMIZERS = ("FastAdam", "FastAdamW", "FastLion", "FastMuon")
ENTRY_POINTS: EntryPoints = {
    **{name: _activation(name, 2) for name in _GATED},
    **{name: _activation(name, 1) for name in _PLAIN},
    **{name: _norm(name) for name in ("FastRMSNorm", "FastLayerNorm")},
    "triton_attn_func": _attention,
    "rope": _rope,
    "alibi": _alibi,
    **{name: _optimizer(name) for name in _OPTIMIZERS},
}

"""Functions of flash-linear-attention for `library_program.py`, the slowest first.

Sequences are short: the compiled kernels are the same, and autotuning is quicker.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from library_program import DEVICE, Programs, both, made

BATCH, LENGTH, HEADS, WIDTH = 1, 256, 4, 64
HIDDEN = HEADS * WIDTH


def _attention(
    folder: str, name: str, *gates: str, is_both: bool = True
) -> Callable[[], list[Any]]:
    """Return a call of an operation of `fla.ops` on q, k, v and gates, both ways or forward alone."""

    def run() -> list[Any]:
        function = getattr(importlib.import_module(f"fla.ops.{folder}"), name)
        shape = (BATCH, LENGTH, HEADS, WIDTH)
        q, k, v = (made(*shape, dtype=torch.bfloat16) for _ in range(3))
        words: dict[str, torch.Tensor] = {}
        for gate in gates:
            wide = made(*(shape if gate in ("gk", "g_wide") else shape[:3]))
            words[gate.removesuffix("_wide")] = (
                wide.sigmoid() if gate == "beta" else torch.nn.functional.logsigmoid(wide)
            ).to(torch.bfloat16 if gate == "beta" else torch.float32)
        if "delta" in name:
            k = (
                torch.nn.functional.normalize(k.float(), dim=-1)
                .to(torch.bfloat16)
                .detach()
                .requires_grad_()
            )
        output = function(q, k, v, **words)[0]
        return both(output, q, k, v) if is_both else [output]

    return run


def _hgrn() -> list[Any]:
    function = importlib.import_module("fla.ops.hgrn").fused_recurrent_hgrn
    x, g = made(BATCH, LENGTH, HIDDEN), torch.nn.functional.logsigmoid(made(BATCH, LENGTH, HIDDEN))
    return both(function(x, g)[0], x)


def _layer(name: str, *sizes: Any, num_inputs: int = 1, **words: Any) -> Callable[[], list[Any]]:
    """Return a call of a layer of `fla.modules`, both ways."""

    def run() -> list[Any]:
        layer = getattr(importlib.import_module("fla.modules"), name)(*sizes, **words).to(DEVICE)
        inputs = [made(BATCH, LENGTH, HIDDEN) for _ in range(num_inputs)]
        output = layer(*inputs)
        output = output[0] if isinstance(output, tuple) else output
        return [*both(output, *inputs), *(parameter.grad for parameter in layer.parameters())]

    return run


def _token_shift() -> list[Any]:
    function = importlib.import_module("fla.modules.token_shift").token_shift
    x = made(BATCH, LENGTH, HIDDEN)
    return both(function(x), x)


def _rotary() -> list[Any]:
    layer = importlib.import_module("fla.modules").RotaryEmbedding(WIDTH).to(DEVICE)
    q, k = made(BATCH, LENGTH, HEADS, WIDTH), made(BATCH, LENGTH, HEADS, WIDTH)
    return both(layer(q, k)[0], q)


def _cross_entropy() -> list[Any]:
    loss = importlib.import_module("fla.modules").FusedCrossEntropyLoss()
    logits, target = made(LENGTH, 4096), torch.arange(LENGTH, device=DEVICE)
    return both(loss(logits, target), logits)


def _activation(name: str, num_inputs: int) -> Callable[[], list[Any]]:
    def run() -> list[Any]:
        function = getattr(importlib.import_module("fla.modules.activations"), name)
        inputs = [made(LENGTH, HIDDEN) for _ in range(num_inputs)]
        return both(function(*inputs), *inputs)

    return run


# Of gated operations the library refuses the way back on Hopper with Triton before 3.7.1.
PROGRAMS: Programs = {
    "chunk_gla": _attention("gla", "chunk_gla", "g_wide"),
    "chunk_gated_delta_rule": _attention(
        "gated_delta_rule", "chunk_gated_delta_rule", "g", "beta", is_both=False
    ),
    "chunk_simple_gla": _attention("simple_gla", "chunk_simple_gla", "g", is_both=False),
    "chunk_retention": _attention("retention", "chunk_retention"),
    "swiglu": _activation("swiglu", 2),
    "logsigmoid": _activation("logsigmoid", 1),
    "RMSNorm": _layer("RMSNorm", HIDDEN),
    "LayerNorm": _layer("LayerNorm", HIDDEN),
    "L2Norm": _layer("L2Norm"),
    "FusedRMSNormGated": _layer("FusedRMSNormGated", HIDDEN, num_inputs=2),
    "RotaryEmbedding": _rotary,
    "FusedCrossEntropyLoss": _cross_entropy,
    "ShortConvolution": _layer("ShortConvolution", HIDDEN, 4),
    "TokenShift": _token_shift,
    "fused_recurrent_hgrn": _hgrn,
    "fused_recurrent_retention": _attention("retention", "fused_recurrent_retention"),
    "fused_recurrent_gla": _attention("gla", "fused_recurrent_gla", "gk"),
    "fused_recurrent_delta_rule": _attention("delta_rule", "fused_recurrent_delta_rule", "beta"),
}

"""Functions of Liger-Kernel for `library_program.py`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from library_program import DEVICE, Programs, both, made

ROWS, COLS = 512, 1024


def _op(module: str, name: str, *shapes: tuple[int, ...], extra: tuple[Any, ...] = ()) -> Any:
    """Return a call of a function on random tensors of these shapes, both ways."""

    def run(dtype: torch.dtype = torch.float32) -> list[Any]:
        function = getattr(importlib.import_module(f"liger_kernel.ops.{module}"), name)
        inputs = [made(*shape, dtype=dtype) for shape in shapes]
        output = function.apply(*inputs, *extra)
        return both(output[0] if isinstance(output, tuple) else output, *inputs)

    return run


def _half(run: Callable[..., list[Any]]) -> Callable[[], list[Any]]:
    return lambda: run(torch.bfloat16)


def _cross_entropy() -> list[Any]:
    function = importlib.import_module("liger_kernel.ops.cross_entropy").LigerCrossEntropyFunction
    logits, target = made(ROWS, 4096), torch.arange(ROWS, device=DEVICE)
    return both(function.apply(logits * 1, target, None)[0], logits)


def _fused_linear_cross_entropy() -> list[Any]:
    module = importlib.import_module("liger_kernel.ops.fused_linear_cross_entropy")
    x, weight, target = made(ROWS, 256), made(4096, 256), torch.arange(ROWS, device=DEVICE)
    return both(module.LigerFusedLinearCrossEntropyFunction.apply(x, weight, target)[0], x, weight)


def _rope() -> list[Any]:
    function = importlib.import_module("liger_kernel.ops.rope").LigerRopeFunction
    q, k = made(2, 8, 256, 64), made(2, 4, 256, 64)
    cos, sin = made(1, 256, 64, grad=False), made(1, 256, 64, grad=False)
    rotated, _ = function.apply(q * 1, k * 1, cos, sin)
    return both(rotated, q)


def _divergence(module: str, name: str) -> Callable[[], list[Any]]:
    def run() -> list[Any]:
        function = getattr(importlib.import_module(f"liger_kernel.ops.{module}"), name)
        x, y = made(ROWS, COLS), made(ROWS, COLS, grad=False)
        if module == "tvd":
            return both(function.apply(x.softmax(-1), y.softmax(-1)), x)
        target = y.softmax(-1) if module == "kl_div" else y.log_softmax(-1)
        return both(function.apply(x.log_softmax(-1), target), x)

    return run


_NORM = _op("rms_norm", "LigerRMSNormFunction", (ROWS, COLS), (COLS,), extra=(1e-6,))
_LAYER_NORM = _op(
    "layer_norm", "LigerLayerNormFunction", (ROWS, COLS), (COLS,), (COLS,), extra=(1e-6,)
)
_SWIGLU = _op("swiglu", "LigerSiLUMulFunction", (ROWS, COLS), (ROWS, COLS))
_GEGLU = _op("geglu", "LigerGELUMulFunction", (ROWS, COLS), (ROWS, COLS))

PROGRAMS: Programs = {
    "rms_norm": _NORM,
    "rms_norm.bf16": _half(_NORM),
    "layer_norm": _LAYER_NORM,
    "layer_norm.bf16": _half(_LAYER_NORM),
    "swiglu": _SWIGLU,
    "swiglu.bf16": _half(_SWIGLU),
    "geglu": _GEGLU,
    "geglu.bf16": _half(_GEGLU),
    "softmax": _op("softmax", "LigerSoftmaxFunction", (ROWS, COLS)),
    "sparsemax": _op("sparsemax", "LigerSparsemaxFunction", (ROWS, COLS), extra=(-1,)),
    "relu_squared": _op("relu_squared", "LigerReLUSquaredFunction", (ROWS, COLS)),
    "dyt": _op("dyt", "LigerDyTFunction", (ROWS, COLS), (1,), (COLS,), (COLS,)),
    "group_norm": _op(
        "group_norm", "LigerGroupNormFunction", (8, 32, COLS), (32,), (32,), extra=(32, 4, 1e-6)
    ),
    "fused_add_rms_norm": _op(
        "fused_add_rms_norm", "LigerFusedAddRMSNormFunction", (ROWS, COLS), (ROWS, COLS), (COLS,),
        extra=(1e-6,),
    ),
    "poly_norm": _op("poly_norm", "LigerPolyNormFunction", (ROWS, COLS), (3,), ()),
    "rope": _rope,
    "cross_entropy": _cross_entropy,
    "fused_linear_cross_entropy": _fused_linear_cross_entropy,
    "kl_div": _divergence("kl_div", "LigerKLDivLossFunction"),
    "jsd": _divergence("jsd", "LigerJSDFunction"),
    "tvd": _divergence("tvd", "LigerTVDLossFunction"),
}  # fmt: skip

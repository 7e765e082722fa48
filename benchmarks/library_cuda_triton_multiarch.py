"""Entry points of cuda-triton-multiarch (0.1.3) for `library_draw.py`."""

from __future__ import annotations

from typing import Any

import torch
from library_draw import Draw, EntryPoints


def _rows(path: str, num_inputs: int, *, has_weight: bool) -> Any:
    def run(draw: Draw) -> Any:
        dtype = draw.one_of(torch.float16, torch.float32)
        inputs = [draw.tensor(draw.tokens, draw.width, dtype=dtype) for _ in range(num_inputs)]
        weights = [draw.tensor(draw.width, dtype=dtype)] if has_weight else []
        return draw(f"kernels.{path}", *inputs, *weights)

    return run


def _attention(path: str, rank: int, **choices: Any) -> Any:
    def run(draw: Draw) -> Any:
        length, size = draw.one_of(64, 128, 512), draw.one_of(32, 64)
        shape = {
            2: (length, size),
            3: (draw.heads, length, size),
            4: (2, draw.heads, length, size),
        }[rank]
        dtype = draw.one_of(torch.float16, torch.float32)
        words = {name: draw.one_of(*values) for name, values in choices.items()}
        return draw(
            f"kernels.{path}", *(draw.tensor(*shape, dtype=dtype) for _ in range(3)), **words
        )

    return run


def _matmul(draw: Draw) -> Any:
    m, n, k = draw.one_of(1, 16, 77), 512, draw.one_of(256, 1024)
    x, w = draw.tensor(m, k, dtype=torch.float16), draw.tensor(n, k, dtype=torch.float16)
    return draw("kernels.quantized_matmul:matmul_fp16_triton", x, w)


def _matmul_of(bits: int) -> Any:
    def run(draw: Draw) -> Any:
        m, n, k = draw.one_of(1, 16, 77), 512, draw.one_of(256, 1024)
        module = "kernels.quantized_matmul"
        packed = draw.get(f"{module}:quantize_int{bits}")(draw.tensor(n, k, dtype=torch.float16))
        return draw(
            f"{module}:matmul_int{bits}_triton", draw.tensor(m, k, dtype=torch.float16), *packed
        )

    return run


ENTRY_POINTS: EntryPoints = {
    "softmax": _rows("softmax:softmax_triton", 1, has_weight=False),
    "swiglu": _rows("swiglu:swiglu_triton", 2, has_weight=False),
    "rmsnorm": _rows("rmsnorm:rmsnorm_triton", 1, has_weight=True),
    "fused_rmsnorm_swiglu": _rows(
        "fused_rmsnorm_swiglu:fused_rmsnorm_swiglu_triton", 2, has_weight=True
    ),
    "attention": _attention("attention:attention_triton", 2),
    "flash_attention": _attention("flash_attention:flash_attention_triton", 2),
    "flash_attention_full": _attention(
        "flash_attention_full:flash_attention_full_triton", 4, causal=(False, True)
    ),
    "flash_attention_bhsd": _attention(
        "attention_api:flash_attention_bhsd", 4, is_causal=(False, True)
    ),
    "matmul_fp16": _matmul,
    "matmul_int8": _matmul_of(8),
    "matmul_int4": _matmul_of(4),
}

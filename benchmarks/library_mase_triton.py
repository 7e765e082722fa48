"""Entry points of mase-triton (0.0.7) for `library_draw.py`."""

from __future__ import annotations

from typing import Any

import torch
from library_draw import Draw, EntryPoints


def _matrix(draw: Draw, *dtypes: torch.dtype) -> torch.Tensor:
    return draw.tensor(draw.one_of(64, 100), draw.one_of(256, 1024), dtype=draw.one_of(*dtypes))


def _bitflip(draw: Draw) -> Any:
    x = _matrix(draw, torch.float32, torch.float16, torch.bfloat16)
    chances = draw.one_of(None, 4), draw.one_of(3, 8)
    path = "mase_triton.random_bitflip.core:random_bitflip_fn"
    return draw(path, x, *chances, 1, 2, draw.one_of(None, 200.0))


def _mxfp(draw: Draw) -> Any:
    meta = draw.get("mase_triton.mxfp.meta:" + draw.one_of("OCP_MXFP6_E2M3", "OCP_MXFP4_E2M1"))
    path, x = "mase_triton.mxfp.kernels.cast", _matrix(draw, torch.bfloat16)
    scales, elements = draw(f"{path}:extract_mxfp_components", x.flatten(), meta)
    return [
        scales,
        elements,
        draw(f"{path}:compose_mxfp_tensor", scales, elements, meta, torch.bfloat16),
    ]


def _minifloat(draw: Draw) -> Any:
    bits = draw.one_of((4, 3), (5, 2), (3, 2))
    make = draw.get("mase_triton.minifloat.meta:MinifloatMeta")
    meta = make(*bits, draw.flag(), draw.one_of("rn", "rz"))
    path, x = "mase_triton.minifloat.kernels.cast", _matrix(draw, torch.bfloat16)
    elements = draw(f"{path}:extract_minifloat_component", x, meta)
    return [elements, draw(f"{path}:compose_minifloat_component", elements, meta, torch.bfloat16)]


_OPTICAL = "mase_triton.optical_compute.core.optical_transformer"


def _optical_quantize(draw: Draw) -> Any:
    x = _matrix(draw, torch.float32, torch.float16)
    settings = 1, draw.one_of(128, 256), -1.0, 1.0, draw.one_of(None, 0.02), "det"
    return draw(f"{_OPTICAL}.quantize:ot_quantize_fn", x, *settings)


def _optical_linear(draw: Draw) -> Any:
    m, n, k = draw.one_of(64, 100), 256, 512
    bias, dtype = draw.flag(), torch.float32
    words = {"w_lut_min": 0.02, "o_min": -9.0, "o_max": 9.0, "q_levels": 256, "q_seed": 1}
    limits = {"x_min": -3.0, "x_max": 3.0, "w_min": -3.0, "w_max": 3.0}
    tensors = draw.tensor(m, k, dtype=dtype), draw.tensor(n, k, dtype=dtype)
    bias = draw.tensor(n, dtype=dtype) if bias else None
    return draw(f"{_OPTICAL}.linear:ot_qlinear_fn", *tensors, bias, **words, **limits)


def _optical_matmul(draw: Draw) -> Any:
    m, n, k = draw.one_of(64, 100), 256, 512
    words = {"b_lut_min": 0.02, "o_min": -9.0, "o_max": 9.0, "q_levels": 256, "q_seed": 1}
    limits = {"a_min": -3.0, "a_max": 3.0, "b_min": -3.0, "b_max": 3.0}
    tensors = draw.fp32(2, m, k), draw.fp32(2, k, n)
    return draw(f"{_OPTICAL}.matmul:ot_qmatmul_fn", *tensors, **words, **limits)


ENTRY_POINTS: EntryPoints = {
    "random_bitflip": _bitflip,
    "mxfp": _mxfp,
    "minifloat": _minifloat,
    "ot_quantize": _optical_quantize,
    "ot_qlinear": _optical_linear,
    "ot_qmatmul": _optical_matmul,
}

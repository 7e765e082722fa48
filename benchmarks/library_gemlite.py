"""Entry points of GemLite (0.6.0) for `library_draw.py`."""

from __future__ import annotations

import sys
from typing import Any

import torch
from library_draw import Draw, EntryPoints
from library_program import StandIns

sys.meta_path.append(StandIns("tqdm"))
# One config of each kernel, as with the library's own setting for quick starts.
_MATRIX = ((512, 512), (1024, 512), (2048, 1024))


def _rows(draw: Draw) -> int:
    return draw.one_of(1, 3, 16, 100)


def _linear(helper: str, **settings: Any) -> Any:
    """Return a call of a layer that a helper quantizes, on a batch."""

    def run(draw: Draw) -> Any:
        draw.get("gemlite:set_autotune")("fast")
        width, height = draw.one_of(*_MATRIX)
        layer = torch.nn.Linear(width, height, bias=False, dtype=draw.dtype, device="cuda")
        words = {"device": "cuda:0", "dtype": draw.dtype, **settings}
        quantized = draw.get(f"gemlite.helper:{helper}")(**words).from_linear(layer)
        return quantized(draw.tensor(_rows(draw), width))

    return run


def _manual(matmul: str) -> Any:
    """Return a call of one of the library's algorithms."""

    def run(draw: Draw) -> Any:
        draw.get("gemlite:set_autotune")("fast")
        (width, height), bits, group = draw.one_of(*_MATRIX), draw.one_of(2, 4, 8), 64
        weights = draw.ints(height, width, below=1 << bits, dtype=torch.uint8)
        scales, zeros = (draw.tensor(height * width // group, 1).abs() for _ in range(2))
        helper = draw.get("gemlite.helper:A16Wn")(device="cuda:0", dtype=draw.dtype)
        layer = helper.from_weights(weights, scales, zeros, W_nbits=bits, group_size=group)
        rows = 1 if "GEMV" in matmul else draw.one_of(3, 16, 100)
        return layer.forward_manual(draw.tensor(rows, width), matmul)

    return run


def _activations(name: str, *args: Any) -> Any:
    path = f"gemlite.quant_utils:{name}"
    return lambda draw: draw(path, draw.tensor(_rows(draw), draw.one_of(512, 4096)), *args)


def _pack(draw: Draw) -> Any:
    bits, columns = draw.one_of(1, 2, 4), draw.one_of(256, 1024)
    weights = draw.ints(512, columns, below=1 << bits, dtype=torch.uint8)
    words = {"packing_bitwidth": draw.one_of(8, 32), "transpose": draw.flag()}
    return draw("gemlite.bitpack:pack_weights_over_cols_triton", weights, W_nbits=bits, **words)


ENTRY_POINTS: EntryPoints = {
    "A16W8_INT8": _linear("A16W8_INT8"),
    "A16W8_FP8": _linear("A16W8_FP8"),
    "A8W8_int8_dynamic": _linear("A8W8_int8_dynamic"),
    "A8W8_fp8_dynamic": _linear("A8W8_fp8_dynamic"),
    "A16W8_MXFP": _linear("A16W8_MXFP"),
    "A16W4_MXFP": _linear("A16W4_MXFP"),
    **{name: _manual(name) for name in ("GEMM", "GEMM_SPLITK", "GEMV", "GEMV_SPLITK", "GEMV_REVSPLITK")},
    "scale_activations_per_token": _activations("scale_activations_per_token_triton_v3", torch.int8),
    "scale_activations_per_block": _activations("scale_activations_per_block_triton_v2", torch.float8_e4m3fn),
    "scale_activations_mxfp8": _activations("scale_activations_mxfp8_triton_v4", torch.float8_e4m3fn),
    "scale_activations_mxfp4": _activations("scale_activations_mxfp4_triton_v5"),
    "scale_activations_nvfp4": _activations("scale_activations_nvfp4_triton_v5"),
    "pack_weights_over_cols": _pack,
}  # fmt: skip

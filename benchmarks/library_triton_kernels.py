"""Entry points of a copy of OpenAI's triton_kernels for `library_draw.py`.

The copy is tokenspeed-triton-kernels 1.0.0.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from library_draw import Draw, EntryPoints

# It asks for what Triton has since 3.7: AMD's newest GPUs, and the lines of functions.
_QUERIES: Any = importlib.import_module("triton.language.target_info")
if not hasattr(_QUERIES, "is_hip_gfx1250"):
    _QUERIES.is_hip_gfx1250 = _QUERIES.is_hip_cdna4
_FUNCTION: Any = importlib.import_module("triton.runtime.jit").JITFunction
if not hasattr(_FUNCTION, "def_file_line_number"):
    _FUNCTION.def_file_line_number, _FUNCTION.def_file_col_number = 1, 1
_MATMUL, _MXFP = "triton_kernels.matmul", "triton_kernels.numerics_details.mxfp"
_RAGGED = "triton_kernels.tensor_details.ragged_tensor:make_ragged_tensor_metadata"
_BITMATRIX = "triton_kernels.tensor_details.bitmatrix:make_bitmatrix_metadata"


def _ragged(draw: Draw, experts: int, rows: int) -> Any:
    sizes = torch.full((experts,), rows // experts, device="cuda", dtype=torch.int32)
    sizes[0] += rows % experts
    return draw.get(_RAGGED)(sizes, rows)


def _matmul(draw: Draw) -> Any:
    m, n, k = draw.one_of(16, 64, 300), draw.one_of(256, 512), draw.one_of(256, 1024)
    bias = draw.one_of(None, draw.fp32(n))
    return draw(f"{_MATMUL}:matmul", draw.tensor(m, k), draw.tensor(k, n), bias)


def _matmul_ragged(draw: Draw) -> Any:
    rows, n, k, experts = draw.one_of(64, 300), 256, draw.one_of(256, 512), draw.one_of(4, 8)
    a, b = draw.tensor(rows, k), draw.tensor(experts, k, n)
    words = {"a_ragged_metadata": _ragged(draw, experts, rows)}
    return draw(f"{_MATMUL}:matmul", a, b, draw.fp32(experts, n), **words)


def _matmul_swiglu(draw: Draw) -> Any:
    rows, n, k, experts = draw.one_of(64, 300), 512, 256, 4
    specs = draw.get("triton_kernels.specialize:FnSpecs")
    function = draw.get("triton_kernels.swiglu:swiglu_fn")
    spec = specs("swiglu", function, ("alpha", "limit"), reduction_n=2)
    activation = draw.get(f"{_MATMUL}:FusedActivation")(spec, (1.0, 1.0))
    a, b = draw.tensor(rows, k), draw.tensor(experts, k, n)
    words = {"a_ragged_metadata": _ragged(draw, experts, rows), "fused_activation": activation}
    return draw(f"{_MATMUL}:matmul", a, b, draw.fp32(experts, n), **words)


def _matmul_mxfp4(draw: Draw) -> Any:
    m, n, k = draw.one_of(16, 128), 256, 512
    weights, scales = draw.get(f"{_MXFP}:downcast_to_mxfp")(
        draw.tensor(k, n, dtype=torch.bfloat16), torch.uint8, 0
    )
    config = draw.get(f"{_MATMUL}:PrecisionConfig")(b_mx_scale=scales, b_microblock_size=32)
    wrapped = draw.get("triton_kernels.tensor:wrap_torch_tensor")(
        weights, draw.get("triton_kernels.tensor:FP4")
    )
    return draw(
        f"{_MATMUL}:matmul",
        draw.tensor(m, k, dtype=torch.bfloat16),
        wrapped,
        None,
        precision_config=config,
    )


def _topk(draw: Draw) -> Any:
    rows, experts, k = draw.one_of(7, 64, 300), draw.one_of(32, 128), draw.one_of(2, 4)
    words = {"apply_softmax": draw.flag()}
    sparse = draw("triton_kernels.topk:topk", draw.tensor(rows, experts), k, **words)
    return [sparse.vals, sparse.indx]


def _routing(draw: Draw) -> Any:
    sparse = draw.get("triton_kernels.topk:topk")(draw.fp32(draw.one_of(64, 300), 32), 4)
    metadata = sparse.mask_metadata
    return [metadata.col_sum, metadata.row_sorted_indx, metadata.col_sorted_indx]


def _swiglu(draw: Draw) -> Any:
    config = draw.get("triton_kernels.swiglu:PrecisionConfig")(limit=draw.one_of(1.0, None))
    x = draw.tensor(draw.tokens, draw.one_of(256, 1000))
    return draw("triton_kernels.swiglu:swiglu", x, draw.one_of(1.0, 0.5), config)


def _reduce(draw: Draw) -> Any:
    x = draw.tensor(draw.one_of(4, 7), draw.tokens, draw.one_of(256, 500))
    mask = draw.one_of(None, draw.ints(*x.shape, below=2, dtype=torch.int8))
    return draw("triton_kernels.reduce:reduce_forward", x, 0, mask=mask)[0]


def _compaction(draw: Draw) -> Any:
    rows, k = draw.one_of(7, 64), 8
    values, indices = draw.tensor(rows, k), torch.arange(k, device="cuda").repeat(rows, 1).short()
    return draw(
        "triton_kernels.compaction:compaction",
        values,
        indices,
        draw.ints(rows, 1, below=256, dtype=torch.int32),
    )


def _downcast(draw: Draw) -> Any:
    target = draw.one_of(torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2)
    return draw(
        f"{_MXFP}:downcast_to_mxfp",
        draw.tensor(draw.one_of(64, 100), 512),
        target,
        draw.one_of(1, -1),
    )


def _upcast(draw: Draw) -> Any:
    target = draw.one_of(torch.uint8, torch.float8_e4m3fn)
    packed = draw.get(f"{_MXFP}:downcast_to_mxfp")(draw.tensor(64, 512), target, 1)
    return draw(f"{_MXFP}:upcast_from_mxfp", *packed, draw.dtype, 1)


ENTRY_POINTS: EntryPoints = {
    "matmul": _matmul,
    "matmul_ragged": _matmul_ragged,
    "matmul_swiglu": _matmul_swiglu,
    "matmul_mxfp4": _matmul_mxfp4,
    "topk": _topk,
    "mask_metadata": _routing,
    "ragged_metadata": lambda draw: draw(_RAGGED, draw.ints(8, below=100), 1000),
    "swiglu": _swiglu,
    "reduce": _reduce,
    "compaction": _compaction,
    "downcast_to_mxfp": _downcast,
    "upcast_from_mxfp": _upcast,
}

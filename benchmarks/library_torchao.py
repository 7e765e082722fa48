"""Entry points of torchao (0.18) for `library_draw.py`."""

from __future__ import annotations

from typing import Any

import torch
from library_draw import Draw, EntryPoints

_BLOCKWISE = "torchao.kernel.blockwise_quantization"
_TRAINING = "torchao.prototype.blockwise_fp8_training.kernels"
_MOE = "torchao.prototype.moe_training.kernels"
_FP8 = torch.float8_e4m3fn


def _matrix(draw: Draw, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return draw.tensor(draw.one_of(128, 512), draw.one_of(256, 1024), dtype=dtype)


def _on_matrix(path: str, *dtypes: torch.dtype, **words: Any) -> Any:
    """Return a call on a matrix of one of the dtypes, by default bf16."""
    return lambda draw: draw(
        path, _matrix(draw, draw.one_of(*dtypes or (torch.bfloat16,))), **words
    )


def _fp8(draw: Draw, *shape: int) -> torch.Tensor:
    return draw.fp32(*shape).to(_FP8)


def _blockwise_gemm(draw: Draw) -> Any:
    m, n, k = draw.one_of(1, 32, 256), 512, draw.one_of(256, 1024)
    a, b = _fp8(draw, m, k), _fp8(draw, n, k)
    scales = draw.fp32(m, k // 128), draw.fp32(n // 128, k // 128)
    return draw(f"{_BLOCKWISE}:blockwise_fp8_gemm", a, scales[0], b, scales[1])


def _weight_dequant(draw: Draw) -> Any:
    return draw(f"{_BLOCKWISE}:fp8_blockwise_weight_dequant", _fp8(draw, 512, 256), draw.fp32(4, 2))


def _training_gemm(draw: Draw) -> Any:
    m, n, k = draw.one_of(128, 256), 512, draw.one_of(256, 1024)
    a, b = _fp8(draw, m, k), _fp8(draw, n, k).t()
    scales = draw.fp32(k // 128, m).t(), draw.fp32(n // 128, k // 128).t()
    words = {"out_dtype": draw.one_of(torch.bfloat16, torch.float32)}
    return draw(f"{_TRAINING}:triton_fp8_gemm_1x128_128x128", a, b, *scales, **words)


def _training_gemm_rows(draw: Draw) -> Any:
    m, n, k = draw.one_of(128, 256), 512, draw.one_of(256, 1024)
    a, b = _fp8(draw, m, k), _fp8(draw, n, k).t()
    scales = draw.fp32(k // 128, m).t(), draw.fp32(k // 128, n)
    return draw(f"{_TRAINING}:triton_fp8_gemm_1x128_128x1", a, b, *scales)


def _int8_mm(draw: Draw) -> Any:
    m, n, k = draw.one_of(32, 256), 512, draw.one_of(256, 1024)
    shapes = (m, k), (n, k)
    a, b = (draw.ints(*shape, below=127, least=-127, dtype=torch.int8) for shape in shapes)
    columns = draw.one_of(1, n)
    path = "torchao.prototype.quantized_training.int8_mm:scaled_int8_mm_cuda"
    return draw(path, a, b.t(), draw.tensor(m), draw.tensor(columns))


def _int_matmul(draw: Draw) -> Any:
    m, n, k = draw.one_of(32, 256), 512, draw.one_of(256, 1024)
    shapes = (m, k), (k, n)
    a, b = (draw.ints(*shape, below=127, least=-127, dtype=torch.int8) for shape in shapes)
    blocks = {"BLOCK_M": 64, "BLOCK_N": draw.one_of(64, 128), "BLOCK_K": 64, "GROUP_M": 8}
    config = draw.get("triton:Config")(blocks, num_stages=draw.one_of(2, 4), num_warps=4)
    path, scaled = "torchao.kernel.intmm_triton", draw.flag()
    if scaled:
        scales = draw.tensor(m, 1)
        return draw(f"{path}:int_scaled_matmul_kernel", a, b, scales, draw.zeros(m, n), config)
    return draw(f"{path}:int_matmul_kernel", a, b, draw.zeros(m, n, dtype=torch.int32), config)


def _bsr(draw: Draw) -> Any:
    m, n, k, block = 256, draw.one_of(64, 256), 512, draw.one_of(32, 64)
    kept = torch.eye(8, device="cuda").bool().repeat(m // block // 8 or 1, k // block // 8)
    kept = kept[: m // block, : k // block]
    values = draw.tensor(int(kept.sum()), block, block)
    rows = torch.nn.functional.pad(kept.sum(1).cumsum(0), (1, 0))
    sparse = torch.sparse_bsr_tensor(rows, kept.nonzero()[:, 1], values, size=(m, k))
    path = "torchao.kernel.bsr_triton_ops:bsr_dense_addmm"
    return draw.get(path)(draw.tensor(m, n), sparse, draw.tensor(k, n), beta=draw.one_of(0, 1))


def _mixed_mm(draw: Draw) -> Any:
    m, n, k, group = draw.one_of(1, 16, 64), 512, 1024, 64
    weights = draw.ints(k // 2, n, below=255, dtype=torch.uint8)
    scales, zeros = draw.tensor(k // group, n), draw.tensor(k // group, n)
    words = {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 64}
    path = "torchao.prototype.hqq.mixed_mm:triton_mixed_mm"
    return draw(
        path, draw.tensor(m, k), weights, scales, zeros, group, kernel_type="compute_bound", **words
    )


def _qkv(draw: Draw) -> tuple[torch.Tensor, ...]:
    length, size = draw.one_of(128, 333), draw.one_of(64, 128)
    return tuple(draw.tensor(2, draw.heads, length, size) for _ in range(3))


def _rope_quantize(draw: Draw) -> Any:
    q, k, v = (tensor.transpose(1, 2).contiguous() for tensor in _qkv(draw))
    angles = [draw.fp32(q.shape[1], q.shape[3]) for _ in range(2)]
    path = "torchao.prototype.attention.quantization.triton_rope_qkv_quantization"
    return draw(f"{path}:triton_fp8_rope_sdpa_quantize", q, k, v, *angles)


def _experts(draw: Draw) -> torch.Tensor:
    return draw.tensor(draw.one_of(2, 4), draw.one_of(256, 512), 256, dtype=torch.bfloat16)


def _on_groups(name: str) -> Any:
    def run(draw: Draw) -> Any:
        x, ends = draw.tensor(512, 256, dtype=torch.bfloat16), draw.values(128, 256, 512)
        return draw(
            f"{_MOE}.jagged_float8_scales:{name}",
            x,
            ends,
            round_scales_to_power_of_2=draw.flag(),
        )

    return run


def _permute_indices(draw: Draw) -> Any:
    ranks, experts = 4, 2
    counts = draw.ints(ranks * experts, below=30)
    path = "torchao.prototype.moe_training.ep.kernels:generate_permute_indices"
    return draw(path, counts, experts, ranks, 512, 16)


ENTRY_POINTS: EntryPoints = {
    "blockwise_fp8_gemm": _blockwise_gemm,
    "fp8_blockwise_act_quant": _on_matrix(f"{_BLOCKWISE}:fp8_blockwise_act_quant", torch.bfloat16, torch.float32),
    "fp8_blockwise_weight_quant": _on_matrix(f"{_BLOCKWISE}:fp8_blockwise_weight_quant", torch.bfloat16, torch.float16),
    "fp8_blockwise_weight_dequant": _weight_dequant,
    "triton_fp8_gemm_1x128_128x128": _training_gemm,
    "triton_fp8_gemm_1x128_128x1": _training_gemm_rows,
    **{
        name: _on_matrix(f"{_TRAINING}:triton_fp8_blockwise_{name}")
        for name in ("act_quant_lhs", "act_quant_rhs", "act_quant_transposed_lhs", "weight_quant_rhs",
                     "weight_quant_transposed_rhs")
    },
    "scaled_int8_mm": _int8_mm,
    "int_matmul": _int_matmul,
    "bsr_dense_addmm": _bsr,
    "triton_mixed_mm": _mixed_mm,
    "fp8_sdpa_quantize": lambda draw: draw(
        "torchao.prototype.fp8_sdpa_inference.fp8_sdpa_quantization:fp8_sdpa_quantize_func", *_qkv(draw)
    ),
    "triton_fp8_rope_sdpa_quantize": _rope_quantize,
    "triton_fp8_rowwise_3d_transpose_rhs": lambda draw: draw(
        f"{_MOE}.float8_rowwise:triton_fp8_rowwise_3d_transpose_rhs", _experts(draw)
    ),
    "triton_fp8_rowwise_2d_scale_and_cast": _on_matrix(f"{_MOE}.float8_rowwise:triton_fp8_rowwise_2d_scale_and_cast"),
    "triton_fp8_per_group_rowwise_scales": _on_groups("triton_fp8_per_group_rowwise_scales"),
    "triton_fp8_per_group_colwise_scales": _on_groups("triton_fp8_per_group_colwise_scales"),
    "generate_permute_indices": _permute_indices,
}  # fmt: skip

"""Entry points of Conch (conch-triton-kernels 1.3) for `library_draw.py`."""

from __future__ import annotations

from typing import Any

import torch
from library_draw import Draw, EntryPoints

_OPS, _BNB = "conch.ops", "conch.ops.quantization.bitsandbytes.functional"


def _activation(name: str) -> Any:
    path = f"{_OPS}.activation.{name}:{name}"
    dtype = torch.float32 if "tanh" in name else None  # of a 16-bit one Triton has no tanh
    return lambda draw: draw(path, draw.tensor(draw.tokens, 2 * draw.width, dtype=dtype))


def _norm(name: str) -> Any:
    def run(draw: Draw) -> Any:
        tensors = [draw.tensor(draw.tokens, draw.width) for _ in range(1 + (name != "rms_norm"))]
        path = f"{_OPS}.normalization.rms_norm:{name}"
        return draw(path, *tensors, draw.tensor(draw.width), 1e-6)

    return run


def _gemma(draw: Draw) -> Any:
    x, weight = draw.tensor(draw.tokens, draw.width), draw.tensor(draw.width)
    residual = draw.one_of(None, draw.tensor(draw.tokens, draw.width))
    return draw(f"{_OPS}.normalization.gemma_rms_norm:gemma_rms_norm", x, weight, 1e-6, residual)


def _rotary(draw: Draw) -> Any:
    tokens, size = draw.tokens, draw.one_of(64, 128)
    q, k = draw.tensor(tokens, draw.heads * size), draw.tensor(tokens, 2 * size)
    positions, cache = draw.ints(tokens, below=512, dtype=torch.int64), draw.tensor(512, size)
    return draw(f"{_OPS}.embedding.rotary_embedding:rotary_embedding", positions, q, k, size, cache)


def _caches(draw: Draw, batch: int, size: int, length: int) -> tuple[Any, ...]:
    page, heads = draw.one_of(16, 32), draw.one_of(1, 2, 4)
    blocks = -(-length // page)
    table = torch.arange(batch * blocks, device="cuda", dtype=torch.int32).reshape(batch, blocks)
    caches = (draw.tensor(batch * blocks, page, heads, size) for _ in range(2))
    return *caches, table


def _paged(draw: Draw) -> Any:
    batch, size, length = draw.one_of(1, 4, 13), draw.one_of(64, 128), draw.one_of(100, 512, 2000)
    k, v, table = _caches(draw, batch, size, length)
    q, lengths = draw.tensor(batch, draw.heads, size), draw.ints(batch, below=length, least=1)
    softcap = draw.one_of(0.0, 30.0)
    path = f"{_OPS}.attention.paged_attention:paged_attention"
    return draw(path, q, k, v, table, lengths, softcap=softcap)


def _varlen(draw: Draw) -> Any:
    lengths, size = draw.one_of((100, 28), (64, 64, 7), (333,)), draw.one_of(64, 128)
    starts = draw.values(*(sum(lengths[:index]) for index in range(len(lengths) + 1)))
    k, v, table = _caches(draw, len(lengths), size, max(lengths))
    q = draw.tensor(sum(lengths), draw.heads, size)
    path, longest = f"{_OPS}.attention.varlen_attention:varlen_attention", max(lengths)
    words = {"causal": draw.flag()}
    return draw(path, q, k, v, starts, longest, draw.values(*lengths), longest, table, **words)


def _quantized(name: str) -> Any:
    def run(draw: Draw) -> Any:
        x, scale = draw.tensor(draw.tokens, draw.width), draw.fp32(1).abs() + 0.01
        return draw(f"{_OPS}.quantization.{name}:scaled_{name}_quant", x, scale)

    return run


def _mixed_gemm(draw: Draw) -> Any:
    bits, group = draw.one_of(4, 8), draw.one_of(64, 128)
    m, k, n = draw.one_of(1, 16, 77), 1024, draw.one_of(512, 768)
    weights = draw.ints(k * bits // 32, n, below=1 << 31)
    scales = draw.tensor(k // group, n)
    path, x = f"{_OPS}.quantization.gemm:mixed_precision_gemm", draw.tensor(m, k)
    return draw(path, x, weights, scales, None, bits, 1 << (bits - 1), group)


def _scaled_gemm(draw: Draw) -> Any:
    m, k, n = draw.one_of(1, 16, 77), 1024, draw.one_of(512, 768)
    a, b = (
        draw.ints(*shape, below=127, least=-127, dtype=torch.int8) for shape in ((m, k), (k, n))
    )
    scales = draw.fp32(m, 1), draw.fp32(n, 1)
    return draw(f"{_OPS}.quantization.gemm:scaled_gemm", a, b, *scales, draw.dtype)


def _blockwise(draw: Draw) -> Any:
    kind, x = draw.one_of("fp4", "nf4"), draw.tensor(draw.one_of(65536, 262144))
    block = draw.one_of(64, 128)
    packed, state = draw(f"{_BNB}:quantize_4bit", x, blocksize=block, quant_type=kind)
    words = {"quant_state": state, "blocksize": block, "quant_type": kind}
    return [packed, draw(f"{_BNB}:dequantize_4bit", packed, **words)]


def _bev_pool(draw: Draw) -> Any:
    channels, cells, points = draw.one_of(64, 80), 16, draw.one_of(128, 1000)
    feats, geometry = draw.fp32(points, channels), draw.ints(points, 4, below=cells)
    geometry[:, 3] = 0
    starts = torch.arange(0, points, 4, device="cuda", dtype=torch.int32)
    lengths = torch.full_like(starts, 4)
    path = f"{_OPS}.vision.bev_pool:bev_pool"
    return draw(path, feats, geometry, starts, lengths, 1, cells, cells, cells)


def _nms(draw: Draw) -> Any:
    corners = torch.rand(draw.one_of(30, 200), 4, device="cuda") * 100
    corners[:, 2:] += corners[:, :2]
    return draw(f"{_OPS}.vision.nms:nms", corners, torch.rand(len(corners), device="cuda"), 0.5)


def _voxels(draw: Draw) -> Any:
    """Call it with one point to a voxel: the order of others is that of atomics."""
    path = f"{_OPS}.vision.voxelization"
    parameter = draw.get(f"{path}:VoxelizationParameter")((0.0,) * 3, (8.0,) * 3, (1.0,) * 3, 10)
    return draw(f"{path}:generate_voxels", draw.fp32(1, 4).abs(), parameter)


def _copy_blocks(draw: Draw) -> Any:
    k, v = ([draw.tensor(16, 16 * 2 * 64) for _ in range(3)] for _ in range(2))
    pairs = draw.values(0, 8, 1, 9, 2, 10, dtype=torch.int64).reshape(3, 2)
    return draw(f"{_OPS}.vllm.copy_blocks:copy_blocks", k, v, pairs)


def _reshape_and_cache(draw: Draw) -> Any:
    tokens, heads, size = draw.one_of(1, 7, 64), draw.one_of(1, 4, 8), draw.one_of(64, 128)
    key, value = (draw.tensor(tokens, heads, size) for _ in range(2))
    caches = (draw.zeros(16, 16, heads, size) for _ in range(2))
    slots = torch.arange(tokens, device="cuda")
    path = f"{_OPS}.vllm.reshape_and_cache:reshape_and_cache"
    return draw(path, key, value, *caches, slots)


ENTRY_POINTS: EntryPoints = {
    "silu_and_mul": _activation("silu_and_mul"),
    "gelu_tanh_and_mul": _activation("gelu_tanh_and_mul"),
    "rms_norm": _norm("rms_norm"),
    "fused_add_rms_norm": _norm("fused_add_rms_norm"),
    "gemma_rms_norm": _gemma,
    "rotary_embedding": _rotary,
    "paged_attention": _paged,
    "varlen_attention": _varlen,
    "scaled_fp8_quant": _quantized("fp8"),
    "scaled_int8_quant": _quantized("int8"),
    "mixed_precision_gemm": _mixed_gemm,
    "scaled_gemm": _scaled_gemm,
    "quantize_4bit": _blockwise,
    "bev_pool": _bev_pool,
    "nms": _nms,
    "generate_voxels": _voxels,
    "copy_blocks": _copy_blocks,
    "reshape_and_cache": _reshape_and_cache,
}

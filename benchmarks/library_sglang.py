"""Functions of SGLang (0.4.9, a pure Python wheel) for `library_program.py`.

Stand-ins replace its modules' other imports: servers and compiled extensions.
"""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace
from typing import Any

import torch
from library_program import DEVICE, Programs, StandIns, made

_ABSENT = """
    IPython PIL aiofiles aiohttp cachetools compressed_tensors cuda datasets decord deep_gemm
    dill einops fastapi gguf huggingface_hub interegular llguidance modelscope msgspec numpy
    openai orjson outlines packaging partial_json_parser peft prometheus_client psutil pybase64 pydantic
    pynvml regex requests safetensors scipy sentencepiece setproctitle sgl_kernel soundfile
    starlette tiktoken tokenizers torch_memory_saver torchao torchaudio torchvision tqdm
    transformers triton_kernels uvicorn uvloop vllm xgrammar yaml zmq
"""
sys.meta_path.append(StandIns(*_ABSENT.split()))
# Asked at import, of a CPU; some versions of torch do not have it.
if not hasattr(torch._C._cpu, "_is_amx_tile_supported"):  # noqa: SLF001 - torch has no other name
    setattr(torch._C._cpu, "_is_amx_tile_supported", bool)  # noqa: B010, SLF001
HALF = torch.bfloat16
TOKENS, HEADS, KV_HEADS, WIDTH = 256, 8, 2, 64


def _of(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"sglang.srt.{module}"), name)


def _indices(*values: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(values, device=DEVICE, dtype=dtype)


def _tensor(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return made(*shape, dtype=dtype, grad=False)


def _decode(heads: int, kv_heads: int) -> Any:
    def run() -> list[Any]:
        function = _of("layers.attention.triton_ops.decode_attention", "decode_attention_fwd")
        batch, splits = 4, 8
        q, k, v = (
            _tensor(n, h, WIDTH) for n, h in ((batch, heads), (512, kv_heads), (512, kv_heads))
        )
        out = torch.zeros_like(q)
        logits = torch.zeros(batch, heads, splits, WIDTH, device=DEVICE)
        lse = torch.zeros(batch, heads, splits, device=DEVICE)
        indptr, indices = _indices(0, 128, 256, 384, 512), torch.arange(512, device=DEVICE)
        counts = _indices(*[splits] * batch)
        function(q, k, v, out, indptr, indices, logits, lse, counts, splits, 0.125)
        return [out]

    return run


def _extend() -> list[Any]:
    function = _of("layers.attention.triton_ops.extend_attention", "extend_attention_fwd")
    q, k, v = (_tensor(TOKENS, h, WIDTH) for h in (HEADS, KV_HEADS, KV_HEADS))
    k_buffer, v_buffer = _tensor(512, KV_HEADS, WIDTH), _tensor(512, KV_HEADS, WIDTH)
    out, indices = torch.zeros_like(q), torch.arange(200, device=DEVICE)
    starts = (_indices(0, 100, TOKENS), _indices(0, 90, 200))
    is_causal = True
    function(q, k, v, out, k_buffer, v_buffer, *starts, indices, None, is_causal, None, 156)
    return [out]


def _prefill() -> list[Any]:
    function = _of("layers.attention.triton_ops.prefill_attention", "context_attention_fwd")
    q, k, v = (_tensor(TOKENS, h, WIDTH) for h in (HEADS, KV_HEADS, KV_HEADS))
    out = torch.zeros_like(q)
    function(q, k, v, out, _indices(0, 100), _indices(100, 156), 156)
    return [out]


def _merge_state() -> list[Any]:
    function = _of("layers.attention.triton_ops.merge_state", "merge_state_triton")
    first, second = _tensor(TOKENS, HEADS, WIDTH), _tensor(TOKENS, HEADS, WIDTH)
    sums = [_tensor(TOKENS, HEADS, dtype=torch.float32) for _ in range(2)]
    return list(function(first, sums[0], second, sums[1]))


def _elementwise(
    name: str, *shapes: tuple[int, ...], extra: tuple[Any, ...] = (), **words: Any
) -> Any:
    def run() -> list[Any]:
        inputs = [_tensor(*shape) for shape in shapes]
        output = _of("layers.elementwise", name)(*inputs, *extra, **words)
        listed = output if isinstance(output, tuple) else (output,)
        return [tensor for tensor in listed if tensor is not None]

    return run


def _bitmask() -> list[Any]:
    function = _of("constrained.triton_ops.bitmask_ops", "apply_token_bitmask_inplace_triton")
    logits = _tensor(4, 4096, dtype=torch.float32)
    function(logits, torch.randint(-(1 << 31), 1 << 31, (4, 128), device=DEVICE, dtype=torch.int32))
    return [logits.masked_fill(logits.isinf(), 0)]


def _kv_indices() -> list[Any]:
    kernel = _of("layers.attention.utils", "create_flashinfer_kv_indices_triton")
    table = torch.randperm(4 * 512, device=DEVICE, dtype=torch.int32).view(4, 512)
    indices = torch.zeros(4 * 512, device=DEVICE, dtype=torch.int32)
    lengths, starts = _indices(100, 512, 7, 300), _indices(0, 100, 612, 619)
    kernel[(4,)](table, _indices(3, 1, 0, 2), lengths, starts, None, indices, table.stride(0))
    return [indices]


def _awq(name: str) -> Any:
    def run() -> list[Any]:
        words = torch.randint(-(1 << 31), 1 << 31, (256, 32), device=DEVICE, dtype=torch.int32)
        zeros = torch.randint(-(1 << 31), 1 << 31, (2, 32), device=DEVICE, dtype=torch.int32)
        scales = _tensor(2, 256, dtype=torch.float16)
        function = _of("layers.quantization.awq_triton", name)
        if name == "awq_dequantize_triton":
            return [function(words, scales, zeros)]
        return [function(_tensor(64, 256, dtype=torch.float16), words, scales, zeros, 1)]

    return run


def _lora(name: str, *sizes: int) -> Any:
    def run() -> list[Any]:
        function = _of(f"lora.triton_ops.{name.removesuffix('_fwd')}", name)
        batch = SimpleNamespace(
            bs=2, max_len=156, seg_lens=_indices(100, 156), seg_indptr=_indices(0, 100, TOKENS),
            weight_indices=_indices(1, 0), lora_ranks=_indices(16, 16),
            scalings=torch.tensor([1.0, 2.0], device=DEVICE),
        )  # fmt: skip
        return [function(_tensor(TOKENS, sizes[0]), _tensor(2, sizes[1], sizes[0]), batch)]

    return run


def _quantize(module: str, name: str, *extra: Any) -> Any:
    def run() -> list[Any]:
        return list(_of(f"layers.quantization.{module}", name)(_tensor(TOKENS, 512), *extra))

    return run


def _block_matmul() -> list[Any]:
    function = _of("layers.quantization.int8_kernel", "w8a8_block_int8_matmul")
    a, b = (
        torch.randint(-9, 9, shape, device=DEVICE, dtype=torch.int8)
        for shape in ((64, 256), (128, 256))
    )
    scales = _tensor(64, 2, dtype=torch.float32), _tensor(1, 2, dtype=torch.float32)
    return [function(a, b, *scales, [128, 128], HALF)]


PROGRAMS: Programs = {
    "rmsnorm": _elementwise("fused_rmsnorm", (TOKENS, 1024), (1024,), extra=(1e-6,)),
    "dual_residual_rmsnorm": _elementwise(
        "fused_dual_residual_rmsnorm", *[(TOKENS, 1024)] * 2, *[(1024,)] * 2, extra=(1e-6,)
    ),
    "dual_residual_rmsnorm.autotuned": _elementwise(
        "fused_dual_residual_rmsnorm", *[(TOKENS, 1024)] * 2, *[(1024,)] * 2,
        extra=(1e-6,), autotune=True,
    ),
    "softcap": _elementwise("fused_softcap", (TOKENS, 1024), extra=(30.0,)),
    "softcap.autotuned": _elementwise("fused_softcap", (TOKENS, 1024), extra=(30.0,), autotune=True),
    "gelu_and_mul": _elementwise("gelu_and_mul_triton", (TOKENS, 2048)),
    "experts_combine": _elementwise("experts_combine_triton", (TOKENS, 2, 1024), (TOKENS, 1024)),
    "bitmask": _bitmask,
    "kv_indices": _kv_indices,
    "merge_state": _merge_state,
    "decode": _decode(KV_HEADS, KV_HEADS),
    "decode.grouped": _decode(HEADS, KV_HEADS),
    "extend": _extend,
    "prefill": _prefill,
    "awq_dequantize": _awq("awq_dequantize_triton"),
    "awq_gemm": _awq("awq_gemm_triton"),
    "lora_a": _lora("sgemm_lora_a_fwd", 1024, 16),
    "lora_b": _lora("sgemm_lora_b_fwd", 16, 1024),
    "quantize.int8": _quantize("int8_kernel", "per_token_quant_int8"),
    "quantize.int8_groups": _quantize("int8_kernel", "per_token_group_quant_int8", 128),
    "quantize.fp8_groups": _quantize("fp8_kernel", "per_token_group_quant_fp8", 128),
    "block_matmul.int8": _block_matmul,
}  # fmt: skip

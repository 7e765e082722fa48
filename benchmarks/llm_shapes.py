"""Forty products of real language models: layers' weights with several numbers of rows.

A layer is out (M, N) = x (M, K) @ weights (N, K)^T. M is the number of tokens of a step: tens
when decoding, thousands for prompts. Every layer is measured at a few M. Together they cover
each power of two from 16 to 16384, in wide and narrow, deep and flat products.
"""

from __future__ import annotations

from typing import NamedTuple


class Shape(NamedTuple):
    """One product of a model."""

    model: str
    layer: str
    m: int
    n: int
    k: int

    @property
    def name(self) -> str:
        """Name in reports."""
        return f"{self.model} {self.layer} {self.m}x{self.n}x{self.k}"


# Model and layer; N and K; the Ms. "/8" is a layer divided among 8 GPUs.
_LAYERS = (
    ("Llama-3-8B", "qkv", 6144, 4096, (16, 512, 8192)),
    ("Llama-3-8B", "o", 4096, 4096, (64, 2048)),
    ("Llama-3-8B", "gate_up", 28672, 4096, (16, 128, 4096)),
    ("Llama-3-8B", "down", 4096, 14336, (32, 1024, 16384)),
    ("Llama-3-70B", "qkv", 10240, 8192, (16, 4096)),
    ("Llama-3-70B", "o", 8192, 8192, (128, 8192)),
    ("Llama-3-70B", "gate_up", 57344, 8192, (32, 2048)),
    ("Llama-3-70B", "down", 8192, 28672, (64, 1024)),
    ("Llama-3-70B/8", "gate_up", 7168, 8192, (256, 16384)),
    ("Llama-3-70B/8", "down", 8192, 3584, (512,)),
    ("Qwen2.5-7B", "qkv", 4608, 3584, (64, 4096)),
    ("Qwen2.5-7B", "gate_up", 37888, 3584, (256, 1024)),
    ("Qwen2.5-7B", "down", 3584, 18944, (128, 2048)),
    ("Qwen3-32B", "qkv", 10240, 5120, (32, 1024)),
    ("Qwen3-32B", "down", 5120, 25600, (16, 4096)),
    ("Mixtral-8x22B", "qkv", 8192, 6144, (64,)),
    ("Mixtral-8x22B", "expert gate_up", 32768, 6144, (512,)),
    ("Mixtral-8x22B", "expert down", 6144, 16384, (256,)),
    ("DeepSeek-V3", "q_a kv_a", 2112, 7168, (128, 4096)),
    ("DeepSeek-V3", "q_b", 24576, 1536, (512,)),
    ("DeepSeek-V3", "o", 7168, 16384, (16,)),
    ("DeepSeek-V3", "expert down", 7168, 2048, (256,)),
)

SHAPES = tuple(Shape(model, layer, m, n, k) for model, layer, n, k, rows in _LAYERS for m in rows)

"""Attention through descriptors on a GPU, in every form of its loop.

    pytest -m gpu tests/e2e/test_attention_gpu.py

Each launch is compared with torch in fp32. One of these forms once hung at one iteration of its loop
but not at two, so lengths go from one tile to many.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import aotc
from tests.support.built import Built

pytestmark = pytest.mark.gpu

MANIFEST = Path(__file__).parents[2] / "kernels" / "attention.toml"
LENGTHS = (128, 256, 384, 1000, 2048)
HEADS, HEADS_PER_KV_HEAD = 4, 2


def _build(folder: Path) -> None:
    from aotc import cli

    assert cli.run(["build", str(MANIFEST), "-o", str(folder)]) == 0


@pytest.fixture(scope="module")
def kernel(built: Built) -> Any:
    torch = pytest.importorskip("torch")
    torch.zeros(1, device="cuda")
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("these are built for Hopper")
    return aotc.load(built("attention", _build))["attention_forward"]


@pytest.mark.parametrize("length", LENGTHS)
def test_against_torch(kernel: Any, length: int) -> None:
    import torch

    for variant in kernel.info.variants:
        head_dim, causal = variant.choices["HEAD_DIM"], variant.choices["CAUSAL"]
        print(f"{length} keys, {variant.choices}, {variant.config}", flush=True)  # noqa: T201
        shape = (HEADS, length, head_dim)
        q = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        k, v = (torch.randn_like(q[::HEADS_PER_KV_HEAD].contiguous()) for _ in range(2))
        out = torch.full_like(q, math.nan)
        scale = math.log2(math.e) / math.sqrt(head_dim)
        numbers = (scale, HEADS, HEADS_PER_KV_HEAD, length, length)
        kernel.launch((q, k, v, out, *numbers), config=variant.config, choices=variant.choices)
        torch.cuda.synchronize()
        keys, values = (x.float().repeat_interleave(HEADS_PER_KV_HEAD, 0)[None] for x in (k, v))
        exact = torch.nn.functional.scaled_dot_product_attention(
            q.float()[None], keys, values, is_causal=causal
        )[0]
        error = (out.float() - exact).norm() / exact.norm()
        assert error < 1e-2

"""Matrix products in microscaling formats: verified, by warpgroup products on Hopper."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.package.manifest import load
from aotc.package.verify import VerifyOptions, subjects_of_manifest, verify_variant

SOURCE = """
import triton
import triton.language as tl


@triton.jit
def multiply(a_ptr, a_scale_ptr, b_ptr, b_scale_ptr, c_ptr, M, N, K,
             BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
             A_FORMAT: tl.constexpr, PER_BYTE: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    groups = tl.arange(0, BLOCK_K // 32)
    a_bytes, b_bytes = tl.arange(0, BLOCK_K // PER_BYTE), tl.arange(0, BLOCK_K // 2)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        a_mask = (rows < M)[:, None] & (k // PER_BYTE + a_bytes < K // PER_BYTE)[None, :]
        b_mask = (k // 2 + b_bytes < K // 2)[:, None] & (columns < N)[None, :]
        scale_mask = (k // 32 + groups < K // 32)[None, :]
        a = tl.load(a_ptr + rows[:, None] * (K // PER_BYTE) + (k // PER_BYTE + a_bytes)[None, :],
                    mask=a_mask, other=0)
        b = tl.load(b_ptr + columns[None, :] * (K // 2) + (k // 2 + b_bytes)[:, None],
                    mask=b_mask, other=0)
        a_scale = tl.load(a_scale_ptr + rows[:, None] * (K // 32) + (k // 32 + groups)[None, :],
                          mask=(rows < M)[:, None] & scale_mask, other=127)
        b_scale = tl.load(b_scale_ptr + columns[:, None] * (K // 32) + (k // 32 + groups)[None, :],
                          mask=(columns < N)[:, None] & scale_mask, other=127)
        acc = tl.dot_scaled(a, a_scale, A_FORMAT, b, b_scale, "e2m1", acc)
    out = c_ptr + rows[:, None] * N + columns[None, :]
    tl.store(out, acc.to(tl.bfloat16), mask=(rows < M)[:, None] & (columns < N)[None, :])
"""

MANIFEST = """
[package]
name = "scaled"
version = "0.1.0"
targets = ["sm_80", "sm_90a"]
[[kernel]]
source = "kernels.py:multiply"
grid = ["cdiv(M, BLOCK_M)", "cdiv(N, BLOCK_N)"]
[kernel.signature]
a_ptr = "*u8:16"
a_scale_ptr = "*u8"
b_ptr = "*u8:16"
b_scale_ptr = "*u8"
c_ptr = "*bf16:16"
M = "i32"
N = "i32:16"
K = "i32:16"
[kernel.constants]
BLOCK_M = 64
BLOCK_N = 64
BLOCK_K = 64
[[kernel.config]]
A_FORMAT = "e2m1"
PER_BYTE = 2
[[kernel.config]]
A_FORMAT = "e5m2"
PER_BYTE = 1
[kernel.verify]
M = [65, 1, 100]
N = [80, 64]
K = [64, 96, 192]
a_scale_ptr = { low = 120, high = 131 }
b_scale_ptr = { low = 120, high = 131 }
"""


@pytest.mark.parametrize("number", range(4))
def test_it_computes_what_its_source_says(number: int, tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text(SOURCE)
    manifest = MANIFEST
    if number % 2:
        # Bytes as e5m2 would be infinite or no numbers here and there: small ones alone.
        manifest += "a_ptr = { low = 0, high = 64 }\n"
    (tmp_path / "kernels.toml").write_text(manifest)
    subjects = subjects_of_manifest(load(str(tmp_path / "kernels.toml")))
    assert len(subjects) == 4
    result = verify_variant(subjects[number], VerifyOptions(seed=number))
    assert result.status == "verified", [finding.detail for finding in result.findings]

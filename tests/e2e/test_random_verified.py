"""Dropout and noise from random numbers: verified on targets with and without 64-bit offsets."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.package.manifest import load
from aotc.package.verify import VerifyOptions, subjects_of_manifest, verify_variant

SOURCE = """
import triton
import triton.language as tl


@triton.jit
def dropout(x_ptr, out_ptr, n, p, seed, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    keep = tl.rand(seed, i.to(tl.int64) if WIDE else i) > p
    tl.store(out_ptr + i, tl.where(keep, x / (1 - p), 0.0), mask=i < n)


@triton.jit
def add_noise(x_ptr, out_ptr, n, seed, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b, c, d = tl.randn4x(seed, i)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(out_ptr + i, x + a + b + c + d, mask=i < n)
"""

MANIFEST = """
[package]
name = "noise"
version = "0.1.0"
targets = ["sm_80", "sm_90a"]
[[kernel]]
source = "kernels.py:dropout"
grid = ["cdiv(n, BLOCK)"]
[kernel.signature]
x_ptr = "*fp16"
out_ptr = "*fp16"
n = "i32"
p = "fp32"
seed = "i64"
[kernel.constants]
BLOCK = 256
[kernel.choices]
WIDE = [true, false]
[kernel.verify]
p = [0.0, 0.5, 0.875]
seed = [0, -1, 123456789012]

[[kernel]]
source = "kernels.py:add_noise"
grid = ["cdiv(n, BLOCK)"]
[kernel.signature]
x_ptr = "*fp32"
out_ptr = "*fp32"
n = "i32"
seed = "i32"
[kernel.constants]
BLOCK = 512
"""


@pytest.mark.parametrize("number", range(6))
def test_it_computes_what_its_source_says(number: int, tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text(SOURCE)
    (tmp_path / "kernels.toml").write_text(MANIFEST)
    subjects = subjects_of_manifest(load(str(tmp_path / "kernels.toml")))
    assert len(subjects) == 6
    result = verify_variant(subjects[number], VerifyOptions(seed=number))
    assert result.status == "verified", [finding.detail for finding in result.findings]

"""A matrix product through block pointers: verified, and loaded by tensor copies on Hopper."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.package.manifest.read import load
from aotc.package.verify.subjects import VerifyOptions, subjects_of_manifest
from aotc.package.verify.variants import verify_variant

SOURCE = """
import triton
import triton.language as tl


@triton.jit
def multiply(a_ptr, b_ptr, c_ptr, M, N, K, BLOCK: tl.constexpr, UPWARD: tl.constexpr):
    row, column = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    last = 0 if UPWARD else (tl.cdiv(K, BLOCK) - 1) * BLOCK
    a = tl.make_block_ptr(a_ptr, (M, K), (K, 1), (row, last), (BLOCK, BLOCK), (1, 0))
    b = tl.make_block_ptr(b_ptr, (K, N), (N, 1), (last, column), (BLOCK, BLOCK), (1, 0))
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    step = BLOCK if UPWARD else -BLOCK
    for _ in range(0, K, BLOCK):
        acc = tl.dot(tl.load(a, boundary_check=(0, 1)), tl.load(b, boundary_check=(0, 1)), acc)
        a = tl.advance(a, (0, step))
        b = tl.advance(b, (step, 0))
    c = tl.make_block_ptr(c_ptr, (M, N), (N, 1), (row, column), (BLOCK, BLOCK), (1, 0))
    tl.store(c, acc.to(c.dtype.element_ty), boundary_check=(0, 1))
"""

MANIFEST = """
[package]
name = "blocks"
version = "0.1.0"
targets = ["sm_80", "sm_90a"]
[[kernel]]
source = "kernels.py:multiply"
grid = ["cdiv(M, BLOCK)", "cdiv(N, BLOCK)"]
[kernel.signature]
a_ptr = "*bf16:16"
b_ptr = "*bf16:16"
c_ptr = "*bf16:16"
M = "i32"
N = "i32:16"
K = "i32:16"
[kernel.constants]
BLOCK = 64
[kernel.choices]
UPWARD = [true, false]
"""


@pytest.mark.parametrize("number", range(4))
def test_it_computes_what_its_source_says(number: int, tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text(SOURCE)
    (tmp_path / "kernels.toml").write_text(MANIFEST)
    subjects = subjects_of_manifest(load(str(tmp_path / "kernels.toml")))
    assert len(subjects) == 4
    result = verify_variant(subjects[number], VerifyOptions(seed=number))
    assert result.status == "verified", [finding.detail for finding in result.launches]
    is_mapped = "sm_90a" in subjects[number].label
    assert (result.fallback is not None) == is_mapped

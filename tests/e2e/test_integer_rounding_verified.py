"""Integers beyond fp32's precision are rounded once, with or without a native instruction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aotc.ir.types import ScalarType
from aotc.verify.checks import input_data
from aotc.verify.checks.contents import Contents
from aotc.verify.interpreter.numerics import dtype_of
from tests.support.verified import check_verified

SOURCE = """
import triton
import triton.language as tl


@triton.jit
def convert(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0)
    tl.store(out_ptr + at, x.to(out_ptr.dtype.element_ty), mask=at < n)
"""
MANIFEST = """
[package]
name = "integers"
version = "0.1.0"
targets = ["{target}"]
[[kernel]]
source = "kernels.py:convert"
grid = ["cdiv(n, BLOCK)"]
configs = {{ num_warps = [4] }}
[kernel.signature]
x_ptr = "*{source}:16"
out_ptr = "*{wanted}:16"
n = "i32"
[kernel.constants]
BLOCK = 128
"""


def _near_ties(element: ScalarType, seed: int) -> Contents:
    """Return integers next to a tie of bf16, where fp32 rounds onto the tie."""
    top = element.bits - 1
    ties = [(1 << bit) + (1 << (bit - 8)) for bit in range(24, top)]
    ties += [tie + (1 << (tie.bit_length() - 8)) for tie in ties]
    numbers = [tie + off for tie in ties for off in (-1, 0, 1)]
    numbers += [0, 1, 255, 257, (1 << top) - 1]
    if element.is_signed:
        numbers += [-number for number in numbers] + [-(1 << top)]
    chosen = np.random.default_rng(seed).choice(np.array(numbers, dtype_of(element)), 4096)
    return Contents(chosen, seed)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("scalar", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("source", ["i32", "u32", "i64", "u64"])
def test_an_integer_is_rounded_once(
    source: str, scalar: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_data, "integers", _near_ties)
    text = MANIFEST.format(target=target, source=source, wanted=scalar)
    check_verified(tmp_path, SOURCE, text)

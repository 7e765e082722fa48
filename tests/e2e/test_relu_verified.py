"""Kernels with maxima and selects, of every float type: verified on special values, too."""

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
def relu(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(out_ptr + at, tl.maximum(x, 0.0), mask=at < n)


@triton.jit
def relu_where(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(out_ptr + at, tl.where(x > 0, x, 0.0), mask=at < n)


@triton.jit
def clipped(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    y = tl.clamp(x, -0.0, 6.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(out_ptr + at, y, mask=at < n)


@triton.jit
def signs(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(out_ptr + at, tl.where(at % 2 == 0, -x, tl.abs(x)), mask=at < n)


@triton.jit
def narrowed(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    # The largest, the least of a row and a ReLU, in fp32 and narrowed.
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0).to(tl.float32)
    y = tl.minimum(tl.maximum(x, 0.0), tl.max(x, 0)) - tl.min(x, 0)
    tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), mask=at < n)
"""
MANIFEST = """
[package]
name = "relu"
version = "0.1.0"
targets = ["{target}"]
[[kernel]]
source = "kernels.py:{name}"
grid = ["cdiv(n, BLOCK)"]
configs = {{ num_warps = [4] }}
[kernel.signature]
x_ptr = "*{element}:16"
out_ptr = "*{element}:16"
n = "i32"
[kernel.constants]
BLOCK = 128
"""


def _bits_of_every_kind(element: ScalarType, seed: int) -> Contents:
    """Return special numbers and random bits, half and half; of fp8 all numbers."""
    rng, dtype = np.random.default_rng(seed), dtype_of(element)
    raw = np.frombuffer(rng.bytes(4096 * dtype.itemsize), dtype)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 6.0, 2.0**-9], np.float64)
    with np.errstate(all="ignore"):
        chosen = rng.choice(special, 4096).astype(dtype)
        usual = rng.standard_normal(4096).astype(dtype)
    return Contents(np.concatenate([raw, np.where(rng.random(4096) < 0.5, chosen, usual)]), seed)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("element", ["fp16", "bf16", "fp32", "fp64", "fp8e4nv", "fp8e5"])
@pytest.mark.parametrize("name", ["relu", "relu_where", "clipped", "signs", "narrowed"])
def test_a_choice_is_verified(
    name: str, element: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_data, "floats", _bits_of_every_kind)
    text = MANIFEST.format(target=target, name=name, element=element)
    check_verified(tmp_path, SOURCE, text)

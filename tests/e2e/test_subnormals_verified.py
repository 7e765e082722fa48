"""Functions of subnormal numbers: interpreter, emulator and docs/reference/language.md agree."""

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
def compute(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=1.0)
    y = tl.load(y_ptr + at, mask=at < n, other=1.0)
    tl.store(out_ptr + at, {expression}, mask=at < n)
"""
MANIFEST = """
[package]
name = "subnormals"
version = "0.1.0"
targets = ["sm_90a"]
[[kernel]]
source = "kernels.py:compute"
grid = ["cdiv(n, BLOCK)"]
configs = {{ num_warps = [4] }}
[kernel.signature]
x_ptr = "*{element}:16"
y_ptr = "*{element}:16"
out_ptr = "*{element}:16"
n = "i32"
[kernel.constants]
BLOCK = 128
"""
IN_FP32 = ("exp2", "exp", "log", "log2", "sqrt", "sqrt_rn", "rsqrt", "sin", "cos", "erf", "floor")
EXPRESSIONS = (
    *(f"tl.{name}(x)" for name in IN_FP32),
    *("x % y", "x / y", "tl.div_rn(x, y)", "tl.fma(x, y, x)", "x * y", "x + y", "tl.sigmoid(x)"),
)


def _small(element: ScalarType, seed: int) -> Contents:
    """Return subnormal numbers, their neighbours, and exponents with subnormal powers."""
    rng, dtype = np.random.default_rng(seed), dtype_of(element)
    least = 2.0 ** (-149 if element.bits == 32 else -133 if element.name == "bf16" else -24)
    tiny = rng.integers(-300, 300, 2048) * least
    near = rng.uniform(-4, 4, 2048) * 2.0**-126
    powers = rng.uniform(-150, -85, 2048)
    usual = rng.standard_normal(2048)
    values = np.concatenate([tiny, near, powers, usual])
    return Contents(rng.permutation(values).astype(dtype), seed)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_subnormal_numbers_are_verified(
    expression: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _verify(expression, "fp32", tmp_path, monkeypatch)


@pytest.mark.parametrize("element", ["fp16", "bf16"])
@pytest.mark.parametrize("expression", ["x % y", "x / y", "x * y", "tl.sqrt(x.to(tl.float32))"])
def test_subnormal_numbers_of_16_bits_are_verified(
    expression: str, element: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _verify(expression, element, tmp_path, monkeypatch)


def _verify(expression: str, element: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_data, "floats", _small)
    check_verified(folder, SOURCE.format(expression=expression), MANIFEST.format(element=element))

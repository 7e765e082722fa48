"""`enable_fp_fusion`: product and sum become one instruction with one rounding, or not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aotc.compiler import autotune_configs
from aotc.ir.diagnostics import ManifestError
from aotc.package.manifest.read import load
from aotc.package.manifest.variant_grid import expand
from aotc.stages import stage_text

_SOURCE = """import triton
import triton.language as tl

@triton.jit
def k(x, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = tl.load(x + i)
    tl.store(y + i, a * a + 1.5)
    tl.store(y + BLOCK + i, tl.fma(a, a, a))
"""
_MANIFEST = """[package]
name = "p"
version = "0.1.0"
targets = ["sm_90a"]
[[kernel]]
source = "k.py:k"
grid = ["1"]
enable_fp_fusion = {}
[kernel.signature]
x = "*fp32"
y = "*fp32"
[kernel.constants]
BLOCK = 32
"""


def _load(folder: Path, value: str) -> str:
    (folder / "k.py").write_text(_SOURCE)
    (folder / "kernels.toml").write_text(_MANIFEST.format(value))
    manifest = load(str(folder / "kernels.toml"))
    (variant,) = expand(manifest.kernels[0], manifest.targets, autotune_configs).variants
    return stage_text(replace(variant.request), "ptx")


@pytest.mark.parametrize(("value", "fused", "apart"), [("true", 2, 0), ("false", 1, 1)])
def test_products_are_fused_unless_the_kernel_says_no(
    tmp_path: Path, value: str, fused: int, apart: int
) -> None:
    ptx = _load(tmp_path, value)
    assert ptx.count("fma.rn") == fused
    assert ptx.count("mul.rn") == apart
    assert ptx.count("add.rn.f32") + ptx.count("add.rn.ftz.f32") == apart


def test_it_is_true_or_false(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="expected true or false for 'enable_fp_fusion', got"):
        _load(tmp_path, "1")

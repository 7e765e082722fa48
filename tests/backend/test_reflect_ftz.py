"""`enable_reflect_ftz`: whether libdevice's functions flush subnormals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aotc
from aotc.compiler import autotune_configs
from aotc.package.manifest.read import load
from aotc.package.manifest.variant_grid import expand
from aotc.stages import stage_text
from aotc.verify.emulator.run import emulate

SOURCE = """import triton
import triton.language as tl
from triton.language.extra import libdevice

@triton.jit
def k(x, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, libdevice.log1p(tl.load(x + i)))
"""
MANIFEST = """[package]
name = "p"
version = "0.1.0"
targets = ["sm_90a"]
[[kernel]]
source = "k.py:k"
grid = ["1"]
enable_reflect_ftz = {}
signature = {{ x = "*fp32", y = "*fp32" }}
constants = {{ BLOCK = 32 }}
"""


@pytest.mark.parametrize(("value", "flushes"), [("true", True), ("false", False)])
def test_the_manifest_decides(tmp_path: Path, value: str, flushes: bool) -> None:
    (tmp_path / "k.py").write_text(SOURCE)
    (tmp_path / "kernels.toml").write_text(MANIFEST.format(value))
    manifest = load(str(tmp_path / "kernels.toml"))
    (variant,) = expand(manifest.kernels[0], manifest.targets, autotune_configs).variants
    assert (".ftz" in stage_text(variant.request, "ptx")) is flushes


@pytest.mark.parametrize("flushes", [True, False])
def test_a_subnormal(flushes: bool) -> None:
    compiled_kernel = aotc.compile(
        "k",
        source=SOURCE,
        signature={"x": "*fp32", "y": "*fp32"},
        constants={"BLOCK": 32},
        enable_reflect_ftz=flushes,
    )
    x, y = np.full(32, 1e-40, np.float32), np.full(32, -1, np.float32)
    emulate(
        compiled_kernel.asm["ptx"],
        (1, 1, 1),
        [x, y],
        shared_bytes=compiled_kernel.metadata.shared_bytes,
    )
    np.testing.assert_array_equal(y, 0 if flushes else x)


def test_fusion_may_be_turned_off_as_well() -> None:
    source = SOURCE.replace("libdevice.log1p(tl.load(x + i))", "tl.load(x + i) * 3.0 + 1.5")
    signature, constants = {"x": "*fp32", "y": "*fp32"}, {"BLOCK": 32}
    for fuses in (True, False):
        compiled_kernel = aotc.compile(
            "k",
            source=source,
            signature=signature,
            constants=constants,
            enable_fp_fusion=fuses,
        )
        assert ("fma.rn" in compiled_kernel.asm["ptx"]) is fuses

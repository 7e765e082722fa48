"""Kernels that take tensor maps from memory, which the manifest says the tensors of."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from aotc.compiler import CompileRequest, PtxKernel, compile_ptx
from aotc.package.manifest import load
from aotc.package.verify import VariantResult, verify_variant
from aotc.package.verify_subjects import subjects_of_manifest

pytestmark = pytest.mark.usefixtures("one_worker")

_SOURCE = """
import triton
import triton.language as tl

@triton.jit
def turned(maps, out, n, H: tl.constexpr, W: tl.constexpr):
    p = tl.program_id(0)
    d = tl.reinterpret_tensor_descriptor(maps + p * 128, [H, W], tl.float16)
    r = tl.arange(0, H)[:, None]
    c = tl.arange(0, W)[None, :]
    for at in range(0, n, H):
        v = d.load([at, W])
        tl.store(out + (p * n + at + r) * W + c, v, mask=at + r < n)

@triton.jit
def written(maps, x, H: tl.constexpr, W: tl.constexpr):
    d = tl.reinterpret_tensor_descriptor(maps, [H, W], tl.float32)
    r = tl.arange(0, H)[:, None]
    c = tl.arange(0, W)[None, :]
    d.store([4, 0], tl.load(x + r * W + c) + 1)
"""
_MANIFEST = """
[package]
name = "demo"
version = "0.1.0"
targets = ["sm_90a"]
[[kernel]]
source = "kernels.py:turned"
grid = ["3"]
signature = { maps = "*i8:16", out = "*fp16", n = "i32" }
constants = { H = 8, W = 64 }
[kernel.verify]
TURNED
[[kernel]]
source = "kernels.py:written"
grid = ["1"]
signature = { maps = "*i8:16", x = "*fp32" }
constants = { H = 8, W = 32 }
[kernel.verify]
maps = { maps_of = "fp32", shape = [10, 32] }
"""
_MAPS = 'maps = { maps_of = "fp16", shape = ["n", 104], count = 3 }'


def _result(
    folder: Path,
    name: str,
    lines: str = _MAPS,
    compiler: Callable[[CompileRequest], PtxKernel] = compile_ptx,
) -> VariantResult:
    (folder / "kernels.py").write_text(_SOURCE)
    (folder / "kernels.toml").write_text(_MANIFEST.replace("TURNED", lines))
    (subject,) = subjects_of_manifest(load(str(folder / "kernels.toml")), [name])
    return verify_variant(subject, compiler=compiler)


@pytest.mark.parametrize("name", ["turned", "written"])
def test_what_goes_through_maps_in_memory_is_verified(name: str, tmp_path: Path) -> None:
    result = _result(tmp_path, name)
    assert result.status == "verified", [finding.detail for finding in result.findings]


def test_without_a_word_on_maps_nothing_is_proven(tmp_path: Path) -> None:
    result = _result(tmp_path, "turned", "n = [8]")
    assert result.status == "unverified"
    assert "help: [kernel.verify] says what maps are of" in result.findings[0].detail


def test_maps_of_another_type_are_told(tmp_path: Path) -> None:
    result = _result(tmp_path, "turned", _MAPS.replace("fp16", "fp32"))
    assert result.status == "unverified"
    assert "takes no map of 2 axes of fp32 from memory" in result.findings[0].detail


def test_a_planted_bug_behind_a_map_is_found(tmp_path: Path) -> None:
    def compiler(request: CompileRequest) -> PtxKernel:
        made = compile_ptx(request)
        ptx, count = re.subn(
            r"(cp\.async\.bulk\.tensor.*\{)([^{},]+), ([^{},]+)\}", r"\1\3, \2}", made.ptx
        )
        assert count
        return replace(made, ptx=ptx)

    assert _result(tmp_path, "turned", compiler=compiler).status == "wrong"

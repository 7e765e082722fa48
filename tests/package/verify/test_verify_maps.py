"""Kernels that use or store tensor maps in memory, of tensors described by the manifest."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from aotc.compiler import CompileRequest, PtxKernel, compile_ptx
from aotc.package.manifest.read import load
from aotc.package.verify.subjects import subjects_of_manifest
from aotc.package.verify.variants import VariantResult, verify_variant

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

@triton.jit
def described(p, maps, h, w, H: tl.constexpr, W: tl.constexpr):
    g = tl.program_id(0)
    tl.extra.cuda.experimental_device_tensormap_create2d(
        desc_ptr=maps + g * 128, global_address=p + g * h * w, load_size=[H, W],
        global_size=[h, w], element_ty=tl.float16,
    )

@triton.jit
def described_each(ptrs, rows, maps, H: tl.constexpr, W: tl.constexpr):
    g = tl.program_id(0)
    p = tl.load(ptrs + g).to(tl.pointer_type(tl.bfloat16))
    tl.extra.cuda.experimental_device_tensormap_create2d(
        desc_ptr=maps + g * 128, global_address=p, load_size=[H, W],
        global_size=[tl.load(rows + g), W], element_ty=tl.bfloat16,
    )
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
[[kernel]]
source = "kernels.py:described"
grid = ["3"]
signature = { p = "*fp16PROMISE", maps = "*i8:16", h = "i32", w = "i32" }
constants = { H = 16, W = 64 }
[[kernel]]
source = "kernels.py:described_each"
grid = ["3"]
signature = { ptrs = "*i64", rows = "*i32", maps = "*i8:16" }
constants = { H = 8, W = 512 }
[kernel.verify]
ptrs = { pointers_to = "bf16", count = 3 }
rows = { low = 1, high = 100 }
"""
_MAPS = 'maps = { maps_of = "fp16", shape = ["n", 104], count = 3 }'


def _result(
    folder: Path,
    name: str,
    lines: str = _MAPS,
    compiler: Callable[[CompileRequest], PtxKernel] = compile_ptx,
    promise: str = ":16",
) -> VariantResult:
    (folder / "kernels.py").write_text(_SOURCE)
    (folder / "kernels.toml").write_text(
        _MANIFEST.replace("TURNED", lines).replace("PROMISE", promise)
    )
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


def _edited(pattern: str, new: str) -> Callable[[CompileRequest], PtxKernel]:
    def compiler(request: CompileRequest) -> PtxKernel:
        kernel = compile_ptx(request)
        ptx, count = re.subn(pattern, new, kernel.ptx)
        assert count
        return replace(kernel, ptx=ptx)

    return compiler


def test_a_planted_bug_behind_a_map_is_found(tmp_path: Path) -> None:
    swapped = _edited(r"(cp\.async\.bulk\.tensor.*\{)([^{},]+), ([^{},]+)\}", r"\1\3, \2}")
    assert _result(tmp_path, "turned", compiler=swapped).status == "wrong"


@pytest.mark.parametrize("name", ["described", "described_each"])
def test_maps_for_other_kernels_are_verified(name: str, tmp_path: Path) -> None:
    result = _result(tmp_path, name)
    assert result.status == "verified", [finding.detail for finding in result.findings]
    assert all(finding.num_stored == 3 * 128 for finding in result.findings)


@pytest.mark.parametrize(
    ("pattern", "new"),
    [
        (r"(global_dim\S+ \[[^]]+\]), 0, (%r\d+)", r"\1, 1, \2"),
        (r"(box_dim\S+ \[[^]]+\], 1), 16", r"\1, 8"),
        (r"(swizzle_mode\S+ \[[^]]+\]), 3", r"\1, 2"),
        (r"(elemtype\S+ \[[^]]+\]), 6", r"\1, 10"),
        (r"(fill_mode\S+ \[[^]]+\]), 0", r"\1, 1"),
        (r"(tensormap\.replace\.tile\.global_address\S+ \[[^]]+\], %rd\d+;)", ""),
        (r"(tensormap\.cp_fenceproxy\S+ \[%rd\d+)\]", r"\1+128]"),
    ],
)
def test_a_wrong_map_for_other_kernels_is_found(pattern: str, new: str, tmp_path: Path) -> None:
    assert _result(tmp_path, "described", compiler=_edited(pattern, new)).status == "wrong"


def test_what_no_map_holds_is_told(tmp_path: Path) -> None:
    result = _result(tmp_path, "described", promise="")
    assert result.status == "partly verified"
    details = [finding.detail for finding in result.findings if finding.detail]
    assert details
    assert all("no multiple of 16 bytes" in detail for detail in details)
    assert all("help: promise what the map needs" in detail for detail in details)

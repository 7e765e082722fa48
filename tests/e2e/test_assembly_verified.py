"""Kernels with inline assembly: they assemble on all targets and match their tile IR."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aotc.compiler import CompileRequest, PtxKernel, compile_kernel, compile_ptx
from aotc.ir.diagnostics import CompileError
from aotc.package.manifest.read import parse
from aotc.package.verify.subjects import subjects_of_manifest
from aotc.package.verify.variants import VariantResult, verify_variant

SOURCE = Path(__file__).parents[1] / "support" / "assembly_kernels.py"
SIGNATURES = {
    "tanh_gelu": {"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32"},
    "unpack_int4": {"x_ptr": "*u8", "low_ptr": "*i16", "high_ptr": "*i16", "n": "i32"},
    "scale_pairs": {"x_ptr": "*bf16", "y_ptr": "*bf16", "out_ptr": "*bf16", "n": "i32"},
    "differences": {"x_ptr": "*u8", "y_ptr": "*u8", "out_ptr": "*u8", "n": "i32"},
    "unpacked_product": {"a_ptr": "*i16", "b_ptr": "*fp16", "out_ptr": "*fp32"},
    "timed": {"x_ptr": "*fp32", "out_ptr": "*fp32", "time_ptr": "*i64", "n": "i32"},
}
TARGETS = ["sm_80", "sm_90a", "sm_100a"]


def request(
    name: str, target: str, block: int, source: Path = SOURCE, **signature: str
) -> CompileRequest:
    types = signature or SIGNATURES[name]
    return CompileRequest(str(source), name, tuple(types.items()), (("BLOCK", block),), target)


def verified(
    name: str, target: str, block: int, source: Path = SOURCE, **options: Any
) -> VariantResult:
    signature = SIGNATURES.get(name, {"x_ptr": "*i32"})
    lines = [
        f'[package]\nname = "demo"\nversion = "0.1.0"\ntargets = ["{target}"]\n[[kernel]]',
        f'source = "{source.as_posix()}:{name}"',
        'grid = ["cdiv(n, BLOCK)"]' if "n" in signature else 'grid = ["1"]',
        "[kernel.signature]",
        *(f'{argument} = "{kind}"' for argument, kind in signature.items()),
        f"[kernel.constants]\nBLOCK = {block}",
    ]
    (subject,) = subjects_of_manifest(parse("\n".join(lines), "kernels.toml"))
    return verify_variant(subject, **options)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", SIGNATURES)
def test_assembles(name: str, target: str) -> None:
    compiled = compile_kernel(request(name, target, 64))
    assert compiled.metadata.spill_bytes == 0


@pytest.mark.parametrize(("target", "block"), [("sm_80", 32), ("sm_90a", 64), ("sm_100a", 512)])
@pytest.mark.parametrize("name", [name for name in SIGNATURES if name != "timed"])
def test_verified(name: str, target: str, block: int) -> None:
    if name == "unpacked_product":
        block = min(block, 64)
    result = verified(name, target, block)
    assert result.status == "verified", result
    assert {finding.status for finding in result.findings} == {"right"}


def test_a_wrong_lowering_is_found() -> None:
    def compiler(request: CompileRequest) -> PtxKernel:
        kernel = compile_ptx(request)
        assert "0x0F0F0F0F" in kernel.ptx
        return replace(kernel, ptx=kernel.ptx.replace("0x0F0F0F0F", "0x070F0F07"))

    result = verified("unpack_int4", "sm_80", 128, compiler=compiler)
    assert result.status == "wrong"
    assert "elements are wrong" in result.findings[-1].detail


def test_what_reads_clocks_is_not_verified() -> None:
    result = verified("timed", "sm_90a", 64)
    assert result.status == "unverified"
    ran = [finding for finding in result.findings if all(finding.grid)]
    assert ran
    assert all("reads %globaltimer" in finding.detail for finding in ran)


def test_assembly_that_may_do_anything_stays_where_it_is() -> None:
    ptx = compile_ptx(request("timed", "sm_90a", 64)).ptx
    instructions = re.findall(r"globaltimer|ld\.global|st\.global", ptx)
    assert instructions == ["globaltimer", "ld.global", "st.global", "globaltimer", "st.global"]


def test_what_the_emulator_cannot_read_is_the_users(tmp_path: Path) -> None:
    source = tmp_path / "bad.py"
    source.write_text(BAD.replace("TEXT", "mov.b32 $0, $1; #"))
    with pytest.raises(CompileError, match="the emulator refuses this assembly") as caught:
        verified("bad", "sm_90a", 32, source=source)
    assert caught.value.loc is not None


# ---- invalid assembly -------------------------------------------------------------------------

BAD = """
import triton
import triton.language as tl

@triton.jit
def bad(x_ptr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    x = tl.inline_asm_elementwise("TEXT", "=r,r", [x], tl.int32, True, 1)
    tl.store(x_ptr + tl.arange(0, BLOCK), x)
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("banana.b32 $0, $1;", "ptxas refuses this assembly"),
        ("mov.b32 $0, $1", "ptxas refuses"),
        ("mov.b32 $0, nothing;", "ptxas refuses this assembly: Arguments mismatch"),
        ("{ mov.b32 $0, $1;", "ptxas refuses the code after this assembly"),
        (".reg .b32 t; mov.b32 $0, $1;", "ptxas refuses this assembly"),
    ],
)
def test_ptxas_refuses_the_users_assembly(tmp_path: Path, text: str, reason: str) -> None:
    source = tmp_path / "bad.py"
    source.write_text(BAD.replace("TEXT", text))
    with pytest.raises(CompileError, match=reason) as caught:
        compile_kernel(request("bad", "sm_90a", 512, source, x_ptr="*i32"))
    assert caught.value.loc is not None
    assert caught.value.loc.line == 8
    assert "bug" not in caught.value.render()


def test_a_target_may_lack_an_instruction() -> None:
    with pytest.raises(CompileError, match="ptxas refuses this assembly"):
        compile_kernel(request("needs_hopper", "sm_80", 64, x_ptr="*i32"))

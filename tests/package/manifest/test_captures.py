"""`[kernel.captures]`: variables of the functions around a kernel, from the manifest to the compiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.compiler import autotune_configs, translate_request
from aotc.ir.diagnostics import ManifestError
from aotc.ir.text import print_kernel
from aotc.package.manifest.read import parse
from aotc.package.manifest.variant_grid import expand
from aotc.target import parse as parse_target

SOURCE = """
import triton
import triton.language as tl
def make(BLOCK, dtype):
    HALF = BLOCK // 2
    @triton.jit
    def k(p):
        tl.store(p + tl.arange(0, HALF), tl.full((HALF,), 1, dtype))
        other = 1
    return k
@triton.jit
def plain(p): tl.store(p, 1)
"""
HEAD = '[package]\nname = "p"\nversion = "1.0.0"\ntargets = ["sm_90a"]\n'


@pytest.fixture
def manifest(tmp_path: Path) -> str:
    (tmp_path / "ops.py").write_text(SOURCE)
    return str(tmp_path / "k.toml")


def table(captures: str, source: str = "make.k") -> str:
    return (
        f'{HEAD}[[kernel]]\nsource = "ops.py:{source}"\n[kernel.signature]\np = "*fp32:16"\n'
        f"[kernel.captures]\n{captures}\n"
    )


@pytest.mark.parametrize(("block", "dtype"), [(64, "fp16"), (32, "fp32")])
def test_captures_reach_the_compiler(manifest: str, block: int, dtype: str) -> None:
    (kernel,) = parse(table(f'BLOCK = {block}\ndtype = "{dtype}"'), manifest).kernels
    (variant,) = expand(kernel, [parse_target("sm_90a")], autotune_configs).variants
    assert dict(variant.request.captured) == {"BLOCK": block, "dtype": dtype}
    text = print_kernel(translate_request(variant.request).kernel)
    assert f"<{block // 2}x" in text
    assert ("fp16" in text) is (dtype == "fp16")


@pytest.mark.parametrize(
    ("captures", "source", "message", "remedy"),
    [
        (
            "BLOK = 64",
            "make.k",
            "expected a variable of the functions around make.k, got 'BLOK'",
            "did you mean 'BLOCK'?",
        ),
        (
            "other = 64",
            "make.k",
            "expected a variable of the functions around make.k, got 'other'",
            "their variables are BLOCK, dtype, HALF",
        ),
        (
            "p = 1",
            "plain",
            "expected a variable of the functions around plain, got 'p'",
            "the kernel is in no function",
        ),
        ("BLOCK = [64]", "make.k", "expected a", ""),
    ],
)
def test_captures_that_are_none(
    manifest: str, captures: str, source: str, message: str, remedy: str
) -> None:
    with pytest.raises(ManifestError) as error:
        parse(table(captures, source), manifest)
    assert message in str(error.value)
    assert remedy in str(error.value)
    assert "k.toml:10" in str(error.value) or "k.toml:9" in str(error.value)

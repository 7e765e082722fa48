"""`tensordesc<…,l2=BYTES>`: the L2 promotion of the tensor map that the launcher encodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aotc import cli
from aotc.compiler import compile_variant
from aotc.ir.diagnostics import ManifestError
from aotc.package.archive import file as archives
from aotc.package.manifest.argument_type import parse

pytestmark = pytest.mark.usefixtures("one_worker")

SOURCE = """\
import triton
import triton.language as tl


@triton.jit
def copy(x, y, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK
    y.store([row, 0], x.load([row, 0]))
"""
MANIFEST = """\
[package]
name = "demo"
version = "0.1.0"
targets = ["sm_90a"]
[[kernel]]
source = "k.py:copy"
[kernel.signature]
x = "tensordesc<bf16[BLOCK,64]{options}>"
y = "tensordesc<bf16[BLOCK,64]>"
[kernel.constants]
BLOCK = 64
"""


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Build with options of a descriptor; return the variant."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "k.py").write_text(SOURCE)

    def build(options: str) -> Any:
        (tmp_path / "kernels.toml").write_text(MANIFEST.format(options=options))
        command = ["build", "--cache-dir", "cache", "-j", "1", "-q", "--with-ptx"]
        assert cli.run(command, compile_variant) == 0
        (kernel,) = archives.read(Path("dist/demo.aotc")).kernels
        return kernel.variants[0]

    return build


@pytest.mark.parametrize(("size", "code"), [(0, 0), (64, 1), (128, 2), (256, 3)])
def test_the_map_has_the_promotion_and_the_code_stays(build: Any, size: int, code: int) -> None:
    plain, chosen = build(""), build(f", l2={size}")
    promotions = [tensor_map.l2_promotion for tensor_map in chosen.tensor_maps]
    assert promotions == [code, plain.tensor_maps[1].l2_promotion]
    assert chosen.cubin == plain.cubin
    assert cli.run(["explain", "dist/demo.aotc", "-q"]) == 0


def test_it_is_verified_like_any_other(build: Any) -> None:
    build(",nan,l2=64")
    assert cli.run(["verify", "dist/demo.aotc", "-j", "1", "-q"]) == 0


def test_a_size_that_no_map_has_is_told() -> None:
    assert parse("tensordesc<bf16[64, 64] , nan , l2 = 256>").l2_bytes == 256
    with pytest.raises(ManifestError, match="expected l2 = 0, 64, 128, 256, got"):
        parse("tensordesc<bf16[64,64],l2=32>")

"""Dots with only some columns stored: every type, width and operand path.

The output starts with the last multiplied column. So too narrow an instruction shows in the output's
first column, for every width.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from aotc.compiler import CompileRequest, PtxKernel, compile_ptx
from aotc.package.manifest.read import load
from aotc.package.verify.subjects import VerifyOptions, subjects_of_manifest
from aotc.package.verify.variants import verify_variant
from tests.support.column_parts import PARTS_OF_COLUMNS

SOURCE = f"""{PARTS_OF_COLUMNS}

@triton.jit
def multiply(
    a, b, out,
    ACC: tl.constexpr, PART: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    COLUMNS: tl.constexpr, IMPRECISE: tl.constexpr, HALVED: tl.constexpr,
):
    for tile in tl.range(
        tl.program_id(0), tl.cdiv(a.shape[0], BM) * tl.cdiv(out.shape[1], COLUMNS), tl.num_programs(0)
    ):
        row = tile % tl.cdiv(a.shape[0], BM) * BM
        column = tile // tl.cdiv(a.shape[0], BM) * COLUMNS
        acc = tl.zeros((BM, BN), ACC)
        for k in range(0, a.shape[1], BK):
            left = a.load([row, k])
            if HALVED:
                left = (left.to(tl.float32) * 0.5).to(left.dtype)
            right = b.load([column, k]).T
            acc = tl.dot(left, right, acc, max_num_imprecise_acc=IMPRECISE, out_dtype=ACC)
        parts = parts_of_columns(acc, PART)
        COUNT: tl.constexpr = COLUMNS // PART
        for part in tl.static_range(COUNT):
            out.store([row, column + part * PART], parts[COUNT - 1 - part].to(out.dtype))
"""


@dataclass(frozen=True)
class Case:
    """A build; `part` columns are stored at a time."""

    columns: int
    bn: int
    element: str = "bf16"
    acc: str = "fp32"
    out: str = "fp32"
    part: int = 8
    bm: int = 64
    bk: int = 64
    imprecise: int = 0
    halved: bool = False
    config: str = "num_stages = 2"

    def manifest(self) -> str:
        """Return the manifest of the build."""
        return f"""
[package]
name = "columns"
version = "0.1.0"
targets = ["sm_90a"]
[[kernel]]
source = "kernels.py:multiply"
grid = ["2"]
[kernel.signature]
a = "tensordesc<{self.element}[{self.bm},{self.bk}]>"
b = "tensordesc<{self.element}[{self.bn},{self.bk}]>"
out = "tensordesc<{self.out}[{self.bm},{self.part}]>"
[kernel.constants]
ACC = "{self.acc}"
PART = {self.part}
BM = {self.bm}
BN = {self.bn}
BK = {self.bk}
COLUMNS = {self.columns}
IMPRECISE = {self.imprecise}
HALVED = {str(self.halved).lower()}
[[kernel.config]]
{self.config}
"""


CASES = {
    "n8": Case(8, 32),
    "n24": Case(24, 32),
    "n72": Case(72, 128),
    "n112": Case(112, 128, part=16),
    "n176": Case(176, 256, part=16, bk=32),
    "n248": Case(248, 256, bk=32),
    "fp16 sums": Case(40, 64, "fp16", "fp16", "fp16"),
    "fp8": Case(56, 64, "fp8e4nv", bk=128),
    "fp8 in fewer bits": Case(56, 64, "fp8e5", bk=128, imprecise=32),
    "i8": Case(40, 64, "i8", "i32", "i32", bk=128),
    "whole fp16 sums": Case(64, 64, "fp16", "fp16", "fp16"),
    "whole blocks in many parts": Case(256, 256, bk=32),
    "tf32": Case(24, 32, "fp32", bk=32),
    "a in registers": Case(24, 32, halved=True),
    "two warpgroups": Case(48, 64, part=16, bm=128, config="num_stages = 3\nnum_warps = 8"),
    "rows of two blocks": Case(48, 64, part=16, bm=128, config="num_stages = 3"),
    "two groups": Case(48, 64, part=16, config="num_stages = 3\nnum_consumer_groups = 2"),
    "no producer": Case(48, 64, part=16, config="num_stages = 3\nwarp_specialize = false"),
    "one stage": Case(48, 64, part=16, config="num_stages = 1"),
    "clusters": Case(48, 64, part=16, bm=128, config="num_stages = 3\nnum_ctas = 2"),
    "two boxes": Case(48, 64, part=16, bk=128),
    "tensor cores of one warp": Case(24, 32, config="num_warps = 2"),
}


@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_its_source_says(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    (tmp_path / "kernels.py").write_text(SOURCE)
    (tmp_path / "kernels.toml").write_text(case.manifest())
    kernels: list[PtxKernel] = []

    def compiler(request: CompileRequest) -> PtxKernel:
        kernels.append(compile_ptx(request))
        return kernels[-1]

    (subject,) = subjects_of_manifest(load(str(tmp_path / "kernels.toml")))
    result = verify_variant(subject, VerifyOptions(seed=1), compiler=compiler)
    assert result.status == "verified", [finding.detail for finding in result.launches]
    multiplied = 48 if case.element == "i8" else case.columns
    assert (f".m64n{multiplied}k" in kernels[0].ptx) == (case.config != "num_warps = 2")
    assert (f".m64n{case.bn}k" in kernels[0].ptx) == (case.columns == case.bn)

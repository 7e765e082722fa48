"""The row kernels of kernels/, asked for bulk copies, as `aotc verify` judges them."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.compiler import compile_ptx
from aotc.package.manifest.read import load
from aotc.package.verify.subjects import VerifyOptions, subjects_of_manifest
from aotc.package.verify.variants import verify_variant

KERNELS = Path(__file__).parents[2] / "kernels"
HEAD = """[package]
name = "rows"
version = "0.1.0"
targets = ["sm_90a"]
[[kernel]]
source = "{source}"
grid = ["n_rows"]
[kernel.signature]
stride = "i32:16"
n_rows = "i32"
n_cols = "i32:16"
"""
TAIL = """[kernel.constants]
BLOCK = 1024
{constants}
[kernel.configs]
num_warps = [4]
warp_specialize = [true]
"""
IN_TWO_PASSES = "LOOP = true"
ROWS = {
    "softmax.py:softmax_kernel": ('x_ptr = "*bf16:16"\nout_ptr = "*bf16:16"', IN_TWO_PASSES),
    "softmax.py:cross_entropy_kernel": (
        """logits_ptr = "*fp32:16"
target_ptr = "*i64"
loss_ptr = "*fp32"
lse_ptr = "*fp32"
ignore_index = "i32"
""",
        "",
    ),
    "norm.py:rmsnorm_kernel": (
        'x_ptr = "*fp16:16"\nw_ptr = "*fp16:16"\nout_ptr = "*fp16:16"\neps = "fp32"',
        IN_TWO_PASSES,
    ),
    "rows.py:argmax_rows_kernel": ('x_ptr = "*bf16:16"\nout_ptr = "*i64"', ""),
    "rows.py:quantize_int8_rows_kernel": (
        'x_ptr = "*bf16:16"\nout_ptr = "*i8:16"\nscale_ptr = "*fp32"',
        "",
    ),
}


@pytest.mark.parametrize("kernel", ROWS)
def test_it_computes_what_its_source_says(tmp_path: Path, kernel: str) -> None:
    types, constants = ROWS[kernel]
    text = HEAD.format(source=KERNELS / kernel) + types + "\n" + TAIL.format(constants=constants)
    (tmp_path / "kernels.toml").write_text(text, encoding="utf-8")
    (subject,) = subjects_of_manifest(load(str(tmp_path / "kernels.toml")))
    assert subject.request is not None
    assert "cp.async.bulk.shared::cluster.global" in compile_ptx(subject.request).ptx
    result = verify_variant(subject, VerifyOptions(seed=3))
    assert result.status == "verified", [finding.detail for finding in result.findings]
    assert len(result.findings) > 3

"""`aotc verify` on kernels with programs of several CTAs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aotc.cli import EXIT_DONE, run

KERNELS = Path(__file__).parents[2] / "kernels"
PACKAGE = '[package]\nname = "clusters"\nversion = "0.1.0"\ntargets = ["sm_90a"]\n'

# Rows of A and of the result are divided; B is copied by all CTAs for all.
DESCRIPTORS = """
[[kernel]]
source = "{kernels}/matmul_descriptor.py:matmul_descriptor_kernel"
grid = ["min(3, cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N))"]
signature = {{ a_ptr = "*bf16:16", b_ptr = "*bf16:16", bias_ptr = "*bf16:16", \
residual_ptr = "*bf16:16", c_ptr = "*bf16:16", M = "i32", N = "i32:16", K = "i32:16" }}
constants = {{ ACTIVATION = "silu", HAS_BIAS = true, HAS_RESIDUAL = true, BLOCK_K = 64, GROUP_M = 2 }}
[[kernel.config]]
BLOCK_M = {rows}
BLOCK_N = 64
num_warps = 4
num_stages = {stages}
num_ctas = {ctas}
"""

# With and without the launcher's tensor maps. B is row-major. For 128 columns, a wgmma descriptor has the
# offset of the second 64. Its address contains the CTA's rank in a cluster.
POINTERS = """
[[kernel]]
source = "{kernels}/matmul.py:matmul_kernel"
grid = ["cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N)"]
signature = {{ a_ptr = "*bf16:16", b_ptr = "*bf16:16", bias_ptr = "*bf16:16", \
residual_ptr = "*bf16:16", out_ptr = "*bf16:16", M = "i32", N = "i32:16", K = "i32:16", \
stride_am = "i32:16", stride_ak = "i32=1", stride_bk = "i32:16", stride_bn = "i32=1", \
stride_om = "i32:16", stride_on = "i32=1" }}
constants = {{ GROUP_M = 2, BIAS = true, RESIDUAL = true, ACTIVATION = "silu", EVEN_K = false }}
[[kernel.config]]
BLOCK_M = {rows}
BLOCK_N = {columns}
BLOCK_K = 32
num_warps = 4
num_stages = {stages}
num_ctas = {ctas}
"""

# CTAs split the row, and exchange their partial results.
ROWS = """
[[kernel]]
source = "{kernels}/softmax.py:softmax_kernel"
grid = ["n_rows"]
where = "LOOP or n_cols <= BLOCK"
signature = {{ x_ptr = "*fp32", out_ptr = "*fp32", stride = "i32", n_rows = "i32", n_cols = "i32" }}
[[kernel.config]]
BLOCK = 256
LOOP = {loop}
num_warps = 2
num_ctas = {ctas}
"""

LAYERNORM = """
[[kernel]]
source = "{kernels}/norm.py:layernorm_kernel"
grid = ["n_rows"]
where = "LOOP or n_cols <= BLOCK"
signature = {{ x_ptr = "*bf16", w_ptr = "*bf16", b_ptr = "*bf16", out_ptr = "*bf16", mean_ptr = "*fp32", \
rstd_ptr = "*fp32", stride = "i32", n_rows = "i32", n_cols = "i32", eps = "fp32" }}
[[kernel.config]]
BLOCK = 512
LOOP = {loop}
num_warps = 2
num_ctas = {ctas}
"""

# The stored value is computed beside the reduction, and in a loop over a reloaded row.
RMSNORM = """
[[kernel]]
source = "{kernels}/norm.py:rmsnorm_kernel"
grid = ["n_rows"]
where = "LOOP or n_cols <= BLOCK"
signature = {{ x_ptr = "*bf16:16", w_ptr = "*bf16:16", out_ptr = "*bf16:16", stride = "i32:16", n_rows = "i32", \
n_cols = "i32:16", eps = "fp32" }}
[[kernel.config]]
BLOCK = 1024
LOOP = {loop}
num_warps = 2
num_ctas = {ctas}
"""

# Two values are exchanged at once.
ARGMAX = """
[[kernel]]
source = "{kernels}/rows.py:argmax_rows_kernel"
grid = ["n_rows"]
where = "n_cols > 0"
signature = {{ x_ptr = "*fp32", out_ptr = "*i64", stride = "i32", n_rows = "i32", n_cols = "i32" }}
constants = {{ BLOCK = 128 }}
[[kernel.config]]
num_warps = 2
num_ctas = {ctas}
"""

# Partial results of fewer than 32 bits.
NARROW = """
[[kernel]]
source = "narrow.py:narrow"
grid = ["2"]
signature = {{ x_ptr = "*fp16", y_ptr = "*i8", out_ptr = "*fp16", n_cols = "i32" }}
constants = {{ BLOCK = 128 }}
[[kernel.config]]
num_warps = 1
num_ctas = {ctas}
"""
NARROW_SOURCE = """import triton
import triton.language as tl


@triton.jit
def narrow(x_ptr, y_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    mask = i < n_cols
    at = tl.program_id(0) * n_cols + i
    x = tl.load(x_ptr + at, mask=mask, other=0.0)
    y = tl.load(y_ptr + at, mask=mask, other=0)
    parity = tl.xor_sum(y, axis=0)
    tl.store(out_ptr + at, x - tl.max(x, axis=0) + parity.to(tl.float16), mask=mask)
"""

CASES = {
    "descriptors, columns": (DESCRIPTORS, {"rows": 64, "stages": 2, "ctas": 2}),
    "descriptors, rows of two": (DESCRIPTORS, {"rows": 128, "stages": 3, "ctas": 2}),
    "descriptors, rows of four": (DESCRIPTORS, {"rows": 256, "stages": 2, "ctas": 4}),
    "pointers, rows of two": (POINTERS, {"rows": 128, "columns": 128, "stages": 3, "ctas": 2}),
    "pointers, columns": (POINTERS, {"rows": 64, "columns": 64, "stages": 1, "ctas": 2}),
    "rows": (ROWS, {"ctas": 2, "loop": "false"}),
    "rows of eight": (ROWS, {"ctas": 8, "loop": "false"}),
    "rows in a loop": (ROWS, {"ctas": 4, "loop": "true"}),
    "layer norm": (LAYERNORM, {"ctas": 4, "loop": "false"}),
    "layer norm in a loop": (LAYERNORM, {"ctas": 2, "loop": "true"}),
    "rms norm": (RMSNORM, {"ctas": 4, "loop": "false"}),
    "rms norm in a loop": (RMSNORM, {"ctas": 2, "loop": "true"}),
    "narrow values": (NARROW, {"ctas": 4}),
    "values with their columns": (ARGMAX, {"ctas": 4}),
}


@pytest.mark.usefixtures("one_worker")
@pytest.mark.parametrize("case", CASES)
def test_a_program_of_several_ctas_is_right(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, values = CASES[case]
    manifest = tmp_path / "clusters.toml"
    (tmp_path / "narrow.py").write_text(NARROW_SOURCE)
    manifest.write_text(PACKAGE + text.format(kernels=KERNELS, **values))
    code = run(["verify", str(manifest), "--jobs", "1", "--json"])
    out, err = capsys.readouterr()
    assert code == EXIT_DONE, out + err
    for variant in json.loads(out)["variants"]:
        assert "right" in {launch["status"] for launch in variant["launches"]}

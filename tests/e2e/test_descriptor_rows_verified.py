"""`aotc verify` on gathers and scatters of rows through host and device descriptors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aotc.cli import EXIT_DONE, run

pytestmark = pytest.mark.usefixtures("one_worker")

SOURCE = """
import triton
import triton.language as tl


@triton.jit
def move(src, dst, rows_ptr, n, ROWS: tl.constexpr, COLS: tl.constexpr):
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    rows = tl.load(rows_ptr + at, mask=at < n, other=-1)
    for column in range(0, src.shape[1], COLS):
        dst.scatter(src.gather(rows, column) + 1, at, column)


@triton.jit
def moved_back(src_ptr, out_ptr, rows_ptr, count, width, ROWS: tl.constexpr, COLS: tl.constexpr):
    src = tl.make_tensor_descriptor(src_ptr, [count, width], [width, 1], [1, COLS])
    out = tl.make_tensor_descriptor(out_ptr, [count, width], [width, 1], [1, COLS])
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLS
    out.scatter(src.gather(at, column), tl.load(rows_ptr + at, mask=at < count, other=-1), column)
"""
MANIFEST = """
[package]
name = "rows"
version = "0.1.0"
targets = ["sm_80", "sm_90a"]
[[kernel]]
source = "kernels.py:move"
grid = ["cdiv(n, ROWS)"]
[kernel.signature]
src = "tensordesc<bf16[1,COLS]>"
dst = "tensordesc<bf16[1,COLS]>"
rows_ptr = "*i32:16"
n = "i32"
[kernel.constants]
ROWS = 16
COLS = 32
[kernel.verify]
rows_ptr = { low = -2, high = "src.shape[0] + 2" }
[[kernel]]
source = "kernels.py:moved_back"
grid = ["cdiv(count, ROWS)", "cdiv(width, COLS)"]
[kernel.signature]
src_ptr = "*fp32:16"
out_ptr = "*fp32:16"
rows_ptr = "*i32"
count = "i32"
width = "i32:16?"
[kernel.constants]
ROWS = 8
COLS = 16
[kernel.verify]
in_place = false
rows_ptr = { low = 0, high = "count", distinct = true }
"""


@pytest.mark.parametrize("kernel", ["move", "moved_back"])
def test_rows_are_verified(kernel: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kernels.py").write_text(SOURCE)
    manifest = tmp_path / "rows.toml"
    manifest.write_text(MANIFEST)
    code = run(["verify", str(manifest), "--kernel", kernel, "--jobs", "1", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert code == EXIT_DONE, json.dumps(report)
    states = [variant["status"] for variant in report["variants"]]
    assert states == ["verified"] * {"move": 2, "moved_back": 4}[kernel]

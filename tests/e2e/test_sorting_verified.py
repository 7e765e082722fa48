"""Sorting and the greatest elements, with exchanges in registers, lanes and across warps: verified."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.compiler import CompileRequest, compile_kernel
from aotc.config import Config
from tests.support.verified import check_verified

SOURCE = """
import triton
import triton.language as tl


@triton.jit
def sort_rows(x_ptr, out_ptr, ROWS: tl.constexpr, COLS: tl.constexpr, DOWN: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :]
    tl.store(out_ptr + at, tl.sort(tl.load(x_ptr + at), descending=DOWN))


@triton.jit
def sort_masked(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=float("inf"))
    tl.store(out_ptr + at, tl.sort(x), mask=at < n)


@triton.jit
def greatest(x_ptr, out_ptr, ROWS: tl.constexpr, COLS: tl.constexpr, K: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :]
    to = tl.arange(0, ROWS)[:, None] * K + tl.arange(0, K)[None, :]
    tl.store(out_ptr + to, tl.topk(tl.load(x_ptr + at), K))
"""

ROWS = """
[[kernel]]
source = "kernels.py:{name}"
grid = ["1"]
configs = {{ num_warps = [{num_warps}] }}
[kernel.signature]
x_ptr = "*{kind}:16"
out_ptr = "*{kind}:16"
[kernel.constants]
ROWS = {rows}
COLS = {cols}
"""
MASKED = """
[[kernel]]
source = "kernels.py:sort_masked"
grid = ["1"]
configs = { num_warps = [4] }
[kernel.signature]
x_ptr = "*fp32"
out_ptr = "*fp32"
n = "i32"
[kernel.constants]
BLOCK = 128
"""
TABLES = {
    "few for many threads": ("sort_rows", "fp32", 1, 16, 8, "DOWN = false"),
    "one a thread": ("sort_rows", "i32", 1, 128, 4, "DOWN = true"),
    "across eight warps": ("sort_rows", "fp32", 1, 512, 8, "DOWN = true"),
    "in a warp": ("sort_rows", "i64", 1, 256, 1, "DOWN = false"),
    "rows of warps": ("sort_rows", "i32", 4, 256, 4, "DOWN = false"),
    "rows": ("sort_rows", "bf16", 32, 16, 4, "DOWN = false"),
    "pairs": ("sort_rows", "u8", 64, 2, 4, "DOWN = true"),
    "single ones": ("sort_rows", "fp16", 64, 1, 4, "DOWN = true"),
    "the greatest": ("greatest", "fp32", 1, 512, 4, "K = 8"),
    "the greatest of rows": ("greatest", "fp16", 16, 32, 4, "K = 4"),
    "the one greatest": ("greatest", "u32", 4, 64, 8, "K = 1"),
}


def verify(folder: Path, target: str, table: str) -> None:
    head = f'[package]\nname = "sorting"\nversion = "0.1.0"\ntargets = ["{target}"]\n'
    check_verified(folder, SOURCE, head + table)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("case", TABLES)
def test_rows_are_sorted(case: str, target: str, tmp_path: Path) -> None:
    name, kind, rows, cols, num_warps, constants = TABLES[case]
    table = ROWS.format(name=name, kind=kind, rows=rows, cols=cols, num_warps=num_warps)
    verify(tmp_path, target, table + constants)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_what_is_masked_off_comes_last(target: str, tmp_path: Path) -> None:
    verify(tmp_path, target, MASKED)


@pytest.mark.parametrize(
    ("rows", "cols", "num_warps", "trips"),
    [(32, 64, 4, 0), (1, 1024, 1, 0), (1, 1024, 4, 7), (4, 1024, 4, 2), (64, 32, 8, 0)],
)
def test_only_what_crosses_warps_goes_through_shared_memory(
    rows: int, cols: int, num_warps: int, trips: int, tmp_path: Path
) -> None:
    (tmp_path / "kernels.py").write_text(SOURCE)
    request = CompileRequest(
        source=str(tmp_path / "kernels.py"),
        kernel="sort_rows",
        signature=(("x_ptr", "*fp32:16"), ("out_ptr", "*fp32:16")),
        constants=(("ROWS", rows), ("COLS", cols), ("DOWN", False)),
        target="sm_90a",
        config=Config(num_warps),
    )
    text = compile_kernel(request, keep_asm=True).asm["gpu"]
    assert text.count("gpu.shared_store(") == trips

"""Gathers and histograms through shared memory, alone and among other work: verified."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.verified import check_verified

SOURCE = """
import triton
import triton.language as tl


@triton.jit
def pick(x_ptr, index_ptr, out_ptr, ROWS: tl.constexpr, COLS: tl.constexpr, WANTED: tl.constexpr,
         AXIS: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :]
    if AXIS == 0:
        to = tl.arange(0, WANTED)[:, None] * COLS + tl.arange(0, COLS)[None, :]
    else:
        to = tl.arange(0, ROWS)[:, None] * WANTED + tl.arange(0, WANTED)[None, :]
    x, index = tl.load(x_ptr + at), tl.load(index_ptr + to)
    tl.store(out_ptr + to, tl.gather(x, index, AXIS))


@triton.jit
def reverse(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    # No load of an index: it is computed wherever it is wanted.
    lane = tl.arange(0, BLOCK)
    at = tl.program_id(0) * BLOCK + lane
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    mirrored = tl.gather(x, BLOCK - 1 - lane, 0)
    tl.store(out_ptr + at, mirrored + tl.sum(x), mask=at < n)


@triton.jit
def rounds(x_ptr, out_ptr, count, BLOCK: tl.constexpr):
    # A buffer is read while the next iteration wants to write it.
    lane = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + lane)
    for turn in range(count):
        x = tl.gather(x, lane * 5 + turn, 0) + x
    tl.store(out_ptr + lane, x)


@triton.jit
def count_all(x_ptr, out_ptr, n, BLOCK: tl.constexpr, BINS: tl.constexpr):
    bins = tl.zeros((BINS,), tl.int32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        mask = at < n
        bins += tl.histogram(tl.load(x_ptr + at, mask=mask), BINS, mask)
    tl.store(out_ptr + tl.arange(0, BINS), bins)


@triton.jit
def count_block(x_ptr, out_ptr, BLOCK: tl.constexpr, BINS: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    bins = tl.histogram(x & (2 * BINS - 1), BINS)
    tl.store(out_ptr + tl.arange(0, BINS), tl.cumsum(bins, 0))
"""

PICK = 'x_ptr = "*{0}:16"\nindex_ptr = "*{1}:16"\nout_ptr = "*{0}:16"'
ONE = '["1"]'
BLOCKS = '["cdiv(n, BLOCK)"]'
COUNT = 'x_ptr = "*{0}"\nout_ptr = "*i32:16"\n'
TABLES = {
    "rows": ("pick", ONE, PICK.format("fp32", "i32"), "ROWS=32,COLS=16,WANTED=8,AXIS=0", 4),
    "columns": ("pick", ONE, PICK.format("bf16", "i64"), "ROWS=16,COLS=32,WANTED=64,AXIS=1", 4),
    "bytes": ("pick", ONE, PICK.format("i8", "u8"), "ROWS=8,COLS=64,WANTED=16,AXIS=1", 8),
    "long words": ("pick", ONE, PICK.format("fp64", "i16"), "ROWS=2,COLS=256,WANTED=4,AXIS=1", 1),
    "one row": ("pick", ONE, PICK.format("fp32", "i32"), "ROWS=1,COLS=64,WANTED=4,AXIS=0", 4),
    "a computed index": (
        "reverse", BLOCKS, 'x_ptr = "*fp32"\nout_ptr = "*fp32"\nn = "i32"', "BLOCK=64", 4,
    ),
    "in a loop": ("rounds", ONE, 'x_ptr = "*i32"\nout_ptr = "*i32"\ncount = "i32"', "BLOCK=512", 8),
    "counts of all": ("count_all", ONE, COUNT.format("i32") + 'n = "i32"', "BLOCK=128,BINS=64", 4),
    "counts of few": ("count_block", ONE, COUNT.format("u32"), "BLOCK=16,BINS=256", 8),
    "counts of many": ("count_block", ONE, COUNT.format("i32"), "BLOCK=1024,BINS=2", 1),
}  # fmt: skip
MANIFEST = """
[package]
name = "indexing"
version = "0.1.0"
targets = ["{target}"]
[[kernel]]
source = "kernels.py:{name}"
grid = {grid}
configs = {{ num_warps = [{num_warps}] }}
[kernel.signature]
{signature}
[kernel.constants]
{constants}
"""


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("case", TABLES)
def test_it_computes_what_its_source_says(case: str, target: str, tmp_path: Path) -> None:
    name, grid, signature, constants, num_warps = TABLES[case]
    text = MANIFEST.format(
        target=target,
        name=name,
        grid=grid,
        num_warps=num_warps,
        signature=signature,
        constants=constants.replace(",", "\n"),
    )
    check_verified(tmp_path, SOURCE, text)

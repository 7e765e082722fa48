"""Gathered rows as columns of a dot: unused columns are neither copied nor allocated."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from aotc.compiler import compile_ptx
from aotc.config import Config
from aotc.frontend import translate
from aotc.ir.core import Block, Kernel
from aotc.ir.diagnostics import IRError
from aotc.ir.dialects import thread_copy
from aotc.ir.layout import LinearLayout
from aotc.ir.types import BF16, PointerType, SharedType, TileType
from aotc.schedule.context import Schedule
from aotc.schedule.pipeline import schedule_kernel
from aotc.target import TARGETS
from tests.support.column_parts import PARTS_OF_COLUMNS
from tests.support.descriptors import launch
from tests.support.requests import request_of

SOURCE = f"""{PARTS_OF_COLUMNS}
@triton.jit
def k(a, b, rows, out, K, BLOCK: tl.constexpr, COLUMNS: tl.constexpr):
    row, depth = tl.arange(0, BLOCK), tl.arange(0, 64)
    a_ptrs = a + tl.load(rows + row)[:, None] * K + depth[None, :]
    acc = tl.zeros((64, BLOCK), tl.float32)
    for k in range(0, K, 64):
        x = tl.load(a_ptrs + k, mask=(depth < K - k)[None, :], other=0.0)
        acc = tl.dot(b.load([0, k]), x.T, acc)
        MORE
    parts = parts_of_columns(acc, 8)
    place = out + depth[:, None] * BLOCK + tl.arange(0, 8)[None, :]
    for part in tl.static_range(COLUMNS // 8):
        tl.store(place + part * 8, parts[part])
"""
SIGNATURE = {
    "a": "*bf16:16",
    "b": "tensordesc<bf16[64,64]>",
    "rows": "*i32:16",
    "out": "*fp32:16",
    "K": "i32:16",
}
STEP = 16  # columns copied by four warps at a time


def _scheduled(tmp_path: Path, block: int, columns: int, more: str = "pass") -> Kernel:
    path = tmp_path / "k.py"
    path.write_text(SOURCE.replace("MORE", more))
    constants = {"BLOCK": block, "COLUMNS": columns}
    kernel = translate(str(path), "k", SIGNATURE, constants).kernel
    options = {"num_warps": 4, "num_stages": 3}
    return schedule_kernel(kernel, Schedule(TARGETS["sm_90a"], Config.of(options)))


def _copied(kernel: Kernel) -> tuple[int, int, int]:
    """Return the columns copied, the copies of a thread, and the buffer's unused bytes."""
    (copy,) = (op for op in kernel.walk() if isinstance(op, thread_copy.ThreadLoad))
    assert isinstance(copy.buffer.type, SharedType)
    return copy.num_columns, copy.num_copies, copy.buffer.type.unused_bytes


@pytest.mark.parametrize("columns", [8, 16, 24, 96, 112, 120])
def test_columns_that_no_dot_uses_are_not_copied_and_have_no_room(
    tmp_path: Path, columns: int
) -> None:
    copied = -(-columns // STEP) * STEP
    expected = (copied, copied // STEP, (128 - copied) * 128) if copied < 128 else (0, 8, 0)
    assert _copied(_scheduled(tmp_path, 128, columns)) == expected


def test_what_others_read_is_copied_whole(tmp_path: Path) -> None:
    more = "tl.store(out + 64 * BLOCK + tl.arange(0, BLOCK), tl.sum(x.to(tl.float32), 1))"
    kernel = _scheduled(tmp_path, 128, 96, more)
    copies = [op for op in kernel.walk() if isinstance(op, thread_copy.ThreadLoad)]
    assert all(copy.num_columns == 0 for copy in copies)


def test_an_op_copies_whole_steps() -> None:
    layout = LinearLayout.from_text(
        "#ll<register=[[1,0],[2,0],[4,0],[0,16]] lane=[[8,0],[16,0],[32,0],[0,1],[0,2]]"
        " warp=[[0,4],[0,8]] : [64,32]>"
    )
    content = TileType(PointerType(BF16), (64, 32), layout)
    assert thread_copy.column_step(content) == STEP
    memory = LinearLayout.from_columns(
        [("offset", [1 << bit for bit in range(11)])], (("dim0", 6), ("dim1", 5))
    )
    pointer, buffer = Block().add_arg(content), Block().add_arg(SharedType(BF16, (64, 32), memory))
    thread_copy.SyncThreadLoad(pointer, buffer, vector=8, num_columns=16)
    for columns in (8, 32, 48):
        with pytest.raises(IRError, match=f"copies {columns} columns"):
            thread_copy.SyncThreadLoad(pointer, buffer, vector=8, num_columns=columns)


@pytest.mark.emulated
@pytest.mark.parametrize(("block", "columns"), [(128, 96), (128, 104), (64, 8), (512, 264)])
def test_rows_are_multiplied(tmp_path: Path, block: int, columns: int) -> None:
    path, depth = tmp_path / "k.py", 208
    path.write_text(SOURCE.replace("MORE", "pass"))
    constants = (("BLOCK", block), ("COLUMNS", columns))
    request = request_of(
        *(str(path), "k", tuple(SIGNATURE.items()), constants, "sm_90a"), num_warps=4, num_stages=3
    )
    rng = np.random.default_rng(columns)
    a = rng.integers(-3, 4, (19, depth)).astype(ml_dtypes.bfloat16)
    b = rng.integers(-3, 4, (64, depth)).astype(ml_dtypes.bfloat16)
    rows = rng.integers(0, 19, block).astype(np.int32)
    out = np.full((64, block), np.nan, np.float32)
    values = {"a": a, "b": b, "rows": rows, "out": out, "K": depth}
    launch(compile_ptx(request), (1,), values, seed=columns)
    expected = b.astype(np.float32) @ a.astype(np.float32)[rows].T
    np.testing.assert_array_equal(out[:, :columns], expected[:, :columns])
    assert np.isnan(out[:, columns:]).all()

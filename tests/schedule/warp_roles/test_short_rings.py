"""Rings shorter than asked for, and results staged where operands were, where shared memory is scarce."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from aotc.ir.dialects import gpu, roles
from aotc.ir.text import parse_kernel
from aotc.ir.types import SharedType
from tests.support.descriptors import compiled, launch, like, lowered, tensor

# Keys are read by two dots, values by one. Resident, ring and result need too much together.
SOURCE = """def k(a, b, v, c, n):
    query = a.load([0, 0])
    total = tl.zeros((128, 256), tl.float32)
    for key in range(0, n, 64):
        keys = b.load([key, 0])
        score = tl.dot(query, keys.T)
        other = tl.dot(query, v.load([key, 0]).T)
        total = tl.dot((score * other).to(tl.float16), keys, total)
    c.store([0, 0], total.to(tl.float16))
"""
SIGNATURE = {
    "a": "tensordesc<fp16[128,256]>",
    "b": "tensordesc<fp16[64,256]>",
    "v": "tensordesc<fp16[64,256]>",
    "c": "tensordesc<fp16[128,256]>",
    "n": "i32",
}
KEYS = re.compile(r"shape = \[64, 256\],[^}]*?(num_stages = (\d))?\}")


def _stages(text: str) -> list[int]:
    return sorted(int(number or 1) for _, number in KEYS.findall(text))


def test_a_tile_that_one_dot_reads_has_one_buffer_if_two_are_too_many(tmp_path: Path) -> None:
    text, remarks = lowered(tmp_path, SOURCE, SIGNATURE, 8, num_stages=3)
    assert _stages(text) == [1, 3]
    assert "that one dot of the loop reads has one buffer" in remarks
    assert "gpu.specialize" in text


def test_rings_have_their_stages_where_there_is_room(tmp_path: Path) -> None:
    text, remarks = lowered(tmp_path, SOURCE, SIGNATURE, 8, num_stages=2)
    assert _stages(text) == [2, 2]
    assert "has one buffer" not in remarks


def test_a_result_is_staged_where_operands_were(tmp_path: Path) -> None:
    text, _ = lowered(tmp_path, SOURCE, SIGNATURE, 8, num_stages=2)
    kernel = parse_kernel(text)
    allocs = [op for op in kernel.walk() if isinstance(op, gpu.SharedAlloc)]
    (staging,) = (
        op for op in allocs if any(isinstance(outer, roles.Specialize) for outer in op.ancestors())
    )
    assert staging.shape == (128, 256)
    mine = range(staging.offset_bytes, staging.offset_bytes + _bytes_of(staging))
    operands = [op for op in allocs if op is not staging and _bytes_of(op) > 4096]
    assert any(
        op.offset_bytes < mine.stop and mine.start < op.offset_bytes + _bytes_of(op)
        for op in operands
    )


def _bytes_of(op: gpu.SharedAlloc) -> int:
    assert isinstance(op.out.type, SharedType)
    return op.out.type.size_bytes


@pytest.mark.emulated
@pytest.mark.parametrize("num_stages", [2, 3])
def test_results(tmp_path: Path, num_stages: int) -> None:
    kernel = compiled(tmp_path, SOURCE, SIGNATURE, num_warps=8, num_stages=num_stages)
    for n in (1, 64, 65, 64 * 4 + 1):
        a, b, v = (
            (np.random.default_rng(n + index).normal(size=shape) / 8).astype(np.float16)
            for index, shape in enumerate(((128, 256), (n, 256), (n, 256)))
        )
        c = like(tensor((128, 256), "fp16"))
        launch(kernel, (1,), {"a": a, "b": b, "c": c, "v": v, "n": n}, seed=n)
        wide = [matrix.astype(np.float64) for matrix in (a, b, v)]
        scores = (wide[0] @ wide[1].T) * (wide[0] @ wide[2].T)
        expected = scores @ wide[1]
        error = np.abs(c.astype(np.float64) - expected).max()
        assert error <= 4e-3 * np.abs(expected).max()

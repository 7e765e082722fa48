"""Tensor copies through pointers, for rows of a sequence with loaded bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.descriptors import compiled, launch

SOURCE = """def k(q_ptr, k_ptr, v_ptr, start_ptr, length_ptr, out_ptr, stride, HEADS: tl.constexpr):
    sequence, head = tl.program_id(0), tl.program_id(1)
    start, length = tl.load(start_ptr + sequence), tl.load(length_ptr + sequence)
    m, n, d = tl.arange(0, 64), tl.arange(0, 32), tl.arange(0, 64)
    tile = (sequence * HEADS + head) * 64
    q = tl.load(q_ptr + (tile + m)[:, None] * 64 + d[None, :])
    acc = tl.zeros((64, 64), tl.float32)
    for first in range(0, length, 32):
        row = first + n
        seen = row < length
        keys = k_ptr + (start + row)[None, :] * stride + head * 64 + d[:, None]
        scores = tl.dot(q, tl.load(keys, mask=seen[None, :], other=0.0))
        values = v_ptr + (start + row)[:, None] * stride + head * 64 + d[None, :]
        v = tl.load(values, mask=seen[:, None], other=0.0)
        acc = tl.dot(scores.to(tl.float16), v, acc)
    tl.store(out_ptr + (tile + m)[:, None] * 64 + d[None, :], acc)
"""
SIGNATURE = {
    **dict.fromkeys(("q_ptr", "k_ptr", "v_ptr"), "*fp16:16"),
    **dict.fromkeys(("start_ptr", "length_ptr"), "*i32"),
    "out_ptr": "*fp32:16",
    "stride": "i32:16",
}
HEADS = 2
# Empty, one row, a tile and a row less or more; the last one ends with the buffer.
LENGTHS = (0, 1, 31, 32, 33, 64, 97)


@pytest.mark.parametrize("options", [{}, {"mma_stages": 2}, {"warp_specialize": False}])
def test_nothing_beyond_a_sequence_is_seen(tmp_path: Path, options: dict[str, Any]) -> None:
    kernel = compiled(
        *(tmp_path, SOURCE, SIGNATURE, {"HEADS": HEADS}),
        num_stages=2,
        map_pointers=True,
        **options,
    )
    maps = {slot.argument for slot in kernel.params if slot.tensor_map is not None}
    assert {"k_ptr", "v_ptr"} <= maps
    rng = np.random.default_rng(7)
    gaps = rng.integers(0, 3, len(LENGTHS))
    starts = np.cumsum(gaps) + np.cumsum((0, *LENGTHS[:-1]))
    rows = int(starts[-1]) + LENGTHS[-1]
    k, v = np.full((2, rows, HEADS, 64), np.nan, np.float16)
    for start, length in zip(starts, LENGTHS, strict=True):
        for tensor in (k, v):
            tensor[start : start + length] = rng.integers(-2, 3, (length, HEADS, 64))
    q = rng.integers(-2, 3, (len(LENGTHS), HEADS, 64, 64)).astype(np.float16)
    out = np.full(q.shape, np.nan, np.float32)
    values = {
        "q_ptr": q, "k_ptr": k, "v_ptr": v, "start_ptr": starts.astype(np.int32),
        "length_ptr": np.array(LENGTHS, np.int32), "out_ptr": out, "stride": HEADS * 64,
    }  # fmt: skip
    launch(kernel, (len(LENGTHS), HEADS), values, seed=3)
    for number, (start, length) in enumerate(zip(starts, LENGTHS, strict=True)):
        for head in range(HEADS):
            tokens = slice(start, start + length)
            keys, seen = (tensor[tokens, head].astype(np.float64) for tensor in (k, v))
            expected = q[number, head].astype(np.float64) @ keys.T @ seen
            np.testing.assert_array_equal(out[number, head], expected)

"""Wide operands loaded before a loop are reread from shared memory inside; narrow ones are held."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.descriptors import compiled, launch, lowered

SOURCE = """def k(q_ptr, k_ptr, out_ptr, n, WIDTH: tl.constexpr):
    m, t, d = tl.arange(0, 16), tl.arange(0, 32), tl.arange(0, WIDTH)
    q = tl.load(q_ptr + m[:, None] * WIDTH + d[None, :])
    acc = tl.zeros((16, 32), tl.float32)
    for first in range(0, n, 32):
        keys = tl.load(k_ptr + (first + t)[None, :] * WIDTH + d[:, None])
        acc = tl.maximum(acc, tl.dot(q, keys))
    tl.store(out_ptr + m[:, None] * 32 + t[None, :], acc)
"""
SIGNATURE = {"q_ptr": "*fp16:16", "k_ptr": "*fp16:16", "out_ptr": "*fp32:16", "n": "i32"}


@pytest.mark.emulated
@pytest.mark.parametrize("width", [256, 512])
def test_fragments_of_more_than_64_registers_are_read_again(tmp_path: Path, width: int) -> None:
    source = SOURCE.replace("WIDTH: tl.constexpr", "one").replace("WIDTH", str(width))
    signature = {**SIGNATURE, "one": "i32=1"}
    text, _ = lowered(tmp_path, source, signature, 4, num_stages=2)
    loop = text.split("scf.for(", 1)[1]
    slices = width // 16
    assert loop.count("gpu.dot(") == slices
    assert loop.count("gpu.shared_load(") == (1 if width == 256 else 2) * slices
    kernel = compiled(tmp_path, source, signature, num_stages=2)
    rng = np.random.default_rng(width)
    q, k = (rng.integers(-2, 3, (rows, width)).astype(np.float16) for rows in (16, 160))
    for n in (0, 32, 64, 160):
        out = np.full((16, 32), np.nan, np.float32)
        launch(kernel, (1,), {"q_ptr": q, "k_ptr": k, "out_ptr": out, "n": n, "one": 1}, seed=n)
        scores = q.astype(np.float64) @ k[:n].astype(np.float64).T
        expected = scores.reshape(16, -1, 32).max(axis=1, initial=0)
        np.testing.assert_array_equal(out, expected)

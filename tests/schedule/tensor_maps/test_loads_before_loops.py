"""Dot operands from tensor copies outside loops, also read transposed by one dot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.descriptors import compiled, launch, lowered

SOURCE = """def k(q_ptr, k_ptr, out_ptr, n, stride):
    m, d = tl.arange(0, 64), tl.arange(0, 64)
    start = tl.program_id(0) * 64
    q = tl.load(q_ptr + (start + m)[:, None] * 64 + d[None, :], mask=(start + m < n)[:, None], other=0.0)
    acc = tl.zeros((64, 64), tl.float32)
    for first in range(0, n, 64):
        keys = k_ptr + (first + m)[:, None] * stride + d[None, :]
        acc = tl.dot(q, tl.load(keys, mask=(first + m < n)[:, None], other=0.0).T, acc)
    tl.store(out_ptr + (start + m)[:, None] * 64 + d[None, :], acc, mask=(start + m < n)[:, None])
"""
SIGNATURE = {"q_ptr": "*fp16:16", "k_ptr": "*fp16:16", "out_ptr": "*fp32:16", "n": "i32"}


@pytest.mark.emulated
@pytest.mark.parametrize("stride_type", ["i32:16", "i32"])
def test_they_are_if_the_loads_of_the_loop_are(tmp_path: Path, stride_type: str) -> None:
    signature = {**SIGNATURE, "stride": stride_type}
    kernel = compiled(tmp_path, SOURCE, signature, map_pointers=True)
    mapped = {slot.argument for slot in kernel.params if slot.tensor_map is not None}
    assert ({"q_ptr", "k_ptr"} <= mapped) == (stride_type == "i32:16")
    assert bool(mapped) == (stride_type == "i32:16")
    rng = np.random.default_rng(5)
    for n in (1, 63, 64, 65, 130):
        q, k = (rng.integers(-2, 3, (n, 64)).astype(np.float16) for _ in range(2))
        out = np.full((n, 64), np.nan, np.float32)
        values = {"q_ptr": q, "k_ptr": k, "out_ptr": out, "n": n, "stride": 64}
        launch(kernel, (-(-n // 64),), values, seed=n)
        tiles = np.zeros((-(-n // 64) * 64, 64))
        tiles[:n] = k
        expected = q.astype(np.float64) @ tiles.reshape(-1, 64, 64).sum(axis=0).T
        np.testing.assert_array_equal(out, expected)


AFTER = """def k(q_ptr, k_ptr, v_ptr, out_ptr, n, stride):
    m, d = tl.arange(0, 64), tl.arange(0, 64)
    scores = tl.zeros((64, 64), tl.float32)
    for first in range(0, n, 64):
        q = tl.load(q_ptr + m[:, None] * stride + (first + d)[None, :])
        keys = tl.load(k_ptr + m[:, None] * stride + (first + d)[None, :])
        scores = tl.dot(q, keys.T, scores)
    v = tl.load(v_ptr + m[:, None] * 64 + d[None, :])
    out = tl.dot(scores.to(tl.float16), v)
    tl.store(out_ptr + m[:, None] * 64 + d[None, :], out)
"""


@pytest.mark.emulated
@pytest.mark.parametrize("warp_specialize", [None, False])
def test_what_a_dot_after_the_loop_reads_is_too(
    tmp_path: Path, *, warp_specialize: bool | None
) -> None:
    signature = {**SIGNATURE, "v_ptr": "*fp16:16", "stride": "i32:16"}
    signature = {
        name: signature[name] for name in ("q_ptr", "k_ptr", "v_ptr", "out_ptr", "n", "stride")
    }
    options = {"map_pointers": True, "warp_specialize": warp_specialize}
    kernel = compiled(tmp_path, AFTER, signature, **options)
    mapped = {slot.argument for slot in kernel.params if slot.tensor_map is not None}
    assert {"q_ptr", "k_ptr", "v_ptr"} <= mapped
    rng = np.random.default_rng(7)
    q, k = (rng.integers(-1, 2, (64, 256)).astype(np.float16) for _ in range(2))
    v = rng.integers(-2, 3, (64, 64)).astype(np.float16)
    for n in (64, 128, 256):
        out = np.full((64, 64), np.nan, np.float32)
        values = {"q_ptr": q, "k_ptr": k, "v_ptr": v, "out_ptr": out, "n": n, "stride": 256}
        launch(kernel, (1,), values, seed=n)
        scores = q[:, :n].astype(np.float64) @ k[:, :n].astype(np.float64).T
        np.testing.assert_array_equal(out, scores @ v.astype(np.float64))


BOTH_WAYS = """def k(q_ptr, k_ptr, out_ptr, n, stride):
    m, d = tl.arange(0, 64), tl.arange(0, 64)
    q = tl.load(q_ptr + m[:, None] * 64 + d[None, :])
    acc = tl.zeros((64, 64), tl.float32)
    for first in range(0, n, 64):
        keys = tl.load(k_ptr + (first + m)[None, :] * stride + d[:, None])
        scores = tl.dot(q, keys)
        acc = tl.dot(scores.to(tl.float16), tl.trans(keys), acc)
    tl.store(out_ptr + m[:, None] * 64 + d[None, :], acc)
"""


@pytest.mark.emulated
@pytest.mark.parametrize("warp_specialize", [None, False])
@pytest.mark.parametrize("map_pointers", [True, False])
def test_a_tile_and_its_transpose_are_read_from_one_buffer(
    tmp_path: Path, *, warp_specialize: bool | None, map_pointers: bool
) -> None:
    """Be it a tensor copy, or one by threads."""
    signature = {**SIGNATURE, "stride": "i32:16"}
    options = {"map_pointers": map_pointers, "warp_specialize": warp_specialize}
    text, _ = lowered(tmp_path, BOTH_WAYS, signature, 4, **options)
    between = text[text.index("gpu.wgmma(") : text.rindex("gpu.wgmma(")]
    assert "gpu.wgmma_wait(" in between
    assert "gpu.shared_load(" not in between
    assert "gpu.shared_store(" not in between
    kernel = compiled(tmp_path, BOTH_WAYS, signature, **options)
    q, k = (
        np.random.default_rng(index).integers(-2, 3, (size, 64)).astype(np.float16)
        for index, size in enumerate((64, 320))
    )
    for n in (64, 128, 320):
        out = np.full((64, 64), np.nan, np.float32)
        values = {"q_ptr": q, "k_ptr": k, "out_ptr": out, "n": n, "stride": 64}
        launch(kernel, (1,), values, seed=n)
        keys = k[:n].astype(np.float64)
        np.testing.assert_array_equal(out, q.astype(np.float64) @ keys.T @ keys)

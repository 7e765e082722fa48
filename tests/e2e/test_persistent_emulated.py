"""Products by persistent CTAs, in the emulator, against NumPy.

The emulator reports reads of data in flight and deadlocks. So cases vary the number of programs of a
CTA: none, one, several, and not as many as its neighbour.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aotc.compiler import PtxKernel
from tests.support.descriptors import DTYPES, compiled, is_persistent, launch, tensor

ROWS, COLUMNS, DEPTH = 64, 32, 32

DESCRIBED = """def k(a, b, c, K):
    i, j = tl.program_id(0) * 64, tl.program_id(1) * 32
    part = tl.program_id(2)
    total = tl.zeros((64, 32), tl.float32)
    for k in range(0, K, 32):
        total = tl.dot(a.load([part, i, k]).reshape(64, 32), b.load([k, j]), total)
    c.store([part, i, j], total.reshape(1, 64, 32))
"""

POINTED = """def k(a, b, c, M, N, K, stride_a, stride_b):
    i = tl.program_id(0) * 64 + tl.arange(0, 64)
    j = tl.program_id(1) * 32 + tl.arange(0, 32)
    part = tl.program_id(2)
    k = tl.arange(0, 32)
    total = tl.zeros((64, 32), tl.float32)
    for start in range(0, K, 32):
        in_k = start + k < K
        left = tl.load(
            a + part.to(tl.int64) * M * stride_a + i[:, None] * stride_a + (start + k)[None, :],
            mask=(i < M)[:, None] & in_k[None, :],
            other=0.0,
        )
        right = tl.load(
            b + (start + k)[:, None] * stride_b + j[None, :],
            mask=in_k[:, None] & (j < N)[None, :],
            other=0.0,
        )
        total = tl.dot(left, right, total)
    inside = (i < M)[:, None] & (j < N)[None, :]
    tl.store(c + part * M * N + i[:, None] * N + j[None, :], total, mask=inside)
"""


def described(folder: Path, **options: Any) -> PtxKernel:
    signature = {
        "a": f"tensordesc<bf16[1,{ROWS},{DEPTH}]>",
        "b": f"tensordesc<bf16[{DEPTH},{COLUMNS}]>",
        "c": f"tensordesc<fp32[1,{ROWS},{COLUMNS}]>",
        "K": "i32",
    }
    return compiled(folder, DESCRIBED, signature, map_pointers=True, **options)


def check_described(
    kernel: PtxKernel, grid: Sequence[int], depth: int, num_ctas: int | None, seed: int
) -> None:
    """Check a launch with partial last blocks; the output is poisoned first."""
    rows, columns, parts = (*grid, 1, 1)[:3]
    a = tensor((parts, rows * ROWS - 3, depth), "bf16", seed=seed)
    b = tensor((depth, columns * COLUMNS - 5), "bf16", seed=seed + 1)
    c = np.full((parts, rows * ROWS - 3, columns * COLUMNS - 4), np.nan, np.float32)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    values = {"a": a, "b": b, "c": c, "K": depth}
    launch(kernel, grid, values, seed=seed, num_ctas=num_ctas)
    np.testing.assert_array_equal(c[..., : expected.shape[-1]], expected)


def pointed(folder: Path, **options: Any) -> PtxKernel:
    signature = {
        **dict.fromkeys(("a", "b"), "*bf16:16"),
        "c": "*fp32",
        **dict.fromkeys("MNK", "i32"),
        **dict.fromkeys(("stride_a", "stride_b"), "i32:16"),
    }
    return compiled(folder, POINTED, signature, map_pointers=True, **options)


def check_pointed(
    kernel: PtxKernel, grid: Sequence[int], depth: int, num_ctas: int | None, seed: int
) -> None:
    """Check a launch, likewise; rows of A and B lie apart."""
    rows, columns, parts = (*grid, 1, 1)[:3]
    m, n = rows * ROWS - 3, columns * COLUMNS - 8
    a, b = (
        np.random.default_rng(seed + number).integers(-9, 9, shape).astype(DTYPES["bf16"])
        for number, shape in enumerate(((parts, m, 256), (depth, columns * COLUMNS)))
    )
    c = np.full((parts, m, n), np.nan, np.float32)
    expected = a[..., :depth].astype(np.float64) @ b[:depth, :n].astype(np.float64)
    values = {"a": a, "b": b, "c": c, "M": m, "N": n, "K": depth}
    values |= {"stride_a": a.shape[-1], "stride_b": b.shape[-1]}
    launch(kernel, grid, values, seed=seed, num_ctas=num_ctas)
    np.testing.assert_array_equal(c, expected)


KERNELS = {"described": (described, check_described), "pointed": (pointed, check_pointed)}
GRIDS = ((1,), (2,), (3,), (7,), (1, 7), (2, 3), (1, 1, 3), (2, 1, 2), (1, 2, 3), (2, 2, 2))


@pytest.mark.parametrize("way", KERNELS)
def test_every_grid_and_any_number_of_ctas(tmp_path: Path, way: str) -> None:
    """Run 1 to 8 programs of no, one, and more iterations than stages.

    Then run as many CTAs as programs, and one CTA without a program.
    """
    build, check = KERNELS[way]
    kernel = build(tmp_path)
    assert is_persistent(kernel)
    for seed, grid in enumerate(GRIDS):
        check(kernel, grid, (8, 32, 200)[seed % 3], None, seed)
    for num_ctas in (1, 2, 4, 5, 6):
        check(kernel, (5,), 72, num_ctas, num_ctas)


@pytest.mark.parametrize(
    ("way", "options"),
    [
        ("pointed", {"num_stages": 1}),
        ("described", {"num_stages": 2}),
        ("pointed", {"num_stages": 5}),
        ("described", {"num_warps": 1}),
        ("pointed", {"num_warps": 8}),
        ("described", {"target": "sm_100a"}),
        ("described", {"target": "sm_120a"}),
        *((way, {"num_ctas": 2}) for way in KERNELS),
    ],
    ids=str,
)
def test_every_configuration(tmp_path: Path, way: str, options: dict[str, Any]) -> None:
    build, check = KERNELS[way]
    kernel = build(tmp_path, **options)
    assert is_persistent(kernel)
    clusters = options.get("num_ctas", 1)
    check(kernel, (2, 3), 104, 2 * clusters, 1)
    check(kernel, (1,), 8, clusters, 2)


def test_a_target_without_tensor_copies_has_a_cta_for_each_program(tmp_path: Path) -> None:
    for build, check in KERNELS.values():
        kernel = build(tmp_path, target="sm_80")
        assert not is_persistent(kernel)
        check(kernel, (1, 2, 3), 40, None, 0)

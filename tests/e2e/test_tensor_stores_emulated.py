"""Asynchronous tensor stores, compiled and run in the emulator: contents, order and parts.

The emulator reports writes to the source of a copy in flight, so these tests check order as well as
values.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aotc import compiler
from aotc.backend import assemble
from aotc.compiler import PtxKernel
from aotc.schedule.epilogue import overlap_epilogue, pipeline_tma_stores
from aotc.target import TARGETS
from aotc.verify.emulator.errors import Fault
from tests.support.descriptors import DTYPES, compiled, launch, like, tensor

SEEDS = (0, 1, 2)


def _limit_shared(monkeypatch: pytest.MonkeyPatch, max_shared_bytes: int) -> None:
    """Let every target have so much shared memory."""

    def parse(name: str) -> object:
        return replace(TARGETS[name], max_shared_bytes=max_shared_bytes)

    monkeypatch.setattr(compiler, "parse_target", parse)


def _num_groups(kernel: PtxKernel) -> int:
    return len(re.findall(r"cp\.async\.bulk\.commit_group", kernel.ptx))


def _waits(kernel: PtxKernel) -> list[str]:
    return re.findall(r"cp\.async\.bulk\.wait_group(\S* \d+);", kernel.ptx)


# ---- loops ------------------------------------------------------------------------------------

PRODUCTS = """def k(a, b, c, rows):
    right = b.load([0, 0])
    for at in range(tl.program_id(0) * 32, rows, tl.num_programs(0) * 32):
        c.store([at, 0], tl.dot(a.load([at, 0]), right).to(c.dtype))
"""
PRODUCT_SIGNATURE = {
    "a": "tensordesc<bf16[32,16]>",
    "b": "tensordesc<bf16[16,256]>",
    "c": "tensordesc<bf16[32,256]>",
    "rows": "i32",
}


@pytest.mark.parametrize(
    ("max_shared_bytes", "num_groups", "waits"),
    [
        (20 << 10, 1, [0, 0]),
        (16 << 10, 4, [0, 1, 0]),
        (12 << 10, 4, [0, 0, 0, 0]),
        (9 << 10, 4, [0, 0, 0, 0, 0]),
    ],
    ids=["whole", "three buffers", "two", "one"],
)
def test_a_block_goes_in_as_many_parts_as_memory_asks_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    max_shared_bytes: int,
    num_groups: int,
    waits: list[int],
) -> None:
    _limit_shared(monkeypatch, max_shared_bytes)
    kernel = compiled(tmp_path, PRODUCTS, PRODUCT_SIGNATURE, num_warps=2)
    assert kernel.shared_bytes <= max_shared_bytes
    assert _num_groups(kernel) == num_groups
    assert _waits(kernel) == [f".read {pending}" for pending in waits]
    a, b = tensor((77, 16), "bf16"), tensor((16, 200), "bf16", seed=1)
    expected = (a.astype(np.float32) @ b.astype(np.float32)).astype(DTYPES["bf16"])
    for seed, rows in enumerate((0, 1, 33, 77)):
        c = like(tensor((77, 200), "bf16"))
        before = c.copy()
        launch(kernel, (2,), {"a": a, "b": b, "c": c, "rows": rows}, seed=seed)
        end = min(77, -(-rows // 32) * 32)
        np.testing.assert_array_equal(c[:end], expected[:end])
        np.testing.assert_array_equal(c[end:], before[end:])


TWO_OUTPUTS = """def k(x, y, z, rows):
    for at in range(tl.program_id(0) * 8, rows, tl.num_programs(0) * 8):
        value = x.load([at, 0])
        y.store([at, 0], value + 1)
        if at % 16 == 8:
            z.store([at, 0], value * 2)
        z.store([at, 32], value * 3)
"""


def test_stores_of_a_loop_wait_for_their_own_buffers(tmp_path: Path) -> None:
    """One of them is under a branch: only stores of the same block are known to be newer."""
    signature = dict.fromkeys("xyz", "tensordesc<i32[8,32]>") | {"rows": "i32"}
    kernel = compiled(tmp_path, TWO_OUTPUTS, signature)
    assert sorted(_waits(kernel)) == [".read 0", ".read 0", ".read 1", ".read 1"]
    x = tensor((37, 32), "i32")
    for seed in SEEDS:
        y, z = like(x), np.zeros((37, 64), np.int32)
        launch(kernel, (2,), {"x": x, "y": y, "z": z, "rows": 37}, seed=seed)
        odd = (np.arange(37) % 16 >= 8)[:, None]
        np.testing.assert_array_equal(y, x + 1)
        np.testing.assert_array_equal(z[:, 32:], x * 3)
        np.testing.assert_array_equal(z[:, :32], np.where(odd, x * 2, 0))


NESTED = """def k(x, y, n, m):
    i = 0
    while i < n:
        for j in range(m):
            y.store([i * 8, j * 32], x.load([i * 8, j * 32]) + j)
        i += 1
    y.store([n * 8, 0], x.load([n * 8, 0]))
"""


@pytest.mark.parametrize(("n", "m"), [(0, 3), (1, 1), (2, 3), (3, 0)])
def test_a_store_runs_on_through_nested_loops(tmp_path: Path, n: int, m: int) -> None:
    signature = dict.fromkeys("xy", "tensordesc<i32[8,32]>") | dict.fromkeys("nm", "i32")
    kernel = compiled(tmp_path, NESTED, signature)
    x = tensor((32, 96), "i32")
    y = like(x)
    expected = y.copy()
    expected[: 8 * n, : 32 * m] = (x + np.arange(96) // 32)[: 8 * n, : 32 * m]
    expected[8 * n : 8 * n + 8, :32] = x[8 * n : 8 * n + 8, :32]
    launch(kernel, (1,), {"x": x, "y": y, "n": n, "m": m}, seed=n + m)
    np.testing.assert_array_equal(y, expected)


def test_reductions_of_a_loop_run_on(tmp_path: Path) -> None:
    source = """def k(x, y, rows):
    for at in range(tl.program_id(0) * 4, rows, tl.num_programs(0) * 4):
        y.atomic_add([0, 0], x.load([at, 0]))
"""
    signature = dict.fromkeys("xy", "tensordesc<i32[4,64]>") | {"rows": "i32"}
    kernel = compiled(tmp_path, source, signature)
    assert _waits(kernel) == [".read 0", ".read 0"]
    x = tensor((36, 64), "i32")
    for seed in SEEDS:
        y = tensor((4, 64), "i32", seed=1)
        expected = y + x.reshape(9, 4, 64).sum(0)
        launch(kernel, (3,), {"x": x, "y": y, "rows": 36}, seed=seed)
        np.testing.assert_array_equal(y, expected)


# ---- no loops ---------------------------------------------------------------------------------


def test_stores_are_waited_for_together_at_the_end(tmp_path: Path) -> None:
    source = """def k(x, y, z):
    value = x.load([0, 0])
    y.store([0, 0], tl.sum(value, axis=1)[:, None] + value)
    z.store([0, 0], value * 2)
"""
    signature = dict.fromkeys("xyz", "tensordesc<i32[16,32]>")
    kernel = compiled(tmp_path, source, signature)
    x = tensor((16, 32), "i32")
    for seed in SEEDS:
        y, z = like(x), like(x)
        launch(kernel, (1,), {"x": x, "y": y, "z": z}, seed=seed)
        np.testing.assert_array_equal(y, x + x.sum(1, keepdims=True))
        np.testing.assert_array_equal(z, x * 2)


def test_what_was_stored_is_there_for_a_load(tmp_path: Path) -> None:
    """A tensor also loaded is complete when the store is done, in loops as well."""
    source = """def k(x, n):
    for i in range(n):
        x.store([4, 0], x.load([0, 0]) + x.load([4, 0]))
        x.store([0, 0], x.load([4, 0]) * 3)
"""
    kernel = compiled(tmp_path, source, {"x": "tensordesc<i32[4,32]>", "n": "i32"})
    assert _waits(kernel) == [" 0", " 0"]
    for seed in SEEDS:
        x = tensor((8, 32), "i32")
        low, high = x[:4].copy(), x[4:].copy()
        for _ in range(3):
            high = low + high
            low = high * 3
        launch(kernel, (1,), {"x": x, "n": 3}, seed=seed)
        np.testing.assert_array_equal(x, np.concatenate([low, high]))


# ---- accumulators -----------------------------------------------------------------------------

MATMUL = """def k(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr):
    num_n = tl.cdiv(N, BN)
    for at in range(tl.program_id(0), tl.cdiv(M, BM) * num_n, tl.num_programs(0)):
        i, j = at // num_n * BM, at % num_n * BN
        total = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, 64):
            total = tl.dot(a.load([i, k]), b.load([j, k]).T, total)
        c.store([i, j], total.to(c.dtype))
"""


def _matmul(
    folder: Path, dtype: str, target: str, block: tuple[int, int], num_warps: int
) -> PtxKernel:
    rows, columns = block
    signature = {
        "a": f"tensordesc<bf16[{rows},64]>",
        "b": f"tensordesc<bf16[{columns},64]>",
        "c": f"tensordesc<{dtype}[{rows},{columns}]>",
        **dict.fromkeys("MNK", "i32"),
    }
    constants = {"BM": rows, "BN": columns}
    return compiled(folder, MATMUL, signature, constants, target, num_warps)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "fp8e4nv", "fp8e5"])
@pytest.mark.parametrize(
    ("target", "num_warps"), [("sm_90a", 4), ("sm_90a", 8), ("sm_100a", 4), ("sm_120a", 4)]
)
def test_accumulators_are_stored_without_bank_conflicts(
    tmp_path: Path, dtype: str, target: str, num_warps: int
) -> None:
    block = (16 * num_warps, 64)
    kernel = _matmul(tmp_path, dtype, target, block, num_warps)
    assert assemble(kernel.ptx, TARGETS[target]).warnings == ()
    m, n = block[0] + 1, 80
    a, b = (np.sign(tensor((size, 64), "bf16", seed=size)) for size in (m, n))
    c = like(tensor((m, n), dtype))
    values = {"a": a, "b": b, "c": c, "M": m, "N": n, "K": 64}
    emulation = launch(kernel, (3,), values, count_conflicts=True, seed=num_warps)
    expected = a.astype(np.float32) @ b.astype(np.float32).T
    np.testing.assert_array_equal(c, expected.astype(DTYPES[dtype]))
    lines = kernel.ptx.splitlines()
    stores = {
        line: count
        for line, count in emulation.conflicts.items()
        if re.search(r"st\.shared|stmatrix", lines[line - 1])
    }
    assert stores
    assert all(count.excess == 0 for count in stores.values())
    if dtype in ("bf16", "fp16"):
        assert all("stmatrix" in lines[line - 1] for line in stores)


def _store_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold no finished tile in registers across the next one's dots."""
    monkeypatch.setattr(overlap_epilogue, "EPILOGUE_RESERVE", 256)


def _check_matmul(kernel: PtxKernel, shape: tuple[int, int], seed: int) -> None:
    """Let one program compute everything, so its warpgroups get out of step."""
    a, b = (np.sign(tensor((size, 64), "bf16", seed=size)) for size in shape)
    c = like(tensor(shape, "bf16"))
    values = {"a": a, "b": b, "c": c, "M": shape[0], "N": shape[1], "K": 64}
    launch(kernel, (1,), values, seed=seed)
    expected = a.astype(np.float32) @ b.astype(np.float32).T
    np.testing.assert_array_equal(c, expected.astype(DTYPES["bf16"]))


@pytest.mark.parametrize(("max_shared_kib", "num_groups"), [(132, 1), (116, 2)])
def test_warpgroups_send_what_they_have_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_shared_kib: int, num_groups: int
) -> None:
    _limit_shared(monkeypatch, max_shared_kib << 10)
    _store_at_once(monkeypatch)
    kernel = _matmul(tmp_path, "bf16", "sm_90a", (128, 128), 8)
    assert _num_groups(kernel) == num_groups
    assert len(re.findall(r"tensor\.2d\.global\.shared::cta", kernel.ptx)) == 4
    num_barriers = len(re.findall(r"bar\S* \t?%r\d+, 128;", kernel.ptx))
    assert num_barriers == 2 * num_groups
    for seed in SEEDS[:2]:
        _check_matmul(kernel, (130, 136), seed)


def test_a_box_that_another_warpgroup_sends_is_a_race(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_tma_stores, "box_warpgroups", lambda *_: (1, 1, 0, 0))
    kernel = _matmul(tmp_path, "bf16", "sm_90a", (128, 128), 8)
    with pytest.raises(Fault, match="race"):
        _check_matmul(kernel, (128, 128), 0)


def test_parts_of_an_accumulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of 32 KB goes through two buffers of 8 KB beside three stages of 40 KB."""
    _limit_shared(monkeypatch, 138 << 10)
    _store_at_once(monkeypatch)
    kernel = _matmul(tmp_path, "bf16", "sm_90a", (64, 256), 4)
    assert (kernel.shared_bytes >> 10, _num_groups(kernel)) == (136, 4)
    a, b = (np.sign(tensor((size, 64), "bf16", seed=size)) for size in (65, 264))
    c = like(tensor((65, 264), "bf16"))
    launch(kernel, (3,), {"a": a, "b": b, "c": c, "M": 65, "N": 264, "K": 64}, seed=1)
    expected = a.astype(np.float32) @ b.astype(np.float32).T
    np.testing.assert_array_equal(c, expected.astype(DTYPES["bf16"]))

"""Kernels with tiles loaded ahead, compiled and run in the emulator, against NumPy.

A producer warp loads them, or the computing warps do so iterations ahead.

The emulator reports reads of data in flight, writes to data in use, and deadlocks. So cases vary the
control flow: the position of loads, and the number of times they are issued. Integers make sums exact in
any order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aotc.backend import assemble
from aotc.compiler import CompileRequest, PtxKernel, compile_kernel
from aotc.config import Config
from aotc.target import TARGETS
from tests.support.attention_loop import ATTENTION, SIGNATURE, check_attention
from tests.support.descriptors import DTYPES, PRELUDE, compiled, launch, like, tensor

SEEDS = (1, 2, 3)
# Who issues loads: a producer warp, as the compiler chooses by itself, or all warps.
OWN, ALL = None, False


def _who(kernel: PtxKernel, num_warps: int) -> bool | None:
    """Return who issues loads, as a launch with more warps than compute tells."""
    match = re.search(r"\.reqntid (\d+)", kernel.ptx)
    assert match is not None
    assert int(match[1]) >= 32 * num_warps
    return OWN if int(match[1]) > 32 * num_warps else ALL


def _exact(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


# ---- where loads stand ------------------------------------------------------------------------

VECTORS = dict.fromkeys(("x", "z", "y"), "tensordesc<i32[128]>") | dict.fromkeys(("n", "m"), "i32")

NESTED = """def k(x, z, y, n, m):
    for i in range(n):
        total = z.load([i * 128])
        for j in range(m):
            total += x.load([(i + j) * 128]) * (j + 1)
        y.store([i * 128], total)
"""


def _nested(x: np.ndarray, z: np.ndarray, n: int, m: int) -> list[np.ndarray]:
    return [z[i] + sum((x[i + j] * (j + 1) for j in range(m)), 0 * z[i]) for i in range(n)]


BRANCH = """def k(x, z, y, n, m):
    total = tl.zeros((128,), tl.int32)
    for i in range(n):
        if i % 3 == m:
            total += x.load([i * 128])
        elif i % 3 == 2:
            total += x.load([i * 128]) * z.load([i * 128])
        y.store([i * 128], total)
"""


def _branch(x: np.ndarray, z: np.ndarray, n: int, m: int) -> list[np.ndarray]:
    total, out = 0 * x[0], []
    for i in range(n):
        if i % 3 == m:
            total = total + x[i]
        elif i % 3 == 2:
            total = total + x[i] * z[i]
        out.append(total)
    return out


WHILE = """def k(x, z, y, n, m):
    i = 0
    while i < n:
        total = x.load([i * 128])
        j = 1
        while j <= i:
            total += z.load([j * 128]) * j
            j += m
        y.store([i * 128], total)
        i += 1
"""


def _while(x: np.ndarray, z: np.ndarray, n: int, m: int) -> list[np.ndarray]:
    return [x[i] + sum((z[j] * j for j in range(1, i + 1, max(m, 1))), 0 * x[i]) for i in range(n)]


AROUND = """def k(x, z, y, n, m):
    total = z.load([m * 128])
    for i in range(n):
        total += x.load([i * 128])
    total *= z.load([(m + 1) * 128])
    for i in range(n):
        y.store([i * 128], total + x.load([(n - i) * 128]) * z.load([i * 128]))
"""


def _around(x: np.ndarray, z: np.ndarray, n: int, m: int) -> list[np.ndarray]:
    total = (z[m] + sum(x[:n], 0 * x[0])) * z[m + 1]
    return [total + x[n - i] * z[i] for i in range(n)]


CHAINED = """def k(x, z, y, n, m):
    for i in range(n):
        first = x.load([i * 128])
        y.store([i * 128], first + tl.sum(first))
        for j in range(0, m, 2):
            second = x.load([j * 128])
            third = z.load([j * 128])
            first += tl.sum(second) + second * third
            fourth = z.load([(j + 1) * 128])
            first -= fourth
        if m > 1:
            y.store([i * 128], first)
"""


def _chained(x: np.ndarray, z: np.ndarray, n: int, m: int) -> list[np.ndarray]:
    out = []
    for i in range(n):
        first = x[i]
        if m <= 1:
            out.append(first + first.sum(dtype=np.int32))
            continue
        for j in range(0, m, 2):
            first = first + x[j].sum(dtype=np.int32) + x[j] * z[j] - z[j + 1]
        out.append(first)
    return out


FLOWS: Mapping[str, tuple[str, Callable[..., list[np.ndarray]]]] = {
    "nested loops": (NESTED, _nested),
    "branches": (BRANCH, _branch),
    "loops with a condition": (WHILE, _while),
    "before and after loops": (AROUND, _around),
    "one after the other": (CHAINED, _chained),
}


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize(
    ("warp_specialize", "num_stages"), [(OWN, 1), (OWN, 2), (OWN, 5), (ALL, 2), (ALL, 3)]
)
def test_every_flow(
    tmp_path: Path, flow: str, warp_specialize: bool | None, num_stages: int
) -> None:
    source, reference = FLOWS[flow]
    config = {"num_warps": 2, "num_stages": num_stages, "warp_specialize": warp_specialize}
    kernel = compiled(tmp_path, source, VECTORS, **config)
    assert _who(kernel, 2) is warp_specialize
    x, z = tensor((12 * 128,), "i32"), tensor((12 * 128,), "i32", seed=1)
    counts = [(0, 1), (1, 0), (1, 1), (2, 4), (5, 1), (5, 3)]
    for seed, (n, m) in enumerate(counts):
        y = like(x)
        values = {"x": x, "z": z, "y": y, "n": n, "m": m}
        launch(kernel, (1,), values, seed=seed)
        blocks = reference(x.reshape(-1, 128), z.reshape(-1, 128), n, m)
        for i, expected in enumerate(blocks):
            np.testing.assert_array_equal(y[i * 128 : i * 128 + 128], expected)


# ---- products ---------------------------------------------------------------------------------

MATMUL = """def k(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    tiles_n = tl.cdiv(N, BN)
    for tile in range(tl.program_id(0), tl.cdiv(M, BM) * tiles_n, tl.num_programs(0)):
        i, j = tile // tiles_n * BM, tile % tiles_n * BN
        total = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            total = tl.dot(a.load([i, k]), b.load([k, j]), total)
        c.store([i, j], total.to(c.dtype))
"""


def _matmul(
    folder: Path, block: tuple[int, int, int], dtype: str = "bf16", **config: Any
) -> PtxKernel:
    rows, columns, depth = block
    signature = {
        "a": f"tensordesc<{dtype}[{rows},{depth}]>",
        "b": f"tensordesc<{dtype}[{depth},{columns}]>",
        "c": f"tensordesc<fp32[{rows},{columns}]>",
        **dict.fromkeys("MNK", "i32"),
    }
    constants = dict(zip(("BM", "BN", "BK"), block, strict=True))
    return compiled(folder, MATMUL, signature, constants, **config)


def _check_matmul(
    kernel: PtxKernel, shape: tuple[int, int, int], seed: int, dtype: str = "bf16", grid: int = 2
) -> None:
    rows, columns, depth = shape
    a, b = tensor((rows, max(depth, 1)), dtype), tensor((max(depth, 1), columns), dtype, seed=1)
    c = like(tensor((rows, columns), "fp32"))
    values = {"a": a, "b": b, "c": c, "M": rows, "N": columns, "K": depth}
    launch(kernel, (grid,), values, seed=seed)
    np.testing.assert_array_equal(c, _exact(a[:, :depth]) @ _exact(b[:depth]))


@pytest.mark.parametrize(
    ("target", "warp_specialize", "num_stages"),
    [
        *(("sm_90a", OWN, num_stages) for num_stages in (1, 2, 3, 5)),
        *(("sm_90a", ALL, num_stages) for num_stages in (1, 2, 4)),
        *(("sm_100a", OWN, 3), ("sm_120a", OWN, 2), ("sm_120a", ALL, 3)),
    ],
)
def test_a_persistent_product(
    tmp_path: Path, target: str, warp_specialize: bool | None, num_stages: int
) -> None:
    """With dots in flight across iterations, and on targets with dots by warps."""
    config = {"num_stages": num_stages, "target": target, "warp_specialize": warp_specialize}
    kernel = _matmul(tmp_path, (64, 32, 32), **config)
    assert _who(kernel, 4) is warp_specialize
    for seed, depth in enumerate((0, 1, 97, 200)):
        _check_matmul(kernel, (70, 60, depth), seed)


@pytest.mark.parametrize("num_warps", [1, 8, 16])
def test_as_many_warps_as_are_asked_for(tmp_path: Path, num_warps: int) -> None:
    kernel = _matmul(tmp_path, (128, 64, 32), num_warps=num_warps)
    assert _who(kernel, num_warps) is OWN
    _check_matmul(kernel, (130, 72, 110), num_warps, grid=1)


TRANSPOSED = """def k(a, b, c, K, SCALED: tl.constexpr):
    total = tl.zeros((64, 64), tl.float32)
    for k in range(0, K, 32):
        left = a.load([tl.program_id(0) * 64, k])
        if SCALED:
            left = (left * 2).to(a.dtype)
        total = tl.dot(left, b.load([0, k]).T, total)
    c.store([tl.program_id(0) * 64, 0], total)
"""


@pytest.mark.parametrize(
    ("target", "scaled", "warp_specialize"),
    [
        *(("sm_90a", False, OWN), ("sm_90a", True, OWN), ("sm_90a", True, ALL)),
        *(("sm_120a", False, ALL), ("sm_120a", True, OWN)),
    ],
)
def test_operands_are_transposed_and_changed_on_the_way(
    tmp_path: Path, target: str, scaled: bool, warp_specialize: bool | None
) -> None:
    """One operand goes through registers, so a stage is read before the dot begins."""
    signature = dict.fromkeys("ab", "tensordesc<fp16[64,32]>") | {
        "c": "tensordesc<fp32[64,64]>",
        "K": "i32",
    }
    constants = {"SCALED": scaled}
    kernel = compiled(
        tmp_path, TRANSPOSED, signature, constants, target, warp_specialize=warp_specialize
    )
    for seed, depth in enumerate((0, 8, 200)):
        a, b = tensor((100, 200), "fp16"), tensor((64, 200), "fp16", seed=1)
        c = like(tensor((100, 64), "fp32"))
        launch(kernel, (2,), {"a": a, "b": b, "c": c, "K": depth}, seed=seed)
        end = -(-depth // 32) * 32
        expected = _exact(a[:, :end]) @ _exact(b[:, :end]).T * (2 if scaled else 1)
        np.testing.assert_array_equal(c, expected)


FLOAT8 = """def k(a, b, c, K, IMPRECISE: tl.constexpr):
    total = tl.zeros((64, 64), tl.float32)
    for k in range(0, K, 64):
        total = tl.dot(
            a.load([0, k]), b.load([0, k]).T, total, max_num_imprecise_acc=IMPRECISE
        )
    c.store([0, 0], total)
"""


@pytest.mark.parametrize(
    ("imprecise", "warp_specialize"), [(0, OWN), (32, OWN), (64, OWN), (32, ALL)]
)
def test_products_of_fp8_whose_sums_are_moved_on(
    tmp_path: Path, imprecise: int, warp_specialize: bool | None
) -> None:
    signature = dict.fromkeys("ab", "tensordesc<fp8e4nv[64,64]>") | {
        "c": "tensordesc<fp32[64,64]>",
        "K": "i32",
    }
    kernel = compiled(
        tmp_path, FLOAT8, signature, {"IMPRECISE": imprecise}, warp_specialize=warp_specialize
    )
    assert _who(kernel, 4) is warp_specialize
    rng = np.random.default_rng(0)
    for seed, depth in enumerate((0, 64, 192)):
        a, b = (rng.integers(-2, 3, (64, 192)).astype(DTYPES["fp8e4nv"]) for _ in range(2))
        c = like(tensor((64, 64), "fp32"))
        launch(kernel, (1,), {"a": a, "b": b, "c": c, "K": depth}, seed=seed)
        np.testing.assert_array_equal(c, _exact(a[:, :depth]) @ _exact(b[:, :depth]).T)


@pytest.mark.parametrize(
    ("target", "num_warps", "num_stages", "warp_specialize"),
    [
        *(("sm_90a", 4, 2, OWN), ("sm_90a", 4, 3, OWN), ("sm_90a", 4, 3, ALL)),
        *(("sm_90a", 8, 2, OWN), ("sm_120a", 4, 2, OWN), ("sm_120a", 4, 2, ALL)),
    ],
)
def test_attention_has_three_groups(
    tmp_path: Path, target: str, num_warps: int, num_stages: int, warp_specialize: bool | None
) -> None:
    """Queries once a tile, keys and values in turn, each read by a product of its own."""
    config = {"num_warps": num_warps, "num_stages": num_stages, "warp_specialize": warp_specialize}
    kernel = compiled(tmp_path, ATTENTION, SIGNATURE, {"D": 32}, target, **config)
    assert _who(kernel, num_warps) is warp_specialize
    check_attention(kernel, (2,), (1, 31, 130))


TWO_SUMS = """def k(a, b, c, d, K):
    left = tl.zeros((64, 64), tl.float32)
    right = tl.zeros((64, 64), tl.float32)
    for k in range(0, K, 32):
        rows = a.load([0, k])
        left = tl.dot(rows, b.load([k, 0]), left)
        right = tl.dot(rows, b.load([k, 64]), right)
    c.store([0, 0], left)
    d.store([0, 0], right)
"""


@pytest.mark.parametrize(("warp_specialize", "num_stages"), [(OWN, 2), (OWN, 4), (ALL, 4)])
def test_two_sums_of_a_loop_run_on_together(
    tmp_path: Path, warp_specialize: bool | None, num_stages: int
) -> None:
    signature = {
        "a": "tensordesc<bf16[64,32]>",
        "b": "tensordesc<bf16[32,64]>",
        **dict.fromkeys("cd", "tensordesc<fp32[64,64]>"),
        "K": "i32",
    }
    config = {"num_stages": num_stages, "warp_specialize": warp_specialize}
    kernel = compiled(tmp_path, TWO_SUMS, signature, **config)
    a, b = tensor((64, 320), "bf16"), tensor((320, 128), "bf16", seed=1)
    for seed, depth in enumerate((0, 32, 64, 320)):
        c, d = (like(tensor((64, 64), "fp32")) for _ in range(2))
        launch(kernel, (1,), {"a": a, "b": b, "c": c, "d": d, "K": depth}, seed=seed)
        expected = _exact(a[:, :depth]) @ _exact(b[:depth])
        np.testing.assert_array_equal(np.hstack([c, d]), expected)


# ---- other work of a kernel -------------------------------------------------------------------

LOOKED_UP = """def k(x, y, index_ptr, n):
    for i in range(tl.load(index_ptr), n):
        at = tl.load(index_ptr + 1 + i)
        if at >= 0:
            y.store([i * 128], x.load([at * 128]) + i)
"""


def test_the_producer_loads_what_its_copies_depend_on(tmp_path: Path) -> None:
    signature = VECTORS | {"index_ptr": "*i32"}
    signature = {name: signature[name] for name in ("x", "y", "index_ptr", "n")}
    kernel = compiled(tmp_path, LOOKED_UP, signature)
    assert _who(kernel, 4) is OWN
    x = tensor((9 * 128,), "i32")
    index = np.array([1, 0, 8, -1, 2, 2, -1, 0], np.int32)
    for seed in SEEDS:
        y = like(x)
        before = y.copy()
        launch(kernel, (1,), {"x": x, "y": y, "index_ptr": index, "n": 7}, seed=seed)
        for i, block in enumerate(index[1:]):
            part = slice(i * 128, i * 128 + 128)
            expected = x[block * 128 : block * 128 + 128] + i if i and block >= 0 else before[part]
            np.testing.assert_array_equal(y[part], expected)


LOADED_TOO = """def k(x, y, p, n):
    at = tl.arange(0, 128)
    total = tl.zeros((128,), tl.int32)
    for i in range(n):
        total += x.load([i * 128]) * tl.load(p + i * 128 + at)
        total += tl.sum(total) + tl.cumsum(total)
    y.store([0], total)
"""


@pytest.mark.parametrize(("warp_specialize", "num_warps"), [(OWN, 1), (OWN, 4), (ALL, 4)])
def test_loads_and_scratch_of_the_consumers(
    tmp_path: Path, warp_specialize: bool | None, num_warps: int
) -> None:
    """Barriers of sums and scans are the consumers' own."""
    signature = {
        **dict.fromkeys("xy", "tensordesc<i32[128]>"),
        "p": "*i32:16",
        "n": "i32",
    }
    config = {"num_warps": num_warps, "warp_specialize": warp_specialize}
    kernel = compiled(tmp_path, LOADED_TOO, signature, **config)
    x, p = tensor((6 * 128,), "i32"), tensor((6 * 128,), "i32", seed=1)
    for seed, n in enumerate((0, 1, 6)):
        y = like(x)
        launch(kernel, (1,), {"x": x, "y": y, "p": p, "n": n}, seed=seed)
        total = np.zeros(128, np.int32)
        for i in range(n):
            part = slice(i * 128, i * 128 + 128)
            total = total + x[part] * p[part]
            total = total + total.sum(dtype=np.int32) + total.cumsum(dtype=np.int32)
        np.testing.assert_array_equal(y[:128], total)


# ---- invalid kernels and resource limits ------------------------------------------------------

BOTH_WAYS = """def k(a, c, n, BARRIER: tl.constexpr):
    for i in tl.range(n, warp_specialize=True):
        block = a.load([0, i * 64])
        if BARRIER:
            tl.debug_barrier()
        c.store([0, i * 64], block + a.load([0, i * 64 + 64]))
"""


@pytest.mark.parametrize("barrier", [False, True])
def test_asking_in_vain_is_a_remark(tmp_path: Path, barrier: bool) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(PRELUDE + BOTH_WAYS, encoding="utf-8")
    signature = {**dict.fromkeys("ac", "tensordesc<i32[8,64]>"), "n": "i32"}
    request = CompileRequest(
        *(str(path), "k", tuple(signature.items()), (("BARRIER", barrier),), "sm_90a")
    )
    metadata = compile_kernel(request).metadata
    assert metadata.num_threads == 32 * (4 if barrier else 4 + 1)
    reason = "tile.barrier before it keeps memory accesses in order"
    assert any(reason in remark for remark in metadata.remarks) == barrier


GRID = [(1, 4, True), (4, 2, False), (8, 3, True), (16, 1, True), (16, 4, False), (32, 2, True)]


@pytest.mark.parametrize(("num_warps", "num_stages", "warp_specialize"), GRID)
@pytest.mark.parametrize("block", [(16, 16, 32), (128, 64, 64)], ids=str)
def test_every_config_compiles(
    tmp_path: Path,
    block: tuple[int, int, int],
    num_warps: int,
    num_stages: int,
    warp_specialize: bool,
) -> None:
    config = {"num_warps": num_warps, "num_stages": num_stages, "warp_specialize": warp_specialize}
    kernel = _matmul(tmp_path, block, **config)
    assembly = assemble(kernel.ptx, TARGETS["sm_90a"])
    assert assembly.warnings == ()
    assert kernel.shared_bytes <= TARGETS["sm_90a"].max_shared_bytes
    assert _who(kernel, num_warps) is (OWN if warp_specialize and num_warps < 32 else ALL)


def test_buffers_that_do_not_fit_beside_each_other_are_one_behind_the_other(
    tmp_path: Path,
) -> None:
    """The result reuses the ring's memory after the last load into the ring."""
    source = MATMUL.replace("c.store([i, j], total.to(c.dtype))", "c.store([j, i], total.T)")
    block = (128, 256, 64)
    signature = {
        "a": "tensordesc<bf16[128,64]>",
        "b": "tensordesc<bf16[64,256]>",
        "c": "tensordesc<fp32[256,128]>",
        **dict.fromkeys("MNK", "i32"),
    }
    path = tmp_path / "kernel.py"
    path.write_text(PRELUDE + source, encoding="utf-8")
    constants = tuple(zip(("BM", "BN", "BK"), block, strict=True))
    parts = (str(path), "k", tuple(signature.items()), constants, "sm_90a")
    metadata = compile_kernel(CompileRequest(*parts, Config(8, 4))).metadata
    assert metadata.shared_bytes <= TARGETS["sm_90a"].max_shared_bytes
    assert metadata.num_threads == 32 * 8  # no producer
    assert any("with one the kernel needs" in remark for remark in metadata.remarks)
    assert any("pipelined over 4 stages through tensor copies" in r for r in metadata.remarks)

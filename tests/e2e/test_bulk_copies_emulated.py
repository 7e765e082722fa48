"""Kernels with bulk copies of rows, compiled and run in the emulator, against NumPy.

The emulator counts the bytes of each mbarrier phase. It reports reads of data still in flight or
never written, and refuses copies of other than whole 16-byte pieces inside the arrays.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aotc.backend import assemble
from aotc.compiler import PtxKernel
from aotc.target import TARGETS
from tests.support.descriptors import compiled, launch
from tests.support.row_kernels import COPIED, MASKED, NUM_ROWS, Rows, lengths
from tests.support.stored_rows import STORED, UPDATED, Stored

COPY = "cp.async.bulk.shared::cluster.global"
SEEDS = (0, 1, 2)


def rows_kernel(folder: Path, case: Rows, num_stages: int = 3, **options: Any) -> PtxKernel:
    """Compile a kernel with bulk copies in its loop."""
    constants = {"BLOCK": case.block, "STAGES": num_stages, "WS": False, **case.constants}
    kernel = compiled(folder, case.source, case.types, constants, **options)
    assert COPY in kernel.ptx
    return kernel


def check_rows(kernel: PtxKernel, case: Rows, n: int, seed: int) -> None:
    """Run a kernel on rows of `n` elements and compare."""
    args = case.arguments(n)
    launch(kernel, (NUM_ROWS,), args, seed=seed)
    np.testing.assert_array_equal(args["out_ptr"], case.expected(args), f"{n}, seed {seed}")


@pytest.mark.parametrize("case", COPIED.values(), ids=COPIED)
def test_every_way_to_load_a_run(tmp_path: Path, case: Rows) -> None:
    kernel = rows_kernel(tmp_path, case)
    unit = case.block if case is COPIED["whole"] else 1
    for seed, n in enumerate(lengths(case.block)):
        check_rows(kernel, case, n - n % unit, seed)


@pytest.mark.parametrize("warp_specialize", [None, False])
@pytest.mark.parametrize("num_stages", [2, 5])
@pytest.mark.parametrize("num_warps", [1, 8])
def test_stages_and_roles(
    tmp_path: Path, num_warps: int, num_stages: int, warp_specialize: bool | None
) -> None:
    case = COPIED["other"]
    options = {"num_warps": num_warps, "warp_specialize": warp_specialize}
    kernel = rows_kernel(tmp_path, case, num_stages, **options)
    for seed in SEEDS:
        for n in (0, 16, 7 * case.block + 32):
            check_rows(kernel, case, n, seed)


@pytest.mark.parametrize("warp_specialize", [None, False])
@pytest.mark.parametrize("target", ["sm_90a", "sm_100a", "sm_120a"])
def test_targets_with_bulk_copies(
    tmp_path: Path, target: str, warp_specialize: bool | None
) -> None:
    case = COPIED["evicted"]
    kernel = rows_kernel(tmp_path, case, target=target, warp_specialize=warp_specialize)
    assert f"{COPY}.mbarrier::complete_tx::bytes.L2::cache_hint" in kernel.ptx
    assert assemble(kernel.ptx, TARGETS[target]).warnings == ()
    check_rows(kernel, case, 3 * case.block + 16, 1)


STORE = "cp.async.bulk.global.shared::cta.bulk_group"
REDUCTION = "cp.reduce.async.bulk.global.shared::cta.bulk_group."


@pytest.mark.parametrize("case", UPDATED.values(), ids=UPDATED)
def test_every_way_to_reduce_into_a_run(tmp_path: Path, case: Stored) -> None:
    kernel = compiled(tmp_path, case.source, case.types, case.constants)
    assert REDUCTION in kernel.ptx
    assert assemble(kernel.ptx, TARGETS["sm_90a"]).warnings == ()
    for n in (16, case.block - 16, 3 * case.block + 16):
        args = case.arguments(n)
        expected = case.expected(args)
        launch(kernel, (NUM_ROWS,), args)
        np.testing.assert_array_equal(args["out_ptr"], expected)


@pytest.mark.parametrize("case", STORED.values(), ids=STORED)
@pytest.mark.parametrize("warp_specialize", [None, False])
def test_every_way_to_store_a_run(
    tmp_path: Path, case: Stored, warp_specialize: bool | None
) -> None:
    """Stored elements are doubled; the rest stays: past the row, and where a condition is false."""
    options = {"warp_specialize": warp_specialize}
    kernel = compiled(tmp_path, case.source, case.types, case.constants, **options)
    assert STORE in kernel.ptx
    unit = case.block if case is STORED["whole"] else 1
    for seed, length in enumerate(lengths(case.block)):
        args = case.arguments(length - length % unit, m=1)
        expected = case.expected(args)
        launch(kernel, (NUM_ROWS,), args, seed=seed)
        np.testing.assert_array_equal(args["out_ptr"], expected, f"{length}, seed {seed}")


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a", "sm_120a"])
@pytest.mark.parametrize("num_warps", [1, 8])
def test_stores_of_few_and_many_warps(tmp_path: Path, num_warps: int, target: str) -> None:
    case = STORED["words"]
    options = {"num_warps": num_warps, "target": target}
    kernel = compiled(tmp_path, case.source, case.types, case.constants, **options)
    assert STORE in kernel.ptx
    assert assemble(kernel.ptx, TARGETS[target]).warnings == ()
    for seed in SEEDS:
        args = case.arguments(7 * case.block + 32)
        expected = case.expected(args)
        launch(kernel, (NUM_ROWS,), args, seed=seed)
        np.testing.assert_array_equal(args["out_ptr"], expected)


SOFTMAX = """def k(x_ptr, w_ptr, out_ptr, stride, n_rows, n_cols, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    for row in tl.range(tl.program_id(0), n_rows, tl.num_programs(0), num_stages=4):
        inside = cols < n_cols
        x = tl.load(x_ptr + row * stride + cols, mask=inside, other=-float("inf"))
        w = tl.load(w_ptr + row * stride + cols, mask=inside)
        power = tl.exp(x - tl.max(x, axis=0))
        out = power / tl.sum(power, axis=0) * w
        tl.store(out_ptr + row * stride + cols, out, mask=inside)
"""


@pytest.mark.parametrize("warp_specialize", [None, False])
@pytest.mark.parametrize(("n_rows", "n_cols"), [(1, 16), (7, 500), (5, 512), (0, 16)])
def test_persistent_rows_with_reductions(
    tmp_path: Path, n_rows: int, n_cols: int, warp_specialize: bool | None
) -> None:
    """Two loads an iteration, barriers of the consumers, and stores beside the copies."""
    pointers = dict.fromkeys(("x_ptr", "w_ptr", "out_ptr"), "*fp32:16")
    signature = {**pointers, "stride": "i32:16", "n_rows": "i32", "n_cols": "i32:4"}
    options = {"num_warps": 2, "warp_specialize": warp_specialize}
    kernel = compiled(tmp_path, SOFTMAX, signature, {"BLOCK": 512}, **options)
    assert COPY in kernel.ptx
    stride = -(-n_cols // 16) * 16 + 16
    rng = np.random.default_rng(n_cols)
    x, w = (rng.standard_normal((n_rows, stride)).astype(np.float32) for _ in range(2))
    inner = x[:, :n_cols].astype(np.float64)
    power = np.exp(inner - inner.max(axis=1, keepdims=True, initial=-np.inf))
    expected = power / power.sum(axis=1, keepdims=True) * w[:, :n_cols]
    for seed in SEEDS:
        out = np.full_like(x, 7)
        values = {"x_ptr": x, "w_ptr": w, "out_ptr": out, "stride": stride}
        launch(kernel, (3,), {**values, "n_rows": n_rows, "n_cols": n_cols}, seed=seed)
        np.testing.assert_allclose(out[:, :n_cols], expected, rtol=1e-5, atol=1e-7)
        assert (out[:, n_cols:] == 7).all()


def test_nothing_beyond_a_row_is_read(tmp_path: Path) -> None:
    """The last row ends where its array ends."""
    case = Rows(MASKED.format("0.0"))
    kernel = rows_kernel(tmp_path, case)
    for n in (16, case.block - 16, 2 * case.block + 16):
        args = case.arguments(n)
        args["x_ptr"] = np.ascontiguousarray(args["x_ptr"][:, :n])
        launch(kernel, (NUM_ROWS,), {**args, "stride": n})
        np.testing.assert_array_equal(args["out_ptr"], case.expected(args))

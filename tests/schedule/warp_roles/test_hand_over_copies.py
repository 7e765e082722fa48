"""Gathered rows are copied by producer threads if they can compute the addresses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from aotc.compiler import compile_ptx
from aotc.config import Config
from aotc.frontend import translate
from aotc.ir.core import Kernel, Op
from aotc.ir.dialects import gpu, mbarrier, roles, scf, thread_copy, tma, wgmma
from aotc.schedule.context import Schedule
from aotc.schedule.pipeline import schedule_kernel
from aotc.target import TARGETS
from tests.support.descriptors import PRELUDE, launch
from tests.support.requests import request_of

SOURCE = f"""{PRELUDE}
@triton.jit
def k(a, b, rows, out, M, K, BLOCK: tl.constexpr):
    row, column = tl.arange(0, BLOCK), tl.arange(0, 64)
    at = tl.load(rows + row)
    a_ptrs = a + at[:, None] * K + column[None, :]
    acc = tl.zeros((BLOCK, 64), tl.float32)
    for k in range(0, K, 64):
        BEFORE
        x = tl.load(a_ptrs, mask=(at < M)[:, None] & (column < K - k)[None, :], other=0.0)
        acc = tl.dot(x, b.load([0, k]).T, acc)
        a_ptrs += 64
    tl.store(out + row[:, None] * 64 + column[None, :], acc)
"""
SIGNATURE = {
    "a": "*bf16:16",
    "b": "tensordesc<bf16[64,64]>",
    "rows": "*i32:16",
    "out": "*fp32:16",
    "M": "i32",
    "K": "i32:16",
}


def _scheduled(
    tmp_path: Path,
    block: int = 128,
    before: str = "pass",
    source: str = SOURCE,
    signature: Mapping[str, str] = SIGNATURE,
    **config: int,
) -> tuple[Kernel, str]:
    """Return the scheduled kernel and its remarks."""
    path = tmp_path / "k.py"
    path.write_text(source.replace("BEFORE", before))
    kernel = translate(str(path), "k", signature, {"BLOCK": block}).kernel
    options = {"num_warps": 8, "num_stages": 3, **config}
    schedule = Schedule(TARGETS["sm_90a"], Config.of(options))
    return schedule_kernel(kernel, schedule), "\n".join(map(str, schedule.remarks))


def _roles(kernel: Kernel) -> roles.Specialize:
    (specialize,) = (op for op in kernel.body if isinstance(op, roles.Specialize))
    return specialize


def _ops(ops: roles.Specialize, block: str, *kinds: type[Op]) -> list[Op]:
    return [op for op in getattr(ops, block).walk() if isinstance(op, kinds)]


def test_the_producer_copies_rows_and_consumers_fence_after_the_wait(tmp_path: Path) -> None:
    kernel, remarks = _scheduled(tmp_path)
    assert "threads of the producer copy a" in remarks
    specialize = _roles(kernel)
    assert roles.copies_by_threads(specialize)
    (copy,) = _ops(specialize, "producer", thread_copy.ThreadLoad)
    assert isinstance(copy, thread_copy.ThreadLoad)
    assert copy.num_threads == 128
    assert not _ops(specialize, "consumers", gpu.AsyncCopy)
    steps = _ops(specialize, "consumers", mbarrier.MbarrierWait, tma.ProxyFence, wgmma.Wgmma)
    first = [type(op) for op in steps][:3]
    assert first == [mbarrier.MbarrierWait, tma.ProxyFence, wgmma.Wgmma]
    # One arrival for the tensor copy, and one of each thread.
    counts = [op.count for op in kernel.body if isinstance(op, mbarrier.MbarrierInit)]
    assert counts == [129, 8]


AFTER = """
    more = tl.zeros((64, 64), tl.float32)
    for k in range(0, K, 64):
        more = tl.dot(b.load([0, k]), b.load([64, k]).T, more)
    tl.store(out + 64 * BLOCK + tl.arange(0, 64)[:, None] * 64 + column[None, :], more)
"""


def test_where_threads_copy_nothing_only_the_warp_that_issues_waits(tmp_path: Path) -> None:
    """Consumers do not wait for the other warps, which could sleep through two phases."""
    specialize = _roles(_scheduled(tmp_path, source=SOURCE + AFTER)[0])
    waits = _ops(specialize, "producer", mbarrier.MbarrierWait)
    by_issuer = {
        any(isinstance(op, thread_copy.ThreadLoad) for op in wait.block or ()): wait.by_issuer
        for wait in waits
        if isinstance(wait, mbarrier.MbarrierWait)
    }
    assert by_issuer == {True: False, False: True}


@pytest.mark.parametrize(("block", "num_copies"), [(64, 4), (128, 8), (256, 16)])
def test_more_rows_are_more_addresses_of_a_thread(
    tmp_path: Path, block: int, num_copies: int
) -> None:
    specialize = _roles(_scheduled(tmp_path, block)[0])
    assert roles.num_thread_copies(specialize.producer) == num_copies
    assert roles.num_thread_copies(specialize.consumers) == 0


SCALED = "acc += tl.dot(x, b.load([0, k]).T) * tl.load(rows + k // 64)"
ROWS_SCALED = "acc += tl.dot(x, b.load([0, k]).T) * tl.load(rows + k // 64 + row)[:, None]"


@pytest.mark.parametrize("sum_", [SCALED, ROWS_SCALED])
def test_loads_to_registers_for_later_come_after_wait_and_fence(tmp_path: Path, sum_: str) -> None:
    source = SOURCE.replace("acc = tl.dot(x, b.load([0, k]).T, acc)", sum_)
    specialize = _roles(_scheduled(tmp_path, source=source)[0])
    (loop,) = _ops(specialize, "consumers", scf.For)
    assert isinstance(loop, scf.For)
    kinds = mbarrier.MbarrierWait, tma.ProxyFence, gpu.Load, wgmma.Wgmma
    order = [type(op) for op in loop.body if isinstance(op, kinds)]
    assert order == list(kinds)


def test_without_copies_by_threads_tiles_are_loaded_before_the_wait(tmp_path: Path) -> None:
    """They may take longer than an iteration; a scalar shared by all threads does not."""
    plain = SOURCE.replace("mask=(at < M)[:, None] & (column < K - k)[None, :], other=0.0", "")
    plain = plain.replace("tl.load(a_ptrs, )", "a.load([0, k])").replace("a_ptrs += 64", "pass")
    plain = plain.replace("a_ptrs = a + at[:, None] * K + column[None, :]", "pass")
    kinds = mbarrier.MbarrierWait, gpu.Load
    orders: list[list[type[Op]]] = []
    for sum_ in (SCALED, ROWS_SCALED):
        source = plain.replace("acc = tl.dot(x, b.load([0, k]).T, acc)", sum_)
        signature = SIGNATURE | {"a": "tensordesc<bf16[128,64]>"}
        specialize = _roles(_scheduled(tmp_path, source=source, signature=signature)[0])
        (loop,) = _ops(specialize, "consumers", scf.For)
        assert isinstance(loop, scf.For)
        orders.append([type(op) for op in loop.body if isinstance(op, kinds)])
    assert orders == [list(kinds), list(reversed(kinds))]


def test_copies_are_issued_after_those_of_one_thread(tmp_path: Path) -> None:
    specialize = _roles(_scheduled(tmp_path)[0])
    issued = _ops(specialize, "producer", thread_copy.ThreadLoad, tma.TmaLoad)
    assert [type(op) for op in issued] == [tma.TmaLoad, thread_copy.ThreadLoad]


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ("tl.store(a + k, 1.0)", "the loop writes through a"),
        ("tl.debug_barrier()", ""),
    ],
)
def test_rows_that_the_kernel_may_write_are_left_to_consumers(
    tmp_path: Path, before: str, reason: str
) -> None:
    kernel, remarks = _scheduled(tmp_path, before=before)
    assert not any(isinstance(op, thread_copy.ThreadLoad) for op in kernel.walk())
    assert reason in remarks


def test_a_producer_of_one_warp_copies_nothing(tmp_path: Path) -> None:
    """A limit of registers is a wish for several CTAs on an SM, and leaves the producer one warp."""
    kernel, _ = _scheduled(tmp_path, block=64, num_warps=4, maxnreg=128)
    assert kernel.producer_warps == 1
    assert not any(isinstance(op, thread_copy.ThreadLoad) for op in kernel.walk())


@pytest.mark.emulated
@pytest.mark.parametrize(("block", "num_warps"), [(64, 4), (128, 8)])
@pytest.mark.parametrize("depth", [16, 64, 208])
def test_rows_are_multiplied(tmp_path: Path, block: int, num_warps: int, depth: int) -> None:
    path = tmp_path / "k.py"
    path.write_text(SOURCE.replace("BEFORE", "pass"))
    request = request_of(
        *(str(path), "k", tuple(SIGNATURE.items()), (("BLOCK", block),), "sm_90a"),
        num_warps=num_warps,
        num_stages=3,
    )
    text = compile_ptx(request)
    assert "cp.async.mbarrier.arrive.noinc" in text.ptx
    rng = np.random.default_rng(depth)
    a = rng.integers(-3, 4, (19, depth)).astype(ml_dtypes.bfloat16)
    b = rng.integers(-3, 4, (64, depth)).astype(ml_dtypes.bfloat16)
    rows = rng.integers(0, 23, block).astype(np.int32)
    out = np.full((block, 64), np.nan, np.float32)
    launch(text, (1,), {"a": a, "b": b, "rows": rows, "out": out, "M": 19, "K": depth}, seed=depth)
    wide = np.vstack([a.astype(np.float32), np.zeros((4, depth), np.float32)])
    np.testing.assert_array_equal(out, wide[rows] @ b.astype(np.float32).T)

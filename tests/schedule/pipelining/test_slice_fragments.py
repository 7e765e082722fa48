"""Computed operands of dots in flight: slices in registers of their own."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aotc.backend.ptxas import assemble
from aotc.backend.wgmma_registers import find_hazards
from aotc.ir.core import Kernel, Op
from aotc.ir.dialects import gpu, scf, wgmma
from aotc.ir.tiles import tile_shape
from aotc.ir.types import SharedType
from aotc.schedule.analysis.register_writers import register_writers
from aotc.target import TARGETS
from tests.support.descriptors import compiled, launch, tensor
from tests.support.products import Matmul, emulated, interpreted, ptx_of, scheduled


def _dots(kernel: Kernel) -> list[wgmma.Wgmma]:
    return [op for op in kernel.walk() if isinstance(op, wgmma.Wgmma)]


def _pending(kernel: Kernel) -> list[int]:
    return [op.pending for op in kernel.walk() if isinstance(op, wgmma.WgmmaWait)]


def test_a_computed_operand_is_multiplied_in_two_slices() -> None:
    kernel = interpreted(Matmul(way="scaled", num_stages=4))
    dots = _dots(kernel)
    assert [tile_shape(dot.a) for dot in dots] == [(64, 32), (64, 32)]
    assert [(dot.start_k, dot.size_k) for dot in dots] == [(0, 32), (32, 32)]
    # Only the first one may begin the sum.
    assert [dot.accumulate is None for dot in dots] == [False, True]
    assert _pending(kernel) == [1, 1, 0]


@pytest.mark.parametrize(
    ("block", "num_warps", "slices"),
    [((64, 64, 128), 4, 2), ((128, 64, 128), 4, 4), ((128, 64, 128), 8, 2), ((64, 64, 32), 4, 2)],
)
def test_slices_are_as_long_as_registers_allow(
    block: tuple[int, int, int], num_warps: int, slices: int
) -> None:
    kernel = scheduled(Matmul(way="scaled", block=block, num_warps=num_warps, num_stages=4))
    assert len(_dots(kernel)) == slices


@pytest.mark.parametrize("change", [{"block": (64, 64, 16)}, {"num_stages": 2}])
def test_what_cannot_be_sliced_or_stay_is_waited_for(change: dict[str, Any]) -> None:
    kernel = interpreted(Matmul(way="scaled", **{"num_stages": 4, **change}))
    (dot,) = _dots(kernel)
    assert not isinstance(dot.a.type, SharedType)
    assert _pending(kernel) == [0]


@pytest.mark.emulated
@pytest.mark.parametrize("k", [0, 1, 64, 200])
def test_any_number_of_iterations_is_right(k: int) -> None:
    emulated(Matmul(way="scaled", shape=(64, 64, k), num_stages=4), seed=k)


def test_hardware_waits_for_no_more_than_the_slice_before() -> None:
    """ptxas serializes dots (C75..) whose operands share registers, with a warning."""
    matmul = Matmul(way="scaled", shape=(64, 64, 256), num_stages=4)
    assembly = assemble(ptx_of(matmul), TARGETS["sm_90a"])
    assert not re.search(r"serialized", " ".join(assembly.warnings))
    loops = [op for op in scheduled(matmul).walk() if isinstance(op, scf.For)]
    assert [op.pending for op in loops[-1].body if isinstance(op, wgmma.WgmmaWait)] == [1, 1]


EXCHANGED = Matmul(
    dtype="fp32",
    b_dtype="bf16",
    way="scaled",
    block=(128, 64, 64),
    shape=(128, 64, 256),
    num_warps=8,
    num_stages=4,
)
"""A is converted and then exchanged between threads: it comes to the dot from shared memory."""


def test_an_operand_that_threads_exchange_is_read_slice_by_slice() -> None:
    """Read as a whole, it would be written while the last slice of the iteration before is multiplied."""
    (loop,) = [op for op in interpreted(EXCHANGED).walk() if isinstance(op, scf.For)]
    kinds = (gpu.SharedLoad, wgmma.Wgmma, wgmma.WgmmaWait)
    order = [type(op).__name__ for op in loop.body if isinstance(op, kinds)]
    assert order == ["SharedLoad", "Wgmma", "WgmmaWait"] * 2
    assert not find_hazards(ptx_of(EXCHANGED))


@pytest.mark.emulated
def test_an_operand_that_threads_exchange_is_right() -> None:
    emulated(EXCHANGED, seed=1)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_an_operand_of_two_dots_is_written_after_a_wait(dtype: str) -> None:
    """Neither computes it for itself, so both are whole."""
    matmul = replace(EXCHANGED, dtype=dtype, way="scaled_two_sums", shape=(128, 64, 128))
    (loop,) = [op for op in interpreted(matmul).walk() if isinstance(op, scf.For)]
    order = list(loop.body)
    dots = [op for op in order if isinstance(op, wgmma.Wgmma)]
    early, late = [op for op in order if isinstance(op, wgmma.WgmmaWait)]
    assert [dot.size_k for dot in dots] == [0, 0]
    assert (early.pending, late.pending) == (0, 2)
    (writer,) = register_writers(dots[0].a)
    assert isinstance(writer, Op)
    assert order.index(early) < order.index(writer) < order.index(dots[0])
    assert not find_hazards(ptx_of(matmul))


@pytest.mark.emulated
def test_an_operand_of_two_dots_is_right() -> None:
    emulated(replace(EXCHANGED, way="scaled_two_sums"), seed=2)


SCALED_WEIGHTS = """
def k(x, w, s, c, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for k in tl.range(0, K, BLOCK_K, warp_specialize=True):
        weights = w.load([0, k])
        scale = s.load([k // BLOCK_K, 0]).reshape(BLOCK_N)
        rows = x.load([0, k])
        acc = tl.dot(weights.to(rows.dtype) * scale[:, None], rows.T, acc)
    c.store([0, 0], acc)
"""


@pytest.mark.emulated
def test_what_an_iteration_loads_for_its_dot_is_one_stage(tmp_path: Path) -> None:
    """Consumers wait for weights, scales and rows together, and release them together."""
    signature = {
        "x": "tensordesc<bf16[16,64]>", "w": "tensordesc<i8[64,64]>",
        "s": "tensordesc<bf16[1,64]>", "c": "tensordesc<fp32[64,16]>", "K": "i32",
    }  # fmt: skip
    constants = {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 64}
    kernel = compiled(tmp_path, SCALED_WEIGHTS, signature, constants, num_stages=4)
    assert kernel.ptx.count("mbarrier.try_wait") == 2
    x, w, s = tensor((16, 192), "bf16"), tensor((64, 192), "i8", 1), tensor((3, 64), "bf16", 2)
    c = tensor((64, 16), "fp32")
    launch(kernel, (1,), {"x": x, "w": w, "s": s, "c": c, "K": 192})
    scaled = (w.astype(np.float32) * s.astype(np.float32).T.repeat(64, 1)).astype(x.dtype)
    expected = scaled.astype(np.float64) @ x.astype(np.float64).T
    np.testing.assert_allclose(c, expected, rtol=1e-3, atol=np.abs(expected).max() * 1e-5)

"""Operands that threads compute for dots in flight: in slices, each in registers of its own."""

from __future__ import annotations

import re

import pytest

from aotc.backend.ptxas import assemble
from aotc.ir.core import Kernel
from aotc.ir.dialects import scf, wgmma
from aotc.ir.tiles import tile_shape
from aotc.ir.types import SharedType
from aotc.target import TARGETS
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
def test_what_cannot_be_sliced_or_stay_is_waited_for(change: dict) -> None:
    kernel = interpreted(Matmul(way="scaled", **{"num_stages": 4, **change}))
    (dot,) = _dots(kernel)
    assert not isinstance(dot.a.type, SharedType)
    assert _pending(kernel) == [0]


@pytest.mark.parametrize("k", [0, 1, 64, 200])
def test_any_number_of_iterations_is_right(k: int) -> None:
    emulated(Matmul(way="scaled", shape=(64, 64, k), num_stages=4), seed=k)


def test_hardware_waits_for_no_more_than_the_slice_before() -> None:
    """ptxas serializes dots (C75..) whose operands share registers, and says so."""
    matmul = Matmul(way="scaled", shape=(64, 64, 256), num_stages=4)
    made = assemble(ptx_of(matmul), TARGETS["sm_90a"])
    assert not re.search(r"serialized", " ".join(made.warnings))
    loops = [op for op in scheduled(matmul).walk() if isinstance(op, scf.For)]
    assert [op.pending for op in loops[-1].body if isinstance(op, wgmma.WgmmaWait)] == [1, 1]

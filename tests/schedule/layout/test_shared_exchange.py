"""Operands of matrix products on their way through shared memory: wide, by matrices, no conflicts."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.layout import LinearLayout
from aotc.ir.layout_access import run_elems_in_order
from aotc.ir.matrix_access import RUN_BYTES, matrix_view
from aotc.schedule.layout.conversions import (
    Identity,
    RegisterPermute,
    plan_conversion,
    plan_shared_exchange,
)
from aotc.schedule.layout.layouts import blocked_for, dot_operand, mma_v2
from aotc.schedule.layout.scratch import count_wavefronts
from aotc.schedule.layout.shared_exchange import SharedExchange
from tests.schedule.conversion_simulator import execute, held_by


def loaded(shape: tuple[int, int], bits: int, order: tuple[int, int], num_warps: int):
    """Return the layout of a coalesced load, 16 bytes a thread along the fast axis."""
    elems = [1, 1]
    elems[order[0]] = RUN_BYTES * 8 // bits
    return blocked_for(shape, (elems[0], elems[1]), num_warps, order)


def operand_trip(
    operand: int,
    shape: tuple[int, int],
    warps: tuple[int, int],
    bits: int,
    order: tuple[int, int],
    k_width: int | None = None,
) -> SharedExchange:
    source = loaded(shape, bits, order, warps[0] * warps[1])
    target = dot_operand(operand, shape, warps, bits, k_width)
    trip = plan_shared_exchange(source, target, bits, run_elems=RUN_BYTES * 8 // bits)
    check_conflict_free(trip, source, target, bits)
    return trip


def check_conflict_free(
    trip: SharedExchange, source: LinearLayout, target: LinearLayout, bits: int
) -> None:
    """Count the wavefronts lane by lane, as the banks see them."""
    for layout, mode, vector, skip in (
        (source, trip.store_matrix, trip.store_vector_elems, trip.store_skip_lanes),
        (target, trip.load_matrix, trip.load_vector_elems, 0),
    ):
        view = matrix_view(layout, bits, mode)
        assert view is not None
        count = count_wavefronts(view, trip.scratch, vector, bits, skip)
        assert count.total == count.minimum


ROWS, COLUMNS = (1, 0), (0, 1)  # contiguous along the last axis, or along the first


@pytest.mark.parametrize("warps", [(2, 2), (4, 1), (2, 4), (8, 1)])
@pytest.mark.parametrize("k", [32, 64, 128])
@pytest.mark.parametrize(
    ("operand", "order", "mode"),
    [(0, ROWS, "b16"), (0, COLUMNS, "b16.trans"), (1, ROWS, "b16.trans"), (1, COLUMNS, "b16")],
)
def test_two_byte_operands_of_the_standard_tiles(
    operand: int, order: tuple[int, int], mode: str, k: int, warps: tuple[int, int]
) -> None:
    trip = operand_trip(operand, (128, k) if operand == 0 else (k, 128), warps, 16, order)
    assert (trip.store_matrix, trip.load_matrix) == ("", mode)
    assert trip.store_vector_elems == trip.load_vector_elems == 8


@pytest.mark.parametrize("bits", [8, 32])
@pytest.mark.parametrize("k", [32, 64])
def test_operands_of_other_widths_when_k_is_contiguous(bits: int, k: int) -> None:
    for operand, order in ((0, ROWS), (1, COLUMNS)):
        shape = (64, k) if operand == 0 else (k, 64)
        trip = operand_trip(operand, shape, (2, 2), bits, order)
        assert trip.load_matrix == "b16"
        assert trip.store_vector_elems * bits == 128


@pytest.mark.parametrize("k_width", [4, 8])
def test_the_wider_operand_of_a_mixed_product(k_width: int) -> None:
    """Its neighbours along K are not a matrix's, but still 8 bytes or more per lane."""
    trip = operand_trip(1, (64, 128), (2, 2), 16, ROWS, k_width)
    assert trip.load_matrix == "b16.trans"
    trip = operand_trip(0, (128, 64), (2, 2), 16, ROWS, k_width)
    assert trip.load_vector_elems * 16 >= 64


@pytest.mark.parametrize("warps", [(1, 1), (4, 1), (8, 1)])
@pytest.mark.parametrize("n", [8, 16, 32])
def test_matrices_are_read_in_rows_whatever_else_is_gained(n: int, warps: tuple[int, int]) -> None:
    """Storing element by element, fewer banks collide if columns are swizzled within rows."""
    source = blocked_for((16, n), (1, 1), warps[0], ROWS)
    target = dot_operand(1, (16, n), warps, 32)
    trip = plan_shared_exchange(source, target, 32)
    np.testing.assert_array_equal(execute(trip, held_by(source), 4), held_by(target))


def test_runs_of_memory_stay_together_only_if_they_were_loaded() -> None:
    source, target = loaded((128, 32), 16, ROWS, 4), dot_operand(0, (128, 32), (2, 2), 16)
    run = source.columns("register")[:3]
    for run_elems, num_columns in ((8, 3), (4, 2), (1, 0)):
        trip = plan_shared_exchange(source, target, 16, run_elems=run_elems)
        assert trip.scratch.columns("offset")[:num_columns] == run[:num_columns]


def test_all_runs_of_a_thread_stay_in_order() -> None:
    """Not only the first: no register beyond the run is swizzled into it."""
    source, target = loaded((64, 64), 16, COLUMNS, 4), loaded((64, 64), 16, ROWS, 4)
    trip = plan_shared_exchange(source, target, 16, run_elems=8)
    assert run_elems_in_order(source, trip.scratch) == trip.store_vector_elems == 8
    check_conflict_free(trip, source, target, 16)
    np.testing.assert_array_equal(execute(trip, held_by(source), 2), held_by(target))


def test_a_run_that_costs_too_much_is_broken() -> None:
    """Bytes contiguous along N are read one by one as fragments, or moved as words: the latter."""
    source, target = loaded((64, 128), 8, ROWS, 4), dot_operand(1, (64, 128), (2, 2), 8)
    trip = plan_shared_exchange(source, target, 8, run_elems=16)
    assert trip.load_vector_elems >= 4


@pytest.mark.parametrize("warps", [(4, 1), (8, 1)])
@pytest.mark.parametrize("rows_per_warp", [16, 32])
def test_an_accumulator_becomes_an_operand_in_place(
    rows_per_warp: int, warps: tuple[int, int]
) -> None:
    """The probabilities of attention: rows stay in their warp, registers are at most renamed."""
    for n in (16, 64, 128):
        shape = (warps[0] * rows_per_warp, n)
        plan = plan_conversion(mma_v2(shape, warps), dot_operand(0, shape, warps, 16), 16)
        assert isinstance(plan, RegisterPermute | Identity)


@pytest.mark.parametrize("bits", [16, 32])
def test_results_are_stored_without_conflicts(bits: int) -> None:
    for shape, warps in (((128, 128), (2, 2)), ((64, 256), (2, 4)), ((128, 32), (4, 1))):
        source = mma_v2(shape, warps)
        target = loaded(shape, bits, ROWS, warps[0] * warps[1])
        for stmatrix in (False, True):
            trip = plan_shared_exchange(source, target, bits, stmatrix=stmatrix)
            check_conflict_free(trip, source, target, bits)

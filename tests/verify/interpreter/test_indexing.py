"""Gathers and histograms as kernels around them, and in shared memory, against plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.core import Op
from aotc.ir.dialects import indexing
from aotc.ir.layout import LinearLayout
from aotc.ir.text import parse_kernel
from aotc.verify.interpreter.indexing import INDEXING_RULES
from aotc.verify.interpreter.memory import AccessError
from aotc.verify.interpreter.numerics import Poison
from aotc.verify.interpreter.run import InterpretError, run
from aotc.verify.interpreter.shared_memory import SharedMemory
from tests.support.run_op import run_op

RNG = np.random.default_rng(3)
INT_RANGE = np.iinfo(np.int32)


def test_every_op_has_a_rule() -> None:
    ops = {cls for cls in Op.registry.values() if cls.__module__ == indexing.__name__}
    assert set(INDEXING_RULES) == ops


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("extents", [(1, 1), (1, 8), (8, 1), (16, 4), (4, 64)])
def test_gathers_along_an_axis(axis: int, extents: tuple[int, int]) -> None:
    have, index_extent = extents
    shape, index_shape = (
        ((have, 4), (index_extent, 4)) if axis == 0 else ((4, have), (4, index_extent))
    )
    x = RNG.standard_normal(shape).astype(np.float16)
    index = RNG.integers(0, have, index_shape).astype(np.int32)
    (actual,) = run_op(lambda add, x, i: add(indexing.Gather(x, i, axis)).out, x, index)
    np.testing.assert_array_equal(actual, np.take_along_axis(x, index, axis))


def test_an_index_is_taken_modulo_the_extent() -> None:
    x = np.arange(8, dtype=np.int64)
    index = np.array([-1, 8, -8, 15, INT_RANGE.min, INT_RANGE.max, 7, 0], np.int32)
    (actual,) = run_op(lambda add, x, i: add(indexing.Gather(x, i, 0)).out, x, index)
    assert actual.tolist() == [7, 0, 0, 7, 0, 7, 7, 0]


@pytest.mark.parametrize("num_bins", [1, 2, 64])
@pytest.mark.parametrize("extent", [1, 256])
def test_counts_values_in_each_bin(num_bins: int, extent: int) -> None:
    x = RNG.integers(-2, num_bins + 2, extent).astype(np.int32)
    x[:1] = INT_RANGE.min
    mask = RNG.integers(0, 2, extent).astype(np.bool_)
    all_, masked = run_op(
        lambda add, x, m: [
            add(indexing.Histogram(x, num_bins)).out,
            add(indexing.Histogram(x, num_bins, m)).out,
        ],
        *(x, mask),
    )
    for actual, values in ((all_, x), (masked, x[mask])):
        assert actual.dtype == np.int32
        assert actual.tolist() == [np.count_nonzero(values == number) for number in range(num_bins)]


def test_unsigned_values_beyond_the_signed_ones_are_in_no_bin() -> None:
    x = np.array([0, 1, 2**31, 2**32 - 1], np.uint32)
    (actual,) = run_op(lambda add, x: add(indexing.Histogram(x, 4)).out, x)
    assert actual.tolist() == [1, 1, 0, 0]


# ---- shared memory ----------------------------------------------------------------------------

LAYOUT = LinearLayout({"register": [(4,)], "lane": [(1,), (2,)], "warp": [(8,)]}, (16,))
COPIES = LinearLayout({"register": [(4,)], "lane": [(1,), (2,)], "warp": [(0,)]}, (8,))
BINS = LinearLayout({"offset": [(1,), (2,), (4,), (8,)]}, (16,))
EVERY = np.ones(16, np.bool_)


def _counting() -> tuple[SharedMemory, np.ndarray]:
    shared = SharedMemory(Poison(0))
    addresses = shared.place("bins", BINS, 4, 0)
    shared.store(addresses, np.zeros(16, np.int32), LAYOUT)
    shared.barrier()
    return shared, addresses


def test_all_warps_count_at_one_place() -> None:
    shared, addresses = _counting()
    shared.count(np.full(16, addresses[3]), EVERY, LAYOUT)
    shared.count(addresses, EVERY, LAYOUT)
    shared.barrier()
    loaded = shared.load(addresses, np.dtype(np.int32), LAYOUT)
    assert loaded.tolist() == [17 if number == 3 else 1 for number in range(16)]


def test_copies_count_once_and_masked_values_never() -> None:
    shared, addresses = _counting()
    shared.count(addresses[:8], np.arange(8) < 5, COPIES)
    shared.barrier()
    loaded = shared.load(addresses, np.dtype(np.int32), LAYOUT)
    assert loaded.tolist() == [1] * 5 + [0] * 11


@pytest.mark.parametrize("access", ["load", "store"])
def test_counts_need_a_barrier(access: str) -> None:
    shared, addresses = _counting()
    shared.count(addresses, EVERY, LAYOUT)
    with pytest.raises(AccessError, match="which counting touched since the last barrier"):
        if access == "load":
            shared.load(addresses, np.dtype(np.int32), LAYOUT)
        else:
            shared.store(addresses, np.zeros(16, np.int32), LAYOUT)


@pytest.mark.parametrize("access", ["load", "store"])
def test_counting_over_another_warps_accesses_needs_a_barrier(access: str) -> None:
    shared, addresses = _counting()
    if access == "load":
        shared.load(addresses, np.dtype(np.int32), LAYOUT)
    else:
        shared.store(addresses, np.zeros(16, np.int32), LAYOUT)
    with pytest.raises(AccessError, match="which warp 0 touched"):
        shared.count(np.full(16, addresses[0]), EVERY, LAYOUT)


_RACE = """
#0 = #ll<register=[] lane=[[1],[2],[4],[8],[16]] warp=[[32]] : [64]>
#1 = #ll<offset=[[1],[2],[4],[8],[16],[32]] : [64]>
kernel @k(%x: *i32) {num_warps = 2} {
  %i = tile.arange {start = 0, end = 64, layout = #0} : tile<64xi32, #0>
  %c = arith.constant {value = 63, type = tile<64xi32, #0>} : tile<64xi32, #0>
  %back = arith.sub(%c, %i) : tile<64xi32, #0>
  %b = gpu.shared_alloc {element = i32, shape = [64], layout = #1, offset_bytes = 0} : shared<64xi32, #1>
  gpu.shared_store(%i, %b) {vector = 1}
  BARRIER
  %g = gpu.shared_gather(%b, %INDEX) {axis = 0} : tile<64xi32, #0>
  %xs = tile.splat(%x) {shape = [64], layout = #0} : tile<64x*i32, #0>
  %at = arith.addptr(%xs, %i) : tile<64x*i32, #0>
  gpu.store(%at, %g, _) {vector = 1}
  scf.return
}
"""


@pytest.mark.parametrize(
    ("index", "barrier", "races"),
    [("back", "gpu.barrier", False), ("back", "", True), ("i", "", False)],
)
def test_a_gather_touches_only_its_elements(index: str, barrier: str, races: bool) -> None:
    kernel = parse_kernel(_RACE.replace("BARRIER", barrier).replace("INDEX", index))
    out = np.zeros(64, np.int32)
    if races:
        with pytest.raises(InterpretError, match="since the last barrier"):
            run(kernel, (1,), [out])
        return
    run(kernel, (1,), [out])
    assert out.tolist() == list(range(64) if index == "i" else reversed(range(64)))

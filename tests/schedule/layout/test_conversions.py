"""Every plan is executed literally and must put each element where the destination says."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.ir import gf2
from aotc.ir.diagnostics import IRError
from aotc.ir.layout import LinearLayout
from aotc.ir.matrix_access import matrix_view
from aotc.schedule.layout.conversions import (
    Conversion,
    Identity,
    RegisterPermute,
    SharedExchange,
    WarpShuffle,
    plan_conversion,
    plan_shared_exchange,
    plan_warp_shuffle,
)
from aotc.schedule.layout.layouts import (
    blocked,
    blocked_for,
    default_blocked,
    dot_operand,
    mma_v2,
    replicated,
    wgmma_accumulator,
)
from aotc.schedule.layout.scratch import count_wavefronts
from tests.schedule.conversion_simulator import NOTHING, execute, held_by
from tests.support.extent import examples

ELEMENT_BITS = (8, 16, 32, 64)


def check(
    plan: Conversion, source: LinearLayout, destination: LinearLayout, element_bits: int
) -> None:
    actual = execute(plan, held_by(source), element_bits // 8)
    np.testing.assert_array_equal(actual, held_by(destination))


def check_every_way(
    source: LinearLayout,
    destination: LinearLayout,
    element_bits: int,
    max_scratch_bytes: int | None = None,
) -> None:
    chosen = plan_conversion(source, destination, element_bits, max_scratch_bytes)
    trip = plan_shared_exchange(source, destination, element_bits, max_scratch_bytes)
    shuffle = plan_warp_shuffle(source, destination, element_bits)
    by_matrices = plan_shared_exchange(source, destination, element_bits, stmatrix=True)
    run_elems = min(16 * 8 // element_bits, source.in_size("register"))
    by_runs = plan_shared_exchange(source, destination, element_bits, run_elems=run_elems)
    for plan in (by_matrices, by_runs):
        check(plan, source, destination, element_bits)
    for plan in (chosen, trip, shuffle):
        if plan is not None:
            check(plan, source, destination, element_bits)
            assert plan.cost >= chosen.cost
    # Threads that do not store still compute an address.
    stored = (*trip.store_lane_columns, *trip.store_warp_columns)
    assert all(column % trip.store_vector_elems == 0 for column in stored)


# ---- random layouts ---------------------------------------------------------------------------


@st.composite
def distributed(draw: st.DrawFn, num_bits: int, warp_bits: int) -> LinearLayout:
    """A layout of a tile of `num_bits` bits, with replicas in the spare bits.

    About one in three is an arbitrary invertible map, the others permute bits.
    """
    columns = list(draw(st.permutations([1 << bit for bit in range(num_bits)])))
    if num_bits > 1 and draw(st.integers(0, 2)) == 0:
        for into, of in draw(st.lists(st.tuples(*[st.integers(0, num_bits - 1)] * 2), max_size=9)):
            columns[into] ^= columns[of] if into != of else 0
    any_element = st.integers(0, (1 << num_bits) - 1)
    extra = draw(st.lists(st.one_of(st.just(0), any_element), max_size=2))
    thread_bits = 5 + warp_bits
    slots = list(draw(st.permutations(range(thread_bits))))
    num_lane_bits = draw(st.integers(max(0, num_bits - 6), thread_bits))
    threads = [0] * thread_bits
    for slot, column in zip(slots[:num_lane_bits], columns, strict=False):
        threads[slot] = column
    for slot in slots[min(num_lane_bits, num_bits) :]:
        threads[slot] = draw(st.one_of(st.just(0), any_element))
    registers = draw(st.permutations([*columns[num_lane_bits:], *extra]))
    ins = [("register", registers), ("lane", threads[:5]), ("warp", threads[5:])]
    return LinearLayout.from_columns(ins, (("dim0", num_bits),))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[LinearLayout, LinearLayout]:
    num_bits, warp_bits = draw(st.integers(0, 10)), draw(st.integers(0, 2))
    return draw(distributed(num_bits, warp_bits)), draw(distributed(num_bits, warp_bits))


@st.composite
def pairs_within_warps(draw: st.DrawFn) -> tuple[LinearLayout, LinearLayout]:
    source = draw(distributed(draw(st.integers(3, 9)), 1))
    registers = source.columns("register")
    columns = list(draw(st.permutations([*registers, *source.columns("lane")])))
    for into, of in draw(st.lists(st.tuples(*[st.integers(0, len(columns) - 1)] * 2), max_size=4)):
        columns[into] ^= columns[of] if into != of else 0
    warps = [
        column ^ gf2.combine(columns, draw(st.integers(0, (1 << len(columns)) - 1)))
        if draw(st.booleans())
        else column
        for column in source.columns("warp")
    ]
    copies = draw(st.lists(st.sampled_from([0, *columns]), max_size=1))
    ins = [
        ("register", [*columns[: len(registers)], *copies]),
        ("lane", columns[len(registers) :]),
        ("warp", warps),
    ]
    return source, LinearLayout.from_columns(ins, source.outs)


@settings(max_examples=examples(60), deadline=None)
@given(pairs(), st.sampled_from(ELEMENT_BITS), st.sampled_from([None, 64, 256, 1024]))
def test_random_pairs(
    pair: tuple[LinearLayout, LinearLayout], element_bits: int, max_scratch_bytes: int | None
):
    check_every_way(*pair, element_bits, max_scratch_bytes)


@settings(max_examples=examples(60), deadline=None)
@given(pairs_within_warps(), st.sampled_from(ELEMENT_BITS))
def test_random_pairs_within_warps(pair: tuple[LinearLayout, LinearLayout], element_bits: int):
    source, destination = pair
    assert plan_warp_shuffle(source, destination, element_bits) is not None
    check_every_way(source, destination, element_bits)


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_scratch_layouts_of_permutations_have_no_conflicts(data: st.DataObject):
    num_bits = data.draw(st.integers(6, 11))
    source, destination = (
        LinearLayout.from_columns(
            [("register", bits[6:]), ("lane", bits[:5]), ("warp", bits[5:6])], (("dim0", num_bits),)
        )
        for bits in (
            data.draw(st.permutations([1 << bit for bit in range(num_bits)])) for _ in range(2)
        )
    )
    check_no_conflicts(source, destination, data.draw(st.sampled_from(ELEMENT_BITS)))


# ---- the layouts kernels have -----------------------------------------------------------------


def named_layouts(element_bits: int) -> dict[str, LinearLayout]:
    shape, vector = (64, 64), 128 // element_bits
    return {
        "rows": blocked_for(shape, (1, vector), 4),
        "row of elements": default_blocked(shape, 4),
        "columns": blocked_for(shape, (vector, 1), 4, (0, 1)),
        "column of elements": blocked_for(shape, (1, 1), 4, (0, 1)),
        "squares": blocked(shape, (2, 2), (4, 8), (2, 2), (1, 0)),
        "mma": mma_v2(shape, (2, 2)),
        "wgmma": wgmma_accumulator(shape, (1, 1)),
        "operand a": dot_operand(0, shape, (2, 2), min(32, element_bits)),
        "operand b": dot_operand(1, shape, (2, 2), min(32, element_bits)),
    }


def check_no_conflicts(
    source: LinearLayout, destination: LinearLayout, element_bits: int
) -> SharedExchange:
    plan = plan_shared_exchange(source, destination, element_bits)
    skip = plan.store_skip_lanes
    views = (
        matrix_view(source, element_bits, plan.store_matrix),
        matrix_view(destination, element_bits, plan.load_matrix),
    )
    assert views[0] is not None
    assert views[1] is not None
    stores = count_wavefronts(views[0], plan.scratch, plan.store_vector_elems, element_bits, skip)
    loads = count_wavefronts(views[1], plan.scratch, plan.load_vector_elems, element_bits)
    assert stores.total == stores.minimum
    assert loads.total == loads.minimum
    return plan


@pytest.mark.parametrize("element_bits", ELEMENT_BITS)
def test_no_bank_conflicts_between_named_layouts(element_bits: int):
    layouts = named_layouts(element_bits)
    for source, destination in permutations(layouts, 2):
        plan = check_no_conflicts(layouts[source], layouts[destination], element_bits)
        widest_bytes = max(plan.store_vector_elems, plan.load_vector_elems) * element_bits // 8
        assert widest_bytes >= 8, f"{source} to {destination}"


@pytest.mark.parametrize("element_bits", ELEMENT_BITS)
@pytest.mark.parametrize(
    ("source", "destination"),
    [("rows", "columns"), ("mma", "row of elements"), ("squares", "operand b"), ("wgmma", "rows")],
)
def test_named_layouts_land(source: str, destination: str, element_bits: int):
    layouts = named_layouts(element_bits)
    check_every_way(layouts[source], layouts[destination], element_bits)


def test_transposition_is_wide_on_one_side():
    """The widest vectors of a transposition have no element pair in common."""
    layouts = named_layouts(32)
    plan = plan_shared_exchange(layouts["rows"], layouts["columns"], 32)
    assert {plan.store_vector_elems, plan.load_vector_elems} == {1, 4}
    assert plan.scratch_bytes == 64 * 64 * 4
    assert plan.num_repetitions == 1


# ---- reduce -> reshape -> reshape -> broadcast ------------------------------------------------


@settings(max_examples=examples(50), deadline=None)
@given(st.data())
def test_reduce_reshape_reshape_broadcast(data: st.DataObject):
    """A run of registers longer than its part of a scratch shape."""
    rows = 1 << data.draw(st.integers(0, 7))
    columns = 1 << data.draw(st.integers(0, 6))
    num_warps = data.draw(st.sampled_from([1, 2, 4]))
    per_thread = data.draw(st.sampled_from([(1, 1), (4, 1), (1, 4), (2, 2), (8, 1)]))
    order = data.draw(st.sampled_from([(0, 1), (1, 0)]))
    reduced = blocked_for((rows, columns), per_thread, num_warps, order).reduce(1)
    inner = 1 << data.draw(st.integers(0, rows.bit_length() - 1))
    middle = 1 << data.draw(st.integers(0, inner.bit_length() - 1))
    reshaped = reduced.reshape((rows // inner, inner))
    reshaped = reshaped.reshape((rows // inner, middle, 1, inner // middle))
    wide = (rows // inner, middle, 4, inner // middle)
    vector = data.draw(st.sampled_from([1, 2, 4]))
    target = blocked_for(
        wide, (1, 1, vector, 1), num_warps, tuple(data.draw(st.permutations(range(4))))
    )
    element_bits = data.draw(st.sampled_from(ELEMENT_BITS))
    limit = data.draw(st.sampled_from([None, 16, 64, 256]))
    for source in (reshaped, reshaped.remove_zero_bases("register")):
        check_every_way(source, target.broadcast_source(reshaped.shape), element_bits, limit)


def test_vectors_are_no_wider_than_one_repetition():
    """Registers run over 4 elements, but a scratch of 8 bytes holds 2 of them."""
    source = LinearLayout({"register": [(1,), (2,)], "lane": [(0,)] * 5, "warp": []}, (4,))
    target = LinearLayout({"register": [(2,), (1,)], "lane": [(0,)] * 5, "warp": []}, (4,))
    assert plan_shared_exchange(source, target, 32).store_vector_elems == 4
    plan = plan_shared_exchange(source, target, 32, max_scratch_bytes=8)
    assert (plan.store_vector_elems, plan.load_vector_elems) == (2, 2)
    assert (plan.num_repetitions, plan.scratch_bytes) == (2, 8)
    check(plan, source, target, 32)


# ---- choice of plan ---------------------------------------------------------------------------


def test_equal_layouts_need_nothing():
    layout = default_blocked((64, 64), 4)
    assert plan_conversion(layout, layout, 16) == Identity()


def test_register_permutation_with_copies_on_either_side():
    lanes = [(4 << bit,) for bit in range(5)]
    slim = LinearLayout({"register": [(1,), (2,)], "lane": lanes, "warp": []}, (128,))
    fat = LinearLayout({"register": [(2,), (0,), (1,)], "lane": lanes, "warp": []}, (128,))
    plan = plan_conversion(slim, fat, 16)
    assert plan == RegisterPermute((0, 2, 0, 2, 1, 3, 1, 3))
    back = plan_conversion(fat, slim, 16)
    assert back == RegisterPermute((0, 4, 1, 5))
    check(plan, slim, fat, 16)
    check(back, fat, slim, 16)


def test_every_thread_of_a_replicated_tile_has_what_it_needs_from_it():
    """The register depends on the thread: selects, but no shuffle."""
    source, target = replicated((64,), 1), default_blocked((64,), 1)
    plan = plan_warp_shuffle(source, target, 32)
    assert plan is not None
    assert plan.is_butterfly
    assert {entry.lane_xor for entry in plan.rounds} == {0}
    check(plan, source, target, 32)


def lane_register_exchange(num_exchanged: int) -> tuple[LinearLayout, LinearLayout]:
    """Two registers bits; `num_exchanged` of them trade places with lane bits."""
    registers, lanes = [1, 2], [4, 8, 16, 32, 64]
    source = LinearLayout.from_columns(
        [("register", registers), ("lane", lanes), ("warp", ())], (("dim0", 7),)
    )
    for bit in range(num_exchanged):
        registers[bit], lanes[bit] = lanes[bit], registers[bit]
    return source, source.with_columns("register", registers).with_columns("lane", lanes)


@pytest.mark.parametrize(("num_exchanged", "shuffles"), [(1, 2), (2, 3)])
def test_exchanging_lane_and_register_bits_is_a_butterfly(num_exchanged: int, shuffles: int):
    source, target = lane_register_exchange(num_exchanged)
    plan = plan_conversion(source, target, 32)
    assert isinstance(plan, WarpShuffle)
    assert plan.is_butterfly
    assert sum(entry.lane_xor != 0 for entry in plan.rounds) == shuffles
    assert len(plan.send_swaps) == len(plan.receive_swaps) == num_exchanged
    check(plan, source, target, 32)


@pytest.mark.parametrize(("element_bits", "rounds"), [(8, 1), (16, 2), (32, 4), (64, 4)])
def test_narrow_elements_travel_together(element_bits: int, rounds: int):
    lanes = [(4 << bit,) for bit in range(5)]
    bases = {"register": [(1,), (2,)], "lane": lanes, "warp": []}
    source = LinearLayout(bases, (128,))
    target = LinearLayout({**bases, "lane": lanes[::-1]}, (128,))
    plan = plan_conversion(source, target, element_bits)
    assert isinstance(plan, WarpShuffle)
    assert len(plan.rounds) == rounds
    assert len(plan.send_pack) == max(1, min(4, 32 // element_bits))
    check(plan, source, target, element_bits)


def test_several_lanes_wanting_different_words_of_one_lane():
    """Broadcast lanes leave no other lane to ask, so rounds repeat and lanes accept one each."""
    source = LinearLayout(
        {"register": [(1,)], "lane": [(0,), (2,), (4,), (8,), (16,)], "warp": [(0,)]}, (32,)
    )
    target = LinearLayout(
        {"register": [], "lane": [(2,), (1,), (4,), (8,), (16,)], "warp": [(0,)]}, (32,)
    )
    plan = plan_warp_shuffle(source, target, 32)
    assert plan is not None
    check(plan, source, target, 32)


def test_large_exchanges_go_through_shared_memory():
    """Cheaper by wavefronts than by shuffles, and each warp needs to wait for itself only."""
    source = blocked((64, 64), (8, 1), (2, 16), (4, 1), (1, 0))
    target = blocked((64, 64), (1, 8), (16, 2), (4, 1), (1, 0))
    plan = plan_conversion(source, target, 32)
    assert isinstance(plan, SharedExchange)
    assert plan.within_warp
    shuffle = plan_warp_shuffle(source, target, 32)
    assert shuffle is not None
    assert plan.cost < shuffle.cost


def test_warps_that_hold_copies_do_not_store():
    source = default_blocked((32,), 4)
    target = LinearLayout({"register": [], "lane": [(0,)] * 5, "warp": [(0,)] * 2}, (32,))
    target = target.with_columns("register", (1, 2, 4, 8, 16))
    plan = plan_shared_exchange(source, target, 32)
    assert plan.store_skip_warps == 0b11
    assert plan.store_skip_lanes == 0
    assert not plan.within_warp
    check(plan, source, target, 32)


def test_a_lane_that_copies_a_register_narrows_the_vector():
    """Its thread stores nothing, but an address inside a vector would be no address."""
    lanes = [(1,), (8,), (0,), (0,), (0,)]
    source = LinearLayout({"register": [(1,), (2,), (4,)], "lane": lanes, "warp": []}, (16,))
    target = LinearLayout(
        {"register": [(8,)], "lane": [(1,), (2,), (4,), (0,), (0,)], "warp": []}, (16,)
    )
    plan = plan_shared_exchange(source, target, 16)
    assert plan.store_skip_lanes == 0b11101
    assert plan.store_vector_elems == 4
    check_every_way(source, target, 16)


def test_repetitions_use_the_registers_both_sides_share():
    source = blocked((32, 64), (1, 1), (1, 32), (4, 1), (1, 0))
    target = blocked((32, 64), (1, 1), (32, 1), (1, 4), (0, 1))
    whole = plan_shared_exchange(source, target, 32)
    limited = plan_shared_exchange(source, target, 32, max_scratch_bytes=4096)
    assert (whole.scratch_bytes, whole.num_repetitions) == (8192, 1)
    assert limited.scratch_bytes <= 8192
    assert limited.num_repetitions * limited.scratch_bytes == 8192
    assert limited.cost >= whole.cost
    check(limited, source, target, 32)


def test_booleans_are_bytes():
    source, target = default_blocked((64, 64), 4), mma_v2((64, 64), (2, 2))
    assert plan_shared_exchange(source, target, 1) == plan_shared_exchange(source, target, 8)


# ---- CTAs of a cluster ------------------------------------------------------------------------


def in_cluster(layout: LinearLayout) -> LinearLayout:
    """Put the tile's first half into block 0 and its second half into block 1."""
    return (
        layout.concat(0)
        .with_columns("register", layout.columns("register"))
        .with_columns("block", (layout.concat(0).columns("register")[-1],))
    )


def test_each_block_of_a_cluster_converts_its_part():
    source, target = default_blocked((16, 64), 4), blocked_for((16, 64), (4, 1), 4, (0, 1))
    plan = plan_conversion(source, target, 16)
    clustered = plan_conversion(in_cluster(source), in_cluster(target), 16)
    assert isinstance(plan, SharedExchange)
    assert isinstance(clustered, SharedExchange)
    assert clustered.scratch.in_dims == ("offset", "block")
    assert replace(clustered, scratch=plan.scratch) == plan


def test_data_of_another_block_is_not_moved():
    source = in_cluster(default_blocked((16, 64), 4))
    with pytest.raises(IRError, match="between blocks"):
        plan_conversion(source, source.with_columns("block", (1,)), 16)
    whole = default_blocked((32, 64), 4).with_columns("block", source.columns("block"))
    with pytest.raises(IRError, match="in one block"):
        plan_conversion(source, whole, 16)


@pytest.mark.parametrize(
    ("source", "destination", "message"),
    [
        (default_blocked((64,), 4), default_blocked((32,), 4), "no conversion between tiles"),
        (default_blocked((64,), 4), default_blocked((64,), 2), "number of warps"),
        (
            default_blocked((64,), 4),
            default_blocked((64,), 4).transpose_ins(("lane", "register", "warp")),
            "in this order",
        ),
    ],
)
def test_layouts_must_be_of_one_tile_and_block(
    source: LinearLayout, destination: LinearLayout, message: str
):
    with pytest.raises(IRError, match=message):
        plan_conversion(source, destination, 32)


def test_simulator_notices_a_wrong_plan():
    source, target = lane_register_exchange(1)
    plan = plan_warp_shuffle(source, target, 32)
    assert plan is not None
    broken = replace(plan, receive_swaps=())
    with pytest.raises(AssertionError):
        check(broken, source, target, 32)
    unfinished = execute(replace(plan, rounds=plan.rounds[:-1]), held_by(source), 4)
    assert (unfinished == NOTHING).any()

"""Which fetches go together, and which slots of their rings are whose."""

from __future__ import annotations

import pytest

from aotc.config import Config
from aotc.ir.core import Kernel
from aotc.ir.dialects import arith, gpu
from aotc.ir.rewrite import Builder
from aotc.ir.types import I32
from aotc.schedule.context import Schedule
from aotc.schedule.warp_roles.choose_warp_roles import choose_warp_roles
from aotc.schedule.warp_roles.fetch_groups import (
    RingTurn,
    first_slot,
    make_group,
    next_state,
    ring_of,
    runs_of,
    slot_number,
    slot_of,
)
from aotc.target import TARGETS
from tests.support.fetching import branch, fetch, fetching, loop, read

BOTH = fetch("a", "%i") + fetch("b", "%i", "%z")
RUNS = {
    "beside each other": (BOTH + read("a") + read("b"), [2]),
    "a look between": (fetch("a", "%i") + read("a") + fetch("b", "%i"), [1, 1]),
    "a look within a branch": (
        fetch("a", "%i") + branch("%c", read("a")) + fetch("b", "%i") + read("b"),
        [1, 1],
    ),
    "a fetch within a branch": (
        fetch("a", "%i") + branch("%c", fetch("b", "%i") + read("b")) + fetch("d", "%i"),
        [1, 1, 1],
    ),
    "a wait for other grids": (fetch("a", "%i") + "  grid.wait\n" + fetch("b", "%i"), [1, 1]),
    "none": ("", []),
}


@pytest.mark.parametrize("case", RUNS)
def test_fetches_with_no_look_between_go_together(case: str) -> None:
    body, sizes = RUNS[case]
    assert [len(run) for run in runs_of(fetching(loop(body)).body)] == sizes


def _ringed(num_stages: int) -> Kernel:
    kernel = fetching(loop(BOTH + read("a") + read("b")))
    choose_warp_roles(kernel, Schedule(TARGETS["sm_90a"], Config(2, num_stages)))
    return kernel


@pytest.mark.parametrize(
    ("num_stages", "num_owners", "each"),
    [(4, 1, 4), (1, 1, 1), (4, 2, 2), (7, 2, 3), (3, 2, 2), (2, 3, 2), (1, 3, 1), (9, 3, 3)],
)
def test_owners_share_slots_out(num_stages: int, num_owners: int, each: int) -> None:
    kernel = _ringed(num_stages)
    (run,) = runs_of(kernel.body)
    place = Builder(kernel.body, kernel.body.first)
    group = make_group(0, run, place, num_owners)
    assert group.num_stages == each
    rings = [ring_of(fetch) for fetch in run]
    assert [ring.num_stages for ring in rings] == [each * num_owners] * 2
    assert all(ring.block is kernel.body for ring in rings)
    for barrier in (group.full, group.empty):
        assert isinstance(barrier.op, gpu.SharedAlloc)
        assert barrier.op.num_stages == each * num_owners


@pytest.mark.parametrize("num_stages", [1, 2, 4])
def test_an_owner_counts_its_slots_from_its_first(num_stages: int) -> None:
    kernel = _ringed(num_stages)
    (run,) = runs_of(kernel.body)
    place = Builder(kernel.body, kernel.body.first)
    group = make_group(0, run, place, 2)
    number, zero = (place(arith.Constant(value, I32)).out for value in (1, 0))
    first = first_slot(number, group, place)
    assert first is not None
    assert isinstance(first.op, arith.Mul)
    turn = RingTurn(zero, zero, first)
    here, before = (slot_number(group, turn, place, behind) for behind in (0, 1))
    if group.num_stages == 1:
        assert here is before is first
    else:
        assert isinstance(here.op, arith.Add)
        assert isinstance(before.op, arith.Add)
        assert (here.op.lhs, here.op.rhs) == (first, zero)
        back = before.op.rhs.op
        assert isinstance(back, gpu.NextStage)
        assert (back.ahead, back.num_stages) == (group.num_stages - 1, group.num_stages)
    slot = slot_of(group.full, group, turn, place).op
    assert isinstance(slot, gpu.SharedStage)
    assert slot.buffer is group.full


@pytest.mark.parametrize("num_stages", [1, 3])
def test_who_shares_all_slots_goes_on_by_one(num_stages: int) -> None:
    kernel = _ringed(num_stages)
    (run,) = runs_of(kernel.body)
    place = Builder(kernel.body, kernel.body.first)
    group = make_group(0, run, place, 1)
    zero = place(arith.Constant(0, I32)).out
    assert first_slot(zero, group, place) is None
    slot, parity = next_state([zero, zero], group, place)
    assert isinstance(parity.op, arith.Xor)
    if num_stages == 1:
        assert slot is zero
        assert slot_of(group.full, group, RingTurn(zero, zero), place) is group.full
    else:
        assert isinstance(slot.op, gpu.NextStage)
        before = slot_of(group.full, group, RingTurn(zero, zero), place, behind=1).op
        assert isinstance(before, gpu.SharedStage)
        assert before.ahead == num_stages - 1

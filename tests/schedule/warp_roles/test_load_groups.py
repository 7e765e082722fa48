"""Tensor loads grouped into a stage, and ring stages divided among owners."""

from __future__ import annotations

import pytest

from aotc.config import Config
from aotc.ir.dialects import arith, gpu
from aotc.ir.rewrite import Builder
from aotc.ir.types import I32
from aotc.schedule.context import Schedule
from aotc.schedule.shared_memory.mbarrier_ring import RingPosition
from aotc.schedule.warp_roles.choose_warp_roles import choose_warp_roles
from aotc.schedule.warp_roles.load_groups import (
    LoadGroup,
    adjacent_loads,
    buffers_of,
    initial_state,
    make_group,
)
from aotc.target import TARGETS
from tests.support.tensor_loads import branch, either, kernel_of, load, loop, read

BOTH = load("a", "%i") + load("b", "%i", "%z")
GROUPS = {
    "beside each other": (BOTH + read("a") + read("b"), [2]),
    "a read between": (load("a", "%i") + read("a") + load("b", "%i"), [1, 1]),
    "a read within a branch": (
        load("a", "%i") + branch("%c", read("a")) + load("b", "%i") + read("b"),
        [1, 1],
    ),
    "a load within a branch": (
        load("a", "%i") + branch("%c", load("b", "%i") + read("b")) + load("d", "%i"),
        [1, 1, 1],
    ),
    "a wait for other grids": (load("a", "%i") + "  grid.wait\n" + load("b", "%i"), [1, 1]),
    "none": ("", []),
}


@pytest.mark.parametrize("case", GROUPS)
def test_loads_with_no_read_between_go_together(case: str) -> None:
    body, sizes = GROUPS[case]
    assert [len(loads) for loads in adjacent_loads(kernel_of(loop(body)).body)] == sizes


def _grouped(num_stages: int, num_owners: int) -> tuple[LoadGroup, Builder]:
    """Return a group of two loads with rings, and where its mbarriers are."""
    kernel = kernel_of(loop(BOTH + read("a") + read("b")))
    choose_warp_roles(kernel, Schedule(TARGETS["sm_90a"], Config(2, num_stages)))
    (loads,) = adjacent_loads(kernel.body)
    builder = Builder(kernel.body, kernel.body.first)
    return make_group([], loads, builder, 2, num_owners), builder


@pytest.mark.parametrize(
    ("num_stages", "num_owners", "num_stages_owned"),
    [(4, 1, 4), (1, 1, 1), (4, 2, 2), (7, 2, 3), (3, 2, 2), (2, 3, 2), (1, 3, 1), (9, 3, 3)],
)
def test_owners_share_stages_out(num_stages: int, num_owners: int, num_stages_owned: int) -> None:
    group, builder = _grouped(num_stages, num_owners)
    assert group.ring.num_stages == num_stages_owned
    allocs = [buffers_of(num_stages_owned) for num_stages_owned in group.loads]
    assert [alloc.num_stages for alloc in allocs] == [num_stages_owned * num_owners] * 2
    assert all(alloc.block is builder.block for alloc in allocs)
    for barrier in (group.ring.full, group.ring.empty):
        assert barrier is not None
        assert isinstance(barrier.op, gpu.SharedAlloc)
        assert barrier.op.num_stages == num_stages_owned * num_owners


@pytest.mark.parametrize("num_stages", [1, 2, 4])
def test_an_owner_counts_its_stages_from_its_first(num_stages: int) -> None:
    group, builder = _grouped(num_stages, 2)
    number, zero = (builder(arith.Constant(value, I32)).out for value in (1, 0))
    first = group.ring.first_stage(number, builder)
    assert first is not None
    assert isinstance(first.op, arith.Mul)
    position = group.position([zero, zero], first)
    assert position == RingPosition(zero, zero, first)
    current, before = (group.ring.stage_index(position, builder, back) for back in (0, 1))
    if group.ring.num_stages == 1:
        assert current is before is first
    else:
        assert isinstance(current.op, arith.Add)
        assert isinstance(before.op, arith.Add)
        assert (current.op.lhs, current.op.rhs) == (first, zero)
        back = before.op.rhs.op
        assert isinstance(back, gpu.NextStage)
        stages = group.ring.num_stages
        assert (back.ahead, back.num_stages) == (stages - 1, stages)
    stage = group.ring.stage(group.ring.full, position, builder).op
    assert isinstance(stage, gpu.SharedStage)
    assert stage.buffer is group.ring.full


@pytest.mark.parametrize("num_stages", [1, 3])
def test_who_shares_all_stages_goes_on_by_one(num_stages: int) -> None:
    group, builder = _grouped(num_stages, 1)
    state = initial_state([group])
    assert group.ring.first_stage(state[0], builder) is None
    index, parity = group.advanced(state, builder)
    assert isinstance(parity.op, arith.Xor)
    full, position = group.ring.full, group.position(state)
    if num_stages == 1:
        assert index is state[0]
        assert group.ring.stage(full, position, builder) is full
    else:
        assert isinstance(index.op, gpu.NextStage)
        before = group.ring.stage(full, position, builder, before=1).op
        assert isinstance(before, gpu.SharedStage)
        assert before.ahead == num_stages - 1


# ---- rings of several loops -------------------------------------------------------------------


def _groups_of(body: str, num_stages: int = 3, num_owners: int = 1) -> list[LoadGroup]:
    """Return the groups of a kernel."""
    kernel = kernel_of(body)
    choose_warp_roles(kernel, Schedule(TARGETS["sm_90a"], Config(2, num_stages)))
    builder = Builder(kernel.body, kernel.body.first)
    groups: list[LoadGroup] = []
    for loads in list(adjacent_loads(kernel.body)):
        groups.append(make_group(groups, loads, builder, 2, num_owners))
    return groups


A, B = load("a", "%i") + read("a"), load("b", "%i") + read("b")
C, D = load("d", "%j") + read("d"), load("e", "%j") + read("e")
SHARING = {
    "loops one after the other": (loop(A) + loop(C, variable="j"), [0, 0]),
    "two groups in each": (loop(A + B) + loop(C + D, variable="j"), [0, 1, 0, 1]),
    "more in the second": (loop(A) + loop(C + D, variable="j"), [0, 0, 1]),
    "more in the first": (loop(A + B) + loop(C, variable="j"), [0, 1, 0]),
    "loads together": (loop(BOTH + read("a") + read("b")) + loop(C, variable="j"), [0, 1]),
    "in one loop": (loop(A + B), [0, 1]),
    "one loop within another": (loop(A + loop(C, variable="j")), [0, 1]),
    "outside of a loop": (load("a", "%n") + read("a") + loop(C, variable="j"), [0, 1]),
    "outside, read before": (
        load("a", "%n") + read("a") + loop(C, variable="j") + load("b", "%n") + read("b"),
        [0, 1, 0],
    ),
    "outside, read afterwards": (
        load("a", "%n") + loop(C, variable="j") + load("b", "%n") + read("b") + read("a"),
        [0, 1, 2],
    ),
    "outside, in another block": (
        load("a", "%n")
        + read("a")
        + loop(C, variable="j")
        + branch("%c", load("b", "%n") + read("b")),
        [0, 1, 2],
    ),
    "under a branch": (loop(A) + branch("%c", loop(C, variable="j")), [0, 0]),
    "in one arm of a branch or the other": (loop(either("%c", A, B)), [0, 0]),
    "in either arm, and after a branch": (
        loop(either("%c", A, B) + load("d", "%i") + read("d")),
        [0, 0, 1],
    ),
    "in the arms of a branch in an arm": (
        loop(either("%c", A, either("%c", B, load("d", "%i") + read("d")))),
        [0, 0, 0],
    ),
    "of other sizes in either arm": (
        loop(either("%c", BOTH + read("a") + read("b"), D.replace("%j", "%i"))),
        [0, 1],
    ),
    "read after the branch with the other": (
        load("a", "%n")
        + either("%c", load("b", "%n") + read("b"), load("d", "%n") + read("d"))
        + read("a"),
        [0, 1, 1],
    ),
    "in a loop each": (
        loop(loop(A), variable="k") + loop(loop(C, variable="j"), variable="l"),
        [0, 1],
    ),
}


@pytest.mark.parametrize("num_owners", [1, 2])
@pytest.mark.parametrize("case", SHARING)
def test_which_groups_share_a_ring(case: str, num_owners: int) -> None:
    body, rings = SHARING[case]
    groups = _groups_of(body, 4, num_owners)
    assert [group.index for group in groups] == rings
    assert len(initial_state(groups)) == 2 * len(set(rings))
    for group in groups:
        first = groups[rings.index(group.index)]
        assert group.ring is first.ring
        assert [*map(buffers_of, group.loads)] == [*map(buffers_of, first.loads)]


def test_loads_that_do_not_run_ahead_share_nothing() -> None:
    groups = _groups_of(loop(A) + loop(C, variable="j"), num_stages=1)
    assert [group.index for group in groups] == [0, 1]

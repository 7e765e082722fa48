"""Consumer groups: selected kernels, order of turns, and private resources."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.config import Config
from aotc.ir.core import Kernel
from aotc.ir.dialects import gpu, roles, scf, tma
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.types import SharedType
from aotc.ir.verify import verify
from aotc.schedule.context import Schedule
from aotc.schedule.shared_memory.allocate_shared import allocate_shared
from aotc.schedule.shared_memory.insert_barriers import insert_barriers
from aotc.schedule.warp_roles.choose_warp_roles import choose_warp_roles
from aotc.schedule.warp_roles.specialize_warps import specialize_warps
from aotc.target import TARGETS
from aotc.verify.interpreter.run import InterpretError, run
from tests.support.tensor_loads import branch, check_same_results, copy, kernel_of, load, loop, read

INNER = loop(load("b", "%j", "%z") + read("b"), variable="j")
TILES = loop(INNER + copy("a", "%i"))


def _divided(kernel: Kernel, groups: int = 2, num_stages: int = 4) -> list[str]:
    """Divide the roles of a kernel for groups; return the remarks."""
    config = Config(kernel.num_warps, num_stages, num_consumer_groups=groups)
    schedule = Schedule(TARGETS["sm_90a"], config)
    for run_pass in (choose_warp_roles, specialize_warps, allocate_shared, insert_barriers):
        run_pass(kernel, schedule)
        verify(kernel)
    printed = print_kernel(kernel)
    assert print_kernel(parse_kernel(printed)) == printed
    return schedule.remarks


# ---- selected kernels -------------------------------------------------------------------------

STORE = "  gpu.store(%p, %n)\n"
AT = "  %q = arith.addptr(%p, %i) : *i32\n"
EXCHANGED = (
    load("w", "%i") + read("w") + "  %e = cluster.permute(%w) {to = [1, 0]} : tile<128xi32, #1>\n"
)
LOADED = "  %v = gpu.load(%p) : i32\n"
CARRIES = TILES.replace("scf.for(%zero, %n, %one) (%i: i32)", "%r = CARRIED (%i: i32, %x0: i32)", 1)
CARRIES = CARRIES.replace("CARRIED", "scf.for(%zero, %n, %one, %zero)")
CARRIES = CARRIES[: CARRIES.rindex("scf.yield()")] + "scf.yield(%i)\n  } : i32\n"
OBSTACLES = {
    "one loop": (loop(copy("a", "%i")), "no loop contains all tensor loads and a mainloop"),
    "loaded outside": (load("e", "%n") + read("e") + TILES, "no loop contains all tensor loads"),
    "two loops": (
        TILES + loop(copy("d", "%k"), variable="k"),
        "no loop contains all tensor loads",
    ),
    "carried": (CARRIES, "the loop over tiles carries values from one to the next"),
    "stored outside": (TILES + STORE, "gpu.store is outside of the loop over tiles"),
    "one place": (loop(INNER + STORE), "gpu.store writes the same place in every tile"),
    "one block": (
        loop(INNER + copy("a", "%n")),
        "gpu.tma_store writes the same place in every tile",
    ),
    "in a branch": (loop(INNER + branch("%c", STORE)), "gpu.store writes the same place"),
    "by the inner loop": (
        loop(loop(copy("b", "%j", "%z"), variable="j")),
        "gpu.tma_store writes the same place in every tile",
    ),
    "read and written": (
        loop(INNER + LOADED + AT + "  gpu.store(%q, %v)\n"),
        "a tile may read what another one writes",
    ),
    "exchanged": (
        loop(INNER + EXCHANGED),
        "CTAs of the cluster exchange tiles, in one order",
    ),
    "volatile": (
        loop(INNER + LOADED.replace(" :", " {volatile = true} :")),
        "a volatile load keeps tiles in order",
    ),
}


@pytest.mark.parametrize("case", OBSTACLES)
def test_what_is_in_the_way_is_said(case: str) -> None:
    body, reason = OBSTACLES[case]
    kernel = kernel_of(body, num_warps=4)
    remarks = _divided(kernel)
    assert kernel.num_consumer_groups == 1
    assert kernel.producer_warps == 1
    assert any(f"one consumer group, not 2: {reason}" in remark for remark in remarks)
    assert not [op for op in kernel.walk() if isinstance(op, roles.ConsumerGroup)]


@pytest.mark.parametrize(
    ("num_warps", "groups", "reason"),
    [(2, 2, "2 warps are no whole warpgroups"), (16, 2, "a CTA has no room for 33 warps")],
)
def test_groups_are_warpgroups_of_a_block(num_warps: int, groups: int, reason: str) -> None:
    kernel = kernel_of(TILES, num_warps=num_warps)
    remarks = _divided(kernel, groups)
    assert kernel.num_consumer_groups == 1
    assert any(reason in remark for remark in remarks)


@pytest.mark.parametrize("num_groups", [1, 2])
def test_nobody_is_promised_groups_without_a_producer(num_groups: int) -> None:
    kernel = kernel_of(loop(LOADED), num_warps=4)
    remarks = _divided(kernel, num_groups)
    assert kernel.num_consumer_groups == 1
    reason = "one consumer group, not 2: the kernel has no producer warp"
    assert [reason in remark for remark in remarks] == [True] * (num_groups - 1)


# ---- order and private resources --------------------------------------------------------------


def _roles(kernel: Kernel) -> roles.Specialize:
    (specialize,) = (op for op in kernel.body if isinstance(op, roles.Specialize))
    return specialize


@pytest.mark.parametrize("groups", [2, 3])
def test_a_group_runs_what_is_its_turn(groups: int) -> None:
    kernel = kernel_of(TILES, num_warps=4)
    remarks = _divided(kernel, groups)
    assert kernel.num_consumer_groups == groups
    assert any(f"{groups} consumer groups of 4 warps ping-pong" in remark for remark in remarks)
    outer = next(op for op in _roles(kernel).consumers if isinstance(op, scf.For))
    (turn,) = (op for op in outer.body if isinstance(op, scf.If))
    assert [op.num_stages for op in outer.body if isinstance(op, gpu.NextStage)] == [groups]
    touched = [op for op in turn.then.walk() if isinstance(op, tma.TmaStore | gpu.SharedLoad)]
    assert len(touched) == 3
    assert [op.opcode for op in turn.orelse] == ["scf.yield"]


@pytest.mark.parametrize(
    ("groups", "num_stages", "stages_per_group"), [(2, 4, 2), (2, 7, 3), (3, 4, 2), (2, 1, 1)]
)
def test_groups_without_an_order_have_slots_of_their_own(
    groups: int, num_stages: int, stages_per_group: int
) -> None:
    kernel = kernel_of(TILES, num_warps=4)
    _divided(kernel, groups, num_stages)
    rings = [op.out.type for op in kernel.body if isinstance(op, gpu.SharedAlloc)]
    assert all(isinstance(kind, SharedType) for kind in rings)
    # Loads of the inner loop and of the outer one, with two mbarriers each.
    stages = sorted(kind.num_stages for kind in rings if isinstance(kind, SharedType))
    assert stages == sorted([groups] * 3 + [groups * stages_per_group] * 3)


def test_what_consumers_allocate_is_there_for_each() -> None:
    first, two = kernel_of(TILES, num_warps=4), kernel_of(TILES, num_warps=4)
    _divided(first, 1, 1)
    _divided(two, 2, 1)
    allocs = [op for op in _roles(two).consumers.walk() if isinstance(op, gpu.SharedAlloc)]
    common = [op for op in two.body if isinstance(op, gpu.SharedAlloc)]
    assert [(op.group_bytes, len(allocs)) for op in allocs] == [(512, 1)]
    assert not any(op.group_bytes for op in common)
    end = max(op.offset_bytes + op.num_stages * 8 for op in common)
    assert allocs[0].offset_bytes >= end
    assert two.shared_bytes == allocs[0].offset_bytes + 2 * 512


# ---- results ----------------------------------------------------------------------------------

FLOWS = {
    "nested": TILES,
    "the tile first": loop(copy("a", "%i") + INNER),
    "in a branch": loop(INNER + branch("%c", copy("a", "%i"))),
    "in both": loop(branch("%c", INNER) + copy("a", "%i")),
}


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize(("groups", "num_stages"), [(2, 1), (2, 4), (3, 3)])
def test_groups_do_together_what_the_kernel_did(flow: str, groups: int, num_stages: int) -> None:
    """Under the interpreter, which tracks permitted accesses."""
    whole, divided = (kernel_of(FLOWS[flow], num_warps=4) for _ in range(2))
    _divided(divided, groups, num_stages)
    assert divided.num_consumer_groups == groups
    check_same_results(whole, divided, (0, 1, 2, 3, 7))


def _run(kernel: Kernel) -> None:
    x, z = (np.arange(128 * 9, dtype=np.int32) for _ in range(2))
    run(kernel, (1,), [x, z, np.zeros_like(x), np.zeros(1, np.int32), 5, False])


def test_a_buffer_that_two_groups_write_is_found() -> None:
    kernel = kernel_of(TILES, num_warps=4)
    _divided(kernel)
    for op in _roles(kernel).consumers.walk():
        if isinstance(op, gpu.SharedAlloc):
            op.group_bytes = 0
    with pytest.raises(InterpretError, match="in warp 4 touches shared byte"):
        _run(kernel)


def test_a_slot_of_another_group_is_found() -> None:
    kernel = kernel_of(TILES, num_warps=4)
    _divided(kernel)
    group = next(op for op in kernel.walk() if isinstance(op, roles.ConsumerGroup)).out
    for op in list(group.users):
        if isinstance(op, gpu.SharedStage):
            op.set_slots([op.buffer, op.index])
    firsts = [op for op in group.users if op.opcode == "arith.mul"]
    assert firsts
    for op in firsts:
        zero = next(
            constant for constant in kernel.body if constant.opcode == "arith.constant"
        ).results[0]
        op.replace_with([zero])
    with pytest.raises(InterpretError, match="waits for ever|not landed|did not say|more often"):
        _run(kernel)

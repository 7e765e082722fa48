"""Warps of different roles in LLVM IR and PTX: who goes where, who waits with whom, who issues."""

from __future__ import annotations

import re

import pytest

from aotc.backend import assemble, emit_ptx, lower_kernel
from aotc.config import Config
from aotc.ir.core import Kernel
from aotc.ir.dialects import gpu, roles, scf
from aotc.ir.rewrite import Builder
from aotc.schedule.context import Schedule
from aotc.schedule.shared_memory.allocate_shared import allocate_shared
from aotc.schedule.shared_memory.insert_barriers import insert_barriers
from aotc.schedule.warp_roles.choose_warp_roles import choose_warp_roles
from aotc.schedule.warp_roles.specialize_warps import specialize_warps
from aotc.target import TARGETS
from tests.support.tensor_loads import copy, kernel_of, load, loop, read

BODY = loop(load("a", "%i") + load("b", "%i", "%z") + read("a") + read("b"))


def _divided(
    num_warps: int = 4, registers: tuple[int, int] = (0, 0), body: str = BODY, groups: int = 1
) -> Kernel:
    kernel = kernel_of(body, num_warps=num_warps)
    schedule = Schedule(TARGETS["sm_90a"], Config(num_warps, num_consumer_groups=groups))
    for run_pass in (choose_warp_roles, specialize_warps):
        run_pass(kernel, schedule)
    (specialize,) = (op for op in kernel.body if isinstance(op, roles.Specialize))
    # The consumers meet in their loop.
    consuming = next(op for op in specialize.consumers.walk() if isinstance(op, scf.For))
    Builder.before_op(consuming.body.terminator)(gpu.Barrier())
    for run_pass in (allocate_shared, insert_barriers):
        run_pass(kernel, schedule)
    kernel.producer_warps = 4 if registers[0] else kernel.producer_warps
    specialize.consumer_registers, specialize.producer_registers = registers
    return kernel


def _ptx(kernel: Kernel, target: str = "sm_90a") -> str:
    text = emit_ptx(lower_kernel(kernel, TARGETS[target]).llvm_ir, TARGETS[target])
    return text.replace(" \t", " ")


@pytest.mark.parametrize(("num_warps", "all_warps"), [(2, 3), (4, 5), (16, 17)])
def test_a_launch_has_the_threads_of_both(num_warps: int, all_warps: int) -> None:
    ptx = _ptx(_divided(num_warps))
    assert re.search(rf"\.reqntid {32 * all_warps}\b", ptx)
    # The first thread of a role is told by its number.
    assert re.search(rf"setp\.\w+\.[us]32 .*, {32 * num_warps - 1};|, {32 * num_warps};", ptx)


def test_the_consumers_wait_with_each_other_and_the_kernel_with_all() -> None:
    text = lower_kernel(_divided(4), TARGETS["sm_90a"]).llvm_ir
    before, _, inside = text.partition("consume")
    assert re.findall(r"barrier\.cta\.sync\.aligned\.(\w+)\((.*?)\)", before.split("declare")[-1])
    assert "barrier.cta.sync.aligned.all(i32 0)" in text
    named = re.findall(r"call void @llvm.nvvm.barrier.cta.sync.aligned.count\((.*?)\)", inside)
    assert named == ["i32 1, i32 128"]


def test_one_lane_of_the_producer_issues_all_copies_of_a_stage() -> None:
    """Consumers issue nothing between, and the first lane of each warp arrives."""
    ptx = _ptx(_divided(4))
    copies = [line.strip() for line in ptx.splitlines() if "cp.async.bulk.tensor" in line]
    assert len(copies) == 2
    assert not any(line.startswith("@") for line in copies)
    announced = re.findall(r"mbarrier\.(\S+) .*, 512;", ptx)
    assert announced == [
        "expect_tx.relaxed.cta.shared::cta.b64",
        "arrive.expect_tx.shared::cta.b64",
    ]
    produced = ptx.rpartition("mbarrier.try_wait")[2]
    assert produced.count("elect.sync") == 1
    assert produced.index("elect.sync") < produced.index("mbarrier.expect_tx")
    arrive = "mbarrier.arrive.shared::cta.b64"
    assert ptx.count(arrive) == 1
    before, _, after = ptx.partition(arrive)
    branch = before[before.rindex("bar.warp.sync") :]
    assert "bra others;" in branch
    assert "elect.sync" not in branch
    assert after.split(";")[1].split() == ["others:", "bar.warp.sync", "0xffffffff"]


def test_one_warp_produces_with_all_its_lanes() -> None:
    """In a warpgroup with moved registers, the first warp does; stages are in uniform registers."""
    for kernel, num_branches in ((_divided(4), 0), (_divided(8, (232, 40)), 1)):
        text = lower_kernel(kernel, TARGETS["sm_90a"]).llvm_ir
        other = text.partition("\nother")[2].partition("call void asm")[0]
        if num_branches:
            assert "\nproduce" in other
        other = other.partition("\nproduce")[0]
        assert "elect.sync" not in other
        assert other.count("br i1") >= num_branches


def test_every_slot_has_its_mbarriers() -> None:
    """Three stages, full and empty; one copy fills a stage, four warps give it back."""
    counts = re.findall(r"mbarrier\.init\.shared::cta\.b64 [^;]*, (\d+);", _ptx(_divided(4)))
    assert counts == ["1"] * 3 + ["4"] * 3


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a", "sm_120a"])
def test_registers_are_moved_before_anything_else(target: str) -> None:
    kernel = _divided(8, (232, 40))
    ptx = _ptx(kernel, target)
    more, fewer = "setmaxnreg.inc.sync.aligned.u32 232", "setmaxnreg.dec.sync.aligned.u32 40"
    assert ptx.count(more) == ptx.count(fewer) == 1
    assert ptx.index(more) < ptx.index("mbarrier.try_wait")
    assert ".minnctapersm 1" in ptx
    assembly = assemble(ptx, TARGETS[target])
    assert assembly.warnings == ()
    assert assembly.registers <= 168


def test_registers_stay_where_they_are_not_moved() -> None:
    ptx = _ptx(_divided(8))
    assert "setmaxnreg" not in ptx
    assert "minnctapersm" not in ptx
    assert assemble(ptx, TARGETS["sm_90a"]).warnings == ()


# ---- several groups of consumers --------------------------------------------------------------

NESTED = loop(copy("a", "%i") + loop(load("b", "%j", "%z") + read("b"), variable="j"))


@pytest.mark.parametrize(("num_warps", "groups"), [(4, 2), (4, 3), (8, 2)])
def test_groups_have_threads_and_barriers_of_their_own(num_warps: int, groups: int) -> None:
    kernel = _divided(num_warps, body=NESTED, groups=groups)
    text = lower_kernel(kernel, TARGETS["sm_90a"]).llvm_ir
    threads = 32 * num_warps
    ptx = _ptx(kernel)
    assert re.search(rf"\.reqntid {groups * threads + 32}\b", ptx)
    # Group sizes are powers of two: a warp's number is its group's and that within it.
    shift = threads.bit_length() - 1
    numbers = re.search(rf"(%v\d+) = lshr i32 (%v\d+), {shift}\n", text)
    assert numbers is not None
    assert f"= and i32 {numbers[2]}, {threads - 1}\n" in text
    group = re.search(rf"(%v\d+) = .*shfl\.sync\.idx.*i32 {numbers[1]}, i32 0,", text)
    assert group is not None
    barrier = re.search(rf"(%v\d+) = add i32 {group[1]}, 10\n", text)
    assert barrier is not None
    named = re.findall(r"call void @llvm.nvvm.barrier.cta.sync.aligned.count\((.*?)\)", text)
    assert set(named) == {f"i32 {barrier[1]}, i32 {threads}"}
    assert assemble(ptx, TARGETS["sm_90a"]).warnings == ()


def test_warpgroups_of_all_groups_have_a_barrier_each() -> None:
    kernel = _divided(8, body=NESTED, groups=2)
    (specialize,) = (op for op in kernel.body if isinstance(op, roles.Specialize))
    for op in specialize.consumers.walk():
        if isinstance(op, gpu.Barrier):
            op.warpgroup = True
    text = lower_kernel(kernel, TARGETS["sm_90a"]).llvm_ir
    groups = re.findall(r"(%v\d+) = lshr i32 %v\d+, 8\n", text)
    group = re.search(rf"(%v\d+) = .*shfl\.sync\.idx.*i32 {groups[0]}, i32 0,", text)
    assert group is not None
    first = re.search(rf"(%v\d+) = mul i32 {group[1]}, 2\n", text)
    assert first is not None
    match = re.search(rf"(%v\d+) = add i32 %v\d+, {first[1]}\n", text)
    assert match is not None
    number = re.search(rf"(%v\d+) = add i32 {match[1]}, 2\n", text)
    assert number is not None
    assert f"sync.aligned.count(i32 {number[1]}, i32 128)" in text

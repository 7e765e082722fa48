"""Tensor loads issued iterations ahead by the kernel's own warps: stages, phases, refusals."""

from __future__ import annotations

import re

import numpy as np
import pytest

from aotc.config import Config
from aotc.ir.core import Kernel
from aotc.ir.dialects import gpu, mbarrier, scf, tma
from aotc.ir.text import print_kernel
from aotc.ir.verify import verify
from aotc.schedule.context import Schedule
from aotc.schedule.pipelining.expand_tensor_loads import expand_tensor_loads
from aotc.schedule.pipelining.pipeline_loads import pipeline_loads
from aotc.schedule.shared_memory.allocate_shared import allocate_shared
from aotc.schedule.shared_memory.insert_barriers import insert_barriers
from aotc.schedule.warp_roles.choose_warp_roles import choose_warp_roles
from aotc.target import TARGETS
from aotc.verify.interpreter.run import run
from tests.support.tensor_loads import ALLOC, branch, copy, keep, kernel_of, load, loop, read


def _pipelined(kernel: Kernel, num_stages: int = 3) -> list[str]:
    """Lower the loads of a kernel and return the remarks."""
    config = Config(kernel.num_warps, num_stages, warp_specialize=False)
    schedule = Schedule(TARGETS["sm_90a"], config)
    for run_pass in (
        choose_warp_roles,
        pipeline_loads,
        expand_tensor_loads,
        allocate_shared,
        insert_barriers,
    ):
        run_pass(kernel, schedule)
        verify(kernel)
    assert not kernel.producer_warps
    return schedule.remarks


BOTH = read("a") + read("b") + keep("a") + keep("b")


def _loop(kernel: Kernel) -> scf.For:
    return next(op for op in kernel.walk() if isinstance(op, scf.For))


def test_an_iteration_waits_then_issues_then_reads() -> None:
    kernel = kernel_of(loop(load("a", "%i") + load("b", "%i", "%z") + BOTH))
    remarks = _pipelined(kernel)
    assert remarks[-1].endswith("the loop is pipelined over 3 stages through tensor copies: x, z")
    body = [op for op in _loop(kernel).body.walk() if op.opcode.startswith("gpu.")]
    kinds = (mbarrier.MbarrierWait, gpu.Barrier, tma.TmaLoad, gpu.SharedLoad)
    assert [op.opcode for op in body if isinstance(op, kinds)] == [
        *("gpu.mbarrier_wait", "gpu.shared_load", "gpu.barrier", "gpu.tma_load", "gpu.tma_load"),
        "gpu.shared_load",
    ]
    loads = [op for op in body if isinstance(op, tma.TmaLoad)]
    assert [op.arrive for op in loads] == [False, True]
    stages = [op.buffer.op for op in loads]
    assert [op.ahead for op in stages if isinstance(op, gpu.SharedStage)] == [2, 2]


@pytest.mark.parametrize("num_stages", [2, 3, 5])
def test_before_the_loop_come_the_first_iterations_that_exist(num_stages: int) -> None:
    kernel = kernel_of(loop(load("a", "%i") + read("a") + keep("a")))
    _pipelined(kernel, num_stages)
    early = [op for op in kernel.body if isinstance(op, scf.If)]
    assert len(early) == num_stages - 1
    for op in early:
        assert [type(branch_op) for branch_op in op.then] == [tma.TmaLoad, scf.Yield]
        assert [type(branch_op) for branch_op in op.orelse] == [scf.Yield]


def test_one_stage_is_not_ahead() -> None:
    kernel = kernel_of(loop(load("a", "%i") + read("a")))
    _pipelined(kernel, 1)
    kinds = (mbarrier.MbarrierWait, tma.TmaLoad, gpu.SharedLoad)
    opcodes = [op.opcode for op in _loop(kernel).body if isinstance(op, kinds)]
    assert opcodes == ["gpu.tma_load", "gpu.mbarrier_wait", "gpu.shared_load"]


def test_phases_are_carried_by_all_loops_around() -> None:
    inner = loop(load("a", "%j") + read("a") + keep("a"), variable="j")
    kernel = kernel_of(loop(branch("%c", inner)))
    _pipelined(kernel)
    text = print_kernel(kernel)
    assert re.search(r"scf\.for\(%zero, %n, %one, %\w+\) \(%i: i32, %phases: i32\)", text)
    assert re.search(r"\(%j: i32, %stage: i32, %phases_1: i32\)", text)
    assert re.search(r"} \(\) {\n\s+scf\.yield\(%phases\)", text)


FLOWS = {
    "a loop": loop(copy("a", "%i")),
    "nested": loop(copy("a", "%i") + loop(copy("b", "%j", "%z"), variable="j")),
    "in a branch": loop(branch("%c", loop(copy("a", "%j"), variable="j")) + copy("b", "%i", "%z")),
    "around": copy("a", "%n") + loop(copy("b", "%i")) + copy("e", "%zero", "%z"),
    "one after the other": loop(copy("a", "%i")) + loop(copy("b", "%j", "%z"), variable="j"),
    "in a loop with a condition": (
        '  %end = scf.while(%zero) (%t: i32) {\n  %more = arith.compare(%t, %n) {predicate = "lt"}'
        " : i1\n  scf.condition(%more, %t)\n  } (%u: i32) {\n"
        + loop(copy("a", "%i"))
        + "  %next = arith.add(%u, %one) : i32\n  scf.yield(%next)\n  } : i32\n"
    ),
    "in the condition of a loop": (
        "  %end = scf.while(%zero) (%t: i32) {\n"
        + loop(copy("a", "%i"))
        + '  %more = arith.compare(%t, %n) {predicate = "lt"} : i1\n  scf.condition(%more, %t)\n'
        "  } (%u: i32) {\n  %next = arith.add(%u, %one) : i32\n  scf.yield(%next)\n  } : i32\n"
    ),
}


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("num_stages", [1, 2, 3])
def test_the_kernel_does_what_it_did(flow: str, num_stages: int) -> None:
    """Under the interpreter, which tracks permitted accesses."""
    before, after = kernel_of(FLOWS[flow]), kernel_of(FLOWS[flow])
    _pipelined(after, num_stages)
    rng = np.random.default_rng(1)
    x, z = (rng.integers(0, 99, 128 * 9, np.int32) for _ in range(2))
    for n in (0, 1, 2, 5):
        outputs: list[np.ndarray] = []
        for kernel in (before, after):
            y = np.zeros_like(x)
            args = [x, z, y, np.zeros(1, np.int32), n, n % 2 == 1]
            run(kernel, (1,), args, check_races=kernel is after)
            outputs.append(y)
        np.testing.assert_array_equal(outputs[0], outputs[1])


REFUSED = {
    "a branch": (branch("%c", load("a", "%i") + read("a")), "x", "it is under a branch"),
    "a barrier": (
        copy("a", "%i") + "  tile.barrier\n",
        "x",
        "tile.barrier before it keeps memory accesses in order",
    ),
    "a store": (copy("a", "%i").replace("%y", "%x"), "x", "the kernel writes x, too"),
    "two writers": (
        load("a", "%i") + read("a") + "  gpu.sync_tma_load(%z, %a_buffer, %i)\n" + read("a", "d"),
        "x",
        "its buffer is used in other ways, too",
    ),
    "other grids": (
        "  grid.wait\n" + load("a", "%i") + read("a"),
        "x",
        "the loop waits for other grids",
    ),
}


@pytest.mark.parametrize("obstacle", REFUSED)
def test_what_keeps_a_fetch_in_its_iteration_is_named(obstacle: str) -> None:
    body, name, reason = REFUSED[obstacle]
    kernel = kernel_of(loop(body))
    remarks = _pipelined(kernel)
    assert any(line.endswith(f"the load of {name} is not pipelined: {reason}") for line in remarks)
    assert "num_stages" not in print_kernel(kernel)


def test_a_buffer_of_a_block_around_is_not_the_loops_own() -> None:
    body = f"  %a_buffer = {ALLOC}\n" + loop("  gpu.sync_tma_load(%x, %a_buffer, %i)\n" + read("a"))
    remarks = _pipelined(kernel_of(body))
    assert any("its buffer is not the loop's own" in line for line in remarks)

"""Oversized kernels are refused before code generation, with the largest users and a remedy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aotc.config import Config
from aotc.frontend import translate
from aotc.ir.core import Kernel
from aotc.ir.diagnostics import CompileError, ResourceError
from aotc.ir.dialects import gpu
from aotc.limits import DEFAULT_LIMITS
from aotc.schedule.context import Schedule
from aotc.schedule.pipeline import schedule_kernel
from aotc.schedule.shared_memory.check_resources import (
    check_instructions,
    check_resources,
    register_remedy,
)
from aotc.target import TARGETS
from tests.schedule.analysis.test_live_registers import POINTERS, SOURCE, WARPS, scheduled
from tests.support.descriptors import lowered

SM_80, SM_90 = TARGETS["sm_80"], TARGETS["sm_90a"]


MULTIPLY = {"a_ptr": "*bf16:16", "b_ptr": "*bf16:16", "c_ptr": "*fp32:16", "K": "i32:16"}


def matmul(rows: int, columns: int, block_k: int) -> Kernel:
    sizes = {"M": rows, "N": columns, "BLOCK_K": block_k}
    return scheduled("multiply", MULTIPLY, sizes)


def refused(kernel: Kernel, **limits: int) -> ResourceError:
    with pytest.raises(ResourceError) as caught:
        check_resources(kernel, SM_80, replace(DEFAULT_LIMITS, **limits))
    return caught.value


def test_shared_memory_to_the_byte() -> None:
    kernel = matmul(64, 64, 64)
    for size, fits in ((SM_80.max_shared_bytes, True), (SM_80.max_shared_bytes + 1, False)):
        kernel.shared_bytes = size
        if fits:
            check_resources(kernel, SM_80, DEFAULT_LIMITS)
        else:
            assert refused(kernel).message.startswith(f"{size} bytes of shared memory")


def test_too_much_shared_memory_names_the_buffers_and_what_helps() -> None:
    kernel = matmul(128, 128, 512)
    error = refused(kernel)
    assert f"{kernel.shared_bytes} bytes of shared memory, the limit is 166912" in error.message
    assert "128x512xbf16 at large_tiles.py:43 (131072 bytes)" in error.message
    assert error.remedy == "smaller tiles"
    check_resources(matmul(128, 128, 64), SM_80, DEFAULT_LIMITS)


@pytest.mark.parametrize(
    ("block_k", "num_stages", "fitting_stages"),
    [(128, 5, 5), (128, 6, 5), (128, 9, 5), (256, 5, 2), (256, 2, 2), (512, 3, 1)],
)
def test_loops_have_no_more_stages_than_fit(
    block_k: int, num_stages: int, fitting_stages: int
) -> None:
    """A stage of both operands is 16, 32 or 64 KiB, of 163."""
    shape = f"64x{block_k}xbf16"
    sizes = {"M": 64, "N": 64, "BLOCK_K": block_k}
    kernel = translate(SOURCE, "multiply", MULTIPLY, sizes, num_warps=WARPS, target="sm_80").kernel
    schedule = Schedule(SM_80, Config(WARPS, num_stages=num_stages))
    scheduled = schedule_kernel(kernel, schedule)
    check_resources(scheduled, SM_80, DEFAULT_LIMITS)
    rings = [op.num_stages for op in scheduled.walk() if isinstance(op, gpu.SharedAlloc)]
    assert max(rings) == fitting_stages, shape
    stage_remarks = [
        line
        for line in schedule.remarks
        if f"at most {fitting_stages} stages, not {num_stages}" in line
    ]
    assert len(stage_remarks) == (fitting_stages < num_stages)


PRODUCT = """def k(a, b, c, n):
    acc = tl.zeros([128, 256], tl.float32)
    for first in range(0, n, 64):
        acc = tl.dot(a.load([0, first]), b.load([first, 0]), acc)
    c.store([0, 0], acc.to(tl.bfloat16))
"""


@pytest.mark.parametrize(("num_stages_asked", "fitting_stages"), [(4, 4), (5, 4)])
def test_fewer_stages_keep_the_producer(
    tmp_path: Path, num_stages_asked: int, fitting_stages: int
) -> None:
    shapes = {"a": "128,64", "b": "64,256", "c": "128,256"}
    types = {name: f"tensordesc<bf16[{shape}]>" for name, shape in shapes.items()}
    text, remarks = lowered(
        tmp_path, PRODUCT, {**types, "n": "i32"}, 8, num_stages=num_stages_asked
    )
    assert "a producer warp issues the loads" in remarks
    assert (f"at most {fitting_stages} stages, not {num_stages_asked}" in remarks) == (
        fitting_stages < num_stages_asked
    )
    assert f"num_stages = {fitting_stages}}}" in text


def test_hopeless_registers_name_the_tile_and_the_warps_that_help() -> None:
    kernel = scheduled("shares", {**POINTERS, "n": "i32"}, {"BLOCK": 32 * WARPS * 128})
    live_registers = 128 + 1  # and the part of each warp of the sum
    check_resources(kernel, SM_80, replace(DEFAULT_LIMITS, live_registers=live_registers))
    error = refused(kernel, live_registers=live_registers - 1)
    assert "16384xfp32 at large_tiles.py:24 (128 registers)" in error.message
    assert (
        f"a thread has at most 255, and the limit live_registers is {live_registers - 1}"
        in error.message
    )
    assert error.remedy == "num_warps = 8, smaller tiles or a loop over parts of them"


def test_the_default_leaves_what_ptxas_could_still_make() -> None:
    kernel = scheduled("shares", {**POINTERS, "n": "i32"}, {"BLOCK": 32 * WARPS * 1024})
    check_resources(kernel, SM_80, DEFAULT_LIMITS)
    refused(scheduled("shares", {**POINTERS, "n": "i32"}, {"BLOCK": 32 * WARPS * 4096}))


def test_many_instructions_name_where_most_come_from() -> None:
    kernel = scheduled("copy", POINTERS, {"BLOCK": 4096})
    check_instructions(kernel, 100, replace(DEFAULT_LIMITS, instructions=100))
    with pytest.raises(CompileError, match="101 instructions for each thread") as caught:
        check_instructions(kernel, 101, replace(DEFAULT_LIMITS, instructions=100))
    assert caught.value.loc is not None
    assert caught.value.loc.line in (9, 10)
    assert "[kernel.limits]" in caught.value.remedy


def test_whether_registers_may_suffice() -> None:
    fits = [
        check_resources(
            scheduled("shares", {**POINTERS, "n": "i32"}, {"BLOCK": 32 * WARPS * elems}),
            SM_80,
            DEFAULT_LIMITS,
        )
        for elems in (256, 512)
    ]
    assert fits == [True, False]


@pytest.mark.parametrize(
    ("warps", "registers", "helps"),
    [(1, 300, "2"), (1, 700, "4"), (4, 300, "8"), (4, 700, ""), (8, 300, ""), (32, 100, "")],
)
def test_more_warps_are_named_where_they_help(warps: int, registers: int, helps: str) -> None:
    kernel = scheduled("copy", POINTERS, {"BLOCK": 128})
    kernel.num_warps = warps
    first = f"num_warps = {helps}, " if helps else ""
    expected = f"{first}smaller tiles or a loop over parts of them"
    assert register_remedy(kernel, SM_90, registers) == expected

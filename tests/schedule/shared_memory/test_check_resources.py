"""What no block has room for is refused before code is made of it, with what is large and what helps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aotc.ir.core import Kernel
from aotc.ir.diagnostics import CompileError, ResourceError
from aotc.limits import DEFAULT_LIMITS
from aotc.schedule.shared_memory.check_resources import (
    check_instructions,
    check_resources,
    register_remedy,
)
from aotc.target import TARGETS
from tests.schedule.analysis.test_live_registers import POINTERS, WARPS, scheduled

SM_80, SM_90 = TARGETS["sm_80"], TARGETS["sm_90a"]


def matmul(rows: int, columns: int, block_k: int) -> Kernel:
    pointers = dict.fromkeys(("a_ptr", "b_ptr"), "*bf16:16")
    signature = {**pointers, "c_ptr": "*fp32:16", "K": "i32:16"}
    sizes = {"M": rows, "N": columns, "BLOCK_K": block_k}
    return scheduled("multiply", signature, sizes)


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
    kernel = matmul(128, 128, 256)
    error = refused(kernel)
    assert f"{kernel.shared_bytes} bytes of shared memory, the limit is 166912" in error.message
    assert "3 stages of 128x256xbf16 at large_tiles.py:43 (196608 bytes)" in error.message
    assert error.remedy == "fewer stages (num_stages) or smaller tiles"
    check_resources(matmul(128, 128, 64), SM_80, DEFAULT_LIMITS)


def test_hopeless_registers_name_the_tile_and_the_warps_that_help() -> None:
    kernel = scheduled("shares", {**POINTERS, "n": "i32"}, {"BLOCK": 32 * WARPS * 128})
    held = 128 + 1  # and the part of each warp of the sum
    check_resources(kernel, SM_80, replace(DEFAULT_LIMITS, live_registers=held))
    error = refused(kernel, live_registers=held - 1)
    assert "16384xfp32 at large_tiles.py:24 (128 registers)" in error.message
    assert f"a thread has at most 255, and the limit live_registers is {held - 1}" in error.message
    assert error.remedy == "num_warps = 8, smaller tiles or a loop over parts of them"


def test_the_default_leaves_what_ptxas_could_still_make() -> None:
    kernel = scheduled("shares", {**POINTERS, "n": "i32"}, {"BLOCK": 32 * WARPS * 512})
    check_resources(kernel, SM_80, DEFAULT_LIMITS)
    refused(scheduled("shares", {**POINTERS, "n": "i32"}, {"BLOCK": 32 * WARPS * 1024}))


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

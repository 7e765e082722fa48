"""Copies interleaved with a loop's products: positions, and ops they stay before."""

from __future__ import annotations

import pytest

from aotc.ir.core import Block, Value, build
from aotc.ir.diagnostics import Loc
from aotc.ir.dialects import arith, gpu, scf, tile
from aotc.ir.rewrite import Builder
from aotc.ir.types import FP16, FP32, I32, PointerType, TileType
from aotc.ir.verify import verify
from aotc.schedule.context import Schedule
from aotc.schedule.layout.layouts import blocked_for, dot_operand, mma_v2, row_major_shared
from aotc.schedule.pipelining.interleave_copies import interleave_copies
from aotc.schedule.shared_memory.allocate_shared import allocate_shared
from aotc.schedule.shared_memory.insert_barriers import insert_barriers
from aotc.target import TARGETS
from tests.backend.programs import Program
from tests.support.pass_case import applied, assert_same_meaning
from tests.support.pipelined_dot import dot_args, pipelined_dots

SHAPE = (32, 32)
LETTERS = {
    gpu.Dot: "D",
    gpu.AsyncCopy: "C",
    gpu.AsyncCommit: "G",
    gpu.AsyncWait: "W",
    scf.For: "L",
}


def spread(num_copies: int, parts: str, *, commits: int = 1) -> str:
    """Return the `LETTERS` of a loop's ops after the pass, in order.

    `parts` follow the copies: products, waits, and loops with waits.
    """
    program = Program(1)
    pointers = [_pointers(program) for _ in range(num_copies)]
    buffer = program.add(gpu.SharedAlloc(FP16, SHAPE, row_major_shared(SHAPE), num_stages=2)).out
    bounds = [program.add(arith.Constant(number, I32)).out for number in (0, 4, 1)]
    acc_type = TileType(FP32, SHAPE, mma_v2(SHAPE, (1, 1)))
    acc = program.add(arith.Constant(0.0, acc_type)).out
    a, b = (program.load(FP16, dot_operand(index, SHAPE, (1, 1), 16)) for index in range(2))
    body = Block([I32, acc_type])
    add, total = Builder(body), body.args[1]
    for pointer in pointers:
        stage = add(gpu.SharedStage(buffer, bounds[0], 1)).out
        add(gpu.AsyncCopy(pointer, stage, vector=4))
    for _ in range(commits):
        add(gpu.AsyncCommit())
    for part in parts:
        if part == "D":
            total = add(gpu.Dot(a, b, total, (16, 8, 16))).out
        else:
            _add_wait(add, bounds, nested=part == "L")
    add(scf.Yield([total]))
    loop = program.add(build(scf.For, [*bounds, acc], {}, [body], Loc("test", 1)))
    program.store(loop.outs[0])
    kernel = program.kernel()
    interleave_copies(kernel, Schedule(TARGETS["sm_80"]))
    verify(kernel)
    return "".join(LETTERS.get(type(op), "") for op in body)


def _add_wait(add: Builder, bounds: list[Value], *, nested: bool) -> None:
    if not nested:
        add(gpu.AsyncWait(0))
        return
    body = Block([I32])
    Builder(body)(gpu.AsyncWait(0))
    Builder(body)(scf.Yield([]))
    add(build(scf.For, bounds, {}, [body], Loc("test", 1)))


def _pointers(program: Program) -> Value:
    layout = blocked_for(SHAPE, (1, 4), 1, (1, 0))
    flat = program.pointers(program.param(PointerType(FP16), 16), layout)
    return program.add(tile.Reshape(flat, SHAPE)).out


@pytest.mark.parametrize(
    ("num_copies", "num_parts", "order"),
    [
        (2, 4, "CDCGDDD"),
        (1, 4, "CGDDDD"),
        (3, 4, "CDCDCGDD"),
        (5, 3, "CDCCCCGDD"),
        (2, 2, "CCGDD"),
    ],
)
def test_copies_go_one_to_a_part_and_never_to_the_last(
    num_copies: int, num_parts: int, order: str
) -> None:
    assert spread(num_copies, "D" * num_parts) == order


@pytest.mark.parametrize(("num_parts", "commits"), [(0, 1), (1, 1), (4, 0), (4, 2)])
def test_without_parts_or_with_groups_of_their_own_they_stay(num_parts: int, commits: int) -> None:
    parts = "D" * num_parts
    assert spread(2, parts, commits=commits) == "CC" + "G" * commits + parts


@pytest.mark.parametrize("wait", ["W", "L"])
def test_no_copy_goes_past_a_wait(wait: str) -> None:
    assert spread(3, f"{wait}DDD") == f"CCCG{wait}DDD"
    assert spread(3, f"D{wait}DDD") == f"CCCGD{wait}DDD"
    assert spread(3, f"DDD{wait}DD") == f"CDCCGDD{wait}DD"


CHECKS = """\
// CHECK: scf.for(
// CHECK-NOT: gpu.async_copy(
// CHECK: %a = gpu.shared_load(
// CHECK: %d = gpu.shared_load(
// CHECK-NEXT: gpu.async_copy(%a_ptrs, %a_free, _, %more)
// CHECK-NEXT: %part1 = gpu.dot(
// CHECK-NEXT: gpu.async_copy(%b_ptrs, %b_free, _, %more)
// CHECK-NEXT: gpu.async_commit
// CHECK-NEXT: %part2 = gpu.dot(
// CHECK-NEXT: %sum = gpu.dot(
// CHECK-NOT: gpu.async_commit
"""


def test_a_copy_goes_before_each_dot_and_the_group_is_closed_after_the_last_copy() -> None:
    text = CHECKS + pipelined_dots("ab", "cd", "ab")
    kernel = applied(text, interleave_copies)
    for iterations in (1, 2, 5):
        args = dot_args(iterations)
        assert_same_meaning(text, kernel, args, lower=(allocate_shared, insert_barriers))

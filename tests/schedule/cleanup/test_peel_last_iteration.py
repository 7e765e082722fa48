"""The last iteration is peeled; all iterations compute the same."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.schedule.cleanup.peel_last_iteration import peel_last_iteration
from tests.support.pass_case import applied, assert_same_meaning
from tests.support.pipelined import Args, Case

BLOCK = 8
LIMITS = {"i32": np.iinfo(np.int32), "i64": np.iinfo(np.int64), "u32": np.iinfo(np.uint32)}


def case_of(form: str, kind: str = "i32") -> Case:
    signature = {"x_ptr": "*i32", "out_ptr": "*i32", "start": kind, "stop": kind}
    return Case("cut_off", signature, {"BLOCK": BLOCK, "FORM": form})


@pytest.mark.parametrize("kind", LIMITS)
@pytest.mark.parametrize("form", ["beyond", "reaches"])
def test_every_length_and_place(kind: str, form: str) -> None:
    """Order shows in the result; places are next to both ends of the type, where sums wrap."""
    case = case_of(form, kind)
    assert case.gpu_ir.count("scf.for") == 2
    assert "scf.if" not in case.gpu_ir
    limits = LIMITS[kind]
    for length in (0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK, 5 * BLOCK + 3):
        # Above, the source's own sum would wrap in the last iteration.
        for start in (int(limits.min), int(limits.max) - length - BLOCK, 7):

            def make(start: int = start, length: int = length) -> Args:
                x = np.random.default_rng(length).integers(-9, 10, length).astype(np.int32)
                return [x, np.full(BLOCK, 77, np.int32), start, start + length]

            case.check(make)


def test_what_the_last_but_one_may_ask_for_stays_in_the_loop() -> None:
    assert case_of("early").gpu_ir.count("scf.for") == 1


@pytest.mark.parametrize("length", [0, 1, BLOCK, BLOCK + 1, 4 * BLOCK - 1])
def test_blocks_that_are_counted(length: int) -> None:
    signature = {"x_ptr": "*i32", "out_ptr": "*i32", "count": "i32", "stop": "i32"}
    case = Case("cut_off_by_number", signature, {"BLOCK": BLOCK})
    assert case.gpu_ir.count("scf.for") == 2

    def make() -> Args:
        x = np.random.default_rng(length).integers(-9, 10, length).astype(np.int32)
        return [x, np.full(BLOCK, 77, np.int32), -(-length // BLOCK), length]

    case.check(make)
    case.check_each_pass(make)


def test_the_loop_loads_ahead_and_the_last_iteration_does_not() -> None:
    case = case_of("beyond")
    assert "the loop is pipelined" in case.remarks
    assert case.gpu_ir.count("num_stages = 1") == 1


TEXT = """\
// CHECK: scf.for(
// CHECK-NOT: scf.if
// CHECK: tile.load(
// CHECK: arith.add(
// CHECK-NOT: scf.if
// CHECK: scf.for(
// CHECK: scf.if(
kernel @k(%x: *i32, %out: *i32, %n: i32) {num_warps = 4} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
  %r = scf.for(%zero, %n, %one, %zero) (%i: i32, %acc: i32) {
    %m = arith.sub(%n, %one) : i32
    %is_last = arith.compare(%i, %m) {predicate = "PREDICATE"} : i1
    %l = scf.if(%is_last) () {
      FIRST
    } () {
      SECOND
    } : i32
    %t = arith.add(%l, %acc) : i32
    scf.yield(%t)
  } : i32
  tile.store(%out, %r, _)
  scf.return
}
"""
LOAD = """%p = arith.addptr(%x, %i) : *i32
      %v = tile.load(%p, _, _) : i32
      scf.yield(%v)"""


@pytest.mark.parametrize("n", [0, 1, 2, 9])
@pytest.mark.parametrize(
    ("predicate", "loads_first"), [("eq", False), ("ge", False), ("lt", True), ("ne", True)]
)
def test_known_branches_are_taken(n: int, predicate: str, loads_first: bool) -> None:
    arms = [LOAD, "scf.yield(%one)"]
    first, second = arms if loads_first else arms[::-1]
    text = TEXT.replace("PREDICATE", predicate).replace("FIRST", first).replace("SECOND", second)
    kernel = applied(text, peel_last_iteration)
    x = np.random.default_rng(n).integers(-99, 99, 9).astype(np.int32)
    assert_same_meaning(text, kernel, [x, np.full(1, 777, np.int32), n])

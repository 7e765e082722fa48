"""Loop invariants are hoisted as far out as their operands allow."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.schedule.cleanup.hoist_invariants import hoist_invariants
from tests.support.pass_case import applied, assert_same_meaning

TEXT = """\
// CHECK: [[SQUARE:%.*]] = arith.mul(%a, %a)
// CHECK-NEXT: scf.for
// CHECK-NEXT: [[ROW:%.*]] = arith.mul([[I:%.*]], [[SQUARE]])
// CHECK-NEXT: scf.for
// CHECK-NOT: arith.mul(
// CHECK: tile.load(%x
// CHECK: arith.add([[ROW]],
kernel @k(%x: *i32, %out: *i32, %a: i32, %n: i32) {num_warps = 4} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
  %r = scf.for(%zero, %n, %one, %zero) (%i: i32, %acc: i32) {
    %s = scf.for(%zero, %n, %one, %acc) (%j: i32, %t: i32) {
      %q = arith.mul(%a, %a) : i32
      %w = arith.mul(%i, %q) : i32
      %l = tile.load(%x, _, _) : i32
      %u = arith.add(%w, %l) : i32
      %v = arith.add(%t, %u) : i32
      tile.store(%x, %v, _)
      scf.yield(%v)
    } : i32
    scf.yield(%s)
  } : i32
  tile.store(%out, %r, _)
  scf.return
}
"""


@pytest.mark.parametrize("n", [0, 1, 3])
def test_each_value_leaves_the_loops_that_it_does_not_depend_on(n: int) -> None:
    kernel = applied(TEXT, hoist_invariants)
    out = np.full(1, 77, np.int32)
    assert_same_meaning(TEXT, kernel, [np.full(1, 5, np.int32), out, 3, n])


BRANCH = """\
// CHECK: scf.if(%c)
// CHECK: scf.for
// CHECK-NOT: scf.if
kernel @k(%out: *i32, %a: i32, %n: i32) {num_warps = 4} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
  %c = arith.compare(%a, %n) {predicate = "lt"} : i1
  %r = scf.for(%zero, %n, %one, %zero) (%i: i32, %acc: i32) {
    %v = scf.if(%c) () {
      %s = arith.add(%a, %a) : i32
      scf.yield(%s)
    } () {
      scf.yield(%one)
    } : i32
    %t = arith.add(%acc, %v) : i32
    scf.yield(%t)
  } : i32
  tile.store(%out, %r, _)
  scf.return
}
"""


def test_a_whole_branch_may_be_invariant() -> None:
    kernel = applied(BRANCH, hoist_invariants)
    for a in (1, 9):
        assert_same_meaning(BRANCH, kernel, [np.full(1, 77, np.int32), a, 4])

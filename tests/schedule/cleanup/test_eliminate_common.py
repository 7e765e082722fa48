"""Equal pure ops become one where the first dominates the second, and nowhere else."""

from __future__ import annotations

import numpy as np

from aotc.schedule.cleanup.eliminate_common import eliminate_common
from tests.support.pass_case import applied, assert_same_meaning

TEXT = """\
// CHECK: [[SUM:%.*]] = arith.add(%a, %b)
// CHECK-NOT: arith.add(%a, %b)
// CHECK: [[OTHER:%.*]] = arith.sub(%a, %b)
// CHECK: scf.if(%c)
// CHECK: [[THEN:%.*]] = arith.mul([[SUM]], [[OTHER]])
// CHECK-NEXT: scf.yield([[THEN]])
// CHECK: [[ELSE:%.*]] = arith.mul([[SUM]], [[OTHER]])
// CHECK-NEXT: scf.yield([[ELSE]])
// CHECK: arith.mul([[SUM]], [[OTHER]])
kernel @k(%out: *i32, %a: i32, %b: i32) {num_warps = 4} {
  %c = arith.compare(%a, %b) {predicate = "lt"} : i1
  %x = arith.add(%a, %b) : i32
  %y = arith.add(%a, %b) : i32
  %d = arith.sub(%a, %b) : i32
  %v = scf.if(%c) () {
    %z = arith.add(%a, %b) : i32
    %t = arith.mul(%z, %d) : i32
    scf.yield(%t)
  } () {
    %e = arith.mul(%y, %d) : i32
    scf.yield(%e)
  } : i32
  %u = arith.mul(%x, %d) : i32
  %w = arith.add(%u, %v) : i32
  tile.store(%out, %w, _)
  scf.return
}
"""


def test_what_dominates_is_used_and_what_does_not_is_computed_again() -> None:
    """Neither arm of a branch dominates the other or the code after it."""
    kernel = applied(TEXT, eliminate_common)
    for a, b in ((3, 8), (8, 3)):
        assert_same_meaning(TEXT, kernel, [np.full(1, 77, np.int32), a, b])


CONSTANTS = """\
// CHECK: arith.constant {value = 0.0,
// CHECK: arith.constant {value = -0.0,
// CHECK-NOT: arith.constant
// CHECK: arith.div(
kernel @k(%out: *fp32, %a: fp32) {num_warps = 4} {
  %p = arith.constant {value = 0.0, type = fp32} : fp32
  %q = arith.constant {value = -0.0, type = fp32} : fp32
  %r = arith.constant {value = 0.0, type = fp32} : fp32
  %x = arith.div(%a, %p) : fp32
  %y = arith.div(%a, %q) : fp32
  %z = arith.div(%a, %r) : fp32
  %i = arith.sub(%x, %y) : fp32
  %j = arith.add(%i, %z) : fp32
  tile.store(%out, %j, _)
  scf.return
}
"""


def test_zeros_of_both_signs_are_two_constants() -> None:
    kernel = applied(CONSTANTS, eliminate_common)
    assert_same_meaning(CONSTANTS, kernel, [np.full(1, 7, np.float32), 2.0])


LOADS = """\
// CHECK-COUNT-2: tile.load(%x
kernel @k(%x: *i32, %out: *i32) {num_warps = 4} {
  %a = tile.load(%x, _, _) : i32
  %one = arith.constant {value = 1, type = i32} : i32
  %b = arith.add(%a, %one) : i32
  tile.store(%x, %b, _)
  %c = tile.load(%x, _, _) : i32
  tile.store(%out, %c, _)
  scf.return
}
"""


def test_loads_are_not_merged() -> None:
    kernel = applied(LOADS, eliminate_common)
    assert_same_meaning(LOADS, kernel, [np.full(1, 5, np.int32), np.full(1, 77, np.int32)])

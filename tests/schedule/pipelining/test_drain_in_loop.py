"""Loops with dots in flight at their end: where the last ones are waited for."""

from __future__ import annotations

from pathlib import Path

from aotc.ir.text import print_kernel
from aotc.schedule.pipelining.drain_in_loop import drain_in_loop
from tests.schedule.pipelining.test_defer_waits import LOOP, assert_same_results, defer
from tests.schedule.pipelining.test_take_turns import SIGNATURE, SOURCE
from tests.support.descriptors import lowered
from tests.support.pass_case import applied

CHECKS = """\
// CHECK: gpu.specialize
// CHECK: [[NONE:%.*]] = arith.compare(%zero, %n) {predicate = "ge"}
// CHECK: [[OUT:%[a-z_0-9]+]], {{.*}} = scf.while(%zero, [[NONE]], %none,
// CHECK-SAME: ({{%.*}}: i32, [[OVER:%[a-z_0-9]+]]: i1, [[ACC:%[a-z_0-9]+]]: tile<64x64xfp32, #{{[0-9]+}}>,
// CHECK: gpu.next_stage(
// CHECK: [[BOTH:%.*]], [[PART:%.*]] = scf.if([[OVER]]) () {
// CHECK-NEXT: [[DRAINED:%.*]] = gpu.wgmma_wait([[ACC]]) {num_columns = [0]}
// CHECK-NEXT: [[UNKNOWN:%.*]] = gpu.undefined
// CHECK-NEXT: scf.yield([[DRAINED]], [[UNKNOWN]])
// CHECK-NEXT: } () {
// CHECK: gpu.mbarrier_wait(
// CHECK: [[DOT:%.*]] = gpu.wgmma(
// CHECK: [[WAITED:%.*]] = gpu.wgmma_wait([[ACC]]) {pending = 1,
// CHECK: gpu.mbarrier_arrive(
// CHECK: [[OWN:%.*]] = gpu.wgmma_wait([[DOT]])
// CHECK-NEXT: scf.yield([[WAITED]], [[OWN]])
// CHECK: scf.condition({{%.*}}, [[BOTH]], [[PART]],
// CHECK: gpu.wgmma(
// CHECK-NOT: gpu.wgmma_wait
// CHECK: [[LAST:%.*]] = gpu.shared_stage(%v_empty, {{%.*}}) {ahead = 2}
// CHECK-NEXT: gpu.mbarrier_arrive([[LAST]], _)
// CHECK-NEXT: scf.yield([[OUT]],
"""


def test_all_paths_meet_after_the_waits() -> None:
    assert_same_results(LOOP, applied(CHECKS + LOOP, defer, drain_in_loop))


def test_other_loops_stay() -> None:
    """Their dots are waited for in their iteration."""
    kernel = applied("// CHECK: scf.for\n// CHECK-NOT: scf.while\n" + LOOP, drain_in_loop)
    assert print_kernel(kernel).count("gpu.wgmma_wait") == 2


def test_ptxas_serializes_no_dots(tmp_path: Path) -> None:
    """`lowered` makes a cubin of the kernel, without warnings."""
    text, _ = lowered(tmp_path, SOURCE, SIGNATURE, 8, num_stages=2, mma_stages=2)
    assert text.count("scf.while(") == 1
    assert text.count("gpu.wgmma(") == 2

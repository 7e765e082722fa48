"""A reduction across a cluster becomes asynchronous stores to all CTAs, or in a loop two barriers."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.config import Config
from aotc.ir.core import Kernel, Op
from aotc.ir.dialects import grid, mbarrier
from aotc.ir.text import parse_kernel, print_kernel
from aotc.schedule.context import Schedule
from aotc.schedule.layout.expand_cluster_reductions import expand_cluster_reductions
from aotc.schedule.shared_memory.allocate_shared import allocate_shared
from aotc.schedule.shared_memory.insert_barriers import insert_barriers
from aotc.target import TARGETS
from aotc.verify.interpreter.program import InterpretError
from aotc.verify.interpreter.run import run
from tests.support.checks import check, without_checks

SUM = """
  %1 = grid.cluster_reduce(%0) (%a: i32, %b: i32) {
    %2 = arith.add(%a, %b) : i32
    scf.yield(%2)
  } : i32
"""
KERNEL = """
kernel @k(%out: *i32, %n: i32) {num_warps = 2} {
  %0 = grid.cta_rank : i32
BODY
  %3 = arith.addptr(%out, %0) : *i32
  tile.store(%3, %1, _)
  scf.return
}
"""
ONCE = KERNEL.replace("BODY", SUM)
FIRST = SUM.replace("%1", "%s").replace("%2", "%t").replace("%a", "%x").replace("%b", "%y")
TWICE = KERNEL.replace("BODY", FIRST + SUM.replace("(%0)", "(%s)"))
LOOP = KERNEL.replace(
    "BODY",
    """
  %c0 = arith.constant {value = 0, type = i32} : i32
  %c1 = arith.constant {value = 1, type = i32} : i32
  %1 = scf.for(%c0, %n, %c1, %0) (%i: i32, %x: i32) {
    SUM
    scf.yield(%s)
  } : i32
""".replace("SUM", SUM.replace("%1 =", "%s =").replace("(%0)", "(%x)")),
)
NUM_CTAS = 4
CHECKED = ONCE.replace(
    "  %1 = grid",
    """  // CHECK: [[MBARRIER:%[0-9a-z_]+]] = gpu.shared_alloc {element = u64, shape = [1]
  // CHECK: gpu.mbarrier_init([[MBARRIER]]) {expected_bytes = 16}
  // CHECK: [[RANK:%[0-9a-z_]+]] = grid.cta_rank
  // CHECK: [[PARTS:%[0-9a-z_]+]] = gpu.shared_alloc {element = i32, shape = [4]
  // CHECK: gpu.cluster_send([[RANK]], [[PARTS]], [[MBARRIER]])
  // CHECK: gpu.mbarrier_wait([[MBARRIER]],
  // CHECK: [[ALL:%[0-9a-z_]+]] = gpu.shared_load([[PARTS]])
  // CHECK: gpu.reduce([[ALL]]) {axis = 0}
  // CHECK-NOT: grid.cluster_reduce
  %1 = grid""",
)
SUMS = {"once": (ONCE, 6), "twice": (TWICE, 24), "in a loop": (LOOP, 6 * 4 * 4)}


def test_each_cta_sends_its_part_to_all_and_reduces_what_it_got() -> None:
    kernel = parse_kernel(without_checks(CHECKED))
    kernel.num_ctas = NUM_CTAS
    expand_cluster_reductions(kernel, Schedule(TARGETS["sm_90a"], Config(2, 1, NUM_CTAS)))
    check(CHECKED, print_kernel(kernel))


def _scheduled(text: str) -> Kernel:
    kernel = parse_kernel(text)
    kernel.num_ctas = NUM_CTAS
    schedule = Schedule(TARGETS["sm_90a"], Config(2, 1, NUM_CTAS))
    for run_pass in (expand_cluster_reductions, allocate_shared, insert_barriers):
        run_pass(kernel, schedule)
    return kernel


def _summed(kernel: Kernel) -> list[int]:
    out = np.full(NUM_CTAS, -1, np.int32)
    run(kernel, (1,), [out, 3])
    return out.tolist()


def _only(kernel: Kernel, kind: type[Op], index: int = 0) -> Op:
    return [op for op in kernel.walk() if isinstance(op, kind)][index]


@pytest.mark.parametrize("case", SUMS)
def test_every_cta_has_the_result_before_and_after(case: str) -> None:
    text, total = SUMS[case]
    kernel = parse_kernel(text)
    kernel.num_ctas = NUM_CTAS
    assert _summed(kernel) == [total] * NUM_CTAS
    assert _summed(_scheduled(text)) == [total] * NUM_CTAS


def test_what_happens_once_needs_no_barrier_but_that_of_the_beginning() -> None:
    text = print_kernel(_scheduled(TWICE))
    names = ("cluster_arrive", "cluster_wait", "cluster_send", "mbarrier_wait", "shared_load")
    offsets = [text.index(name) for name in names]
    assert offsets == sorted(offsets)
    assert text.index("mbarrier_init") < offsets[0]
    assert [text.count(name) for name in names] == [1, 1, 2, 2, 2]
    assert "expected_bytes = 16" in text
    for absent in ("cluster_barrier", "cluster_reduce", "gpu.barrier"):
        assert absent not in text


def test_stores_in_a_loop_stand_between_two_barriers_of_the_cluster() -> None:
    text = print_kernel(_scheduled(LOOP))
    offsets = [text.index(name) for name in ("shared_alloc", "cluster_store", "shared_load")]
    barriers = [
        start for start in range(len(text)) if text.startswith("grid.cluster_barrier", start)
    ]
    assert offsets[0] < barriers[0] < offsets[1] < barriers[1] < offsets[2]
    assert "cluster_reduce" not in text
    assert "cluster_send" not in text


@pytest.mark.parametrize(
    ("text", "kind", "number"),
    [
        (LOOP, grid.ClusterBarrier, 1),
        (ONCE, grid.ClusterWait, 0),
        (ONCE, mbarrier.MbarrierWait, 0),
        (TWICE, mbarrier.MbarrierWait, 1),
        (ONCE, mbarrier.MbarrierInit, 0),
    ],
)
def test_a_missing_wait_is_found(text: str, kind: type[Op], number: int) -> None:
    kernel = _scheduled(text)
    _only(kernel, kind, number).erase()
    with pytest.raises(InterpretError):
        _summed(kernel)


@pytest.mark.parametrize("expected_bytes", [12, 20])
def test_a_wrong_number_of_bytes_is_found(expected_bytes: int) -> None:
    kernel = _scheduled(ONCE)
    init = _only(kernel, mbarrier.MbarrierInit)
    assert isinstance(init, mbarrier.MbarrierInit)
    init.expected_bytes = expected_bytes
    with pytest.raises(InterpretError):
        _summed(kernel)


def test_a_wait_for_the_beginning_precedes_another_barrier_of_the_cluster() -> None:
    kernel = parse_kernel(ONCE.replace("  %0 =", "  grid.cluster_barrier\n  %0 ="))
    kernel.num_ctas = NUM_CTAS
    schedule = Schedule(TARGETS["sm_90a"], Config(2, 1, NUM_CTAS))
    for run_pass in (expand_cluster_reductions, allocate_shared, insert_barriers):
        run_pass(kernel, schedule)
    text = print_kernel(kernel)
    assert text.index("cluster_arrive") < text.index("cluster_wait") < text.index("cluster_barrier")


@pytest.mark.parametrize(("kind", "word"), [("fp16", "fp32"), ("i1", "i32"), ("u8", "i32")])
def test_narrow_values_are_sent_in_words(kind: str, word: str) -> None:
    text = ONCE.replace("%0) (%a: i32, %b: i32)", f"%v) (%a: {kind}, %b: {kind})")
    text = text.replace("arith.add(%a, %b) : i32", f"arith.max(%a, %b) : {kind}")
    text = text.replace("  } : i32\n", f"  }} : {kind}\n").replace(
        "  %1 =", f"  %v = arith.cast(%0) {{dtype = {kind}}} : {kind}\n  %m ="
    )
    text = text.replace("  %3 =", "  %1 = arith.cast(%m) {dtype = i32} : i32\n  %3 =")
    scheduled = _scheduled(text)
    assert f"{{element = {word}, shape = [4]" in print_kernel(scheduled)
    assert _summed(scheduled) == [1 if kind == "i1" else NUM_CTAS - 1] * NUM_CTAS

"""Stores selected for bulk copies, their remarks, and equal results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aotc import frontend
from aotc.config import Config
from aotc.ir.core import Kernel
from aotc.ir.dialects import gpu, tma
from aotc.ir.passes import Pipeline
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.verify import verify
from aotc.schedule.context import Schedule
from aotc.schedule.epilogue.pipeline_tma_stores import pipeline_tma_stores
from aotc.schedule.pipeline import TILE_TO_GPU, schedule_kernel
from aotc.schedule.shared_memory.allocate_shared import allocate_shared
from aotc.schedule.shared_memory.insert_barriers import insert_barriers
from aotc.schedule.tensor_maps.bulk_stores import bulk_stores
from aotc.target import TARGETS
from aotc.verify.interpreter.run import run
from tests.support.descriptors import PRELUDE
from tests.support.pass_case import applied, assert_same_meaning
from tests.support.row_kernels import lengths
from tests.support.stored_rows import (
    MASKED,
    NOT_STORED,
    NOT_UPDATED,
    NUM_ROWS,
    STORED,
    UPDATED,
    Stored,
)


def _bulked(
    folder: Path, case: Stored, config: Config | None = None, target: str = "sm_90a"
) -> tuple[Kernel, list[str]]:
    """Return a kernel after the pass, and the remarks on stores by copies."""
    path = folder / "kernel.py"
    path.write_text(PRELUDE + case.source, encoding="utf-8")
    kernel = frontend.translate(str(path), "k", case.types, case.constants).kernel
    schedule = Schedule(TARGETS[target], config or Config())
    names = [phrase.__name__ for phrase in TILE_TO_GPU.passes]
    kernel.num_warps, kernel.num_ctas = schedule.config.num_warps, schedule.config.num_ctas
    Pipeline(TILE_TO_GPU.passes[: names.index("bulk_stores") + 1]).run(kernel, schedule)
    verify(kernel)
    text = print_kernel(kernel)
    assert print_kernel(parse_kernel(text)) == text
    texts = [remark.partition(": ")[2] for remark in schedule.remarks]
    phrases = ("stored by bulk copies", "updated by bulk copies")
    return kernel, [text for text in texts if any(phrase in text for phrase in phrases)]


def _num_copies(kernel: Kernel) -> int:
    return sum(isinstance(op, tma.StagedBulkStore) for op in kernel.walk())


@pytest.mark.parametrize("case", STORED.values(), ids=STORED)
def test_it_stores_what_it_stored(tmp_path: Path, case: Stored) -> None:
    kernel, remarks = _bulked(tmp_path, case)
    assert f"out_ptr is stored by bulk copies of {case.size_bytes} bytes" in remarks
    assert _num_copies(kernel) == len(remarks)
    unit = case.block if case is STORED["whole"] else 1
    for length in lengths(case.block):
        arrays = case.arguments(length - length % unit, m=1)
        expected = case.expected(arrays)
        args = [arrays[info.name] for info in kernel.params]
        run(kernel, (NUM_ROWS,), args, check_races=False)  # barriers come later
        np.testing.assert_array_equal(arrays["out_ptr"], expected)


@pytest.mark.parametrize("case", UPDATED.values(), ids=UPDATED)
def test_it_adds_what_it_added(tmp_path: Path, case: Stored) -> None:
    kernel, remarks = _bulked(tmp_path, case)
    assert f"out_ptr is updated by bulk copies of {case.size_bytes} bytes" in remarks
    assert _num_copies(kernel) == len(remarks)
    for length in lengths(case.block):
        arrays = case.arguments(length, m=1)
        expected = case.expected(arrays)
        args = [arrays[info.name] for info in kernel.params]
        run(kernel, (NUM_ROWS,), args, check_races=False)  # barriers come later
        np.testing.assert_array_equal(arrays["out_ptr"], expected)


@pytest.mark.parametrize(("case", "why"), NOT_UPDATED.values(), ids=NOT_UPDATED)
def test_what_is_no_reduction_is_updated_as_before(tmp_path: Path, case: Stored, why: str) -> None:
    kernel, remarks = _bulked(tmp_path, case)
    assert any(f"is not updated by bulk copies: {why}" in remark for remark in remarks)
    assert any(isinstance(op, gpu.AtomicRmw) for op in kernel.walk())


@pytest.mark.parametrize(("case", "why"), NOT_STORED.values(), ids=NOT_STORED)
def test_what_must_keep_its_place_is_stored_as_before(
    tmp_path: Path, case: Stored, why: str
) -> None:
    kernel, remarks = _bulked(tmp_path, case)
    assert _num_copies(kernel) == 0
    assert any(f"is not stored by bulk copies: {why}" in remark for remark in remarks)


@pytest.mark.parametrize(
    ("case", "config", "target"),
    [
        (replace(STORED["masked"], warp_specialize=False), Config(), "sm_90a"),
        (replace(STORED["masked"], block=512), Config(), "sm_90a"),
        (STORED["masked"], Config(), "sm_80"),
        (STORED["masked"], Config(num_ctas=2), "sm_90a"),
        (replace(STORED["masked"], num_stages=1), Config(), "sm_90a"),
    ],
    ids=["num_stages alone", "small", "no copies", "clusters", "one stage"],
)
def test_nobody_asked(tmp_path: Path, case: Stored, config: Config, target: str) -> None:
    kernel, remarks = _bulked(tmp_path, case, config, target)
    assert _num_copies(kernel) == 0
    assert remarks == []


def test_the_configuration_may_ask(tmp_path: Path) -> None:
    case = replace(STORED["masked"], warp_specialize=False)
    kernel, _ = _bulked(tmp_path, case, Config(warp_specialize=True))
    assert _num_copies(kernel) == 1


def test_rings_leave_room_or_threads_store(tmp_path: Path) -> None:
    case = Stored(MASKED, element="i32", block=1 << 14, num_stages=3)
    kernel, (remark,) = _bulked(tmp_path, case, Config(num_warps=8))
    assert _num_copies(kernel) == 0
    assert "shared memory has no room for 1 stages of 65536 bytes" in remark


def test_a_store_runs_on_into_the_next_iteration(tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    case = STORED["masked"]
    path.write_text(PRELUDE + case.source, encoding="utf-8")
    kernel = frontend.translate(str(path), "k", case.types, case.constants).kernel
    kernel = schedule_kernel(kernel, Schedule(TARGETS["sm_90a"], Config()))
    (store,) = (op for op in kernel.walk() if isinstance(op, tma.BulkStore))
    loop = store.parent_op
    assert loop is not None
    ops = [type(op) for op in loop.blocks[0]]
    order = [tma.TmaStoreWait, gpu.Barrier, gpu.SharedStore, tma.ProxyFence, gpu.Barrier]
    wait_index = ops.index(tma.TmaStoreWait)
    assert ops[wait_index : wait_index + 6] == [*order, tma.BulkStore]
    assert isinstance(loop.next, tma.TmaStoreWait)


TEXT = """\
// CHECK: %p = arith.addptr(%firsts, %columns)
// CHECK: [[TO:%.*]] = arith.addptr(%out, {{%.*}}) : *fp16
// CHECK: [[ALL:%.*]] = arith.constant {value = 1024, type = i64}
// CHECK: [[END:%.*]] = arith.cast(%n) {dtype = i64}
// CHECK: [[LEFT:%.*]] = arith.add([[END]], {{%.*}})
// CHECK-NEXT: [[MOST:%.*]] = arith.min([[ALL]], [[LEFT]])
// CHECK: [[COUNT:%.*]] = arith.max([[MOST]], {{%.*}})
// CHECK: [[TWO:%.*]] = arith.constant {value = 2, type = i32}
// CHECK-NEXT: [[BYTES:%.*]] = arith.mul({{%.*}}, [[TWO]])
// CHECK-NEXT: [[BUFFER:%.*]] = gpu.shared_alloc {element = fp16, shape = [1024]
// CHECK-NEXT: gpu.staged_bulk_store([[TO]], %v, [[BUFFER]], [[BYTES]])
// CHECK-NOT: gpu.store(
#0 = #ll<register=[[1],[2],[4]] lane=[[8],[16],[32],[64],[128]] warp=[[256],[512]] : [1024]>
kernel @k(%out: *fp16 {divisibility = 16}, %n: i32 {divisibility = 16}) {num_warps = 4} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %size = arith.constant {value = 1024, type = i32} : i32
  %columns = tile.arange {start = 0, end = 1024, layout = #0} : tile<1024xi32, #0>
  %ns = tile.splat(%n) {shape = [1024], layout = #0} : tile<1024xi32, #0>
  scf.for(%zero, %n, %size) {warp_specialize = true} (%start: i32) {
    %starts = tile.splat(%start) {shape = [1024], layout = #0} : tile<1024xi32, #0>
    %at = arith.add(%starts, %columns) : tile<1024xi32, #0>
    %inside = arith.compare(%at, %ns) {predicate = "lt"} : tile<1024xi1, #0>
    %v = arith.cast(%at) {dtype = fp16} : tile<1024xfp16, #0>
    %first = arith.addptr(%out, %start) : *fp16
    %firsts = tile.splat(%first) {shape = [1024], layout = #0} : tile<1024x*fp16, #0>
    %p = arith.addptr(%firsts, %columns) : tile<1024x*fp16, #0>
    gpu.store(%p, %v, %inside) {vector = 8}
    scf.yield()
  }
  scf.return
}
"""


def test_a_masked_store_copies_as_many_bytes_as_the_mask_lets_through() -> None:
    kernel = applied(TEXT, bulk_stores)
    for n in (16, 1024, 2064):
        args = [np.full(4096, 77, np.float16), n]
        assert_same_meaning(
            TEXT, kernel, args, lower=(pipeline_tma_stores, allocate_shared, insert_barriers)
        )

"""Staged stores become a write, a copy and a wait, whole or slice by slice."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.core import Kernel
from aotc.ir.dialects import tma
from aotc.ir.rewrite import Builder
from aotc.schedule.context import Schedule
from aotc.schedule.epilogue.staged_stores import (
    allocate_slice,
    erase,
    expand,
    num_slices,
    slice_shape,
    store_slice,
)
from aotc.schedule.shared_memory.allocate_shared import allocate_shared
from aotc.schedule.shared_memory.insert_barriers import insert_barriers
from aotc.target import TARGETS
from tests.support.pass_case import applied, assert_same_meaning

HEAD = """\
#0 = #ll<offset=[[1],[2],[4],[8],[16],[32],[64],[128]] : [256]>
#1 = #ll<register=[[1],[2],[128]] lane=[[4],[8],[16],[32],[64]] : [256]>
kernel @k(%x: map<128xfp32, 0>, %p: *fp32, %n: i32) {num_warps = 1} {
  %e = tile.arange {start = 0, end = 256, layout = #1} : tile<256xi32, #1>
  %v = arith.cast(%e) {dtype = fp32} : tile<256xfp32, #1>
  %b = gpu.shared_alloc {element = fp32, shape = [256], layout = #0, alignment_bytes = 128} : shared<256xfp32, #0>
"""


def _stores(kernel: Kernel) -> list[tma.StagedStore]:
    return [op for op in kernel.walk() if isinstance(op, tma.StagedStore)]


def _expand(kernel: Kernel, schedule: Schedule) -> None:
    for store in _stores(kernel):
        expand(store, schedule.target)


def _expand_slices(kernel: Kernel, schedule: Schedule) -> None:
    for store in _stores(kernel):
        assert num_slices(store) == 2
        builder = Builder.before_op(store)
        buffer = allocate_slice(store, slice_shape(store), builder)
        for number in (1, 0):
            store_slice(store, number, buffer, schedule.target, builder)
            builder(tma.TmaStoreWait())
        erase(store)


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("reduction", [False, True])
def test_a_whole_tile_is_stored_from_its_own_buffer(written: bool, reduction: bool) -> None:
    attribute_texts = ['kind = "add"'] * reduction + ["written = true"] * written
    attributes = f" {{{', '.join(attribute_texts)}}}" if attribute_texts else ""
    copy = 'tma_reduce(%x, %b, %n) {kind = "add"}' if reduction else "tma_store(%x, %b, %n)"
    text = f"""{HEAD}
  // CHECK-NOT: staged
  // CHECK: gpu.shared_store(%v, %b) {{vector = 4}}
  // CHECK-NEXT: gpu.{copy}
  // CHECK-NEXT: gpu.tma_store_wait{" {written = true}" if written else ""}
  gpu.staged_tma_store(%x, %v, %b, %n){attributes}
  scf.return
}}
"""
    kernel = applied(text, _expand)
    _assert_same(text, kernel)


def test_a_slice_is_written_and_stored_at_its_own_place() -> None:
    text = f"""{HEAD}
  // CHECK: [[SLICE:%\\w+]] = gpu.shared_alloc {{{{.*}}}}shape = [128]
  // CHECK: [[SECOND:%\\w+]] = gpu.extract(%v) {{start = [128], shape = [128]}}
  // CHECK: gpu.shared_store([[SECOND]], [[SLICE]]) {{vector = 4}}
  // CHECK: [[STEP:%\\w+]] = arith.constant {{value = 128, type = i32}}
  // CHECK: [[AT:%\\w+]] = arith.add(%n, [[STEP]])
  // CHECK: gpu.tma_store(%x, [[SLICE]], [[AT]])
  // CHECK: [[FIRST:%\\w+]] = gpu.extract(%v) {{start = [0], shape = [128]}}
  // CHECK: gpu.shared_store([[FIRST]], [[SLICE]])
  // CHECK: gpu.tma_store(%x, [[SLICE]], %n)
  gpu.staged_tma_store(%x, %v, %b, %n)
  scf.return
}}
"""
    kernel = applied(text, _expand_slices)
    _assert_same(text, kernel)


def test_bytes_are_stored_without_a_map() -> None:
    text = f"""{HEAD}
  // CHECK: gpu.shared_store(%v, %b) {{vector = 4}}
  // CHECK-NEXT: gpu.bulk_store(%p, %b, %n)
  // CHECK-NEXT: gpu.tma_store_wait
  gpu.staged_bulk_store(%p, %v, %b, %n)
  scf.return
}}
"""
    kernel = applied(text, _expand)
    _assert_same(text, kernel)


def _assert_same(text: str, kernel: Kernel) -> None:
    """Interpret the kernel before and after the pass, with the barriers it needs."""
    schedule = Schedule(TARGETS["sm_90a"])
    for run_pass in (allocate_shared, insert_barriers):
        run_pass(kernel, schedule)
    x, p = (np.full(512, -1, np.float32) for _ in range(2))
    assert_same_meaning(text, kernel, [x, p, 64])

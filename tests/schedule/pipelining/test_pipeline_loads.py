"""Pipelined loads keep results, with the expected stages and copies."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aotc.backend import assemble
from aotc.config import Config
from aotc.ir.text import parse_kernel, print_kernel
from aotc.schedule.context import Schedule
from aotc.schedule.pipeline import schedule_kernel
from aotc.schedule.pipelining.pipeline_loads import pipeline_loads
from aotc.schedule.shared_memory.allocate_shared import allocate_shared
from aotc.schedule.shared_memory.insert_barriers import insert_barriers
from aotc.target import TARGETS
from tests.support.pass_case import applied, assert_same_meaning
from tests.support.pipelined import Args, Case

BLOCK = 32
STAGES = (1, 2, 3, 4, 5)
DTYPES = {
    "fp32": np.float32,
    "bf16": ml_dtypes.bfloat16,
    "fp8e5": ml_dtypes.float8_e5m2,
    "i8": np.int8,
}
# Promised stride multiples, in elements: none, half the needed, all of it.
PROMISES = ("", ":2", ":16")


def product_case(dtype: str, promise: str, mask: str, **config: Any) -> Case:
    extent = f"i32{promise}" if mask == "mnk" else "i32"
    signature = {
        "a_ptr": f"*{dtype}:16",
        "b_ptr": f"*{dtype}:16",
        "c_ptr": "*i32:16" if dtype == "i8" else "*fp32:16",
        "m_size": extent,
        "n_size": extent,
        "k_size": f"i32{promise}",
        "stride_a": f"i32{promise}",
        "stride_b": f"i32{promise}",
    }
    blocks = {"BLOCK_M": BLOCK, "BLOCK_N": BLOCK, "BLOCK_K": BLOCK, "MASK": mask}
    return Case("product", signature, blocks, **config)


def product_args(dtype: str, promise: str, mask: str, k_size: int) -> Callable[[], Args]:
    """Return a function making arguments whose strides keep exactly the promise."""
    unit = int(promise[1:] or 1)
    stride_a, stride_b = (-(-max(k_size, BLOCK) // unit) + 1) * unit, BLOCK + unit
    sizes = (BLOCK - unit, BLOCK - unit) if mask == "mnk" else (BLOCK, BLOCK)

    def make() -> Args:
        random = np.random.default_rng(k_size)
        kind = DTYPES[dtype]
        # Of exactly as many elements as are read: one byte more is an error.
        a, b = (
            random.integers(-3, 4, max(0, (rows - 1) * stride + cols)).astype(kind)
            for rows, stride, cols in (
                (sizes[0], stride_a, k_size),
                (k_size, stride_b, sizes[1] if k_size else 0),
            )
        )
        out = np.full(BLOCK * BLOCK, 77, np.int32 if dtype == "i8" else np.float32)
        return [a, b, out, *sizes, k_size, stride_a, stride_b]

    return make


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("mask", ["", "k", "mnk"])
def test_products(dtype: str, promise: str, mask: str) -> None:
    """Every dtype, promise, mask and number of stages; trips of 0, 1, some, and a part."""
    unit = BLOCK if mask == "" else int(promise[1:] or 1)
    sizes = (3 * BLOCK + unit, 0, BLOCK, 2 * BLOCK - unit, BLOCK + unit)
    for num_stages, k_size in zip(STAGES, sizes, strict=True):
        case = product_case(dtype, promise, mask, num_stages=num_stages, num_warps=2)
        case.check(product_args(dtype, promise, mask, k_size))


@pytest.mark.parametrize("k_size", [0, 1, 31, 32, 33, 128, 160])
@pytest.mark.parametrize("num_stages", STAGES)
def test_products_of_every_length(k_size: int, num_stages: int) -> None:
    case = product_case("bf16", "", "k", num_stages=num_stages)
    case.check(product_args("bf16", "", "k", k_size))


def loop_of(text: str) -> str:
    """Return the body of the only loop of a kernel's gpu IR."""
    match = re.search(r"scf\.for\(.*?\n  \}", text, re.DOTALL)
    assert match is not None
    return match[0]


@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_the_steady_loop_waits_once(num_stages: int) -> None:
    case = product_case("bf16", ":16", "k", num_stages=num_stages)
    loop = loop_of(case.gpu_ir)
    assert loop.count("gpu.barrier") == 1
    assert loop.count("gpu.async_wait") == 1
    assert f"gpu.async_wait {{pending = {num_stages - 2}}}" in loop
    assert loop.count("gpu.async_commit") == 1
    assert loop.count("gpu.async_copy") == 2
    assert "gpu.load" not in case.gpu_ir
    assert f"num_stages = {num_stages}" in case.gpu_ir
    case.check_each_pass(product_args("bf16", ":16", "k", 3 * BLOCK))


def test_one_stage_is_no_pipeline() -> None:
    case = product_case("bf16", ":16", "k", num_stages=1)
    assert "gpu.async" not in case.gpu_ir
    assert "pipelined" not in case.remarks


@pytest.mark.parametrize("target", TARGETS.values(), ids=str)
def test_copies_assemble_for_every_target(target) -> None:
    for promise, size in ((":16", 16), (":2", 4)):
        case = product_case("bf16", promise, "k", num_stages=3, target=str(target))
        ptx = case.ptx
        kind = "cg" if size == 16 else "ca"
        per_stage = 2 * BLOCK * BLOCK * 2 // (32 * size)
        copies = re.findall(
            rf"cp\.async\.{kind}\.shared\.global\S* \[.*?\], \[.*?\], {size}, ", ptx
        )
        assert len(copies) == 3 * per_stage
        assert ptx.count("cp.async.") - len(copies) == ptx.count("_group")
        assembly = assemble(ptx, target)
        assert (assembly.spill_bytes, assembly.stack_bytes, assembly.warnings) == (0, 0, ())


def test_fp16_without_a_promise_is_pipelined_through_registers() -> None:
    """Triton refuses copies of 2 bytes; the remark names the promise for wider ones."""
    case = product_case("fp16", "", "k", num_stages=2, num_warps=4)
    loop = loop_of(case.gpu_ir)
    assert "gpu.async" not in case.gpu_ir
    assert loop.count("gpu.load") == 2
    assert loop.index("gpu.load") < loop.index("gpu.dot")
    assert loop.count("gpu.barrier") == 1
    assert "pipelined over 2 stages through registers: a_ptr, b_ptr" in case.remarks
    assert (
        "a_ptr goes through registers, not by cp.async: an access moves 2 bytes a thread, "
        "cp.async at least 4: rows are not known to begin at multiples of 4 bytes; promise ':16' "
        "in the signature, or ':16?' to have both variants built, of k_size, stride_a"
    ) in case.remarks
    assemble(case.ptx, case.target)


def test_the_remark_names_a_mask_that_varies() -> None:
    case = product_case("fp16", ":16", "k", num_stages=2)
    signature = {"n_size": "i32", "stride_a": "i32:16", "stride_b": "i32:16", "k_size": "i32:16"}
    case = Case(
        "product",
        {
            "a_ptr": "*fp16:16",
            "b_ptr": "*fp16:16",
            "c_ptr": "*fp32:16",
            "m_size": "i32",
            **signature,
        },
        {"BLOCK_M": BLOCK, "BLOCK_N": BLOCK, "BLOCK_K": BLOCK, "MASK": "mnk"},
        num_stages=2,
    )
    assert "stages through shared memory: a_ptr" in case.remarks
    assert "its mask may differ between neighbours; promise ':16'" in case.remarks
    assert "of n_size" in case.remarks


def test_too_many_registers_are_not_taken() -> None:
    """32 elements of 2 bytes come in as many registers; two such tiles would be 64."""
    case = product_case("fp16", "", "k", num_stages=2)
    assert "is not pipelined: loading it ahead would take too many registers" in case.remarks
    assert "a_ptr goes through registers, not by cp.async" in case.remarks
    assert "b_ptr goes through registers, not by cp.async" in case.remarks


# ---- other loops ------------------------------------------------------------------------------


def blocks(*shapes: int, extra: Args, out: int, dtype: Any = np.float32) -> Callable[[], Args]:
    """Return a function making integer arrays, an output, and more arguments."""

    def make() -> Args:
        random = np.random.default_rng(sum(shapes))
        arrays = [random.integers(-9, 10, max(1, size)).astype(dtype) for size in shapes]
        return [*arrays, np.full(max(1, out), 77, dtype), *extra]

    return make


TURNED = {"a_ptr": "*fp32:16", "b_ptr": "*fp32:16", "c_ptr": "*fp32:16"}


@pytest.mark.parametrize("num_stages", STAGES)
@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 100])
def test_addresses_that_are_computed_anew(num_stages: int, count: int) -> None:
    signature = {**TURNED, "count": "i32", "stride": "i32:16"}
    case = Case("turned", signature, {"OTHER": 0, "BLOCK": 32}, num_stages=num_stages, num_warps=4)
    case.check(blocks(32 * 112, 112 * 112, out=1024, extra=[count, 112]))


def test_a_tile_used_where_it_was_loaded_is_fetched_into_registers() -> None:
    signature = {**TURNED, "count": "i32", "stride": "i32:16"}
    case = Case("turned", signature, {"OTHER": 0, "BLOCK": 32}, num_warps=4)
    assert "over 3 stages through shared memory: b_ptr" in case.remarks
    assert "over 2 stages through registers: a_ptr" in case.remarks
    assert loop_of(case.gpu_ir).count("gpu.barrier") == 1


def test_masked_elements_that_are_not_zero_take_registers() -> None:
    signature = {**TURNED, "count": "i32", "stride": "i32:16"}
    case = Case("turned", signature, {"OTHER": 5, "BLOCK": 32}, num_warps=4)
    assert "gpu.async" not in case.gpu_ir
    assert "masked elements become something else than 0" in case.remarks
    case.check(blocks(32 * 112, 112 * 112, out=1024, extra=[50, 112]))


GATHERED = {"x_ptr": "*fp32:16", "index_ptr": "*i32:16", "out_ptr": "*fp32:16", "count": "i32"}


@pytest.mark.parametrize("num_stages", STAGES)
@pytest.mark.parametrize("count", [0, 1, 16, 17, 70])
def test_indirect_loads(num_stages: int, count: int) -> None:
    """The index is out of bounds by a hair: it must not be read ahead of the end."""
    case = Case(
        "gathered", GATHERED, {"WIDTH": 64, "BLOCK": 16}, num_stages=num_stages, num_warps=4
    )

    def make() -> Args:
        random = np.random.default_rng(count)
        index = random.integers(0, 20, max(1, count)).astype(np.int32)
        x = random.integers(-9, 10, 20 * 64).astype(np.float32)
        return [x, index, np.full(64 * 16, 77, np.float32), count]

    case.check(make)


def test_indices_are_loaded_an_iteration_before_the_rows() -> None:
    case = Case("gathered", GATHERED, {"WIDTH": 64, "BLOCK": 16}, num_warps=4)
    loop = loop_of(case.gpu_ir)
    assert "over 3 stages through shared memory: x_ptr" in case.remarks
    assert "over 4 stages through registers: index_ptr" in case.remarks
    # The copy uses the carried index, not the one loaded in this iteration.
    loaded = re.search(r"(%\S+) = gpu\.load", loop)
    assert loaded is not None
    assert re.findall(rf"{re.escape(loaded[1])}\b", loop.split("scf.yield")[0]) == [loaded[1]]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("num_stages", [2, 3])
def test_indices_of_indices(count: int, num_stages: int) -> None:
    signature = {
        "x_ptr": "*fp32:16",
        "page_ptr": "*i32",
        "index_ptr": "*i32",
        "out_ptr": "*fp32:16",
        "count": "i32",
    }
    case = Case("gathered_twice", signature, {"BLOCK": 32}, num_stages=num_stages)

    def make() -> Args:
        random = np.random.default_rng(count)
        x = random.integers(-9, 10, 5 * 32).astype(np.float32)
        page = random.integers(0, 5, 7).astype(np.int32)
        index = random.integers(0, 7, max(1, count)).astype(np.int32)
        return [x, page, index, np.full(32, 77, np.float32), count]

    case.check(make)
    assert "over 4 stages through registers: x_ptr, page_ptr, index_ptr" in case.remarks.replace(
        "index_ptr, page_ptr, x_ptr", "x_ptr, page_ptr, index_ptr"
    )


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_an_index_loaded_in_the_iteration_before(count: int) -> None:
    signature = {**GATHERED, "index_ptr": "*i32"}
    case = Case("looked_up_before", signature, {"BLOCK": 32})

    def make() -> Args:
        random = np.random.default_rng(count)
        x = random.integers(-9, 10, 5 * 32).astype(np.float32)
        index = random.integers(0, 5, count + 1).astype(np.int32)
        return [x, index, np.full(32, 77, np.float32), count]

    case.check(make)
    assert "pipelined over" in case.remarks


def test_a_chain_of_loads_is_left_alone() -> None:
    case = Case("chased", {"next_ptr": "*i32", "out_ptr": "*i32", "count": "i32"}, {})
    assert "next_ptr is not pipelined: its address depends on what it loaded" in case.remarks

    def make() -> Args:
        return [np.random.default_rng(0).permutation(9).astype(np.int32), np.zeros(1, np.int32), 5]

    case.check(make)


INT_LIMITS = {"i32": np.iinfo(np.int32), "i64": np.iinfo(np.int64), "u32": np.iinfo(np.uint32)}


@pytest.mark.parametrize("kind", INT_LIMITS)
@pytest.mark.parametrize("num_stages", [2, 4])
@pytest.mark.parametrize("trips", [0, 1, 2, 6])
def test_bounds_at_the_ends_of_their_type(kind: str, num_stages: int, trips: int) -> None:
    signature = {"x_ptr": "*fp32:16", "out_ptr": "*fp32:16", "start": kind, "stop": kind}
    case = Case("summed", signature, {"STEP": 32, "BLOCK": 32}, num_stages=num_stages)
    limits = INT_LIMITS[kind]
    length = max(0, 32 * trips - 5)
    for start in (int(limits.min), int(limits.max) - length, 0):
        case.check(blocks(32 * trips, out=32, extra=[start, start + length]))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("num_stages", [0, 3])
@pytest.mark.parametrize("count", [0, 1, 32, 33, 100])
def test_loops_that_write(count: int, num_stages: int, in_place: bool) -> None:
    signature = {"x_ptr": "*fp32:16", "out_ptr": "*fp32:16", "count": "i32"}
    stages = num_stages or None
    case = Case("scaled", signature, {"STAGES": stages, "BLOCK": 32})
    promised = "the load of x_ptr is not pipelined: the loop writes through out_ptr, which may be"
    assert (promised in case.remarks) == (num_stages == 0)

    def make() -> Args:
        x = np.random.default_rng(count).integers(-9, 10, max(1, count)).astype(np.float32)
        return [x, x if in_place else np.full(max(1, count), 77, np.float32), count]

    case.check(make)


@pytest.mark.parametrize("count", [0, 1, 33, 100])
def test_a_loop_that_writes_what_is_promised_to_be_other_memory(count: int) -> None:
    signature = {"x_ptr": "*fp32:16", "out_ptr": "*fp32:16 noalias", "count": "i32"}
    case = Case("scaled", signature, {"STAGES": None, "BLOCK": 32})
    assert "stages through registers: x_ptr" in case.remarks

    def make() -> Args:
        x = np.random.default_rng(count).integers(-9, 10, max(1, count)).astype(np.float32)
        return [x, np.full(max(1, count), 77, np.float32), count]

    case.check(make)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_what_a_loop_reads_back_is_not_fetched_ahead(count: int) -> None:
    signature = {"x_ptr": "*fp32:16", "out_ptr": "*fp32:16", "count": "i32"}
    case = Case("accumulated", signature, {"BLOCK": 32})
    assert "the load of out_ptr is not pipelined: the loop writes through out_ptr" in case.remarks
    assert "stages through shared memory: x_ptr" in case.remarks
    case.check(blocks(32 * count, out=32, extra=[count]))


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_conditional_loads_run_ahead_too(count: int) -> None:
    signature = {"x_ptr": "*fp32:16", "y_ptr": "*fp32:16", "out_ptr": "*fp32:16", "count": "i32"}
    case = Case("conditional", signature, {"BLOCK": 32})
    assert "stages through registers: x_ptr, y_ptr" in case.remarks
    case.check(blocks(32 * count, 32 * count, out=32, extra=[count]))


def test_every_pass_keeps_the_meaning() -> None:
    for count, num_warps in itertools.product((0, 40), (1, 4)):
        case = Case("gathered", GATHERED, {"WIDTH": 64, "BLOCK": 16}, num_warps=num_warps)

        def make(count: int = count) -> Args:
            random = np.random.default_rng(count)
            index = random.integers(0, 20, max(1, count)).astype(np.int32)
            x = random.integers(-9, 10, 20 * 64).astype(np.float32)
            return [x, index, np.full(64 * 16, 77, np.float32), count]

        case.check_each_pass(make)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_loops_with_a_condition_are_left_alone(count: int) -> None:
    case = Case("until", {"x_ptr": "*i32", "out_ptr": "*i32"}, {})
    assert "the loads of x_ptr are not pipelined: it is not known whether" in case.remarks

    def make() -> Args:
        return [np.array([7] * count + [0], np.int32), np.full(1, 77, np.int32)]

    case.check(make)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_loads_under_a_branch_that_stores_stay_there(count: int) -> None:
    signature = {"x_ptr": "*fp32:16", "out_ptr": "*fp32:16", "count": "i32"}
    case = Case("sometimes", signature, {"BLOCK": 32})
    assert "the load of x_ptr is not pipelined: it is under a branch" in case.remarks
    case.check(blocks(32 * count, out=32 * count, extra=[count]))


UNUSED_SUM = """
kernel @k(%x: *fp32 {divisibility = 16}, %y: *fp32 {divisibility = 16}, %n: i32) {num_warps = 2} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
  %b = arith.constant {value = 1.0, type = tile<8x32xfp32>} : tile<8x32xfp32>
  %none = arith.constant {value = 0.0, type = tile<16x32xfp32>} : tile<16x32xfp32>
  %index = tile.arange {start = 0, end = 128} : tile<128xi32>
  %square = tile.reshape(%index) {shape = [16, 8]} : tile<16x8xi32>
  %xs = tile.splat(%x) {shape = [16, 8]} : tile<16x8x*fp32>
  %from = arith.addptr(%xs, %square) : tile<16x8x*fp32>
  %sum, %last = scf.for(%zero, %n, %one, %none, %zero) {num_stages = 3} (%k: i32, %acc: tile<16x32xfp32>, %before: i32) {
    %a = tile.load(%from, _, _) : tile<16x8xfp32>
    %more = tile.dot(%a, %b, %acc) : tile<16x32xfp32>
    scf.yield(%more, %k)
  } : tile<16x32xfp32>, i32
  %count = arith.cast(%last) {dtype = fp32} : fp32
  tile.store(%y, RESULT, _)
  scf.return
}
"""


@pytest.mark.parametrize("is_used", [True, False])
def test_a_load_for_a_sum_that_nothing_uses_is_not_copied_ahead(is_used: bool) -> None:
    text = UNUSED_SUM.replace("RESULT", "%count")
    if is_used:
        store = "  tile.store(%y, %count, _)"
        text = text.replace(store, f"{store}\n  tile.store(%from, %part, _)")
        part = "%part = tile.reshape(%half) {shape = [16, 8]} : tile<16x8xfp32>"
        combine = (
            "(%p: fp32, %q: fp32) {\n    %m = arith.max(%p, %q) : fp32\n    scf.yield(%m)\n  }"
        )
        whole = "%w = tile.reshape(%sum) {shape = [128, 4]} : tile<128x4xfp32>"
        half = f"%half = tile.reduce(%w) {{axis = 1}} {combine} : tile<128xfp32>"
        text = text.replace("  tile.store(%y", f"  {whole}\n  {half}\n  {part}\n  tile.store(%y")
    kernel = parse_kernel(text)
    kernel = schedule_kernel(kernel, Schedule(TARGETS["sm_80"], Config(2, 3)))
    assert ("gpu.async_copy" in print_kernel(kernel)) == is_used


# ---- the resulting IR ---------------------------------------------------------------------------

TEXT = """\
// CHECK: [[RING:%.*]] = gpu.shared_alloc {{{.*}}num_stages = 3}
// CHECK: [[FIRST:%.*]] = arith.compare(%zero, %n) {predicate = "lt"}
// CHECK: [[STAGE:%.*]] = gpu.shared_stage([[RING]], [[ZERO:%.*]]) :
// CHECK-NEXT: gpu.async_copy(%first, [[STAGE]], _, [[FIRST]]) {vector = 4}
// CHECK-NEXT: gpu.async_commit
// CHECK: [[SECOND:%.*]] = arith.compare(%zero, {{%.*}}) {predicate = "lt"}
// CHECK: [[STAGE:%.*]] = gpu.shared_stage([[RING]], [[ZERO]]) {ahead = 1}
// CHECK-NEXT: gpu.async_copy({{%.*}}, [[STAGE]], _, [[SECOND]]) {vector = 4}
// CHECK-NEXT: gpu.async_commit
// CHECK-NEXT: scf.for(%zero, %n, %one, %none, {{%.*}}, [[ZERO]]) ({{.*}}, [[INDEX:%[a-z]+]]: i32) {
// CHECK-NEXT: gpu.async_wait {pending = 1}
// CHECK-NEXT: [[STAGE:%.*]] = gpu.shared_stage([[RING]], [[INDEX]]) :
// CHECK-NEXT: %w = gpu.shared_load([[STAGE]])
// CHECK: [[MORE:%.*]] = arith.compare(%step, {{%.*}}) {predicate = "lt"}
// CHECK: [[STAGE:%.*]] = gpu.shared_stage([[RING]], [[INDEX]]) {ahead = 2}
// CHECK-NEXT: gpu.async_copy(%p, [[STAGE]], _, [[MORE]]) {vector = 4}
// CHECK-NEXT: gpu.async_commit
// CHECK: [[NEXT:%.*]] = gpu.next_stage([[INDEX]]) {num_stages = 3}
// CHECK-NEXT: scf.yield(%sum, {{%.*}}, [[NEXT]])
// CHECK: gpu.async_wait
// CHECK-NOT: gpu.load
#0 = #ll<register=[[1],[2]] lane=[[4],[8],[16],[32],[64]] warp=[] : [128]>
#1 = #ll<offset=[[1],[2],[4],[8],[16],[32],[64]] : [128]>
#2 = #ll<register=[[32],[64]] lane=[[1],[2],[4],[8],[16]] warp=[] : [128]>
kernel @k(%x: *fp32 {divisibility = 16}, %out: *fp32 {divisibility = 16}, %n: i32) {num_warps = 1} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
  %size = arith.constant {value = 128, type = tile<128xi32, #0>} : tile<128xi32, #0>
  %none = arith.constant {value = 0.0, type = tile<128xfp32, #2>} : tile<128xfp32, #2>
  %i = tile.arange {start = 0, end = 128, layout = #0} : tile<128xi32, #0>
  %xs = tile.splat(%x) {shape = [128], layout = #0} : tile<128x*fp32, #0>
  %first = arith.addptr(%xs, %i) : tile<128x*fp32, #0>
  %total, %end = scf.for(%zero, %n, %one, %none, %first) (%step: i32, %acc: tile<128xfp32, #2>, %p: tile<128x*fp32, #0>) {
    %v = gpu.load(%p, _, _) {vector = 4} : tile<128xfp32, #0>
    %buffer = gpu.shared_alloc {element = fp32, shape = [128], layout = #1} : shared<128xfp32, #1>
    gpu.shared_store(%v, %buffer) {vector = 4}
    %w = gpu.shared_load(%buffer) {layout = #2} : tile<128xfp32, #2>
    %sum = arith.add(%acc, %w) : tile<128xfp32, #2>
    %next = arith.addptr(%p, %size) : tile<128x*fp32, #0>
    scf.yield(%sum, %next)
  } : tile<128xfp32, #2>, tile<128x*fp32, #0>
  %j = tile.arange {start = 0, end = 128, layout = #2} : tile<128xi32, #2>
  %os = tile.splat(%out) {shape = [128], layout = #2} : tile<128x*fp32, #2>
  %q = arith.addptr(%os, %j) : tile<128x*fp32, #2>
  gpu.store(%q, %total, _)
  scf.return
}
"""


def test_two_iterations_are_copied_before_the_loop_and_one_in_each() -> None:
    kernel = applied(TEXT, pipeline_loads, target="sm_80", config=Config(1, num_stages=3))
    for iterations in (1, 2, 3, 7):
        x = np.random.default_rng(iterations).integers(-9, 10, 128 * iterations)
        args = [x.astype(np.float32), np.full(128, 77, np.float32), iterations]
        assert_same_meaning(TEXT, kernel, args, lower=(allocate_shared, insert_barriers))

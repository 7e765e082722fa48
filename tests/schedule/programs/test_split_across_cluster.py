"""Programs run by clusters: each CTA computes its part, together they compute the whole."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.config import Config
from aotc.ir.diagnostics import CompileError
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.verify import verify
from aotc.schedule.context import Schedule
from aotc.schedule.programs.split_across_cluster import split_across_cluster
from aotc.schedule.tensor_maps.lower_descriptors import lower_descriptors
from aotc.target import TARGETS
from aotc.verify.interpreter.numerics import dtype_of
from aotc.verify.interpreter.run import run
from tests.schedule.programs.test_cta_split import PRODUCT
from tests.support.pass_case import applied

TARGET = TARGETS["sm_90a"]


def distributed(text: str, num_ctas: int):
    kernel = parse_kernel(text)
    kernel.num_ctas = num_ctas
    schedule = Schedule(TARGET, Config(4, 3, num_ctas))
    lower_descriptors(kernel, schedule)
    split_across_cluster(kernel, schedule)
    return kernel, schedule.remarks


@pytest.mark.parametrize("num_ctas", [1, 2, 4, 8])
def test_blocks_compute_together_what_a_program_computes(num_ctas) -> None:
    rng = np.random.default_rng(num_ctas)
    a, b = (rng.integers(-8, 8, shape).astype(np.float32) for shape in ((128, 64), (64, 64)))
    as_bf16 = [(value.view(np.uint32) >> 16).astype(np.uint16) for value in (a, b)]
    kernel, remarks = distributed(PRODUCT, num_ctas)
    out = np.full((128, 64), np.nan, np.float32)
    bf16 = dtype_of(kernel.body.args[0].type.pointee)
    run(kernel, (1,), [*(value.view(bf16) for value in as_bf16), out])
    np.testing.assert_array_equal(out, a @ b)
    assert not remarks


@pytest.mark.parametrize("num_ctas", [2, 4])
def test_an_axis_that_is_cut_and_put_together_is_divided(num_ctas) -> None:
    turned = """  %23 = tile.reshape(%22) {shape = [8, 4, 4, 64]} : tile<8x4x4x64xfp32>
  %24 = tile.trans(%23) {order = [0, 2, 1, 3]} : tile<8x4x4x64xfp32>
  %25 = tile.reshape(%24) {shape = [128, 64]} : tile<128x64xfp32>
  %26 = tile.splat(%out) {shape = [128, 64]} : tile<128x64x*fp32>
  %27 = arith.addptr(%26, %8) : tile<128x64x*fp32>
  tile.store(%27, %25, _)
"""
    begin, end = PRODUCT.index("  %23"), PRODUCT.index("  scf.return")
    kernel, remarks = distributed(PRODUCT[:begin] + turned + PRODUCT[end:], num_ctas)
    rng = np.random.default_rng(num_ctas)
    a, b = (rng.integers(-8, 8, shape).astype(np.float32) for shape in ((128, 64), (64, 64)))
    as_bf16 = [(value.view(np.uint32) >> 16).astype(np.uint16) for value in (a, b)]
    out = np.full((128, 64), np.nan, np.float32)
    bf16 = dtype_of(kernel.body.args[0].type.pointee)
    run(kernel, (1,), [*(value.view(bf16) for value in as_bf16), out])
    expected = (a @ b).reshape(8, 4, 4, 64).swapaxes(1, 2).reshape(128, 64)
    np.testing.assert_array_equal(out, expected)
    assert not remarks
    assert f"tile<{8 // num_ctas}x4x4x64xfp32>" in print_kernel(kernel) or num_ctas == 4


def test_the_parts_are_smaller_tiles_that_begin_at_the_blocks_own() -> None:
    kernel, _ = distributed(PRODUCT, 2)
    text = print_kernel(kernel)
    assert "grid.cta_rank" in text
    assert "tile.dot" in text
    assert "tile<64x64xfp32>" in text
    assert "tile<128" not in text


REPLICATED = """
kernel @k(%out: *i32) {num_warps = 1} {
  %0 = tile.arange {start = 0, end = 32} : tile<32xi32>
  %1 = tile.splat(%out) {shape = [32]} : tile<32x*i32>
  %2 = arith.addptr(%1, %0) : tile<32x*i32>
  tile.store(%2, %0, _)
  scf.return
}
"""


def test_what_is_not_divided_is_stored_by_the_first_block() -> None:
    kernel, _ = distributed(REPLICATED, 2)
    assert "scf.if" in print_kernel(kernel)
    out = np.full(32, -1, np.int32)
    run(kernel, (1,), [out])
    np.testing.assert_array_equal(out, np.arange(32))


DESCRIPTORS = """
kernel @k(%a: desc<128x64xbf16>, %b: desc<64x64xbf16>, %out: desc<128x64xfp32>) {num_warps = 4} {
  %0 = arith.constant {value = 0, type = i32} : i32
  %1 = tile.descriptor_load(%a, %0, %0) : tile<128x64xbf16>
  %2 = tile.descriptor_load(%b, %0, %0) : tile<64x64xbf16>
  %3 = arith.constant {value = 0.0, type = tile<128x64xfp32>} : tile<128x64xfp32>
  %4 = tile.dot(%1, %2, %3) : tile<128x64xfp32>
  tile.descriptor_store(%out, %4, %0, %0)
  scf.return
}
"""


def test_a_descriptor_is_divided_like_its_blocks_and_what_all_load_comes_in_parts() -> None:
    kernel, _ = distributed(DESCRIPTORS, 2)
    header = print_kernel(kernel).splitlines()[0]
    assert "%a: desc<64x64xbf16>" in header
    assert "%b: desc<64x64xbf16, 2>" in header
    assert "%out: desc<64x64xfp32>" in header


OF_HEADS = """
kernel @k(%a: desc<1x128x64xbf16>, %b: desc<1x64x64xbf16>, %c: desc<1x64x64xbf16>, %out: desc<1x128x64xfp32>) {num_warps = 4} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %x = tile.descriptor_load(%a, %zero, %zero, %zero) {num_dropped = 1} : tile<128x64xbf16>
  %y = tile.descriptor_load(%b, %zero, %zero, %zero) {num_dropped = 1} : tile<64x64xbf16>
  %whole = tile.descriptor_load(%c, %zero, %zero, %zero) : tile<1x64x64xbf16>
  %z = tile.reshape(%whole) {shape = [64, 64]} : tile<64x64xbf16>
  %acc = arith.constant {value = 0.0, type = tile<128x64xfp32>} : tile<128x64xfp32>
  %one = tile.dot(%x, %y, %acc) : tile<128x64xfp32>
  %dot = tile.dot(%x, %z, %one) : tile<128x64xfp32>
  %result = tile.reshape(%dot) {shape = [1, 128, 64]} : tile<1x128x64xfp32>
  tile.descriptor_store(%out, %result, %zero, %zero, %zero)
  scf.return
}
"""


def test_parts_are_of_the_first_axis_that_a_tile_has() -> None:
    kernel = parse_kernel(OF_HEADS)
    kernel.num_ctas = 2
    split_across_cluster(kernel, Schedule(TARGET, Config(4, 3, 2)))
    verify(kernel)
    header = print_kernel(kernel).splitlines()[0]
    assert "%a: desc<1x64x64xbf16>" in header
    assert "%b: desc<1x64x64xbf16, 2>" in header
    assert "%c: desc<1x64x64xbf16>" in header  # its tiles begin with the axis of one element
    assert "%out: desc<1x64x64xfp32>" in header


MERGED = """
kernel @k(%a: desc<1x4x4x8x64xbf16>, %b: desc<64x64xbf16>, %out: desc<64x64xfp32>) {num_warps = 4} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %x = tile.descriptor_load(%a, %zero, %zero, %zero, %zero, %zero) {num_dropped = 1, num_merged = 2} : tile<128x64xbf16>
  %y = tile.descriptor_load(%b, %zero, %zero) : tile<64x64xbf16>
  %acc = arith.constant {value = 0.0, type = tile<128x64xfp32>} : tile<128x64xfp32>
  %dot = tile.dot(%x, %y, %acc) : tile<128x64xfp32>
  %apart = tile.reshape(%dot) {shape = [8, 2, 8, 64]} : tile<8x2x8x64xfp32>
  %last = tile.trans(%apart) {order = [0, 2, 3, 1]} : tile<8x8x64x2xfp32>
  %gate, %up = tile.split(%last) : tile<8x8x64xfp32>, tile<8x8x64xfp32>
  %both = arith.mul(%gate, %up) : tile<8x8x64xfp32>
  %result = tile.reshape(%both) {shape = [64, 64]} : tile<64x64xfp32>
  tile.descriptor_store(%out, %result, %zero, %zero)
  scf.return
}
"""


def test_axes_that_are_merged_or_come_apart_are_divided_at_the_first() -> None:
    """Gate and up are rows in turn: each CTA has as many of both."""
    kernel = parse_kernel(MERGED)
    kernel.num_ctas = 2
    schedule = Schedule(TARGET, Config(4, 3, 2))
    split_across_cluster(kernel, schedule)
    verify(kernel)
    text = print_kernel(kernel)
    assert not schedule.remarks
    assert "%a: desc<1x2x4x8x64xbf16>" in text
    assert "%b: desc<64x64xbf16, 2>" in text
    assert "%out: desc<32x64xfp32>" in text
    assert "num_merged = 2} : tile<64x64xbf16>" in text


SHARED = """
kernel @k(%a: desc<128x64xbf16>, %b: desc<1x4x2x8x64xbf16>, %out: desc<128x64xfp32>) {num_warps = 4} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %x = tile.descriptor_load(%a, %zero, %zero) : tile<128x64xbf16>
  %y = tile.descriptor_load(%b, %zero, %zero, %zero, %zero, %zero) {num_dropped = 1, num_merged = 2} : tile<64x64xbf16>
  %acc = arith.constant {value = 0.0, type = tile<128x64xfp32>} : tile<128x64xfp32>
  %dot = tile.dot(%x, %y, %acc) : tile<128x64xfp32>
  tile.descriptor_store(%out, %dot, %zero, %zero)
  scf.return
}
"""


def test_merged_axes_that_all_ctas_need_are_not_multicast() -> None:
    """A box has all of them, so no CTA can copy a part for the others."""
    kernel = parse_kernel(SHARED)
    kernel.num_ctas = 2
    split_across_cluster(kernel, Schedule(TARGET, Config(4, 3, 2)))
    verify(kernel)
    text = print_kernel(kernel)
    assert "%a: desc<64x64xbf16>" in text
    assert "%b: desc<1x4x2x8x64xbf16>," in text


SHORT = """
kernel @k(%a: desc<2x128x64xbf16>, %b: desc<64x64xbf16>, %out: desc<256x64xfp32>) {num_warps = 4} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %x = tile.descriptor_load(%a, %zero, %zero, %zero) {num_merged = 1} : tile<256x64xbf16>
  %y = tile.descriptor_load(%b, %zero, %zero) : tile<64x64xbf16>
  %acc = arith.constant {value = 0.0, type = tile<256x64xfp32>} : tile<256x64xfp32>
  %dot = tile.dot(%x, %y, %acc) : tile<256x64xfp32>
  tile.descriptor_store(%out, %dot, %zero, %zero)
  scf.return
}
"""


@pytest.mark.parametrize(("num_ctas", "divides"), [(2, True), (4, False)])
def test_merged_axes_whose_first_is_too_short_are_not_divided(num_ctas: int, divides: bool) -> None:
    kernel = parse_kernel(SHORT)
    kernel.num_ctas = num_ctas
    schedule = Schedule(TARGET, Config(4, 3, num_ctas))
    split_across_cluster(kernel, schedule)
    verify(kernel)
    assert bool(schedule.remarks) is not divides
    assert ("%a: desc<1x128x64xbf16>" in print_kernel(kernel)) is divides


BARRIER = REPLICATED.replace("  scf.return", "  tile.barrier\n  scf.return")


def test_a_barrier_of_the_program_is_refused_with_a_remedy() -> None:
    with pytest.raises(CompileError, match="num_ctas = 2") as caught:
        distributed(BARRIER, 2)
    assert "leave num_ctas at 1" in str(caught.value.remedy)


def test_nothing_is_used_by_ops_that_are_not_there() -> None:
    kernel, _ = distributed(DESCRIPTORS, 2)
    verify(kernel)


NARROW = """
kernel @k(%a: desc<16x32xfp8e4nv>, %b: desc<32x16xfp8e4nv>, %out: desc<16x16xfp32>) {num_warps = 4} {
  %0 = arith.constant {value = 0, type = i32} : i32
  %1 = tile.descriptor_load(%a, %0, %0) : tile<16x32xfp8e4nv>
  %2 = tile.descriptor_load(%b, %0, %0) : tile<32x16xfp8e4nv>
  %3 = arith.constant {value = 0.0, type = tile<16x16xfp32>} : tile<16x16xfp32>
  %4 = tile.dot(%1, %2, %3) : tile<16x16xfp32>
  tile.descriptor_store(%out, %4, %0, %0)
  scf.return
}
"""


def test_rows_too_short_for_tensor_copies_are_not_divided() -> None:
    kernel, remarks = distributed(NARROW, 2)
    verify(kernel)
    assert "slices of desc<32x16xfp8e4nv> would have too short rows" in remarks[0]
    assert "%out: desc<16x16xfp32>" in print_kernel(kernel)


SPLIT = """\
// CHECK: [[RANK:%.*]] = grid.cta_rank
// CHECK-NEXT: [[OWN:%.*]] = tile.arange {start = 0, end = 64}
// CHECK-NEXT: [[SIZE:%.*]] = arith.constant {value = 64, type = i32}
// CHECK-NEXT: [[FIRST:%.*]] = arith.mul([[RANK]], [[SIZE]])
// CHECK-NEXT: [[FIRSTS:%.*]] = tile.splat([[FIRST]]) {shape = [64]}
// CHECK-NEXT: [[ROWS:%.*]] = arith.add([[FIRSTS]], [[OWN]])
// CHECK-NEXT: tile.expand_dims([[ROWS]]) {axis = 1}
// CHECK: [[A:%.*]] = tile.load({{.*}} : tile<64x64xbf16>
// CHECK: [[B:%.*]] = tile.load({{.*}} : tile<64x64xbf16>
// CHECK: tile.dot([[A]], [[B]], {{%.*}}) : tile<64x64xfp32>
"""
ONE_CTA = """\
// CHECK: [[RANK:%.*]] = grid.cta_rank
// CHECK: [[FIRST:%.*]] = arith.compare([[RANK]], {{%.*}}) {predicate = "eq"}
// CHECK-NEXT: scf.if([[FIRST]]) () {
// CHECK-NEXT: tile.store(
"""


@pytest.mark.parametrize(("checks", "text"), [(SPLIT, PRODUCT), (ONE_CTA, REPLICATED)])
def test_a_cta_computes_rows_of_its_own_or_the_first_one_stores(checks: str, text: str) -> None:
    applied(checks + text.lstrip(), split_across_cluster, config=Config(num_ctas=2))


ROW = """
kernel @k(%x: *fp32, %out: *fp32) {num_warps = 1} {
  %0 = tile.arange {start = 0, end = 64} : tile<64xi32>
  %1 = tile.splat(%x) {shape = [64]} : tile<64x*fp32>
  %2 = arith.addptr(%1, %0) : tile<64x*fp32>
  %3 = tile.load(%2, _, _) : tile<64xfp32>
  %4 = tile.reduce(%3) {axis = 0} (%a: fp32, %b: fp32) {
    %5 = arith.add(%a, %b) : fp32
    scf.yield(%5)
  } : fp32
  %6 = tile.splat(%4) {shape = [64]} : tile<64xfp32>
  %7 = arith.sub(%3, %6) : tile<64xfp32>
  %8 = tile.splat(%out) {shape = [64]} : tile<64x*fp32>
  %9 = arith.addptr(%8, %0) : tile<64x*fp32>
  tile.store(%9, %7, _)
  scf.return
}
"""


@pytest.mark.parametrize("num_ctas", [2, 8])
def test_a_row_is_split_and_the_ctas_combine_what_it_is_reduced_to(num_ctas) -> None:
    kernel, remarks = distributed(ROW, num_ctas)
    text = print_kernel(kernel)
    assert text.count("grid.cluster_reduce") == 1
    assert "tile<64x" not in text
    x = np.random.default_rng(num_ctas).integers(-9, 9, 64).astype(np.float32)
    out = np.full(64, np.nan, np.float32)
    run(kernel, (1,), [x, out])
    np.testing.assert_array_equal(out, x - x.sum())
    assert not remarks


# Stores are computed beside reductions, from a row loaded again.
AGAIN = ROW.replace("tile.reduce(%3)", "tile.reduce(%s)").replace(
    "  %4 =", "  %s = arith.mul(%3, %3) : tile<64xfp32>\n  %4 ="
)
TWICE = ROW.replace(
    "  %7 = arith.sub(%3,", "  %t = tile.load(%2, _, _) : tile<64xfp32>\n  %7 = arith.sub(%t,"
)


@pytest.mark.parametrize(("text", "power"), [(AGAIN, 2), (TWICE, 1)])
def test_what_is_stored_is_split_as_the_row_that_is_reduced(text: str, power: int) -> None:
    kernel, _ = distributed(text, 4)
    assert "scf.if" not in print_kernel(kernel), "stored by the first CTA alone"
    assert "tile<64x" not in print_kernel(kernel)
    x = np.random.default_rng(power).integers(-9, 9, 64).astype(np.float32)
    out = np.full(64, np.nan, np.float32)
    run(kernel, (1,), [x, out])
    np.testing.assert_array_equal(out, x - (x**power).sum())


# A running sum needs the slices of the CTAs before: the first CTA computes and stores all of it.
SCAN = """
kernel @k(%x: *fp32, %out: *fp32) {num_warps = 1} {
  %0 = tile.arange {start = 0, end = 64} : tile<64xi32>
  %1 = tile.splat(%x) {shape = [64]} : tile<64x*fp32>
  %2 = arith.addptr(%1, %0) : tile<64x*fp32>
  %3 = tile.load(%2, _, _) : tile<64xfp32>
  %4 = tile.reduce(%3) {axis = 0} (%a: fp32, %b: fp32) {
    %5 = arith.add(%a, %b) : fp32
    scf.yield(%5)
  } : fp32
  %6 = tile.scan(%3) {axis = 0, reverse = false} (%c: fp32, %d: fp32) {
    %7 = arith.add(%c, %d) : fp32
    scf.yield(%7)
  } : tile<64xfp32>
  %8 = tile.splat(%out) {shape = [64]} : tile<64x*fp32>
  %9 = arith.addptr(%8, %0) : tile<64x*fp32>
  tile.store(%9, %6, _)
  tile.store(%out, %4, _)
  scf.return
}
"""


def test_a_running_sum_beside_a_sum_is_stored_by_the_first_cta() -> None:
    kernel, remarks = distributed(SCAN, 2)
    text = print_kernel(kernel)
    assert text.count("grid.cluster_reduce") == 1
    assert text.count("scf.if") == 2
    assert not remarks


def test_a_row_that_has_no_slices_is_replicated() -> None:
    kernel, _ = distributed(ROW.replace("64", "1"), 2)
    assert "grid.cluster_reduce" not in print_kernel(kernel)
    out = np.full(1, np.nan, np.float32)
    run(kernel, (1,), [np.ones(1, np.float32), out])
    assert out[0] == 0


CROWDED = """
kernel @k(%out: *i32) {num_warps = 1} {
  %0 = tile.arange {start = 0, end = 64} : tile<64xi32>
  %1 = tile.splat(%out) {shape = [64]} : tile<64x*i32>
  %2 = tile.atomic_rmw(%1, %0, _) {kind = "max", sem = "relaxed", scope = "SCOPE"} : tile<64xi32>
  scf.return
}
"""


@pytest.mark.parametrize("scope", ["cta", "sys"])
@pytest.mark.parametrize("num_ctas", [1, 2])
def test_threads_of_a_program_are_in_several_ctas(scope: str, num_ctas: int) -> None:
    kernel, _ = distributed(CROWDED.replace("SCOPE", scope), num_ctas)
    is_kept = scope != "cta" or num_ctas == 1  # otherwise "gpu", which is not printed
    assert (f'scope = "{scope}"' in print_kernel(kernel)) == is_kept
    assert ("scope = " in print_kernel(kernel)) == is_kept


MADE = """
kernel @k(%a: *bf16 {divisibility = 16}, %b: *bf16 {divisibility = 16}, %c: *bf16 {divisibility = 16}, %n: i32, %s: i64) {num_warps = 4} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %da = tile.descriptor_of(%a, %n, %n, %s) {shape = [128, 64]} : desc<128x64xbf16>
  %db = tile.descriptor_of(%b, %n, %n, %s) {shape = [64, 64]} : desc<64x64xbf16>
  %dc = tile.descriptor_of(%c, %n, %n, %s) {shape = [128, 64]} : desc<128x64xbf16>
  %x = tile.descriptor_load(%da, %zero, %zero) : tile<128x64xbf16>
  %y = tile.descriptor_load(%db, %zero, %zero) : tile<64x64xbf16>
  %acc = arith.constant {value = 0.0, type = tile<128x64xfp32>} : tile<128x64xfp32>
  %dot = tile.dot(%x, %y, %acc) : tile<128x64xfp32>
  %narrow = arith.cast(%dot) {dtype = bf16} : tile<128x64xbf16>
  tile.descriptor_store(%dc, %narrow, %zero, %zero)
  scf.return
}
"""


def test_maps_that_a_kernel_makes_are_of_the_slices_of_its_ctas() -> None:
    """Loads common to all CTAs are multicast: each has a map of its part."""
    kernel = parse_kernel(MADE)
    kernel.num_ctas = 2
    split_across_cluster(kernel, Schedule(TARGET, Config(4, 3, 2)))
    verify(kernel)
    text = print_kernel(kernel)
    assert text.count("{shape = [64, 64]} : desc<64x64xbf16>") == 2  # of A and C
    assert "{shape = [64, 64], num_parts = 2} : desc<64x64xbf16, 2>" in text

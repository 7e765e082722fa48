"""Layouts of tiles, positions of conversions, and widths of accesses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aotc.config import Config
from aotc.ir.core import Kernel
from aotc.ir.dialects import gpu
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.types import TileType
from aotc.ir.verify import verify
from aotc.schedule.context import Schedule
from aotc.schedule.layout.assign_layouts import assign_layouts
from aotc.schedule.layout.hoist_conversions import hoist_conversions
from aotc.target import TARGETS
from tests.support.checks import check, without_checks
from tests.support.pass_case import applied, assert_same_meaning


def assigned(text: str, num_warps: int = 4) -> Kernel:
    kernel = parse_kernel(without_checks(text))
    kernel.num_warps = num_warps
    assign_layouts(kernel, Schedule(TARGETS["sm_90a"], Config(num_warps)))
    verify(kernel)
    for op in kernel.walk():
        for value in op.results:
            if isinstance(value.type, TileType):
                assert value.type.layout is not None, f"{op.opcode} has no layout"
    return kernel


def run(text: str, num_warps: int = 4) -> None:
    check(text, print_kernel(assigned(text, num_warps)))


def test_one_layout_for_what_is_loaded_computed_and_stored() -> None:
    run("""
// CHECK: #0 = #ll<register={{\\[\\[1\\],\\[2\\],\\[512\\]\\]}} lane={{.*}} : [1024]>
// CHECK-NOT: gpu.convert
kernel @add(%x: *fp32 {divisibility = 16}, %y: *fp32 {divisibility = 16}, %n: i32 {divisibility = 16}) {num_warps = 4} {
  %cols = tile.arange {start = 0, end = 1024} : tile<1024xi32>
  %ns = tile.splat(%n) {shape = [1024]} : tile<1024xi32>
  %mask = arith.compare(%cols, %ns) {predicate = "lt"} : tile<1024xi1>
  %xs = tile.splat(%x) {shape = [1024]} : tile<1024x*fp32>
  %xp = arith.addptr(%xs, %cols) : tile<1024x*fp32>
  // CHECK: gpu.load({{.*}}) {vector = 4, prefetch_bytes = 128}
  %v = tile.load(%xp, %mask, _) : tile<1024xfp32>
  %w = arith.mul(%v, %v) : tile<1024xfp32>
  %ys = tile.splat(%y) {shape = [1024]} : tile<1024x*fp32>
  %yp = arith.addptr(%ys, %cols) : tile<1024x*fp32>
  // CHECK: gpu.store({{.*}}) {vector = 4}
  tile.store(%yp, %w, %mask)
  scf.return
}
""")


def test_indices_are_reduced_in_the_layout_of_the_tiles_they_join() -> None:
    text = Path(__file__).with_name("cases").joinpath("reduced_indices.ir").read_text("utf-8")
    kernel = applied(text, assign_layouts, hoist_conversions)
    x = np.random.default_rng(0).standard_normal(512).astype(np.float32)
    out = np.full(512, -1, np.int32)
    assert_same_meaning(text, kernel, [x, out])


def test_data_looked_up_by_data_stays_in_its_threads() -> None:
    text = Path(__file__).with_name("cases").joinpath("gather.ir").read_text("utf-8")
    kernel = applied(text, assign_layouts, hoist_conversions)
    x = np.random.default_rng(0).standard_normal(512).astype(np.float32)
    code = np.linspace(-2, 2, 16, dtype=np.float32)
    assert_same_meaning(text, kernel, [x, code, np.full(512, -1, np.int32)])


def test_a_scale_of_several_elements_is_loaded_once() -> None:
    text = Path(__file__).with_name("cases").joinpath("repeated_scale.ir").read_text("utf-8")
    kernel = applied(text, assign_layouts)
    x, scales = np.random.default_rng(0).standard_normal((2, 2048)).astype(np.float32)
    args = [x, scales[:64], np.full(2048, np.nan, np.float32)]
    assert_same_meaning(text, kernel, [*args, 1040], (2,))


@pytest.mark.parametrize("width", [3, 16, 64])
def test_lanes_are_along_the_axis_with_likely_runs(width: int) -> None:
    text = Path(__file__).with_name("cases").joinpath("likely_runs.ir").read_text("utf-8")
    kernel = applied(text, assign_layouts)
    x = np.random.default_rng(0).standard_normal(35000).astype(np.float16)
    out = np.full(35000, -7, np.float16)
    assert_same_meaning(text, kernel, [x, out, width, 130, 1024])


def access(dtype: str, pointer: int, bound: int) -> str:
    return f"""
kernel @k(%x: *{dtype} {{divisibility = {pointer}}}, %n: i32 {{divisibility = {bound}}}) {{num_warps = 4}} {{
  %cols = tile.arange {{start = 0, end = 4096}} : tile<4096xi32>
  %ns = tile.splat(%n) {{shape = [4096]}} : tile<4096xi32>
  %mask = arith.compare(%cols, %ns) {{predicate = "lt"}} : tile<4096xi1>
  %xs = tile.splat(%x) {{shape = [4096]}} : tile<4096x*{dtype}>
  %xp = arith.addptr(%xs, %cols) : tile<4096x*{dtype}>
  %v = tile.load(%xp, %mask, _) : tile<4096x{dtype}>
  tile.store(%xp, %v, %mask)
  scf.return
}}
"""


@pytest.mark.parametrize(
    ("dtype", "pointer", "bound", "vector"),
    [
        ("fp16", 16, 16, 8),
        ("fp16", 16, 4, 4),
        ("fp16", 4, 16, 2),
        ("fp16", 2, 16, 1),
        ("fp16", 16, 1, 1),
        ("fp32", 16, 16, 4),
        ("fp64", 16, 16, 2),
        ("i8", 16, 16, 16),
        ("i8", 16, 8, 8),
    ],
)
def test_vector_is_what_pointer_and_mask_allow(
    dtype: str, pointer: int, bound: int, vector: int
) -> None:
    kernel = assigned(access(dtype, pointer, bound))
    widths = [op.vector for op in kernel.walk() if isinstance(op, gpu.Load | gpu.Store)]
    assert widths == [vector, vector]


TRANSPOSE = """
kernel @transpose(%x: *fp32 {divisibility = 16}, %y: *fp32 {divisibility = 16}) {num_warps = 4} {
  %r = tile.arange {start = 0, end = 64} : tile<64xi32>
  %rows = tile.expand_dims(%r) {axis = 1} : tile<64x1xi32>
  %cols = tile.expand_dims(%r) {axis = 0} : tile<1x64xi32>
  %pitch = arith.constant {value = 1024, type = tile<64x1xi32>} : tile<64x1xi32>
  %down = arith.mul(%rows, %pitch) : tile<64x1xi32>
  %down2 = tile.broadcast(%down) {shape = [64, 64]} : tile<64x64xi32>
  %cols2 = tile.broadcast(%cols) {shape = [64, 64]} : tile<64x64xi32>
  %offsets = arith.add(%down2, %cols2) : tile<64x64xi32>
  %xs = tile.splat(%x) {shape = [64, 64]} : tile<64x64x*fp32>
  %xp = arith.addptr(%xs, %offsets) : tile<64x64x*fp32>
  // CHECK: gpu.load({{.*}}) {vector = 4, prefetch_bytes = 128} : tile<64x64xfp32, [[LOADED:#[0-9]+]]>
  %v = tile.load(%xp, _, _) : tile<64x64xfp32>
  // CHECK: tile.trans({{.*}}) {order = [1, 0]} : tile<64x64xfp32, [[TURNED:#[0-9]+]]>
  // CHECK-NEXT: gpu.convert({{.*}}) {layout = [[LOADED]]} : tile<64x64xfp32, [[LOADED]]>
  %t = tile.trans(%v) {order = [1, 0]} : tile<64x64xfp32>
  %ys = tile.splat(%y) {shape = [64, 64]} : tile<64x64x*fp32>
  %yp = arith.addptr(%ys, %offsets) : tile<64x64x*fp32>
  // CHECK: gpu.store({{.*}}) {vector = 4}
  tile.store(%yp, %t, _)
  scf.return
}
"""


def test_a_transposed_tile_is_moved_once_and_its_addresses_never() -> None:
    run(TRANSPOSE)
    kernel = assigned(TRANSPOSE)
    conversions = [op for op in kernel.walk() if isinstance(op, gpu.Convert)]
    crossing = [op for op in conversions if "fp32" in str(op.out.type)]
    assert len(crossing) == 1
    assert len(conversions) <= 3  # the others only repeat registers of rows and columns


def test_broadcast_operand_is_computed_once_a_thread() -> None:
    kernel = assigned(TRANSPOSE)
    for op in kernel.walk():
        if op.opcode == "arith.mul":
            (layout,) = [value.type.layout for value in op.results]
            assert layout.zero_mask("register") == 0


ACCUMULATE = """
kernel @sum(%x: *fp32 {divisibility = 16}, %y: *fp32 {divisibility = 16}, %n: i32) {num_warps = 4} {
  %cols = tile.arange {start = 0, end = 1024} : tile<1024xi32>
  %xs = tile.splat(%x) {shape = [1024]} : tile<1024x*fp32>
  %first = arith.addptr(%xs, %cols) : tile<1024x*fp32>
  %zero = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
  %none = arith.constant {value = 0.0, type = tile<1024xfp32>} : tile<1024xfp32>
  %step = arith.constant {value = 1024, type = tile<1024xi32>} : tile<1024xi32>
  // CHECK: scf.for({{.*}}) (%i: i32, %acc: tile<1024xfp32, [[HOME:#[0-9]+]]>, %at: tile<1024x*fp32, [[HOME]]>)
  // CHECK-NOT: gpu.convert
  %acc1, %at1 = scf.for(%zero, %n, %one, %none, %first) (%i: i32, %acc: tile<1024xfp32>, %at: tile<1024x*fp32>) {
    // CHECK: gpu.load(%at, _, _) {vector = 4, prefetch_bytes = 128}
    %v = tile.load(%at, _, _) : tile<1024xfp32>
    %more = arith.add(%acc, %v) : tile<1024xfp32>
    %next = arith.addptr(%at, %step) : tile<1024x*fp32>
    scf.yield(%more, %next)
  } : tile<1024xfp32>, tile<1024x*fp32>
  %ys = tile.splat(%y) {shape = [1024]} : tile<1024x*fp32>
  %yp = arith.addptr(%ys, %cols) : tile<1024x*fp32>
  tile.store(%yp, %acc1, _)
  scf.return
}
"""


def test_carried_values_live_where_they_are_used() -> None:
    run(ACCUMULATE)


PREFETCH = """
kernel @sums(%x: *fp32 {divisibility = 16}, %y: *fp32 {divisibility = 16}, %n: i32) {num_warps = 4} {
  %r = tile.arange {start = 0, end = 64} : tile<64xi32>
  %row = tile.expand_dims(%r) {axis = 1} : tile<64x1xi32>
  %col = tile.expand_dims(%r) {axis = 0} : tile<1x64xi32>
  %pitch = arith.constant {value = 64, type = tile<1x64xi32>} : tile<1x64xi32>
  %start = arith.mul(%col, %pitch) : tile<1x64xi32>
  %rows = tile.broadcast(%row) {shape = [64, 64]} : tile<64x64xi32>
  %starts = tile.broadcast(%start) {shape = [64, 64]} : tile<64x64xi32>
  %xs = tile.splat(%x) {shape = [64, 64]} : tile<64x64x*fp32>
  %cols = arith.addptr(%xs, %starts) : tile<64x64x*fp32>
  %at = arith.addptr(%cols, %rows) : tile<64x64x*fp32>
  %zero = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
  %none = arith.constant {value = 0.0, type = tile<64xfp32>} : tile<64xfp32>
  %nothing = arith.constant {value = 0.0, type = tile<64x64xfp32>} : tile<64x64xfp32>
  // CHECK: scf.for({{.*}}) (%i: i32, %sum: tile<64xfp32, {{.*}}>, %ahead: tile<64x64xfp32, [[HOME:#[0-9]+]]>)
  // CHECK-NOT: gpu.convert
  // CHECK: tile.reduce(%ahead)
  // CHECK-NOT: gpu.convert
  // CHECK: gpu.load({{.*}}) {vector = 4, prefetch_bytes = 128} : tile<64x64xfp32, [[HOME]]>
  %sums, %last = scf.for(%zero, %n, %one, %none, %nothing) (%i: i32, %sum: tile<64xfp32>, %ahead: tile<64x64xfp32>) {
    %s = tile.reduce(%ahead) {axis = 1} (%a: fp32, %b: fp32) {
      %c = arith.add(%a, %b) : fp32
      scf.yield(%c)
    } : tile<64xfp32>
    %more = arith.add(%sum, %s) : tile<64xfp32>
    %v = tile.load(%at, _, _) : tile<64x64xfp32>
    scf.yield(%more, %v)
  } : tile<64xfp32>, tile<64x64xfp32>
  %ys = tile.splat(%y) {shape = [64]} : tile<64x*fp32>
  %yp = arith.addptr(%ys, %r) : tile<64x*fp32>
  tile.store(%yp, %sums, _)
  scf.return
}
"""


def test_what_is_reduced_before_it_is_loaded_is_reduced_where_it_is_loaded() -> None:
    run(PREFETCH)


@pytest.mark.parametrize("num_warps", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("text", [TRANSPOSE, ACCUMULATE, PREFETCH])
def test_every_warp_count(text: str, num_warps: int) -> None:
    assigned(text, num_warps)


def test_what_is_picked_is_where_its_index_is_and_what_is_counted_where_it_is_used() -> None:
    """The index is loaded in vectors; the source, transposed to it, goes straight to shared memory."""
    run("""
// CHECK: gpu.load({{.*}}) {vector = 4
// CHECK-NOT: gpu.convert
// CHECK: gpu.shared_store
// CHECK-NEXT: gpu.shared_gather({{.*}}, %m)
// CHECK-NOT: gpu.convert
// CHECK: gpu.shared_count
// CHECK-NEXT: gpu.shared_load
// CHECK-NOT: gpu.convert
// CHECK: gpu.store({{.*}}) {vector = 4}
kernel @pick(%x: *i32 {divisibility = 16}, %y: *i32 {divisibility = 16}) {num_warps = 4} {
  %i = tile.arange {start = 0, end = 1024} : tile<1024xi32>
  %xs = tile.splat(%x) {shape = [1024]} : tile<1024x*i32>
  %at = arith.addptr(%xs, %i) : tile<1024x*i32>
  %v = tile.load(%at, _, _) : tile<1024xi32>
  %m = tile.reshape(%v) {shape = [32, 32]} : tile<32x32xi32>
  %t = tile.trans(%m) {order = [1, 0]} : tile<32x32xi32>
  %p = tile.gather(%t, %m) {axis = 0} : tile<32x32xi32>
  %f = tile.reshape(%p) {shape = [1024]} : tile<1024xi32>
  tile.store(%at, %f, _)
  %h = tile.histogram(%v, _) {num_bins = 512} : tile<512xi32>
  %j = tile.arange {start = 0, end = 512} : tile<512xi32>
  %ys = tile.splat(%y) {shape = [512]} : tile<512x*i32>
  %to = arith.addptr(%ys, %j) : tile<512x*i32>
  tile.store(%to, %h, _)
  scf.return
}
""")


def test_what_a_thread_holds_side_by_side_in_memory_is_stored_so_in_whatever_order_it_has_it() -> (
    None
):
    run("""
// CHECK: gpu.load({{.*}}) {vector = 4
// CHECK-NOT: gpu.shared_store
// CHECK: gpu.convert
// CHECK-NOT: gpu.shared_store
// CHECK: gpu.store({{.*}}) {vector = 4}
kernel @pairs(%x: *fp32 {divisibility = 16}, %y: *fp32 {divisibility = 16}) {num_warps = 4} {
  %i = tile.arange {start = 0, end = 1024} : tile<1024xi32>
  %xs = tile.splat(%x) {shape = [1024]} : tile<1024x*fp32>
  %at = arith.addptr(%xs, %i) : tile<1024x*fp32>
  %v = tile.load(%at, _, _) : tile<1024xfp32>
  %m = tile.reshape(%v) {shape = [256, 2, 2]} : tile<256x2x2xfp32>
  %t = tile.trans(%m) {order = [0, 2, 1]} : tile<256x2x2xfp32>
  %f = tile.reshape(%t) {shape = [1024]} : tile<1024xfp32>
  %ys = tile.splat(%y) {shape = [1024]} : tile<1024x*fp32>
  %to = arith.addptr(%ys, %i) : tile<1024x*fp32>
  tile.store(%to, %f, _)
  scf.return
}
""")

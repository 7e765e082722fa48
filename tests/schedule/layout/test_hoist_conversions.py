"""Conversions stand where the fewest bytes are moved."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import arith, gpu, tile
from aotc.ir.text import parse_kernel
from aotc.ir.types import BF16, FP32, I8, I32, ScalarType, TileType
from aotc.ir.verify import verify
from aotc.schedule.context import Schedule
from aotc.schedule.layout.hoist_conversions import hoist_conversions, is_index
from aotc.schedule.layout.layouts import blocked_for, mma_v2
from aotc.target import TARGETS
from tests.backend.programs import Program
from tests.support.pass_case import applied, assert_same_meaning

SHAPE = (32, 32)
LOADED, WANTED = blocked_for(SHAPE, (1, 4), 4), mma_v2(SHAPE, (2, 2))


def hoisted(program: Program, values: Sequence[Value]) -> Kernel:
    """Convert and store `values`; return the kernel after the pass."""
    for value in values:
        program.store(program.add(gpu.Convert(value, WANTED)).out)
    kernel = program.kernel()
    hoist_conversions(kernel, Schedule(TARGETS["sm_80"]))
    verify(kernel)
    return kernel


def moved(kernel: Kernel) -> list[str]:
    kinds = [op.out.type for op in kernel.walk() if isinstance(op, gpu.Convert)]
    return [kind.element.name for kind in kinds if isinstance(kind, TileType)]  # type: ignore[union-attr]


def cast(program: Program, value: Value, element: ScalarType) -> Value:
    return program.add(arith.Cast(value, element)).out


@pytest.mark.parametrize(("source", "target", "element"), [
    (BF16, FP32, "bf16"), (I8, FP32, "i8"), (FP32, BF16, "bf16"),
])  # fmt: skip
def test_the_narrower_side_of_a_cast_is_moved(
    source: ScalarType, target: ScalarType, element: str
) -> None:
    program = Program(4)
    value = cast(program, program.load(source, LOADED), target)
    assert moved(hoisted(program, [value])) == [element]


def test_a_chain_is_climbed_and_constants_are_made_anew() -> None:
    program = Program(4)
    value = cast(program, program.load(I8, LOADED), FP32)
    half = program.add(arith.Constant(0.5, TileType(FP32, SHAPE, LOADED))).out
    scaled = program.add(arith.Mul(value, half)).out
    # As many bytes go into the product as come out, but fewer into the cast before it.
    assert moved(hoisted(program, [scaled])) == ["i8"]
    program = Program(4)
    wide = program.add(tile.Splat(program.param(FP32), SHAPE, LOADED)).out
    value = cast(program, program.load(BF16, LOADED), FP32)
    is_less = program.add(arith.Compare(value, wide, "lt")).out
    chosen = program.add(arith.Select(is_less, wide, wide)).out
    assert moved(hoisted(program, [chosen])) == ["i1"]


def test_two_operands_as_wide_as_the_result_stay() -> None:
    program = Program(4)
    first, two = program.load(BF16, LOADED), program.load(BF16, LOADED)
    assert moved(hoisted(program, [program.add(arith.Add(first, two)).out])) == ["bf16"]


def test_what_is_used_where_it_is_too_is_computed_twice_only_if_it_is_a_cast() -> None:
    program = Program(4)
    value = cast(program, program.load(BF16, LOADED), FP32)
    program.store(value)
    kernel = hoisted(program, [value])
    assert moved(kernel) == ["bf16"]
    assert sum(isinstance(op, arith.Cast) for op in kernel.walk()) == 2
    program = Program(4)
    flags = program.load(I8, LOADED)
    zero = program.add(arith.Constant(0.0, TileType(FP32, SHAPE, LOADED))).out
    is_set = cast(program, flags, ScalarType("i1", 1, "uint"))
    chosen = program.add(arith.Select(is_set, zero, zero)).out
    program.store(chosen)
    assert moved(hoisted(program, [chosen])) == ["fp32"]


FETCHED = """\
#0 = #ll<offset=[[1],[2],[4],[8],[16],[32],[64]] : [128]>
#1 = #ll<register=[[1],[2]] lane=[[4],[8],[16],[32],[64]] : [128]>
#2 = #ll<register=[[1,0],[2,0]] lane=[[4,0],[8,0],[16,0],[32,0],[64,0]] : [128,1]>
#3 = #ll<register=[[32,0],[64,0]] lane=[[1,0],[2,0],[4,0],[8,0],[16,0]] : [128,1]>
kernel @k(%x: map<128xfp32, 0>, %i: i32, %f: fp32, %p: tile<128x1x*fp32, #3>) {num_warps = 1} {
  %b = gpu.shared_alloc {element = fp32, shape = [128], layout = #0, alignment_bytes = 128} : shared<128xfp32, #0>
  gpu.sync_tma_load(%x, %b, %i)
  %v = gpu.shared_load(%b) {layout = #1, vector = 4} : tile<128xfp32, #1>
  %s = tile.splat(%f) {shape = [128], layout = #1} : tile<128xfp32, #1>
  %m = arith.mul(%v, %s) : tile<128xfp32, #1>
  EXTRA
  %e = tile.expand_dims(%m) {axis = 1} : tile<128x1xfp32, #2>
  %c = gpu.convert(%e) {layout = #3} : tile<128x1xfp32, #3>
  gpu.store(%p, %c)
  scf.return
}
"""


@pytest.mark.parametrize(
    ("extra", "climbs"), [("", True), ("gpu.shared_store(%v, %b) {vector = 4}", False)]
)
def test_what_is_computed_from_a_fetched_tile_alone_is_made_where_it_is_wanted(
    extra: str, climbs: bool
) -> None:
    kernel = parse_kernel(FETCHED.replace("EXTRA", extra))
    hoist_conversions(kernel, Schedule(TARGETS["sm_90a"]))
    verify(kernel)
    (convert,) = (op for op in kernel.walk() if isinstance(op, gpu.Convert))
    assert isinstance(convert.value.op, gpu.SharedLoad) == climbs
    assert len([op for op in kernel.walk() if isinstance(op, arith.Mul)]) == 1


def test_few_elements_of_a_fetched_tile_are_computed_for_each_of_their_users() -> None:
    """A comparison and its select share one value: neither is exchanged."""
    text = FETCHED.replace(
        "EXTRA",
        '%l = arith.compare(%m, %s) {predicate = "lt"} : tile<128xi1, #1>\n'
        "  %t = arith.select(%l, %s, %m) : tile<128xfp32, #1>",
    ).replace("expand_dims(%m)", "expand_dims(%t)")
    kernel = parse_kernel(text)
    hoist_conversions(kernel, Schedule(TARGETS["sm_90a"]))
    verify(kernel)
    converts = [op for op in kernel.walk() if isinstance(op, gpu.Convert)]
    assert converts
    assert all(isinstance(op.value.op, gpu.SharedLoad) for op in converts)


@pytest.mark.parametrize(
    ("per_thread", "converted"), [((1, 1, 2, 2), ["i32"]), ((4, 1, 1, 1), ["bf16"])]
)
def test_a_conversion_climbs_no_further_than_it_can(
    per_thread: tuple[int, ...], converted: list[str]
) -> None:
    """Words are smaller than the floats joined from them, but only if one thread has both halves."""
    program = Program(4)
    word = program.load(I32, blocked_for((16, 32), (1, 1), 4))
    for _ in range(2):
        word = program.add(tile.Join(word, word)).out
    target_layout = blocked_for((16, 32, 2, 2), per_thread, 4)
    program.store(program.add(gpu.Convert(cast(program, word, BF16), target_layout)).out)
    kernel = program.kernel()
    hoist_conversions(kernel, Schedule(TARGETS["sm_80"]))
    verify(kernel)
    assert moved(kernel) == converted


TEXT = """\
// CHECK: %a = gpu.load(
// CHECK-NEXT: [[MOVED:%.*]] = gpu.convert(%a) {{.*}} : tile<512xbf16
// CHECK-NEXT: [[WIDE:%.*]] = arith.cast([[MOVED]]) {dtype = fp32}
// CHECK-NOT: gpu.convert
// CHECK: gpu.store(%q, [[WIDE]], _)
#0 = #ll<register=[[1],[2]] lane=[[4],[8],[16],[32],[64]] warp=[[128],[256]] : [512]>
#1 = #ll<register=[[128],[256]] lane=[[1],[2],[4],[8],[16]] warp=[[32],[64]] : [512]>
kernel @k(%x: *bf16, %out: *fp32) {num_warps = 4} {
  %i = tile.arange {start = 0, end = 512, layout = #0} : tile<512xi32, #0>
  %xs = tile.splat(%x) {shape = [512], layout = #0} : tile<512x*bf16, #0>
  %p = arith.addptr(%xs, %i) : tile<512x*bf16, #0>
  %a = gpu.load(%p, _, _) : tile<512xbf16, #0>
  %wide = arith.cast(%a) {dtype = fp32} : tile<512xfp32, #0>
  %b = gpu.convert(%wide) {layout = #1} : tile<512xfp32, #1>
  %j = tile.arange {start = 0, end = 512, layout = #1} : tile<512xi32, #1>
  %os = tile.splat(%out) {shape = [512], layout = #1} : tile<512x*fp32, #1>
  %q = arith.addptr(%os, %j) : tile<512x*fp32, #1>
  gpu.store(%q, %b, _)
  scf.return
}
"""


def test_a_conversion_goes_above_the_cast_that_widens() -> None:
    kernel = applied(TEXT, hoist_conversions)
    x = np.random.default_rng(1).integers(-9, 10, 512).astype(ml_dtypes.bfloat16)
    assert_same_meaning(TEXT, kernel, [x, np.full(512, 77, np.float32)])


REPEATED = """\
// CHECK: [[ROW:%.*]] = gpu.load(
// CHECK: [[MOVED:%.*]] = gpu.convert([[ROW]]) {{.*}} : tile<1x32xi32
// CHECK: tile.broadcast([[MOVED]]) {shape = [4, 32]
// CHECK-NOT: gpu.convert
// CHECK: [[SUM:%.*]] = arith.add(
// CHECK-NOT: gpu.convert
// CHECK: gpu.store(%q, [[SUM]], _)
#0 = #ll<register=[[0,1],[0,2]] lane=[[0,4],[0,8],[0,16],[1,0],[2,0]] : [4,32]>
#1 = #ll<register=[[0,1],[0,2]] lane=[[0,4],[0,8],[0,16],[0,0],[0,0]] : [1,32]>
#2 = #ll<register=[[1,0],[2,0]] lane=[[0,1],[0,2],[0,4],[0,8],[0,16]] : [4,32]>
#3 = #ll<register=[[0],[0]] lane=[[0],[0],[0],[1],[2]] : [4]>
#4 = #ll<register=[[1],[2]] lane=[[4],[8],[16],[0],[0]] : [32]>
#5 = #ll<register=[[1],[2]] lane=[[0],[0],[0],[0],[0]] : [4]>
#6 = #ll<register=[[0],[0]] lane=[[1],[2],[4],[8],[16]] : [32]>
#7 = #ll<register=[[0,0],[0,0]] lane=[[0,0],[0,0],[0,0],[1,0],[2,0]] : [4,1]>
#8 = #ll<register=[[0,0],[0,0]] lane=[[0,1],[0,2],[0,4],[0,8],[0,16]] : [1,32]>
#9 = #ll<register=[[1,0],[2,0]] lane=[[0,0],[0,0],[0,0],[0,0],[0,0]] : [4,1]>
kernel @k(%x: *i32, %out: *i32) {num_warps = 1} {
  %i = tile.arange {start = 0, end = 32, layout = #4} : tile<32xi32, #4>
  %i1 = tile.expand_dims(%i) {axis = 0} : tile<1x32xi32, #1>
  %xs = tile.splat(%x) {shape = [1, 32], layout = #1} : tile<1x32x*i32, #1>
  %p = arith.addptr(%xs, %i1) : tile<1x32x*i32, #1>
  %row = gpu.load(%p, _, _) : tile<1x32xi32, #1>
  %rows = tile.broadcast(%row) {shape = [4, 32], layout = #0} : tile<4x32xi32, #0>
  %j = tile.arange {start = 0, end = 4, layout = #3} : tile<4xi32, #3>
  %three = arith.constant {value = 3, type = tile<4xi32, #3>} : tile<4xi32, #3>
  %k = arith.mul(%j, %three) : tile<4xi32, #3>
  %k1 = tile.expand_dims(%k) {axis = 1} : tile<4x1xi32, #7>
  %ks = tile.broadcast(%k1) {shape = [4, 32], layout = #0} : tile<4x32xi32, #0>
  %sum = arith.add(%rows, %ks) : tile<4x32xi32, #0>
  %wanted = gpu.convert(%sum) {layout = #2} : tile<4x32xi32, #2>
  %c = tile.arange {start = 0, end = 32, layout = #6} : tile<32xi32, #6>
  %c1 = tile.expand_dims(%c) {axis = 0} : tile<1x32xi32, #8>
  %cs = tile.broadcast(%c1) {shape = [4, 32], layout = #2} : tile<4x32xi32, #2>
  %r = tile.arange {start = 0, end = 4, layout = #5} : tile<4xi32, #5>
  %pitch = arith.constant {value = 32, type = tile<4xi32, #5>} : tile<4xi32, #5>
  %ro = arith.mul(%r, %pitch) : tile<4xi32, #5>
  %r1 = tile.expand_dims(%ro) {axis = 1} : tile<4x1xi32, #9>
  %rs = tile.broadcast(%r1) {shape = [4, 32], layout = #2} : tile<4x32xi32, #2>
  %at = arith.add(%rs, %cs) : tile<4x32xi32, #2>
  %os = tile.splat(%out) {shape = [4, 32], layout = #2} : tile<4x32x*i32, #2>
  %q = arith.addptr(%os, %at) : tile<4x32x*i32, #2>
  gpu.store(%q, %wanted, _)
  scf.return
}
"""


def test_what_is_repeated_is_moved_once_and_indices_are_made_anew() -> None:
    kernel = applied(REPEATED, hoist_conversions)
    x = np.random.default_rng(2).integers(-99, 99, 32).astype(np.int32)
    assert_same_meaning(REPEATED, kernel, [x, np.full(128, 777, np.int32)])


CARRIED = """\
// CHECK: scf.for({{.*}}, [[INDEX:%index_1]]: tile<64xi32, #1>)
// CHECK-NOT: gpu.convert
// CHECK: arith.compare([[INDEX]],
// CHECK-NOT: gpu.convert
// CHECK: gpu.store
#0 = #ll<register=[[1]] lane=[[2],[4],[8],[16],[32]] : [64]>
#1 = #ll<register=[[32]] lane=[[1],[2],[4],[8],[16]] : [64]>
kernel @k(%out: *i32, %n: i32) {num_warps = 1} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
  %start = tile.arange {start = 0, end = 64, layout = #0} : tile<64xi32, #0>
  %step = arith.constant {value = 7, type = tile<64xi32, #0>} : tile<64xi32, #0>
  %limit = tile.splat(%n) {shape = [64], layout = #0} : tile<64xi32, #0>
  %all = tile.arange {start = 0, end = 64, layout = #1} : tile<64xi32, #1>
  %os = tile.splat(%out) {shape = [64], layout = #1} : tile<64x*i32, #1>
  %last = scf.for(%zero, %n, %one, %start) (%i: i32, %index: tile<64xi32, #0>) {
    %less = arith.compare(%index, %limit) {predicate = "lt"} : tile<64xi1, #0>
    %mask = gpu.convert(%less) {layout = #1} : tile<64xi1, #1>
    %now = gpu.convert(%index) {layout = #1} : tile<64xi32, #1>
    %q = arith.addptr(%os, %all) : tile<64x*i32, #1>
    gpu.store(%q, %now, %mask)
    %next = arith.add(%index, %step) : tile<64xi32, #0>
    scf.yield(%next)
  } : tile<64xi32, #0>
  scf.return
}
"""


@pytest.mark.parametrize("n", [0, 1, 5, 60])
def test_an_index_that_a_loop_carries_is_carried_where_it_is_wanted(n: int) -> None:
    kernel = applied(CARRIED, hoist_conversions)
    if n:
        assert_same_meaning(CARRIED, kernel, [np.full(64, -1, np.int32), n])


TWICE = CARRIED[CARRIED.index("#0 =") :].replace(
    "%mask = gpu.convert(%less) {layout = #1}",
    "%there = gpu.convert(%loaded) {layout = #1} : tile<64xi32, #1>\n"
    "    %back = gpu.convert(%there) {layout = #0} : tile<64xi32, #0>\n"
    "    %sum = arith.add(%back, %index) : tile<64xi32, #0>\n"
    "    %mask = gpu.convert(%less) {layout = #1}",
)


def test_what_is_converted_twice_is_converted_at_once() -> None:
    text = TWICE.replace(
        "    %less =",
        "    %ps = tile.splat(%out) {shape = [64], layout = #0} : tile<64x*i32, #0>\n"
        "    %p = arith.addptr(%ps, %start) : tile<64x*i32, #0>\n"
        "    %loaded = gpu.load(%p, _, _) : tile<64xi32, #0>\n    %less =",
    ).replace("gpu.convert(%index)", "gpu.convert(%sum)")
    kernel = parse_kernel(text)
    hoist_conversions(kernel, Schedule(TARGETS["sm_90a"]))
    verify(kernel)
    converts = [op for op in kernel.walk() if isinstance(op, gpu.Convert)]
    assert [isinstance(op.value.op, gpu.Load) for op in converts] == [True]
    assert_same_meaning(text, kernel, [np.arange(64, dtype=np.int32), 3])


COMPUTED = TWICE.replace(
    "%there = gpu.convert(%loaded) {layout = #1} : tile<64xi32, #1>\n"
    "    %back = gpu.convert(%there) {layout = #0} : tile<64xi32, #0>\n"
    "    %sum = arith.add(%back, %index) : tile<64xi32, #0>\n",
    "%ps = tile.splat(%out) {shape = [64], layout = #0} : tile<64x*i32, #0>\n"
    "    %p = arith.addptr(%ps, %start) : tile<64x*i32, #0>\n"
    "    %loaded = gpu.load(%p, _, _) : tile<64xi32, #0>\n"
    "    %sum = OP : tile<64xi32, #0>\n",
).replace("gpu.convert(%index)", "gpu.convert(%sum)")


@pytest.mark.parametrize(
    ("computation", "source"),
    [
        pytest.param("arith.add(%loaded, %step)", gpu.Load, id="cheap"),
        pytest.param("arith.div(%loaded, %step)", arith.Div, id="costly"),
        pytest.param("arith.mul(%loaded, %loaded)", gpu.Load, id="used twice by one op"),
    ],
)
def test_what_a_loop_loads_is_converted_before_it_is_computed_with(
    computation: str, source: type[Op]
) -> None:
    text = COMPUTED.replace("OP", computation)
    kernel = parse_kernel(text)
    hoist_conversions(kernel, Schedule(TARGETS["sm_90a"]))
    verify(kernel)
    (convert,) = [op for op in kernel.walk() if isinstance(op, gpu.Convert)]
    assert isinstance(convert.value.op, source)
    assert_same_meaning(text, kernel, [np.arange(64, dtype=np.int32), 3])


@pytest.mark.parametrize(("doublings", "climbs"), [(20, True), (60, False)])
def test_long_arithmetic_on_indices_is_no_index_and_each_op_is_looked_at_once(
    doublings: int, *, climbs: bool
) -> None:
    """Each op uses its predecessor twice: a search of every path would never end."""
    program = Program(4)
    value = program.add(tile.Arange(0, 32, blocked_for((32,), (4,), 1))).out
    first = value
    for _ in range(doublings):
        value = program.add(arith.Add(value, value)).out
    assert is_index(first)
    assert is_index(value) == climbs

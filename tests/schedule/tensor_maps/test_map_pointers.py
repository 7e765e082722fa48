"""Loads through pointers become tensor copies: selection, launch conditions, results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aotc.ir.dialects import descriptor, scf, tile
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.verify import verify
from aotc.schedule.context import Schedule
from aotc.schedule.tensor_maps.map_pointers import map_pointers
from aotc.target import TARGETS
from tests.support.checks import check, without_checks
from tests.support.mapping import allows, interpret, mapped, remarks_on
from tests.support.pointer_kernels import MAPPED, ROWS, Case, launch, request

SHAPES = (
    *((1, 8, 8), (16, 16, 16), (15, 24, 40), (17, 8, 16), (32, 40, 24), (40, 16, 7)),
    *((1, 1, 1), (15, 17, 33), (16, 24, 15), (5, 8, 0)),
)


# ---- mapped loads -----------------------------------------------------------------------------


@pytest.mark.emulated
@pytest.mark.parametrize("case", MAPPED.values(), ids=MAPPED)
def test_it_computes_what_it_computed_wherever_the_guards_hold(tmp_path: Path, case: Case) -> None:
    kernel_request = request(tmp_path, case)
    kernel, schedule = mapped(kernel_request)
    plain, _ = mapped(kernel_request, map_them=False)
    assert remarks_on("a_ptr", schedule)[0].startswith("a_ptr is loaded by tensor copies")
    assert not [op for op in kernel.walk() if isinstance(op, tile.Load)]
    for shape in SHAPES:
        inputs = launch(case, *shape)
        m, n, k = shape
        assert allows(kernel, inputs.args) == (k > 0 and n % 8 == 0 and case.holds(m, k))
        np.testing.assert_array_equal(interpret(plain, inputs), inputs.expected)
        if allows(kernel, inputs.args):
            np.testing.assert_array_equal(interpret(kernel, inputs), inputs.expected)


@pytest.mark.parametrize("case", MAPPED.values(), ids=MAPPED)
def test_nothing_is_carried_for_addresses(tmp_path: Path, case: Case) -> None:
    kernel, _ = mapped(request(tmp_path, case))
    (loop,) = (op for op in kernel.walk() if isinstance(op, scf.For))
    assert [str(out.type) for out in loop.outs] == ["tile<16x16xfp32>"]


def test_a_tensor_is_described_once(tmp_path: Path) -> None:
    again = "a = tl.load(a_ptrs - BK, mask=in_m[:, None] & in_k[None, :], other=0.0)"
    turn = f"{again}\n        acc = tl.dot(a, b, acc)"
    kernel, _ = mapped(request(tmp_path, Case(MAPPED["carried"].load, turn=turn)))
    loads = [op for op in kernel.walk() if isinstance(op, descriptor.DescriptorLoad)]
    assert len(loads) == 3
    described = [info.tensor for info in kernel.params if info.tensor is not None]
    assert [(tensor.address, tensor.shape) for tensor in described] == [
        ("a_ptr", ("M", "K")),
        ("b_ptr", ("K", "N")),
    ]


TEXT = """\
// CHECK: kernel @k(
// CHECK-SAME: %x.map: desc<1x16x32xfp16> {tensor = ["x", ["n", "n", "32"], ["s", "64"]]}
// CHECK-SAME: guards = ["n > 0"]
// CHECK: [[FROM:%.*]] = arith.mul(%pid,
// CHECK: scf.for({{.*}}) (%i: i32, %acc: tile<16x16xfp32>) {
// CHECK-NOT: tile.load
// CHECK: %v = tile.descriptor_load(%x.map, %i, [[FROM]], {{.*}}) {
// CHECK-SAME: eviction = "evict_last", num_dropped = 1} : tile<16x32xfp16>
// CHECK: scf.yield({{[^,]*}})
kernel @k(%x: *fp16 {divisibility = 16}, %n: i32, %s: i64 {divisibility = 8}, %y: *fp32) {num_warps = 4} {
  %pid = tile.program_id {axis = 0} : i32
  %16 = arith.constant {value = 16, type = i32} : i32
  %first = arith.mul(%pid, %16) : i32
  %firsts = tile.splat(%first) {shape = [16]} : tile<16xi32>
  %line = tile.arange {start = 0, end = 16} : tile<16xi32>
  %row = arith.add(%firsts, %line) : tile<16xi32>
  %ns = tile.splat(%n) {shape = [16]} : tile<16xi32>
  %in = arith.compare(%row, %ns) {predicate = "lt"} : tile<16xi1>
  %in2 = tile.expand_dims(%in) {axis = 1} : tile<16x1xi1>
  %mask = tile.broadcast(%in2) {shape = [16, 32]} : tile<16x32xi1>
  %row2 = tile.expand_dims(%row) {axis = 1} : tile<16x1xi32>
  %64 = arith.constant {value = 64, type = tile<16x1xi32>} : tile<16x1xi32>
  %rows = arith.mul(%row2, %64) : tile<16x1xi32>
  %rows2 = tile.broadcast(%rows) {shape = [16, 32]} : tile<16x32xi32>
  %column = tile.arange {start = 0, end = 32} : tile<32xi32>
  %column2 = tile.expand_dims(%column) {axis = 0} : tile<1x32xi32>
  %columns = tile.broadcast(%column2) {shape = [16, 32]} : tile<16x32xi32>
  %offsets = arith.add(%rows2, %columns) : tile<16x32xi32>
  %xs = tile.splat(%x) {shape = [16, 32]} : tile<16x32x*fp16>
  %at = arith.addptr(%xs, %offsets) : tile<16x32x*fp16>
  %0 = arith.constant {value = 0, type = i32} : i32
  %1 = arith.constant {value = 1, type = i32} : i32
  %zero = arith.constant {value = 0.0, type = tile<16x16xfp32>} : tile<16x16xfp32>
  %steps = tile.splat(%s) {shape = [16, 32]} : tile<16x32xi64>
  %sum, %end = scf.for(%0, %n, %1, %zero, %at) (%i: i32, %acc: tile<16x16xfp32>, %here: tile<16x32x*fp16>) {
    %none = arith.constant {value = 0.0, type = tile<16x32xfp16>} : tile<16x32xfp16>
    %v = tile.load(%here, %mask, %none) {eviction = "evict_last"} : tile<16x32xfp16>
    %turned = tile.trans(%v) {order = [1, 0]} : tile<32x16xfp16>
    %product = tile.dot(%v, %turned, %acc) : tile<16x16xfp32>
    %next = arith.addptr(%here, %steps) : tile<16x32x*fp16>
    scf.yield(%product, %next)
  } : tile<16x16xfp32>, tile<16x32x*fp16>
  %ys = tile.splat(%y) {shape = [16, 16]} : tile<16x16x*fp32>
  tile.store(%ys, %sum)
  scf.return
}
"""


def test_a_pointer_that_walks_is_a_coordinate() -> None:
    kernel = parse_kernel(without_checks(TEXT))
    map_pointers(kernel, Schedule(TARGETS["sm_90a"], map_pointers=True))
    verify(kernel)
    check(TEXT, print_kernel(kernel))


# ---- left alone -------------------------------------------------------------------------------


def test_nobody_asked(tmp_path: Path) -> None:
    kernel, schedule = mapped(request(tmp_path, MAPPED["carried"]), map_them=False)
    assert not schedule.remarks
    assert not kernel.guards
    assert all(info.tensor is None for info in kernel.params)


def test_a_target_without_tensor_copies(tmp_path: Path) -> None:
    kernel, schedule = mapped(request(tmp_path, MAPPED["carried"]), without=("tma",))
    assert not schedule.remarks
    assert not kernel.guards


LOAD = MAPPED["carried"].load
NOT_MAPPED = {
    "gathered": (
        Case(
            "tl.load(a_ptr + rows[:, None] * stride_am + (start + k)[None, :],"
            " mask=in_m[:, None] & in_k[None, :], other=0.0)",
            setup="rows = tl.load(rows_ptr + m, mask=in_m, other=0)",
        ),
        "its address is no sum",
    ),
    "filled with ones": (
        Case(LOAD.replace("other=0.0", "other=1.0")),
        "masked elements become something else than 0; load with other=0",
    ),
    "no promise of the pointer": (Case(LOAD, signature={"a_ptr": "*fp16"}), "a_ptr is not known"),
    "no promise of the stride": (
        Case(LOAD, signature={"stride_am": "i32:4"}),
        "stride_am is not known to be a multiple of 16 bytes; promise ':16'",
    ),
    "stride of columns": (
        Case(LOAD.replace("a_ptrs", "a_ptr + m[:, None] * stride_am + k[None, :] * extra")),
        "no axis is known to be contiguous",
    ),
    "one of two": (
        Case(LOAD.replace("in_m[:, None] & in_k[None, :]", "in_m[:, None] | in_k[None, :]")),
        "its mask is no conjunction",
    ),
    "clamped": (
        Case(
            LOAD.replace("a_ptrs", "clamped + start"),
            setup="clamped = a_ptr + tl.minimum(m, M - 1)[:, None] * stride_am + k[None, :]",
        ),
        "its address is no sum",
    ),
    "clamped, and a sum of rows": (
        Case(
            "tl.load(clamped + start, mask=in_k[None, :], other=0.0)",
            setup="clamped = a_ptr + tl.where(in_m, m, 0)[:, None] * stride_am + k[None, :]",
            turn="acc += tl.sum(a.to(tl.float32), 0)[None, :]",
        ),
        "its index is 0 from an end on",
    ),
    "clamped, and stored everywhere": (
        Case(
            "tl.load(clamped + start, mask=in_k[None, :], other=0.0)",
            setup="clamped = a_ptr + tl.where(in_m, m, 0)[:, None] * stride_am + k[None, :]",
            turn="tl.store(rows_ptr + k[None, :] + m[:, None] * BK, a.to(tl.int32))",
            signature={"rows_ptr": "*i32 noalias"},
        ),
        "its index is 0 from an end on",
    ),
    "clamped, and stored by another bound": (
        Case(
            "tl.load(clamped + start, mask=in_k[None, :], other=0.0)",
            setup="clamped = a_ptr + tl.where(m < M - 1, m, 0)[:, None] * stride_am + k[None, :]",
        ),
        "its index is 0 from an end on",
    ),
    "clamped, and stored an iteration later": (
        Case(
            "tl.load(clamped)",
            setup="before = tl.zeros((BM, BN), tl.float32)",
            first="rows = start + tl.arange(0, BM)\n"
            "        clamped = a_ptr + tl.where(rows < M, rows, 0)[:, None] * stride_am + k[None, :]",
            turn="tl.store(out_ptrs, before, mask=(rows < M)[:, None] & in_n[None, :])\n"
            "        before = tl.dot(a, b)",
            signature={"out_ptr": "*fp32 noalias"},
        ),
        "its index is 0 from an end on",
    ),
    "clamped along K": (
        Case(
            "tl.load(a_ptr + m[:, None] * stride_am + tl.where(in_k, start + k, 0)[None, :],"
            " mask=in_m[:, None], other=0.0)",
        ),
        "its index is 0 from an end on",
    ),
    "compared when clamped": (
        Case(
            "tl.load(clamped + start, mask=in_k[None, :] & (first < M)[:, None], other=0.0)",
            setup="first = tl.where(in_m, m, 0)\n"
            "    clamped = a_ptr + first[:, None] * stride_am + k[None, :]",
        ),
        "its mask compares an index that is 0 from an end on",
    ),
    "one condition for all": (
        Case(LOAD.replace("in_m[:, None]", "(part < extra) & in_m[:, None]")),
        "a condition of its mask is about the same for a whole box",
    ),
    "a triangle": (
        Case(LOAD.replace("in_m[:, None]", "(m[:, None] < k[None, :]) & in_m[:, None]")),
        "a condition of its mask is about several axes",
    ),
    "before the first row": (Case(LOAD.replace("a_ptrs", "a_ptrs - stride_am")), "an index may be"),
    "after the second": (
        Case(LOAD.replace("in_m[:, None]", "(m >= 2)[:, None] & in_m[:, None]")),
        "its mask has a lower bound other than 0",
    ),
    "another index in the mask": (
        Case(LOAD.replace("in_m[:, None]", "(m + part * 16 < M)[:, None] & in_m[:, None]")),
        "its mask compares two indices",
    ),
    "every other row": (
        Case(LOAD.replace("in_m[:, None]", "(2 * m < M)[:, None]")),
        "its mask compares multiples",
    ),
    "between chunks": (
        Case(LOAD.replace("a_ptrs", "a_ptrs + 5")),
        "its rows are not known to begin at multiples of 16 bytes",
    ),
    "beside the axes": (
        Case(LOAD.replace("a_ptrs", "a_ptrs + part * 4")),
        "it moves by 4 elements along no axis",
    ),
    "backwards": (
        Case(
            LOAD.replace("a_ptrs", "down + start"),
            setup="down = a_ptr + 640 * stride_am - m[:, None] * stride_am + k[None, :]",
        ),
        "its address goes down along an axis",
    ),
    "rows of a constant length": (
        Case(LOAD.replace("in_k[None, :]", "(start + k < 21)[None, :]")),
        "its rows do not end at a multiple of 16 bytes",
    ),
    "an empty matrix": (
        Case(LOAD.replace("in_m[:, None]", "(m < -1)[:, None]")),
        "its mask is never true",
    ),
    "six axes": (
        Case(
            LOAD.replace("a_ptrs", "a_ptrs + far"),
            setup="far = part * extra + part * extra * extra + part * extra * stride_am"
            " + part * stride_bk",
        ),
        "its address has 6 axes, tensor copies at most 5",
    ),
    "from far away": (
        Case(
            "tl.load(a_ptrs + far)",
            setup="far = tl.multiple_of(tl.load(rows_ptr).to(tl.int64) ^ 8, 8)",
        ),
        "it moves by 1 elements along no axis",
    ),
    "endless rows": (
        Case(
            f"tl.load({ROWS.format('m')})",
            setup="b_ptrs += BK * stride_bk",
            loop="start in range(BK, K, BK)",
        ),
        "nothing says where its rows end",
    ),
}


@pytest.mark.parametrize(("case", "reason"), NOT_MAPPED.values(), ids=NOT_MAPPED)
def test_a_remark_says_why_a_load_is_left_alone(tmp_path: Path, case: Case, reason: str) -> None:
    kernel, schedule = mapped(request(tmp_path, case))
    (remark,) = remarks_on("a_ptr", schedule)
    assert remark.startswith(f"a_ptr is not loaded by tensor copies: {reason}")
    assert [info.tensor.address for info in kernel.params if info.tensor is not None] == ["b_ptr"]

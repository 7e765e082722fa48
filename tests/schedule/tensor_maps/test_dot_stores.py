"""Stores of products through pointers become tensor copies: selection and results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aotc.ir.dialects import descriptor, tile
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.verify import verify
from aotc.schedule.context import Schedule
from aotc.schedule.tensor_maps.map_pointers import map_pointers
from aotc.target import TARGETS
from tests.support.checks import check, without_checks
from tests.support.mapping import allows, interpret, mapped, remarks_on
from tests.support.store_kernels import ADDED, MAPPED, MASKED, UPDATED, Case, launch, request

SHAPES = (
    *((1, 8, 8), (64, 32, 32), (63, 40, 16), (65, 24, 40), (67, 16, 8)),
    *((1, 1, 8), (3, 33, 16), (72, 31, 8), (5, 20, 8), (8, 2, 8), (8, 8, 0)),
)


# ---- mapped stores ----------------------------------------------------------------------------


@pytest.mark.emulated
@pytest.mark.parametrize("case", MAPPED.values(), ids=MAPPED)
def test_it_writes_what_it_wrote_wherever_the_guards_hold(tmp_path: Path, case: Case) -> None:
    kernel_request = request(tmp_path, case)
    kernel, schedule = mapped(kernel_request)
    plain, _ = mapped(kernel_request, map_them=False)
    assert remarks_on("out_ptr", schedule)[0].startswith("out_ptr is stored by tensor copies")
    stores = [op for op in kernel.walk() if isinstance(op, descriptor.DescriptorStore)]
    assert [op.descriptor.hint for op in stores] == ["out_ptr.map"]
    for shape in SHAPES:
        inputs = launch(case, *shape)
        m, n, k = shape
        assert allows(kernel, inputs.args) == (k > 0 and case.holds(m, n))
        np.testing.assert_array_equal(interpret(plain, inputs), inputs.expected)
        if allows(kernel, inputs.args):
            np.testing.assert_array_equal(interpret(kernel, inputs), inputs.expected)


@pytest.mark.parametrize("case", UPDATED.values(), ids=UPDATED)
def test_it_adds_what_it_added_wherever_the_guards_hold(tmp_path: Path, case: Case) -> None:
    kernel_request = request(tmp_path, case)
    kernel, schedule = mapped(kernel_request)
    assert remarks_on("out_ptr", schedule)[0].startswith("out_ptr is updated by tensor copies")
    reductions = [op for op in kernel.walk() if isinstance(op, descriptor.DescriptorReduce)]
    assert {op.descriptor.hint for op in reductions} == {"out_ptr.map"}
    for shape in ((1, 8, 8), (65, 24, 40), (63, 40, 16), (8, 2, 8)):
        inputs = launch(case, *shape)
        m, n, _ = shape
        assert allows(kernel, inputs.args) == case.holds(m, n)
        if allows(kernel, inputs.args):
            np.testing.assert_array_equal(interpret(kernel, inputs), inputs.expected)


TEXT = """\
// CHECK: kernel @k(
// CHECK-SAME: %y.map: desc<1x32x16xfp16> {tensor = ["y", ["2147483647", "n", "m"], ["t", "s"]]}
// CHECK-SAME: guards = ["n > 0", "m > 0", "m % 8 == 0"]
// CHECK: [[ROW:%.*]] = arith.mul(%pid,
// CHECK: scf.for(
// CHECK: [[LINES:%.*]] = tile.trans(%narrow) {order = [1, 0]}
// CHECK: [[BLOCK:%.*]] = tile.reshape([[LINES]]) {shape = [1, 32, 16]}
// CHECK: tile.descriptor_store(%y.map, [[BLOCK]], %part, {{%.*}}, [[ROW]])
// CHECK-NOT: tile.store
kernel @k(%x: *fp16 {divisibility = 16}, %y: *fp16 {divisibility = 16}, %n: i32, %m: i32, %s: i32 {divisibility = 8}, %t: i64 {divisibility = 8}) {num_warps = 4} {
  %pid = tile.program_id {axis = 0} : i32
  %part = tile.program_id {axis = 1} : i32
  %16 = arith.constant {value = 16, type = i32} : i32
  %first = arith.mul(%pid, %16) : i32
  %firsts = tile.splat(%first) {shape = [16]} : tile<16xi32>
  %line = tile.arange {start = 0, end = 16} : tile<16xi32>
  %row = arith.add(%firsts, %line) : tile<16xi32>
  %row2 = tile.expand_dims(%row) {axis = 1} : tile<16x1xi32>
  %rows = tile.broadcast(%row2) {shape = [16, 32]} : tile<16x32xi32>
  %column = tile.arange {start = 0, end = 32} : tile<32xi32>
  %column2 = tile.expand_dims(%column) {axis = 0} : tile<1x32xi32>
  %columns = tile.broadcast(%column2) {shape = [16, 32]} : tile<16x32xi32>
  %zero = arith.constant {value = 0.0, type = tile<16x32xfp32>} : tile<16x32xfp32>
  %0 = arith.constant {value = 0, type = i32} : i32
  %1 = arith.constant {value = 1, type = i32} : i32
  %depth = tile.expand_dims(%line) {axis = 0} : tile<1x16xi32>
  %depths = tile.broadcast(%depth) {shape = [16, 16]} : tile<16x16xi32>
  %left = tile.expand_dims(%line) {axis = 1} : tile<16x1xi32>
  %16s = arith.constant {value = 16, type = tile<16x1xi32>} : tile<16x1xi32>
  %down = arith.mul(%left, %16s) : tile<16x1xi32>
  %downs = tile.broadcast(%down) {shape = [16, 16]} : tile<16x16xi32>
  %offsets = arith.add(%downs, %depths) : tile<16x16xi32>
  %xs = tile.splat(%x) {shape = [16, 16]} : tile<16x16x*fp16>
  %at = arith.addptr(%xs, %offsets) : tile<16x16x*fp16>
  %b = arith.constant {value = 1.0, type = tile<16x32xfp16>} : tile<16x32xfp16>
  %sum = scf.for(%0, %n, %1, %zero) (%i: i32, %acc: tile<16x32xfp32>) {
    %v = tile.load(%at) : tile<16x16xfp16>
    %product = tile.dot(%v, %b, %acc) : tile<16x32xfp32>
    scf.yield(%product)
  } : tile<16x32xfp32>
  %narrow = arith.cast(%sum) {dtype = fp16} : tile<16x32xfp16>
  %parts = arith.cast(%part) {dtype = i64} : i64
  %far = arith.mul(%parts, %t) : i64
  %start = arith.addptr(%y, %far) : *fp16
  %ys = tile.splat(%start) {shape = [16, 32]} : tile<16x32x*fp16>
  %ss = tile.splat(%s) {shape = [16, 32]} : tile<16x32xi32>
  %steps = arith.mul(%columns, %ss) : tile<16x32xi32>
  %places = arith.add(%steps, %rows) : tile<16x32xi32>
  %to = arith.addptr(%ys, %places) : tile<16x32x*fp16>
  %ns = tile.splat(%n) {shape = [16, 32]} : tile<16x32xi32>
  %ms = tile.splat(%m) {shape = [16, 32]} : tile<16x32xi32>
  %in_n = arith.compare(%columns, %ns) {predicate = "lt"} : tile<16x32xi1>
  %in_m = arith.compare(%rows, %ms) {predicate = "lt"} : tile<16x32xi1>
  %mask = arith.and(%in_n, %in_m) : tile<16x32xi1>
  tile.store(%to, %narrow, %mask)
  scf.return
}
"""


def test_a_block_has_the_axes_of_memory() -> None:
    """Rows of the tile are dense, its columns are not, and a part is an axis of one element."""
    kernel = parse_kernel(without_checks(TEXT))
    map_pointers(kernel, Schedule(TARGETS["sm_90a"], map_pointers=True))
    verify(kernel)
    check(TEXT, print_kernel(kernel))


@pytest.mark.emulated
def test_two_outputs(tmp_path: Path) -> None:
    other = "other_ptr + m[:, None] * stride_om + n[None, :]"
    case = Case(
        f"{MASKED}\n    tl.store({other}, acc + 1.0, mask=inside)",
        signature={"other_ptr": "*fp32:16"},
    )
    kernel, schedule = mapped(request(tmp_path, case))
    assert remarks_on("other_ptr", schedule)[0].startswith("other_ptr is stored by tensor copies")
    described = [info.tensor.address for info in kernel.params if info.tensor is not None]
    assert described == ["a_ptr", "b_ptr", "out_ptr", "other_ptr"]
    inputs = launch(case, 65, 24, 16)
    inputs.args["other_ptr"] = other_out = np.zeros(inputs.args["out_ptr"].shape[1:], np.float32)
    np.testing.assert_array_equal(interpret(kernel, inputs), inputs.expected)
    product = inputs.expected[0, :65, :24].astype(np.float32)
    np.testing.assert_array_equal(other_out[:65, :24], product + 1)
    assert not other_out[65:].any()
    assert not other_out[:, 24:].any()


# ---- left alone -------------------------------------------------------------------------------


NOT_MAPPED = {
    "no promise of the pointer": (Case(signature={"out_ptr": "*fp16"}), "out_ptr is not known"),
    "no promise of the stride": (
        Case(signature={"stride_om": "i32:4"}),
        "stride_om is not known to be a multiple of 16 bytes; promise ':16'",
    ),
    "one of two": (Case(MASKED.replace("inside", "in_m[:, None] | in_n[None, :]")), "its mask is"),
    "some elements": (Case(MASKED.replace("inside", "inside & (c > 0.0)")), "its mask is"),
    "a triangle": (
        Case(MASKED.replace("inside", "inside & (m[:, None] >= n[None, :])")),
        "a condition of its mask is about several axes",
    ),
    "scattered": (
        Case(
            MASKED.replace("out_ptrs", "out_ptr + rows[:, None] * stride_om + n[None, :]"),
            setup="rows = tl.load(other_ptr + m, mask=in_m, other=0)",
        ),
        "its address is no sum",
    ),
    "before the first row": (
        Case(
            "tl.store(out_ptrs - stride_om, c, mask=inside & (m >= 1)[:, None])",
        ),
        "an index may be negative",
    ),
    "before the first column": (
        Case("tl.store(out_ptrs - 8, c, mask=(n >= 8)[None, :] & inside)"),
        "an index may be negative",
    ),
    "in a loop": (
        Case(f"for _ in range(extra):\n        {MASKED}"),
        "it is in a loop, whose iterations would write in no order",
    ),
    "while": (
        Case(f"i = 0\n    while i < extra:\n        {MASKED}\n        i += 1"),
        "it is in a loop",
    ),
    "twice": (Case(f"{MASKED}\n    {MASKED}"), "the kernel writes through it elsewhere, too"),
    "after a row of zeros": (
        Case(f"tl.store(out_ptr + n, tl.zeros((BN,), c.dtype), mask=in_n)\n    {MASKED}"),
        "the kernel writes through it elsewhere, too",
    ),
    "read again": (
        Case(f"{MASKED}\n    tl.store(other_ptr, tl.load(out_ptr).to(tl.int32))"),
        "the kernel loads through out_ptr afterwards, which may be the same memory",
    ),
    "an atomic": (
        Case(f"{MASKED}\n    tl.atomic_add(other_ptr, 1)"),
        "tile.atomic_rmw keeps memory accesses in order",
    ),
    "another read": (
        Case(f"{MASKED}\n    tl.store(other_ptr + 1, tl.load(other_ptr))"),
        "the kernel loads through other_ptr afterwards, which may be the same memory",
    ),
    "a barrier": (Case(f"{MASKED}\n    tl.debug_barrier()"), "tile.barrier keeps memory accesses"),
    "a volatile load": (
        Case(f"go = tl.load(other_ptr, volatile=True)\n    if go > 0:\n        {MASKED}"),
        "tile.load keeps memory accesses in order",
    ),
}


NOT_UPDATED = {
    "acquired and released": (
        Case(ADDED.replace(', sem="relaxed"', "")),
        'it is acq_rel; sem="relaxed" asks for no order',
    ),
    "released": (Case(ADDED.replace("relaxed", "release")), "it is release"),
    "for the system": (
        Case(ADDED.replace("sem", 'scope="sys", sem')),
        "copies are atomic for one GPU, not for the system",
    ),
    "of doubles": (Case(ADDED, dtype="fp64"), "copies have no atomic add of fp64"),
    "the greater": (
        Case(ADDED.replace("add", "max"), dtype="fp32"),
        "copies have no atomic max of fp32",
    ),
    "two kinds": (
        Case(f"{ADDED}\n    {ADDED.replace('add', 'max')}", dtype="i32"),
        "the kernel writes through it elsewhere, too",
    ),
    "and a store": (Case(f"{MASKED}\n    {ADDED}"), "the kernel writes through it elsewhere, too"),
    "ordered by another": (
        Case(f"{ADDED}\n    tl.atomic_add(other_ptr, 1)"),
        "tile.atomic_rmw keeps memory accesses in order",
    ),
    "a load in a loop": (
        Case(
            "for i in range(extra):\n        d = (c + tl.load(other_ptr + i)).to(c.dtype)\n"
            f"        {ADDED.replace('c,', 'd,')}"
        ),
        "the kernel loads through other_ptr afterwards, which may be the same memory; num_stages",
    ),
}


@pytest.mark.parametrize(("case", "reason"), NOT_UPDATED.values(), ids=NOT_UPDATED)
def test_a_remark_says_why_an_atomic_is_left_alone(tmp_path: Path, case: Case, reason: str) -> None:
    kernel, schedule = mapped(request(tmp_path, case))
    remarks = remarks_on("out_ptr is not updated", schedule)
    assert remarks[0].startswith(f"out_ptr is not updated by tensor copies: {reason}")
    assert [op for op in kernel.walk() if isinstance(op, tile.AtomicRmw)]


def test_an_atomic_whose_result_is_used_is_not_looked_at(tmp_path: Path) -> None:
    case = Case(f"old = {ADDED}\n    tl.store(other_ptr, tl.sum(tl.sum(old, 1), 0).to(tl.int32))")
    _, schedule = mapped(request(tmp_path, case))
    assert not remarks_on("out_ptr", schedule)


@pytest.mark.parametrize(("case", "reason"), NOT_MAPPED.values(), ids=NOT_MAPPED)
def test_a_remark_says_why_a_store_is_left_alone(tmp_path: Path, case: Case, reason: str) -> None:
    kernel, schedule = mapped(request(tmp_path, case))
    remarks = remarks_on("out_ptr is not stored", schedule)
    assert remarks
    for remark in remarks:
        assert remark.startswith(f"out_ptr is not stored by tensor copies: {reason}")
    described = [info.tensor.address for info in kernel.params if info.tensor is not None]
    assert described == ["a_ptr", "b_ptr"]
    assert "N % 8 == 0" not in kernel.guards


def test_both_arms_of_a_branch_may_store(tmp_path: Path) -> None:
    case = Case(f"if part == 1:\n        {MASKED}\n    else:\n        {MASKED}")
    kernel, _ = mapped(request(tmp_path, case))
    stores = [op for op in kernel.walk() if isinstance(op, descriptor.DescriptorStore)]
    assert len(stores) == 2
    assert len({op.descriptor for op in stores}) == 1
    assert not [op for op in kernel.walk() if isinstance(op, tile.Store)]


@pytest.mark.parametrize(
    "store",
    [
        "tl.store(out_ptrs, tl.zeros_like(c) + 1.0, mask=inside)",
        "tl.store(out_ptr + m * stride_om, tl.sum(acc, 1).to(tl.float16), mask=in_m)",
    ],
    ids=["no product", "a vector"],
)
def test_what_gains_nothing_is_not_looked_at(tmp_path: Path, store: str) -> None:
    kernel, schedule = mapped(request(tmp_path, Case(store)))
    assert not remarks_on("out_ptr", schedule)
    assert [op for op in kernel.walk() if isinstance(op, tile.Store)]


def test_a_kernel_gets_no_guards_for_its_store_alone(tmp_path: Path) -> None:
    case = Case(signature=dict.fromkeys(("a_ptr", "b_ptr"), "*fp16"))
    kernel, schedule = mapped(request(tmp_path, case))
    assert not remarks_on("out_ptr", schedule)
    assert not kernel.guards


def test_what_is_promised_to_be_other_memory_may_be_read_afterwards(tmp_path: Path) -> None:
    case, _ = NOT_MAPPED["another read"]
    kernel_request = request(tmp_path, case)
    signature = tuple(
        (name, f"{text} noalias" if name == "out_ptr" else text)
        for name, text in kernel_request.signature
    )
    _, schedule = mapped(replace(kernel_request, signature=signature))
    assert remarks_on("out_ptr", schedule)[0].startswith("out_ptr is stored by tensor copies")


def test_a_barrier_before_a_store_is_no_obstacle(tmp_path: Path) -> None:
    _, schedule = mapped(request(tmp_path, Case(f"tl.debug_barrier()\n    {MASKED}")))
    assert remarks_on("out_ptr", schedule)[0].startswith("out_ptr is stored by tensor copies")

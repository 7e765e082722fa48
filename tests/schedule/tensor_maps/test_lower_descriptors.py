"""Descriptors lowered to the parameters used, or to masked accesses without tensor copies."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.config import Config
from aotc.ir.core import Kernel
from aotc.ir.diagnostics import IRError
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.verify import verify
from aotc.schedule.context import Schedule
from aotc.schedule.tensor_maps.lower_descriptors import lower_descriptors
from aotc.target import TARGETS
from aotc.verify.interpreter.run import InterpretError, run
from tests.support.pass_case import applied

TEXT = """\
kernel @k(%x: desc<4x8xfp32>, %y: desc<4x8xfp32, nan>, %i: i32) {num_warps = 1} {
  %unused = tile.descriptor_extent(%x) {axis = 0} : i32
  %n = tile.descriptor_extent(%x) {axis = 1} : i32
  %s = tile.descriptor_stride(%x) {axis = 0} : i64
  %one = tile.descriptor_stride(%x) {axis = 1} : i64
  %sum = arith.add(%s, %one) : i64
  %j = arith.cast(%sum) {dtype = i32} : i32
  %k = arith.sub(%j, %n) : i32
  %v = tile.descriptor_load(%y, %i, %k) : tile<4x8xfp32>
  tile.descriptor_store(%x, %v, %k, %i)
  tile.descriptor_reduce(%x, %v, %i, %i) {kind = "add"}
  scf.return
}
"""


def _lowered(target: str) -> Kernel:
    kernel = parse_kernel(TEXT)
    lower_descriptors(kernel, Schedule(TARGETS[target]))
    verify(kernel)
    printed = print_kernel(kernel)
    assert print_kernel(parse_kernel(printed)) == printed
    return kernel


def _arrays() -> list[np.ndarray | int]:
    random = np.random.default_rng(3)
    # Rows of 5 and 6 in 8: the sum of stride and 1, less the extent, is 4.
    x, y = (random.integers(-9, 9, (6, 8)).astype(np.float32)[:, :size] for size in (5, 6))
    return [x, y, 2]


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_it_computes_what_it_computed(target: str) -> None:
    before, after = _arrays(), _arrays()
    run(parse_kernel(TEXT), (1,), before)
    run(_lowered(target), (1,), after)
    np.testing.assert_array_equal(before[0], after[0])
    assert not np.array_equal(_arrays()[0], after[0])


def test_with_tensor_copies_only_what_is_asked_becomes_a_parameter() -> None:
    kernel = _lowered("sm_90a")
    assert [(info.name, info.source) for info in kernel.params] == [
        ("x", ""),
        ("y", ""),
        ("i", ""),
        ("x.shape.1", "x.shape[1]"),
        ("x.strides.0", "x.strides[0]"),
    ]
    assert [info.argument for info in kernel.params] == ["x", "y", "i", "x", "x"]
    text = print_kernel(kernel)
    assert "tile.descriptor_load" in text
    assert "descriptor_extent" not in text


def test_without_them_there_are_pointers_and_masks() -> None:
    kernel = _lowered("sm_80")
    assert [(info.name, info.source, info.divisibility) for info in kernel.params[:3]] == [
        ("x.address", "x", 16),
        ("y.address", "y", 16),
        ("i", "", 1),
    ]
    text = print_kernel(kernel)
    assert "desc" not in text
    assert "value = nanf" in text
    assert '{kind = "add", sem = "relaxed"}' in text


PREFETCHED = """\
kernel @k(%x: desc<4x8xfp32>, %p: *fp32 {divisibility = 16}, %i: i32) {num_warps = 1} {
  %s = arith.constant {value = 8, type = i64} : i64
  %made = tile.descriptor_of(%p, %i, %i, %s) {shape = [4, 8]} : desc<4x8xfp32>
  tile.descriptor_prefetch(%made, %i, %i)
  tile.descriptor_prefetch(%x, %i, %i)
  %v = tile.descriptor_load(%made, %i, %i) : tile<4x8xfp32>
  tile.descriptor_store(%x, %v, %i, %i)
  scf.return
}
"""


@pytest.mark.parametrize(
    ("target", "num_ctas", "num_prefetches"), [("sm_80", 1, 0), ("sm_90a", 1, 1), ("sm_90a", 2, 0)]
)
def test_prefetches_of_parameters_are_kept_where_there_are_whole_maps(
    target: str, num_ctas: int, num_prefetches: int
) -> None:
    kernel = parse_kernel(PREFETCHED)
    lower_descriptors(kernel, Schedule(TARGETS[target], config=Config(num_ctas=num_ctas)))
    verify(kernel)
    assert print_kernel(kernel).count("tile.descriptor_prefetch(%x, %i, %i)") == num_prefetches
    assert print_kernel(kernel).count("prefetch") == num_prefetches


def test_a_kernel_without_descriptors_stays_as_it_is() -> None:
    text = "kernel @k(%n: i32) {num_warps = 1} {\n  scf.return\n}\n"
    for target in ("sm_80", "sm_90a"):
        kernel = parse_kernel(text)
        lower_descriptors(kernel, Schedule(TARGETS[target]))
        assert print_kernel(kernel) == text


@pytest.mark.parametrize(
    ("index", "array", "message"),
    [
        (0, np.zeros((6, 8), np.float16), "an array of float32 with 2 axes"),
        (0, np.zeros(8, np.float32), "an array of float32 with 2 axes"),
        (0, np.zeros((8, 6), np.float32).T, "whose last axis is dense"),
        (0, np.zeros((6, 9), np.float32), "multiples of 16"),
        (0, np.zeros((6, 8), np.float32)[:, 1:], "multiples of 16"),
        (0, 5, "an array for a descriptor"),
        (2, np.zeros((6, 8), np.float32), "a number for i32"),
    ],
)
def test_what_is_no_tensor_is_refused(index: int, array: object, message: str) -> None:
    args = _arrays()
    args[index] = array  # type: ignore[call-overload]
    with pytest.raises(InterpretError, match=message):
        run(parse_kernel(TEXT), (1,), args)


ASKED = """\
// CHECK: kernel @k(%x: desc<4x8xfp32>, %y: desc<4x8xfp32, nan>, %i: i32,
// CHECK-SAME: %x.shape.1: i32 {source = "x.shape[1]"}, %x.strides.0: i64 {source = "x.strides[0]"})
// CHECK: %one = arith.constant {value = 1, type = i64}
// CHECK-NEXT: %sum = arith.add(%x.strides.0, %one)
// CHECK: %k = arith.sub(%j, %x.shape.1)
// CHECK-NEXT: %v = tile.descriptor_load(%y, %i, %k)
"""
MASKED = """\
// CHECK: kernel @k(%x.address: *fp32 {divisibility = 16, source = "x"}
// CHECK: [[ROW:%.*]] = tile.splat(%i) {shape = [4]}
// CHECK: [[LOW:%.*]] = arith.compare({{%.*}}, {{%.*}}) {predicate = "ge"} : tile<4xi1>
// CHECK-NEXT: [[ROWS:%.*]] = tile.splat(%y.shape.0) {shape = [4]}
// CHECK-NEXT: [[HIGH:%.*]] = arith.compare({{%.*}}, [[ROWS]]) {predicate = "lt"}
// CHECK-NEXT: arith.and([[LOW]], [[HIGH]])
// CHECK: tile.splat(%y.strides.0) {shape = [4]}
// CHECK: tile.splat(%y.shape.1) {shape = [8]}
// CHECK: [[INSIDE:%.*]] = arith.and({{%.*}}, {{%.*}}) : tile<4x8xi1>
// CHECK: [[BASE:%.*]] = tile.splat(%y.address) {shape = [4, 8]}
// CHECK-NEXT: [[AT:%.*]] = arith.addptr([[BASE]], {{%.*}})
// CHECK-NEXT: [[FILL:%.*]] = arith.constant {value = nanf,
// CHECK-NEXT: %v = tile.load([[AT]], [[INSIDE]], [[FILL]])
// CHECK: tile.store({{%.*}}, %v, {{%.*}})
// CHECK: tile.atomic_rmw({{%.*}}, %v, {{%.*}}) {kind = "add", sem = "relaxed"}
"""


@pytest.mark.parametrize(("checks", "target"), [(ASKED, "sm_90a"), (MASKED, "sm_80")])
def test_what_it_is_made_of(checks: str, target: str) -> None:
    applied(checks + TEXT, lower_descriptors, target=target)


ROWS = """\
kernel @k(%x: desc<1x8xfp32, nan>, %y: desc<1x8xfp32>, %index: *i32, %c: i32) {num_warps = 1} {
  %at = tile.arange {start = 0, end = 4} : tile<4xi32>
  %base = tile.splat(%index) {shape = [4]} : tile<4x*i32>
  %p = arith.addptr(%base, %at) : tile<4x*i32>
  %rows = tile.load(%p, _, _) : tile<4xi32>
  %v = tile.descriptor_gather(%x, %rows, %c) : tile<4x8xfp32>
  tile.descriptor_scatter(%y, %v, %at, %c)
  scf.return
}
"""


@pytest.mark.parametrize("column", [0, 4, -4])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_rows_go_through_pointers_on_every_target(target: str, column: int) -> None:
    """Rows and columns out of bounds are filled, and not written; a row may come twice."""
    kernel = parse_kernel(ROWS)
    lower_descriptors(kernel, Schedule(TARGETS[target]))
    verify(kernel)
    text = print_kernel(kernel)
    assert "gather" not in text
    assert text.count("tile.load(") == 2
    promises = {info.name: info.divisibility for info in kernel.params}
    # Without maps the parameter itself is the address.
    address = "x.base" if target == "sm_90a" else "x.address"
    assert promises[address] == 16
    whole = [1, 4, 4] if target == "sm_90a" else [1, 1, 1]  # requirements of a tensor map
    assert [promises[name] for name in ("x.shape.0", "x.shape.1", "x.strides.0")] == whole
    results: list[np.ndarray] = []
    for variant in (parse_kernel(ROWS), kernel):
        x = np.arange(48, dtype=np.float32).reshape(6, 8)
        y = np.full((3, 8), 7, np.float32)
        run(variant, (1,), [x, y, np.array([5, -1, 5, 6], np.int32), column])
        results.append(y)
    np.testing.assert_array_equal(*results)
    columns = np.arange(8)
    for row, source in enumerate((5, None, 5)):
        read = np.arange(48).reshape(6, 8)[5] if source else np.full(8, np.nan)
        inside = (columns >= column) & (columns < column + 8)
        np.testing.assert_array_equal(results[0][row], np.where(inside, read, 7))


def test_rows_of_a_map_in_memory_have_no_pointers() -> None:
    text = ROWS.replace("%x: desc<1x8xfp32, nan>", "%m: *i8").replace(
        "  %at =",
        "  %x = tile.descriptor_at(%m) {element = fp32, shape = [1, 8]} : desc<1x8xfp32>\n  %at =",
        1,
    )
    with pytest.raises(IRError, match="gathers through a map in memory"):
        lower_descriptors(parse_kernel(text), Schedule(TARGETS["sm_90a"]))

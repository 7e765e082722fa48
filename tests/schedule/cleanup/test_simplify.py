"""Blocks are loaded without dropped axes, at the original load."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.verify import verify
from aotc.schedule.cleanup.simplify import simplify
from aotc.schedule.context import Schedule
from aotc.target import TARGETS
from aotc.verify.interpreter.run import run
from tests.support.checks import check, without_checks

TEXT = """\
// CHECK: [[BLOCK:%.*]] = tile.descriptor_load(%x, %i, %i, %i, %i) {num_dropped = 2}
// CHECK-NEXT: tile.descriptor_store(%y
// CHECK-NOT: tile.reshape
// CHECK: tile.descriptor_store(%y, [[BLOCK]],
kernel @k(%x: desc<1x1x4x8xfp32>, %y: desc<4x8xfp32>, %i: i32) {num_warps = 1} {
  %zero = arith.constant {value = 0.0, type = tile<4x8xfp32>} : tile<4x8xfp32>
  %v = tile.descriptor_load(%x, %i, %i, %i, %i) : tile<1x1x4x8xfp32>
  tile.descriptor_store(%y, %zero, %i, %i)
  %half = tile.reshape(%v) {shape = [1, 4, 8]} : tile<1x4x8xfp32>
  %w = tile.reshape(%half) {shape = [4, 8]} : tile<4x8xfp32>
  tile.descriptor_store(%y, %w, %i, %i)
  scf.return
}
"""


def test_unit_axes_of_a_block_are_not_loaded() -> None:
    kernel = parse_kernel(without_checks(TEXT))
    simplify(kernel, Schedule(TARGETS["sm_90a"]))
    verify(kernel)
    check(TEXT, print_kernel(kernel))
    x = np.random.default_rng(0).integers(-9, 9, (2, 3, 8, 12)).astype(np.float32)
    before, after = (np.full((7, 12), 5, np.float32) for _ in range(2))
    run(parse_kernel(without_checks(TEXT)), (1,), [x, before, 1])
    run(kernel, (1,), [x, after, 1])
    np.testing.assert_array_equal(before, after)


MERGED = """\
kernel @k(%x: desc<1x2x4x8xfp32>, %y: desc<8x8xfp32>, %i: i32) {num_warps = 1} {
  %v = tile.descriptor_load(%x, %i, %i, %i, %i) : tile<1x2x4x8xfp32>
  %w = tile.reshape(%v) {shape = [8, 8]} : tile<8x8xfp32>
  tile.descriptor_store(%y, %w, %i, %i)
  scf.return
}
"""


def test_axes_of_a_block_are_loaded_as_the_one_that_they_become() -> None:
    kernel = parse_kernel(MERGED)
    simplify(kernel, Schedule(TARGETS["sm_90a"]))
    verify(kernel)
    assert "{num_dropped = 1, num_merged = 1} : tile<8x8xfp32>" in print_kernel(kernel)
    x = np.random.default_rng(0).integers(-9, 9, (2, 3, 6, 12)).astype(np.float32)
    before, after = (np.full((11, 12), 5, np.float32) for _ in range(2))
    run(parse_kernel(MERGED), (1,), [x, before, 1])
    run(kernel, (1,), [x, after, 1])
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("block", ["1x512x4x8", "1x2x4x8"])
def test_axes_stay_that_a_box_has_not_all_of_or_whose_rows_are_cut(block: str) -> None:
    shape = [512 * 4, 8] if "512" in block else [64]
    text = MERGED.replace("1x2x4x8", block).replace("[8, 8]", str(shape))
    kernel = parse_kernel(
        text.replace("8x8xfp32", f"{'x'.join(map(str, shape))}xfp32").replace(
            "%y, %w, %i, %i)", f"%y, %w{', %i' * len(shape)})"
        )
    )
    simplify(kernel, Schedule(TARGETS["sm_90a"]))
    assert "num_merged" not in print_kernel(kernel)


@pytest.mark.parametrize(
    "renaming",
    [
        "tile.reshape(%v) {shape = [1, 4, 8, 1]} : tile<1x4x8x1xfp32>",
        "tile.reshape(%v) {shape = [8, 4]} : tile<8x4xfp32>",
        "tile.reshape(%v) {shape = [1, 1, 1, 4, 8]} : tile<1x1x1x4x8xfp32>",
    ],
)
def test_other_renamings_stay(renaming: str) -> None:
    start, end = TEXT.index("  %half"), TEXT.index("  scf.return")
    consumer = f"  %w = {renaming}\n  tile.store(%p, %w, _)\n"
    kind = renaming.rpartition(" : ")[2]
    pointers = kind.replace("xfp32", "x*fp32")
    shape = renaming.partition("{")[2].partition("}")[0]
    consumer = f"  %p = tile.splat(%q) {{{shape}}} : {pointers}\n{consumer}"
    text = without_checks(TEXT[:start] + consumer + TEXT[end:]).replace(
        "%i: i32)", "%i: i32, %q: *fp32)"
    )
    kernel = parse_kernel(text)
    simplify(kernel, Schedule(TARGETS["sm_90a"]))
    assert "num_dropped" not in print_kernel(kernel)
    assert "tile.reshape" in print_kernel(kernel)


TRUTHS = """\
kernel @k(%p: *fp32, %n: i32, %c: i1) {num_warps = 1} {
  %i = tile.arange {start = 2, end = 10} : tile<8xi32>
  %one = arith.constant {value = 1, type = tile<8xi32>} : tile<8xi32>
  %none = arith.constant {value = 0, type = tile<8xi32>} : tile<8xi32>
  %end = arith.constant {value = END, type = tile<8xi32>} : tile<8xi32>
  %ns = tile.splat(%n) {shape = [8]} : tile<8xi32>
  MASK
  %ps = tile.splat(%p) {shape = [8]} : tile<8x*fp32>
  %at = arith.addptr(%ps, %i) : tile<8x*fp32>
  %v = tile.load(%at, %m, _) : tile<8xfp32>
  tile.store(%at, %v, _)
  scf.return
}
"""
COMPARE = '%m = arith.compare(%i, %end) {predicate = "PREDICATE"} : tile<8xi1>'


@pytest.mark.parametrize(
    ("predicate", "end", "truth"),
    [
        ("lt", 10, True), ("lt", 9, None), ("lt", 2, False), ("le", 9, True), ("le", 1, False),
        ("gt", 1, True), ("gt", 2, None), ("ge", 2, True), ("ge", 10, False), ("ge", 9, None),
        ("eq", 5, None), ("ne", 5, None), ("eq", 99, None), ("ne", 99, None),
    ],
)  # fmt: skip
def test_a_comparison_that_all_positions_pass_is_known(
    predicate: str, end: int, truth: bool | None
) -> None:
    text = TRUTHS.replace("MASK", COMPARE.replace("PREDICATE", predicate))
    kernel = parse_kernel(text.replace("END", str(end)))
    simplify(kernel, Schedule(TARGETS["sm_90a"]))
    printed = print_kernel(kernel)
    assert ("arith.compare" in printed) == (truth is None)
    if truth is not None:
        assert ("tile.load(%at, _, _)" in printed) == truth


@pytest.mark.parametrize("arms", ["%one, %none", "%end, %none", "%none, %one", "%one, %end"])
def test_a_truth_that_was_made_a_number_is_the_truth(arms: str) -> None:
    mask = f"""%t = arith.compare(%i, %ns) {{predicate = "lt"}} : tile<8xi1>
  %w = arith.select(%t, {arms}) : tile<8xi32>
  %m = arith.cast(%w) {{dtype = i1}} : tile<8xi1>"""
    text = TRUTHS.replace("MASK", mask).replace("END", "7")
    kernel = parse_kernel(text)
    simplify(kernel, Schedule(TARGETS["sm_90a"]))
    printed = print_kernel(kernel)
    assert ("arith.select" in printed) == (arms == "%none, %one")
    assert ("tile.load(%at, %t, _)" in printed) == arms.endswith("%none")
    assert ("tile.load(%at, _, _)" in printed) == (arms == "%one, %end")
    before, after = (np.arange(12, dtype=np.float32) for _ in range(2))
    run(parse_kernel(text), (1,), [before, 6, True])
    run(kernel, (1,), [after, 6, True])


ORDERS = """\
// CHECK: kernel @k(%x: desc<4x4x8xfp32>, %y: desc<4x4x8xfp32>, %z: desc<4x8x4xfp32>, %i: i32)
// CHECK-NEXT: [[BLOCK:%.*]] = tile.descriptor_load(%x,
// CHECK-NEXT: [[ONCE:%.*]] = tile.trans([[BLOCK]]) {order = [1, 2, 0]}
// CHECK-NEXT: tile.descriptor_store(%y, [[BLOCK]],
// CHECK-NEXT: tile.descriptor_store(%z, [[ONCE]],
kernel @k(%x: desc<4x4x8xfp32>, %y: desc<4x4x8xfp32>, %z: desc<4x8x4xfp32>, %i: i32) {num_warps = 1} {
  %v = tile.descriptor_load(%x, %i, %i, %i) : tile<4x4x8xfp32>
  %first = tile.trans(%v) {order = [2, 0, 1]} : tile<8x4x4xfp32>
  %back = tile.trans(%first) {order = [1, 2, 0]} : tile<4x4x8xfp32>
  %on = tile.trans(%first) {order = [2, 0, 1]} : tile<4x8x4xfp32>
  tile.descriptor_store(%y, %back, %i, %i, %i)
  tile.descriptor_store(%z, %on, %i, %i, %i)
  scf.return
}
"""


def test_axes_are_reordered_once() -> None:
    kernel = parse_kernel(without_checks(ORDERS))
    simplify(kernel, Schedule(TARGETS["sm_90a"]))
    verify(kernel)
    check(ORDERS, print_kernel(kernel))
    x = np.random.default_rng(0).integers(-9, 9, (4, 4, 8)).astype(np.float32)
    for variant in (parse_kernel(without_checks(ORDERS)), kernel):
        y, z = np.zeros_like(x), np.zeros((4, 8, 4), np.float32)
        run(variant, (1,), [x, y, z, 0])
        np.testing.assert_array_equal(y, x)
        np.testing.assert_array_equal(z, x.transpose(1, 2, 0))

"""Blocks are loaded without the axes that are dropped anyway, where they were loaded."""

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
    kept = f"  %w = {renaming}\n  tile.store(%p, %w, _)\n"
    kind = renaming.rpartition(" : ")[2]
    pointers = kind.replace("xfp32", "x*fp32")
    shape = renaming.partition("{")[2].partition("}")[0]
    kept = f"  %p = tile.splat(%q) {{{shape}}} : {pointers}\n{kept}"
    text = without_checks(TEXT[:start] + kept + TEXT[end:]).replace(
        "%i: i32)", "%i: i32, %q: *fp32)"
    )
    kernel = parse_kernel(text)
    simplify(kernel, Schedule(TARGETS["sm_90a"]))
    assert "num_dropped" not in print_kernel(kernel)
    assert "tile.reshape" in print_kernel(kernel)

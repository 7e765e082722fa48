"""Loads move up past independent ops, and no further than allowed."""

from __future__ import annotations

import re

import numpy as np

from aotc.schedule.pipelining.advance_loads import advance_loads
from tests.support.pass_case import applied, assert_same_meaning
from tests.support.pipelined import Args, Case

THREE = {"x_ptr": "*fp32:16", "weight_ptr": "*fp32:16", "out_ptr": "*fp32:16"}


def test_a_load_moves_above_a_reduction_but_not_above_a_store() -> None:
    case = Case("normalized", THREE, {"BLOCK": 256}, num_warps=4)
    text = case.gpu_ir
    first, second, third = (
        start for start in range(len(text)) if text.startswith("gpu.load", start)
    )
    assert first < second < text.index("gpu.reduce") < text.index("gpu.store") < third

    def make() -> Args:
        random = np.random.default_rng(0)
        x, weight = (random.integers(-3, 4, 256).astype(np.float32) for _ in range(2))
        return [x, weight, np.full(256, 77, np.float32)]

    case.check_each_pass(make)

    def in_place() -> Args:
        x = np.random.default_rng(0).integers(-3, 4, 256).astype(np.float32)
        return [x, np.ones(256, np.float32), x]

    case.check_each_pass(in_place)


def test_no_more_is_in_flight_than_registers_hold() -> None:
    """8 words per load: four before the first use, then one per load used up."""
    signature = {"x_ptr": "*fp32:16", "out_ptr": "*fp32:16"}
    case = Case("many_loads", signature, {"COUNT": 9, "BLOCK": 256})
    order = re.findall(r"gpu\.load|arith\.mul", case.gpu_ir)
    assert "".join(op.split(".")[1][0] for op in order) == "llll" + "ml" * 5 + "m" * 4

    def make() -> Args:
        x = np.random.default_rng(0).integers(-9, 10, 9 * 256).astype(np.float32)
        return [x, np.full(256, 77, np.float32)]

    case.check_each_pass(make)


TEXT = """\
// CHECK: %l = gpu.load(
// CHECK: %q = arith.addptr(
// CHECK-NEXT: %m = gpu.load(%q
// CHECK-NEXT: arith.exp(%l)
#0 = #ll<register=[[1],[2]] lane=[[4],[8],[16],[32],[64]] warp=[[128],[256]] : [512]>
kernel @k(%x: *fp32, %y: *fp32, %out: *fp32) {num_warps = 4} {
  %i = tile.arange {start = 0, end = 512, layout = #0} : tile<512xi32, #0>
  %xs = tile.splat(%x) {shape = [512], layout = #0} : tile<512x*fp32, #0>
  %p = arith.addptr(%xs, %i) : tile<512x*fp32, #0>
  %l = gpu.load(%p, _, _) : tile<512xfp32, #0>
  %e = arith.exp(%l) : tile<512xfp32, #0>
  %ys = tile.splat(%y) {shape = [512], layout = #0} : tile<512x*fp32, #0>
  %q = arith.addptr(%ys, %i) : tile<512x*fp32, #0>
  %m = gpu.load(%q, _, _) : tile<512xfp32, #0>
  %s = arith.add(%e, %m) : tile<512xfp32, #0>
  %os = tile.splat(%out) {shape = [512], layout = #0} : tile<512x*fp32, #0>
  %r = arith.addptr(%os, %i) : tile<512x*fp32, #0>
  gpu.store(%r, %s, _)
  scf.return
}
"""


def test_a_load_whose_address_is_ready_goes_above_the_use_of_another() -> None:
    kernel = applied(TEXT, advance_loads)
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=512).astype(np.float32) for _ in range(2))
    assert_same_meaning(TEXT, kernel, [x, y, np.full(512, 77, np.float32)])


def test_a_load_stays_after_a_store_that_may_write_what_it_reads() -> None:
    """The store goes through another parameter, possibly to the same memory."""
    lines = [line for line in TEXT.splitlines() if "// CHECK" not in line]
    exp_index = next(number for number, line in enumerate(lines) if "%e = arith.exp" in line)
    lines.insert(exp_index + 1, "  gpu.store(%p, %e, _)")
    check = "// CHECK: gpu.store(%p\n// CHECK: %m = gpu.load(\n"
    applied(check + "\n".join(lines) + "\n", advance_loads)

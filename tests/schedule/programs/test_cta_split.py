"""Division of tiles among the CTAs of a cluster."""

from __future__ import annotations

import pytest

from aotc.ir.text import parse_kernel
from aotc.schedule.programs.cta_split import find_parts, operand_parts

PRODUCT = """
kernel @k(%a: *bf16, %b: *bf16, %out: *fp32) {num_warps = 4} {
  %0 = tile.arange {start = 0, end = 128} : tile<128xi32>
  %1 = tile.expand_dims(%0) {axis = 1} : tile<128x1xi32>
  %2 = tile.arange {start = 0, end = 64} : tile<64xi32>
  %3 = tile.expand_dims(%2) {axis = 0} : tile<1x64xi32>
  %4 = arith.constant {value = 64, type = tile<128x1xi32>} : tile<128x1xi32>
  %5 = arith.mul(%1, %4) : tile<128x1xi32>
  %6 = tile.broadcast(%5) {shape = [128, 64]} : tile<128x64xi32>
  %7 = tile.broadcast(%3) {shape = [128, 64]} : tile<128x64xi32>
  %8 = arith.add(%6, %7) : tile<128x64xi32>
  %9 = tile.splat(%a) {shape = [128, 64]} : tile<128x64x*bf16>
  %10 = arith.addptr(%9, %8) : tile<128x64x*bf16>
  %11 = tile.load(%10, _, _) : tile<128x64xbf16>
  %12 = tile.expand_dims(%2) {axis = 1} : tile<64x1xi32>
  %13 = arith.constant {value = 64, type = tile<64x1xi32>} : tile<64x1xi32>
  %14 = arith.mul(%12, %13) : tile<64x1xi32>
  %15 = tile.broadcast(%14) {shape = [64, 64]} : tile<64x64xi32>
  %16 = tile.broadcast(%3) {shape = [64, 64]} : tile<64x64xi32>
  %17 = arith.add(%15, %16) : tile<64x64xi32>
  %18 = tile.splat(%b) {shape = [64, 64]} : tile<64x64x*bf16>
  %19 = arith.addptr(%18, %17) : tile<64x64x*bf16>
  %20 = tile.load(%19, _, _) : tile<64x64xbf16>
  %21 = arith.constant {value = 0.0, type = tile<128x64xfp32>} : tile<128x64xfp32>
  %22 = tile.dot(%11, %20, %21) : tile<128x64xfp32>
  %23 = tile.splat(%out) {shape = [128, 64]} : tile<128x64x*fp32>
  %24 = arith.addptr(%23, %8) : tile<128x64x*fp32>
  tile.store(%24, %22, _)
  scf.return
}
"""


def op_named(kernel, opcode, number=0):
    return [op for op in kernel.walk() if op.opcode == opcode][number]


def test_a_product_divides_its_rows_and_needs_all_of_b() -> None:
    kernel = parse_kernel(PRODUCT)
    parts = find_parts(kernel, 2)
    assert not parts.obstacle
    assert list(parts.uses[op_named(kernel, "tile.load", 0).out]) == [0]
    assert list(parts.uses[op_named(kernel, "tile.load", 1).out]) == [None]
    assert parts.roots[op_named(kernel, "tile.store")] == 0
    # The columns' numbers are all of them for B and for the pointers of A and of the result.
    assert list(parts.uses[op_named(kernel, "tile.arange", 0).out]) == [0]
    assert list(parts.uses[op_named(kernel, "tile.arange", 1).out]) == [None]


def test_few_rows_divide_the_columns() -> None:
    kernel = parse_kernel(PRODUCT)
    parts = find_parts(kernel, 4)
    assert parts.roots[op_named(kernel, "tile.store")] == 1
    assert list(parts.uses[op_named(kernel, "tile.load", 0).out]) == [None]
    assert list(parts.uses[op_named(kernel, "tile.load", 1).out]) == [1]
    # B's row numbers and C's column numbers come of one range, needed both ways.
    assert set(parts.uses[op_named(kernel, "tile.arange", 1).out]) == {None, 0}


def test_nothing_is_divided_without_a_product() -> None:
    kernel = parse_kernel(PRODUCT)
    parts = find_parts(kernel, 2, divides=False)
    assert all(list(ways) == [None] for ways in parts.uses.values())
    assert parts.roots[op_named(kernel, "tile.store")] is None


SHAPES = """
kernel @k(%p: *fp32) {{num_warps = 4}} {{
  %0 = arith.constant {{value = 1.0, type = tile<8x16xfp32>}} : tile<8x16xfp32>
  {op}
  scf.return
}}
"""


@pytest.mark.parametrize(
    ("op", "part", "expected"),
    [
        ("%1 = tile.trans(%0) {order = [1, 0]} : tile<16x8xfp32>", 0, [1]),
        ("%1 = tile.expand_dims(%0) {axis = 1} : tile<8x1x16xfp32>", 2, [1]),
        ("%1 = tile.expand_dims(%0) {axis = 1} : tile<8x1x16xfp32>", 0, [0]),
        ("%1 = tile.expand_dims(%0) {axis = 1} : tile<8x1x16xfp32>", 1, None),
        ("%1 = tile.reshape(%0) {shape = [8, 4, 4]} : tile<8x4x4xfp32>", 0, [0]),
        ("%1 = tile.reshape(%0) {shape = [8, 4, 4]} : tile<8x4x4xfp32>", 1, [1]),
        ("%1 = tile.reshape(%0) {shape = [8, 4, 4]} : tile<8x4x4xfp32>", 2, None),
        ("%1 = tile.reshape(%0) {shape = [128]} : tile<128xfp32>", 0, [0]),
        ("%1 = tile.reshape(%0) {shape = [1, 8, 16]} : tile<1x8x16xfp32>", 1, [0]),
        ("%1 = tile.reshape(%0) {shape = [8, 1, 16]} : tile<8x1x16xfp32>", 2, [1]),
        ("%1 = tile.reshape(%0) {shape = [2, 4, 16]} : tile<2x4x16xfp32>", 0, [0]),
        ("%1 = tile.reshape(%0) {shape = [2, 4, 16]} : tile<2x4x16xfp32>", 1, None),
        ("%1 = tile.reshape(%0) {shape = [1, 128]} : tile<1x128xfp32>", 0, None),
        ("%1 = tile.reshape(%0) {shape = [1, 128]} : tile<1x128xfp32>", 1, [0]),
        ("%1 = tile.join(%0, %0) : tile<8x16x2xfp32>", 1, [1, 1]),
        ("%1 = tile.join(%0, %0) : tile<8x16x2xfp32>", 2, None),
        ("%1 = arith.exp(%0) : tile<8x16xfp32>", 1, [1]),
    ],
)
def test_operands_are_divided_along_the_axis_that_becomes_the_results(op, part, expected) -> None:
    kernel = parse_kernel(SHAPES.format(op=op))
    split_op = list(kernel.body)[1]
    assert operand_parts(split_op, part) == expected

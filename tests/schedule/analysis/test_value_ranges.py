"""Ranges hold for the values that a kernel computes."""

from __future__ import annotations

import pytest

from aotc.ir.core import Kernel, Value
from aotc.ir.text import parse_kernel
from aotc.schedule.analysis.value_ranges import ValueRanges

TEXT = """
kernel @k(%n: i32, %small: u8) {{num_warps = 4}} {{
  %zero = arith.constant {{value = 0, type = i32}} : i32
  %two = arith.constant {{value = 2, type = i32}} : i32
  %five = arith.constant {{value = 5, type = i32}} : i32
  %large = arith.constant {{value = 2147483647, type = i32}} : i32
  %end = arith.constant {{value = 10, type = i32}} : i32
  %pid = tile.program_id {{axis = 0}} : i32
  %wide = arith.cast(%small) {{dtype = i32}} : i32
  %out = scf.for(%zero, %end, %two, %n) (%i: i32, %carried: i32) {{
    %value = {expression}
    scf.yield(%carried)
  }} : i32
  scf.return
}}
"""
LEAST, MOST = -(1 << 31), (1 << 31) - 1


def value_of(expression: str) -> tuple[Kernel, Value]:
    kernel = parse_kernel(TEXT.format(expression=expression))
    return kernel, next(
        value for op in kernel.walk() for value in op.results if value.hint == "value"
    )


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("arith.add(%i, %two) : i32", (2, 10)),
        ("arith.sub(%i, %five) : i32", (-5, 3)),
        ("arith.mul(%i, %five) : i32", (0, 40)),
        ("arith.div(%i, %five) : i32", (0, 1)),
        ("arith.rem(%i, %five) : i32", (0, 4)),
        ("arith.rem(%n, %five) : i32", (-4, 4)),
        ("arith.rem(%five, %n) : i32", (LEAST, MOST)),
        ("arith.and(%n, %five) : i32", (0, 5)),
        ("arith.min(%n, %five) : i32", (LEAST, 5)),
        ("arith.max(%i, %five) : i32", (5, 8)),
        ("arith.add(%wide, %i) : i32", (0, 263)),
        ("arith.add(%carried, %two) : i32", (LEAST, MOST)),
        ("arith.add(%pid, %two) : i32", (LEAST, MOST)),  # may wrap
        ("arith.mul(%wide, %large) : i32", (LEAST, MOST)),
        ("arith.cast(%n) {dtype = i8} : i8", (-128, 127)),
    ],
)
def test_ranges(expression: str, expected: tuple[int, int]) -> None:
    _, value = value_of(expression)
    assert ValueRanges()[value] == expected

"""Number of CTAs for the program instances of a launch."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.ir.text import parse_kernel
from aotc.verify.interpreter.persistent_grid import num_persistent_ctas
from aotc.verify.interpreter.run import run


@given(st.lists(st.integers(0, 40), min_size=1, max_size=3))
def test_some_cta_has_several_programs(grid: list[int]) -> None:
    programs, ctas = math.prod(grid), num_persistent_ctas(grid)
    assert (ctas == 0) == (programs == 0)
    assert ctas <= 3
    if programs > 1:
        assert programs > ctas


COUNTED = """
kernel @k(%out: *i32, %grid.x: i32 {source = "grid[0]"}, %grid.z: i32 {source = "grid[2]"}) {LOOPS} {
  %pid = tile.program_id {axis = 0} : i32
  %count = tile.num_programs {axis = 0} : i32
  %1 = arith.constant {value = 1, type = i32} : i32
  %at = arith.addptr(%out, %pid) : *i32
  %ten = arith.constant {value = 10, type = i32} : i32
  %left = arith.mul(%count, %ten) : i32
  %more = arith.add(%left, %grid.x) : i32
  %right = arith.mul(%more, %ten) : i32
  %value = arith.add(%right, %grid.z) : i32
  tile.store(%at, %value, _)
  scf.return
}
"""


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ("num_warps = 4, is_persistent = true", [325, 325, 325, 0, 0]),
        ("num_warps = 4", [225, 225, 0, 0, 0]),
    ],
)
def test_an_interpreted_kernel_sees_the_program_grid(attributes: str, expected: list[int]) -> None:
    """Its own number and the number of its like are of CTAs, if these loop."""
    out = np.zeros(5, np.int32)
    run(parse_kernel(COUNTED.replace("LOOPS", attributes)), (2, 3, 5), [out])
    assert out.tolist() == expected

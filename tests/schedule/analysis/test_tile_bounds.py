"""A condition on the ends of index tiles implies a mask without hidden elements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aotc.ir.core import Kernel, Value
from aotc.ir.dialects import arith, tile
from aotc.ir.rewrite import Builder
from aotc.ir.text import parse_kernel
from aotc.ir.types import I32
from aotc.schedule.analysis.tile_bounds import all_true
from aotc.verify.interpreter.run import run

SIZE = 8
TEXT = """
kernel @k(%out: *i32, %found: *i32, %a: i32, %b: i32, %c: i32) {{num_warps = 1}} {{
  %index = tile.arange {{start = 0, end = 8}} : tile<8xi32>
  %at_a = tile.splat(%a) {{shape = [8]}} : tile<8xi32>
  %at_b = tile.splat(%b) {{shape = [8]}} : tile<8xi32>
  %at_c = tile.splat(%c) {{shape = [8]}} : tile<8xi32>
  %here = arith.add(%at_a, %index) : tile<8xi32>
{body}
  %wide = arith.cast(%mask) {{dtype = i32}} : tile<8xi32>
  %0 = tile.splat(%out) {{shape = [8]}} : tile<8x*i32>
  %1 = arith.addptr(%0, %index) : tile<8x*i32>
  tile.store(%1, %wide, _)
  scf.return
}}
"""
MASKS = {
    "below": '  %mask = arith.compare(%here, %at_b) {predicate = "lt"} : tile<8xi1>',
    "not above": '  %mask = arith.compare(%here, %at_b) {predicate = "le"} : tile<8xi1>',
    "above": '  %mask = arith.compare(%here, %at_b) {predicate = "gt"} : tile<8xi1>',
    "not below": '  %mask = arith.compare(%here, %at_b) {predicate = "ge"} : tile<8xi1>',
    "diagonal": """
  %row = arith.add(%at_b, %index) : tile<8xi32>
  %last = arith.sub(%row, %at_c) : tile<8xi32>
  %seen = arith.min(%last, %at_c) : tile<8xi32>
  %mask = arith.compare(%here, %seen) {predicate = "lt"} : tile<8xi1>""",
    "window": """
  %low = arith.max(%at_b, %at_c) : tile<8xi32>
  %2 = arith.compare(%here, %low) {predicate = "ge"} : tile<8xi1>
  %3 = arith.compare(%here, %at_c) {predicate = "le"} : tile<8xi1>
  %mask = arith.and(%2, %3) : tile<8xi1>""",
}
NUMBERS = st.integers(-20, 20) | st.sampled_from(
    [edge + near for edge in (-(2**31), 2**31 - 20) for near in range(20)]
)


def _evaluated(body: str, a: int, b: int, c: int) -> tuple[bool, np.ndarray]:
    """Return the condition and the mask."""
    kernel = parse_kernel(TEXT.format(body=body))
    mask = _named(kernel, "mask")
    end = kernel.body.terminator
    builder = Builder.before_op(end)
    condition = all_true(mask, builder)
    assert condition is not None
    wide = builder(arith.Cast(condition, I32)).out
    builder(tile.Store(kernel.body.args[1], wide))
    out, scalar_out = np.full(SIZE, 7, np.int32), np.full(1, 7, np.int32)
    run(kernel, (1,), [out, scalar_out, a, b, c])
    assert scalar_out[0] in (0, 1)
    return bool(scalar_out[0]), out.astype(bool)


def _named(kernel: Kernel, name: str) -> Value:
    return next(value for op in kernel.walk() for value in op.results if value.hint == name)


@pytest.mark.parametrize("name", MASKS)
@given(NUMBERS, NUMBERS, NUMBERS)
@example(2**31 - 4, 2**31 - 1, 0)
@example(0, 2**31 - 1, -1)
def test_where_it_holds_all_is_true(name: str, a: int, b: int, c: int) -> None:
    holds, mask = _evaluated(MASKS[name], a, b, c)
    assert not holds or mask.all()


@given(st.integers(-20, 20), st.integers(-20, 20))
def test_it_holds_wherever_a_plain_mask_hides_nothing(a: int, b: int) -> None:
    for name in ("below", "not above", "above", "not below"):
        holds, mask = _evaluated(MASKS[name], a, b, 0)
        assert holds == mask.all()


@pytest.mark.parametrize(
    "body",
    [
        '  %mask = arith.compare(%here, %at_b) {predicate = "ne"} : tile<8xi1>',
        """
  %twice = arith.mul(%here, %at_b) : tile<8xi32>
  %mask = arith.compare(%twice, %at_b) {predicate = "lt"} : tile<8xi1>""",
    ],
)
def test_what_is_not_bounded_has_no_condition(body: str) -> None:
    kernel = parse_kernel(TEXT.format(body=body))
    builder = Builder.before_op(kernel.body.terminator)
    assert all_true(_named(kernel, "mask"), builder) is None

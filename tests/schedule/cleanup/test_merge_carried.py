"""Loop variables with always equal values are carried once."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.schedule.cleanup.merge_carried import merge_carried
from tests.support.pass_case import applied, assert_same_meaning

HEAD = """\
kernel @k(%out: *i32, %end: i32, %given: i32) {num_warps = 1} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %again = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
"""
TAIL = """\
  %sum = arith.add(%a, %b) : i32
  gpu.store(%out, %sum, _)
  scf.return
}
"""
RINGS = f"""\
{HEAD}
  // CHECK: %[[A:.*]], %[[P:.*]], %[[T:.*]] = scf.for(%zero, %end, %one, %zero, %zero, %zero) (
  %a, %p, %b, %q, %total = scf.for(%zero, %end, %one, %zero, %zero, %again, %zero, %zero) (%i: i32, %s: i32, %x: i32, %t: i32, %y: i32, %u: i32) {{
    %2 = gpu.next_stage(%s) {{num_stages = 3}} : i32
    %3 = arith.compare(%2, %zero) {{predicate = "eq"}} : i1
    %4 = arith.cast(%3) {{dtype = i32}} : i32
    %5 = arith.xor(%x, %4) : i32
    %6 = gpu.next_stage(%t) {{num_stages = 3}} : i32
    %7 = arith.compare(%6, %again) {{predicate = "eq"}} : i1
    %8 = arith.cast(%7) {{dtype = i32}} : i32
    %9 = arith.xor(%y, %8) : i32
    %10 = arith.add(%u, %s) : i32
    %11 = arith.add(%10, %y) : i32
    scf.yield(%2, %5, %6, %9, %11)
  }} : i32, i32, i32, i32, i32
  // CHECK: arith.add(%[[A]], %[[T]])
  %c = arith.add(%a, %total) : i32
  %pq = arith.add(%p, %q) : i32
  %cc = arith.add(%c, %pq) : i32
  %ba = arith.add(%b, %cc) : i32
  gpu.store(%out, %ba, _)
  scf.return
}}
""".replace("arith.compare(%6, %again)", "arith.compare(%6, %zero)")


def _two(first: str, second: str, inits: str = "%zero, %again") -> str:
    return f"""\
{HEAD}
  // CHECK: %{{{{.*}}}}, %{{{{.*}}}} = scf.for(
  %a, %b = scf.for(%zero, %end, %one, {inits}) (%i: i32, %s: i32, %t: i32) {{
    %2 = {first} : i32
    %3 = {second} : i32
    scf.yield(%2, %3)
  }} : i32, i32
{TAIL}"""


def _same(text: str) -> None:
    kernel = applied(text, merge_carried)
    for end in (1, 2, 7):
        assert_same_meaning(text, kernel, [np.full(1, -77, np.int32), end, 5])


def test_rings_in_step_are_counted_once() -> None:
    _same(RINGS)


def test_loops_within_loops_are_merged_as_well() -> None:
    _same(f"""\
{HEAD}
  // CHECK: %[[A:.*]] = scf.for(%zero, %end, %one, %zero) (
  // CHECK: %{{{{.*}}}} = scf.for(%zero, %end, %one, %{{{{.*}}}}) (
  %a, %b = scf.for(%zero, %end, %one, %zero, %again) (%i: i32, %s: i32, %t: i32) {{
    %c, %d = scf.for(%zero, %end, %one, %s, %s) (%j: i32, %u: i32, %v: i32) {{
      %2 = arith.add(%u, %given) : i32
      %3 = arith.add(%v, %given) : i32
      scf.yield(%2, %3)
    }} : i32, i32
    %4 = arith.add(%c, %d) : i32
    gpu.store(%out, %4, _)
    %5 = arith.add(%s, %given) : i32
    %6 = arith.add(%t, %given) : i32
    scf.yield(%5, %6)
  }} : i32, i32
{TAIL}""")


@pytest.mark.parametrize(
    "text",
    [
        _two("arith.add(%s, %one)", "arith.add(%t, %given)"),
        _two("arith.add(%s, %one)", "arith.sub(%t, %one)"),
        _two("arith.add(%s, %one)", "arith.add(%t, %one)", "%zero, %given"),
        _two("gpu.next_stage(%s) {num_stages = 3}", "gpu.next_stage(%t) {num_stages = 2}"),
        _two("arith.add(%s, %t)", "arith.add(%t, %one)"),
        _two("arith.add(%t, %one)", "arith.add(%s, %given)"),
    ],
    ids=["other step", "other op", "other start", "other attribute", "other next", "swapped"],
)
def test_what_is_not_equal_is_carried_by_itself(text: str) -> None:
    _same(text)


def test_variables_that_change_places_are_one() -> None:
    text = _two("arith.add(%t, %one)", "arith.add(%s, %one)")
    _same(
        text.replace("%{{.*}}, %{{.*}} = scf.for(", "%[[S:.*]] = scf.for(%zero, %end, %one, %zero)")
    )

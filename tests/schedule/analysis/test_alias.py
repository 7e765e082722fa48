"""May-alias analysis of buffers; `test_reorder_hazard` covers tensors."""

from __future__ import annotations

import pytest

from aotc.ir.core import Value
from aotc.ir.text import parse_kernel
from aotc.schedule.analysis.alias import allocation_of, may_alias, stage_of

_TEXT = """\
#0 = #ll<offset=[[0,1],[0,2],[1,0],[2,0]] : [4,4]>
#1 = #ll<offset=[[1,0],[2,0],[0,1],[0,2]] : [4,4]>
kernel @k(%i: i32, %j: i32) {num_warps = 1} {
  %a = gpu.shared_alloc {element = i32, shape = [4, 4], layout = #0} : shared<4x4xi32, #0>
  %b = gpu.shared_alloc {element = i32, shape = [4, 4], layout = #0} : shared<4x4xi32, #0>
  %r = gpu.shared_alloc {element = i32, shape = [4, 4], layout = #0, num_stages = 3} : shared<4x4xi32, #0, 3>
  %now = gpu.shared_stage(%r, %i) : shared<4x4xi32, #0>
  %next = gpu.shared_stage(%r, %i) {ahead = 1} : shared<4x4xi32, #0>
  %other = gpu.shared_stage(%r, %j) {ahead = 1} : shared<4x4xi32, #0>
  %turned = gpu.shared_trans(%a) {order = [1, 0]} : shared<4x4xi32, #1>
  %turned_now = gpu.shared_trans(%now) {order = [1, 0]} : shared<4x4xi32, #1>
  scf.return
}
"""


def _buffers() -> dict[str, Value]:
    kernel = parse_kernel(_TEXT)
    return {value.hint: value for op in kernel.walk() for value in op.results}


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a", "turned", True),
        ("b", "turned", False),
        ("now", "now", True),
        ("now", "next", False),  # other stages of one index
        ("now", "other", True),  # nothing is known of two indices
        ("next", "other", True),
        ("now", "r", True),
        ("now", "a", False),
        ("turned_now", "now", True),
        ("turned_now", "next", False),
    ],
)
def test_buffers(left: str, right: str, expected: bool) -> None:
    buffers = _buffers()
    assert may_alias(buffers[left], buffers[right]) == expected
    assert may_alias(buffers[right], buffers[left]) == expected


def test_views_lead_to_their_allocation_and_stage() -> None:
    buffers = _buffers()
    assert allocation_of(buffers["turned_now"]) is buffers["r"]
    assert allocation_of(buffers["turned"]) is buffers["a"]
    stage = stage_of(buffers["turned_now"])
    assert stage is not None
    assert stage.out is buffers["now"]
    assert stage_of(buffers["turned"]) is None

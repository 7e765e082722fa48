"""State is threaded through the loops and branches that update it, and only through these."""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.carried_state import CarriedState, State
from aotc.ir.core import Op
from aotc.ir.dialects import arith, tile
from aotc.ir.rewrite import Builder
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.types import I32
from aotc.ir.verify import verify
from tests.support.checks import check, without_checks

HEAD = """
kernel @k(%n: i32, %c: i1) {num_warps = 1} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
"""


class _Barriers(CarriedState):
    """Two values; every barrier doubles the second."""

    def updated_by(self, op: Op, state: State) -> State | None:
        if not isinstance(op, tile.Barrier):
            return None
        return [state[0], Builder.after_op(op)(arith.Add(state[1], state[1])).out]

    def indices_in(self, op: Op) -> Sequence[int]:
        nested = (nested_op for block in op.blocks for nested_op in block.walk())
        return (1,) if any(isinstance(nested_op, tile.Barrier) for nested_op in nested) else ()

    def hint(self, index: int) -> str:
        return f"value{index}"


def _threaded(body: str) -> None:
    kernel = parse_kernel(HEAD + without_checks(body) + "  scf.return\n}\n")
    builder = Builder.before_op(kernel.body.first) if kernel.body.first else Builder(kernel.body)
    state = [builder(arith.Constant(value, I32)).out for value in (3, 5)]
    for value in state:
        value.hint = "start"
    last = _Barriers().visit(kernel.body, state)
    assert last[0] is state[0]
    last[1].hint = "last"
    verify(kernel)
    check(body, print_kernel(kernel))


def test_a_loop_carries_the_value_and_keeps_its_own() -> None:
    _threaded("""
      // CHECK: [[OWN:%\\w+]]{{(:2)?}}, %last = scf.for(%zero, %n, %one, %n, %start_1)
      // CHECK-SAME: (%i: i32, %v: i32, %value1: i32)
      %out = scf.for(%zero, %n, %one, %n) (%i: i32, %v: i32) {
        tile.barrier
        // CHECK: [[NEXT:%\\w+]] = arith.add(%value1, %value1)
        // CHECK: scf.yield(%v, [[NEXT]])
        scf.yield(%v)
      } : i32
    """)


def test_an_arm_without_an_update_passes_the_value_on() -> None:
    _threaded("""
      // CHECK: %last = scf.if(%c)
      scf.if(%c) () {
        tile.barrier
        // CHECK: [[NEXT:%\\w+]] = arith.add(%start_1, %start_1)
        // CHECK: scf.yield([[NEXT]])
        scf.yield()
      } () {
        // CHECK: scf.yield(%start_1)
        scf.yield()
      }
    """)


def test_both_blocks_of_a_loop_with_a_condition_carry_the_value() -> None:
    _threaded("""
      // CHECK: %last = scf.while(%n, %start_1) (%j: i32, [[BEFORE:%\\w+]]: i32)
      %out = scf.while(%n) (%j: i32) {
        // CHECK: scf.condition(%c, %j, [[BEFORE]])
        scf.condition(%c, %j)
      // CHECK: (%k: i32, [[AFTER:%\\w+]]: i32)
      } (%k: i32) {
        tile.barrier
        // CHECK: [[NEXT:%\\w+]] = arith.add([[AFTER]], [[AFTER]])
        // CHECK: scf.yield(%k, [[NEXT]])
        scf.yield(%k)
      } : i32
    """)


def test_regions_without_an_update_stay_as_they_are() -> None:
    _threaded("""
      // CHECK: scf.for(%zero, %n, %one) (%i: i32) {
      scf.for(%zero, %n, %one) (%i: i32) {
        scf.yield()
      }
      // CHECK: %last = scf.for(%zero, %n, %one, %start_1)
      scf.for(%zero, %n, %one) (%k: i32) {
        // CHECK: scf.if(%c) () {
        scf.if(%c) () {
          scf.yield()
        } () {
          scf.yield()
        }
        tile.barrier
        scf.yield()
      }
    """)

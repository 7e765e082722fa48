"""The mbarriers that a pipelined loop waits at for its tensor loads: one a stage.

One thread issues the loads of an iteration into its stage; all wait for the stage when the
iteration comes. A loop starts at stage 0 each time it is entered, so the phase of each mbarrier is
kept in an integer with a bit a stage, the parity of the next wait. It starts at 0, and is carried
through all enclosing loops.

Invariant: on every path, waits for a stage have the parities 0, 1, 0, 1, …
"""

from __future__ import annotations

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.dialects import arith, gpu, scf, tma
from aotc.ir.rewrite import Builder, append_carried, is_inside
from aotc.ir.types import I32
from aotc.schedule.shared_memory.mbarriers import place_mbarrier

_HINT = "phases"
_LOOPS = scf.For | scf.While


class FetchRing:
    """Allocate the mbarriers of a loop and emit their uses; `start` is the initial phase bits."""

    def __init__(self, kernel: Kernel, num_stages: int) -> None:
        place = Builder(kernel.body, kernel.body.first)
        self.full = place_mbarrier(place, num_stages)
        place(tma.MbarrierInit(self.full))
        place(gpu.Barrier())
        self.start = place(arith.Constant(0, I32)).out

    def wait(self, slot: Value, phases: Value, place: Builder) -> Value:
        """Wait for the loads of a stage; return the phase bits of the next wait."""
        one = place(arith.Constant(1, I32)).out
        shifted = place(arith.Shr(phases, slot)).out
        parity = place(arith.And(shifted, one)).out
        place(tma.MbarrierWait(place(gpu.SharedStage(self.full, slot)).out, parity))
        return place(arith.Xor(phases, place(arith.Shl(one, slot)).out)).out


def carry_around(loop: Op, start: Value, end: Value) -> None:
    """Carry the phase bits through all loops around `loop`: it starts with `start`, ends with `end`.

    Nothing else uses `start`.
    """
    op = loop
    while any(isinstance(each, _LOOPS) for each in op.ancestors()):
        outer = op.parent_op
        assert outer is not None
        if isinstance(outer, scf.If):
            for arm in outer.blocks:
                _pass_on(arm, end if arm is op.block else start)
            inits: list[Value] = []
        else:
            assert isinstance(outer, _LOOPS)
            _carry(outer, op, start, end)
            inits = [start]
        op = append_carried(outer, inits)
        end = op.results[-1]


def _carry(outer: Op, inner: Op, start: Value, end: Value) -> None:
    """Carry the phase bits through a loop; `inner` is the op of its blocks that updates them."""
    users = [user for user in start.users if is_inside(user, outer)]
    for block in outer.blocks:
        before = block.add_arg(I32, _HINT)
        _pass_on(block, end if inner.block is block else before)
        if inner.block is block:
            for user in users:
                user.set_slots([before if slot is start else slot for slot in user.slots])


def _pass_on(block: Block, value: Value) -> None:
    """Append a value to the operands of a block's terminator."""
    terminator = block.terminator
    terminator.set_slots([*terminator.slots, value])

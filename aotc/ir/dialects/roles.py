"""Warps of different roles: those that compute, and one that fetches for them.

This is gpu IR. The *consumers* are the first `num_warps` warps of the block and run the kernel as
it is written; layouts and thread numbers are theirs. There may be several groups of so many, which
run the same ops: each has the buffers it allocates, and its barriers, to itself. The *producer* is one thread of the warps
after them. It runs what decides which tensor copies are made, and makes them as far ahead as the
rings they go to have room. The two tell each other through mbarriers alone: `full`, where a copy
lands, and `empty`, where the consumers say that they have read it.

Invariant: no barrier of the block stands in either role; barriers of the consumers are theirs.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Block, Op, Value, attribute, block, result
from aotc.ir.effects import Resource, Trait, orders
from aotc.ir.types import I32, Type

MAX_REGISTERS = 256


class Specialize(
    Op,
    opcode="gpu.specialize",
    effects=(
        orders(Resource.GLOBAL),
        orders(Resource.SHARED),
    ),
):
    """Run `consumers` in the kernel's warps and, beside them, `producer` in one thread.

    Registers a thread of each role are moved between the warps, unless 0.
    """

    consumers: Block = block()
    producer: Block = block()
    consumer_registers: int = attribute(default=0)
    producer_registers: int = attribute(default=0)

    def infer(self) -> Sequence[Type]:
        numbers = self.consumer_registers, self.producer_registers
        given = all(0 < number <= MAX_REGISTERS and number % 8 == 0 for number in numbers)
        self.expect(given or not any(numbers), f"{numbers} registers")
        for nested in self.blocks:
            self.expect(not nested.args, "roles take no arguments")
            self.expect(not nested.terminator.operands, "roles return nothing")
        return ()


class ConsumerGroup(Op, opcode="gpu.consumer_group", pure=True, traits=(Trait.SOURCE,)):
    """The number of the group of consumers that runs this, an i32 from 0 on."""

    out: Value = result()

    def infer(self) -> Sequence[Type]:
        return (I32,)

"""Warp specialization: consumer warps compute, a producer warp issues their loads.

This is gpu IR. The *consumers* are the first `num_warps` warps of the CTA and run the kernel as it
is written; layouts and thread ids refer to them. There may be several consumer groups of
`num_warps` warps: they run the same ops, each with its own buffers and barriers. The *producer* is
one thread of the warps after them, or all their threads where these copy (`thread_copy`).

The producer runs the slice of the kernel that its loads depend on, and issues them as many stages
ahead as their rings have. The roles synchronize through mbarriers only: a load completes on `full`,
and the consumers arrive at `empty` once they have read the stage.

Invariant: neither role has a CTA-wide barrier; barriers of the consumers span the consumers only.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Block, Op, Value, attribute, block, result
from aotc.ir.dialects import thread_copy
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
    """Run `consumers` in the kernel's warps and, concurrently, `producer` in later warps.

    Registers per thread are reallocated between the roles, unless 0.
    """

    consumers: Block = block()
    producer: Block = block()
    consumer_registers: int = attribute(default=0)
    producer_registers: int = attribute(default=0)

    def infer(self) -> Sequence[Type]:
        numbers = self.consumer_registers, self.producer_registers
        are_legal = all(0 < number <= MAX_REGISTERS and number % 8 == 0 for number in numbers)
        self.expect(are_legal or not any(numbers), f"{numbers} registers")
        for nested in self.blocks:
            self.expect(not nested.args, "roles take no arguments")
            self.expect(not nested.terminator.operands, "roles return nothing")
        return ()


def copies_by_threads(op: Specialize) -> bool:
    """Return whether all warps of the producer run it, because their threads copy."""
    return any(isinstance(nested, thread_copy.ThreadLoad) for nested in op.producer.walk())


def num_thread_copies(producer: Block) -> int:
    """Return how many copies each thread of a producer makes in an iteration, of the loop with the most."""
    counts = dict[Block | None, int]()
    for nested in producer.walk():
        if isinstance(nested, thread_copy.ThreadLoad):
            counts[nested.block] = counts.get(nested.block, 0) + nested.num_copies
    return max(counts.values(), default=0)


class Beside(
    Op,
    opcode="gpu.beside",
    effects=(
        orders(Resource.GLOBAL),
        orders(Resource.SHARED),
    ),
):
    """Run `body` in the producer's second warp, concurrently with the first.

    It is the first op of a producer with several warps.
    """

    body: Block = block()

    def infer(self) -> Sequence[Type]:
        self.expect(not self.body.args, "a role takes no arguments")
        self.expect(not self.body.terminator.operands, "a role returns nothing")
        return ()


class ConsumerGroup(Op, opcode="gpu.consumer_group", pure=True, traits=(Trait.SOURCE,)):
    """Return the index of the running consumer group, an i32."""

    out: Value = result()

    def infer(self) -> Sequence[Type]:
        return (I32,)

"""Templates and slots of tensor maps made by a kernel because no launch can describe them.

A map is built in shared memory, the template, and published to a slot in global memory for copies.
Every CTA has a slot for each op that makes a map, in the scratch memory passed by the launcher. An
op in a loop has as many slots as maps may be made ahead of their use.

Invariant: no two CTAs of a launch, and no two ops, use one slot.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.dialects import arith, gpu, grid, tile
from aotc.ir.dialects.descriptor import DescriptorOf
from aotc.ir.effects import Trait
from aotc.ir.params import SCRATCH_ALIGNMENT_BYTES, SCRATCH_SOURCE, ParamInfo
from aotc.ir.rewrite import Builder
from aotc.ir.types import I32, I64, U64, PointerType
from aotc.schedule.layout.layouts import row_major_shared

SLOTS_IN_LOOPS = 4
"""How many maps of an op are there at a time: the one in use, and those made ahead."""

_MAP_BYTES = 128
_MAP_WORDS = _MAP_BYTES // U64.size_bytes


def allocate_slots(kernel: Kernel) -> Sequence[Op]:
    """Return the ops that make maps; if there are any, give the kernel scratch memory for them."""
    makers = [op for op in kernel.walk() if isinstance(op, DescriptorOf)]
    if makers:
        kernel.scratch_bytes = _MAP_BYTES * sum(map(num_slots, makers)) * kernel.num_ctas
        name = "scratch.maps"
        kernel.body.add_arg(PointerType(U64), name)
        kernel.params += (ParamInfo(name, SCRATCH_ALIGNMENT_BYTES, SCRATCH_SOURCE),)
    return makers


def num_slots(maker: Op) -> int:
    """Return the number of slots of an op that makes a map."""
    return SLOTS_IN_LOOPS if any(op.has(Trait.LOOP) for op in maker.ancestors()) else 1


def slot_at(first: Value, index: Value, builder: Builder) -> Value:
    """Return the address of a slot, some slots after the first one of an op."""
    words = builder(arith.Constant(_MAP_WORDS, I32)).out
    return builder(arith.AddPtr(first, builder(arith.Mul(index, words)).out)).out


def slot_addresses(
    body: Block, makers: Sequence[Op], num_ctas: int, builder: Builder
) -> list[Value]:
    """Return the addresses of the first slot of each op; the last parameter is the scratch memory.

    A program instance is one of `num_ctas` CTAs of a cluster.
    """
    if not makers:
        return []
    starts = [sum(map(num_slots, makers[:index])) for index in range(len(makers) + 1)]
    number = _wide(builder, tile.ProgramId(2))
    for axis in (1, 0):
        row = builder(arith.Mul(number, _wide(builder, tile.NumPrograms(axis)))).out
        number = builder(arith.Add(row, _wide(builder, tile.ProgramId(axis)))).out
    if num_ctas > 1:
        first = builder(arith.Mul(number, builder(arith.Constant(num_ctas, I64)).out)).out
        rank = builder(arith.Cast(builder(grid.CtaRank()).out, I64)).out
        number = builder(arith.Add(first, rank)).out
    words = builder(arith.Constant(starts.pop() * _MAP_WORDS, I64)).out
    first = builder(arith.AddPtr(body.args[-1], builder(arith.Mul(number, words)).out)).out
    offsets = [builder(arith.Constant(index * _MAP_WORDS, I64)).out for index in starts]
    return [builder(arith.AddPtr(first, offset)).out for offset in offsets]


def _wide(builder: Builder, op: tile.ProgramId | tile.NumPrograms) -> Value:
    return builder(arith.Cast(builder(op).out, I64)).out


def map_template(builder: Builder) -> Value:
    """Allocate the shared memory for building a map."""
    shape = (_MAP_WORDS,)
    return builder(gpu.SharedAlloc(U64, shape, row_major_shared(shape), _MAP_BYTES)).out

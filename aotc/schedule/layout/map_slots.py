"""Where a kernel makes the tensor maps that no launch can describe: templates and slots.

A map is built in shared memory, the template, and published to a slot in global memory, which copies
read it from. Every CTA has a slot for each op that makes a map, in the scratch memory of the launch,
which the launcher passes. A map that a loop makes anew has one slot.

Invariant: no two CTAs of a launch, and no two ops, use one slot.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.dialects import arith, gpu, tile
from aotc.ir.dialects.descriptor import DescriptorOf
from aotc.ir.params import SCRATCH_ALIGNMENT_BYTES, SCRATCH_SOURCE, ParamInfo
from aotc.ir.rewrite import Builder
from aotc.ir.types import I64, U64, PointerType
from aotc.schedule.layout.layouts import row_major_shared

_MAP_BYTES = 128
_MAP_WORDS = _MAP_BYTES // U64.size_bytes


def allocate_slots(kernel: Kernel) -> Sequence[Op]:
    """Return the ops that make maps; if there are any, give the kernel scratch memory for them."""
    makers = [op for op in kernel.walk() if isinstance(op, DescriptorOf)]
    if makers:
        kernel.scratch_bytes = _MAP_BYTES * len(makers)
        name = "scratch.maps"
        kernel.body.add_arg(PointerType(U64), name)
        kernel.params += (ParamInfo(name, SCRATCH_ALIGNMENT_BYTES, SCRATCH_SOURCE),)
    return makers


def slot_addresses(body: Block, count: int, place: Builder) -> list[Value]:
    """Return the addresses of a CTA's slots; the last parameter is the scratch memory."""
    if count == 0:
        return []
    number = _wide(place, tile.ProgramId(2))
    for axis in (1, 0):
        row = place(arith.Mul(number, _wide(place, tile.NumPrograms(axis)))).out
        number = place(arith.Add(row, _wide(place, tile.ProgramId(axis)))).out
    words = place(arith.Constant(count * _MAP_WORDS, I64)).out
    first = place(arith.AddPtr(body.args[-1], place(arith.Mul(number, words)).out)).out
    offsets = [place(arith.Constant(index * _MAP_WORDS, I64)).out for index in range(count)]
    return [place(arith.AddPtr(first, offset)).out for offset in offsets]


def _wide(place: Builder, op: tile.ProgramId | tile.NumPrograms) -> Value:
    return place(arith.Cast(place(op).out, I64)).out


def map_template(place: Builder) -> Value:
    """Allocate the shared memory in which a map is built."""
    shape = (_MAP_WORDS,)
    return place(gpu.SharedAlloc(U64, shape, row_major_shared(shape), _MAP_BYTES)).out

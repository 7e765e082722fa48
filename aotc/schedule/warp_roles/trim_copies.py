"""Trim copies by the producer's threads, and their buffers, to the columns of B that dots use.

What `trim_operand_loads` does for boxes of tensor maps: a dot may use only the first columns of B (`trim_dot_columns`),
and the others are neither copied nor, if they are the end of the buffer, have memory there. Threads copy
so many columns at a time, one register of each; what is left of that is copied, too.

Invariant: what is not copied is not read, and what a buffer does not have is not written.
"""

from __future__ import annotations

from math import prod

from aotc.ir import gf2
from aotc.ir.core import Kernel, build
from aotc.ir.diagnostics import at
from aotc.ir.dialects import gpu, thread_copy, wgmma
from aotc.ir.layout import LinearLayout
from aotc.ir.rewrite import Builder
from aotc.ir.types import SharedType
from aotc.schedule.warp_roles.load_groups import buffers_of


def trim_copies(kernel: Kernel) -> None:
    """Trim the copies of all loops, before these have rings: buffers of one kind end at one place."""
    loads = [op for op in kernel.walk() if isinstance(op, thread_copy.SyncThreadLoad)]
    most: dict[SharedType, int] = {}
    for load in loads:
        kind = _kind_of(load)
        columns = _columns_copied(load)
        most[kind] = max(most.get(kind, 0), columns)
        load.num_columns = columns if columns < kind.shape[-1] else 0
    for load in loads:
        columns = most[_kind_of(load)]
        if columns < _kind_of(load).shape[-1] and _is_prefix(_kind_of(load).layout, columns):
            _shorten(load, columns)


def _kind_of(load: thread_copy.SyncThreadLoad) -> SharedType:
    assert isinstance(load.buffer.type, SharedType)
    return load.buffer.type


def _columns_copied(load: thread_copy.SyncThreadLoad) -> int:
    """Return how many columns threads copy at least, of those that are read."""
    whole = _kind_of(load).shape[-1]
    read = 0
    for op in load.buffer.users:
        if isinstance(op, wgmma.Wgmma) and op.a is not load.buffer:
            read = max(read, op.num_columns or whole)
        elif op is not load:
            return whole
    step = thread_copy.column_step(load.pointer.type)
    return min(whole, -(-read // step) * step)


def _is_prefix(layout: LinearLayout, columns: int) -> bool:
    """Return whether the first columns of a buffer are the first bytes of it."""
    offsets = gf2.Span(layout.columns("offset"))
    column_elems = prod(layout.shape[:-1])
    zeros = [0] * (len(layout.shape) - 1)
    bits = range((columns & -columns).bit_length() - 1, columns.bit_length())
    return all(
        offsets.solve(layout.pack((*zeros, 1 << bit))) == column_elems << bit for bit in bits
    )


def _shorten(load: thread_copy.SyncThreadLoad, columns: int) -> None:
    alloc, kind = buffers_of(load), _kind_of(load)
    column_bytes = prod(kind.shape[:-1]) * kind.element.size_bytes
    attributes = {**alloc.attributes, "unused_bytes": (kind.shape[-1] - columns) * column_bytes}
    with at(alloc.loc):
        alloc.replace_with(
            Builder.before_op(alloc)(build(gpu.SharedAlloc, (), attributes, (), alloc.loc)).results
        )

"""Trim tensor loads and buffers of B to the rows that dots use.

Where only dots read a loaded tile, and only its first rows, because those are the columns of
B that are used (`trim_dot_columns`), the tensor map's box has so many rows. If the unused
rows are the end of the buffer, the buffer ends before them, so that a ring has room for
more stages.

Invariant: what is not loaded is not read, and what a buffer does not have is not written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from aotc.ir import gf2
from aotc.ir.core import Kernel, Op, Value, build
from aotc.ir.diagnostics import at
from aotc.ir.dialects import gpu, tma, wgmma
from aotc.ir.layout import LinearLayout
from aotc.ir.rewrite import Builder
from aotc.ir.types import SharedType, TensorMapType
from aotc.ir.wgmma_tiling import SWIZZLE_PERIOD_BYTES
from aotc.schedule.context import Schedule

_MAX_BOX_ROWS = 256
_TURNED = (1, 0)


def trim_operand_loads(kernel: Kernel, schedule: Schedule) -> None:
    """Shorten boxes and buffers; see the module docstring."""
    del schedule
    for tensor in kernel.body.args:
        kind = tensor.type
        if not isinstance(kind, TensorMapType):
            continue
        loads = [op for op in tensor.users if isinstance(op, tma.SyncTmaLoad)]
        if not loads or len(loads) != len(tensor.users):
            continue
        num_rows = max(_rows_read(load) for load in loads)
        box = _box_of(kind, loads, num_rows)
        if box is None:
            continue
        tensor.type = replace(kind, box=box)
        for load in loads:
            load.num_rows = num_rows
            _shorten(load.buffer, num_rows)


def _box_of(
    kind: TensorMapType, loads: Sequence[tma.SyncTmaLoad], num_rows: int
) -> tuple[int, ...] | None:
    """Return a box that loads only so many rows, or as many times as it takes, or None if there is none."""
    num_parts = max(load.num_parts for load in loads)
    rows, rest = divmod(num_rows, num_parts)
    rows, more = divmod(rows, -(-rows // _MAX_BOX_ROWS))
    box = (rows, *kind.box[1:])
    whole_periods = prod(box) * kind.element.size_bytes % SWIZZLE_PERIOD_BYTES == 0
    shorter = all(num_rows < _tile_of(load).shape[0] for load in loads)
    return box if shorter and not rest and not more and whole_periods else None


def _tile_of(load: tma.SyncTmaLoad) -> SharedType:
    assert isinstance(load.buffer.type, SharedType)
    return load.buffer.type


def _rows_read(load: tma.SyncTmaLoad) -> int:
    """Return how many of a tile's rows are read: all, if others than dots read it."""
    kind = _tile_of(load)
    if len(kind.shape) != len(_TURNED) or len(load.coords) != len(_TURNED):
        return kind.shape[0]
    readers = [user for user in load.buffer.users if user is not load]
    rows = [rows for reader in readers for rows in _rows_read_by(reader, kind.shape[0])]
    return max(rows, default=kind.shape[0])


def _rows_read_by(reader: Op, num_rows: int) -> Iterator[int]:
    """Yield how many of `num_rows` an op, or each dot that uses its result, reads of a buffer."""
    if not isinstance(reader, gpu.SharedTrans) or reader.order != _TURNED:
        yield num_rows
        return
    for op in reader.out.users:
        if isinstance(op, wgmma.Wgmma) and op.a is not reader.out:
            yield op.num_columns or num_rows
        else:
            yield num_rows


def _shorten(buffer: Value, num_rows: int) -> None:
    """End a buffer after its first rows, if the unused ones come last."""
    alloc, kind = buffer.op, buffer.type
    assert isinstance(alloc, gpu.SharedAlloc)
    assert isinstance(kind, SharedType)
    if not _is_by_rows(kind.layout, num_rows):
        return
    row_bytes = prod(kind.shape[1:]) * kind.element.size_bytes
    unused_bytes = (kind.shape[0] - num_rows) * row_bytes
    attributes = {**alloc.attributes, "unused_bytes": unused_bytes}
    with at(alloc.loc):
        short = Builder.before_op(alloc)(build(gpu.SharedAlloc, (), attributes, (), alloc.loc))
    users = list(buffer.users)
    alloc.replace_with(short.results)
    for user in users:
        if isinstance(user, gpu.SharedTrans):
            user.replace_with(
                [Builder.before_op(user)(gpu.SharedTrans(user.buffer, user.order)).out]
            )


def _is_by_rows(layout: LinearLayout, num_rows: int) -> bool:
    """Return whether the first rows are a contiguous prefix of the buffer.

    That is so if each bit of a row's index, down to the lowest set bit of `num_rows`, is an offset
    of as many elements as all rows before it take.
    """
    offsets = gf2.Span(layout.columns("offset"))
    row_elems = prod(layout.shape[1:])
    bits = range(num_rows.bit_length() - 1, -1, -1)
    last = num_rows & -num_rows
    return all(
        offsets.solve(layout.pack((1 << bit, *(0 for _ in layout.shape[1:])))) == row_elems << bit
        for bit in bits
        if 1 << bit >= last
    )

"""Trim tensor loads and buffers of B to the rows that dots use.

Where only dots read a loaded tile, and only its first rows, because those are the columns of
B that are used (`trim_dot_columns`), the tensor map's box has so many rows. Where loads of one map
use different numbers of rows, as those of branches for each width of a tile, each takes as many
boxes as it needs. If the unused rows are the end of the buffer, the buffer ends before them, so that
a ring has room for more stages.

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
# Of a box that is one of several for a tile: each is an instruction of the producer, and a request of its own.
_MIN_BOX_BYTES = 4096
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
        rows = [_rows_read(load) for load in loads]
        box = _box_of(kind, loads, rows)
        if box is None:
            continue
        tensor.type = replace(kind, box=box)
        for load, read in zip(loads, rows, strict=True):
            load.num_rows = _whole_boxes(read, box[0] * load.num_parts)
            _shorten(load.buffer, max(rows))


def _box_of(
    kind: TensorMapType, loads: Sequence[tma.SyncTmaLoad], rows: Sequence[int]
) -> tuple[int, ...] | None:
    """Return a box by which loads take so many rows each, or hardly more, or None if there is none.

    The largest box is best where all take as many; else one that leaves out more, unless it is too small.
    """
    if any(max(rows) >= _tile_of(load).shape[0] for load in loads):
        return None
    num_parts = max(load.num_parts for load in loads)
    part_rows, rest = divmod(max(rows), num_parts)
    fewest = -(-part_rows // _MAX_BOX_ROWS)
    row_bytes = prod(kind.box[1:]) * kind.element.size_bytes
    counts = [fewest] if len(set(rows)) == 1 else range(fewest, part_rows + 1)
    sizes = [
        part_rows // count
        for count in counts
        if part_rows % count == 0
        and part_rows // count * row_bytes % SWIZZLE_PERIOD_BYTES == 0
        and (count == fewest or part_rows // count * row_bytes >= _MIN_BOX_BYTES)
    ]
    if rest or not sizes:
        return None
    loaded = [sum(_whole_boxes(read, size * num_parts) for read in rows) for size in sizes]
    return (sizes[loaded.index(min(loaded))], *kind.box[1:])


def _whole_boxes(rows: int, box_rows: int) -> int:
    """Return how many rows the fewest boxes have that hold `rows`."""
    return -(-rows // box_rows) * box_rows


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
        made = Builder.before_op(alloc)(build(gpu.SharedAlloc, (), attributes, (), alloc.loc))
    users = list(buffer.users)
    alloc.replace_with(made.results)
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
    places = gf2.Span(layout.columns("offset"))
    row_elems = prod(layout.shape[1:])
    bits = range(num_rows.bit_length() - 1, -1, -1)
    last = num_rows & -num_rows
    return all(
        places.solve(layout.pack((1 << bit, *(0 for _ in layout.shape[1:])))) == row_elems << bit
        for bit in bits
        if 1 << bit >= last
    )

"""Copies by the threads of a producer, for tiles with computed addresses such as gathered rows.

This is gpu IR. A tensor map has no box for rows at arbitrary places, so threads copy them, each its
pieces of 4 to 16 bytes by `cp.async`. A `ThreadLoad` completes on a mbarrier like a TMA load does,
but each thread of the role arrives there, when its copies have landed. They land through the
generic proxy: a consumer of a dot fences after the wait.

Invariant: between the issue of a copy and the wait for it, no thread touches its buffer.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Op, Value, attribute, operand
from aotc.ir.dialects.mbarrier import check_mbarrier, one_stage_type
from aotc.ir.dialects.tile import check_access
from aotc.ir.effects import Resource, reads, starts, writes
from aotc.ir.types import TileType, Type

_COPY_BYTES = (4, 8, 16)


def _check_copy(
    op: Op, pointer: Value, buffer: Value, mask: Value | None, vector: int, num_columns: int
) -> None:
    content, memory = check_access(op, pointer, mask, None), one_stage_type(op, buffer)
    fits = isinstance(content, TileType) and (content.shape, content.element) == (
        memory.shape,
        memory.element,
    )
    op.expect(fits, f"copies {content} to {memory}")
    size_bytes = vector * memory.element.size_bytes
    op.expect(size_bytes in _COPY_BYTES, f"copies {size_bytes} bytes at a time")
    if num_columns:
        step = column_step(content)
        fits = num_columns < memory.shape[-1] and num_columns % step == 0
        op.expect(fits, f"copies {num_columns} columns of {memory}, {step} at a time")


def column_step(content: Type) -> int:
    """Return how many columns, at a multiple of as many, all threads hold with one register of each, or more."""
    assert isinstance(content, TileType)
    if content.layout is None:
        return content.shape[-1]
    layout, columns = content.layout, 0
    for dim in layout.in_dims:
        for column in layout.columns(dim) if dim != "register" else ():
            columns |= layout.unpack(column)[-1]
    return 1 << columns.bit_length()


class SyncThreadLoad(
    Op,
    opcode="gpu.sync_thread_load",
    effects=(
        reads(Resource.GLOBAL, of="pointer"),
        writes(Resource.SHARED, of="buffer"),
    ),
):
    """Copy a tile to shared memory, `vector` elements an access, and wait for it.

    Pointers, mask and accesses are as for `gpu.async_copy`. `num_columns`, unless 0, limits the
    copy to the first columns of the last axis. Only a producer issues it ahead.
    """

    pointer: Value = operand()
    buffer: Value = operand()
    mask: Value | None = operand(default=None)
    vector: int = attribute(default=1)
    cache: str = attribute(default="")
    eviction: str = attribute(default="")
    prefetch_bytes: int = attribute(default=0)
    num_columns: int = attribute(default=0)

    num_parts = 1

    def infer(self) -> Sequence[Type]:
        _check_copy(self, self.pointer, self.buffer, self.mask, self.vector, self.num_columns)
        return ()

    @property
    def inputs(self) -> list[Value]:
        """The pointers, and the mask if any."""
        return [self.pointer] if self.mask is None else [self.pointer, self.mask]

    def as_async_load(
        self, inputs: Sequence[Value], buffer: Value, barrier: Value, *, arrive: bool
    ) -> ThreadLoad:
        """Return the asynchronous load of other `inputs` to another buffer; every thread arrives."""
        del arrive
        pointer, *masks = inputs
        return ThreadLoad(
            pointer,
            buffer,
            barrier,
            masks[0] if masks else None,
            vector=self.vector,
            cache=self.cache,
            eviction=self.eviction,
            prefetch_bytes=self.prefetch_bytes,
            num_columns=self.num_columns,
        )


class ThreadLoad(
    Op,
    opcode="gpu.thread_load",
    effects=(
        reads(Resource.GLOBAL, of="pointer"),
        writes(Resource.SHARED, of="buffer"),
        writes(Resource.MBARRIER, of="barrier"),
        starts(Resource.MBARRIER, of="barrier"),
    ),
):
    """Issue the copy of a tile to shared memory by all threads of the producer.

    Each thread arrives at `barrier` once its copies have landed. Otherwise it is as `gpu.sync_thread_load`.
    """

    pointer: Value = operand()
    buffer: Value = operand()
    barrier: Value = operand()
    mask: Value | None = operand(default=None)
    vector: int = attribute(default=1)
    cache: str = attribute(default="")
    eviction: str = attribute(default="")
    prefetch_bytes: int = attribute(default=0)
    num_columns: int = attribute(default=0)

    def infer(self) -> Sequence[Type]:
        _check_copy(self, self.pointer, self.buffer, self.mask, self.vector, self.num_columns)
        check_mbarrier(self, self.barrier)
        return ()

    @property
    def num_copies(self) -> int:
        """Number of copies per thread."""
        kind = self.pointer.type
        assert isinstance(kind, TileType)
        assert kind.layout is not None
        repeated = kind.layout.zero_mask("register").bit_count()
        copies = (kind.layout.in_size("register") >> repeated) // self.vector
        return max(1, copies * (self.num_columns or kind.shape[-1]) // kind.shape[-1])

    def leaves_out(self, register: int) -> bool:
        """Return whether all threads skip this register: its column is not copied."""
        kind = self.pointer.type
        assert isinstance(kind, TileType)
        assert kind.layout is not None
        column = kind.layout.coords_table("register")[register][-1]
        return bool(self.num_columns) and column >= self.num_columns

    @property
    def num_threads(self) -> int:
        """Number of threads that issue copies and arrive."""
        kind = self.pointer.type
        assert isinstance(kind, TileType)
        assert kind.layout is not None
        return kind.layout.in_size("lane") * kind.layout.in_size("warp")

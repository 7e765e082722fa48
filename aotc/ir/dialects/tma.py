"""TMA: bulk tensor copies between global and shared memory.

This is gpu IR. One thread of the CTA issues a copy of a tile, in as many boxes as its tensor map
needs. A load completes on a mbarrier (`mbarrier.py`); a store completes a bulk group of the thread
that issued it. All other threads wait at the mbarrier, or at a barrier reached by the issuing
thread after its own wait.

TMA accesses shared memory through the async proxy: a copy may read or overwrite data written by
threads only after a `gpu.proxy_fence` of each writer.

A bulk copy moves contiguous bytes and needs no tensor map. `SyncLoad` names the loads of both kinds
that wait for themselves, `StagedStore` the stores that also write their buffer and wait. Passes
keep these whole until the places of issue and wait are known.

Invariant: between the issue of a copy and the wait for it, no thread touches its buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar, Literal

from aotc.ir.core import Op, Value, attribute, operand, operands, result
from aotc.ir.dialects.descriptor import ReduceKind, supports_reduce
from aotc.ir.dialects.mbarrier import check_mbarrier, one_stage_type
from aotc.ir.dialects.thread_copy import SyncThreadLoad
from aotc.ir.effects import Resource, orders, reads, starts, writes
from aotc.ir.types import (
    I32,
    I64,
    U64,
    PointerType,
    SharedType,
    TensorMapType,
    TileType,
    Type,
    element_of,
)

MAX_BOX_ELEMS = 256
"""The largest extent of a box along an axis."""


def copied_shape(memory: SharedType, num_rows: int) -> tuple[int, ...]:
    """Return the shape of a copy to or from a buffer: its first `num_rows` rows, or all."""
    return (num_rows or memory.shape[0], *memory.shape[1:])


def box_in_buffer(kind: TensorMapType, rank: int) -> tuple[int, ...]:
    """Return the extents of a box in a buffer of so many axes: its first axes are one there."""
    lacking = len(kind.box) - rank
    return (prod(kind.box[: lacking + 1]), *kind.box[lacking + 1 :])


def check_tensor(
    op: Op, tensor: Value, buffer: Value, coords: Sequence[Value], num_rows: int = 0
) -> TensorMapType:
    """Check a copy of the tile at `coords` from or to `buffer`; return the tensor map's type.

    The buffer may lack first axes of the map. Those with a box of more than one element merge into
    the buffer's first axis, which is not its last, and the box spans them. Of the buffer's first
    axis only `num_rows` are copied, unless that is 0.
    """
    kind, memory = tensor.type, one_stage_type(op, buffer)
    if not isinstance(kind, TensorMapType):
        op.error(f"expected a tensor map, got {kind}")
    lacking = len(kind.box) - len(memory.shape)
    fits = kind.element == memory.element and lacking >= 0
    # Messages with types are formatted only on failure: these checks run for each copy.
    if not 0 <= num_rows <= memory.shape[0]:
        op.error(f"{num_rows} rows of {memory}")
    copied = copied_shape(memory, num_rows)
    boxes = list(zip(copied, box_in_buffer(kind, len(copied)), strict=True)) if fits else []
    whole = fits and all(extent % box == 0 for extent, box in boxes)
    if whole and prod(kind.box[:lacking]) > 1:
        whole = len(boxes) > 1 and boxes[0][0] == boxes[0][1]
    if not whole:
        op.error(f"{memory} is not made of boxes of {kind}")
    types = [coord.type for coord in coords]
    if types != [I32] * len(kind.box):
        op.error(f"{kind} at ({', '.join(map(str, types))})")
    return kind


class TensorMapAt(
    Op, opcode="gpu.tensor_map_at", effects=(reads(Resource.TENSOR_MAP, of="pointer"),)
):
    """Acquire the tensor map at `pointer` for later copies by threads.

    It was written before the launch: 128 bytes at a multiple of 64.
    """

    pointer: Value = operand()
    type: TensorMapType = attribute()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        self.expect(isinstance(self.pointer.type, PointerType), f"a map at {self.pointer.type}")
        return (self.type,)


class MakeTensorMap(
    Op,
    opcode="gpu.make_tensor_map",
    effects=(
        writes(Resource.SHARED, of="template"),
        writes(Resource.TENSOR_MAP, of="slot"),
    ),
):
    """Make the tensor map of the tensor at `pointer`, for copies issued by one warp.

    `sizes` are its extents, i32 and at least 1, then the strides of all axes but the last, i64 in
    elements: the last axis is dense. The address and the strides are multiples of 16 bytes.

    The first warp of the role issues its copies. It builds the map in `template`, publishes it at
    `slot`, and acquires it. The template is 128 bytes of its own; the slot is 128 bytes of global
    memory at a multiple of 128, its own in the grid. Other warps do nothing. The copies that this
    warp issued with the previous map at `slot` have completed.
    """

    pointer: Value = operand()
    slot: Value = operand()
    template: Value = operand()
    sizes: Sequence[Value] = operands()
    type: TensorMapType = attribute()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        rank = len(self.type.box)
        fits = self.pointer.type == PointerType(self.type.element)
        self.expect(fits, f"a map of {self.type} at {self.pointer.type}")
        self.expect(isinstance(self.slot.type, PointerType), f"a slot at {self.slot.type}")
        memory = one_stage_type(self, self.template)
        self.expect((memory.element, memory.shape) == (U64, (16,)), f"a template in {memory}")
        types = [size.type for size in self.sizes]
        expected = [I32] * rank + [I64] * (rank - 1)
        self.expect(types == expected, f"{rank} axes of sizes ({', '.join(map(str, types))})")
        return (self.type,)

    @property
    def extents(self) -> list[Value]:
        """The number of elements along each axis."""
        return list(self.sizes[: len(self.type.box)])

    @property
    def strides(self) -> list[Value]:
        """Strides of all axes but the last."""
        return list(self.sizes[len(self.type.box) :])


class MadeTensorMap(
    Op, opcode="gpu.made_tensor_map", effects=(reads(Resource.TENSOR_MAP, of="slot"),)
):
    """Acquire the tensor map that another warp of the CTA has made at `slot`.

    It serves loads by the first warp of the role, or stores by the first warp of each warpgroup.
    All have waited for the warp that made it.
    """

    slot: Value = operand()
    type: TensorMapType = attribute()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        self.expect(isinstance(self.slot.type, PointerType), f"a slot at {self.slot.type}")
        return (self.type,)


class AcquiredTensorMap(Op, opcode="gpu.acquired_tensor_map", pure=True):
    """Return the tensor map at `slot`, which needs no acquiring.

    `gpu.made_tensor_map` has acquired it, or it is a parameter, at the i64 `slot`.
    """

    slot: Value = operand()
    type: TensorMapType = attribute()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        is_address = isinstance(self.slot.type, PointerType) or self.slot.type == I64
        self.expect(is_address, f"a slot at {self.slot.type}")
        return (self.type,)


class TensorMapAddress(Op, opcode="gpu.tensor_map_address", pure=True):
    """Return the address of a tensor map, a parameter."""

    tensor: Value = operand()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        self.expect(isinstance(self.tensor.type, TensorMapType), f"a map, not {self.tensor.type}")
        return (I64,)


class SyncTmaLoad(
    Op,
    opcode="gpu.sync_tma_load",
    effects=(
        reads(Resource.GLOBAL, of="tensor", proxy="async"),
        writes(Resource.SHARED, of="buffer", proxy="async"),
    ),
):
    """Load the tile of a tensor at `coords` to shared memory, and wait for it.

    `expand_tensor_loads` splits it into a `gpu.tma_load` and its wait. `eviction` is the L2
    eviction priority, as for `gpu.load`. All `num_parts` CTAs of a cluster load the same tile.
    `num_rows`, unless 0, limits the copy to the first rows of the first axis, and boxes need to
    divide only these.
    """

    tensor: Value = operand()
    buffer: Value = operand()
    coords: Sequence[Value] = operands()
    eviction: str = attribute(default="")
    num_parts: int = attribute(default=1)
    num_rows: int = attribute(default=0)

    def infer(self) -> Sequence[Type]:
        check_tensor(self, self.tensor, self.buffer, self.coords, self.num_rows)
        return ()

    @property
    def inputs(self) -> list[Value]:
        """The tensor map and the coordinates."""
        return [self.tensor, *self.coords]

    def as_async_load(
        self, inputs: Sequence[Value], buffer: Value, barrier: Value, *, arrive: bool
    ) -> TmaLoad:
        """Return the asynchronous load of other `inputs` to another buffer."""
        tensor, *coords = inputs
        return TmaLoad(
            tensor,
            buffer,
            barrier,
            coords,
            arrive=arrive,
            eviction=self.eviction,
            num_parts=self.num_parts,
            num_rows=self.num_rows,
        )


class TmaLoad(
    Op,
    opcode="gpu.tma_load",
    effects=(
        reads(Resource.GLOBAL, of="tensor", proxy="async"),
        writes(Resource.SHARED, of="buffer", proxy="async"),
        writes(Resource.MBARRIER, of="barrier"),
        starts(Resource.MBARRIER, of="barrier"),
    ),
):
    """Issue the load of the tile of a tensor at `coords` to shared memory.

    The issuing thread adds its bytes to the transaction count of `barrier` and, if `arrive`,
    arrives there. All threads see the tile in the buffer after waiting for this phase. With several
    `num_parts`, the CTAs of the cluster split the tile along its first axis, and each multicasts
    its part to the buffers and barriers of all. `num_rows` is as for `gpu.sync_tma_load`.
    """

    tensor: Value = operand()
    buffer: Value = operand()
    barrier: Value = operand()
    coords: Sequence[Value] = operands()
    arrive: bool = attribute(default=True)
    eviction: str = attribute(default="")
    num_parts: int = attribute(default=1)
    num_rows: int = attribute(default=0)

    def infer(self) -> Sequence[Type]:
        check_tensor(self, self.tensor, self.buffer, self.coords, self.num_rows)
        check_mbarrier(self, self.barrier)
        return ()


def _check_bytes(op: Op, pointer: Value, buffer: Value, size_bytes: Value) -> None:
    memory = one_stage_type(op, buffer)
    fits = pointer.type == PointerType(memory.element)
    op.expect(fits, f"copies between {pointer.type} and {memory}")
    op.expect(size_bytes.type == I32, f"the size is {size_bytes.type}, not i32")


def _check_kind(op: Op, kind: ReduceKind | Literal[""], buffer: Value) -> None:
    element = one_stage_type(op, buffer).element
    op.expect(not kind or supports_reduce(kind, element), f"no {kind} of {element}")


class SyncBulkLoad(
    Op,
    opcode="gpu.sync_bulk_load",
    effects=(
        reads(Resource.GLOBAL, of="pointer", proxy="async"),
        writes(Resource.SHARED, of="buffer", proxy="async"),
    ),
):
    """Copy `size_bytes` from `pointer` on to the start of a buffer, and wait for them.

    The address is a multiple of 16, and so is the size, which may be 0 and is at most the buffer's.
    The rest of the buffer is unchanged. Otherwise it is as `gpu.sync_tma_load`.
    """

    pointer: Value = operand()
    buffer: Value = operand()
    size_bytes: Value = operand()
    eviction: str = attribute(default="")

    num_parts = 1

    def infer(self) -> Sequence[Type]:
        _check_bytes(self, self.pointer, self.buffer, self.size_bytes)
        return ()

    @property
    def inputs(self) -> list[Value]:
        """The source address and the size."""
        return [self.pointer, self.size_bytes]

    def as_async_load(
        self, inputs: Sequence[Value], buffer: Value, barrier: Value, *, arrive: bool
    ) -> BulkLoad:
        """Return the asynchronous load of other `inputs` to another buffer."""
        pointer, size_bytes = inputs
        return BulkLoad(pointer, buffer, barrier, size_bytes, arrive=arrive, eviction=self.eviction)


class BulkLoad(
    Op,
    opcode="gpu.bulk_load",
    effects=(
        reads(Resource.GLOBAL, of="pointer", proxy="async"),
        writes(Resource.SHARED, of="buffer", proxy="async"),
        writes(Resource.MBARRIER, of="barrier"),
        starts(Resource.MBARRIER, of="barrier"),
    ),
):
    """Issue a copy of bytes to shared memory, with the alignment of `gpu.sync_bulk_load`.

    The issuing thread adds its bytes to `barrier` as for `gpu.tma_load`.
    """

    pointer: Value = operand()
    buffer: Value = operand()
    barrier: Value = operand()
    size_bytes: Value = operand()
    arrive: bool = attribute(default=True)
    eviction: str = attribute(default="")

    def infer(self) -> Sequence[Type]:
        _check_bytes(self, self.pointer, self.buffer, self.size_bytes)
        check_mbarrier(self, self.barrier)
        return ()


SyncLoad = SyncTmaLoad | SyncBulkLoad | SyncThreadLoad
"""Loads to shared memory, by TMA or by a producer's threads, which passes may issue stages ahead."""


def _check_issuers(op: Op, tensor: TensorMapType, buffer: Value, issuers: Sequence[int]) -> None:
    num_boxes = prod(one_stage_type(op, buffer).shape) // prod(tensor.box)
    op.expect(len(issuers) in (0, num_boxes), f"{len(issuers)} issuers of {num_boxes} boxes")


class TmaStore(
    Op,
    opcode="gpu.tma_store",
    effects=(
        reads(Resource.SHARED, of="buffer", proxy="async"),
        writes(Resource.GLOBAL, of="tensor", proxy="async"),
        starts(Resource.STORES),
    ),
):
    """Issue the store of a buffer to the tile of a tensor at `coords`: one bulk group.

    `issuers` are the warpgroups whose first threads start the copy of each box, in order from the
    last axis; without them the first thread of all starts every copy.
    """

    tensor: Value = operand()
    buffer: Value = operand()
    coords: Sequence[Value] = operands()
    issuers: tuple[int, ...] = attribute(default=())

    def infer(self) -> Sequence[Type]:
        kind = check_tensor(self, self.tensor, self.buffer, self.coords)
        _check_issuers(self, kind, self.buffer, self.issuers)
        return ()


class TmaReduce(
    Op,
    opcode="gpu.tma_reduce",
    effects=(
        reads(Resource.SHARED, of="buffer", proxy="async"),
        reads(Resource.GLOBAL, of="tensor", proxy="async"),
        writes(Resource.GLOBAL, of="tensor", proxy="async"),
        starts(Resource.STORES),
    ),
):
    """Issue the reduction of a buffer into the tile of a tensor at `coords`.

    Each element is updated atomically. Otherwise it is as `gpu.tma_store`.
    """

    tensor: Value = operand()
    buffer: Value = operand()
    coords: Sequence[Value] = operands()
    kind: ReduceKind = attribute()
    issuers: tuple[int, ...] = attribute(default=())

    def infer(self) -> Sequence[Type]:
        kind = check_tensor(self, self.tensor, self.buffer, self.coords)
        _check_issuers(self, kind, self.buffer, self.issuers)
        _check_kind(self, self.kind, self.buffer)
        return ()


TensorStore = TmaStore | TmaReduce
"""Stores and reductions to a tensor, which are issued box by box."""


class BulkStore(
    Op,
    opcode="gpu.bulk_store",
    effects=(
        reads(Resource.SHARED, of="buffer", proxy="async"),
        reads(Resource.GLOBAL, of="pointer", proxy="async", when="kind"),
        writes(Resource.GLOBAL, of="pointer", proxy="async"),
        starts(Resource.STORES),
    ),
):
    """Issue the copy of the first `size_bytes` of a buffer to `pointer` on: one bulk group.

    With a `kind` each element is combined with memory atomically. Address and size are aligned as
    for `gpu.sync_bulk_load`; waits are as for `gpu.tma_store`.
    """

    pointer: Value = operand()
    buffer: Value = operand()
    size_bytes: Value = operand()
    kind: ReduceKind | Literal[""] = attribute(default="")

    def infer(self) -> Sequence[Type]:
        _check_bytes(self, self.pointer, self.buffer, self.size_bytes)
        _check_kind(self, self.kind, self.buffer)
        return ()


class StagedTmaStore(
    Op,
    opcode="gpu.staged_tma_store",
    effects=(
        writes(Resource.SHARED, of="buffer", proxy="async"),
        reads(Resource.GLOBAL, of="tensor", proxy="async", when="kind"),
        writes(Resource.GLOBAL, of="tensor", proxy="async"),
        orders(Resource.GLOBAL, when="written"),
    ),
):
    """Write a tile to a buffer, store the buffer to a tensor's tile at `coords`, and wait.

    With a `kind` it is a reduction. The wait is for the buffer to have been read or, if `written`,
    for the tensor to have been written. It stands for a `gpu.shared_store`, a `gpu.tma_store` or
    `gpu.tma_reduce`, and a `gpu.tma_store_wait`.
    """

    tensor: Value = operand()
    value: Value = operand()
    buffer: Value = operand()
    coords: Sequence[Value] = operands()
    kind: ReduceKind | Literal[""] = attribute(default="")
    written: bool = attribute(default=False)

    def infer(self) -> Sequence[Type]:
        check_tensor(self, self.tensor, self.buffer, self.coords)
        _check_staged(self, self.value, self.buffer, self.kind)
        return ()

    def as_async_store(self, buffer: Value, coords: Sequence[Value]) -> TensorStore:
        """Return the asynchronous store of another buffer to other coordinates."""
        if self.kind:
            return TmaReduce(self.tensor, buffer, coords, kind=self.kind)
        return TmaStore(self.tensor, buffer, coords)


class StagedBulkStore(
    Op,
    opcode="gpu.staged_bulk_store",
    effects=(
        writes(Resource.SHARED, of="buffer", proxy="async"),
        reads(Resource.GLOBAL, of="pointer", proxy="async", when="kind"),
        writes(Resource.GLOBAL, of="pointer", proxy="async"),
    ),
):
    """Write a tile to a buffer, store its first `size_bytes` to `pointer` on, and wait for it.

    With a `kind` it is a reduction. It is to `gpu.bulk_store` as `gpu.staged_tma_store` is to `gpu.tma_store`.
    """

    pointer: Value = operand()
    value: Value = operand()
    buffer: Value = operand()
    size_bytes: Value = operand()
    kind: ReduceKind | Literal[""] = attribute(default="")

    coords: ClassVar[tuple[Value, ...]] = ()
    written: ClassVar[bool] = False

    def infer(self) -> Sequence[Type]:
        _check_bytes(self, self.pointer, self.buffer, self.size_bytes)
        _check_staged(self, self.value, self.buffer, self.kind)
        return ()

    def as_async_store(self, buffer: Value, coords: Sequence[Value]) -> BulkStore:
        """Return the asynchronous store of another buffer; there are no coordinates."""
        del coords
        return BulkStore(self.pointer, buffer, self.size_bytes, self.kind)


StagedStore = StagedTmaStore | StagedBulkStore
"""Stores by TMA through shared memory that wait for themselves."""


def _check_staged(op: Op, value: Value, buffer: Value, kind: ReduceKind | Literal[""]) -> None:
    _check_kind(op, kind, buffer)
    memory = one_stage_type(op, buffer)
    fits = isinstance(value.type, TileType) and value.type.shape == memory.shape
    op.expect(fits and element_of(value.type) == memory.element, f"{value.type} in {memory}")


class TmaStoreWait(
    Op,
    opcode="gpu.tma_store_wait",
    effects=(
        orders(Resource.STORES),
        orders(Resource.SHARED),
        orders(Resource.GLOBAL, when="written"),
    ),
):
    """Let issuing threads wait until at most their newest `pending` stores and reductions remain.

    It waits for them to have read shared memory or, if `written`, to have written the tensor.
    """

    pending: int = attribute(default=0)
    written: bool = attribute(default=False)

    def infer(self) -> Sequence[Type]:
        self.expect(self.pending >= 0, f"{self.pending} pending stores")
        return ()


class TmaBufferWait(
    Op,
    opcode="gpu.tma_buffer_wait",
    effects=(orders(Resource.STORES), orders(Resource.SHARED)),
):
    """Let issuing threads wait for stores: at most `pending` remain, none from `buffer`.

    The pass that places it has counted the stores since the last one from `buffer`: branches around
    them are taken together.
    """

    buffer: Value = operand()
    pending: int = attribute(default=0)

    def infer(self) -> Sequence[Type]:
        one_stage_type(self, self.buffer)
        self.expect(self.pending >= 0, f"{self.pending} pending stores")
        return ()


class ProxyFence(
    Op,
    opcode="gpu.proxy_fence",
    effects=(
        orders(Resource.SHARED, proxy="async"),
        orders(Resource.GLOBAL, proxy="async", when="whole"),
    ),
):
    """Let TMA copies issued after the next barrier see each thread's writes.

    The fence is for shared memory, or for all memory if `whole`.
    """

    whole: bool = attribute(default=False)

"""Tensor copies between global and shared memory, and the barriers in memory that await them.

This is gpu IR. One thread of the block issues a copy and hardware does the rest: of a block of a
tensor, in as many boxes as its map needs. A load tells a *mbarrier* when its bytes have landed; a
store is awaited by the thread that issued it. All other threads know of a copy by waiting at the
mbarrier, or behind a barrier that the issuing thread reaches after its own wait.

Tensor copies see shared memory through a proxy of their own: what threads wrote before is there
for a copy to read, or to write over, only behind a `gpu.proxy_fence` of each writer.

A bulk copy moves bytes that lie one after the other, and needs no map. All else is as for blocks:
what both can do, `Fetch` names.

A mbarrier is a shared buffer of one u64, or a slot of several: a ring of them goes with a ring of
buffers, and the parity of a wait counts the turns of the ring.

Invariant: between the issue of a copy and the wait for it, nobody touches its buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from aotc.ir.core import Op, Value, attribute, operand, operands, result
from aotc.ir.dialects.descriptor import ReduceKind, supports_reduce
from aotc.ir.effects import Resource, orders, reads, starts, writes
from aotc.ir.types import I1, I32, U64, PointerType, SharedType, TensorMapType, Type

MBARRIER_BYTES = 8


def _buffer_type(op: Op, value: Value) -> SharedType:
    if not isinstance(value.type, SharedType) or value.type.num_slots != 1:
        op.error(f"expected a shared buffer of one slot, got {value.type}")
    return value.type


def _check_mbarrier(op: Op, value: Value) -> None:
    kind = _buffer_type(op, value)
    op.expect((kind.element, kind.shape) == (U64, (1,)), f"expected a mbarrier, got {kind}")


def copied_shape(memory: SharedType, num_rows: int) -> tuple[int, ...]:
    """Return the shape of what is copied to or from a buffer: with `num_rows`, so many only."""
    return (num_rows or memory.shape[0], *memory.shape[1:])


def check_tensor(
    op: Op, tensor: Value, buffer: Value, coords: Sequence[Value], num_rows: int = 0
) -> TensorMapType:
    """Check a copy of the block at `coords` from or to `buffer`; return the map's type.

    The buffer may lack first axes of the map, along which the box has one element. Of its first
    axis only `num_rows` are copied, unless that is 0.
    """
    kind, memory = tensor.type, _buffer_type(op, buffer)
    if not isinstance(kind, TensorMapType):
        op.error(f"expected a tensor map, got {kind}")
    lacking = len(kind.box) - len(memory.shape)
    fits = kind.element == memory.element and lacking >= 0 and prod(kind.box[:lacking]) == 1
    op.expect(0 <= num_rows <= memory.shape[0], f"{num_rows} rows of {memory}")
    copied = copied_shape(memory, num_rows)
    whole = fits and all(
        extent % box == 0 for extent, box in zip(copied, kind.box[lacking:], strict=True)
    )
    op.expect(whole, f"{memory} is not made of boxes of {kind}")
    given = [coord.type for coord in coords]
    op.expect(given == [I32] * len(kind.box), f"{kind} at ({', '.join(map(str, given))})")
    return kind


class TensorMapAt(
    Op, opcode="gpu.tensor_map_at", effects=(reads(Resource.TENSOR_MAP, of="pointer"),)
):
    """The map at `pointer`, which every thread may use from here on for copies that it issues.

    It was there before the launch: 128 bytes at a multiple of 64.
    """

    pointer: Value = operand()
    type: TensorMapType = attribute()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        self.expect(isinstance(self.pointer.type, PointerType), f"a map at {self.pointer.type}")
        return (self.type,)


class TmaFetch(
    Op,
    opcode="gpu.tma_fetch",
    effects=(
        reads(Resource.GLOBAL, of="tensor", proxy="async"),
        writes(Resource.SHARED, of="buffer", proxy="async"),
    ),
):
    """Copy the block of a tensor that begins at `coords` to shared memory, and wait for it.

    `expand_tensor_loads` makes a `gpu.tma_load` and its wait of it. `eviction` is a priority for the L2
    cache, as for `gpu.load`. All `num_parts` blocks of a cluster fetch the same. Of the first axis
    only the first `num_rows` are copied, in boxes that need not fit into the block otherwise; 0 is
    all of them.
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
        """What is copied, and where it begins."""
        return [self.tensor, *self.coords]

    def as_async_load(
        self, inputs: Sequence[Value], buffer: Value, barrier: Value, *, arrive: bool
    ) -> TmaLoad:
        """Return the op that starts this copy, of other `inputs` and to another buffer."""
        tensor, *coords = inputs
        return TmaLoad(
            *(tensor, buffer, barrier, coords),
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
    """Start to copy the block of a tensor that begins at `coords` to shared memory.

    The thread that issues the copy announces its bytes to `barrier` and, if `arrive`, arrives
    there. All threads find the block in the buffer once they have waited for that phase.
    With several `num_parts`, along the first axis, each block of the cluster copies its own to the
    buffers of all, whose barriers are told. `num_rows` is as for `gpu.tma_fetch`.
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
        _check_mbarrier(self, self.barrier)
        return ()


def _check_bytes(op: Op, pointer: Value, buffer: Value, size_bytes: Value) -> None:
    memory = _buffer_type(op, buffer)
    fits = pointer.type == PointerType(memory.element)
    op.expect(fits, f"copies between {pointer.type} and {memory}")
    op.expect(size_bytes.type == I32, f"the size is {size_bytes.type}, not i32")


class BulkFetch(
    Op,
    opcode="gpu.bulk_fetch",
    effects=(
        reads(Resource.GLOBAL, of="pointer", proxy="async"),
        writes(Resource.SHARED, of="buffer", proxy="async"),
    ),
):
    """Copy `size_bytes` from `pointer` on to the start of a buffer, and wait for them.

    The address is a multiple of 16, and so is the size, which may be 0 and is at most the buffer's;
    what is behind stays as it was. Otherwise it is as `gpu.tma_fetch`.
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
        """What is copied: from where on, and how much."""
        return [self.pointer, self.size_bytes]

    def as_async_load(
        self, inputs: Sequence[Value], buffer: Value, barrier: Value, *, arrive: bool
    ) -> BulkLoad:
        """Return the op that starts this copy, of other `inputs` and to another buffer."""
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
    """Start to copy bytes to shared memory, under the terms of `gpu.bulk_fetch`.

    The thread that issues the copy announces its bytes to `barrier` as for `gpu.tma_load`.
    """

    pointer: Value = operand()
    buffer: Value = operand()
    barrier: Value = operand()
    size_bytes: Value = operand()
    arrive: bool = attribute(default=True)
    eviction: str = attribute(default="")

    def infer(self) -> Sequence[Type]:
        _check_bytes(self, self.pointer, self.buffer, self.size_bytes)
        _check_mbarrier(self, self.barrier)
        return ()


Fetch = TmaFetch | BulkFetch
"""What is copied to shared memory by hardware, ahead of its use if that can be."""


def _check_issuers(op: Op, tensor: TensorMapType, buffer: Value, issuers: Sequence[int]) -> None:
    num_boxes = prod(_buffer_type(op, buffer).shape) // prod(tensor.box)
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
    """Start to copy a buffer to the block of a tensor that begins at `coords`: a group of its own.

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
    """Start to combine the block of a tensor that begins at `coords` with a buffer.

    Each element is updated in one step. Otherwise it is as `gpu.tma_store`.
    """

    tensor: Value = operand()
    buffer: Value = operand()
    coords: Sequence[Value] = operands()
    kind: ReduceKind = attribute()
    issuers: tuple[int, ...] = attribute(default=())

    def infer(self) -> Sequence[Type]:
        kind = check_tensor(self, self.tensor, self.buffer, self.coords)
        _check_issuers(self, kind, self.buffer, self.issuers)
        self.expect(supports_reduce(self.kind, kind.element), f"no {self.kind} of {kind.element}")
        return ()


class BulkStore(
    Op,
    opcode="gpu.bulk_store",
    effects=(
        reads(Resource.SHARED, of="buffer", proxy="async"),
        writes(Resource.GLOBAL, of="pointer", proxy="async"),
        starts(Resource.STORES),
    ),
):
    """Start to copy the first `size_bytes` of a buffer to `pointer` on: a group of its own.

    Address and size are under the terms of `gpu.bulk_fetch`; it is waited for as `gpu.tma_store`.
    """

    pointer: Value = operand()
    buffer: Value = operand()
    size_bytes: Value = operand()

    def infer(self) -> Sequence[Type]:
        _check_bytes(self, self.pointer, self.buffer, self.size_bytes)
        return ()


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


class ProxyFence(
    Op,
    opcode="gpu.proxy_fence",
    effects=(
        orders(Resource.SHARED, proxy="async"),
        orders(Resource.GLOBAL, proxy="async", when="whole"),
    ),
):
    """Let tensor copies issued behind the next barrier see what each thread has written.

    Of shared memory, or of all memory if `whole`.
    """

    whole: bool = attribute(default=False)


class MbarrierInit(
    Op, opcode="gpu.mbarrier_init", effects=(writes(Resource.MBARRIER, of="barrier"),)
):
    """Let one thread make a mbarrier whose phases end after `count` arrivals and their bytes.

    Of a ring, it makes every slot.
    """

    barrier: Value = operand()
    count: int = attribute(default=1)

    def infer(self) -> Sequence[Type]:
        kind = self.barrier.type
        fits = isinstance(kind, SharedType) and (kind.element, kind.shape) == (U64, (1,))
        self.expect(fits, f"expected mbarriers, got {kind}")
        self.expect(self.count > 0, f"{self.count} arrivals")
        return ()


class MbarrierWait(
    Op,
    opcode="gpu.mbarrier_wait",
    effects=(
        orders(Resource.MBARRIER, of="barrier"),
        orders(Resource.GLOBAL),
        orders(Resource.SHARED),
    ),
):
    """Let all threads wait for the end of the phase of this parity: an i32, 0 for the first."""

    barrier: Value = operand()
    parity: Value = operand()

    def infer(self) -> Sequence[Type]:
        _check_mbarrier(self, self.barrier)
        self.expect(self.parity.type == I32, f"the parity is {self.parity.type}, not i32")
        return ()


class MbarrierArrive(
    Op,
    opcode="gpu.mbarrier_arrive",
    effects=(
        writes(Resource.MBARRIER, of="barrier"),
        orders(Resource.GLOBAL),
        orders(Resource.SHARED),
    ),
):
    """Let each of the kernel's `count` warps arrive at a mbarrier, if `enabled`.

    With several `num_blocks` they arrive at that mbarrier of each block of the cluster.

    All that its threads read before comes before what those do who wait for the phase.
    """

    barrier: Value = operand()
    count: int = attribute()
    enabled: Value | None = operand(default=None)
    num_blocks: int = attribute(default=1)

    def infer(self) -> Sequence[Type]:
        _check_mbarrier(self, self.barrier)
        self.expect(self.count > 0, f"{self.count} arrivals")
        if self.enabled is not None:
            self.expect(self.enabled.type == I1, f"enabled is {self.enabled.type}")
        return ()

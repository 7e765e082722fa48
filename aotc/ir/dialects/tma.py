"""Tensor copies between global and shared memory, and the barriers in memory that await them.

This is gpu IR. One thread of the block issues a copy and hardware does the rest: of a block of a
tensor, in as many boxes as its map needs. A load tells a *mbarrier* when its bytes have landed; a
store is awaited by the thread that issued it. All other threads know of a copy by waiting at the
mbarrier, or behind a barrier that the issuing thread reaches after its own wait.

Tensor copies see shared memory through a proxy of their own: what threads wrote before is there
for a copy to read, or to write over, only behind a `gpu.proxy_fence` of each writer.

A mbarrier is a shared buffer of one u64, or a slot of several: a ring of them goes with a ring of
buffers, and the parity of a wait counts the turns of the ring.

Invariant: between the issue of a copy and the wait for it, nobody touches its buffer.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Op, Value, attribute, operand, operands
from aotc.ir.dialects.descriptor import ReduceKind, supports_reduce
from aotc.ir.types import I32, U64, SharedType, TensorMapType, Type

MBARRIER_BYTES = 8


def _buffer_type(op: Op, value: Value) -> SharedType:
    if not isinstance(value.type, SharedType) or value.type.num_slots != 1:
        op.error(f"expected a shared buffer of one slot, got {value.type}")
    return value.type


def _check_mbarrier(op: Op, value: Value) -> None:
    kind = _buffer_type(op, value)
    op.expect((kind.element, kind.shape) == (U64, (1,)), f"expected a mbarrier, got {kind}")


def check_tensor(op: Op, tensor: Value, buffer: Value, coords: Sequence[Value]) -> TensorMapType:
    """Check a copy of the block at `coords` from or to `buffer`; return the map's type."""
    kind, memory = tensor.type, _buffer_type(op, buffer)
    if not isinstance(kind, TensorMapType):
        op.error(f"expected a tensor map, got {kind}")
    fits = kind.element == memory.element and len(kind.box) == len(memory.shape)
    whole = fits and all(
        extent % box == 0 for extent, box in zip(memory.shape, kind.box, strict=True)
    )
    op.expect(whole, f"{memory} is not made of boxes of {kind}")
    given = [coord.type for coord in coords]
    op.expect(given == [I32] * len(kind.box), f"{kind} at ({', '.join(map(str, given))})")
    return kind


class TmaFetch(Op, opcode="gpu.tma_fetch", effect="readwrite"):
    """Copy the block of a tensor that begins at `coords` to shared memory, and wait for it.

    `expand_fetches` makes a `gpu.tma_load` and its wait of it. `eviction` is a priority for the L2
    cache, as for `gpu.load`.
    """

    tensor: Value = operand()
    buffer: Value = operand()
    coords: Sequence[Value] = operands()
    eviction: str = attribute(default="")

    def infer(self) -> Sequence[Type]:
        check_tensor(self, self.tensor, self.buffer, self.coords)
        return ()


class TmaLoad(Op, opcode="gpu.tma_load", effect="readwrite"):
    """Start to copy the block of a tensor that begins at `coords` to shared memory.

    The thread that issues the copy announces its bytes to `barrier` and, if `arrive`, arrives
    there. All threads find the block in the buffer once they have waited for that phase.
    """

    tensor: Value = operand()
    buffer: Value = operand()
    barrier: Value = operand()
    coords: Sequence[Value] = operands()
    arrive: bool = attribute(default=True)
    eviction: str = attribute(default="")

    def infer(self) -> Sequence[Type]:
        check_tensor(self, self.tensor, self.buffer, self.coords)
        _check_mbarrier(self, self.barrier)
        return ()


class TmaStore(Op, opcode="gpu.tma_store", effect="readwrite"):
    """Start to copy a buffer to the block of a tensor that begins at `coords`: a group of its own."""

    tensor: Value = operand()
    buffer: Value = operand()
    coords: Sequence[Value] = operands()

    def infer(self) -> Sequence[Type]:
        check_tensor(self, self.tensor, self.buffer, self.coords)
        return ()


class TmaReduce(Op, opcode="gpu.tma_reduce", effect="readwrite"):
    """Start to combine the block of a tensor that begins at `coords` with a buffer.

    Each element is updated in one step; the copy is a group of its own.
    """

    tensor: Value = operand()
    buffer: Value = operand()
    coords: Sequence[Value] = operands()
    kind: ReduceKind = attribute()

    def infer(self) -> Sequence[Type]:
        kind = check_tensor(self, self.tensor, self.buffer, self.coords)
        self.expect(supports_reduce(self.kind, kind.element), f"no {self.kind} of {kind.element}")
        return ()


class TmaStoreWait(Op, opcode="gpu.tma_store_wait", effect="readwrite"):
    """Let the issuing thread wait until at most its newest `pending` stores and reductions remain.

    It waits for them to have read shared memory or, if `written`, to have written the tensor.
    """

    pending: int = attribute(default=0)
    written: bool = attribute(default=False)

    def infer(self) -> Sequence[Type]:
        self.expect(self.pending >= 0, f"{self.pending} pending stores")
        return ()


class ProxyFence(Op, opcode="gpu.proxy_fence", effect="readwrite"):
    """Let tensor copies issued behind the next barrier see what each thread has written.

    Of shared memory, or of all memory if `whole`.
    """

    whole: bool = attribute(default=False)


class MbarrierInit(Op, opcode="gpu.mbarrier_init", effect="write"):
    """Let one thread make a mbarrier whose phases end after `count` arrivals and their bytes."""

    barrier: Value = operand()
    count: int = attribute(default=1)

    def infer(self) -> Sequence[Type]:
        _check_mbarrier(self, self.barrier)
        self.expect(self.count > 0, f"{self.count} arrivals")
        return ()


class MbarrierWait(Op, opcode="gpu.mbarrier_wait", effect="readwrite"):
    """Let all threads wait for the end of the phase of this parity: an i32, 0 for the first."""

    barrier: Value = operand()
    parity: Value = operand()

    def infer(self) -> Sequence[Type]:
        _check_mbarrier(self, self.barrier)
        self.expect(self.parity.type == I32, f"the parity is {self.parity.type}, not i32")
        return ()

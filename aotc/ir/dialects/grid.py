"""A CTA's place in its cluster, and programmatic dependent launch.

Under programmatic dependent launch a grid may start while the grid before it still runs. The
earlier grid's writes are visible only after `grid.wait`, placed by the kernel's author: a launch
without the overlap attribute waits anyway, and both ops then do nothing. They are the same in tile
IR and in gpu IR.

Invariant: no access to memory crosses a `grid.wait`, in either direction.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Block, Kernel, Op, Value, block, operand, operands, result, results
from aotc.ir.dialects import scf
from aotc.ir.effects import Resource, Trait, orders, reads, writes
from aotc.ir.types import FP32, I32, U32, U64, PointerType, ScalarType, SharedType, Type


class CtaRank(Op, opcode="grid.cta_rank", pure=True, traits=(Trait.SOURCE,)):
    """Return the rank of this CTA in its cluster, an i32."""

    out: Value = result()

    def infer(self) -> Sequence[Type]:
        return (I32,)


class ClusterBarrier(
    Op,
    opcode="grid.cluster_barrier",
    effects=(
        orders(Resource.GLOBAL),
        orders(Resource.SHARED),
    ),
    traits=(Trait.BARRIER,),
):
    """Wait for all threads of all CTAs of the cluster; their writes are then visible to all."""


class ClusterArrive(Op, opcode="grid.cluster_arrive", effects=(orders(Resource.SHARED),)):
    """Arrive at the barrier of the cluster without waiting there: `grid.cluster_wait` does.

    It is among the first ops of a kernel. Only mbarriers are initialized before it.
    """


class ClusterWait(Op, opcode="grid.cluster_wait", effects=(orders(Resource.SHARED),)):
    """Wait until all threads of the cluster have reached their `grid.cluster_arrive`.

    All CTAs have begun then, and their mbarriers are initialized. Accesses between the two ops are
    not ordered by them, and no other barrier of the cluster is there.
    """


class ClusterReduce(
    Op,
    opcode="grid.cluster_reduce",
    effects=(orders(Resource.SHARED),),
    traits=(Trait.BARRIER,),
):
    """Combine the scalars of all CTAs of the cluster, in the order of their ranks, as a tree.

    Every CTA has the result. `combine` is as in a `tile.reduce` over one element for each CTA.
    """

    inputs: Sequence[Value] = operands()
    combine: Block = block()
    outs: Sequence[Value] = results()

    def infer(self) -> Sequence[Type]:
        types = [value.type for value in self.inputs]
        fits = bool(types) and all(isinstance(kind, ScalarType) for kind in types)
        self.expect(fits, f"combines {', '.join(map(str, types))}")
        self.expect([arg.type for arg in self.combine.args] == types * 2, "wrong arguments")
        yielded = [value.type for value in self.combine.terminator.operands]
        self.expect(yielded == types, "combine yields the wrong types")
        return types


def exchanged_type(kind: ScalarType) -> ScalarType:
    """Return the type for storing a scalar to other CTAs, of 32 or 64 bits."""
    if kind.size_bytes >= 4:
        return kind
    return FP32 if kind.is_float else I32


def _is_exchanged(kind: Type) -> bool:
    return isinstance(kind, ScalarType) and exchanged_type(kind) == kind


def _takes_scalars(buffer: Type, scalar: Type) -> bool:
    """Return whether a buffer has one scalar of a type for each CTA."""
    return (
        isinstance(buffer, SharedType)
        and buffer.num_stages == 1
        and len(buffer.shape) == 1
        and buffer.element == scalar
        and _is_exchanged(buffer.element)
    )


class ClusterStore(Op, opcode="gpu.cluster_store", effects=(writes(Resource.SHARED, of="buffer"),)):
    """Store a scalar to this buffer of every CTA of the cluster, at the rank of the sender.

    A `grid.cluster_barrier` precedes it: all CTAs have begun and none uses the buffer any more.
    Another one follows, before the buffer is read and before any CTA ends.
    """

    value: Value = operand()
    buffer: Value = operand()

    def infer(self) -> Sequence[Type]:
        kind = self.buffer.type
        fits = _takes_scalars(kind, self.value.type)
        self.expect(fits, f"stores {self.value.type} to {kind}")
        return ()


class ClusterSend(
    Op,
    opcode="gpu.cluster_send",
    effects=(
        writes(Resource.SHARED, of="buffer"),
        writes(Resource.MBARRIER, of="barrier"),
    ),
):
    """Store a scalar to this buffer of every CTA as `gpu.cluster_store` does, asynchronously.

    Its bytes complete at this mbarrier of the receiver. A `grid.cluster_wait` precedes it. Nothing
    else is ever written to the buffer, and threads read it after a wait at the mbarrier. Each CTA
    waits there, so none ends before all it is sent has arrived.
    """

    value: Value = operand()
    buffer: Value = operand()
    barrier: Value = operand()

    def infer(self) -> Sequence[Type]:
        kind, barrier = self.buffer.type, self.barrier.type
        fits = _takes_scalars(kind, self.value.type)
        self.expect(fits, f"sends {self.value.type} to {kind}")
        is_barrier = (
            isinstance(barrier, SharedType)
            and barrier.num_stages == 1
            and (barrier.element, barrier.shape) == (U64, (1,))
        )
        self.expect(is_barrier, f"expected a mbarrier, got {barrier}")
        return ()


class GridBarrier(
    Op,
    opcode="grid.grid_barrier",
    effects=(
        reads(Resource.GLOBAL, of="pointer"),
        writes(Resource.GLOBAL, of="pointer"),
        orders(Resource.GLOBAL),
        orders(Resource.SHARED),
    ),
    traits=(Trait.BARRIER, Trait.ATOMIC),
):
    """Wait for all threads of all CTAs of the grid; their writes are then visible to all.

    CTAs count themselves in 32 bits of memory, 0 before the first barrier on it. The first CTA adds
    half of the range less the number of others, each of these adds 1. So a barrier flips the
    highest bit, once all have come, and leaves the others 0.
    """

    pointer: Value = operand()

    @property
    def sem(self) -> str:
        """Memory order of the update, as in the atomics."""
        return "acq_rel"

    def infer(self) -> Sequence[Type]:
        kind = self.pointer.type
        fits = isinstance(kind, PointerType) and kind.pointee in (I32, U32)
        self.expect(fits, f"counts at {kind}, which points at no i32")
        return ()


def arrivals(num_ctas: int, *, is_first: bool) -> int:
    """Return a CTA's addend to the counter of a barrier of `num_ctas` CTAs, modulo 2**32."""
    return (1 << 31) - (num_ctas - 1) if is_first else 1


class GridWait(
    Op,
    opcode="grid.wait",
    effects=(orders(Resource.GLOBAL),),
    traits=(Trait.DEPENDENT_LAUNCH,),
):
    """Wait until the grids before this one have ended and their writes are visible."""


class LaunchDependents(
    Op,
    opcode="grid.launch_dependents",
    effects=(writes(Resource.CONTROL),),
    traits=(Trait.DEPENDENT_LAUNCH,),
):
    """Let the next grid start once all programs have come here or ended; it may see no writes yet.

    The first of a program counts. Nothing is ordered by it, since the next grid's wait is for the
    end of this one.
    """


def always_waits(kernel: Kernel) -> bool:
    """Return whether every path through the kernel goes through a `grid.wait`."""
    return _waits(kernel.body)


def _waits(block: Block) -> bool:
    """Return whether every path through a block waits; a loop may run no iteration."""
    return any(
        isinstance(op, GridWait) or (isinstance(op, scf.If) and all(map(_waits, op.blocks)))
        for op in block
    )

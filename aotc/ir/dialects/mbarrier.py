"""Mbarriers: TMA loads complete on them, and warps and CTAs release buffers through them.

This is gpu IR. A mbarrier is a shared buffer of one u64, or one stage of several: a ring of
mbarriers goes with a ring of buffers. The parity of a wait is the number of passes through the
ring, modulo 2.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Op, Value, attribute, operand
from aotc.ir.effects import Resource, orders, writes
from aotc.ir.types import I1, I32, U64, SharedType, Type

MBARRIER_BYTES = 8


def one_stage_type(op: Op, value: Value) -> SharedType:
    """Return the type of a one-stage shared buffer. Raises: IRError for any other operand."""
    if not isinstance(value.type, SharedType) or value.type.num_stages != 1:
        op.error(f"expected a shared buffer of one stage, got {value.type}")
    return value.type


def check_mbarrier(op: Op, value: Value) -> None:
    """Check for a mbarrier. Raises: IRError for any other operand."""
    kind = one_stage_type(op, value)
    op.expect((kind.element, kind.shape) == (U64, (1,)), f"expected a mbarrier, got {kind}")


class MbarrierInit(
    Op, opcode="gpu.mbarrier_init", effects=(writes(Resource.MBARRIER, of="barrier"),)
):
    """Let one thread initialize a mbarrier: a phase ends after `count` arrivals and their bytes.

    All stages of a ring are initialized. With `expected_bytes` the thread also makes the one
    arrival of the first phase. This phase ends when so many bytes have come from the CTAs of the
    cluster.
    """

    barrier: Value = operand()
    count: int = attribute(default=1)
    expected_bytes: int = attribute(default=0)

    def infer(self) -> Sequence[Type]:
        kind = self.barrier.type
        fits = isinstance(kind, SharedType) and (kind.element, kind.shape) == (U64, (1,))
        self.expect(fits, f"expected mbarriers, got {kind}")
        self.expect(self.count > 0, f"{self.count} arrivals")
        alone = self.count == 1 and isinstance(kind, SharedType) and kind.num_stages == 1
        self.expect(not self.expected_bytes or alone, "bytes are expected by one arrival")
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
    """Let all threads wait for the phase of this parity to complete: an i32, 0 for the first.

    With a `warp_stride` each warp waits at a mbarrier of its own, this many after the one of the
    previous warp; `barrier` belongs to the first warp. With `by_issuer` only the warp that issues
    copies waits: a parity tells two phases apart, so only a warp that holds up the next phase may
    wait.
    """

    barrier: Value = operand()
    parity: Value = operand()
    warp_stride: int = attribute(default=0)
    by_issuer: bool = attribute(default=False)

    def infer(self) -> Sequence[Type]:
        check_mbarrier(self, self.barrier)
        self.expect(self.warp_stride >= 0, f"mbarriers of warps are {self.warp_stride} apart")
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
    """Let each of the role's `count` warps arrive at a mbarrier, if `enabled`.

    With several `num_ctas` they arrive at the mbarrier of each CTA of the cluster. A warp's earlier
    reads happen before anything threads do after waiting for the phase.
    """

    barrier: Value = operand()
    count: int = attribute()
    enabled: Value | None = operand(default=None)
    num_ctas: int = attribute(default=1)

    def infer(self) -> Sequence[Type]:
        check_mbarrier(self, self.barrier)
        self.expect(self.count > 0, f"{self.count} arrivals")
        if self.enabled is not None:
            self.expect(self.enabled.type == I1, f"enabled is {self.enabled.type}")
        return ()

"""Rings of mbarriers for multistage loads: full and empty barriers.

A ring of n buffers has n mbarriers `full`. The loads filling a stage complete on its `full`, and readers
wait there. If other warps than the readers refill it, readers arrive at the stage's `empty`, and the
producer waits there before it issues. If all warps run the same code, a barrier orders reads before the
next loads, and there is no `empty`.

A mbarrier goes through phases, and a wait names its phase by parity. The parity is a value of the program,
carried by every loop and branch around a wait (`ir.carried_state`). It has two forms:

- A *position* is a stage index and one parity. It continues across loops, and the parity flips as the
  index wraps. Roles running apart from each other keep one each.
- *Phase bits* are an i32 with a bit for each stage, the parity of its next wait. They are for loops
  beginning with stage 0 on each entry, so that stages are used unequally often.

Invariant: on every path, waits for a mbarrier have the parities 0, 1, 0, 1, …, those for `empty`
1, 0, 1, 0, …: all stages are empty at the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aotc.ir.carried_state import CarriedState, State
from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import arith, gpu, mbarrier, thread_copy, tma
from aotc.ir.effects import Trait
from aotc.ir.layout import LinearLayout
from aotc.ir.rewrite import Builder, is_inside
from aotc.ir.types import I32, U64

AsyncLoad = tma.TmaLoad | tma.BulkLoad | thread_copy.ThreadLoad

Load = tuple[tma.SyncLoad, Value, Sequence[Value]]
"""A tensor load, the buffer that an asynchronous one is to fill, and its inputs."""


@dataclass(frozen=True)
class RingPosition:
    """The current stage of a ring and the parity of its phase, both i32.

    If each consumer group owns stages, a group's begin with number `first`, and `index` counts from there.
    """

    index: Value
    parity: Value
    first: Value | None = None


class MbarrierRing:
    """Allocate and initialize mbarriers for `num_stages` stages, and emit their uses.

    A phase of `full` takes `arrivals` besides the bytes of its loads. A phase of `empty` takes one arrival of
    each of the `num_warps` reading a stage, in each of the `num_ctas` filling it together. Without such warps
    there is no `empty`. Each of `num_owners` consumer groups owns `num_stages`. `start` is the initial parity,
    or phase bits.
    """

    def __init__(
        self,
        builder: Builder,
        num_stages: int = 1,
        *,
        arrivals: int = 1,
        num_warps: int = 0,
        num_ctas: int = 1,
        num_owners: int = 1,
    ) -> None:
        self.num_stages = num_stages
        self.num_warps = num_warps
        self.num_ctas = num_ctas
        self.num_owners = num_owners
        self.full = _allocate(builder, num_stages * num_owners)
        self.empty = _allocate(builder, num_stages * num_owners) if num_warps else None
        builder(mbarrier.MbarrierInit(self.full, arrivals))
        if self.empty is not None:
            builder(mbarrier.MbarrierInit(self.empty, num_warps * num_ctas))
        self.start = builder(arith.Constant(0, I32)).out

    @classmethod
    def at_entry(cls, kernel: Kernel, num_stages: int) -> MbarrierRing:
        """Return a ring initialized at kernel entry, visible to all threads.

        Issues under branches need it: initializing in a branch would need a barrier there.
        """
        builder = Builder(kernel.body, kernel.body.first)
        ring = cls(builder, num_stages)
        builder(gpu.Barrier())
        return ring

    # -- stages ------------------------------------------------------------------

    def stage(
        self, buffers: Value, position: RingPosition, builder: Builder, *, before: int = 0
    ) -> Value:
        """Return the stage `before` stages behind the current one, of a ring of buffers or mbarriers."""
        if position.first is not None:
            return builder(
                gpu.SharedStage(buffers, self.stage_index(position, builder, before))
            ).out
        if self.num_stages == 1:
            return buffers
        return builder(gpu.SharedStage(buffers, position.index, -before % self.num_stages)).out

    def stage_index(self, position: RingPosition, builder: Builder, before: int = 0) -> Value:
        """Return the index of the stage `before` stages behind the current one."""
        index = position.index
        if before and self.num_stages > 1:
            index = builder(gpu.NextStage(index, self.num_stages, -before % self.num_stages)).out
        if position.first is None:
            return index
        if self.num_stages == 1:
            return position.first
        return builder(arith.Add(position.first, index)).out

    def first_stage(self, owner: Value, builder: Builder) -> Value | None:
        """Return the first stage owned by a consumer group, or None if all groups share them."""
        if self.num_owners == 1:
            return None
        return builder(arith.Mul(owner, builder(arith.Constant(self.num_stages, I32)).out)).out

    def next(self, position: RingPosition, builder: Builder) -> RingPosition:
        """Return the position after this one."""
        unit = builder(arith.Constant(1, I32)).out
        index, wraps = position.index, unit
        if self.num_stages > 1:
            index = builder(gpu.NextStage(index, self.num_stages)).out
            zero = builder(arith.Constant(0, I32)).out
            wraps = builder(arith.Cast(builder(arith.Compare(index, zero, "eq")).out, I32)).out
        parity = builder(arith.Xor(position.parity, wraps)).out
        return RingPosition(index, parity, position.first)

    # -- with a position ---------------------------------------------------------

    def fill(
        self,
        loads: Sequence[Load],
        position: RingPosition,
        builder: Builder,
        *,
        beside_copies: bool = False,
    ) -> list[AsyncLoad]:
        """Issue the loads of the current stage, once it is empty if readers release it.

        With `beside_copies` all warps of the producer run this. Threads that copy nothing to the stage must not
        wait: it can fill without them, and their phase may be long over.
        """
        if self.empty is not None:
            by_issuer = beside_copies and not any(map(_is_by_threads, loads))
            self.await_empty(position, builder, by_issuer=by_issuer)
        return _issue(loads, self.stage(self.full, position, builder), builder)

    def await_empty(
        self, position: RingPosition, builder: Builder, *, by_issuer: bool = False
    ) -> None:
        """Wait until the current stage is empty, with all threads or the warp issuing copies."""
        assert self.empty is not None
        unit = builder(arith.Constant(1, I32)).out
        # Stages are empty at the start, so the first wait is for the phase before the first.
        emptied = builder(arith.Xor(position.parity, unit)).out
        empty = self.stage(self.empty, position, builder)
        builder(mbarrier.MbarrierWait(empty, emptied, by_issuer=by_issuer))

    def await_full(self, position: RingPosition, builder: Builder) -> None:
        """Wait until the current stage is full."""
        builder(mbarrier.MbarrierWait(self.stage(self.full, position, builder), position.parity))

    def await_issued(self, position: RingPosition, builder: Builder) -> None:
        """Wait until all loads issued to the ring, if any, have completed.

        For a ring shared by all consumer groups. Stages before the current one were filled in this round, the
        others in the previous round.
        """
        unit = builder(arith.Constant(1, I32)).out
        before = builder(arith.Xor(position.parity, unit)).out
        for number in range(self.num_stages):
            parity, full = before, self.full
            if self.num_stages > 1:
                stage = builder(arith.Constant(number, I32)).out
                is_passed = builder(arith.Compare(stage, position.index, "lt")).out
                parity = builder(arith.Select(is_passed, position.parity, before)).out
                full = builder(gpu.SharedStage(self.full, stage)).out
            builder(mbarrier.MbarrierWait(full, parity))

    def release(
        self,
        position: RingPosition,
        builder: Builder,
        *,
        before: int = 0,
        enabled: Value | None = None,
    ) -> None:
        """Arrive at a stage's `empty` with every reading warp, if `enabled`; see `stage`."""
        assert self.empty is not None
        empty = self.stage(self.empty, position, builder, before=before)
        builder(mbarrier.MbarrierArrive(empty, self.num_warps, enabled, self.num_ctas))

    # -- with phase bits ---------------------------------------------------------

    def wait(self, index: Value, phases: Value, builder: Builder) -> Value:
        """Wait for the loads of a stage; return the phase bits after that."""
        unit = builder(arith.Constant(1, I32)).out
        parity = builder(arith.And(builder(arith.Shr(phases, index)).out, unit)).out
        builder(mbarrier.MbarrierWait(builder(gpu.SharedStage(self.full, index)).out, parity))
        return builder(arith.Xor(phases, builder(arith.Shl(unit, index)).out)).out


def _allocate(builder: Builder, num_stages: int) -> Value:
    """Allocate a ring of mbarriers and return it."""
    layout = LinearLayout.from_columns([("offset", [])], (("dim0", 0),))
    return builder(
        gpu.SharedAlloc(U64, (1,), layout, mbarrier.MBARRIER_BYTES, num_stages=num_stages)
    ).out


def _issue(loads: Sequence[Load], full: Value, builder: Builder) -> list[AsyncLoad]:
    """Issue loads completing on one mbarrier, with arrivals of the last TMA load and of copying threads.

    TMA loads are issued first: they take one thread a few instructions.
    """
    by_tma = [load for load in loads if not _is_by_threads(load)]
    by_threads = [load for load in loads if load not in by_tma]
    last = by_tma[-1][0] if by_tma else None
    return [
        builder(load.as_async_load(inputs, buffer, full, arrive=load is last))
        for load, buffer, inputs in (*by_tma, *by_threads)
    ]


def _is_by_threads(load: Load) -> bool:
    return isinstance(load[0], thread_copy.SyncThreadLoad)


# ---- phase bits through loops -----------------------------------------------------------------


def carry_phases(loop: Op, start: Value, end: Value) -> None:
    """Carry phase bits through all loops around `loop`, from `start` to `end`."""
    outer = [op for op in loop.ancestors() if op.has(Trait.LOOP)]
    if outer:
        _PhasesAround(loop, start, end).through(outer[-1], [start])


class _PhasesAround(CarriedState):
    """The phase bits of the loads of one loop."""

    def __init__(self, loop: Op, start: Value, end: Value) -> None:
        self.loop, self.start, self.end = loop, start, end

    def updated_by(self, op: Op, state: State) -> State | None:
        if op is not self.loop:
            return None
        op.replace_operand(self.start, state[0])
        return [self.end]

    def indices_in(self, op: Op) -> Sequence[int]:
        return (0,) if is_inside(self.loop, op) else ()

    def hint(self, index: int) -> str:
        del index
        return "phases"

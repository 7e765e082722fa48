"""Interpret mbarriers: phases, and the order of accesses they establish.

A phase ends with its last arrival and the bytes of its copies, which land at the wait for it.
The mark of the last arrival stands for all accesses before it: they happen before a producer's
wait returns.

Invariant: a wait returns if and only if the phase of its parity has ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aotc.ir.core import Op
from aotc.ir.dialects import mbarrier
from aotc.ir.types import SharedType
from aotc.verify.arrays import Array
from aotc.verify.interpreter.program import Program, Rule, scalar
from aotc.verify.interpreter.shared_memory import Transfer


@dataclass
class Mbarrier:
    """The arrivals of the current phase, and the number of completed `phases`.

    `transfers` are pending copies, each with its phase. `mark` is that of the last
    arrival in the newest completed phase; `teller` the arriving CTA, if not its own.
    `missing_bytes` are the expected bytes; negative if bytes came before they were expected.
    """

    count: int
    arrived: int = 0
    phases: int = 0
    mark: int = 0
    missing_bytes: int = 0
    teller: Program | None = None
    transfers: list[tuple[int, Transfer]] = field(default_factory=list[tuple[int, Transfer]])

    def arrive(self, number: int, mark: int, num_bytes: int = 0) -> bool:
        """Count arrivals, and expected bytes or, if negative, received ones.

        Returns whether the phase expects no fewer arrivals.
        """
        self.arrived += number
        self.missing_bytes += num_bytes
        if self.arrived >= self.count and self.missing_bytes == 0:
            fits, self.arrived = self.arrived == self.count, 0
            self.phases, self.mark = self.phases + 1, mark
            return fits
        return True

    def has_ended(self, parity: int) -> bool:
        """Return whether the phase of a parity has ended, the newest or the one before it."""
        return self.phases & 1 != parity


def announce(
    program: Program, op: Op, barrier: Array, transfer: Transfer, *, arrivals: int
) -> None:
    """Let a mbarrier's phase wait for a copy, and arrive there `arrivals` times."""
    state = find(program, op, barrier)
    state.transfers.append((state.phases, transfer))
    _arrive(program, op, state, arrivals)


def send(program: Program, op: Op, barrier: Array, address: int, value: Array) -> None:
    """Complete a peer's send at a mbarrier, whose first phase expects its bytes."""
    state = find(program, op, barrier)
    state.transfers.append((state.phases, program.shared.start_remote(address, value)))
    _arrive(program, op, state, value.dtype.itemsize)


def send_tile(
    program: Program,
    op: Op,
    barrier: Array,
    addresses: Array,
    value: Array,
    peer: Program,
    *,
    gives: bool = True,
    takes: bool = True,
) -> None:
    """Send a tile to the buffer of another CTA; this one's mbarrier expects as many bytes.

    A CTA may only receive, or only send. Raises: AccessError if the
    other CTA has not released the buffer.
    """
    if takes:
        find(program, op, barrier).arrive(1, program.shared.mark(), value.nbytes)
    if not gives:
        return
    state, mark = find(peer, op, barrier), program.told.get(peer.rank, 0)
    state.transfers.append((state.phases, peer.shared.start_sent(addresses, value, mark)))
    state.arrive(0, peer.shared.mark(), -value.nbytes)


def send_parts(program: Program, op: Op, barrier: Array, addresses: Array, value: Array) -> None:
    """Send each CTA of the cluster its part of a tile.

    This CTA's mbarrier expects a tile of as many bytes. Raises: AccessError if a CTA has
    accessed its buffer since the last barrier of the cluster.
    """
    find(program, op, barrier).arrive(1, program.shared.mark(), value.nbytes)
    for peer, part in zip(program.peers, value, strict=True):
        state, mark = find(peer, op, barrier), program.told.get(peer.rank, 0)
        state.transfers.append((state.phases, peer.shared.start_sent(addresses, part, mark)))
        state.arrive(0, peer.shared.mark(), -part.nbytes)


def tell(program: Program, op: Op, barrier: Array, number: int, peer: Program) -> None:
    """Arrive at another CTA's mbarrier, ordering this CTA's accesses before its wait."""
    state = find(peer, op, barrier)
    state.teller = program
    _arrive(program, op, state, number)


def find(program: Program, op: Op, barrier: Array) -> Mbarrier:
    """Return the state of a mbarrier. Raises: InterpretError if it was not initialized."""
    state = program.mbarriers.get(scalar(barrier))
    if not isinstance(state, Mbarrier):
        raise program.error(op, "is of a mbarrier that was not made")
    return state


def _arrive(program: Program, op: Op, state: Mbarrier, number: int) -> None:
    if not state.arrive(number, program.shared.mark()):
        raise program.error(op, f"arrives more often than the {state.count} times of a phase")


def _init(program: Program, op: mbarrier.MbarrierInit, barrier: Array) -> None:
    kind = op.barrier.type
    assert isinstance(kind, SharedType)
    for stage in range(kind.num_stages):
        # A mbarrier for bytes alone counts these instead of arrivals.
        state = Mbarrier(op.expected_bytes or op.count)
        program.mbarriers[scalar(barrier) + stage * kind.stage_bytes] = state


def _arrive_each(
    program: Program, op: mbarrier.MbarrierArrive, barrier: Array, enabled: Array | None
) -> None:
    if enabled is None or scalar(enabled):
        # Each CTA of a cluster runs by itself here, so it arrives for the others, too.
        _arrive(program, op, find(program, op, barrier), op.count * op.num_ctas)


def _wait(program: Program, op: mbarrier.MbarrierWait, barrier: Array, parity: Array) -> None:
    state = find(program, op, barrier)
    if not state.has_ended(scalar(parity)):
        raise program.error(op, f"waits for ever: {state.phases} phases have ended")
    if state.teller is not None:
        rank = state.teller.rank
        program.told[rank] = max(program.told.get(rank, 0), state.mark)
    if program.is_producer:
        program.shared.learn(state.mark)
    for phase, transfer in state.transfers:
        if phase < state.phases:
            program.shared.land(transfer)
    state.transfers = [copy for copy in state.transfers if copy[0] >= state.phases]


MBARRIER_RULES: dict[type[Op], Rule] = {
    mbarrier.MbarrierInit: _init,
    mbarrier.MbarrierArrive: _arrive_each,
    mbarrier.MbarrierWait: _wait,
}

"""Per-thread asynchronous copies: `cp.async`, its groups, and its mbarrier arrival.

A copy executes late: at the wait for it, or earlier if the random schedule says so. It reads its
source at that moment. Its destination counts as in flight until the issuing thread has waited.

Source: PTX ISA, "cp.async", "cp.async.commit_group", "cp.async.wait_group",
"cp.async.mbarrier.arrive".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aotc.verify.emulator.engine.context import Context, Machine, Pending
from aotc.verify.emulator.engine.registry import Execute, executes
from aotc.verify.emulator.errors import Unsupported
from aotc.verify.emulator.memory.global_memory import Bytes, GlobalMemory
from aotc.verify.emulator.memory.shared_memory import Flight
from aotc.verify.emulator.memory.vector_clocks import Ints
from aotc.verify.emulator.synchronization.mbarrier import Mbarriers
from aotc.verify.emulator.syntax import Immediate, Instruction, Operand, Register

_SIZES = {"ca": (4, 8, 16), "cg": (16,)}


@dataclass
class _Copy:
    """Hold one instruction's copies: `group` (n,) is each lane's group number, from 1."""

    flight: Flight
    pending: Pending
    group: Ints
    first_group: int  # minimum of `group`


class AsyncCopies:
    """Track the copies of a batch not yet waited for."""

    def __init__(self, machine: Machine) -> None:
        self._shared = machine.shared
        num_lanes = machine.num_ctas * machine.warps_per_cta * 32
        self._committed = np.zeros(num_lanes, np.int64)  # closed groups per lane
        self._waited = np.zeros(num_lanes, np.int64)  # last group waited for, per lane
        self._copies: list[_Copy] = []

    def issue(self, flight: Flight, pending: Pending) -> None:
        """Add copies to each lane's open group."""
        group = self._committed[flight.lanes] + 1
        first = int(group.min()) if group.size else 0
        self._copies.append(_Copy(flight, pending, group, first))

    def commit(self, lanes: Ints) -> None:
        """Close the open group of lanes (n,); it may be empty."""
        self._committed[lanes] += 1

    def wait(self, lanes: Ints, may_be_open: int) -> None:
        """Finish all groups of lanes (n,) except the last `may_be_open`."""
        waited = np.maximum(self._waited[lanes], self._committed[lanes] - may_be_open)
        self._waited[lanes] = waited
        last = int(waited.max(initial=0))
        copies = [copy for copy in self._copies if copy.first_group <= last]
        if copies:
            for copy in copies:
                self._finish(copy, copy.group <= self._waited[copy.flight.lanes])
            self._drop_finished()

    def outstanding(self, lanes: Ints) -> list[tuple[_Copy, npt.NDArray[np.bool_]]]:
        """Return unfinished copies of lanes (n,), each with a mask of their rows in it."""
        mine = np.zeros(len(self._committed), np.bool_)
        mine[lanes] = True
        copies = [(copy, mine[copy.flight.lanes]) for copy in self._copies]
        return [(copy, pieces) for copy, pieces in copies if pieces.any()]

    def finish(self, outstanding: list[tuple[_Copy, npt.NDArray[np.bool_]]]) -> None:
        """Finish the copies that `outstanding` returned."""
        for copy, pieces in outstanding:
            self._finish(copy, pieces)
        self._drop_finished()

    def _finish(self, copy: _Copy, pieces: npt.NDArray[np.bool_]) -> None:
        if pieces.any():
            copy.pending.force()
            self._shared.finish(copy.flight, pieces)

    def _drop_finished(self) -> None:
        self._copies = [copy for copy in self._copies if copy.flight.open.any()]


@executes("cp.async")
def copy_async(instruction: Instruction) -> Execute:
    """Copy 4, 8 or 16 bytes per lane from global to shared memory, or write zeros."""
    operator = instruction.modifiers[1]
    size_operand = instruction.operands[2]
    if operator not in _SIZES or not isinstance(size_operand, Immediate):
        raise Unsupported(f"modifier .{operator}")
    size = size_operand.value
    if size not in _SIZES[operator]:
        raise Unsupported(f"cp.async.{operator} of {size} bytes")
    target, source = instruction.operands[:2]
    hint = "L2::cache_hint" in instruction.modifiers
    extra = instruction.operands[3 : len(instruction.operands) - hint]

    def run(ctx: Context) -> None:
        lanes, address = ctx.lane_indices(), ctx.address(source)
        source_bytes = _source_bytes(ctx, extra[0], size) if extra else np.full(ctx.count, size)
        memory = ctx.machine.global_memory
        _check_source(memory, address, source_bytes, size, lanes)
        full = source_bytes == size
        ctx.machine.global_shadow.load(lanes[full], address[full], size, instruction)
        shared = ctx.machine.shared
        flight = shared.begin(
            lanes, ctx.address(target), size, instruction, writes=True, proxy=False
        )

        def complete() -> None:
            shared.poke(flight, _fetch(memory, address, source_bytes, size, lanes))

        ctx.machine.part(AsyncCopies).issue(flight, ctx.machine.defer(lanes, complete))

    return run


@executes("cp.async.commit_group")
def commit_group(instruction: Instruction) -> Execute:
    """Close each lane's open group."""
    del instruction

    def run(ctx: Context) -> None:
        ctx.machine.part(AsyncCopies).commit(ctx.lane_indices())

    return run


@executes("cp.async.wait_group", "cp.async.wait_all")
def wait_group(instruction: Instruction) -> Execute:
    """Wait until at most n groups are pending, or for all copies."""
    every = instruction.modifiers[1] == "wait_all"
    count = instruction.operands[0] if not every else Immediate(0)
    if not isinstance(count, Immediate):
        raise Unsupported("a number of groups that is not a constant")

    def run(ctx: Context) -> None:
        copies, lanes = ctx.machine.part(AsyncCopies), ctx.lane_indices()
        if every:
            copies.commit(lanes)
        copies.wait(lanes, count.value)

    return run


@executes("cp.async.mbarrier.arrive")
def arrive_when_copied(instruction: Instruction) -> Execute:
    """Arrive at an mbarrier once all of the lane's copies issued so far are done."""
    target = instruction.operands[0]
    counted = "noinc" in instruction.modifiers

    def run(ctx: Context) -> None:
        mbarriers, copies = ctx.machine.part(Mbarriers), ctx.machine.part(AsyncCopies)
        lanes, address = ctx.lane_indices(), ctx.address(target)
        rows = mbarriers.find(lanes, address, instruction)
        if not counted:
            mbarriers.add_pending(rows)
        outstanding = copies.outstanding(lanes)

        def complete() -> None:
            copies.finish(outstanding)
            mbarriers.arrive(lanes, rows, np.ones(len(rows), np.int64))

        ctx.machine.defer(lanes, complete)

    return run


def _source_bytes(ctx: Context, operand: Operand, size: int) -> Ints:
    """Return each lane's number of source bytes; the rest of its destination becomes zero."""
    if isinstance(operand, Register) and operand.bits == 1:
        return np.where(ctx.read(operand, 1), 0, size)
    source_bytes = ctx.read(operand, 32).astype(np.int64)
    if (source_bytes > size).any():
        row = int(np.flatnonzero(source_bytes > size)[0])
        raise ctx.fault(
            f"copies {int(source_bytes[row])} bytes into {size}", int(ctx.lane_indices()[row])
        )
    return source_bytes


def _check_source(
    memory: GlobalMemory, address: Ints, source_bytes: Ints, size: int, lanes: Ints
) -> None:
    """Check at issue that the source is accessible."""
    full = source_bytes == size
    memory.check(address[full], size, lanes[full])
    part = np.flatnonzero(~full & (source_bytes > 0))
    for row in part.tolist():
        byte_addresses = int(address[row]) + np.arange(int(source_bytes[row]))
        memory.check(byte_addresses, 1, np.full(len(byte_addresses), lanes[row]))


def _fetch(
    memory: GlobalMemory, address: Ints, source_bytes: Ints, size: int, lanes: Ints
) -> Bytes:
    """Return the bytes to copy, zero-padded: (n, size)."""
    full = source_bytes == size
    if full.all():
        return memory.read(address, size, lanes)
    data = np.zeros((len(address), size), np.uint8)
    data[full] = memory.read(address[full], size, lanes[full])
    for row in np.flatnonzero(~full & (source_bytes > 0)).tolist():
        count = int(source_bytes[row])
        data[row, :count] = memory.read(int(address[row]) + np.arange(count), 1)[:, 0]
    return data

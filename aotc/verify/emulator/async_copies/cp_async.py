"""Asynchronous copies of single threads: `cp.async`, its groups, and its arrival at mbarriers.

A copy happens late: when it is waited for, or earlier if the schedule so draws. What it reads is
read then. Its destination counts as in flight until the thread that issued it has waited.

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
    """Hold one instruction's copies: `group` (n,) is that of each lane, counted from 1."""

    flight: Flight
    pending: Pending
    group: Ints
    first_group: int  # the least of `group`


class AsyncCopies:
    """Hold the copies of a batch that have not been waited for."""

    def __init__(self, machine: Machine) -> None:
        self._shared = machine.shared
        num_lanes = machine.num_ctas * machine.warps_per_cta * 32
        self._committed = np.zeros(num_lanes, np.int64)  # groups of each lane
        self._waited = np.zeros(num_lanes, np.int64)  # up to which group
        self._copies: list[_Copy] = []

    def issue(self, flight: Flight, pending: Pending) -> None:
        """Take on copies, as part of the group that each lane has open."""
        group = self._committed[flight.lanes] + 1
        first = int(group.min()) if group.size else 0
        self._copies.append(_Copy(flight, pending, group, first))

    def commit(self, lanes: Ints) -> None:
        """Close the open group of lanes (n,), which may be empty."""
        self._committed[lanes] += 1

    def wait(self, lanes: Ints, may_be_open: int) -> None:
        """Finish all groups of lanes (n,) but the last `may_be_open`."""
        waited = np.maximum(self._waited[lanes], self._committed[lanes] - may_be_open)
        self._waited[lanes] = waited
        last = int(waited.max(initial=0))
        found = [copy for copy in self._copies if copy.first_group <= last]
        if found:
            for copy in found:
                self._finish(copy, copy.group <= self._waited[copy.flight.lanes])
            self._drop_finished()

    def outstanding(self, lanes: Ints) -> list[tuple[_Copy, npt.NDArray[np.bool_]]]:
        """Return the copies that lanes (n,) have issued so far, each with which pieces of it."""
        mine = np.zeros(len(self._committed), np.bool_)
        mine[lanes] = True
        found = [(copy, mine[copy.flight.lanes]) for copy in self._copies]
        return [(copy, pieces) for copy, pieces in found if pieces.any()]

    def finish(self, found: list[tuple[_Copy, npt.NDArray[np.bool_]]]) -> None:
        """Finish what `outstanding` returned."""
        for copy, pieces in found:
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
    """Copy 4, 8 or 16 bytes a lane from global to shared memory, or write zeros."""
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
        wanted = _wanted_bytes(ctx, extra[0], size) if extra else np.full(ctx.count, size)
        memory = ctx.machine.global_memory
        _check_source(memory, address, wanted, size, lanes)
        full = wanted == size
        ctx.machine.global_shadow.load(lanes[full], address[full], size, instruction)
        shared = ctx.machine.shared
        flight = shared.begin(
            lanes, ctx.address(target), size, instruction, writes=True, proxy=False
        )

        def happen() -> None:
            shared.poke(flight, _fetch(memory, address, wanted, size, lanes))

        ctx.machine.part(AsyncCopies).issue(flight, ctx.machine.defer(lanes, happen))

    return run


@executes("cp.async.commit_group")
def commit_group(instruction: Instruction) -> Execute:
    """Close the group of copies that each lane has issued."""
    del instruction

    def run(ctx: Context) -> None:
        ctx.machine.part(AsyncCopies).commit(ctx.lane_indices())

    return run


@executes("cp.async.wait_group", "cp.async.wait_all")
def wait_group(instruction: Instruction) -> Execute:
    """Wait for all but the last few groups, or for all copies."""
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
    """Arrive at an mbarrier once all copies that the lane has issued are done."""
    target = instruction.operands[0]
    counted = "noinc" in instruction.modifiers

    def run(ctx: Context) -> None:
        mbarriers, copies = ctx.machine.part(Mbarriers), ctx.machine.part(AsyncCopies)
        lanes, address = ctx.lane_indices(), ctx.address(target)
        rows = mbarriers.find(lanes, address, instruction)
        if not counted:
            mbarriers.add_pending(rows)
        found = copies.outstanding(lanes)

        def happen() -> None:
            copies.finish(found)
            mbarriers.arrive(lanes, rows, np.ones(len(rows), np.int64))

        ctx.machine.defer(lanes, happen)

    return run


def _wanted_bytes(ctx: Context, operand: Operand, size: int) -> Ints:
    """Return how many bytes each lane copies: the rest of its destination becomes zero."""
    if isinstance(operand, Register) and operand.bits == 1:
        return np.where(ctx.read(operand, 1), 0, size)
    wanted = ctx.read(operand, 32).astype(np.int64)
    if (wanted > size).any():
        at = int(np.flatnonzero(wanted > size)[0])
        raise ctx.fault(f"copies {int(wanted[at])} bytes into {size}", int(ctx.lane_indices()[at]))
    return wanted


def _check_source(
    memory: GlobalMemory, address: Ints, wanted: Ints, size: int, lanes: Ints
) -> None:
    """Check, when a copy is issued, that it will find its source."""
    full = wanted == size
    memory.check(address[full], size, lanes[full])
    part = np.flatnonzero(~full & (wanted > 0))
    for at in part.tolist():
        each = int(address[at]) + np.arange(int(wanted[at]))
        memory.check(each, 1, np.full(len(each), lanes[at]))


def _fetch(memory: GlobalMemory, address: Ints, wanted: Ints, size: int, lanes: Ints) -> Bytes:
    """Return what is copied: (n, size)."""
    full = wanted == size
    if full.all():
        return memory.read(address, size, lanes)
    data = np.zeros((len(address), size), np.uint8)
    data[full] = memory.read(address[full], size, lanes[full])
    for at in np.flatnonzero(~full & (wanted > 0)).tolist():
        count = int(wanted[at])
        data[at, :count] = memory.read(int(address[at]) + np.arange(count), 1)[:, 0]
    return data

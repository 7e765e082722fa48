"""Instructions on mbarriers; mbarrier.py implements them.

Source: PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier".
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aotc.verify.emulator.engine.context import Context
from aotc.verify.emulator.engine.registry import Execute, executes
from aotc.verify.emulator.errors import Unsupported
from aotc.verify.emulator.memory.vector_clocks import Ints
from aotc.verify.emulator.memory_access.spaces import SCOPES
from aotc.verify.emulator.synchronization.mbarrier import MAX_COUNT, PHASE_SHIFT, Mbarriers
from aotc.verify.emulator.syntax import Instruction, Operand, Register, Sink

_MODIFIERS = SCOPES.keys() | {
    "b64",
    "shared",
    "shared::cta",
    "shared::cluster",
    "acquire",
    "release",
}


def _check_modifiers(instruction: Instruction, *more: str) -> None:
    for modifier in instruction.modifiers[1:]:
        if modifier not in _MODIFIERS and modifier not in more:
            raise Unsupported(f"modifier .{modifier}")


@executes("mbarrier.init")
def init(instruction: Instruction) -> Execute:
    """Initialise an mbarrier."""
    _check_modifiers(instruction)
    target, count = instruction.operands

    def run(ctx: Context) -> None:
        arrivals = ctx.read(count, 32).astype(np.int64)
        ctx.machine.part(Mbarriers).initialise(
            ctx.lane_indices(), ctx.address(target), arrivals, instruction
        )

    return run


@executes("mbarrier.inval")
def inval(instruction: Instruction) -> Execute:
    """Invalidate an mbarrier."""
    _check_modifiers(instruction)
    (target,) = instruction.operands

    def run(ctx: Context) -> None:
        ctx.machine.part(Mbarriers).invalidate(ctx.lane_indices(), ctx.address(target), instruction)

    return run


@executes("mbarrier.arrive", "mbarrier.arrive_drop")
def arrive(instruction: Instruction) -> Execute:
    """Arrive once, `count` times, or once with expected bytes; return the prior state."""
    _check_modifiers(instruction, "expect_tx", "relaxed", "noComplete")
    modifiers = instruction.modifiers
    operands = list(instruction.operands)
    # The state is optional, and a remote arrival has none.
    state: Operand = operands.pop(0) if len(operands) > 1 and _is_result(operands[0]) else Sink()
    target, *rest = operands
    expects = "expect_tx" in modifiers
    releases = "relaxed" not in modifiers
    incomplete = "noComplete" in modifiers

    def run(ctx: Context) -> None:
        mbarriers, lanes = ctx.machine.part(Mbarriers), ctx.lane_indices()
        rows = mbarriers.find(lanes, ctx.address(target), instruction)
        number = ctx.read(rest[0], 32).astype(np.int64) if rest else np.ones(ctx.count, np.int64)
        phase = mbarriers.phase[rows]
        states = mbarriers.arrive(
            lanes,
            rows,
            np.ones(ctx.count, np.int64) if expects else number,
            expected_bytes=number if expects else None,
            drop=modifiers[0] == "arrive_drop",
            releases=releases,
        )
        if incomplete and (mbarriers.phase[rows] != phase).any():
            raise ctx.fault("arrive.noComplete completes a phase", int(lanes[0]))
        ctx.write(state, states)

    return run


@executes("mbarrier.expect_tx", "mbarrier.complete_tx")
def transactions(instruction: Instruction) -> Execute:
    """Expect bytes, or complete them explicitly."""
    _check_modifiers(instruction, "relaxed")
    target, count = instruction.operands
    expects = instruction.modifiers[0] == "expect_tx"

    def run(ctx: Context) -> None:
        mbarriers, lanes = ctx.machine.part(Mbarriers), ctx.lane_indices()
        rows = mbarriers.find(lanes, ctx.address(target), instruction)
        number = ctx.read(count, 32).astype(np.int64)
        (mbarriers.expect if expects else mbarriers.complete_bytes)(lanes, rows, number)

    return run


@executes("mbarrier.test_wait", "mbarrier.try_wait")
def wait(instruction: Instruction) -> Execute:
    """Test whether a phase is complete: a state's, or the last one of a parity."""
    _check_modifiers(instruction, "parity", "relaxed")
    complete, target, phase_operand = instruction.operands[:3]
    acquires = "relaxed" not in instruction.modifiers
    is_done = _parity_done if "parity" in instruction.modifiers else _state_done

    def run(ctx: Context) -> None:
        mbarriers, lanes = ctx.machine.part(Mbarriers), ctx.lane_indices()
        rows = mbarriers.find(lanes, ctx.address(target), instruction)
        is_complete = is_done(ctx, phase_operand, mbarriers.phase[rows])
        if acquires:
            mbarriers.acquire(lanes[is_complete], rows[is_complete])

        def why(lane: int) -> str:
            return f"waits for {mbarriers.describe(int(rows[np.searchsorted(lanes, lane)]))}"

        ctx.mark_waiting(~is_complete, why)
        ctx.write(complete, is_complete)

    return run


@executes("mbarrier.pending_count")
def pending_count(instruction: Instruction) -> Execute:
    """Return the arrivals outstanding before the arrival that returned a state."""
    _check_modifiers(instruction)
    result, state = instruction.operands

    def run(ctx: Context) -> None:
        ctx.write(result, (ctx.read(state, 64) & MAX_COUNT).astype(np.uint32))

    return run


def _parity_done(ctx: Context, operand: Operand, phase: Ints) -> npt.NDArray[np.bool_]:
    return phase & 1 != ctx.read(operand, 32).astype(np.int64) & 1


def _state_done(ctx: Context, operand: Operand, phase: Ints) -> npt.NDArray[np.bool_]:
    return phase != ctx.read(operand, 64).astype(np.int64) >> PHASE_SHIFT


def _is_result(operand: Operand) -> bool:
    return isinstance(operand, Register | Sink)

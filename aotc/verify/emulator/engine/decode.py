"""Decode instructions into the functions that execute them.

Each instruction becomes a *step*, a function of the active lanes. All decisions by the text alone
are made here: rules read modifiers, operands become rows of the register file.

Invariant: every instruction of a kernel has a step before the first one runs, so unsupported ones
are reported on any path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from aotc.verify.arrays import reduce_and, reduce_max
from aotc.verify.emulator.compute.approximations import with_error
from aotc.verify.emulator.compute.registry import COMPUTES, Compute
from aotc.verify.emulator.engine.compute_steps import Source, Step, several_results, single_result
from aotc.verify.emulator.engine.divergence import Lanes
from aotc.verify.emulator.engine.fused_loads import fused_loads
from aotc.verify.emulator.engine.fused_steps import fused, issues_of
from aotc.verify.emulator.engine.fused_warps import fused_warps
from aotc.verify.emulator.engine.lane_context import LaneContext
from aotc.verify.emulator.engine.machine import Current
from aotc.verify.emulator.engine.registers import (
    COPIED,
    DEFINED,
    UNDEFINED,
    WRITE_IN_FLIGHT,
    RegisterFile,
    Row,
    is_copy,
)
from aotc.verify.emulator.engine.registry import LOADS, WARP_COMPUTES, Execute, executing
from aotc.verify.emulator.errors import EmulationError, Misuse, Unsupported
from aotc.verify.emulator.syntax import (
    Instruction,
    Operand,
    Pair,
    Register,
    Sink,
    SpecialRegister,
    Symbol,
    Vector,
)
from aotc.verify.emulator.text.effects import destination_count

_FEWEST_FUSED = 4  # instructions: below this, separate steps are cheaper


class _Constant:
    """A source with one value for all lanes."""

    __slots__ = ("_value",)

    def __init__(self, value: npt.NDArray[Any]) -> None:
        self._value = value

    def __getitem__(self, lanes: Lanes) -> npt.NDArray[Any]:
        return self._value


class _PerBatch:
    """A source specific to the batch: a special register, clock or shared address."""

    __slots__ = ("_current", "_operand")

    def __init__(self, current: Current, operand: Operand) -> None:
        self._current = current
        self._operand = operand

    def __getitem__(self, lanes: Lanes) -> npt.NDArray[Any]:
        operand = self._operand
        batch = self._current.batch
        if isinstance(operand, SpecialRegister) and not batch.is_clock(operand):
            return batch.special(operand.name)[lanes]
        cta_addresses = batch.own_address(operand) if isinstance(operand, Symbol) else None
        if cta_addresses is not None:
            return cta_addresses[lanes]
        return batch.constant(operand, 64)


class _Negated:
    """A predicate after `!`."""

    __slots__ = ("_row",)

    def __init__(self, row: Row) -> None:
        self._row = row

    def __getitem__(self, lanes: Lanes) -> npt.NDArray[Any]:
        return ~self._row[lanes]


class _Discard:
    """The target of `_`: writes are dropped."""

    def __setitem__(self, lanes: Lanes, value: object) -> None:
        pass


class Decoder:
    """Turn the instructions of one kernel into steps over one register file.

    With `approximate`, approximate instructions err as on hardware; else they round correctly.
    """

    def __init__(
        self, current: Current, registers: RegisterFile, *, approximate: bool = False
    ) -> None:
        self._current = current
        self._registers = registers
        self._approximate = approximate
        self._steps: dict[int, Step] = {}  # by the instruction's identity

    def step(self, instruction: Instruction) -> Step:
        """Return the step of an instruction.

        Raises: EmulationError if no rule supports it.
        """
        step = self._steps.get(id(instruction))
        if step is None:
            step = self._steps[id(instruction)] = self._decode(instruction)
        return step

    def steps(self, instructions: Sequence[Instruction]) -> tuple[Step, ...]:
        """Return steps for consecutive instructions, with those of one kind fused.

        Raises: EmulationError if no rule supports one of them.
        """
        unfused = [self.step(instruction) for instruction in instructions]
        single = dict(zip(map(id, instructions), unfused, strict=True))
        fused_steps: list[Step] = []
        for issued in issues_of(instructions, self._registers):
            steps = [single[id(instruction)] for instruction in issued]
            fused_steps += steps if len(steps) < _FEWEST_FUSED else [self._fused(issued, steps)]
        return tuple(fused_steps)

    def _fused(self, instructions: Sequence[Instruction], steps: Sequence[Step]) -> Step:
        first = instructions[0]
        if first.opcode in WARP_COMPUTES:
            rule = WARP_COMPUTES[first.opcode](first)
            return fused_warps(instructions, rule, self._registers, steps)
        read = LOADS[first.opcode](first) if first.opcode in LOADS else None
        if read is not None:
            return fused_loads(instructions, read, self._registers, self._current, steps)
        constants = [
            None if isinstance(operand, Register) else self._source(operand)
            for operand in first.operands[1:]
        ]
        return fused(instructions, self._function(first), constants, self._registers, steps)

    def _function(self, instruction: Instruction) -> Compute:
        """Return an instruction's function, with the error of an approximation."""
        function = COMPUTES[instruction.opcode](instruction)
        return with_error(instruction, function) if self._approximate else function

    def _decode(self, instruction: Instruction) -> Step:
        try:
            step = self._unguarded(instruction)
        except Unsupported as error:
            raise EmulationError(
                f"unsupported instruction {instruction.mnemonic}: {error}",
                line=instruction.line,
                text=instruction.text,
            ) from None
        return self._guarded(instruction, step) if instruction.guard else step

    def predicate(self, instruction: Instruction) -> Callable[[Lanes], npt.NDArray[np.bool_]]:
        """Return a function from lanes to the mask that an instruction's guard lets through."""
        assert instruction.guard is not None
        register = instruction.guard.predicate
        row, states = self._registers.row(register), self._registers.states(register)
        source: Source = _Negated(row) if instruction.guard.negated else row
        passes: Callable[[Lanes], npt.NDArray[np.bool_]] = source.__getitem__
        if states is None:
            return passes
        current = self._current

        def checked(lanes: Lanes) -> npt.NDArray[np.bool_]:
            LaneContext(current.batch, instruction, lanes).require_readable(register.name, states)
            return passes(lanes)

        return checked

    # ---- the kinds of steps -------------------------------------------------

    def _unguarded(self, instruction: Instruction) -> Step:
        rule = executing(instruction)
        if rule is not None:
            return self._execute(instruction, rule(instruction))
        if instruction.opcode in COMPUTES:
            return self._compute(instruction, self._function(instruction))
        raise Unsupported("the opcode is not known")

    def _execute(self, instruction: Instruction, function: Execute) -> Step:
        current = self._current

        def step(lanes: Lanes) -> None:
            batch = current.batch
            batch.executing = instruction
            try:
                function(LaneContext(batch, instruction, lanes))
            except Misuse as misuse:
                raise batch.fault_of(misuse, instruction) from None

        return step

    def _compute(self, instruction: Instruction, function: Compute) -> Step:
        count = destination_count(instruction)
        targets = _flat(instruction.operands[:count])
        operands = _flat(instruction.operands[count:])
        sources = [self._source(operand) for operand in operands]
        rows = [self._target(target) for target in targets]
        if len(rows) == 1:
            step = single_result(function, rows[0], sources)
        else:
            step = several_results(function, rows, sources)
        return self._tracked(instruction, step, targets, operands)

    def _source(self, operand: Operand) -> Source:
        if isinstance(operand, Register):
            row = self._registers.row(operand)
            return _Negated(row) if operand.negated else row
        shared = isinstance(operand, Symbol) and operand.name in self._current.image.shared
        if shared or isinstance(operand, SpecialRegister):
            return _PerBatch(self._current, operand)
        return _Constant(self._current.image.constant(operand, 64))

    def _target(self, operand: Operand) -> Any:
        if isinstance(operand, Sink):
            return _Discard()
        if not isinstance(operand, Register):
            raise Unsupported("its result is no register")
        return self._registers.row(operand)

    # ---- definedness --------------------------------------------------------

    def _tracked(
        self,
        instruction: Instruction,
        step: Step,
        targets: Sequence[Operand],
        operands: Sequence[Operand],
    ) -> Step:
        """Wrap a step in checks and updates of register states (undefined, in flight)."""
        written = [states for _, states in self._states(targets)]
        read = self._states(operands)
        if not written and not read:
            return step
        copied = read[0][1] if read and is_copy(instruction) else None
        # Compilers widen a number by a `mov` of it together with an unwritten half.
        widens = instruction.opcode == "mov" and len(read) < len(operands) > 1
        current, registers = self._current, self._registers
        targeted = [(name, states) for name, states in self._states(targets)]

        def refuse(lanes: Lanes, name: str, states: npt.NDArray[np.uint8]) -> None:
            LaneContext(current.batch, instruction, lanes).require_readable(name, states)

        def checked(lanes: Lanes) -> None:
            in_flight = False
            if copied is None:
                for name, states in read:
                    lane_states = states[lanes]
                    if not reduce_and(lane_states) & 1:  # readable states are odd
                        if widens:
                            lane_states = np.where(states == UNDEFINED, DEFINED, states)
                            refuse(lanes, name, lane_states)
                        else:
                            refuse(lanes, name, states)
            else:
                in_flight = bool((copied[lanes] == WRITE_IN_FLIGHT).all())
            if in_flight:
                registers.flight_copies += 1
            else:
                for name, states in targeted:
                    if reduce_max(states[lanes]) > DEFINED:
                        context = LaneContext(current.batch, instruction, lanes)
                        context.require_writable(name, states)
            step(lanes)
            for states in written:
                states[lanes] = DEFINED if copied is None else COPIED[copied[lanes]]

        return checked

    def _states(self, operands: Sequence[Operand]) -> list[tuple[str, npt.NDArray[np.uint8]]]:
        tracked: list[tuple[str, npt.NDArray[np.uint8]]] = []
        for operand in operands:
            states = self._registers.states(operand) if isinstance(operand, Register) else None
            if states is not None:
                tracked.append((cast("Register", operand).name, states))
        return tracked

    def _guarded(self, instruction: Instruction, step: Step) -> Step:
        predicate = self.predicate(instruction)
        current = self._current

        def guarded(lanes: Lanes) -> None:
            mask = predicate(lanes)
            if mask.all():
                step(lanes)
            elif mask.any():
                step(current.batch.lane_numbers[lanes][mask])

        return guarded


def _flat(operands: Sequence[Operand]) -> list[Operand]:
    flat: list[Operand] = []
    for operand in operands:
        if isinstance(operand, Vector):
            flat += operand.elements
        elif isinstance(operand, Pair):
            flat += (operand.first, operand.second)
        else:
            flat.append(operand)
    return flat

"""Fuse instructions with the same operation on different registers into one step.

A tile is many registers of each thread, so code has runs of one instruction: 64 products, 64
exponentials. With few lanes, a step per instruction costs ten times the computation itself. So runs
of purely computing instructions are regrouped: each joins the earliest step of its kind after its
dependences, as in a superscalar machine. A step computes on a matrix with one row per instruction.
Warp-wide computations such as `mma.sync` join in (`fused_warps`), and so do loads of shared memory
with no store in between (`fused_loads`).

Invariant: the lanes' state after the instructions equals program order's, and an illegal access is
reported at its instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from aotc.verify.arrays import Array, reduce_and, reduce_max
from aotc.verify.emulator.compute.registry import COMPUTES, Compute
from aotc.verify.emulator.engine.compute_steps import Source, Step
from aotc.verify.emulator.engine.divergence import Lanes
from aotc.verify.emulator.engine.registers import DEFINED, RegisterFile, is_copy
from aotc.verify.emulator.engine.registry import LOADS, WARP_COMPUTES, executing
from aotc.verify.emulator.syntax import (
    Address,
    Immediate,
    Instruction,
    Operand,
    Register,
    elements_of,
)
from aotc.verify.emulator.text.effects import destination_count, effect_of

_MAX_ROWS = 64
# With more lanes in step, the matrices would leave the cache and save nothing.
MAX_LANES = 2048


@dataclass(slots=True)
class _Issue:
    """Hold the instructions of one step; those of one kind differ in registers only."""

    kind: Hashable
    instructions: list[Instruction] = field(default_factory=list[Instruction])


def issues_of(
    instructions: Sequence[Instruction], registers: RegisterFile
) -> list[list[Instruction]]:
    """Return the instructions in execution order, grouped by step."""
    issues: list[list[Instruction]] = []
    gathered: list[Instruction] = []
    for instruction in instructions:
        if _is_fusible(instruction, registers):
            gathered.append(instruction)
            continue
        issues += _scheduled(gathered, registers)
        gathered = []
        issues.append([instruction])
    return [*issues, *_scheduled(gathered, registers)]


def _is_fusible(instruction: Instruction, registers: RegisterFile) -> bool:
    """Return whether an instruction is a pure function of registers and constants."""
    if instruction.guard is not None or destination_count(instruction) != 1:
        return False
    target, *operands = instruction.operands
    if instruction.opcode in WARP_COMPUTES:
        return all(map(_are_registers, instruction.operands))
    if instruction.opcode in LOADS:
        address = operands[0]
        from_register = isinstance(address, Address) and isinstance(address.base, Register)
        is_alone = not from_register or LOADS[instruction.opcode](instruction) is None
        return not is_alone and _are_registers(target)
    if instruction.opcode not in COMPUTES or executing(instruction) is not None:
        return False
    if not isinstance(target, Register):
        return False
    if is_copy(instruction) and any(
        registers.states(register) is not None for register in _of(operands)
    ):
        return False  # undefined or in-flight registers may be copied
    return all(
        isinstance(operand, Immediate) or (isinstance(operand, Register) and not operand.negated)
        for operand in operands
    )


def _are_registers(operand: Operand) -> bool:
    return all(
        isinstance(element, Register) and not element.negated for element in elements_of(operand)
    )


def _of(operands: Sequence[Operand]) -> list[Register]:
    return [operand for operand in operands if isinstance(operand, Register)]


def _scheduled(
    instructions: Sequence[Instruction], registers: RegisterFile
) -> list[list[Instruction]]:
    """Group instructions into steps, each in the earliest possible step of its kind."""
    issues: list[_Issue] = []
    open_issues: dict[Hashable, list[int]] = {}
    written: dict[tuple[int, int], int] = {}  # the last step to write each row; `read`: to read it
    read: dict[tuple[int, int], int] = {}
    for instruction in instructions:
        effect = effect_of(instruction)
        targets = [registers.table_row(register) for register in effect.writes]
        sources = [registers.table_row(register) for register in effect.reads]
        # A step reads before it writes.
        after_reads = (read.get(row, 0) for row in targets)
        first = max([0, *after_reads, *(written.get(row, -1) + 1 for row in (*targets, *sources))])
        kind = _kind_of(instruction)
        index = next(
            (position for position in open_issues.get(kind, ()) if position >= first), len(issues)
        )
        if index == len(issues):
            issues.append(_Issue(kind))
            open_issues.setdefault(kind, []).append(index)
        issues[index].instructions.append(instruction)
        if len(issues[index].instructions) == _MAX_ROWS:
            open_issues[kind].remove(index)
        written.update(dict.fromkeys(targets, index))
        for row in sources:
            read[row] = max(index, read.get(row, 0))
    return [issue.instructions for issue in issues]


def _kind_of(instruction: Instruction) -> Hashable:
    """Return a key shared by instructions that can form one step."""
    operands = (
        element.bits if isinstance(element, Register) else element
        for operand in instruction.operands
        for element in elements_of(operand.base if isinstance(operand, Address) else operand)
    )
    return (instruction.opcode, instruction.modifiers, *operands)


def fused(
    instructions: Sequence[Instruction],
    function: Compute,
    constants: Sequence[Source | None],
    registers: RegisterFile,
    steps: Sequence[Step],
) -> Step:
    """Return one step for instructions of one kind; `steps` are their single steps.

    `constants` has the source of each operand other than a register.
    """
    targets, *operands = zip(*(instruction.operands for instruction in instructions), strict=True)
    sources = [
        _reader([registers.table_row(register) for register in _of(column)], registers)
        if constant is None
        else constant.__getitem__
        for column, constant in zip(operands, constants, strict=True)
    ]
    target_rows = np.array([registers.table_row(register)[1] for register in _of(targets)])
    target = registers.table(targets[0].bits)
    column = target_rows[:, None]
    states = States(
        [register for part in operands for register in _of(part)], _of(targets), registers
    )

    def step(lanes: Lanes) -> None:
        is_slice = type(lanes) is slice
        count = lanes.stop - lanes.start if isinstance(lanes, slice) else len(lanes)
        if count > MAX_LANES or not states.are_free(lanes):
            for single_step in steps:
                single_step(lanes)
            return
        result = function(*[source(lanes) for source in sources])
        target[target_rows if is_slice else column, lanes] = result
        states.define(lanes)

    return step


class States:
    """Check that a step may access its registers, and mark written ones."""

    def __init__(
        self, read: Sequence[Register], written: Sequence[Register], registers: RegisterFile
    ) -> None:
        self._table = registers.state_table
        self._read = _state_rows(read, registers)
        self._written = _state_rows(written, registers)

    def are_free(self, lanes: Lanes) -> bool:
        """Return whether all are readable and writable; readable states are odd."""
        is_slice = type(lanes) is slice
        if self._read is not None:
            states = self._table[self._read if is_slice else self._read[:, None], lanes]
            if not reduce_and(states, axis=None) & 1:
                return False
        if self._written is not None:
            states = self._table[self._written if is_slice else self._written[:, None], lanes]
            return bool(reduce_max(states, axis=None) <= DEFINED)
        return True

    def define(self, lanes: Lanes) -> None:
        """Mark written registers as defined."""
        if self._written is not None:
            rows = self._written if type(lanes) is slice else self._written[:, None]
            self._table[rows, lanes] = DEFINED


def _reader(
    table_rows: Sequence[tuple[int, int]], registers: RegisterFile
) -> Callable[[Lanes], Array]:
    """Return a reader of one register per instruction: a matrix, or a row if all agree."""
    table = registers.table(table_rows[0][0])
    rows = [row for _, row in table_rows]
    if len(set(rows)) == 1:
        return table[rows[0]].__getitem__
    index = np.array(rows)
    column = index[:, None]
    return lambda lanes: table[index if type(lanes) is slice else column, lanes]


def _state_rows(tracked: Sequence[Register], registers: RegisterFile) -> Array | None:
    distinct = dict.fromkeys(registers.state_row(register) for register in tracked)
    rows = [row for row in distinct if row is not None]
    return np.array(rows) if rows else None

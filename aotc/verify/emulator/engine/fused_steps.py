"""One step for several instructions that compute the same of different registers.

A tile is many registers of each thread, so code is runs of one instruction: 64 products, 64
exponentials. A step of its own for each costs ten times what it computes, where few lanes go on. So
between instructions that do anything else, those that only compute are gathered: each joins the
earliest step of its kind after what it depends on, as a superscalar machine would issue it, and a
step computes on a matrix, a row for each instruction. What warps compute together, such as
`mma.sync`, joins in, and so do loads of shared memory, between which nothing is stored: their steps
are made by `fused_warps` and `fused_loads`.

Invariant: what lanes hold after the instructions is what they would hold in program order, and what
they may not read or write is reported at the instruction that does.
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
# Where so many lanes run in step, matrices would leave the cache and save nothing.
MAX_LANES = 2048


@dataclass(slots=True)
class _Issue:
    """Hold the instructions of one step; those of one kind differ in their registers alone."""

    kind: Hashable
    instructions: list[Instruction] = field(default_factory=list[Instruction])


def issues_of(
    instructions: Sequence[Instruction], registers: RegisterFile
) -> list[list[Instruction]]:
    """Return the instructions in the order to run them, those that share a step together."""
    found: list[list[Instruction]] = []
    gathered: list[Instruction] = []
    for instruction in instructions:
        if _is_fusible(instruction, registers):
            gathered.append(instruction)
            continue
        found += _scheduled(gathered, registers)
        gathered = []
        found.append([instruction])
    return [*found, *_scheduled(gathered, registers)]


def _is_fusible(instruction: Instruction, registers: RegisterFile) -> bool:
    """Return whether an instruction gives registers a function of others and of constants."""
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
    if is_copy(instruction) and any(registers.states(each) is not None for each in _of(operands)):
        return False  # what is undefined, or in flight, may be copied
    return all(
        isinstance(each, Immediate) or (isinstance(each, Register) and not each.negated)
        for each in operands
    )


def _are_registers(operand: Operand) -> bool:
    return all(isinstance(each, Register) and not each.negated for each in elements_of(operand))


def _of(operands: Sequence[Operand]) -> list[Register]:
    return [operand for operand in operands if isinstance(operand, Register)]


def _scheduled(
    instructions: Sequence[Instruction], registers: RegisterFile
) -> list[list[Instruction]]:
    """Return the instructions in steps, each in the earliest of its kind that it may be in."""
    issues: list[_Issue] = []
    open_ones: dict[Hashable, list[int]] = {}
    written: dict[tuple[int, int], int] = {}  # the last step that writes, and reads, each row
    read: dict[tuple[int, int], int] = {}
    for instruction in instructions:
        effect = effect_of(instruction)
        targets = [registers.place(each) for each in effect.writes]
        sources = [registers.place(each) for each in effect.reads]
        # A step reads before it writes.
        after_reads = (read.get(row, 0) for row in targets)
        first = max([0, *after_reads, *(written.get(row, -1) + 1 for row in (*targets, *sources))])
        kind = _kind_of(instruction)
        at = next((each for each in open_ones.get(kind, ()) if each >= first), len(issues))
        if at == len(issues):
            issues.append(_Issue(kind))
            open_ones.setdefault(kind, []).append(at)
        issues[at].instructions.append(instruction)
        if len(issues[at].instructions) == _MAX_ROWS:
            open_ones[kind].remove(at)
        written.update(dict.fromkeys(targets, at))
        for row in sources:
            read[row] = max(at, read.get(row, 0))
    return [issue.instructions for issue in issues]


def _kind_of(instruction: Instruction) -> Hashable:
    """Return what instructions have in common of which one step can be made."""
    operands = (
        each.bits if isinstance(each, Register) else each
        for operand in instruction.operands
        for each in elements_of(operand.base if isinstance(operand, Address) else operand)
    )
    return (instruction.opcode, instruction.modifiers, *operands)


def fused(
    instructions: Sequence[Instruction],
    function: Compute,
    constants: Sequence[Source | None],
    registers: RegisterFile,
    steps: Sequence[Step],
) -> Step:
    """Return one step for instructions of one kind, each of which has one of `steps`.

    `constants` has the source of each operand that is no register.
    """
    targets, *operands = zip(*(each.operands for each in instructions), strict=True)
    sources = [
        _reader([registers.place(each) for each in _of(column)], registers)
        if constant is None
        else constant.__getitem__
        for column, constant in zip(operands, constants, strict=True)
    ]
    target_rows = np.array([registers.place(each)[1] for each in _of(targets)])
    target = registers.table(targets[0].bits)
    column = target_rows[:, None]
    states = States([each for part in operands for each in _of(part)], _of(targets), registers)

    def step(lanes: Lanes) -> None:
        is_slice = type(lanes) is slice
        count = lanes.stop - lanes.start if isinstance(lanes, slice) else len(lanes)
        if count > MAX_LANES or not states.are_free(lanes):
            for each in steps:
                each(lanes)
            return
        result = function(*[source(lanes) for source in sources])
        target[target_rows if is_slice else column, lanes] = result
        states.define(lanes)

    return step


class States:
    """Tell whether a step may read and write its registers, and mark what it has written."""

    def __init__(
        self, read: Sequence[Register], written: Sequence[Register], registers: RegisterFile
    ) -> None:
        self._table = registers.state_table
        self._read = _state_rows(read, registers)
        self._written = _state_rows(written, registers)

    def are_free(self, lanes: Lanes) -> bool:
        """Return whether all may be read and written; states that may be read are odd."""
        is_slice = type(lanes) is slice
        if self._read is not None:
            held = self._table[self._read if is_slice else self._read[:, None], lanes]
            if not reduce_and(held, axis=None) & 1:
                return False
        if self._written is not None:
            held = self._table[self._written if is_slice else self._written[:, None], lanes]
            return bool(reduce_max(held, axis=None) <= DEFINED)
        return True

    def define(self, lanes: Lanes) -> None:
        """Mark what was written as defined."""
        if self._written is not None:
            rows = self._written if type(lanes) is slice else self._written[:, None]
            self._table[rows, lanes] = DEFINED


def _reader(places: Sequence[tuple[int, int]], registers: RegisterFile) -> Callable[[Lanes], Array]:
    """Return what reads a register of each instruction: a matrix, or one row if all read the same."""
    table = registers.table(places[0][0])
    rows = [row for _, row in places]
    if len(set(rows)) == 1:
        return table[rows[0]].__getitem__
    index = np.array(rows)
    column = index[:, None]
    return lambda lanes: table[index if type(lanes) is slice else column, lanes]


def _state_rows(each: Sequence[Register], registers: RegisterFile) -> Array | None:
    found = dict.fromkeys(registers.state_row(register) for register in each)
    rows = [row for row in found if row is not None]
    return np.array(rows) if rows else None

"""Find accesses to the registers of matrix instructions in flight.

For PTX and its virtual registers `aotc.backend.wgmma_registers` has the same rule. ptxas
assigns several of these to one physical register and moves instructions, so the rule is checked
again here.

A group is committed by the instruction with the operand `gsb0`, and awaited by
`WARPGROUP.DEPBAR`. A register range is named by its first register only.

Invariant: all paths are followed, back edges included; where they meet, the youngest group
counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from aotc.verify.sass.findings import Finding
from aotc.verify.sass.flow import Block, Graph
from aotc.verify.sass.instructions import MATRIX, extra_results, results, sources
from aotc.verify.sass.text import Instruction

_REGISTER: Final = re.compile(r"R(\d+)(?:\.|$)")
_COMMIT: Final = "gsb0"
_FRAGMENT_REGISTERS: Final = 4  # of 32 bits, for every type

_Ages: TypeAlias = dict[int, int]
"""The age of the group of each matrix instruction in flight, by its address; 0 until it is committed."""


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A matrix instruction, the registers of its A fragment, and its accumulator."""

    instruction: Instruction
    fragment: frozenset[str]
    accumulator: tuple[str, ...]


def find_touched(graph: Graph) -> Iterator[Finding]:
    """Yield a finding for each access to registers in flight."""
    matrices = {
        instruction.address: _matrix(instruction)
        for block in graph.blocks
        for instruction in block.instructions
        if instruction.name in MATRIX
    }
    if not matrices:
        return
    findings: dict[int, Finding] = {}
    entries: dict[int, _Ages] = {0: {}}
    waiting = [0]
    while waiting:
        block = graph.blocks[waiting.pop()]
        ages = _run(block, entries[block.index], matrices, findings)
        for after in block.successors:
            entry = entries.get(after)
            younger = {
                matrix: age
                for matrix, age in ages.items()
                if entry is None or entry.get(matrix, age + 1) > age
            }
            if entry is None or younger:
                entries[after] = {**(entry or {}), **younger}
                waiting.append(after)
    yield from (findings[address] for address in sorted(findings))


def _run(
    block: Block, entry: _Ages, matrices: dict[int, _Matrix], findings: dict[int, Finding]
) -> _Ages:
    """Return the groups in flight after a block; record accesses to their registers."""
    ages = entry
    for instruction in block.instructions:
        if instruction.name in MATRIX:
            _check_matrix(matrices[instruction.address], ages, matrices, findings)
            ages = {**ages, instruction.address: 0}
            if _COMMIT in instruction.operands:
                ages = {address: age + 1 for address, age in ages.items()}
        elif instruction.name == "WARPGROUP" and "DEPBAR" in instruction.modifiers:
            left = int(instruction.operands[-1], 0)
            ages = {address: age for address, age in ages.items() if age <= left}
        elif ages:
            _check(instruction, ages, matrices, findings)
    return ages


def _matrix(instruction: Instruction) -> _Matrix:
    first = instruction.operands[0]
    operand = _REGISTER.match(instruction.operands[1])
    start = int(operand[1]) if operand is not None else 0
    fragment = [f"R{start + offset}" for offset in range(_FRAGMENT_REGISTERS)] if operand else []
    return _Matrix(instruction, frozenset(fragment), (first, *extra_results(instruction)))


def _check_matrix(
    matrix: _Matrix, ages: _Ages, matrices: dict[int, _Matrix], findings: dict[int, Finding]
) -> None:
    for address in ages:
        pending = matrices[address]
        same = pending.accumulator == matrix.accumulator
        overlap = set[str]() if same else set(pending.accumulator).intersection(matrix.accumulator)
        overlap |= pending.fragment.intersection(matrix.accumulator)
        _report(matrix.instruction, overlap, "written", pending, findings)
        read = matrix.fragment.intersection(pending.accumulator)
        _report(matrix.instruction, read, "read", pending, findings)


def _check(
    instruction: Instruction,
    ages: _Ages,
    matrices: dict[int, _Matrix],
    findings: dict[int, Finding],
) -> None:
    written = {*results(instruction), *extra_results(instruction)}
    read = sources(instruction)
    for address in ages:
        pending = matrices[address]
        touched = written & (pending.fragment | set(pending.accumulator))
        _report(instruction, touched, "written", pending, findings)
        _report(instruction, read.intersection(pending.accumulator), "read", pending, findings)


def _report(
    instruction: Instruction,
    registers: set[str] | frozenset[str],
    access: str,
    pending: _Matrix,
    findings: dict[int, Finding],
) -> None:
    if not registers or instruction.address in findings:
        return
    name = min(registers, key=lambda register: int(register[1:]))
    use = "read" if name in pending.fragment else "write"
    by = pending.instruction
    meaning = f"{name} is {access} while {by.text} at {by.address:#06x} is yet to {use} it"
    findings[instruction.address] = Finding(
        "in flight", instruction.address, instruction.text, meaning, (), instruction.source
    )

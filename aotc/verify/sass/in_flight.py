"""Registers that a matrix instruction of a warpgroup still reads or writes when others touch them.

PTX has a rule for them (`aotc.backend.wgmma_registers`), and virtual registers. ptxas gives several of
these one physical register, and moves instructions: this is the same rule on what it made.

A group is committed by the instruction that names `gsb0`, and awaited by `WARPGROUP.DEPBAR`. Of an
instruction that reads several registers by the name of the first, the first is known.

Invariant: all paths are followed, back edges included; where they meet, the youngest group counts.
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
    """A matrix instruction and the registers that it reads as A, and adds to."""

    instruction: Instruction
    fragment: frozenset[str]
    accumulator: tuple[str, ...]


def find_touched(graph: Graph) -> Iterator[Finding]:
    """Yield a finding for each instruction that touches registers in flight."""
    matrices = {
        each.address: _matrix(each)
        for block in graph.blocks
        for each in block.instructions
        if each.name in MATRIX
    }
    if not matrices:
        return
    found: dict[int, Finding] = {}
    entries: dict[int, _Ages] = {0: {}}
    waiting = [0]
    while waiting:
        block = graph.blocks[waiting.pop()]
        ages = _run(block, entries[block.index], matrices, found)
        for after in block.successors:
            known = entries.get(after)
            younger = {
                at: age for at, age in ages.items() if known is None or known.get(at, age + 1) > age
            }
            if known is None or younger:
                entries[after] = {**(known or {}), **younger}
                waiting.append(after)
    yield from (found[address] for address in sorted(found))


def _run(
    block: Block, entry: _Ages, matrices: dict[int, _Matrix], found: dict[int, Finding]
) -> _Ages:
    """Return what is in flight after a block; keep what touches its registers."""
    ages = entry
    for each in block.instructions:
        if each.name in MATRIX:
            _check_matrix(matrices[each.address], ages, matrices, found)
            ages = {**ages, each.address: 0}
            if _COMMIT in each.operands:
                ages = {at: age + 1 for at, age in ages.items()}
        elif each.name == "WARPGROUP" and "DEPBAR" in each.modifiers:
            left = int(each.operands[-1], 0)
            ages = {at: age for at, age in ages.items() if age <= left}
        elif ages:
            _check(each, ages, matrices, found)
    return ages


def _matrix(instruction: Instruction) -> _Matrix:
    first = instruction.operands[0]
    operand = _REGISTER.match(instruction.operands[1])
    start = int(operand[1]) if operand is not None else 0
    fragment = [f"R{start + at}" for at in range(_FRAGMENT_REGISTERS)] if operand else []
    return _Matrix(instruction, frozenset(fragment), (first, *extra_results(instruction)))


def _check_matrix(
    matrix: _Matrix, ages: _Ages, matrices: dict[int, _Matrix], found: dict[int, Finding]
) -> None:
    for at in ages:
        held = matrices[at]
        same = held.accumulator == matrix.accumulator
        both = set[str]() if same else set(held.accumulator).intersection(matrix.accumulator)
        both |= held.fragment.intersection(matrix.accumulator)
        _report(matrix.instruction, both, "written", held, found)
        read = matrix.fragment.intersection(held.accumulator)
        _report(matrix.instruction, read, "read", held, found)


def _check(
    each: Instruction, ages: _Ages, matrices: dict[int, _Matrix], found: dict[int, Finding]
) -> None:
    written = {*results(each), *extra_results(each)}
    read = sources(each)
    for at in ages:
        held = matrices[at]
        touched = written & (held.fragment | set(held.accumulator))
        _report(each, touched, "written", held, found)
        _report(each, read.intersection(held.accumulator), "read", held, found)


def _report(
    each: Instruction,
    registers: set[str] | frozenset[str],
    access: str,
    held: _Matrix,
    found: dict[int, Finding],
) -> None:
    if not registers or each.address in found:
        return
    name = min(registers, key=lambda register: int(register[1:]))
    use = "read" if name in held.fragment else "write"
    by = held.instruction
    meaning = f"{name} is {access} while {by.text} at {by.address:#06x} is yet to {use} it"
    found[each.address] = Finding("in flight", each.address, each.text, meaning, (), each.source)

"""One step for several instructions that warps compute together, such as a tile's `mma.sync`.

A tile is a grid of such instructions, which have their operands in common: 64 of them may multiply
two fragments of A by 32 of B. Each fragment is read and decoded once, and all are multiplied at once.

Invariant: as in `fused_steps`, what lanes hold is what they would hold in program order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from aotc.verify.arrays import Array, reshape
from aotc.verify.emulator.engine.compute_steps import Step
from aotc.verify.emulator.engine.divergence import Lanes
from aotc.verify.emulator.engine.fused_steps import States
from aotc.verify.emulator.engine.registers import RegisterFile
from aotc.verify.emulator.engine.registry import WarpCompute
from aotc.verify.emulator.syntax import Instruction, Operand, Register, elements_of
from aotc.verify.emulator.text.special_registers import WARP

# Where so many warps run in step, operands would leave the cache and save nothing.
_MAX_WARPS = 32


def fused_warps(
    instructions: Sequence[Instruction],
    rule: WarpCompute,
    registers: RegisterFile,
    steps: Sequence[Step],
) -> Step:
    """Return one step for instructions of one kind, each of which has one of `steps`.

    Their operands are registers of as many bits as `rule` takes.
    """
    columns = list(zip(*([*map(_registers, each.operands)] for each in instructions), strict=True))
    targets, *operands = columns
    readers = [_reader(column, registers) for column in operands]
    target = registers.table(targets[0][0].bits)
    target_rows = np.array([[registers.place(each)[1] for each in one] for one in targets])
    states = States(
        [each for column in operands for one in column for each in one],
        [each for one in targets for each in one],
        registers,
    )

    def step(lanes: Lanes) -> None:
        warps = _whole_warps(lanes)
        if not 0 < warps <= _MAX_WARPS or not states.are_free(lanes):
            for each in steps:
                each(lanes)
            return
        values = [read(lanes, decode) for read, decode in zip(readers, rule.decode, strict=True)]
        words = reshape(rule.compute(*values), len(instructions), warps, -1, WARP)
        rows = target_rows if isinstance(lanes, slice) else target_rows[:, :, None]
        target[rows, lanes] = reshape(np.swapaxes(words, 1, 2), *target_rows.shape, -1)
        states.define(lanes)

    return step


def _registers(operand: Operand) -> tuple[Register, ...]:
    found = tuple(each for each in elements_of(operand) if isinstance(each, Register))
    assert len(found) == len(elements_of(operand)), "what shares a step has registers alone"
    return found


def _whole_warps(lanes: Lanes) -> int:
    """Return how many warps ascending lanes are, if these are whole, else 0."""
    if isinstance(lanes, slice):
        return 0 if (lanes.start | lanes.stop) % WARP else (lanes.stop - lanes.start) // WARP
    if len(lanes) % WARP:
        return 0
    each = reshape(lanes, -1, WARP)
    whole = (each[:, 0] % WARP == 0) & (each[:, -1] - each[:, 0] == WARP - 1)
    return len(each) if whole.all() else 0


def _reader(
    column: Sequence[tuple[Register, ...]], registers: RegisterFile
) -> Callable[[Lanes, Callable[[Array], Array]], Array]:
    """Return what reads and decodes an operand of each instruction, those in common once."""
    table = registers.table(column[0][0].bits)
    each = [tuple(registers.place(register)[1] for register in one) for one in column]
    number = {rows: at for at, rows in enumerate(dict.fromkeys(each))}
    index, inverse = np.array(list(number)), np.array([number[rows] for rows in each])

    def read(lanes: Lanes, decode: Callable[[Array], Array]) -> Array:
        words = table[index if isinstance(lanes, slice) else index[:, :, None], lanes]
        words = reshape(words, *index.shape, -1, WARP)
        decoded = decode(reshape(np.swapaxes(words, 1, 2), -1, index.shape[1], WARP))
        if len(index) == len(inverse):
            return decoded
        apart = reshape(decoded, len(index), -1, *decoded.shape[1:])
        return reshape(apart[inverse], -1, *decoded.shape[1:])

    return read

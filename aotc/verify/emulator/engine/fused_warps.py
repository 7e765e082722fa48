"""Fuse warp-wide computations of one kind, such as a tile's `mma.sync`.

A tile is a grid of such instructions with shared operands: 64 of them may multiply two fragments of
A by 32 of B. Each fragment is read and decoded once, and all products are computed at once.

Invariant: as in `fused_steps`, the lanes' state equals program order's.
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

# With more warps in step, the operands would leave the cache and save nothing.
_MAX_WARPS = 32


def fused_warps(
    instructions: Sequence[Instruction],
    rule: WarpCompute,
    registers: RegisterFile,
    steps: Sequence[Step],
) -> Step:
    """Return one step for instructions of one kind; `steps` are their single steps.

    Their operands are registers of the widths in `rule`.
    """
    columns = list(
        zip(
            *([*map(_registers, instruction.operands)] for instruction in instructions), strict=True
        )
    )
    targets, *operands = columns
    readers = [_reader(column, registers) for column in operands]
    target = registers.table(targets[0][0].bits)
    target_rows = np.array(
        [[registers.table_row(register)[1] for register in fragment] for fragment in targets]
    )
    states = States(
        [register for column in operands for fragment in column for register in fragment],
        [register for fragment in targets for register in fragment],
        registers,
    )

    def step(lanes: Lanes) -> None:
        warps = _whole_warps(lanes)
        if not 0 < warps <= _MAX_WARPS or not states.are_free(lanes):
            for single_step in steps:
                single_step(lanes)
            return
        values = [read(lanes, decode) for read, decode in zip(readers, rule.decode, strict=True)]
        words = reshape(rule.compute(*values), len(instructions), warps, -1, WARP)
        rows = target_rows if isinstance(lanes, slice) else target_rows[:, :, None]
        target[rows, lanes] = reshape(np.swapaxes(words, 1, 2), *target_rows.shape, -1)
        states.define(lanes)

    return step


def _registers(operand: Operand) -> tuple[Register, ...]:
    registers = tuple(element for element in elements_of(operand) if isinstance(element, Register))
    assert len(registers) == len(elements_of(operand)), "what shares a step has registers alone"
    return registers


def _whole_warps(lanes: Lanes) -> int:
    """Return the number of warps of ascending lanes, 0 if one is incomplete."""
    if isinstance(lanes, slice):
        return 0 if (lanes.start | lanes.stop) % WARP else (lanes.stop - lanes.start) // WARP
    if len(lanes) % WARP:
        return 0
    warp_lanes = reshape(lanes, -1, WARP)
    whole = (warp_lanes[:, 0] % WARP == 0) & (warp_lanes[:, -1] - warp_lanes[:, 0] == WARP - 1)
    return len(warp_lanes) if whole.all() else 0


def _reader(
    column: Sequence[tuple[Register, ...]], registers: RegisterFile
) -> Callable[[Lanes, Callable[[Array], Array]], Array]:
    """Return a reader and decoder of an operand column; shared fragments are decoded once."""
    table = registers.table(column[0][0].bits)
    column_rows = [
        tuple(registers.table_row(register)[1] for register in fragment) for fragment in column
    ]
    number = {rows: index for index, rows in enumerate(dict.fromkeys(column_rows))}
    index, inverse = np.array(list(number)), np.array([number[rows] for rows in column_rows])

    def read(lanes: Lanes, decode: Callable[[Array], Array]) -> Array:
        words = table[index if isinstance(lanes, slice) else index[:, :, None], lanes]
        words = reshape(words, *index.shape, -1, WARP)
        decoded = decode(reshape(np.swapaxes(words, 1, 2), -1, index.shape[1], WARP))
        if len(index) == len(inverse):
            return decoded
        apart = reshape(decoded, len(index), -1, *decoded.shape[1:])
        return reshape(apart[inverse], -1, *decoded.shape[1:])

    return read

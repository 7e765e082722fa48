"""Fuse loads of one kind with no store in between, such as a tile's `ldmatrix`.

Invariant: as in `fused_steps`; a faulty read is reported at its own load.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aotc.verify.emulator.engine.compute_steps import Step
from aotc.verify.emulator.engine.divergence import Lanes
from aotc.verify.emulator.engine.fused_steps import MAX_LANES, States
from aotc.verify.emulator.engine.lane_context import LaneContext
from aotc.verify.emulator.engine.machine import Current
from aotc.verify.emulator.engine.registers import RegisterFile
from aotc.verify.emulator.engine.registry import Loads
from aotc.verify.emulator.errors import Misuse
from aotc.verify.emulator.syntax import Address, Instruction, Register, elements_of


def fused_loads(
    instructions: Sequence[Instruction],
    read: Loads,
    registers: RegisterFile,
    current: Current,
    steps: Sequence[Step],
) -> Step:
    """Return one step for loads of one kind; `steps` are their single steps."""
    first = instructions[0]
    addresses = [instruction.operands[1] for instruction in instructions]
    bases = [
        address.base
        for address in addresses
        if isinstance(address, Address) and isinstance(address.base, Register)
    ]
    offsets = np.array([address.offset for address in addresses if isinstance(address, Address)])[
        :, None
    ]
    targets = [
        [
            register
            for register in elements_of(instruction.operands[0])
            if isinstance(register, Register)
        ]
        for instruction in instructions
    ]
    base_table, target_table = registers.table(bases[0].bits), registers.table(targets[0][0].bits)
    base_rows = np.array([registers.table_row(register)[1] for register in bases])
    target_rows = np.array(
        [[registers.table_row(register)[1] for register in target] for target in targets]
    )
    states = States(bases, [register for target in targets for register in target], registers)

    def step(lanes: Lanes) -> None:
        context = LaneContext(current.batch, first, lanes)
        if context.count > MAX_LANES or not states.are_free(lanes):
            for load_step in steps:
                load_step(lanes)
            return
        is_slice = isinstance(lanes, slice)
        rows = base_rows if is_slice else base_rows[:, None]
        address = base_table[rows, lanes].astype(np.int64) + offsets
        current.batch.executing = first
        try:
            words = read(context, address, instructions)
        except Misuse:
            for load_step in steps:  # reports the faulty one
                load_step(lanes)
            return
        target_table[target_rows if is_slice else target_rows[:, :, None], lanes] = words
        states.define(lanes)

    return step

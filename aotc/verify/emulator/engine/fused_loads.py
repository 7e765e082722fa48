"""One step for several loads of one kind between which nothing is stored, such as a tile's `ldmatrix`.

Invariant: as in `fused_steps`; and what one load may not read is reported at that load.
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
    """Return one step for loads of one kind, each of which has one of `steps`."""
    first = instructions[0]
    addresses = [each.operands[1] for each in instructions]
    bases = [
        each.base
        for each in addresses
        if isinstance(each, Address) and isinstance(each.base, Register)
    ]
    offsets = np.array([each.offset for each in addresses if isinstance(each, Address)])[:, None]
    targets = [
        [each for each in elements_of(one.operands[0]) if isinstance(each, Register)]
        for one in instructions
    ]
    base_table, target_table = registers.table(bases[0].bits), registers.table(targets[0][0].bits)
    base_rows = np.array([registers.place(each)[1] for each in bases])
    target_rows = np.array([[registers.place(each)[1] for each in one] for one in targets])
    states = States(bases, [each for one in targets for each in one], registers)

    def step(lanes: Lanes) -> None:
        context = LaneContext(current.batch, first, lanes)
        if context.count > MAX_LANES or not states.are_free(lanes):
            for each in steps:
                each(lanes)
            return
        is_slice = isinstance(lanes, slice)
        rows = base_rows if is_slice else base_rows[:, None]
        address = base_table[rows, lanes].astype(np.int64) + offsets
        current.batch.executing = first
        try:
            words = read(context, address, instructions)
        except Misuse:
            for each in steps:  # of which one is to blame
                each(lanes)
            return
        target_table[target_rows if is_slice else target_rows[:, :, None], lanes] = words
        states.define(lanes)

    return step

"""Asynchronous stores and reductions to another CTA of the cluster: `st.async`, `red.async`.

Source: PTX ISA, "st.async", "red.async".
"""

from __future__ import annotations

import numpy as np

from aotc.verify.arrays import view
from aotc.verify.emulator.async_copies.bulk import REDUCTIONS, reduction
from aotc.verify.emulator.async_copies.transfers import COMPLETES, blamed_on
from aotc.verify.emulator.compute.registry import bits_dtype
from aotc.verify.emulator.engine.context import Context
from aotc.verify.emulator.engine.registry import Execute, executes
from aotc.verify.emulator.errors import Unsupported
from aotc.verify.emulator.memory_access.spaces import form_of
from aotc.verify.emulator.synchronization.mbarrier import Mbarriers, window_removed
from aotc.verify.emulator.syntax import Instruction, elements_of

_WORDS = frozenset({"async", COMPLETES})


@executes("st.async")
def store(instruction: Instruction) -> Execute:
    """Store registers to a CTA of the cluster, and complete their bytes at its mbarrier."""
    form = form_of(instruction, _WORDS)
    if form.space != "shared" or COMPLETES not in form.rest or form.bits not in (32, 64):
        raise Unsupported("a store that does not complete at an mbarrier of .shared::cluster")
    target, source, mbarrier = instruction.operands
    sources = elements_of(source)
    dtype = bits_dtype(form.bits)

    def execute(ctx: Context) -> None:
        shared, mbarriers = ctx.machine.shared, ctx.machine.part(Mbarriers)
        lanes = np.asarray(ctx.lane_indices())
        rows = mbarriers.find(lanes, ctx.address(mbarrier), instruction, asynchronous=True)
        values = np.stack([ctx.read(register, form.bits) for register in sources], axis=1).astype(
            dtype
        )
        address = window_removed(ctx.address(target))
        flight = shared.begin(lanes, address, form.size_bytes, instruction, writes=True)
        sizes = np.full(len(lanes), form.size_bytes)

        def complete() -> None:
            with blamed_on(instruction):
                shared.poke(flight, view(values, np.uint8))
                shared.finish(flight, asynchronous=True)
                mbarriers.complete_bytes(lanes, rows, sizes)

        ctx.machine.defer(lanes, complete)

    return execute


@executes("red.async")
def reduce(instruction: Instruction) -> Execute:
    """Combine a register into memory of a CTA of the cluster, and complete its bytes there."""
    form = form_of(instruction, _WORDS | REDUCTIONS)
    operations = [word for word in form.rest if word in REDUCTIONS]
    if form.space != "shared" or COMPLETES not in form.rest or len(operations) != 1:
        raise Unsupported("a reduction that does not complete at an mbarrier of .shared::cluster")
    combine, size = reduction(
        instruction, operations[0], f"{form.kind}{form.bits}", "shared::cluster"
    )
    target, source, mbarrier = instruction.operands

    def execute(ctx: Context) -> None:
        shared, mbarriers = ctx.machine.shared, ctx.machine.part(Mbarriers)
        lanes = np.asarray(ctx.lane_indices())
        rows = mbarriers.find(lanes, ctx.address(mbarrier), instruction, asynchronous=True)
        values = np.array(ctx.read(source, form.bits))
        address = window_removed(ctx.address(target))
        sizes = np.full(len(lanes), size)

        def complete() -> None:
            with blamed_on(instruction):
                shared.update(
                    lanes,
                    address,
                    size,
                    instruction,
                    lambda old, positions: combine(old, values[positions]),
                    asynchronous=True,
                )
                mbarriers.complete_bytes(lanes, rows, sizes)

        ctx.machine.defer(lanes, complete)

    return execute

"""Loads and stores, and address instructions: `cvta`, `isspacep`, `prefetch` and kin.

Source: PTX ISA, "Data Movement and Conversion Instructions": ld, ld.global.nc, st, prefetch,
isspacep, cvta, createpolicy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aotc.verify.arrays import Array, view
from aotc.verify.emulator.compute.registry import bits_dtype
from aotc.verify.emulator.control.cluster import own_rank
from aotc.verify.emulator.engine.context import Context
from aotc.verify.emulator.engine.registry import Execute, Loads, executes, loads
from aotc.verify.emulator.errors import Unsupported
from aotc.verify.emulator.memory.global_memory import SHARED_WINDOW
from aotc.verify.emulator.memory.shared_memory import RANK_SHIFT
from aotc.verify.emulator.memory.vector_clocks import WEAK, Ints
from aotc.verify.emulator.memory_access.release_acquire import MemoryOrder
from aotc.verify.emulator.memory_access.spaces import (
    SPACES,
    WINDOWS,
    form_of,
    is_uniform,
    locations_of,
    read_bytes,
    spaces_of,
    write_bytes,
)
from aotc.verify.emulator.syntax import Instruction, Operand, Register, elements_of


@executes("ld", "ldu")
def load(instruction: Instruction) -> Execute:
    """Read memory into a register, or into several from consecutive addresses."""
    form = form_of(instruction)
    destinations = elements_of(instruction.operands[0])
    source = instruction.operands[1]
    uniform = form.space in ("param", "const") and is_uniform(instruction, 1)
    dtype = bits_dtype(form.bits)
    scope, acquires = form.scope, form.acquires

    def run(ctx: Context) -> None:
        address = ctx.address(source)
        if uniform and (form.space == "const" or len(ctx.machine.params) == 1):
            address = address[:1]
        data = read_bytes(ctx, form.space, address, form.size_bytes, form.scope)
        values = view(data, dtype)
        for index, destination in enumerate(destinations):
            value = values[:, index]
            if form.kind == "s":
                value = _extended(value, form.bits, destination)
            ctx.write(destination, value)
        if scope != WEAK:
            locations = locations_of(form.space, address)
            ctx.machine.part(MemoryOrder).read(ctx.lanes, locations, scope, acquires=acquires)

    return run


@loads("ld")
def loads_of_shared_memory(instruction: Instruction) -> Loads | None:
    """Fuse weak loads of shared memory into registers of the element's width."""
    form = form_of(instruction)
    wide = all(
        isinstance(element, Register) and element.bits == form.bits
        for element in elements_of(instruction.operands[0])
    )
    if form.space != "shared" or form.scope != WEAK or not wide:
        return None
    dtype = bits_dtype(form.bits)

    def read(ctx: Context, address: Ints, instructions: Sequence[Instruction]) -> Array:
        lanes = ctx.lane_indices()
        data = ctx.machine.shared.load_each(lanes, address, form.size_bytes, instructions)
        return np.swapaxes(view(data, dtype), 1, 2)

    return read


@executes("st")
def store(instruction: Instruction) -> Execute:
    """Write a register to memory, or several to consecutive addresses."""
    form = form_of(instruction)
    target = instruction.operands[0]
    sources = elements_of(instruction.operands[1])
    dtype = bits_dtype(form.bits)
    scope, releases = form.scope, form.releases

    def run(ctx: Context) -> None:
        values = np.empty((ctx.count, form.count), dtype)
        for index, source in enumerate(sources):
            values[:, index] = ctx.read(source, form.bits)
        address = ctx.address(target)
        write_bytes(ctx, form.space, address, view(values, np.uint8), scope)
        if scope != WEAK:
            locations = locations_of(form.space, address)
            ctx.machine.part(MemoryOrder).record_write(
                ctx.lanes, locations, scope, releases=releases
            )
            ctx.machine.note_event()

    return run


@executes("prefetch", "prefetchu")
def prefetch(instruction: Instruction) -> Execute:
    """Do nothing: a cache hint."""
    del instruction
    return _nothing


@executes("createpolicy")
def create_policy(instruction: Instruction) -> Execute:
    """Create a cache policy: opaque, so any value will do."""
    destination = instruction.operands[0]

    def run(ctx: Context) -> None:
        ctx.write(destination, np.zeros((), np.uint64))

    return run


@executes("cvta")
def convert_address(instruction: Instruction) -> Execute:
    """Convert an address of a space to a generic one, or with `.to` back."""
    modifiers = instruction.modifiers
    back = modifiers[0] == "to"
    space = modifiers[1 if back else 0]
    if space not in SPACES:
        raise Unsupported(f"modifier .{space}")
    window = WINDOWS[SPACES[space]]
    destination, source = instruction.operands

    def run(ctx: Context) -> None:
        address = ctx.address(source)
        ctx.write(destination, view(address - window if back else address + window, np.uint64))

    return run


@executes("isspacep")
def is_space(instruction: Instruction) -> Execute:
    """Test whether a generic address is in a space; `.shared` means the CTA's own."""
    name = instruction.modifiers[0]
    if name not in SPACES:
        raise Unsupported(f"modifier .{name}")
    space = tuple(WINDOWS).index(SPACES[name])
    destination, source = instruction.operands

    def run(ctx: Context) -> None:
        address = view(ctx.read(source, 64), np.int64)
        inside = spaces_of(address) == space
        if name in ("shared", "shared::cta"):
            # 0, or the rank plus one, as from `mapa`.
            rank = (address - SHARED_WINDOW) >> RANK_SHIFT
            inside &= (rank == 0) | (rank == own_rank(ctx) + 1)
        ctx.write(destination, inside)

    return run


def _extended(value: npt.NDArray[Any], bits: int, destination: Operand) -> npt.NDArray[Any]:
    """Return signed values extended to the destination register's width."""
    if not isinstance(destination, Register) or destination.bits <= bits:
        return value
    signed = view(value, f"i{bits // 8}").astype(f"i{destination.bits // 8}")
    return view(signed, bits_dtype(destination.bits))


def _nothing(ctx: Context) -> None:
    """Do nothing."""

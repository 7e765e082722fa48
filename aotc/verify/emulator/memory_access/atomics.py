"""Atomic operations: `atom` returns the old value, `red` does not.

The arithmetic is that of the plain instructions, except for additions in global memory: those of
f32 flush subnormals, save in bulk reductions, and those of f64 keep signalling NaN.

Source: PTX ISA, "Parallel Synchronization and Communication Instructions": atom, red.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from aotc.verify.arrays import view
from aotc.verify.emulator.compute.float_arithmetic import DEFAULT_NAN
from aotc.verify.emulator.compute.registry import COMPUTES, bits_dtype
from aotc.verify.emulator.compute.rounding import F64
from aotc.verify.emulator.engine.context import Context
from aotc.verify.emulator.engine.registry import Execute, executes
from aotc.verify.emulator.errors import Unsupported
from aotc.verify.emulator.memory.vector_clocks import Ints
from aotc.verify.emulator.memory_access.release_acquire import MemoryOrder
from aotc.verify.emulator.memory_access.spaces import Form, form_of, locations_of, split_generic
from aotc.verify.emulator.syntax import Instruction, Register, elements_of

Cells: TypeAlias = npt.NDArray[Any]
Combine: TypeAlias = Callable[..., Cells]  # old, operand, and a second operand for cas

_OPERATIONS = frozenset(
    ("add", "and", "cas", "dec", "exch", "inc", "max", "min", "or", "sub", "xor")
)
_BITWISE = frozenset(("and", "or", "xor"))


def _exchange(old: Cells, value: Cells) -> Cells:
    del old
    return value


def _compare_and_swap(old: Cells, expected: Cells, value: Cells) -> Cells:
    return np.where(old == expected, value, old)


def _increment(old: Cells, limit: Cells) -> Cells:
    return np.where(old >= limit, 0, old + old.dtype.type(1)).astype(old.dtype)


def _decrement(old: Cells, limit: Cells) -> Cells:
    stays = (old != 0) & (old <= limit)
    return np.where(stays, old - old.dtype.type(1), limit).astype(old.dtype)


_COMBINES: dict[str, Combine] = {
    "cas": _compare_and_swap,
    "dec": _decrement,
    "exch": _exchange,
    "inc": _increment,
}


@executes("atom", "red")
def atomic(instruction: Instruction) -> Execute:
    """Combine memory with registers, one lane after another."""
    form = form_of(instruction, _OPERATIONS | {"noftz"})
    operations = [name for name in form.rest if name in _OPERATIONS]
    if len(operations) != 1:
        raise Unsupported("an atomic operation of several names")
    combine = combine_of(instruction, form, operations[0])
    operands = instruction.operands[: len(instruction.operands) - form.cache_hint]
    returns = instruction.opcode == "atom"
    destinations = elements_of(operands[0]) if returns else ()
    target = operands[1 if returns else 0]
    sources = [elements_of(operand) for operand in operands[2 if returns else 1 :]]

    def run(ctx: Context) -> None:
        address = ctx.address(target)
        for index in range(form.count):
            values = [ctx.read(source[index], form.bits) for source in sources]
            where = address + index * (form.bits // 8)
            old = _update(ctx, form, where, combine, values)
            if returns:
                ctx.write(destinations[index], old)
        order, locations = ctx.machine.part(MemoryOrder), locations_of(form.space, address)
        order.record_write(ctx.lanes, locations, form.scope, releases=form.releases)
        if returns:  # `red` does not acquire
            order.read(ctx.lanes, locations, form.scope, acquires=form.acquires)
        ctx.machine.note_event()

    return run


def _update(
    ctx: Context, form: Form, address: Ints, combine: Combine, values: list[Cells]
) -> Cells:
    """Apply an operation to memory of any space; return the old values."""
    size = form.bits // 8
    parts = [(form.space, None, 0)] if form.space != "generic" else split_generic(address)
    old = np.empty(len(address), bits_dtype(form.bits))
    numbers = ctx.lane_indices()
    for space, mask, base in parts:
        chosen = np.arange(len(address)) if mask is None else np.flatnonzero(mask)

        def act(current: Cells, positions: Ints, chosen: Ints = chosen) -> Cells:
            return combine(current, *(value[chosen[positions]] for value in values))

        where, lanes = address[chosen] - base, numbers[chosen]
        if space == "shared":
            old[chosen] = ctx.machine.shared.update(lanes, where, size, ctx.instruction, act)
        elif space == "global":
            ctx.machine.global_memory.check(where, size, lanes, write=True)
            ctx.machine.global_shadow.update(lanes, where, size, ctx.instruction, form.scope)
            old[chosen] = ctx.machine.global_memory.update(where, size, act, lanes)
        else:
            raise ctx.fault(f"an atomic operation on {space} memory", int(lanes[0]))
    return old


def _add_doubles(old: Cells, value: Cells) -> Cells:
    """Add as global memory's atomic units do: NaN passes unchanged, the operand's first."""
    total = view(np.asarray(view(old, np.float64) + view(value, np.float64)), np.uint64)
    total = np.where(F64.is_nan(total), DEFAULT_NAN, total)
    return np.where(F64.is_nan(value), value, np.where(F64.is_nan(old), old, total))


def combine_of(
    instruction: Instruction, form: Form, operation: str, *, is_bulk: bool = False
) -> Combine:
    """Return the function of old cells and operands for an operation."""
    if operation in _COMBINES:
        return _COMBINES[operation]
    type_name = f"{form.kind}{form.bits // (2 if 'x2' in form.rest else 1)}"
    type_name += "x2" if "x2" in form.rest else ""
    if operation == "add" and type_name == "f64" and form.space != "shared":
        return _add_doubles
    if operation in _BITWISE:
        modifiers: tuple[str, ...] = (f"b{form.bits}",)
    elif form.kind in ("f", "bf") and operation == "add":
        # Additions of f32 in global memory flush subnormals; those in shared memory do not.
        flushes = type_name == "f32" and form.space != "shared" and not is_bulk
        flush = ("ftz",) if flushes else ()
        modifiers = ("rn", *flush, type_name)
    else:
        modifiers = (type_name,)
    register = Register("%old", form.bits, 0)
    plain = replace(
        instruction, opcode=operation, modifiers=modifiers, operands=(register,) * 3, guard=None
    )
    compute = COMPUTES[operation](plain)

    def combine(old: Cells, value: Cells) -> Cells:
        # Of two f64 NaN `add` keeps the second: in shared memory, the old value.
        result = compute(value, old) if operation == "add" else compute(old, value)
        return result[0] if isinstance(result, tuple) else result

    return combine

"""Bulk copies of consecutive bytes, their reductions, and their bulk groups.

Source: PTX ISA, "cp.async.bulk", "cp.reduce.async.bulk", "cp.async.bulk.prefetch",
"cp.async.bulk.commit_group", "cp.async.bulk.wait_group".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aotc.verify.arrays import reshape, view
from aotc.verify.emulator.async_copies.transfers import (
    CHUNK_BYTES,
    COMPLETES,
    BulkGroups,
    as_chunks,
    begin_each,
    blamed_on,
    chunks_of,
    copy_in,
    copy_out,
    ranks_of,
)
from aotc.verify.emulator.engine.context import Context
from aotc.verify.emulator.engine.registry import Execute, executes
from aotc.verify.emulator.errors import Misuse, Unsupported
from aotc.verify.emulator.memory.global_memory import Bytes, cell_dtype
from aotc.verify.emulator.memory.vector_clocks import Ints
from aotc.verify.emulator.memory_access.atomics import Combine, combine_of
from aotc.verify.emulator.memory_access.spaces import form_of
from aotc.verify.emulator.synchronization.mbarrier import Mbarriers, window_removed
from aotc.verify.emulator.syntax import Immediate, Instruction, Operand

_DIRECTIONS = frozenset(
    {
        ("shared::cluster", "global"),
        ("shared::cta", "global"),
        ("shared::cluster", "shared::cta"),
        ("global", "shared::cta"),
    }
)
REDUCTIONS = frozenset({"add", "min", "max", "inc", "dec", "and", "or", "xor"})
_HINT, _MULTICAST = "L2::cache_hint", "multicast::cluster"


def _direction(words: Sequence[str], *, optional: frozenset[str]) -> tuple[str, str]:
    """Return the destination and source spaces of a copy.

    Raises: Unsupported for other modifiers.
    """
    target, source, *rest = words
    mechanism = "bulk_group" if target == "global" else COMPLETES
    allowed = {mechanism, _HINT} | optional
    unknown = [word for word in rest if word not in allowed]
    if unknown or mechanism not in rest:
        raise Unsupported(f"the modifier .{unknown[0]}" if unknown else f"no .{mechanism}")
    if (target, source) not in _DIRECTIONS:
        raise Unsupported(f"a copy from .{source} to .{target}")
    return target, source


class _Lane:
    """Hold one lane's operands of a copy."""

    def __init__(self, ctx: Context, index: int, operands: Sequence[Operand]) -> None:
        self.lane = int(ctx.lane_indices()[index])
        self.target = int(window_removed(ctx.address(operands[0]))[index])
        self.source = int(window_removed(ctx.address(operands[1]))[index])
        self.size_bytes = int(ctx.read(operands[2], 32)[index])
        if self.size_bytes % CHUNK_BYTES:
            raise Misuse(
                "misaligned",
                f"copies {self.size_bytes} bytes, no multiple of {CHUNK_BYTES}",
                lane=self.lane,
            )
        self.mbarrier = int(ctx.address(operands[3])[index]) if len(operands) > 3 else 0


@executes("cp.async.bulk")
def copy(instruction: Instruction) -> Execute:
    """Copy bytes between global and shared memory, or to another CTA's."""
    words = instruction.modifiers[2:]
    target, source = _direction(words, optional=frozenset({_MULTICAST}))
    multicast = _MULTICAST in words
    count = 3 if target == "global" else 4
    operands = instruction.operands[:count]

    def execute(ctx: Context) -> None:
        masks = ctx.read(instruction.operands[count], 16) if multicast else None
        for index in range(ctx.count):
            lane = _Lane(ctx, index, operands)
            if target == "global":
                _to_global(ctx, lane)
            elif source == "global":
                ranks = None if masks is None else ranks_of(int(masks[index]))
                _from_global(ctx, lane, ranks)
            else:
                _to_other_cta(ctx, lane)

    return execute


def _from_global(ctx: Context, lane: _Lane, ranks: Sequence[int] | None) -> None:
    memory = ctx.machine.global_memory
    chunks = chunks_of(lane.source, lane.size_bytes)
    owners = np.full(len(chunks), lane.lane)
    memory.check(chunks, CHUNK_BYTES, owners)
    ctx.machine.global_shadow.check_copy(owners, chunks, CHUNK_BYTES, writes=False)
    copy_in(
        ctx,
        lane.lane,
        chunks_of(lane.target, lane.size_bytes),
        lane.mbarrier,
        lambda: memory.read(chunks, CHUNK_BYTES, owners),
        ranks=ranks,
    )


def _to_global(ctx: Context, lane: _Lane) -> None:
    memory = ctx.machine.global_memory
    chunks = chunks_of(lane.target, lane.size_bytes)
    owners = np.full(len(chunks), lane.lane)
    memory.check(chunks, CHUNK_BYTES, owners, write=True)
    ctx.machine.global_shadow.check_copy(owners, chunks, CHUNK_BYTES, writes=True)
    source = chunks_of(lane.source, lane.size_bytes)
    copy_out(
        ctx,
        lane.lane,
        begin_each(ctx, [lane.lane], [source], writes=False)[0],
        lambda data: memory.write(chunks, data, owners),
    )


def _to_other_cta(ctx: Context, lane: _Lane) -> None:
    """Copy to another CTA of the cluster; the mbarrier also releases the source bytes."""
    shared = ctx.machine.shared
    chunks = chunks_of(lane.source, lane.size_bytes)
    owners = np.full(len(chunks), lane.lane)
    flight = shared.begin(owners, chunks, CHUNK_BYTES, ctx.instruction, writes=False)

    def fetch() -> Bytes:
        data = shared.peek(flight)
        shared.finish(flight)
        return data

    copy_in(ctx, lane.lane, chunks_of(lane.target, lane.size_bytes), lane.mbarrier, fetch)


# ---- reductions -----------------------------------------------------------------------------------


@executes("cp.reduce.async.bulk")
def reduce(instruction: Instruction) -> Execute:
    """Combine bytes of shared memory into global memory or another CTA's shared memory."""
    words = instruction.modifiers[3:]
    types = words[-1:]
    operation = next((word for word in words if word in REDUCTIONS), "")
    optional = frozenset({operation, "noftz", *types})
    target, source = _direction(words, optional=optional)
    if not operation or source != "shared::cta":
        raise Unsupported(f"a reduction from .{source} without an operation")
    combine, size = reduction(instruction, operation, types[0], target)
    operands = instruction.operands[: 3 if target == "global" else 4]

    def execute(ctx: Context) -> None:
        for index in range(ctx.count):
            lane = _Lane(ctx, index, operands)
            if target == "global":
                _reduce_global(ctx, lane, combine, size)
            else:
                _reduce_in_other_cta(ctx, lane, combine, size)

    return execute


def reduction(
    instruction: Instruction, operation: str, type_name: str, target: str
) -> tuple[Combine, int]:
    """Return the combining function of a reduction, and the element size in bytes."""
    space = "global" if target == "global" else "shared"
    typed = Instruction(
        "red", (space, operation, type_name), (), None, instruction.line, instruction.text
    )
    form = form_of(typed, frozenset({operation}))
    return combine_of(typed, form, operation, is_bulk=True), form.size_bytes


def combine_global(ctx: Context, lane: int, where: Ints, elements: Bytes, combine: Combine) -> None:
    """Combine elements (n, size) into global memory at addresses (n,)."""
    size = elements.shape[1]
    values = reshape(view(np.ascontiguousarray(elements), cell_dtype(size)), -1)
    ctx.machine.global_memory.update(
        where,
        size,
        lambda old, positions: combine(old, values[positions]),
        np.full(len(where), lane),
    )


def _elements(address: int, count_bytes: int, size: int) -> Ints:
    return address + size * np.arange(count_bytes // size)


def _reduce_global(ctx: Context, lane: _Lane, combine: Combine, size: int) -> None:
    chunks = chunks_of(lane.target, lane.size_bytes)
    owners = np.full(len(chunks), lane.lane)
    ctx.machine.global_memory.check(chunks, CHUNK_BYTES, owners, write=True)
    ctx.machine.global_shadow.check_copy(owners, chunks, CHUNK_BYTES, writes=True)
    where = _elements(lane.target, lane.size_bytes, size)
    source = chunks_of(lane.source, lane.size_bytes)
    copy_out(
        ctx,
        lane.lane,
        begin_each(ctx, [lane.lane], [source], writes=False)[0],
        lambda data: combine_global(ctx, lane.lane, where, reshape(data, -1, size), combine),
    )


def _reduce_in_other_cta(ctx: Context, lane: _Lane, combine: Combine, size: int) -> None:
    """Combine into another CTA's bytes, which are not in flight: reductions may overlap there."""
    machine, instruction = ctx.machine, ctx.instruction
    shared, mbarriers = machine.shared, machine.part(Mbarriers)
    issuer = np.array([lane.lane])
    row = mbarriers.find_for_copies(issuer, np.array([lane.mbarrier]), instruction)
    chunks = chunks_of(lane.source, lane.size_bytes)
    owners = np.full(len(chunks), lane.lane)
    flight = shared.begin(owners, chunks, CHUNK_BYTES, instruction, writes=False)
    where = _elements(lane.target, lane.size_bytes, size)

    def complete() -> None:
        with blamed_on(instruction):
            values = reshape(as_chunks(shared.peek(flight)), -1, size)
            cells = reshape(view(np.ascontiguousarray(values), cell_dtype(size)), -1)
            shared.finish(flight)
            shared.update(
                np.full(len(where), lane.lane),
                where,
                size,
                instruction,
                lambda old, positions: combine(old, cells[positions]),
                asynchronous=True,
            )
            mbarriers.complete_bytes(issuer, row, np.array([lane.size_bytes]))

    machine.defer(issuer, complete)


# ---- groups and hints -----------------------------------------------------------------------------


@executes("cp.async.bulk.commit_group")
def commit_group(instruction: Instruction) -> Execute:
    """Close each lane's open bulk group."""
    del instruction

    def execute(ctx: Context) -> None:
        ctx.machine.part(BulkGroups).commit(ctx.lane_indices())

    return execute


@executes("cp.async.bulk.wait_group")
def wait_group(instruction: Instruction) -> Execute:
    """Wait until at most n groups are pending; with `.read`, only for their reads."""
    if instruction.modifiers[3:] not in ((), ("read",)):
        raise Unsupported("modifiers other than .read")
    (count,) = instruction.operands
    if not isinstance(count, Immediate):
        raise Unsupported("a number of groups that is not a constant")
    wait = BulkGroups.wait_reads if instruction.modifiers[3:] else BulkGroups.wait_writes

    def execute(ctx: Context) -> None:
        wait(ctx.machine.part(BulkGroups), ctx.lane_indices(), count.value)

    return execute


@executes("cp.async.bulk.prefetch")
def prefetch(instruction: Instruction) -> Execute:
    """Do nothing: a hint to the cache."""
    del instruction

    def execute(ctx: Context) -> None:
        del ctx

    return execute

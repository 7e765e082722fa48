"""Lower layout conversions: registers, shuffles, or an exchange through shared memory.

The planner (`conversions`) decides. This pass writes its plan into the IR, so a dump shows the cost
of every conversion and later passes see shared buffers like any other.

Small tiles with adjacent conversions, such as the values of one reduction, are all written before
any is read: one barrier is for all.

Invariant: afterwards a `gpu.convert` moves nothing between threads.
"""

from __future__ import annotations

from dataclasses import astuple

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.diagnostics import at
from aotc.ir.dialects import gpu
from aotc.ir.effects import Trait
from aotc.ir.rewrite import Builder
from aotc.ir.types import TileType
from aotc.schedule.analysis.register_budget import registers_of
from aotc.schedule.context import Schedule
from aotc.schedule.layout.conversions import (
    Conversion,
    Identity,
    RegisterPermute,
    SharedExchange,
    WarpShuffle,
    plan_conversion,
    plan_shared_exchange,
)
from aotc.schedule.layout.tensor_copies import is_tensor_load, read_buffer
from aotc.schedule.remarks import Remark
from aotc.target import Feature

_SMALL_BYTES = 1024
"""Of a tile that takes a buffer of its own, for one barrier less."""

_MOST_SHUFFLED = 8
"""Registers of an operand that threads hold whole; a larger one is read as dots need it."""


def plan_conversions(kernel: Kernel, schedule: Schedule) -> None:
    """Replace conversions between threads by ops that move data."""
    exchanged: dict[Value, Value] = {}
    for op in list(kernel.walk()):
        if not isinstance(op, gpu.Convert):
            continue
        source = op.value.type
        assert isinstance(source, TileType)
        assert source.layout is not None
        load = op.value.op
        if isinstance(load, gpu.SharedLoad) and is_tensor_load(load.buffer):
            # It is in shared memory already: read it from there in the new layout.
            with at(load.loc):
                builder = Builder.after_op(load)
                again = read_buffer(load.buffer, op.layout, schedule.target, builder)
            op.replace_with([again])
            continue
        buffer = exchanged.get(op.value)
        if buffer is not None and buffer.op is not None and buffer.op.block is op.block:
            # It goes through shared memory for another conversion: with one buffer, copies can be to it.
            with at(op.loc):
                builder = Builder.before_op(op)
                again = read_buffer(buffer, op.layout, schedule.target, builder)
            op.replace_with([again])
            continue
        memory = gpu.memory_element(source)
        planned = plan_shared_exchange if _is_read_in_parts(op) else plan_conversion
        plan = planned(
            source.layout,
            op.layout,
            memory.bits,
            stmatrix=Feature.STMATRIX in schedule.target.features,
            run_elems=_run_elems(op.value),
        )
        with at(op.loc):
            replacement = _lower(op, plan, Builder.before_op(op), schedule)
        if isinstance(plan, SharedExchange) and isinstance(load, gpu.Load):
            assert replacement is not None
            assert isinstance(replacement.op, gpu.SharedLoad)
            exchanged[op.value] = replacement.op.buffer
        if replacement is not None:
            op.replace_with([replacement])


def _is_read_in_parts(op: gpu.Convert) -> bool:
    """Return whether a tile with copies in several threads is for dots, and too large to hold.

    FMAs of a thread take all of K for each row and column: shuffles would fetch all of it at once.
    """
    num_registers = registers_of(op.out)
    is_for_fmas = all(isinstance(user, gpu.Dot) and not user.shape for user in op.out.users)
    return is_for_fmas and num_registers > max(_MOST_SHUFFLED, registers_of(op.value))


def _run_elems(value: Value) -> int:
    """Return how many of a tile's lowest registers are contiguous in memory; 1 if not loaded."""
    op = value.op
    while op is not None and op.has(Trait.VIEW):
        op = op.operands[0].op
    return op.vector if isinstance(op, gpu.Load) else 1


def _lower(op: gpu.Convert, plan: Conversion, builder: Builder, schedule: Schedule) -> Value | None:
    match plan:
        case Identity():
            return op.value
        case RegisterPermute():
            return None
        case WarpShuffle():
            return builder(gpu.ShuffleConvert(op.value, op.layout, astuple(plan))).out
        case SharedExchange():
            return _through_shared(op, plan, builder, schedule)


def _through_shared(
    op: gpu.Convert, plan: SharedExchange, builder: Builder, schedule: Schedule
) -> Value:
    source = op.value.type
    assert isinstance(source, TileType)
    scratch = plan.scratch.sublayout(["offset"], plan.scratch.out_dims)
    buffer = builder(gpu.SharedAlloc(gpu.memory_element(source), source.shape, scratch)).out
    builder(gpu.SharedStore(op.value, buffer, plan.store_vector_elems, plan.store_matrix))
    # `insert_barriers` places the barrier between the two.
    load = gpu.SharedLoad(
        buffer, op.layout, plan.load_vector_elems, plan.load_matrix, source.element
    )
    shape = "x".join(map(str, source.shape))
    text = Remark.EXCHANGED(shape=shape, element=source.element, size=plan.scratch_bytes)
    schedule.remark(op.loc, text)
    if plan.scratch_bytes > _SMALL_BYTES:
        return builder(load).out
    return Builder.before_op(_after_conversions(op))(load).out


def _after_conversions(op: gpu.Convert) -> Op:
    """Return the first op after a conversion other than conversions of other tiles."""
    after = op.next
    while isinstance(after, gpu.Convert) and after.value is not op.out:
        after = after.next
    assert after is not None, "a terminator follows"
    return after

"""Layout queries shared by rules: registers, threads, offsets.

Invariant: the answers depend on the layouts alone, and come from the layout algebra.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from aotc.backend.integers import Component, Registers
from aotc.backend.lower import LANE_BITS, Lowering
from aotc.ir import gf2
from aotc.ir.core import Op
from aotc.ir.layout import LinearLayout


def thread_columns(layout: LinearLayout) -> list[int]:
    """Return the packed bases of the bits of the thread id: lanes, then warps."""
    lanes = list(layout.columns("lane"))
    return lanes + [0] * (LANE_BITS - len(lanes)) + list(layout.columns("warp"))


def first_holders(layout: LinearLayout, constancy: Sequence[int] = ()) -> list[int]:
    """Return, for each register, the first register of the thread with the same element.

    Elements of an aligned run of `constancy` along each axis count as the same.
    """
    different = -1
    for axis, run in enumerate(constancy):
        extent = min(run, layout.shape[axis])  # the layout may be of a part of the tile
        different &= ~((extent - 1) * prod(layout.shape[axis + 1 :]))
    seen: dict[int, int] = {}
    return [
        seen.setdefault(element & different, register)
        for register, element in enumerate(layout.table("register"))
    ]


def rename(op: Op, registers: Registers, source: LinearLayout, target: LinearLayout) -> Registers:
    """Reorder a thread's registers from the layout `source` to `target`.

    Raises: IRError if a thread lacks an element.
    """
    if source == target:
        return registers
    if thread_columns(source) != thread_columns(target):
        op.error(f"moves data between threads, from {source} to {target}")
    where: dict[int, int] = {}
    for register, element in enumerate(source.table("register")):
        where.setdefault(element, register)
    return tuple(registers[_held(op, where, element)] for element in target.table("register"))


def _held(op: Op, where: dict[int, int], element: int) -> int:
    register = where.get(element)
    if register is None:
        op.error(f"needs element {element} of the tile, which its thread does not hold")
    return register


def redundant_threads(ctx: Lowering, layout: LinearLayout | None) -> int:
    """Return the mask of thread-id bits with copies; all bits for a scalar."""
    if layout is None:
        return (1 << ctx.thread_bits) - 1
    span = gf2.Span(layout.columns("register"))
    columns = thread_columns(layout)
    columns += [0] * (ctx.thread_bits - len(columns))
    return sum((not span.add(column)) << bit for bit, column in enumerate(columns))


def is_first_holder(ctx: Lowering, layout: LinearLayout | None) -> str:
    """Return an i1, true in one of the threads with the same elements, or ""."""
    mask = redundant_threads(ctx, layout)
    if mask == 0:
        return ""
    bits = ctx.thread
    if mask != (1 << ctx.thread_bits) - 1:
        bits = ctx.emit.thread_value(f"and i32 {ctx.thread}, {mask}")
    return ctx.emit.thread_value(f"icmp eq i32 {bits}, 0")


def both(ctx: Lowering, left: str, right: str) -> str:
    """Return the conjunction of two i1 operands; "" and "true" are true."""
    if "false" in (left, right):
        return "false"
    if left in ("", "true"):
        return "" if right == "true" else right
    if right in ("", "true") or left == right:
        return left
    name = ctx.emit.value(f"and i1 {left}, {right}")
    ctx.emit.conjuncts[name] = (*conjuncts(ctx, left), *conjuncts(ctx, right))
    return name


def conjuncts(ctx: Lowering, condition: str) -> tuple[str, ...]:
    """Return the i1 operands of the conjunction `condition`."""
    return ctx.emit.conjuncts.get(condition, (condition,))


def thread_offsets(
    ctx: Lowering, register_columns: Sequence[int], columns: Sequence[int]
) -> list[Component]:
    """Return, for each register, the i32 XOR of its columns and the thread's."""
    base = ctx.ints.linear(ctx.thread, columns)
    return [ctx.ints.xor_constant(base, part) for part in gf2.span_table(register_columns)]

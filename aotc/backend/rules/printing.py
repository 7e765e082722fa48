"""The rule for prints: a call for each element, in one of its threads.

Numbers are passed as C passes variadic arguments: 32-bit integers as such, fp32 as double.
"""

from __future__ import annotations

from aotc.backend import nvvm
from aotc.backend.emitter import Argument
from aotc.backend.llvm_types import llvm_type
from aotc.backend.lower import Lowering, Results, lowers
from aotc.backend.thread_map import first_holders, is_first_holder, thread_columns, thread_offsets
from aotc.ir.core import Value
from aotc.ir.dialects import tile
from aotc.ir.layout import LinearLayout
from aotc.ir.types import FP32, TileType, element_of


@lowers(tile.Print)
def lower_print(ctx: Lowering, op: tile.Print) -> Results:
    """Lower a print: one of an element's threads calls the driver's formatter."""
    emit = ctx.emit
    kind = None if op.value is None else op.value.type
    layout = kind.layout if isinstance(kind, TileType) else None
    programs = [("i32", ctx.scalar(program_id)) for program_id in (op.x, op.y, op.z)]
    values = [] if op.value is None else _promoted(ctx, op.value)
    axes = _coordinates(ctx, layout)
    mine = is_first_holder(ctx, layout)
    printing, exit_label = emit.new_label("printing"), emit.new_label("printed")
    if mine:
        emit.branch_if(mine, printing, exit_label)
        emit.start_block(printing)
    with emit.scope():
        holders = [0] if layout is None else first_holders(layout)
        for register in dict.fromkeys(holders):
            coordinates = [("i32", axis[register]) for axis in axes]
            nvvm.print_values(
                emit, op.text, [*programs, *coordinates, *values[register : register + 1]]
            )
    if mine:
        emit.branch(exit_label)
        emit.start_block(exit_label)
    return []


def _promoted(ctx: Lowering, value: Value) -> list[Argument]:
    """Return a value's registers as passed to `printf`: fp32 as double."""
    element = element_of(value.type)
    kind = llvm_type(element)
    registers = ctx.registers(value)
    if element == FP32:
        return [
            ("double", ctx.emit.value(f"fpext float {register} to double"))
            for register in registers
        ]
    return [(kind, register) for register in registers]


def _coordinates(ctx: Lowering, layout: LinearLayout | None) -> list[list[str]]:
    """Return, for each axis of a tile, the coordinate in each register; the last is innermost."""
    if layout is None:
        return []
    offsets = thread_offsets(ctx, layout.columns("register"), thread_columns(layout))
    flat = [ctx.ints.materialize(index, 32) for index in offsets]
    axes: list[list[str]] = []
    inner = 1
    for extent in reversed(layout.shape):
        shift = inner.bit_length() - 1
        shifted = [ctx.emit.value(f"lshr i32 {index}, {shift}") for index in flat]
        axes.append([ctx.emit.value(f"and i32 {index}, {extent - 1}") for index in shifted])
        inner *= extent
    return axes[::-1]

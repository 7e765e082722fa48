"""The rule for reductions inside a warp: registers first, then lanes by butterfly shuffles.

Linear algebra finds the registers and lanes with elements of one result. Take the layout and drop
the reduced axis. The kernel of this map, over the register and lane bits without copies, is the set
of steps from any element to the others of its result. Steps over registers alone combine elements
in each thread as a balanced tree; each remaining step is one shuffle by the XOR of its lane bits.

Invariant: every element contributes to its result once, and afterwards every lane holds the results
of its elements, in all registers the result's layout gives them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aotc.backend import nvvm
from aotc.backend.lower import LANE_BITS, Lowering, Results, layout_of, lowers
from aotc.backend.packing import from_i32_words, to_i32_words
from aotc.backend.thread_map import first_holders
from aotc.ir import gf2
from aotc.ir.core import Block, Op, Value
from aotc.ir.dialects import arith, gpu
from aotc.ir.layout import LinearLayout
from aotc.ir.types import ScalarType, TileType, element_of


@dataclass(frozen=True, slots=True)
class _Steps:
    """The steps from an element of a result to the others in the same warp.

    `registers` spans the steps inside a thread. Each of `exchanges`, a register XOR and a lane
    XOR, doubles the number of elements combined.
    """

    registers: gf2.Span
    exchanges: list[tuple[int, int]]


@lowers(gpu.Reduce)
def lower_reduce(ctx: Lowering, op: gpu.Reduce) -> Results:
    """Lower a reduction along an axis without warp bits."""
    layout = layout_of(op.inputs[0].type)
    steps = _find_steps(op, layout)
    holders = first_holders(layout)
    # Registers of one result, by their representative.
    groups: dict[int, list[int]] = {}
    for register, holder in enumerate(holders):
        if register == holder:
            groups.setdefault(steps.registers.reduce(register), []).append(register)
    columns = [ctx.registers(value) for value in op.inputs]
    rows = {
        head: _tree(ctx, op.combine, [[column[r] for column in columns] for r in members])
        for head, members in groups.items()
    }
    rows = _across_lanes(ctx, op, steps, rows)
    shown = _shown(op, layout)
    heads = [steps.registers.reduce(holders[register]) for register in shown]
    return [tuple(rows[head][index] for head in heads) for index in range(len(op.inputs))]


@lowers(gpu.WarpAll)
def lower_warp_all(ctx: Lowering, op: gpu.WarpAll) -> Results:
    """Lower the question whether a tile is true in a whole warp."""
    first, *rest = dict.fromkeys(ctx.registers(op.value))
    for value in rest:
        first = ctx.emit.value(f"and i1 {first}, {value}")
    return [(nvvm.vote_all(ctx.emit, first),)]


def _shown(op: gpu.Reduce, layout: LinearLayout) -> list[int]:
    """Return, for each register of the result, a contributing register of the operands.

    The result's registers are the operands' registers along the remaining axes.
    """
    if not isinstance(op.outs[0].type, TileType):
        return [0]
    rest = layout.reduce(op.axis).columns("register")
    return gf2.span_table([1 << bit for bit, column in enumerate(rest) if column])


def _find_steps(op: gpu.Reduce, layout: LinearLayout) -> _Steps:
    free = layout.free_variable_masks()
    rest = layout.reduce(op.axis)
    lane_shift = layout.in_bits("register")
    thread_bits: list[int] = []
    columns: list[int] = []
    for name, shift in (("register", 0), ("lane", lane_shift)):
        for bit, column in enumerate(rest.columns(name)):
            if not free[name] >> bit & 1:
                thread_bits.append(1 << (shift + bit))
                columns.append(column)
    kernel = [gf2.combine(thread_bits, mask) for mask in gf2.kernel(columns)]
    if len(kernel) != layout.out_bits(layout.out_dims[op.axis]):
        op.error(f"axis {op.axis} of {layout} is not held whole by every warp")
    # Pivots prefer register bits, so a kernel vector with a lane bit has a pivot of its own.
    # Vectors without lane bits are all the steps inside a thread, and the others are independent
    # exchanges.
    in_thread = (1 << lane_shift) - 1
    registers = gf2.Span(step for step in kernel if step <= in_thread)
    exchanges = [(step & in_thread, step >> lane_shift) for step in kernel if step > in_thread]
    return _Steps(registers, exchanges)


def _tree(ctx: Lowering, combine: Block, rows: list[list[str]]) -> list[str]:
    """Combine rows pairwise, in a tree of least depth.

    One half is combined before the other is begun, so at most as many partial results are live as
    the tree is deep. Level by level it would be half the rows, and ptxas keeps much of this order.
    """
    if len(rows) == 1:
        return rows[0]
    half = 1 << (len(rows) - 1).bit_length() - 1
    return combine_rows(
        ctx, combine, _tree(ctx, combine, rows[:half]), _tree(ctx, combine, rows[half:])
    )


def combine_rows(
    ctx: Lowering, combine: Block, left: Sequence[str], right: Sequence[str]
) -> list[str]:
    """Apply the combine block to accumulated and next elements."""
    yielded = ctx.inline(combine, [*left, *right])
    elements = [element_of(value.type) for value in combine.terminator.operands]
    return [ctx.operand(part, element) for part, element in zip(yielded, elements, strict=True)]


def _across_lanes(
    ctx: Lowering, op: gpu.Reduce, steps: _Steps, rows: dict[int, list[str]]
) -> dict[int, list[str]]:
    kind = _redux_kind(op)
    masks = [lane for _, lane in steps.exchanges]
    if kind and gf2.rank(masks) == LANE_BITS and not any(r for r, _ in steps.exchanges):
        return {head: [nvvm.redux(ctx.emit, kind, row[0])] for head, row in rows.items()}
    for register_xor, lane_xor in steps.exchanges:
        received = {
            head: shuffled(
                ctx, op.inputs, rows[steps.registers.reduce(head ^ register_xor)], lane_xor
            )
            for head in rows
        }
        rows = {head: combine_rows(ctx, op.combine, rows[head], received[head]) for head in rows}
    return rows


def shuffled(
    ctx: Lowering, inputs: Sequence[Value], row: Sequence[str], lane_xor: int
) -> list[str]:
    """Return the row of elements of the lane at XOR distance `lane_xor`."""
    out: list[str] = []
    for value, part in zip(inputs, row, strict=True):
        element = element_of(value.type)
        words = [
            nvvm.shuffle(ctx.emit, "bfly", word, str(lane_xor))
            for word in to_i32_words(ctx.emit, part, element)
        ]
        out.append(from_i32_words(ctx.emit, words, element))
    return out


# Op class -> (signed, unsigned) kind of `redux.sync`.
_REDUX: dict[type[Op], tuple[str, str]] = {
    arith.Add: ("add", "add"),
    arith.Min: ("min", "umin"),
    arith.Max: ("max", "umax"),
    arith.And: ("and", "and"),
    arith.Or: ("or", "or"),
    arith.Xor: ("xor", "xor"),
}


def _redux_kind(op: gpu.Reduce) -> str:
    """Return the kind of `redux.sync` equal to the combine block, or ""."""
    first = op.combine.first
    element = element_of(op.inputs[0].type)
    if len(op.inputs) != 1 or not isinstance(element, ScalarType) or element.bits != 32:
        return ""
    if first is None or element.is_float or first.next is not op.combine.last:
        return ""
    is_whole = set(first.operands) == set(op.combine.args)
    if not is_whole or op.combine.terminator.operands != first.results:
        return ""
    signed, unsigned = _REDUX.get(type(first), ("", ""))
    return signed if element.is_signed else unsigned

"""Transpose dots to multiply converted weights from registers.

`wgmma` takes its left operand from registers, its right one from shared memory. So in `x @ w`, with
weights converted by threads, each converted tile is written to shared memory, fenced, and waited
for by all threads. In the transposed dot, of the weights and `x`, the weights are the left operand:

    acc = dot(x, convert(w), acc)  ->  acc = trans(dot(trans(convert(w)), trans(x), trans(acc)))

Transposing costs nothing but other names for elements. It is done where the right operand is
computed and has K contiguous, so its fragments are read from memory in pieces, and the left one is
loaded. The accumulator, if carried by a loop, must be used by the dot alone: the loop then carries
it transposed.

Invariant: the same products are added in the same order.
"""

from __future__ import annotations

from aotc.ir.core import Kernel, Op, Value, build
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, descriptor, scf, tile
from aotc.ir.effects import Trait
from aotc.ir.rewrite import Builder, rewrite
from aotc.ir.tiles import is_elementwise, is_tile, tile_shape
from aotc.ir.types import TileType, element_of
from aotc.ir.walks import Steps, run
from aotc.schedule.analysis.axis import AxisAnalysis
from aotc.schedule.context import Schedule
from aotc.schedule.layout.wgmma_layouts import divide_warpgroups, is_computed
from aotc.schedule.remarks import Remark
from aotc.target import Feature

_SWAPPED = (1, 0)
_OPERAND_BITS = 16


def transpose_dots(kernel: Kernel, schedule: Schedule) -> None:
    """Transpose every dot with a right operand better in registers; see the module docstring."""
    infos: AxisAnalysis | None = None
    is_changed = False
    for dot in [op for op in kernel.walk() if isinstance(op, tile.Dot)]:
        if not is_computed(dot.b) or is_computed(dot.a) or not _is_alone(dot):
            continue
        infos = infos or AxisAnalysis(kernel)
        if run(_fastest(dot.b, infos, {})) == 0 and _is_faster(dot, schedule):
            with at(dot.loc):
                _transpose(dot)
            schedule.remark(dot.loc, Remark.DOT_TRANSPOSED())
            is_changed = True
    if is_changed:  # the right operand's ops are further users of their sources
        rewrite(kernel, {})


def _is_faster(dot: tile.Dot, schedule: Schedule) -> bool:
    """Return whether both dots are by wgmma, and the transposed one may take registers."""
    operands = [element_of(value.type).bits for value in (dot.a, dot.b)]
    if Feature.WGMMA not in schedule.target.features or operands != [_OPERAND_BITS] * 2:
        return False
    shape, bits, warps = (
        tile_shape(dot.acc),
        element_of(dot.acc.type).bits,
        schedule.config.num_warps,
    )
    swapped = divide_warpgroups(shape[::-1], bits, warps)
    return divide_warpgroups(shape, bits, warps) is not None and swapped == (warps // 4, 1)


def _is_alone(dot: tile.Dot) -> bool:
    """Return whether a loop-carried accumulator is the dot's alone, or none is carried."""
    loop, acc = dot.block.parent if dot.block else None, dot.acc
    if acc.op is not None:
        return isinstance(acc.op, arith.Constant)
    if not isinstance(loop, scf.For) or acc not in loop.carried:
        return False
    index, end = acc.index - 1, loop.body.terminator
    is_yielded = end.operands[index] is dot.out and end.operands.count(dot.out) == 1
    return is_yielded and list(acc.users) == [dot] and list(dot.out.users) == [end]


def _transposed(value: Value, builder: Builder) -> Value:
    """Return the transpose of a tile, computed from transposed sources."""
    return run(_transpose_tile(value, builder, {}))


def _transpose_tile(value: Value, builder: Builder, transposes: dict[Value, Value]) -> Steps[Value]:
    op, kind = value.op, value.type
    if value in transposes or not isinstance(kind, TileType):
        return transposes.get(value, value)
    if isinstance(op, tile.Trans) and op.order == _SWAPPED:
        transpose = op.value
    elif isinstance(op, arith.Constant):
        transpose = builder(arith.Constant(op.value, TileType(kind.element, kind.shape[::-1]))).out
    elif op is not None and is_elementwise(op):
        sources: dict[Value, Value] = {}
        for source in op.operands:
            sources[source] = yield _transpose_tile(source, builder, transposes)
        transpose = builder(op.clone(sources)).results[0]
    else:
        transpose = builder(tile.Trans(value, _SWAPPED)).out
    transposes[value] = transpose
    return transpose


def _swapped_dot(dot: tile.Dot, builder: Builder, acc: Value | None = None) -> tile.Dot:
    """Return the transposed dot; an accumulator given is already transposed."""
    a, b = _transposed(dot.b, builder), _transposed(dot.a, builder)
    acc = _transposed(dot.acc, builder) if acc is None else acc
    swapped = tile.Dot(a, b, acc, dot.input_precision, dot.max_num_imprecise_acc)
    builder(swapped)
    return swapped


def _transpose(dot: tile.Dot) -> None:
    builder = Builder.before_op(dot)
    if dot.acc.op is not None:
        swapped = _swapped_dot(dot, builder)
        dot.replace_with([builder(tile.Trans(swapped.out, _SWAPPED)).out])
        return
    loop, index = dot.block.parent if dot.block else None, dot.acc.index - 1
    assert isinstance(loop, scf.For)
    init, kind = loop.init[index], dot.acc.type
    assert init is not None
    assert isinstance(kind, TileType)
    dot.acc.type = TileType(kind.element, kind.shape[::-1])
    dot.replace_with([_swapped_dot(dot, builder, dot.acc).out])
    outer = Builder.before_op(loop)
    slots = list(loop.slots)
    slots[len(slots) - len(loop.init) + index] = _transposed(init, outer)
    blocks, loop.blocks = loop.blocks, ()
    new_loop = outer(build(scf.For, slots, loop.attributes, blocks, loop.loc))
    outs = list(new_loop.results)
    outs[index] = outer(tile.Trans(outs[index], _SWAPPED)).out
    loop.replace_with(outs)


# ---- the order in memory ----------------------------------------------------------------------


def _fastest(value: Value, infos: AxisAnalysis, axes: dict[Value, int | None]) -> Steps[int | None]:
    """Return the axis along which a tile is contiguous in memory, if any."""
    if value not in axes:
        is_made = value.op is not None and is_tile(value)
        axes[value] = (yield _fastest_of(value.op, infos, axes)) if is_made else None
    return axes[value]


def _fastest_of(
    op: Op | None, infos: AxisAnalysis, axes: dict[Value, int | None]
) -> Steps[int | None]:
    assert op is not None
    last = len(tile_shape(op.results[0])) - 1
    if isinstance(op, descriptor.DescriptorLoad):
        return last
    if isinstance(op, tile.Load):
        runs = infos[op.pointer].contiguity
        return runs.index(max(runs)) if max(runs) > 1 else None
    if isinstance(op, tile.Trans):
        axis = yield _fastest(op.value, infos, axes)
        return None if axis is None else op.order.index(axis)
    if is_elementwise(op):
        for source in op.operands:
            axis = yield _fastest(source, infos, axes)
            if axis is not None:
                return axis
        return None
    axis = _axis_of_words(op) if isinstance(op, tile.Reshape) else None
    if axis is None and (op.has(Trait.VIEW) or isinstance(op, tile.Join)):
        # Views and joined tiles, contiguous along their last axis.
        source = yield _fastest(op.operands[0], infos, axes)
        return last if source == len(tile_shape(op.operands[0])) - 1 else None
    return axis


def _axis_of_words(op: tile.Reshape) -> int | None:
    """Return the axis of a word's numbers, for words repeated once for each of them."""
    spread, shape = op.value.op, tile_shape(op.out)
    if isinstance(spread, tile.Broadcast):
        apart, whole = tile_shape(spread.value), tile_shape(spread.out)
        for axis, extent in enumerate(shape[: len(whole) - 1]):
            merged = (*whole[:axis], whole[axis] * whole[axis + 1], *whole[axis + 2 :])
            if (
                apart[axis + 1] == 1 < whole[axis + 1]
                and merged == shape
                and extent > whole[axis + 1]
            ):
                return axis
    return None

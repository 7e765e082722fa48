"""Rows whose index is 0 beyond the end, `where(rows < M, rows, 0)`, as rows that are zeros there.

A tensor copy clips rows beyond the end. A load of clamped rows reads the first row there instead, so
that no mask is needed. It makes no difference where nothing of these rows is stored: a row of a
dot's result depends on the same row of A alone, and the stores mask it.

Invariant: no element of a load past `limit` along an axis reaches memory, nor other elements.
"""

from __future__ import annotations

from collections.abc import Iterator

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import arith, assembly, scf, tile
from aotc.ir.tiles import is_elementwise, is_tile, joins_of, tile_shape
from aotc.schedule.analysis.affine import AffineAnalysis, axis_names, axis_symbol
from aotc.schedule.analysis.polynomial import Polynomial

# An axis of a tile, and a polynomial that is below 0 exactly before the end.
Clamp = tuple[int, Polynomial]
# The final axis for each axis of a tile, if it becomes one.
_Axes = tuple[int | None, ...]


def clamps_of(value: Value, analysis: AffineAnalysis) -> list[Clamp]:
    """Return the axes of a tile along which indices that it is computed from are clamped."""
    clamps: dict[Clamp, None] = {}
    all_axes: _Axes = tuple(range(len(tile_shape(value))))
    worklist: list[tuple[Value, _Axes]] = [(value, all_axes)]
    seen = set(worklist)
    while worklist:
        current, axes = worklist.pop()
        limit = analysis.clamps.get(current)
        if limit is not None:
            symbols = [symbol for symbol in limit.symbols if symbol < 0]
            for symbol in symbols:
                axis = axes[-1 - symbol]
                clamps[-1 if axis is None else axis, _moved(limit, -1 - symbol, axis or 0)] = None
        for source in _sources(current, axes):
            if source not in seen:
                seen.add(source)
                worklist.append(source)
    return list(clamps)


def _moved(limit: Polynomial, axis: int, new_axis: int) -> Polynomial:
    return limit.renamed({axis_symbol(axis): axis_symbol(new_axis)})


def _sources(value: Value, axes: _Axes) -> Iterator[tuple[Value, _Axes]]:
    """Yield the tiles that a value is computed from, with the final axis of each of theirs."""
    op = value.op
    if op is None:
        loop = None if isinstance(value.owner, Op) else value.owner.parent
        if isinstance(loop, scf.For) and value is not loop.induction:
            index = value.index - 1
            yield loop.init[index], axes
            yield loop.body.terminator.operands[index], axes
        return
    names = axis_names(op) if len(op.operands) == 1 and is_tile(op.operands[0]) else None
    for operand in op.operands:
        if not is_tile(operand):
            continue
        if names is None:
            yield operand, axes
            continue
        renamed = [names.get(axis_symbol(axis)) for axis in range(len(tile_shape(operand)))]
        yield operand, tuple(None if axis is None else axes[-1 - axis] for axis in renamed)


def is_unseen(load: tile.Load, clamp: Clamp, kernel: Kernel, analysis: AffineAnalysis) -> bool:
    """Return whether elements of a load from the end on reach no memory and no others."""
    axis, limit = clamp
    flows: dict[Value, list[Value]] = {}
    for op in kernel.walk():
        for join in joins_of(op):
            for source in join.sources:
                flows.setdefault(source, []).extend(join.targets)
    worklist = [(load.out, axis)]
    seen = set(worklist)
    while worklist:
        value, along = worklist.pop()
        reached: list[tuple[Value, int]] = [(target, along) for target in flows.get(value, ())]
        for user in value.users:
            if isinstance(user, scf.For | scf.Yield | scf.If):
                continue  # a variable: among `flows`
            if isinstance(user, tile.Store):
                if not _is_masked(user, value, _moved(limit, axis, along), analysis):
                    return False
                continue
            result_axis = _axis_of_result(user, value, along)
            if result_axis is None:
                return False
            reached += [(result, result_axis) for result in user.results]
        worklist += [pair for pair in reached if pair not in seen]
        seen.update(reached)
    return True


def _is_masked(
    store: tile.Store, value: Value, limit: Polynomial, analysis: AffineAnalysis
) -> bool:
    """Return whether a store writes nothing of a value from the end on."""
    if value is not store.value or value in (store.pointer, store.mask) or store.mask is None:
        return False
    # A comparison of the clamped index itself is true beyond the end.
    is_exact = not clamps_of(store.mask, analysis)
    return is_exact and limit in (analysis.bounds(store.mask) or ())


def _axis_of_result(op: Op, value: Value, axis: int) -> int | None:
    """Return the axis of an op's result along which elements depend on those of `value` alone."""
    if isinstance(op, tile.Dot):
        roles = [role for role, operand in enumerate(op.operands) if operand is value]
        a, b, acc = (op.operands.index(operand) for operand in (op.a, op.b, op.acc))
        if len(tile_shape(value)) != 2 or len(roles) != 1:
            return None
        keeps = roles == [acc] or (roles, axis) in (([a], 0), ([b], 1))
        return axis if keeps else None
    names = axis_names(op) if op.operands == [value] else None
    if names is not None:
        symbol = names.get(axis_symbol(axis))
        return None if symbol is None else -1 - symbol
    is_separate = is_elementwise(op) and not isinstance(op, arith.AddPtr | assembly.InlineAsm)
    return axis if is_separate and op.pure and not op.blocks else None

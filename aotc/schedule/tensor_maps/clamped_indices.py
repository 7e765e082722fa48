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
_MAX_NESTED = 8  # quotients and remainders of others
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
    flows = _flows(kernel)
    worklist = [(load.out, axis)]
    seen = set(worklist)
    while worklist:
        value, along = worklist.pop()
        reached: list[tuple[Value, int]] = []
        for target, loop in flows.get(value, ()):
            if loop is not None and not analysis.is_invariant(limit, loop):
                return False  # the next iteration has another end
            reached.append((target, along))
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


def _flows(kernel: Kernel) -> dict[Value, list[tuple[Value, scf.For | None]]]:
    """Return the variables that each tile flows into, with the loop if in its next iteration."""
    flows: dict[Value, list[tuple[Value, scf.For | None]]] = {}
    for op in kernel.walk():
        loop = op if isinstance(op, scf.For) else None
        for join in joins_of(op):
            for source in join.sources:
                is_next = loop is not None and source in loop.body.terminator.operands
                for target in join.targets:
                    flows.setdefault(source, []).append((target, loop if is_next else None))
    return flows


def _is_masked(
    store: tile.Store, value: Value, limit: Polynomial, analysis: AffineAnalysis
) -> bool:
    """Return whether a store writes nothing of a value from the end on."""
    if value is not store.value or value in (store.pointer, store.mask) or store.mask is None:
        return False
    if clamps_of(store.mask, analysis):
        return False  # a comparison of the clamped index itself is true beyond the end
    names = _Names(analysis)
    return names.of(limit) in map(names.of, analysis.bounds(store.mask) or ())


class _Names:
    """Names for symbols of scalars, the same for those computed alike, such as `tile % num_n`."""

    def __init__(self, analysis: AffineAnalysis) -> None:
        self._analysis = analysis
        self._symbols: dict[tuple[type[Op], Polynomial, Polynomial], int] = {}

    def of(self, polynomial: Polynomial, depth: int = _MAX_NESTED) -> Polynomial:
        """Return a polynomial over the names of its symbols."""
        symbols = [symbol for symbol in polynomial.symbols if symbol >= 0]
        return polynomial.renamed({symbol: self._name(symbol, depth) for symbol in symbols})

    def _name(self, symbol: int, depth: int) -> int:
        source = self._analysis.sources[symbol]
        op = source.op if isinstance(source, Value) else None
        if not depth or not isinstance(op, arith.Div | arith.Rem | arith.Min | arith.Max):
            return symbol
        operands = [self._analysis[operand] for operand in op.operands]
        if any(operand.base is not None for operand in operands):
            return symbol
        left, right = (self.of(operand.offset, depth - 1) for operand in operands)
        return self._symbols.setdefault((type(op), left, right), symbol)


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

"""Hoist layout conversions above ops whose operands have fewer bytes than the result.

A tile that was widened, repeated or joined is cheaper to convert before: an fp32 residual that was loaded
as bf16, a row of scales, words of packed weights. So the conversion of a result becomes conversions of
operands where those move fewer bytes in the end. What moves nothing:

- indices, and what is cheaply computed of them and of scalars: they are computed again where they are wanted, and
  a loop that carries one carries it in both layouts;
- a tensor load's tile, and what is computed from it alone, or is small: it is in shared memory, where every layout
  can be read from;
- a tile that is converted on the way: it is converted straight to the layout that is wanted.

Invariant: no value is computed in two layouts but indices, the result of a cast and small tiles, which cost little.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.dialects import arith, gpu, scf, tile
from aotc.ir.effects import Trait
from aotc.ir.layout import LinearLayout
from aotc.ir.rewrite import Builder, Pattern, append_carried, erase_dead, pass_on, rewrite
from aotc.ir.tiles import is_elementwise, is_uniform, tile_shape, uniform_in
from aotc.ir.types import TileType
from aotc.ir.walks import Steps, run
from aotc.schedule.context import Schedule
from aotc.schedule.layout.required_layouts import operand_layouts
from aotc.schedule.layout.tensor_copies import is_tensor_load

_FEW_REGISTER_BITS = 2  # four elements of a tile in a thread
_MAX_INDEX_OPS = 32  # random numbers are made of indices, too, by a hundred instructions


def hoist_conversions(kernel: Kernel, schedule: Schedule) -> None:
    """Convert operands instead of results wherever that moves fewer bytes."""
    del schedule
    loops, hoisting = _Loops(), _Hoisting()
    patterns: dict[type[Op], Sequence[Pattern[Op]]] = {
        gpu.Convert: [
            hoisting.settle,
            _convert_at_once,
            loops.carry_in_layout,
            hoisting.convert_operands,
        ]
    }
    rewrite(kernel, {})  # the dead use nothing
    while rewrite(kernel, patterns) and loops.take_changes():
        pass


def _convert_at_once(op: Op, place: Builder) -> Sequence[Value] | None:
    """Convert what was converted on the way straight to the layout that is wanted."""
    assert isinstance(op, gpu.Convert)
    before = op.value.op
    if not isinstance(before, gpu.Convert):
        return None
    if not _is_needed_once(op.value) and not _is_cheap(before.value):
        return None
    return [place(gpu.Convert(before.value, op.layout)).out]


class _Hoisting:
    """Convert operands, and keep what follows from the users of tiles while these stay the same."""

    def __init__(self) -> None:
        self._costs = _Costs()
        self._last: gpu.Convert | None = None
        self._made: Op | None = None
        self._tiles: list[Value] = []
        self._num_users: list[int] = []

    def settle(self, op: Op, place: Builder) -> None:
        """Erase what the last conversion leaves unused, so that it is no user of any tile."""
        del place
        assert isinstance(op, gpu.Convert)
        last, made, before = self._last, self._made, self._num_users
        if last is not None and last.block is None:  # it was hoisted
            if made is not None and made.block is not None:
                erase_dead(made)
            if made is None or made.block is not None or _num_users(self._tiles) != before:
                self._costs.forget()
        self._last, self._made = op, op.value.op
        operands = [] if self._made is None else self._made.operands
        self._tiles = [each for each in operands if not is_uniform(each)]
        self._num_users = _num_users(self._tiles)

    def convert_operands(self, op: Op, place: Builder) -> Sequence[Value] | None:
        """Compute a tile in the wanted layout if its operands are converted for less."""
        assert isinstance(op, gpu.Convert)
        made = op.value.op
        if made is None or isinstance(made, gpu.SharedLoad):
            return None
        if not (_is_made_alone(op.value) or is_index(op.value) or _is_cheap(op.value)):
            return None
        if is_uniform(op.value) or isinstance(made, tile.Arange):
            return [_converted(op.value, op.layout, place)]
        if self._costs.moved_by_operands(made, op.layout) >= _bytes(op.value):
            return None
        return [_computed_in(op.layout, made, place)]


def _computed_in(layout: LinearLayout, made: Op, place: Builder) -> Value:
    """Return the result of an op in a layout, computed of operands that are converted for it."""
    if isinstance(made, tile.Broadcast):
        source = _converted(made.value, layout.broadcast_source(tile_shape(made.value)), place)
        return place(tile.Broadcast(source, made.shape, layout)).out
    mapping = {
        source: _converted(source, each, place)
        for source, each in zip(made.operands, operand_layouts(made, layout), strict=True)
    }
    again = place(made.clone(mapping)).results[0]
    kind = again.type
    assert isinstance(kind, TileType)
    return again if kind.layout == layout else place(gpu.Convert(again, layout)).out


def _is_joined(layout: LinearLayout) -> bool:
    """Return whether halves along the last axis, joined, are held as a layout has them."""
    return layout.split_register_bit() is not None and layout.split().join() == layout


class _Loops:
    """Indices that loops carry, in every layout in which they are wanted."""

    def __init__(self) -> None:
        self._carried: dict[tuple[Value, LinearLayout], Value] = {}
        self._has_changed = False

    def take_changes(self) -> bool:
        """Return whether loops carry more than when this was asked last."""
        changed, self._has_changed = self._has_changed, False
        return changed

    def carry_in_layout(self, op: Op, place: Builder) -> Sequence[Value] | None:
        """Carry an index in the layout that it is converted to, too, if it can be computed there."""
        del place
        assert isinstance(op, gpu.Convert)
        value, key = op.value, (op.value, op.layout)
        loop = _loop_of(value)
        if loop is None or not is_index(value):
            return None
        if key not in self._carried:
            index, end = value.index - 1, loop.body.terminator
            following = end.operands[index]
            first = Builder.before_op(loop)(gpu.Convert(loop.init[index], op.layout)).out
            made = loop.body.add_arg(first.type, value.hint)
            self._carried[key] = made
            pass_on(loop.body, [Builder.before_op(end)(gpu.Convert(following, op.layout)).out])
            append_carried(loop, [first])
            self._has_changed = True
        return [self._carried[key]]


def _loop_of(value: Value) -> scf.For | None:
    """Return the loop that carries a value, if one does."""
    block = value.owner
    loop = block.parent if isinstance(block, Block) else None
    return loop if isinstance(loop, scf.For) and value.index > 0 else None


def is_index(value: Value) -> bool:
    """Return whether a tile is computed of indices and scalars alone, by few and cheap instructions.

    It is then computed again in another layout rather than converted, whoever else uses it.
    """
    seen, worklist = set[Value](), [value]
    while worklist:
        each = worklist.pop()
        if each in seen or not isinstance(each.type, TileType) or is_uniform(each):
            continue
        seen.add(each)
        sources = _index_sources(each)
        if sources is None or len(seen) > _MAX_INDEX_OPS:
            return False
        worklist += sources
    return True


def _index_sources(value: Value) -> Sequence[Value] | None:
    """Return what an index is cheaply computed of; None if it is loaded, costly, or unknown."""
    op, loop = value.op, _loop_of(value)
    if loop is not None:
        return (loop.init[value.index - 1], loop.body.terminator.operands[value.index - 1])
    if op is None or op.has(Trait.COSTLY) or len(op.results) > 1:
        return None
    if isinstance(op, tile.Arange):
        return ()
    return op.operands if is_elementwise(op) or op.has(Trait.SHAPE_ONLY) else None


def _is_made_alone(value: Value) -> bool:
    """Return whether `value` has one user, so that its layout concerns no other."""
    op = value.op
    if op is None or not (is_elementwise(op) or op.has(Trait.SHAPE_ONLY)) or len(op.results) > 1:
        return False
    return _is_needed_once(value) or isinstance(op, arith.Cast)


def _is_needed_once(value: Value) -> bool:
    return len(value.users) == 1


def _num_users(values: Sequence[Value]) -> list[int]:
    return [len(value.users) for value in values]


class _Costs:
    """What it takes to have tiles in other layouts; answers are kept until users of tiles change."""

    def __init__(self) -> None:
        self._moved: dict[tuple[Value, LinearLayout], int] = {}
        self._is_again: dict[Value, bool] = {}

    def forget(self) -> None:
        """Forget all answers, which follow from who uses which tile."""
        self._moved.clear()
        self._is_again.clear()

    def moved_by_operands(self, op: Op, layout: LinearLayout) -> int:
        """Return the fewest bytes that are moved for the operands of an op in a layout."""
        return run(self._by_operands(op, layout))

    def _by_operands(self, op: Op, layout: LinearLayout) -> Steps[int]:
        if isinstance(op, tile.Join) and not _is_joined(layout):
            return _bytes(op.out)
        layouts = dict(zip(op.operands, operand_layouts(op, layout), strict=True))
        moved = 0
        for value, each in layouts.items():
            moved += yield self._by(value, each)
        return moved

    def _by(self, value: Value, layout: LinearLayout) -> Steps[int]:
        """Return the fewest bytes that converting a tile, or what it is computed from, moves."""
        key = value, layout
        if key not in self._moved:
            moved = 0
            if isinstance(value.type, TileType) and not (yield self._is_read_again(value)):
                moved = _bytes(value)
                if value.op is not None and _is_made_alone(value):
                    moved = min(moved, (yield self._by_operands(value.op, layout)))
            self._moved[key] = moved
        return self._moved[key]

    def _is_read_again(self, value: Value) -> Steps[bool]:
        """Return whether a value can be computed in another layout without moving anything."""
        if value not in self._is_again:
            self._is_again[value] = yield self._look(value)
        return self._is_again[value]

    def _look(self, value: Value) -> Steps[bool]:
        op = value.op
        if _is_cheap(value):
            return True
        if isinstance(op, gpu.Convert):  # it is converted on the way no more
            return _is_needed_once(value)
        if not isinstance(value.type, TileType) or is_index(value):
            return True
        if op is None or not _is_made_alone(value):
            return False
        for each in op.operands:
            if not (yield self._is_read_again(each)):
                return False
        return True


def _bytes(value: Value) -> int:
    kind = value.type
    assert isinstance(kind, TileType)
    return kind.num_elems * kind.element.size_bytes


def _is_cheap(value: Value) -> bool:
    """Return whether a tile has the elements of a tensor load's, or a few that are cheaply computed from them.

    Few are scales of groups of weights: what exchanges them has barriers, which cost more than to compute them again
    for each of their users.
    """
    seen, worklist = set[Value](), [value]
    while worklist:
        each = worklist.pop()
        if each in seen or not isinstance(each.type, TileType) or is_uniform(each):
            continue
        op = each.op
        if isinstance(op, gpu.SharedLoad) and is_tensor_load(op.buffer):
            continue
        seen.add(each)
        is_view = isinstance(op, tile.Trans | tile.Reshape | tile.ExpandDims)
        sources = _index_sources(each) if is_view or _is_few(each) else None
        if isinstance(op, gpu.Convert):
            sources = op.operands
        if sources is None or len(seen) > _MAX_INDEX_OPS:
            return False
        worklist += sources
    return True


def _is_few(value: Value) -> bool:
    kind = value.type
    assert isinstance(kind, TileType)
    return kind.layout is not None and len(kind.layout.columns("register")) <= _FEW_REGISTER_BITS


def _converted(value: Value, layout: LinearLayout, place: Builder) -> Value:
    """Return `value` in a layout."""
    if not isinstance(value.type, TileType):
        return value
    if is_uniform(value):
        return uniform_in(value, layout, place)
    if isinstance(value.op, tile.Arange):
        return place(tile.Arange(value.op.start, value.op.end, layout)).out
    return place(gpu.Convert(value, layout)).out

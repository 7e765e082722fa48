"""Hoist layout conversions above ops with fewer operand bytes than result bytes.

A widened, repeated or joined tile is cheaper to convert before: an fp32 residual loaded as bf16, a
row of scales, words of packed weights. So the conversion of a result becomes conversions of
operands where those move fewer bytes in the end. These move nothing:

- indices, and cheap computations on them and on scalars: they are recomputed in each layout, and
  a loop that carries one carries it in both layouts;
- a tensor load's tile, and small or exclusive computations on it: it is in shared memory, readable
  in every layout;
- a tile converted on the way: it is converted straight to the final layout.

Of equal sizes a tile that a loop loads is converted rather than one computed from it: its copy to shared
memory may be asynchronous, issued ahead, and has no barrier of its own.

Invariant: no value is computed in two layouts but indices, the result of a cast and small tiles, at
little cost.
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

_IS_COMPUTED = 1  # the cost of a tile that is not loaded, or whose ops would be repeated
_FEW_REGISTER_BITS = 2  # four elements of a tile in a thread
_MAX_INDEX_OPS = 32  # random numbers are made of indices, too, by a hundred instructions


def hoist_conversions(kernel: Kernel, schedule: Schedule) -> None:
    """Convert operands instead of results wherever this moves fewer bytes."""
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


def _convert_at_once(op: Op, builder: Builder) -> Sequence[Value] | None:
    """Convert a tile converted on the way straight to the final layout."""
    assert isinstance(op, gpu.Convert)
    before = op.value.op
    if not isinstance(before, gpu.Convert):
        return None
    if not _is_needed_once(op.value) and not _is_cheap(before.value):
        return None
    return [builder(gpu.Convert(before.value, op.layout)).out]


class _Hoisting:
    """Convert operands, and cache costs while the users of tiles stay the same."""

    def __init__(self) -> None:
        self._costs = _Costs()
        self._last: gpu.Convert | None = None
        self._producer: Op | None = None
        self._tiles: list[Value] = []
        self._num_users: list[int] = []

    def settle(self, op: Op, builder: Builder) -> None:
        """Erase ops left unused by the last conversion, so they are no users of any tile."""
        del builder
        assert isinstance(op, gpu.Convert)
        last, producer, before = self._last, self._producer, self._num_users
        if last is not None and last.block is None:  # it was hoisted
            if producer is not None and producer.block is not None:
                erase_dead(producer)
            if producer is None or producer.block is not None or _num_users(self._tiles) != before:
                self._costs.forget()
        self._last, self._producer = op, op.value.op
        operands = [] if self._producer is None else self._producer.operands
        self._tiles = [operand for operand in operands if not is_uniform(operand)]
        self._num_users = _num_users(self._tiles)

    def convert_operands(self, op: Op, builder: Builder) -> Sequence[Value] | None:
        """Compute a tile in the wanted layout if its operands are converted for less."""
        assert isinstance(op, gpu.Convert)
        producer = op.value.op
        if producer is None or isinstance(producer, gpu.SharedLoad):
            return None
        if not (_has_single_user(op.value) or is_index(op.value) or _is_cheap(op.value)):
            return None
        if is_uniform(op.value) or isinstance(producer, tile.Arange):
            return [_converted(op.value, op.layout, builder)]
        if self._costs.moved_by_operands(producer, op.layout) >= _cost(op.value):
            return None
        return [_computed_in(op.layout, producer, builder)]


def _computed_in(layout: LinearLayout, producer: Op, builder: Builder) -> Value:
    """Return the result of an op in a layout, computed of converted operands."""
    if isinstance(producer, tile.Broadcast):
        source = _converted(
            producer.value, layout.broadcast_source(tile_shape(producer.value)), builder
        )
        return builder(tile.Broadcast(source, producer.shape, layout)).out
    mapping = {
        source: _converted(source, source_layout, builder)
        for source, source_layout in zip(
            producer.operands, operand_layouts(producer, layout), strict=True
        )
    }
    again = builder(producer.clone(mapping)).results[0]
    kind = again.type
    assert isinstance(kind, TileType)
    return again if kind.layout == layout else builder(gpu.Convert(again, layout)).out


def _is_joined(layout: LinearLayout) -> bool:
    """Return whether halves along the last axis, joined, are held as a layout has them."""
    return layout.split_register_bit() is not None and layout.split().join() == layout


class _Loops:
    """Loop-carried indices, in every required layout."""

    def __init__(self) -> None:
        self._carried: dict[tuple[Value, LinearLayout], Value] = {}
        self._has_changed = False

    def take_changes(self) -> bool:
        """Return whether loops carry more than when this was asked last."""
        changed, self._has_changed = self._has_changed, False
        return changed

    def carry_in_layout(self, op: Op, builder: Builder) -> Sequence[Value] | None:
        """Carry an index in the layout of its conversion, too, if it can be computed there."""
        del builder
        assert isinstance(op, gpu.Convert)
        value, key = op.value, (op.value, op.layout)
        loop = _loop_of(value)
        if loop is None or not is_index(value):
            return None
        if key not in self._carried:
            index, end = value.index - 1, loop.body.terminator
            following = end.operands[index]
            first = Builder.before_op(loop)(gpu.Convert(loop.init[index], op.layout)).out
            arg = loop.body.add_arg(first.type, value.hint)
            self._carried[key] = arg
            pass_on(loop.body, [Builder.before_op(end)(gpu.Convert(following, op.layout)).out])
            append_carried(loop, [first])
            self._has_changed = True
        return [self._carried[key]]


def _loop_of(value: Value) -> scf.For | None:
    """Return the loop carrying a value, if any."""
    block = value.owner
    loop = block.parent if isinstance(block, Block) else None
    return loop if isinstance(loop, scf.For) and value.index > 0 else None


def is_index(value: Value) -> bool:
    """Return whether a tile is cheap to compute from indices and scalars alone.

    It is then recomputed in another layout rather than converted, despite other users.
    """
    seen, worklist = set[Value](), [value]
    while worklist:
        source = worklist.pop()
        if source in seen or not isinstance(source.type, TileType) or is_uniform(source):
            continue
        seen.add(source)
        sources = _index_sources(source)
        if sources is None or len(seen) > _MAX_INDEX_OPS:
            return False
        worklist += sources
    return True


def _index_sources(value: Value) -> Sequence[Value] | None:
    """Return the sources of a cheap index; None if it is loaded, costly, or unknown."""
    op, loop = value.op, _loop_of(value)
    if loop is not None:
        return (loop.init[value.index - 1], loop.body.terminator.operands[value.index - 1])
    if op is None or op.has(Trait.COSTLY) or len(op.results) > 1:
        return None
    if isinstance(op, tile.Arange):
        return ()
    return op.operands if is_elementwise(op) or op.has(Trait.SHAPE_ONLY) else None


def _has_single_user(value: Value) -> bool:
    """Return whether `value` has one user, so its layout concerns no other."""
    op = value.op
    if op is None or not (is_elementwise(op) or op.has(Trait.SHAPE_ONLY)) or len(op.results) > 1:
        return False
    return _is_needed_once(value) or isinstance(op, arith.Cast)


def _is_needed_once(value: Value) -> bool:
    return len(value.users) == 1


def _num_users(values: Sequence[Value]) -> list[int]:
    return [len(value.users) for value in values]


class _Costs:
    """Costs of tiles in other layouts, cached until users of tiles change."""

    def __init__(self) -> None:
        self._moved: dict[tuple[Value, LinearLayout], int] = {}
        self._free_values: dict[Value, bool] = {}

    def forget(self) -> None:
        """Forget all costs, since they follow from the users of tiles."""
        self._moved.clear()
        self._free_values.clear()

    def moved_by_operands(self, op: Op, layout: LinearLayout) -> int:
        """Return the least cost of the operands of an op in a layout."""
        return run(self._by_operands(op, layout))

    def _by_operands(self, op: Op, layout: LinearLayout) -> Steps[int]:
        if isinstance(op, tile.Join) and not _is_joined(layout):
            return _cost(op.out)
        layouts = dict(zip(op.operands, operand_layouts(op, layout), strict=True))
        cost = _IS_COMPUTED if op.has(Trait.COSTLY) else 0
        for value, operand_layout in layouts.items():
            cost += yield self._by(value, operand_layout)
        return cost

    def _by(self, value: Value, layout: LinearLayout) -> Steps[int]:
        """Return the least cost of converting a tile or its sources."""
        key = value, layout
        if key not in self._moved:
            cost = 0
            if isinstance(value.type, TileType) and not (yield self._moves_nothing(value)):
                cost = _cost(value)
                if value.op is not None and _has_single_user(value):
                    cost = min(cost, (yield self._by_operands(value.op, layout)))
            self._moved[key] = cost
        return self._moved[key]

    def _moves_nothing(self, value: Value) -> Steps[bool]:
        """Return whether a value can be computed in another layout without moving anything."""
        if value not in self._free_values:
            self._free_values[value] = yield self._compute_moves_nothing(value)
        return self._free_values[value]

    def _compute_moves_nothing(self, value: Value) -> Steps[bool]:
        op = value.op
        if _is_cheap(value):
            return True
        if isinstance(op, gpu.Convert):  # it is converted on the way no more
            return _is_needed_once(value)
        if not isinstance(value.type, TileType) or is_index(value):
            return True
        if op is None or not _has_single_user(value):
            return False
        for operand in op.operands:
            if not (yield self._moves_nothing(operand)):
                return False
        return True


def _cost(value: Value) -> int:
    """Return twice the bytes of a tile, and one more for a tile that no loop loads."""
    kind, op = value.type, value.op
    assert isinstance(kind, TileType)
    is_loaded = isinstance(op, gpu.Load) and isinstance(op.parent_op, scf.For)
    is_staged = is_loaded and _is_needed_once(value)
    return 2 * kind.num_elems * kind.element.size_bytes + (0 if is_staged else _IS_COMPUTED)


def _is_cheap(value: Value) -> bool:
    """Return whether a tile is a tensor load's, or small and cheap to compute from one.

    Small ones are scales of groups of weights: barriers of an exchange cost more than recomputing
    them for each of their users.
    """
    seen, worklist = set[Value](), [value]
    while worklist:
        source = worklist.pop()
        if source in seen or not isinstance(source.type, TileType) or is_uniform(source):
            continue
        op = source.op
        if isinstance(op, gpu.SharedLoad) and is_tensor_load(op.buffer):
            continue
        seen.add(source)
        is_view = isinstance(op, tile.Trans | tile.Reshape | tile.ExpandDims)
        sources = _index_sources(source) if is_view or _is_few(source) else None
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


def _converted(value: Value, layout: LinearLayout, builder: Builder) -> Value:
    """Return `value` in a layout."""
    if not isinstance(value.type, TileType):
        return value
    if is_uniform(value):
        return uniform_in(value, layout, builder)
    if isinstance(value.op, tile.Arange):
        return builder(tile.Arange(value.op.start, value.op.end, layout)).out
    return builder(gpu.Convert(value, layout)).out

"""Narrow loads of dot operands whose addresses repeat along an axis.

Kernels often pack eight 4-bit weights to a word along K, and load each word once for every weight:

    words + (k // 8)[:, None] * stride + n[None, :]    the same address for eight k in a row

Such a load takes eight times the bandwidth, registers and shared memory its words need, and no tensor map
describes it. So the pass loads every eighth address and broadcasts the loaded words:

    (K, N) = load(p)  ->  (K, N) = reshape(broadcast(expand_dims(load(every eighth of p))))

The addresses are recomputed for the smaller tile, and in loops carrying them too. Other loads stay: their
layouts are chosen for coalescing.

Invariant: the same addresses are read, each once, and all elements are unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, scf, tile
from aotc.ir.rewrite import Builder, append_carried, pass_on
from aotc.ir.tiles import is_elementwise, is_tile, tile_shape
from aotc.ir.types import TileType
from aotc.ir.walks import Steps, reached, run
from aotc.schedule.analysis.axis import AxisAnalysis
from aotc.schedule.cleanup.simplify import known
from aotc.schedule.context import Schedule
from aotc.schedule.remarks import Remark


def narrow_loads(kernel: Kernel, schedule: Schedule) -> None:
    """Narrow every load for a dot whose addresses repeat along an axis; see the module docstring."""
    ops = list(kernel.walk())
    if not any(isinstance(op, arith.Div | arith.Shr) and is_tile(op.out) for op in ops):
        return
    loads = [op for op in ops if isinstance(op, tile.Load) and _is_for_dot(op)]
    infos = AxisAnalysis(kernel) if loads else None
    for load in loads:
        assert infos is not None
        for axis in range(len(tile_shape(load.pointer))):
            every = _repeats(load, axis, infos)
            if every > 1 and _Slices(every).narrow(load, axis):
                schedule.remark(load.loc, Remark.LOAD_NARROWED(every=every))
                break


def _is_for_dot(load: tile.Load) -> bool:
    """Return whether a load feeds a dot through elementwise ops."""
    if not is_tile(load.out) or load.volatile:
        return False
    seen, worklist = set[Value](), [load.out]
    while worklist:
        value = worklist.pop()
        if value in seen:
            continue
        seen.add(value)
        for user in value.users:
            if isinstance(user, tile.Dot) and value is not user.acc:
                return True
            if is_elementwise(user) or isinstance(
                user, tile.Broadcast | tile.Trans | tile.ExpandDims
            ):
                worklist += user.results
    return False


def _repeats(load: tile.Load, axis: int, infos: AxisAnalysis) -> int:
    """Return the number of consecutive elements with the same address and mask."""
    if load.other is not None and not isinstance(load.other.op, arith.Constant | tile.Splat):
        return 1
    run = infos[load.pointer].constancy[axis]
    if load.mask is not None:
        run = min(run, infos[load.mask].constancy[axis])
    return run


@dataclass
class _Slices:
    """Recompute tiles at every `every`-th index along an axis."""

    every: int
    slices: dict[tuple[Value, int], Value] = field(default_factory=dict[tuple[Value, int], Value])
    carried: list[tuple[Value, int]] = field(default_factory=list[tuple[Value, int]])

    def narrow(self, load: tile.Load, axis: int) -> bool:
        """Replace a load by a smaller one; return whether that can be done."""
        tiles = [value for value in (load.pointer, load.mask, load.other) if value is not None]
        if not all(self._can_slice(value, axis) for value in tiles):
            return False
        pointer, mask, other = (
            None if value is None else run(self._slice(value, axis))
            for value in (load.pointer, load.mask, load.other)
        )
        assert pointer is not None
        self._complete_loops()
        shape, builder = tile_shape(load.out), Builder.before_op(load)
        parts = (*shape[:axis], shape[axis] // self.every, self.every, *shape[axis + 1 :])
        with at(load.loc):
            hints = load.cache, load.eviction, load.volatile
            narrow = builder(tile.Load(pointer, mask, other, *hints)).out
            apart = builder(tile.ExpandDims(narrow, axis + 1)).out
            whole = builder(tile.Broadcast(apart, parts)).out
            load.replace_with([builder(tile.Reshape(whole, shape)).out])
        return True

    def _can_slice(self, value: Value, axis: int) -> bool:
        """Return whether all sources of a tile can be sliced too."""
        tiles = reached([(value, axis)], lambda tile_axis: _sources(*tile_axis) or ())
        return all(
            _sources(source, source_axis) is not None
            and tile_shape(source)[source_axis] % self.every == 0
            and not (isinstance(source.op, tile.Arange) and source.op.start % self.every)
            for source, source_axis in tiles
        )

    def _slice(self, value: Value, axis: int) -> Steps[Value]:
        """Return the slice of a tile accepted by `_can_slice`."""
        cached = self.slices.get((value, axis))
        if cached is not None:
            return cached
        if value.op is None:
            return self._carry(value, axis)
        builder = Builder.before_op(value.op)
        with at(value.op.loc):
            narrow = yield self._of_op(value.op, axis, builder)
        self.slices[value, axis] = narrow
        return narrow

    def _of_op(self, op: Op, axis: int, builder: Builder) -> Steps[Value]:
        kind = op.results[0].type
        assert isinstance(kind, TileType)
        shape = self._shape(kind, axis)
        if isinstance(op, tile.Arange):
            return self._scaled(self._indices(op.out, axis), self.every, builder)
        if isinstance(op, arith.Constant):
            return builder(arith.Constant(op.value, TileType(kind.element, shape))).out
        if isinstance(op, tile.Splat):
            return builder(tile.Splat(op.value, shape)).out
        if isinstance(op, tile.Hint):  # of larger runs
            return (yield self._slice(op.value, axis))
        if isinstance(op, tile.Broadcast) and tile_shape(op.value)[axis] == 1:
            return builder(tile.Broadcast(op.value, shape)).out
        if isinstance(op, arith.Div) and self._is_whole(op, axis):
            divisor = known(op.rhs)
            assert divisor is not None
            indices = self._indices(op.lhs, axis)
            if divisor == self.every:
                return indices
            fewer = arith.Constant(int(divisor) // self.every, indices.type)
            return builder(arith.Div(indices, builder(fewer).out)).out
        sources = _sources(op.results[0], axis) or ()
        sliced: dict[Value, Value] = {}
        for source, source_axis in sources:
            sliced[source] = yield self._slice(source, source_axis)
        if isinstance(op, tile.Broadcast):
            return builder(tile.Broadcast(sliced[op.value], shape)).out
        return builder(op.clone(sliced)).results[0]

    def _is_whole(self, division: arith.Div, axis: int) -> bool:
        """Return whether indices along the axis are divided by a multiple of `every`."""
        divisor, value = known(division.rhs), division.lhs
        while isinstance(value.op, tile.ExpandDims | tile.Trans):
            value, axis = _only_source(value, axis)
        return (
            isinstance(value.op, tile.Arange)
            and divisor is not None
            and divisor % self.every == 0 < divisor
        )

    def _indices(self, value: Value, axis: int) -> Value:
        """Return the sliced indices, divided by `every`."""
        views: list[Op] = []
        while not isinstance(value.op, tile.Arange):
            assert value.op is not None
            views.append(value.op)
            value, axis = _only_source(value, axis)
        op = value.op
        with at(op.loc):
            arange = tile.Arange(op.start // self.every, op.end // self.every)
            sliced = Builder.before_op(op)(arange).out
        for view in reversed(views):
            sliced = Builder.before_op(view)(view.clone({view.operands[0]: sliced})).results[0]
        return sliced

    def _scaled(self, indices: Value, factor: int, builder: Builder) -> Value:
        return builder(arith.Mul(indices, builder(arith.Constant(factor, indices.type)).out)).out

    def _carry(self, value: Value, axis: int) -> Value:
        """Add a loop-body argument for the slice of a carried tile."""
        block, kind = value.owner, value.type
        assert isinstance(block, Block)
        assert isinstance(kind, TileType)
        arg = block.add_arg(TileType(kind.element, self._shape(kind, axis)), value.hint)
        self.slices[value, axis] = arg
        self.carried.append((value, axis))
        return arg

    def _complete_loops(self) -> None:
        """Add initial and next values of the carried slices to their loops."""
        ends: dict[Block, list[tuple[Value, Value]]] = {}
        for value, axis in self.carried:  # grows while slices need other carried tiles
            sources = _sources(value, axis) or ()
            first, following = (
                run(self._slice(source, source_axis)) for source, source_axis in sources
            )
            assert isinstance(value.owner, Block)
            ends.setdefault(value.owner, []).append((first, following))
        self.carried.clear()
        for block, pairs in ends.items():
            pass_on(block, [following for _, following in pairs])
            assert isinstance(block.parent, scf.For)
            append_carried(block.parent, [first for first, _ in pairs])

    def _shape(self, kind: TileType, axis: int) -> tuple[int, ...]:
        return (*kind.shape[:axis], kind.shape[axis] // self.every, *kind.shape[axis + 1 :])


def _only_source(value: Value, axis: int) -> tuple[Value, int]:
    (source,) = _sources(value, axis) or []
    return source


def _sources(value: Value, axis: int) -> list[tuple[Value, int]] | None:
    """Return the sources of a slice with their axes, or None if unsupported."""
    op = value.op
    if op is None:
        loop = value.owner.parent if isinstance(value.owner, Block) else None
        if not isinstance(loop, scf.For) or value is loop.induction:
            return None
        index = value.index - 1
        return [(loop.init[index], axis), (loop.body.terminator.operands[index], axis)]
    if isinstance(op, arith.Constant | tile.Splat | tile.Arange):
        return []
    if isinstance(op, tile.Broadcast):
        return [(op.value, axis)] if tile_shape(op.value)[axis] > 1 else []
    if isinstance(op, tile.ExpandDims):
        return [(op.value, axis - (axis > op.axis))]
    if isinstance(op, tile.Trans):
        return [(op.value, op.order[axis])]
    if is_elementwise(op) and op.pure:
        return [(source, axis) for source in op.operands]
    return None

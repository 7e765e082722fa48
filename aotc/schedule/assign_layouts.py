"""Give every tile a layout: the pass from tile IR to gpu IR.

Three walks. `Homes` goes forward and says where each tile is computed. `Demand` goes backward and
collects the layouts each tile is wanted in. `_Emitter` goes forward again and writes gpu IR: a
tile with a home is computed once and converted to what else is wanted, one without is made anew
in each layout. So a conversion stands only where two homes meet, right after the value it
converts, and everything cheap is recomputed instead of moved.

Invariant: afterwards every tile has a layout, memory accesses are `gpu.load` and `gpu.store` with
their vector widths, and all differences between layouts are `gpu.convert`.
"""

from __future__ import annotations

from collections.abc import Callable

from aotc.ir.core import Block, Kernel, Op, Value, build
from aotc.ir.diagnostics import IRError, at
from aotc.ir.dialects import arith, gpu, scf, tile
from aotc.ir.layout import LinearLayout
from aotc.ir.rewrite import Builder
from aotc.ir.types import TileType
from aotc.schedule.access import (
    Access,
    Atomic,
    choose_layouts,
    max_access_elems,
    pointee_bytes,
    prefetch_bytes,
    vector_width,
)
from aotc.schedule.atomics import place_atomic
from aotc.schedule.axis import AxisAnalysis
from aotc.schedule.context import Schedule
from aotc.schedule.demand import Demand, broadcast_operand, operand_layouts
from aotc.schedule.dot_layouts import choose_dots
from aotc.schedule.homes import Homes, is_elementwise, is_tile
from aotc.schedule.operand_slices import pull_operands


def assign_layouts(kernel: Kernel, schedule: Schedule) -> None:
    """Turn tile IR into gpu IR; see the module docstring."""
    infos, target = AxisAnalysis(kernel), schedule.target
    accesses = [op for op in kernel.walk() if isinstance(op, Access)]
    anchors = choose_layouts(accesses, infos, kernel.num_warps, target)
    dots = choose_dots(kernel, anchors, target)
    homes = Homes(kernel, anchors, dots, pull_operands(dots))
    kernel.body = _Emitter(Demand(kernel, homes, infos, target), infos).emit_kernel(kernel)
    kernel.body.parent = kernel


class _Emitter:
    """Write the new body; `values` maps a value and a layout to the value that holds it."""

    def __init__(self, demand: Demand, infos: AxisAnalysis) -> None:
        self.demand = demand
        self.homes = demand.homes
        self.infos = infos
        self.values: dict[tuple[Value, LinearLayout | None], Value] = {}

    def emit_kernel(self, kernel: Kernel) -> Block:
        body = Block([arg.type for arg in kernel.body.args], [arg.hint for arg in kernel.body.args])
        for old, new in zip(kernel.body.args, body.args, strict=True):
            self.values[old, None] = new
        self.emit_ops(kernel.body, Builder(body))
        return body

    def emit_ops(self, block: Block, place: Builder) -> None:
        for op in block:
            rule = _RULES.get(type(op)) or (_emit_cloned if is_elementwise(op) else _emit_at_home)
            with at(op.loc):
                rule(op, self, place)

    def get(self, value: Value, layout: LinearLayout | None) -> Value:
        """Return `value` in `layout`; a scalar is the same everywhere."""
        found = self.values.get((value, layout if is_tile(value) else None))
        if found is None:
            raise IRError(f"a tile was not asked for in {layout}")
        return found

    def get_optional(self, value: Value | None, layout: LinearLayout | None) -> Value | None:
        return None if value is None else self.get(value, layout)

    def bind(self, old: Value, new: Value, place: Builder) -> None:
        """Let `new` stand for `old`, and convert it to whatever else `old` is wanted in."""
        new.hint = new.hint or old.hint
        if not isinstance(new.type, TileType):
            self.values[old, None] = new
            return
        self.values[old, new.type.layout] = new
        if self.homes.get(old) == new.type.layout:
            for layout in self.demand.layouts(old)[1:]:
                self.values[old, layout] = place(gpu.Convert(new, layout)).out

    def bind_all(self, old: Op, new: Op, place: Builder) -> None:
        place(new)
        for before, after in zip(old.results, new.results, strict=True):
            self.bind(before, after, place)

    def nested(self, block: Block) -> Block:
        """Return `block` rewritten, its tile arguments at their homes."""
        copy = Block()
        place = Builder(copy)
        for arg in block.args:
            kind = arg.type
            if isinstance(kind, TileType):
                kind = kind.with_layout(self.homes.or_default(arg))
            copy.add_arg(kind, arg.hint)
        for old, new in zip(block.args, copy.args, strict=True):
            self.bind(old, new, place)
        self.emit_ops(block, place)
        return copy


# ---- rules ------------------------------------------------------------------------------------


def _emit_at_home(op: Op, emitter: _Emitter, place: Builder) -> None:
    """Copy an op that has one version: scalars, reductions, whatever only looks at tiles."""
    layout = emitter.demand.works_in.get(op)
    mapping = {value: emitter.get(value, layout) for value in op.operands}
    emitter.bind_all(op, op.clone(mapping), place)


def _emit_nested(op: Op, emitter: _Emitter, place: Builder) -> None:
    """Rewrite a loop, a branch or a terminator: each slot in the layout of its variable."""
    layouts = emitter.homes.slot_layouts(op)
    blocks = [emitter.nested(block) for block in op.blocks]
    slots = [emitter.get_optional(*pair) for pair in zip(op.slots, layouts, strict=True)]
    emitter.bind_all(op, build(type(op), slots, op.attributes, blocks, op.loc), place)


def _emit_cloned(op: Op, emitter: _Emitter, place: Builder) -> None:
    """Compute an elementwise op or a renaming of elements in every layout it is made in."""
    out = op.results[0]
    if not is_tile(out):
        _emit_at_home(op, emitter, place)
        return
    for layout in emitter.demand.made_in(out):
        sources = operand_layouts(op, layout)
        mapping = {
            value: emitter.get(value, source)
            for value, source in zip(op.operands, sources, strict=True)
        }
        emitter.bind_all(op, op.clone(mapping), place)


def _emit_source(op: Op, emitter: _Emitter, place: Builder) -> None:
    """Make a constant, range or splat in every layout it is wanted in."""
    out = op.results[0]
    if not isinstance(out.type, TileType):
        _emit_at_home(op, emitter, place)
        return
    mapping = {value: emitter.get(value, None) for value in op.operands}
    for layout in emitter.demand.made_in(out):
        if isinstance(op, arith.Constant):
            copy = op.clone(mapping, type=out.type.with_layout(layout))
        else:
            copy = op.clone(mapping, layout=layout)
        emitter.bind_all(op, copy, place)


def _emit_broadcast(op: Op, emitter: _Emitter, place: Builder) -> None:
    assert isinstance(op, tile.Broadcast)
    for layout in emitter.demand.made_in(op.out):
        source = emitter.get(op.value, broadcast_operand(layout, op))
        assert isinstance(source.type, TileType)
        repeated = layout.broadcast_source(source.type.shape)
        if source.type.layout != repeated:
            source = place(gpu.Convert(source, repeated)).out
        emitter.bind_all(op, tile.Broadcast(source, op.shape, layout), place)


def _emit_load(op: Op, emitter: _Emitter, place: Builder) -> None:
    assert isinstance(op, tile.Load)
    layout = emitter.demand.works_in.get(op)
    operands = [emitter.get_optional(value, layout) for value in (op.pointer, op.mask, op.other)]
    vector = _vector(op, layout, emitter)
    prefetch = 0
    if layout is not None and not (op.cache or op.eviction or op.volatile):
        prefetch = prefetch_bytes(emitter.infos[op.pointer], vector, pointee_bytes(op.pointer))
    chosen = {"vector": vector, "prefetch_bytes": prefetch}
    copy = build(gpu.Load, operands, {**op.attributes, **chosen}, (), op.loc)
    emitter.bind_all(op, copy, place)


def _emit_store(op: Op, emitter: _Emitter, place: Builder) -> None:
    assert isinstance(op, tile.Store)
    layout = emitter.demand.works_in.get(op)
    operands = [emitter.get_optional(value, layout) for value in (op.pointer, op.value, op.mask)]
    vector = _vector(op, layout, emitter)
    place(build(gpu.Store, operands, {**op.attributes, "vector": vector}, (), op.loc))


def _emit_dot(op: Op, emitter: _Emitter, place: Builder) -> None:
    assert isinstance(op, tile.Dot)
    layouts = emitter.homes.dots[op]
    operands = list(map(emitter.get, op.operands, layouts.operands()))
    copy = build(gpu.Dot, operands, {**op.attributes, "shape": layouts.shape}, (), op.loc)
    emitter.bind_all(op, copy, place)


def _emit_atomic(op: Op, emitter: _Emitter, place: Builder) -> None:
    assert isinstance(op, Atomic)
    layout = emitter.demand.works_in.get(op)
    slots = [emitter.get_optional(value, layout) for value in op.slots]
    vector = 1 if isinstance(op, tile.AtomicCas) else _vector(op, layout, emitter)
    emitter.bind(op.out, place_atomic(op, slots, vector, emitter.homes.num_warps, place), place)


def _vector(
    op: tile.Load | tile.Store | tile.AtomicRmw, layout: LinearLayout | None, emitter: _Emitter
) -> int:
    if layout is None:
        return 1
    mask = None if op.mask is None else emitter.infos[op.mask]
    widths = pointee_bytes(op.pointer), max_access_elems(op, emitter.demand.target)
    return vector_width(layout, emitter.infos[op.pointer], mask, *widths)


_RULES: dict[type[Op], Callable[[Op, _Emitter, Builder], None]] = {
    scf.For: _emit_nested,
    scf.If: _emit_nested,
    scf.While: _emit_nested,
    scf.Yield: _emit_nested,
    scf.Condition: _emit_nested,
    arith.Constant: _emit_source,
    tile.Arange: _emit_source,
    tile.Splat: _emit_source,
    tile.Broadcast: _emit_broadcast,
    tile.ExpandDims: _emit_cloned,
    tile.Reshape: _emit_cloned,
    tile.Trans: _emit_cloned,
    tile.Join: _emit_cloned,
    tile.Load: _emit_load,
    tile.Store: _emit_store,
    tile.Dot: _emit_dot,
    tile.AtomicRmw: _emit_atomic,
    tile.AtomicCas: _emit_atomic,
}

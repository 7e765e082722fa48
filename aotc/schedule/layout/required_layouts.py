"""The layouts required of each tile by its users.

A backward walk from stores, reductions and loop variables: an op computed in a layout requires its
operands in it. A tile without a preferred layout passes the requirement on to its operands. So the
whole of an address computation is required in the layout of the access.

Invariant: every layout read by `assign_layouts` has been required here.
"""

from __future__ import annotations

from collections.abc import Callable

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.dialects import assembly, cluster, descriptor, indexing, mapped, tile
from aotc.ir.effects import Trait
from aotc.ir.layout import LinearLayout
from aotc.ir.tiles import is_elementwise, is_tile, tile_shape
from aotc.ir.types import element_of
from aotc.schedule.analysis.axis import AxisAnalysis
from aotc.schedule.analysis.global_order import accessed_pointer
from aotc.schedule.layout.access import (
    BURST_BYTES,
    access_cost,
    in_memory_order,
    max_access_elems,
    memory_order,
    pointee_bytes,
)
from aotc.schedule.layout.conversions import SharedExchange, plan_conversion
from aotc.schedule.layout.preferred_layouts import PreferredLayouts
from aotc.schedule.layout.wgmma_layouts import operand_buffer
from aotc.target import Feature, Target


class Demand:
    """The layouts required of each tile, and the layout of each op.

    `buffers` are the shared layouts from which dots read a tile.
    """

    def __init__(
        self, kernel: Kernel, preferred: PreferredLayouts, infos: AxisAnalysis, target: Target
    ) -> None:
        self.preferred = preferred
        self.infos = infos
        self.target = target
        self.wanted: dict[Value, dict[LinearLayout, None]] = {}
        self.works_in: dict[Op, LinearLayout] = {}
        self.buffers: dict[Value, dict[LinearLayout, None]] = {}
        self._visit(kernel.body)

    def want(self, value: Value | None, layout: LinearLayout) -> None:
        if value is not None and is_tile(value):
            self.wanted.setdefault(value, {})[layout] = None

    def layouts(self, value: Value) -> list[LinearLayout]:
        """Return the layouts to compute `value` in, its preferred one first."""
        home = self.preferred.get(value)
        layouts = self.wanted.get(value, {})
        return [
            *([] if home is None else [home]),
            *(layout for layout in layouts if layout != home),
        ]

    def computed_layouts(self, value: Value) -> list[LinearLayout]:
        """Return the layouts in which the defining op of `value` computes it."""
        home = self.preferred.get(value)
        return [home] if home is not None else self.layouts(value)

    def _visit(self, block: Block) -> None:
        op = block.last
        while op is not None:
            if op.has(Trait.CONTROL_FLOW):
                for nested in reversed(op.blocks):
                    self._visit(nested)
            for value, layout in zip(op.slots, self.preferred.slot_layouts(op), strict=False):
                if layout is not None:
                    self.want(value, layout)
            rule = _DEMANDS.get(type(op)) or _rule_of(op)
            if rule is not None:
                rule(op, self)
            op = op.prev


def _rule_of(op: Op) -> Callable[[Op, Demand], None] | None:
    """Return the default rule for an op's operand layouts, by its declarations."""
    if accessed_pointer(op) is not None:
        return _demand_access
    if isinstance(op, descriptor.DescriptorWrite):
        return _demand_block
    if is_elementwise(op) or type(op) in _OPERAND_LAYOUTS:
        return _demand_clones
    return None if op.results or op.terminator else _demand_observer


def _demand_clones(op: Op, demand: Demand) -> None:
    """Require the operands of an op wherever the op is computed."""
    if not is_tile(op.results[0]):
        return
    for layout in demand.computed_layouts(op.results[0]):
        for value, source in zip(op.operands, operand_layouts(op, layout), strict=True):
            demand.want(value, source)


def _demand_access(op: Op, demand: Demand) -> None:
    if op not in demand.preferred.anchors:
        if isinstance(op, tile.Load):  # of an index, repeated in each layout; or of a scalar
            _demand_clones(op, demand)
        return
    layout = demand.preferred.anchors[op]
    # The result already prefers the layout of the access.
    if isinstance(op, tile.Store | tile.AtomicRmw) and not any(out.users for out in op.results):
        layout = _store_layout(op, demand)
    demand.works_in[op] = layout
    for value in op.operands:
        demand.want(value, layout)


def _store_layout(op: tile.Store | tile.AtomicRmw, demand: Demand) -> LinearLayout:
    """Store from the value's own layout, unless converting it first is cheaper.

    A thread may have its elements in another order than memory. If accesses in memory order are as
    good as any, nothing moves between threads.
    """
    anchor, home = demand.preferred.anchors[op], demand.preferred.get(op.value)
    if home is None or home == anchor:
        return anchor
    plan = plan_conversion(
        home,
        anchor,
        element_of(op.value.type).bits,
        stmatrix=Feature.STMATRIX in demand.target.features,
    )
    if isinstance(plan, SharedExchange) and plan.scratch_bytes > demand.target.max_shared_bytes:
        return home
    pointer, likely = demand.infos[op.pointer], demand.infos.likely(op.pointer)
    mask = None if op.mask is None else demand.infos[op.mask]
    widths = pointee_bytes(op.pointer), max_access_elems(op, demand.target)

    def cost(layout: LinearLayout, *sector_bytes: int) -> int:
        return access_cost(layout, pointer, likely, mask, *widths, *sector_bytes)

    ordered = in_memory_order(home, memory_order(pointer, likely))
    if cost(ordered) < cost(home) and cost(ordered, BURST_BYTES) <= cost(anchor, BURST_BYTES):
        return ordered
    return home if cost(home) <= cost(anchor) + plan.cost else anchor


def broadcast_operand(layout: LinearLayout, op: tile.Broadcast) -> LinearLayout:
    """Return the layout to compute the operand in: each element once a thread."""
    return layout.broadcast_source(tile_shape(op.value)).remove_zero_bases()


def _demand_together(op: Op, demand: Demand) -> None:
    """Require the operands of an op on several elements in the op's layout."""
    layout = demand.preferred.works_in(op)
    assert layout is not None
    demand.works_in[op] = layout
    for value in op.operands:
        demand.want(value, layout)


def _demand_assembly(op: Op, demand: Demand) -> None:
    if is_elementwise(op):
        _demand_clones(op, demand)
    elif is_tile(op.results[0]):
        _demand_together(op, demand)


def _demand_dot(op: Op, demand: Demand) -> None:
    assert isinstance(op, tile.Dot)
    for value, layout in zip(op.operands, demand.preferred.dots[op].operands(), strict=True):
        if layout is None:
            # Shared memory can be written from any layout.
            layout = demand.preferred.or_default(value)  # noqa: PLW2901
            demand.buffers.setdefault(value, {})[operand_buffer(op, value, layout)] = None
        demand.want(value, layout)


def _demand_block(op: Op, demand: Demand) -> None:
    """Require a tile in its own layout: shared memory can be written from any."""
    assert isinstance(op, descriptor.DescriptorWrite)
    layout = demand.preferred.get(op.value) or demand.preferred.anchors[op]
    demand.works_in[op] = layout
    demand.want(op.value, layout)


def _demand_gather(op: Op, demand: Demand) -> None:
    """Require the index in the result's layout; the source may have any."""
    assert isinstance(op, indexing.Gather)
    demand.want(op.index, demand.preferred.or_default(op.out))
    demand.want(op.source, demand.preferred.or_default(op.source))


def _demand_observer(op: Op, demand: Demand) -> None:
    """Require the tiles of a read-only op in the layout of the first."""
    tiles = [value for value in op.operands if is_tile(value)]
    if tiles:
        layout = demand.preferred.or_default(tiles[0])
        demand.works_in[op] = layout
        for value in tiles:
            demand.want(value, layout)


_DEMANDS: dict[type[Op], Callable[[Op, Demand], None]] = {
    assembly.InlineAsm: _demand_assembly,
    assembly.VolatileAsm: _demand_assembly,
    mapped.Map: _demand_assembly,
    tile.Dot: _demand_dot,
    cluster.ClusterPermute: _demand_together,
    cluster.ClusterRead: _demand_together,
    cluster.ClusterTranspose: _demand_together,
    tile.Split: _demand_together,
    tile.Reduce: _demand_together,
    tile.Scan: _demand_together,
    indexing.Histogram: _demand_observer,
    indexing.Gather: _demand_gather,
}
"""Rules by op class; for other ops `_rule_of` decides."""


# ---- operand layouts: where the operands must be for a result in a given layout ---------------


def _like_broadcast(op: Op, layout: LinearLayout) -> list[LinearLayout]:
    assert isinstance(op, tile.Broadcast)
    return [broadcast_operand(layout, op)]


def _like_expand_dims(op: Op, layout: LinearLayout) -> list[LinearLayout]:
    assert isinstance(op, tile.ExpandDims)
    return [layout.reduce(op.axis)]


def _like_reshape(op: Op, layout: LinearLayout) -> list[LinearLayout]:
    assert isinstance(op, tile.Reshape)
    return [layout.reshape(tile_shape(op.value))]


def _like_trans(op: Op, layout: LinearLayout) -> list[LinearLayout]:
    assert isinstance(op, tile.Trans)
    inverse = tuple(op.order.index(axis) for axis in range(len(op.order)))
    return [layout.transpose(inverse)]


def _like_join(op: Op, layout: LinearLayout) -> list[LinearLayout]:
    del op
    return [layout.split()] * 2


def operand_layouts(op: Op, layout: LinearLayout) -> list[LinearLayout]:
    """Return the operand layouts required to compute `op` in `layout`."""
    rule = _OPERAND_LAYOUTS.get(type(op))
    return [layout] * len(op.operands) if rule is None else rule(op, layout)


_OPERAND_LAYOUTS: dict[type[Op], Callable[[Op, LinearLayout], list[LinearLayout]]] = {
    tile.Broadcast: _like_broadcast,
    tile.ExpandDims: _like_expand_dims,
    tile.Reshape: _like_reshape,
    tile.Trans: _like_trans,
    tile.Join: _like_join,
}

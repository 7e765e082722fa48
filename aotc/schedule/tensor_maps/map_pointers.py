"""Turn accesses through pointers into tensor copies, if the tensor can be derived.

`a_ptr + rows * stride + columns`, masked at the ends of a matrix, is a box of a matrix. Launch arguments
give its address, extents and strides, so the launcher can encode a tensor map. A dot operand is then loaded
as through a descriptor: hardware copies it and clips it at the bounds, and no thread computes an address or
stalls. A kernel with such guards also stores its dots' results, or adds them to memory, by tensor copies.
`operand_loads` and `dot_stores` select the accesses. Other accesses stay, with a remark giving the reason.

Invariant: results are unchanged, in every launch for which all `guards` hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aotc.ir.core import Kernel, Value
from aotc.ir.diagnostics import at
from aotc.ir.dialects import descriptor, scf, tile
from aotc.ir.params import ParamInfo, TensorSource
from aotc.ir.rewrite import Builder, rewrite
from aotc.ir.types import DescriptorType, ScalarType, TileType, element_of, shape_of
from aotc.schedule.analysis.affine import AffineAnalysis
from aotc.schedule.analysis.axis import AxisAnalysis
from aotc.schedule.analysis.coordinates import coordinate
from aotc.schedule.analysis.global_order import root_names
from aotc.schedule.cleanup.drop_carried import drop_unused_carried
from aotc.schedule.cleanup.simplify import fold_trans_of_trans
from aotc.schedule.context import Schedule
from aotc.schedule.remarks import Remark
from aotc.schedule.tensor_maps.bulk_copies import reduce_kind
from aotc.schedule.tensor_maps.dot_stores import Written, check_store_order, dot_stores
from aotc.schedule.tensor_maps.operand_loads import (
    check_dot,
    check_load_order,
    operands_in_loops,
    operands_outside,
)
from aotc.schedule.tensor_maps.pointer_box import TensorBox, UnmappableError, box_of
from aotc.target import Feature

# Dots on CUDA cores read fragments from shared memory: a plain pipeline measures well there and
# leaves more registers.
_NEEDED = Feature.TMA | Feature.WGMMA

_DONE = {tile.Load: "loaded", tile.Store: "stored", tile.AtomicRmw: "updated"}


def map_pointers(kernel: Kernel, schedule: Schedule) -> None:
    """Replace loads and stores by those through descriptors; see the module docstring."""
    if not schedule.map_pointers or _NEEDED not in schedule.target.features:
        return
    uses = list(operands_in_loops(kernel))
    if not uses:
        return
    analysis, facts = AffineAnalysis(kernel, drops_clamps=True), AxisAnalysis(kernel)
    mapper = _Mapper(kernel, analysis)

    def loaded(load: tile.Load, dot: tile.Dot) -> TensorBox:
        check_load_order(load, kernel)
        box = box_of(load, kernel, analysis, facts)
        check_dot(load, dot, box, schedule)
        return box

    def stored(store: Written) -> TensorBox:
        check_store_order(store, kernel)
        return box_of(store, kernel, analysis, facts)

    loops: dict[scf.For, None] = {}
    outside = list(operands_outside(kernel))

    def replace_loads(uses: Sequence[tuple[tile.Load, tile.Dot]]) -> None:
        for load, dot in uses:
            box = _asked(load, lambda load=load, dot=dot: loaded(load, dot), schedule)
            if box is not None:
                loops.update((op, None) for op in load.ancestors() if isinstance(op, scf.For))
                mapper.replace_load(load, box)

    replace_loads(uses)
    if mapper.maps:
        replace_loads(outside)
        # Analyze all accesses first: replacing an access changes the address ops of others.
        stores = list(dot_stores(kernel))
        boxes = [
            _asked(access, lambda access=access: stored(access), schedule) for access in stores
        ]
        for store, box in zip(stores, boxes, strict=True):
            if box is not None:
                mapper.replace_write(store, box)
    for loop in loops:
        drop_unused_carried(loop)
    # This drops dead address computations, too. A box of keys loaded transposed is transposed back; with a
    # dot's own transposition both fold away.
    rewrite(kernel, {tile.Trans: (fold_trans_of_trans,)})


def _asked(
    access: tile.Load | Written, find: Callable[[], TensorBox], schedule: Schedule
) -> TensorBox | None:
    """Return the box from `find`, or None if it refuses; remark either outcome."""
    verb = _DONE[type(access)]
    name = root_names(access.pointer)
    try:
        box = find()
    except UnmappableError as refusal:
        reason = f"{refusal.reason}; {refusal.remedy}" if refusal.remedy else refusal.reason
        text = Remark.NO_TENSOR_COPY(name=name, done=verb, reason=reason)
        schedule.remark(access.loc, text)
        return None
    remark = Remark.GUARDED_TENSOR_COPY if box.guards else Remark.TENSOR_COPY
    text = remark(name=name, done=verb, guards=" and ".join(box.guards))
    schedule.remark(access.loc, text)
    return box


# ---- rewriting --------------------------------------------------------------------------------


@dataclass
class _Mapper:
    """Replace accesses; `maps` are the descriptors so far, by source and type."""

    kernel: Kernel
    analysis: AffineAnalysis
    maps: dict[tuple[TensorSource, DescriptorType], Value] = field(
        default_factory=dict[tuple[TensorSource, DescriptorType], Value]
    )

    def replace_load(self, load: tile.Load, box: TensorBox) -> None:
        """Load `box` in place of `load`."""
        with at(load.loc):
            builder = Builder.before_op(load)
            tensor, coords = self._place_of(load, box, builder)
            num_extra = sum(axis.tile_axis is None for axis in box.axes)
            loaded = descriptor.DescriptorLoad(tensor, coords, "", load.eviction, num_extra)
            load.replace_with([_as_loaded(builder(loaded).out, load, box, builder)])

    def replace_write(self, write: Written, box: TensorBox) -> None:
        """Store to `box`, or reduce into it, in place of `write`."""
        with at(write.loc):
            builder = Builder.before_op(write)
            tensor, coords = self._place_of(write, box, builder)
            value = _as_stored(write.value, box, builder)
            if isinstance(write, tile.AtomicRmw):
                builder(descriptor.DescriptorReduce(tensor, value, coords, reduce_kind(write)))
            else:
                builder(descriptor.DescriptorStore(tensor, value, coords))
            write.erase()

    def _place_of(
        self, access: tile.Load | Written, box: TensorBox, builder: Builder
    ) -> tuple[Value, list[Value]]:
        """Return the descriptor and the coordinates of a box; keep its guards for launches."""
        guards = dict.fromkeys((*self.kernel.guards, *box.guards))
        asked_twice = [f"{guard.removesuffix(' > 0')} >= 0" for guard in guards]
        self.kernel.guards = tuple(guard for guard in guards if guard not in asked_twice)
        coords = [coordinate(self.analysis, axis.start, access, builder) for axis in box.axes]
        return self._descriptor(access, box), coords

    def _descriptor(self, access: tile.Load | Written, box: TensorBox) -> Value:
        """Return the descriptor parameter for the tensor of a box."""
        copied = access.out if isinstance(access, tile.Load) else access.value
        element = element_of(copied.type)
        assert isinstance(element, ScalarType)
        kind = DescriptorType(element, tuple(axis.box for axis in box.axes))
        source = box.source
        if (source, kind) not in self.maps:
            number = sum(other.address == source.address for other, _ in self.maps)
            name = f"{source.address}.map{number or ''}"
            self.maps[source, kind] = self.kernel.body.add_arg(kind, name)
            self.kernel.params += (ParamInfo(name, tensor=source),)
        return self.maps[source, kind]


def _as_loaded(value: Value, load: tile.Load, box: TensorBox, builder: Builder) -> Value:
    """Return a box with the axes of the load it replaces."""
    kind = load.out.type
    assert isinstance(kind, TileType)
    order = _order(box)
    if order != sorted(order):
        value = builder(tile.Trans(value, tuple(map(order.index, sorted(order))))).out
    if shape_of(value.type) != kind.shape:
        value = builder(tile.Reshape(value, kind.shape)).out
    return value


def _as_stored(value: Value, box: TensorBox, builder: Builder) -> Value:
    """Return a stored tile with the axes of its box."""
    order = _order(box)
    dense = tuple(extent for extent in shape_of(value.type) if extent > 1)
    if shape_of(value.type) != dense:
        value = builder(tile.Reshape(value, dense)).out
    if order != sorted(order):
        value = builder(tile.Trans(value, tuple(map(sorted(order).index, order)))).out
    shape = tuple(axis.box for axis in box.axes)
    return value if shape_of(value.type) == shape else builder(tile.Reshape(value, shape)).out


def _order(box: TensorBox) -> list[int]:
    """Return the tile axes of a box, outermost first."""
    return [axis.tile_axis for axis in box.axes if axis.tile_axis is not None]

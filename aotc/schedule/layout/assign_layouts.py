"""Give every tile a layout: the pass from tile IR to gpu IR.

Three walks. `PreferredLayouts` goes forward and chooses the layout to compute each tile in.
`Demand` goes backward and collects the layouts required of each tile. `_Emitter` goes forward again
and emits gpu IR. A tile with a preferred layout is computed once and converted to the other
required ones; a tile without one is recomputed in each. So conversions are only where two preferred
layouts meet, right after the value, and everything cheap is recomputed instead of converted.

Invariant: afterwards every tile has a layout, memory accesses are `gpu.load` and `gpu.store` with
their vector widths, and all differences between layouts are `gpu.convert`.
"""

from __future__ import annotations

from collections.abc import Callable

from aotc.ir.core import Block, Kernel, Op, Value, build
from aotc.ir.diagnostics import IRError, at
from aotc.ir.dialects import (
    arith,
    cache,
    cluster,
    descriptor,
    gpu,
    grid,
    indexing,
    map_store,
    scf,
    tile,
    tma,
    wgmma,
)
from aotc.ir.effects import Trait
from aotc.ir.layout import LinearLayout
from aotc.ir.rewrite import Builder
from aotc.ir.tiles import is_elementwise, is_tile
from aotc.ir.types import I1, DescriptorType, PointerType, TensorMapType, TileType, Type, shape_of
from aotc.schedule.analysis.axis import AxisAnalysis
from aotc.schedule.analysis.global_order import may_precede, synchronizes
from aotc.schedule.context import Schedule
from aotc.schedule.layout.access import (
    choose_layouts,
    gathers,
    max_access_elems,
    pointee_bytes,
    prefetch_bytes,
    repeated_run,
    vector_width,
)
from aotc.schedule.layout.atomics import emit_atomic
from aotc.schedule.layout.bank_order import in_bank_order
from aotc.schedule.layout.dot_layouts import choose_dots, remark_exchanged
from aotc.schedule.layout.index_loads import fits_ahead, index_loads
from aotc.schedule.layout.indexing import emit_gather, emit_histogram
from aotc.schedule.layout.map_slots import allocate_slots, map_template, slot_addresses
from aotc.schedule.layout.operand_slices import pull_operands
from aotc.schedule.layout.preferred_layouts import DotLayouts, PreferredLayouts
from aotc.schedule.layout.promoted_dots import PromotedDot, promotion_interval
from aotc.schedule.layout.required_layouts import Demand, broadcast_operand, operand_layouts
from aotc.schedule.layout.tensor_copies import (
    block_buffer,
    choose_block_layouts,
    is_read_back,
    parameter_type,
    read_buffer,
    shared_layout,
    tensor_map_of,
)
from aotc.schedule.layout.warpgroup_boxes import in_warpgroup_boxes
from aotc.schedule.layout.wgmma_layouts import (
    operand_buffer,
    store_operand,
    transposing_loads,
)


def assign_layouts(kernel: Kernel, schedule: Schedule) -> None:
    """Turn tile IR into gpu IR; see the module docstring."""
    infos, target = AxisAnalysis(kernel), schedule.target
    anchors = choose_layouts(kernel, infos, target)
    anchors |= choose_block_layouts(kernel)
    in_flight = schedule.config.mma_stages > 1
    dots = choose_dots(kernel, anchors, target, in_flight=in_flight)
    remark_exchanged(dots, kernel, schedule)
    anchors |= transposing_loads(dots, anchors, kernel.num_warps)
    pulled, indices = pull_operands(dots), index_loads(kernel)
    gathered = gathers(kernel, infos)
    while True:
        non_index_anchors = {op: layout for op, layout in anchors.items() if op not in indices}
        preferred = PreferredLayouts(kernel, non_index_anchors, dots, pulled, gathered)
        demand = Demand(kernel, preferred, infos, target)
        too_large = [
            op
            for op, most in indices.items()
            if not fits_ahead(op, demand.computed_layouts(op.out), most)
        ]
        if not too_large:
            break
        for op in too_large:
            del indices[op]
    kernel.body = _Emitter(demand, infos).emit_kernel(kernel)
    kernel.body.parent = kernel


class _Emitter:
    """Emit the new body; `values` maps a value and a layout to the new value.

    `buffers` does so for layouts of shared memory.
    """

    def __init__(self, demand: Demand, infos: AxisAnalysis) -> None:
        self.demand = demand
        self.preferred = demand.preferred
        self.infos = infos
        self.values: dict[tuple[Value, LinearLayout | None], Value] = {}
        self.buffers: dict[tuple[Value, LinearLayout], Value] = {}
        self.loaded: dict[Value, Value] = {}
        """The buffers of tiles filled by tensor loads."""
        self.has_maps = False
        self.slots: dict[Op, Value] = {}
        """Slots for publishing the tensor maps made by the kernel."""
        self.read_back: set[Op] = set()
        """The stores of tiles to tensors also accessed in other ways."""
        self.stores: list[Op] = []
        """Stores of tiles possibly in flight when other threads are told of them."""

    def emit_kernel(self, kernel: Kernel) -> Block:
        self.stores = [op for op in kernel.walk() if isinstance(op, descriptor.DescriptorWrite)]
        self.read_back = {op for op in self.stores if is_read_back(op, kernel)}
        self.has_maps = any(isinstance(arg.type, DescriptorType) for arg in kernel.body.args)
        slots = allocate_slots(kernel)
        if slots or any(isinstance(op, descriptor.DescriptorAt) for op in kernel.walk()):
            self.has_maps = True
        types = [self.passed_type(arg) for arg in kernel.body.args]
        body = Block(types, [arg.hint for arg in kernel.body.args])
        for old, new in zip(kernel.body.args, body.args, strict=True):
            self.values[old, None] = new
        builder = Builder(body)
        addresses = slot_addresses(body, slots, kernel.num_ctas, builder)
        self.slots = dict(zip(slots, addresses, strict=True))
        self.emit_ops(kernel.body, builder)
        return body

    def passed_type(self, arg: Value) -> Type:
        """Return the type passed for a parameter."""
        kind = parameter_type(arg.type)
        stored = [op for op in arg.users if isinstance(op, descriptor.DescriptorWrite)]
        if isinstance(kind, TensorMapType) and len(stored) == len(arg.users):
            return in_warpgroup_boxes(kind, [self.demand.works_in[op] for op in stored])
        return kind

    def emit_ops(self, block: Block, builder: Builder) -> None:
        for op in block:
            rule = _RULES.get(type(op)) or (_emit_cloned if is_elementwise(op) else _emit_at_home)
            with at(op.loc):
                if synchronizes(op):
                    self._complete_stores(op, builder)
                rule(op, self, builder)

    def _complete_stores(self, op: Op, builder: Builder) -> None:
        """Wait before an op that may tell other threads about a store."""
        if any(may_precede(store, op) for store in self.stores):
            builder(tma.TmaStoreWait(written=True))

    def get(self, value: Value, layout: LinearLayout | None) -> Value:
        """Return `value` in `layout`; a scalar is the same everywhere."""
        new_value = self.values.get((value, layout if is_tile(value) else None))
        if new_value is None:
            raise IRError(f"a tile was not asked for in {layout}")
        return new_value

    def get_optional(self, value: Value | None, layout: LinearLayout | None) -> Value | None:
        return None if value is None else self.get(value, layout)

    def bind(self, old: Value, new: Value, builder: Builder) -> None:
        """Map `old` to `new`, and convert it to all other required layouts."""
        new.hint = new.hint or old.hint
        if not isinstance(new.type, TileType):
            self.values[old, None] = new
            return
        self.values[old, new.type.layout] = new
        if self.preferred.or_default(old) == new.type.layout:
            for layout in self.demand.buffers.get(old, ()):
                self.buffers[old, layout] = (
                    self.loaded_as(old, layout, builder)
                    or self.stored_as(old, layout, builder)
                    or store_operand(new, layout, self.demand.target, builder)
                )
        if self.preferred.get(old) == new.type.layout:
            for layout in self.demand.layouts(old)[1:]:
                self.values[old, layout] = builder(gpu.Convert(new, layout)).out

    def bind_all(self, old: Op, new: Op, builder: Builder) -> None:
        builder(new)
        for before, after in zip(old.results, new.results, strict=True):
            self.bind(before, after, builder)

    def operand_buffer(self, op: tile.Dot, value: Value) -> Value:
        """Return a dot's buffer for an operand."""
        home = self.preferred.or_default(value)
        return self.buffers[value, operand_buffer(op, value, home)]

    def bind_loaded(self, old: Value, buffer: Value, builder: Builder) -> None:
        """Map `old` to a buffer, and read it in each required layout."""
        self.loaded[old] = buffer
        for layout in self.demand.layouts(old):
            new = read_buffer(buffer, layout, self.demand.target, builder)
            new.hint = old.hint
            self.values[old, layout] = new
        for layout in self.demand.buffers.get(old, ()):
            home_value = self.get(old, self.preferred.or_default(old))
            self.buffers[old, layout] = self.loaded_as(old, layout, builder) or store_operand(
                home_value, layout, self.demand.target, builder
            )

    def loaded_as(self, value: Value, layout: LinearLayout, builder: Builder) -> Value | None:
        """Return a buffer of `layout` with `value`, its axes renamed, or None."""
        if value in self.loaded:
            buffer = self.loaded[value]
            return buffer if shared_layout(buffer) == layout else None
        op = value.op
        if not isinstance(op, tile.Trans) or op.value not in self.loaded:
            return None
        buffer = self.loaded[op.value]
        if shared_layout(buffer).transpose(op.order) != layout:
            return None
        return builder(gpu.SharedTrans(buffer, op.order)).out

    def stored_as(self, value: Value, layout: LinearLayout, builder: Builder) -> Value | None:
        """Return a view of `layout` of a dot's buffer for the transpose of `value`, or None."""
        op = value.op
        if not isinstance(op, tile.Trans):
            return None
        for stored in self.demand.buffers.get(op.value, ()):
            buffer = self.buffers.get((op.value, stored))
            if buffer is not None and stored.transpose(op.order) == layout:
                return builder(gpu.SharedTrans(buffer, op.order)).out
        return None

    def nested(self, block: Block) -> Block:
        """Return `block` rewritten, its tile arguments in their preferred layouts."""
        copy = Block()
        builder = Builder(copy)
        for arg in block.args:
            kind = arg.type
            if isinstance(kind, TileType):
                kind = kind.with_layout(self.preferred.or_default(arg))
            copy.add_arg(kind, arg.hint)
        for old, new in zip(block.args, copy.args, strict=True):
            self.bind(old, new, builder)
        self.emit_ops(block, builder)
        return copy


# ---- rules ------------------------------------------------------------------------------------


def _emit_at_home(op: Op, emitter: _Emitter, builder: Builder) -> None:
    """Copy an op emitted once: scalars, reductions, ops that only read tiles."""
    layout = emitter.demand.works_in.get(op)
    mapping = {value: emitter.get(value, layout) for value in op.operands}
    emitter.bind_all(op, op.clone(mapping), builder)


def _emit_reduce(op: Op, emitter: _Emitter, builder: Builder) -> None:
    """Reduce; copies in every warp may be divided among the warps."""
    layout = emitter.demand.works_in.get(op)
    reduce_op = builder(op.clone({value: emitter.get(value, layout) for value in op.operands}))
    for old, new in zip(op.results, reduce_op.results, strict=True):
        value = new
        if isinstance(new.type, TileType):
            home = emitter.preferred.or_default(old)
            value = new if new.type.layout == home else builder(gpu.Convert(new, home)).out
        emitter.bind(old, value, builder)


def _emit_transpose(op: Op, emitter: _Emitter, builder: Builder) -> None:
    """Exchange a tile, taken in its own layout, into the layout preferred for the result."""
    assert isinstance(op, cluster.ClusterTranspose)
    value = emitter.get(op.value, emitter.demand.works_in.get(op))
    layout = emitter.preferred.or_default(op.out)
    emitter.bind_all(op, cluster.ClusterTranspose(value, layout), builder)


def _emit_nested(op: Op, emitter: _Emitter, builder: Builder) -> None:
    """Rewrite a loop, a branch or a terminator: each operand in the layout of its variable."""
    layouts = emitter.preferred.slot_layouts(op)
    blocks = [emitter.nested(block) for block in op.blocks]
    slots = [emitter.get_optional(*pair) for pair in zip(op.slots, layouts, strict=True)]
    emitter.bind_all(op, build(type(op), slots, op.attributes, blocks, op.loc), builder)


def _emit_cloned(op: Op, emitter: _Emitter, builder: Builder) -> None:
    """Compute an elementwise op or a renaming of elements in every layout it is computed in."""
    out = op.results[0]
    if not is_tile(out):
        _emit_at_home(op, emitter, builder)
        return
    for layout in emitter.demand.computed_layouts(out):
        sources = operand_layouts(op, layout)
        mapping = {
            value: emitter.get(value, source)
            for value, source in zip(op.operands, sources, strict=True)
        }
        emitter.bind_all(op, op.clone(mapping), builder)


def _emit_join(op: Op, emitter: _Emitter, builder: Builder) -> None:
    """Join pairs into neighbouring registers; other registers are renamed."""
    assert isinstance(op, tile.Join)
    for layout in emitter.demand.computed_layouts(op.out):
        halves = zip(op.operands, operand_layouts(op, layout), strict=True)
        joined = builder(op.clone({value: emitter.get(value, source) for value, source in halves}))
        joined_value = joined.results[0]
        assert isinstance(joined_value.type, TileType)
        renamed = (
            joined_value
            if joined_value.type.layout == layout
            else builder(gpu.Convert(joined_value, layout)).out
        )
        emitter.bind(op.out, renamed, builder)


def _emit_source(op: Op, emitter: _Emitter, builder: Builder) -> None:
    """Emit a constant, range or splat in every required layout."""
    out = op.results[0]
    if not isinstance(out.type, TileType):
        _emit_at_home(op, emitter, builder)
        return
    mapping = {value: emitter.get(value, None) for value in op.operands}
    for layout in emitter.demand.computed_layouts(out):
        if isinstance(op, arith.Constant):
            copy = op.clone(mapping, type=out.type.with_layout(layout))
        else:
            copy = op.clone(mapping, layout=layout)
        emitter.bind_all(op, copy, builder)


def _emit_broadcast(op: Op, emitter: _Emitter, builder: Builder) -> None:
    assert isinstance(op, tile.Broadcast)
    for layout in emitter.demand.computed_layouts(op.out):
        source = emitter.get(op.value, broadcast_operand(layout, op))
        assert isinstance(source.type, TileType)
        repeated = layout.broadcast_source(source.type.shape)
        if source.type.layout != repeated:
            source = builder(gpu.Convert(source, repeated)).out
        emitter.bind_all(op, tile.Broadcast(source, op.shape, layout), builder)


def _emit_load(op: Op, emitter: _Emitter, builder: Builder) -> None:
    """Load a tile in the layout of the access, or an index in every required layout."""
    assert isinstance(op, tile.Load)
    for layout in emitter.demand.computed_layouts(op.out) if is_tile(op.out) else (None,):
        operands = [emitter.get_optional(value, layout) for value in op.slots]
        vector = _vector(op, layout, emitter)
        prefetch = 0
        if layout is not None and not (op.cache or op.eviction or op.volatile):
            prefetch = prefetch_bytes(emitter.infos[op.pointer], vector, pointee_bytes(op.pointer))
        chosen = {
            "vector": vector,
            "prefetch_bytes": prefetch,
            "constancy": repeated_run(op, layout, emitter.infos),
        }
        copy = build(gpu.Load, operands, {**op.attributes, **chosen}, (), op.loc)
        emitter.bind_all(op, copy, builder)


def _emit_store(op: Op, emitter: _Emitter, builder: Builder) -> None:
    assert isinstance(op, tile.Store)
    layout = emitter.demand.works_in.get(op)
    operands = [emitter.get_optional(value, layout) for value in (op.pointer, op.value, op.mask)]
    vector = _vector(op, layout, emitter)
    builder(build(gpu.Store, operands, {**op.attributes, "vector": vector}, (), op.loc))


def _emit_dot(op: Op, emitter: _Emitter, builder: Builder) -> None:
    assert isinstance(op, tile.Dot)
    layouts = emitter.preferred.dots[op]
    if layouts.wgmma:
        _emit_wgmma(op, layouts, emitter, builder)
        return
    operands = list(map(emitter.get, op.operands, layouts.operands()))
    attributes = {**op.attributes, "shape": layouts.shape}
    del attributes["num_columns"]
    copy = build(gpu.Dot, operands, attributes, (), op.loc)
    emitter.bind_all(op, copy, builder)


def _emit_wgmma(op: tile.Dot, layouts: DotLayouts, emitter: _Emitter, builder: Builder) -> None:
    """Issue a dot and wait for it; `overlap_wgmma` may find a later place for the wait."""
    a, b, acc = (
        emitter.operand_buffer(op, value) if layout is None else emitter.get(value, layout)
        for value, layout in zip(op.operands, layouts.operands(), strict=True)
    )
    if promotion_interval(op):
        emitter.bind(op.out, PromotedDot(op, a, b, acc, builder).emit(), builder)
        return
    begins = None
    if isinstance(op.acc.op, arith.Constant) and op.acc.op.value == 0:
        begins = builder(arith.Constant(value=False, type=I1)).out
    start = acc if begins is None else builder(gpu.Undefined(acc.type)).out
    columns = op.num_columns
    dot = wgmma.Wgmma(a, b, start, begins, op.input_precision, num_columns=columns)
    out = builder(wgmma.WgmmaWait([builder(dot).out], num_columns=(columns,))).outs[0]
    emitter.bind(op.out, out, builder)


def _emit_atomic(op: Op, emitter: _Emitter, builder: Builder) -> None:
    assert isinstance(op, tile.AtomicRmw | tile.AtomicCas)
    layout = emitter.demand.works_in.get(op)
    slots = [emitter.get_optional(value, layout) for value in op.slots]
    vector = 1 if isinstance(op, tile.AtomicCas) else _vector(op, layout, emitter)
    emitter.bind(
        op.out, emit_atomic(op, slots, vector, emitter.preferred.num_warps, builder), builder
    )


def _emit_gather(op: Op, emitter: _Emitter, builder: Builder) -> None:
    assert isinstance(op, indexing.Gather)
    preferred, target = emitter.preferred, emitter.demand.target
    source = emitter.get(op.source, preferred.or_default(op.source))
    index = emitter.get(op.index, preferred.or_default(op.out))
    emitter.bind(op.out, emit_gather(source, index, op.axis, target, builder), builder)


def _emit_histogram(op: Op, emitter: _Emitter, builder: Builder) -> None:
    assert isinstance(op, indexing.Histogram)
    layout = emitter.demand.works_in[op]
    value, mask = emitter.get(op.value, layout), emitter.get_optional(op.mask, layout)
    home = emitter.preferred.or_default(op.out)
    out = emit_histogram(value, mask, home, emitter.demand.target, builder)
    emitter.bind(op.out, out, builder)


def _emit_descriptor_at(op: Op, emitter: _Emitter, builder: Builder) -> None:
    """Use the tensor map in memory; its layout follows from the box's type."""
    assert isinstance(op, descriptor.DescriptorAt)
    assert isinstance(op.out.type, DescriptorType)
    map_op = tma.TensorMapAt(emitter.get(op.pointer, None), tensor_map_of(op.out.type))
    emitter.bind(op.out, builder(map_op).out, builder)


def _emit_descriptor_of(op: Op, emitter: _Emitter, builder: Builder) -> None:
    """Make the tensor map of a tensor no launch describes."""
    assert isinstance(op, descriptor.DescriptorOf)
    assert isinstance(op.out.type, DescriptorType)
    stores = [user for user in op.out.users if isinstance(user, descriptor.DescriptorStore)]
    kind, sizes = tensor_map_of(op.out.type), [emitter.get(size, None) for size in op.sizes]
    if any(outer.has(Trait.LOOP) for outer in op.ancestors()) and stores:
        builder(tma.TmaStoreWait())  # a store through the previous map may be in flight
        kind = in_warpgroup_boxes(kind, [emitter.demand.works_in[store] for store in stores])
    inputs = emitter.get(op.pointer, None), emitter.slots[op], map_template(builder)
    emitter.bind(op.out, builder(tma.MakeTensorMap(*inputs, sizes, type=kind)).out, builder)


def _emit_store_map(op: Op, emitter: _Emitter, builder: Builder) -> None:
    """Store the tensor map for copies of tiles of the op's shape."""
    assert isinstance(op, map_store.StoreMap)
    assert isinstance(op.pointer.type, PointerType)
    kind = tensor_map_of(DescriptorType(op.pointer.type.pointee, op.shape))
    slot, pointer, *sizes = (emitter.get(value, None) for value in op.operands)
    builder(map_store.PublishMap(slot, pointer, map_template(builder), sizes, type=kind))


def _emit_map_address(op: Op, emitter: _Emitter, builder: Builder) -> None:
    assert isinstance(op, descriptor.MapAddress)
    address = builder(tma.TensorMapAddress(emitter.get(op.descriptor, None)))
    emitter.bind(op.out, address.out, builder)


def _emit_descriptor_in(op: Op, emitter: _Emitter, builder: Builder) -> None:
    """Use the tensor map of a chosen parameter."""
    assert isinstance(op, descriptor.DescriptorIn)
    assert isinstance(op.out.type, DescriptorType)
    map_op = tma.AcquiredTensorMap(emitter.get(op.map, None), tensor_map_of(op.out.type))
    emitter.bind(op.out, builder(map_op).out, builder)


def _emit_descriptor_load(op: Op, emitter: _Emitter, builder: Builder) -> None:
    """Copy a tile to shared memory and read it in every required layout."""
    assert isinstance(op, descriptor.DescriptorLoad)
    tensor, *coords = (emitter.get(value, None) for value in op.operands)
    buffer = block_buffer(tensor, shape_of(op.out.type), builder)
    kind = op.descriptor.type
    assert isinstance(kind, DescriptorType)
    builder(tma.SyncTmaLoad(tensor, buffer, coords, op.eviction, kind.num_parts))
    emitter.bind_loaded(op.out, buffer, builder)


def _emit_descriptor_prefetch(op: Op, emitter: _Emitter, builder: Builder) -> None:
    """Bring a tile to the L2 cache, box by box."""
    assert isinstance(op, descriptor.DescriptorPrefetch)
    tensor, *coords = (emitter.get(value, None) for value in op.operands)
    kind = op.descriptor.type
    assert isinstance(kind, DescriptorType)
    builder(cache.TmaPrefetch(tensor, coords, kind.block))


def _emit_descriptor_store(op: Op, emitter: _Emitter, builder: Builder) -> None:
    """Store a tile through a buffer in shared memory."""
    assert isinstance(op, descriptor.DescriptorWrite)
    tensor = emitter.get(op.descriptor, None)
    value = emitter.get(op.value, emitter.demand.works_in[op])
    coords = [emitter.get(coord, None) for coord in op.coords]
    buffer = block_buffer(tensor, shape_of(value.type), builder)
    value = in_bank_order(value, buffer, emitter.demand.target, builder)
    kind = "" if isinstance(op, descriptor.DescriptorStore) else op.kind
    written = op in emitter.read_back
    builder(tma.StagedTmaStore(tensor, value, buffer, coords, kind=kind, written=written))


def _emit_barrier(op: Op, emitter: _Emitter, builder: Builder) -> None:
    """Make threads' writes before a barrier of the user's visible to tensor copies after it."""
    if emitter.has_maps:
        builder(tma.ProxyFence(whole=True))
    _emit_at_home(op, emitter, builder)


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
    tile.Join: _emit_join,
    tile.Reduce: _emit_reduce,
    tile.Load: _emit_load,
    tile.Store: _emit_store,
    tile.Dot: _emit_dot,
    tile.AtomicRmw: _emit_atomic,
    tile.AtomicCas: _emit_atomic,
    tile.Barrier: _emit_barrier,
    grid.ClusterBarrier: _emit_barrier,
    grid.GridBarrier: _emit_barrier,
    cluster.ClusterTranspose: _emit_transpose,
    indexing.Gather: _emit_gather,
    indexing.Histogram: _emit_histogram,
    descriptor.DescriptorAt: _emit_descriptor_at,
    descriptor.DescriptorOf: _emit_descriptor_of,
    descriptor.DescriptorIn: _emit_descriptor_in,
    descriptor.MapAddress: _emit_map_address,
    map_store.StoreMap: _emit_store_map,
    descriptor.DescriptorLoad: _emit_descriptor_load,
    descriptor.DescriptorPrefetch: _emit_descriptor_prefetch,
    descriptor.DescriptorStore: _emit_descriptor_store,
    descriptor.DescriptorReduce: _emit_descriptor_store,
}

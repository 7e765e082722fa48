"""Lower descriptors: pointers, extents and strides become parameters.

A target with tensor copies keeps the descriptors; `assign_layouts` turns them into tensor maps. On other
targets a tile is loaded and stored through pointers, masked at the tensor's bounds, so the same source
builds everywhere.

A descriptor passed through branches or loops is split into its parts (`chosen_descriptors`), and rebuilt by
the kernel.

A descriptor made in the kernel becomes a parameter too, if the launch arguments determine its tensor
(`made_tensors`). If not, the kernel builds the map (`device_maps`), or its tiles go through pointers.
Gathered and scattered rows go through pointers on every target: copies of rows by index
(`cp.async.bulk.tensor` with `tile::gather4`) need sm_100, and are not used yet.

Invariant: afterwards no op reads extents or strides of a descriptor. A descriptor made from a pointer has
a map and is loaded or stored through. Without tensor copies there are no descriptors.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.diagnostics import CompileError, at
from aotc.ir.dialects import arith, descriptor, map_store, tile
from aotc.ir.dialects.descriptor import TENSOR_ALIGNMENT_BYTES
from aotc.ir.params import ParamInfo
from aotc.ir.rewrite import Builder, is_trivially_dead
from aotc.ir.tile_address import tile_address
from aotc.ir.types import I32, I64, DescriptorType, PointerType, TileType, Type, shape_of
from aotc.schedule.context import Schedule
from aotc.schedule.tensor_maps.chosen_descriptors import pass_on_parts
from aotc.schedule.tensor_maps.device_maps import map_on_device
from aotc.schedule.tensor_maps.made_tensors import map_made
from aotc.target import Feature, Target

_DescriptorUse = (
    descriptor.DescriptorQuery | descriptor.DescriptorAccess | descriptor.DescriptorRows
)


def lower_descriptors(kernel: Kernel, schedule: Schedule) -> None:
    """Replace descriptor ops without tensor copies on the target; see the module docstring."""
    _check_stored_maps(kernel, schedule.target)
    if not any(isinstance(value.type, DescriptorType) for value in _values(kernel)):
        return
    has_copies = Feature.TMA in schedule.target.features
    is_whole = schedule.config.num_ctas == 1 or kernel.runs_by_cta
    _drop_prefetches(kernel, has_copies=has_copies and is_whole)
    tensors = _Tensors(kernel)
    has_whole_maps = has_copies and is_whole
    pass_on_parts(kernel, tensors.parts, has_maps=has_whole_maps)
    descriptors = _answer_made(kernel)
    tensors = _Tensors(kernel, tensors.added)
    if not has_copies:
        tensors.make_pointers()
    _lower(kernel, tensors, schedule.target, _QUERIES)
    mapped: dict[Value, None] = {}
    if has_copies and schedule.map_pointers:
        # Extents and strides read from parameters' descriptors are launch arguments by now.
        mapped = map_on_device(kernel, map_made(kernel, descriptors, schedule), schedule)
        tensors = _Tensors(kernel, tensors.added)
    _lower(kernel, tensors, schedule.target, _ACCESSES, mapped)
    for op in descriptors:
        if op.block is not None and is_trivially_dead(op):
            op.erase()


def _drop_prefetches(kernel: Kernel, *, has_copies: bool) -> None:
    """Erase useless prefetch hints: tensors without maps, or split across a cluster."""
    for op in list(kernel.walk()):
        if isinstance(op, descriptor.DescriptorPrefetch):
            is_parameter = op.descriptor.op is None and op.descriptor.owner is kernel.body
            if not (has_copies and is_parameter):
                op.erase()


def _values(kernel: Kernel) -> Iterator[Value]:
    """Yield possible descriptors: arguments, and results of ops that make descriptors."""
    yield from kernel.body.args
    for op in kernel.walk():
        yield from op.results


def _lower(
    kernel: Kernel,
    tensors: _Tensors,
    target: Target,
    rules: Mapping[type[Op], _Rule],
    mapped: Container[Value] = (),
) -> None:
    """Apply rules to the uses of descriptors, except tensor copies.

    Tensor copies use parameters, or descriptors in `mapped`, with maps built by the kernel.
    """
    has_copies = Feature.TMA in target.features
    for op in list(kernel.walk()):
        if not isinstance(op, _DescriptorUse):
            continue
        if is_trivially_dead(op):  # reading one extent reads all
            op.erase()
            continue
        with at(op.loc):
            if isinstance(op.descriptor.op, descriptor.DescriptorAt):
                _check_in_memory(op, target)
                continue
            producer = op.descriptor.op
            has_map = producer is None or op.descriptor in mapped
            has_map |= isinstance(producer, descriptor.DescriptorIn)
            is_copy = has_copies and has_map and type(op) in _ACCESSES
            if type(op) in rules and not is_copy:
                op.replace_with(rules[type(op)](op, tensors, Builder.before_op(op)))


def _answer_made(kernel: Kernel) -> list[descriptor.DescriptorOf]:
    """Replace extents and strides read from descriptors made here; return the making ops."""
    for op in list(kernel.walk()):
        if isinstance(op, descriptor.DescriptorQuery):
            producer = op.descriptor.op
            if isinstance(producer, descriptor.DescriptorOf | descriptor.DescriptorIn):
                builder = Builder.before_op(op)
                sizes = producer.extents
                if isinstance(op, descriptor.DescriptorStride):
                    sizes = [*producer.strides, builder(arith.Constant(1, I64)).out]
                op.replace_with([sizes[op.axis]])
    return [op for op in kernel.walk() if isinstance(op, descriptor.DescriptorOf)]


def _check_stored_maps(kernel: Kernel, target: Target) -> None:
    """Check ops that store a tensor map. Raises: CompileError."""
    ops = list(kernel.walk())
    stored = next((op for op in ops if isinstance(op, map_store.StoreMap)), None)
    if stored is None:
        return
    if Feature.TMA not in target.features:
        raise CompileError(
            f"a tensor map is for tensor copies, which {target} does not have",
            stored.loc,
            remedy="build this kernel for sm_90a and newer",
        )
    if any(isinstance(op, descriptor.DescriptorAt) for op in ops):
        raise CompileError(
            "a kernel that stores a tensor map takes none from memory: copies may come before it",
            stored.loc,
            remedy="make the descriptor by tl.make_tensor_descriptor where it is used",
        )


def _check_in_memory(op: Op, target: Target) -> None:
    """Check the use of a map in memory. Raises: CompileError if the target has no tensor copies."""
    if Feature.TMA not in target.features:
        raise CompileError(
            f"a tensor map in memory is for tensor copies, which {target} does not have",
            op.loc,
            remedy="build this kernel for sm_90a and newer",
        )
    if isinstance(op, descriptor.DescriptorQuery):
        op.error("asks a map in memory")
    if isinstance(op, descriptor.DescriptorRows):
        op.error("gathers through a map in memory")


@dataclass
class _Tensors:
    """Provide pointer, extents and strides of each descriptor's tensor.

    `kinds` are the op classes that make descriptors. Parts of parameters become parameters, added once.
    """

    kernel: Kernel
    added: dict[tuple[Value, str, int], Value] = field(
        default_factory=dict[tuple[Value, str, int], Value]
    )
    kinds: dict[Value, DescriptorType] = field(default_factory=dict[Value, DescriptorType])

    def __post_init__(self) -> None:
        kinds = descriptor.DescriptorOf, descriptor.DescriptorIn
        descriptors = [op.out for op in self.kernel.walk() if isinstance(op, kinds)]
        for value in (*self.kernel.body.args, *descriptors):
            if isinstance(value.type, DescriptorType):
                self.kinds[value] = value.type

    def pointer(self, tensor: Value) -> Value:
        """Return the tensor's address."""
        if isinstance(tensor.op, descriptor.DescriptorOf):
            return tensor.op.pointer
        if isinstance(tensor.type, PointerType):
            return tensor
        kind = PointerType(self.kinds[tensor].element)
        return self._part(tensor, "", kind, TENSOR_ALIGNMENT_BYTES)

    def extent(self, tensor: Value, axis: int, promise: int = 1) -> Value:
        """Return an extent."""
        if isinstance(tensor.op, descriptor.DescriptorOf):
            return tensor.op.extents[axis]
        return self._part(tensor, f"shape[{axis}]", I32, promise)

    def stride(self, tensor: Value, axis: int, promise: int = 1) -> Value:
        """Return a stride, in elements."""
        if isinstance(tensor.op, descriptor.DescriptorOf):
            return tensor.op.strides[axis]
        return self._part(tensor, f"strides[{axis}]", I64, promise)

    def piece_elems(self, tensor: Value) -> int:
        """Return the divisor of strides and rows, in elements: 16 bytes if the tensor has a map."""
        kind = self.kinds[tensor]
        has_map = isinstance(tensor.type, DescriptorType)
        return TENSOR_ALIGNMENT_BYTES // kind.element.size_bytes if has_map else 1

    def parts(self, tensor: Value) -> list[Value]:
        """Return the parts of a parameter's descriptor: address, extents, strides."""
        axes = range(len(self.kinds[tensor].block))
        extents = [self.extent(tensor, axis) for axis in axes]
        strides = [self.stride(tensor, axis) for axis in axes[:-1]]
        return [self.pointer(tensor), *extents, *strides]

    def _part(self, tensor: Value, part: str, kind: Type, promise: int) -> Value:
        key = (tensor, part, promise)
        if key not in self.added:
            argument = self.kernel.params[tensor.index].argument
            source = f"{argument}.{part}" if part else argument
            name = source.replace("[", ".").rstrip("]") if part else f"{argument}.base"
            self.added[key] = self.kernel.body.add_arg(kind, name)
            self.kernel.params += (ParamInfo(name, promise, source),)
        return self.added[key]

    def make_pointers(self) -> None:
        """Pass the address of each tensor in place of its descriptor."""
        infos = list(self.kernel.params)
        for tensor, kind in self.kinds.items():
            if tensor.op is not None:
                continue
            name = infos[tensor.index].name
            infos[tensor.index] = ParamInfo(f"{name}.address", TENSOR_ALIGNMENT_BYTES, name)
            tensor.type, tensor.hint = PointerType(kind.element), f"{name}.address"
        self.kernel.params = tuple(infos)


# ---- extents and strides ----------------------------------------------------------------------


def _extent(op: Op, tensors: _Tensors, builder: Builder) -> list[Value]:
    del builder
    assert isinstance(op, descriptor.DescriptorExtent)
    return [tensors.extent(op.descriptor, op.axis)]


def _stride(op: Op, tensors: _Tensors, builder: Builder) -> list[Value]:
    assert isinstance(op, descriptor.DescriptorStride)
    if op.axis == len(tensors.kinds[op.descriptor].block) - 1:
        return [builder(arith.Constant(1, I64)).out]
    return [tensors.stride(op.descriptor, op.axis)]


_Rule = Callable[[Op, _Tensors, Builder], "Sequence[Value]"]


# ---- accesses through pointers ----------------------------------------------------------------


def _access(
    tensor: Value, coords: Sequence[Value], tensors: _Tensors, builder: Builder
) -> tuple[Value, Value | None]:
    """Return the pointers to a tile's elements, and the mask of elements in bounds."""
    block = tensors.kinds[tensor].block
    last = len(block) - 1
    ends = [tensors.extent(tensor, axis) for axis in range(len(block))]
    strides = [tensors.stride(tensor, axis) if axis < last else None for axis in range(len(block))]
    return tile_address(builder, tensors.pointer(tensor), block, coords, strides, ends)


def _fill(kind: DescriptorType, shape: tuple[int, ...], builder: Builder) -> Value:
    """Return the fill value for reads out of bounds."""
    fill = (nan if kind.fill_nan else 0.0) if kind.element.is_float else 0
    return builder(arith.Constant(fill, TileType(kind.element, shape))).out


def _load(op: Op, tensors: _Tensors, builder: Builder) -> list[Value]:
    assert isinstance(op, descriptor.DescriptorLoad)
    pointer, inside = _access(op.descriptor, op.coords, tensors, builder)
    kind = tensors.kinds[op.descriptor]
    other = _fill(kind, kind.block, builder)
    loaded = builder(tile.Load(pointer, inside, other, op.cache, op.eviction)).out
    shape = shape_of(op.out.type)
    return [loaded if shape == kind.block else builder(tile.Reshape(loaded, shape)).out]


def _store(op: Op, tensors: _Tensors, builder: Builder) -> list[Value]:
    assert isinstance(op, descriptor.DescriptorStore)
    pointer, inside = _access(op.descriptor, op.coords, tensors, builder)
    builder(tile.Store(pointer, op.value, inside))
    return []


def _reduce(op: Op, tensors: _Tensors, builder: Builder) -> list[Value]:
    assert isinstance(op, descriptor.DescriptorReduce)
    pointer, inside = _access(op.descriptor, op.coords, tensors, builder)
    builder(tile.AtomicRmw(pointer, op.value, op.kind, inside, "relaxed"))
    return []


def _rows(
    op: descriptor.DescriptorRows, tensors: _Tensors, builder: Builder
) -> tuple[Value, Value | None]:
    """Return the pointers to the elements of rows, and the mask of elements in bounds."""
    tensor = op.descriptor
    block = (*shape_of(op.rows.type), tensors.kinds[tensor].block[1])
    piece = tensors.piece_elems(tensor)
    ends = [tensors.extent(tensor, 0), tensors.extent(tensor, 1, piece)]
    strides = [tensors.stride(tensor, 0, piece), None]
    where = (op.rows, op.column)
    return tile_address(builder, tensors.pointer(tensor), block, where, strides, ends)


def _gather(op: Op, tensors: _Tensors, builder: Builder) -> list[Value]:
    assert isinstance(op, descriptor.DescriptorGather)
    pointer, inside = _rows(op, tensors, builder)
    other = _fill(tensors.kinds[op.descriptor], shape_of(op.out.type), builder)
    return [builder(tile.Load(pointer, inside, other)).out]


def _scatter(op: Op, tensors: _Tensors, builder: Builder) -> list[Value]:
    assert isinstance(op, descriptor.DescriptorScatter)
    pointer, inside = _rows(op, tensors, builder)
    builder(tile.Store(pointer, op.value, inside))
    return []


_QUERIES: dict[type[Op], _Rule] = {
    descriptor.DescriptorExtent: _extent,
    descriptor.DescriptorStride: _stride,
    descriptor.DescriptorGather: _gather,
    descriptor.DescriptorScatter: _scatter,
}
"""Accesses without tensor copies on any target."""

_ACCESSES: dict[type[Op], _Rule] = {
    descriptor.DescriptorLoad: _load,
    descriptor.DescriptorStore: _store,
    descriptor.DescriptorReduce: _reduce,
}

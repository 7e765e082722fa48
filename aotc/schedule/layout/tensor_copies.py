"""Tensor maps and shared buffers of descriptors: boxes, swizzles and accesses of a tile.

A tensor copy moves a box of at most 256 elements along each axis, with rows contiguous in shared
memory. With a swizzle a row is no longer than its span; a wider tile is several boxes, each
contiguous. The span is the widest that a row of the tile fills: then neither rows nor columns of
16-byte chunks conflict in banks, in reads or writes.

Invariant: a buffer's layout is the hardware's layout of its map's boxes. Source: CUDA driver API,
cuTensorMapEncodeTiled; PTX ISA, "Swizzling modes".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

from aotc.ir import gf2
from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import descriptor, gpu, tma
from aotc.ir.dialects.tma import MAX_BOX_ELEMS, box_in_buffer
from aotc.ir.layout import LinearLayout, log2_exact
from aotc.ir.layout_access import run_elems_in_order
from aotc.ir.matrix_access import RUN_BYTES, MatrixMode, matrix_view
from aotc.ir.parameter_access import pointer_roots
from aotc.ir.rewrite import Builder
from aotc.ir.types import DescriptorType, SharedType, TensorMapType, TileType, Type, shape_of
from aotc.schedule.analysis.alias import argument_of, may_alias
from aotc.schedule.analysis.costs import SHARED_ACCESS_COST, WAVEFRONT_COST
from aotc.schedule.analysis.global_order import accessed, accessed_pointer
from aotc.schedule.layout.layouts import blocked_for, tensor_shared
from aotc.schedule.layout.scratch import wavefronts_per_access
from aotc.target import Feature, Target

_SPANS_BYTES = (128, 64, 32)
_ALIGNMENT_BYTES = 128
_SWIZZLE_ALIGNMENT_BYTES = 1024  # after so many bytes a swizzle repeats
_MODES: tuple[MatrixMode, ...] = ("", "b16", "b16.trans")


@lru_cache(maxsize=1024)
def tensor_map_of(kind: DescriptorType) -> TensorMapType:
    """Return the tensor map for copying the tiles of a descriptor.

    Hosts encode maps in memory by the same rule, in `runtime_c/src/tensor_map.c`.
    """
    size_bytes = kind.element.size_bytes
    row_bytes = kind.row_bytes
    # A tile of a single row has no columns: it is cut as little as possible.
    spans = _SPANS_BYTES if prod(kind.block[:-1]) > 1 else ()
    span_bytes = next((span for span in spans if span <= row_bytes), 0)
    row_elems = span_bytes // size_bytes or min(MAX_BOX_ELEMS, kind.block[-1])
    outer = list(kind.block)
    outer[axis_of_parts(kind)] //= kind.num_parts
    box = (*(min(MAX_BOX_ELEMS, extent) for extent in outer[:-1]), row_elems)
    return TensorMapType(kind.element, box, span_bytes, kind.fill_nan)


def axis_of_parts(kind: DescriptorType) -> int:
    """Return the axis for copying a tile in parts: the first one with several elements."""
    return next((axis for axis, extent in enumerate(kind.block) if extent > 1), 0)


def has_parts(kind: DescriptorType, num_parts: int) -> bool:
    """Return whether a tile can be copied in so many slices: each begins where a copy may write."""
    axis = axis_of_parts(kind)
    if axis == len(kind.block) - 1 or kind.block[axis] % num_parts:
        return False
    return tensor_map_of(replace(kind, num_parts=num_parts)).box_bytes % _ALIGNMENT_BYTES == 0


def buffer_layout(tensor: TensorMapType, block: tuple[int, ...]) -> LinearLayout:
    """Return the shared layout of a tile, possibly without leading unit axes, or with merged ones.

    CTAs of a cluster copy boxes of fewer rows each to their places within one whole box: readers
    need not know the CTA of each copy.
    """
    box = box_in_buffer(tensor, len(block))
    part_bytes = prod(box) * tensor.element.size_bytes
    if block[0] <= MAX_BOX_ELEMS and part_bytes % _SWIZZLE_ALIGNMENT_BYTES == 0:
        box = (block[0], *box[1:])
    return tensor_shared(block, tensor.element.size_bytes * 8, box, tensor.swizzle_bytes)


def buffer_alignment_bytes(tensor: TensorMapType) -> int:
    """Return the alignment of a buffer in bytes."""
    return _SWIZZLE_ALIGNMENT_BYTES if tensor.swizzle_bytes else _ALIGNMENT_BYTES


def block_layout(kind: DescriptorType, num_warps: int) -> LinearLayout:
    """Return the layout of a tile for thread accesses of whole runs of 16 bytes."""
    per_thread = max(1, prod(kind.block) // (32 * num_warps))
    run = min(RUN_BYTES // kind.element.size_bytes, kind.block[-1], per_thread)
    return blocked_for(kind.block, (*(1 for _ in kind.block[:-1]), run), num_warps)


def choose_block_layouts(kernel: Kernel) -> dict[Op, LinearLayout]:
    """Return the layout suggested for the tile by each access to a descriptor."""
    layouts: dict[Op, LinearLayout] = {}
    for op in kernel.walk():
        tensor = accessed(op)
        kind = None if tensor is None else tensor.type
        if isinstance(kind, DescriptorType):
            if isinstance(op, descriptor.DescriptorLoad):
                kind = replace(kind, block=shape_of(op.out.type))
            layouts[op] = block_layout(kind, kernel.num_warps)
    return layouts


def parameter_type(kind: Type) -> Type:
    """Return the type passed for a parameter: the map of a descriptor, else the same."""
    return tensor_map_of(kind) if isinstance(kind, DescriptorType) else kind


def is_read_back(store: Op, kernel: Kernel) -> bool:
    """Return whether memory stored through a descriptor may be accessed in another way, too.

    By loads through a descriptor, or by threads through the pointer it was made from.
    """
    tensor = store.operands[0]
    name = argument_of(tensor)
    for op in kernel.walk():
        if isinstance(op, descriptor.DescriptorLoad) and may_alias(tensor, op.descriptor):
            return True
        pointer = accessed_pointer(op)
        if name and pointer is not None and name in map(argument_of, pointer_roots(pointer)):
            return True
    return False


# ---- shared memory ----------------------------------------------------------------------------


def block_buffer(tensor: Value, block: tuple[int, ...], builder: Builder) -> Value:
    """Allocate a buffer for a tile and return it."""
    kind = tensor.type
    assert isinstance(kind, TensorMapType)
    layout, alignment = buffer_layout(kind, block), buffer_alignment_bytes(kind)
    return builder(gpu.SharedAlloc(kind.element, block, layout, alignment)).out


def shared_layout(buffer: Value) -> LinearLayout:
    """Return the layout of a buffer."""
    assert isinstance(buffer.type, SharedType)
    return buffer.type.layout


def is_tensor_load(buffer: Value) -> bool:
    """Return whether nothing but one tensor copy writes a buffer."""
    writes = [user for user in buffer.users if not isinstance(user, gpu.SharedLoad)]
    return len(writes) == 1 and isinstance(writes[0], tma.SyncTmaLoad)


def read_buffer(buffer: Value, layout: LinearLayout, target: Target, builder: Builder) -> Value:
    """Read a tile from shared memory, in the cheapest way."""
    kind = buffer.type
    assert isinstance(kind, SharedType)
    vector, mode = buffer_access(layout, kind.layout, kind.element.bits, read_modes(target))
    return builder(gpu.SharedLoad(buffer, layout, vector, mode)).out


def write_buffer(
    value: Value, buffer: Value, target: Target, builder: Builder, *, matrices: bool = True
) -> None:
    """Write a tile to shared memory, in the cheapest way.

    `matrices` says whether lanes may exchange elements on the way.
    """
    kind, tile_kind = buffer.type, value.type
    assert isinstance(kind, SharedType)
    assert isinstance(tile_kind, TileType)
    layout = tile_kind.layout
    assert layout is not None
    modes = write_modes(layout, target) if matrices else _MODES[:1]
    vector, mode = buffer_access(layout, kind.layout, kind.element.bits, modes)
    builder(gpu.SharedStore(value, buffer, vector, mode))


def read_modes(target: Target) -> Sequence[MatrixMode]:
    """Return how tiles may be read from shared memory."""
    return _MODES if Feature.LDMATRIX in target.features else _MODES[:1]


def write_modes(layout: LinearLayout, target: Target) -> Sequence[MatrixMode]:
    """Return how a tile may be written to shared memory."""
    # Threads with replicas would each store their matrices.
    holds_copies = any(layout.free_variable_masks().get(dim) for dim in ("lane", "warp"))
    return _MODES if Feature.STMATRIX in target.features and not holds_copies else _MODES[:1]


@lru_cache(maxsize=1024)
def buffer_access(
    layout: LinearLayout, buffer: LinearLayout, element_bits: int, modes: Sequence[MatrixMode]
) -> tuple[int, MatrixMode]:
    """Return the cheapest way to access a whole buffer: elements at once, and the mode."""
    _, vector, mode = _best_way(layout, buffer, element_bits, modes)
    return vector, mode


def access_cost(
    layout: LinearLayout, buffer: LinearLayout, element_bits: int, modes: Sequence[MatrixMode]
) -> int:
    """Return the cost of a warp's cheapest access to a whole buffer."""
    return _best_way(layout, buffer, element_bits, modes)[0]


def _best_way(
    layout: LinearLayout, buffer: LinearLayout, element_bits: int, modes: Sequence[MatrixMode]
) -> tuple[int, int, MatrixMode]:
    ways = [way for mode in modes for way in _ways(layout, buffer, element_bits, mode)]
    return min(ways, key=lambda way: way[0])


def _ways(
    layout: LinearLayout, buffer: LinearLayout, element_bits: int, mode: MatrixMode
) -> Iterator[tuple[int, int, MatrixMode]]:
    """Yield the cost, the vector and the mode of the accesses possible in a mode."""
    view = matrix_view(layout, element_bits, mode)
    if view is None:
        return
    size_bytes = max(1, element_bits // 8)
    run_bits = log2_exact(RUN_BYTES // size_bytes)
    offsets = view.invert_and_compose(buffer).sublayout(view.in_dims, ["offset"])
    registers, lanes = offsets.columns("register"), offsets.columns("lane")
    threads = (*lanes, *offsets.columns("warp"))
    span = gf2.Span(registers)
    if mode and run_elems_in_order(view, buffer) < 1 << run_bits:
        return
    for bits in range(run_bits if mode else 0, run_bits + 1):
        in_vector = (1 << bits) - 1
        whole = all(1 << bit in span for bit in range(bits))
        if not whole or any(column & in_vector for column in threads):
            return
        accesses = 1 << gf2.rank(registers) - bits
        wavefronts = wavefronts_per_access(lanes, 1 << bits, size_bytes)
        yield accesses * (SHARED_ACCESS_COST + WAVEFRONT_COST * wavefronts), 1 << bits, mode

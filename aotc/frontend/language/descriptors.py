"""Tensor descriptors: load, store and reduction of a described tensor's tiles.

A descriptor is a parameter of the kernel, built from a pointer and numbers (`made_descriptors.py`), or
a map in memory (`descriptor_maps.py`).
`desc.load([i, j])` and `tl.load_tensor_descriptor(desc, [i, j])` are the same function, and so on.
Extents and strides come with the launch; the tile's shape and dtype are compile-time constants.
"""

from __future__ import annotations

from collections.abc import Callable

from aotc.frontend.emitter import Emitter, mistake
from aotc.frontend.language.convert import cast, converted, to_scalar, to_value
from aotc.frontend.values import Operand, element, is_tuple, shape, show, show_type
from aotc.ir.core import Value
from aotc.ir.dialects import descriptor
from aotc.ir.types import I32, I64, SCALARS, DescriptorType, ScalarType, TileType


def _descriptor(operand: Operand, name: str) -> tuple[Value, DescriptorType]:
    if isinstance(operand, Value) and isinstance(operand.type, DescriptorType):
        return operand, operand.type
    raise mistake(
        f"{name} takes a tensor descriptor, got {show(operand)}",
        remedy='give the argument a type such as "tensordesc<bf16[128,64]>"',
    )


def check_block_shape(subject: str, kind: DescriptorType) -> None:
    """Check the block shape against the limits of TMA. Raises: CompileError."""
    block, size_bytes = kind.block, kind.element.size_bytes
    whole = all(extent > 0 and extent & (extent - 1) == 0 for extent in block)
    if not whole or not 1 <= len(block) <= descriptor.MAX_RANK:
        raise mistake(
            f"{subject} must have 1 to {descriptor.MAX_RANK} axes, each a power of two, "
            f"got {list(block)}"
        )
    if kind.row_bytes < descriptor.MIN_ROW_BYTES:
        raise mistake(
            f"the last axis of {subject} must have at least {descriptor.MIN_ROW_BYTES} bytes, "
            f"got {block[-1]} of {kind.element}",
            remedy=f"make it {descriptor.MIN_ROW_BYTES // size_bytes} or more",
        )


def _coords(emit: Emitter, operand: Operand, kind: DescriptorType, name: str) -> list[Value]:
    """Return the offsets of a tile as i32 scalars, one for each axis. Raises: CompileError."""
    if not is_tuple(operand) or len(operand) != len(kind.block):
        actual = f"{len(operand)}" if is_tuple(operand) else show(operand)
        raise mistake(
            f"{name} of {show_type(kind)} takes a list of {len(kind.block)} offsets, got {actual}"
        )
    coords: list[Value] = []
    for offset in operand:
        value = to_scalar(emit, to_value(emit, offset, "an offset"))
        offset_kind = element(value)
        if not isinstance(offset_kind, ScalarType) or not offset_kind.is_int:
            raise mistake(f"the offsets of {name} must be integers, got {show(value)}")
        coords.append(cast(emit, value, I32))
    return coords


def _block(emit: Emitter, operand: Operand, kind: DescriptorType, name: str) -> Value:
    """Return a value of the descriptor's shape and dtype. Raises: CompileError."""
    value = converted(emit, operand, kind.element, kind.block, f"a value for {name}")
    if shape(value) != kind.block:
        raise mistake(
            f"{name} of {show_type(kind)} takes a tile of its block_shape, got {show(value)}",
            remedy="block_shape is in the descriptor's type",
        )
    return value


def load(emit: Emitter, desc: Operand, offsets: Operand) -> Value:
    """Load the tile at `offsets`."""
    value, kind = _descriptor(desc, "load")
    return emit(descriptor.DescriptorLoad(value, _coords(emit, offsets, kind, "load"))).out


def store(emit: Emitter, desc: Operand, offsets: Operand, value: Operand) -> None:
    """Store a tile, converted to the descriptor's dtype."""
    target, kind = _descriptor(desc, "store")
    content = _block(emit, value, kind, "store")
    emit(descriptor.DescriptorStore(target, content, _coords(emit, offsets, kind, "store")))


def prefetch(emit: Emitter, desc: Operand, offsets: Operand) -> None:
    """Prefetch the tile at `offsets` into the L2 cache."""
    target, kind = _descriptor(desc, "prefetch")
    emit(descriptor.DescriptorPrefetch(target, _coords(emit, offsets, kind, "prefetch")))


def _rows(
    emit: Emitter, desc: Operand, rows: Operand, column: Operand, name: str
) -> tuple[Value, DescriptorType, Value, Value]:
    """Check gather/scatter operands; return descriptor, its type, row indices and first column.

    Raises: CompileError.
    """
    target, kind = _descriptor(desc, name)
    if len(kind.block) != 2 or kind.block[0] != 1:
        raise mistake(
            f"{name} takes a descriptor of two axes whose block_shape is one row, "
            f"got {show_type(kind)}",
            remedy=f"make its block_shape [1, {kind.block[-1]}]",
        )
    if isinstance(target.op, descriptor.DescriptorAt):
        raise mistake(
            f"{name} does not take a descriptor whose map is in memory",
            remedy="pass the tensor as an argument, or make its descriptor in the kernel",
        )
    index = to_value(emit, rows, "the rows")
    index_kind = element(index)
    is_index = isinstance(index_kind, ScalarType) and index_kind.is_int
    if not is_index or len(shape(index)) != 1:
        raise mistake(
            f"the rows of {name} must be a tile of one axis of integers, got {show(index)}"
        )
    first = to_scalar(emit, to_value(emit, column, "a column"))
    column_kind = element(first)
    if not isinstance(column_kind, ScalarType) or not column_kind.is_int:
        raise mistake(f"the column of {name} must be an integer, got {show(first)}")
    return target, kind, cast(emit, index, I32), cast(emit, first, I32)


def gather(emit: Emitter, desc: Operand, x_offsets: Operand, y_offset: Operand) -> Value:
    """Load the rows `x_offsets`, from the column `y_offset` on."""
    target, _, rows, column = _rows(emit, desc, x_offsets, y_offset, "gather")
    return emit(descriptor.DescriptorGather(target, rows, column)).out


def scatter(
    emit: Emitter, desc: Operand, value: Operand, x_offsets: Operand, y_offset: Operand
) -> None:
    """Store to the rows `x_offsets`, from the column `y_offset` on."""
    target, kind, rows, column = _rows(emit, desc, x_offsets, y_offset, "scatter")
    expected = (*shape(rows), kind.block[1])
    content = converted(emit, value, kind.element, expected, "a value for scatter")
    if shape(content) != expected:
        raise mistake(
            f"scatter of these rows takes a tile of {list(expected)}, got {show(content)}"
        )
    emit(descriptor.DescriptorScatter(target, content, rows, column))


def _reduction(kind: descriptor.ReduceKind) -> Callable[..., Operand]:
    name = f"atomic_{kind}"

    def run(emit: Emitter, desc: Operand, offsets: Operand, value: Operand) -> None:
        target, type_ = _descriptor(desc, name)
        if not descriptor.supports_reduce(kind, type_.element):
            allowed = [
                scalar for scalar in SCALARS.values() if descriptor.supports_reduce(kind, scalar)
            ]
            raise mistake(
                f"{name} does not take a descriptor of {show_type(type_.element)}",
                remedy=f"it takes descriptors of {', '.join(map(show_type, allowed))}",
            )
        is_in_memory = isinstance(target.op, descriptor.DescriptorAt)
        if is_in_memory and kind in descriptor.BITWISE and type_.element == I64:
            # The map has signed elements; the hardware has no bitwise reduction of them.
            raise mistake(
                f"{name} does not take a descriptor of int64 whose map is in memory",
                remedy="let the map be one of uint64",
            )
        content = _block(emit, value, type_, name)
        coords = _coords(emit, offsets, type_, name)
        emit(descriptor.DescriptorReduce(target, content, coords, kind=kind))

    return run


def _check_described(desc: Value, property_name: str) -> None:
    """Check that the tensor is described by the launch. Raises: CompileError."""
    if isinstance(desc.op, descriptor.DescriptorAt):
        raise mistake(
            f"the {property_name} of a tensor whose map is in memory is not known to the kernel",
            remedy="pass it as an argument",
        )


def _shape(emit: Emitter, desc: Value, kind: DescriptorType) -> Operand:
    _check_described(desc, "shape")
    axes = range(len(kind.block))
    return tuple(emit(descriptor.DescriptorExtent(desc, axis)).out for axis in axes)


def _strides(emit: Emitter, desc: Value, kind: DescriptorType) -> Operand:
    _check_described(desc, "strides")
    axes = range(len(kind.block))
    return tuple(emit(descriptor.DescriptorStride(desc, axis)).out for axis in axes)


FUNCTIONS: dict[str, Callable[..., Operand]] = {
    "load_tensor_descriptor": load,
    "store_tensor_descriptor": store,
}
"""Functions of `tl` with a descriptor as first argument."""

METHODS: dict[str, Callable[..., Operand]] = {
    "load": load,
    "store": store,
    "prefetch": prefetch,
    "gather": gather,
    "scatter": scatter,
    **{f"atomic_{kind}": _reduction(kind) for kind in ("add", "min", "max", "and", "or", "xor")},
}
"""Methods of a descriptor."""

TAKE_DESCRIPTORS = tuple(METHODS.values())

ATTRIBUTES: dict[str, Callable[[Emitter, Value, DescriptorType], Operand]] = {
    "shape": _shape,
    "strides": _strides,
    "block_shape": lambda emit, desc, kind: kind.block,  # noqa: ARG005
    "block_type": lambda emit, desc, kind: TileType(kind.element, kind.block),  # noqa: ARG005
    "dtype": lambda emit, desc, kind: kind.element,  # noqa: ARG005
    "type": lambda emit, desc, kind: kind,  # noqa: ARG005
}

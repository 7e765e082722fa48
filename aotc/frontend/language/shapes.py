"""Creation and reshaping of tiles; nothing here moves or computes elements.

Shapes are compile-time tuples of powers of two. Functions with unspecified element order in Triton
(`view`, `ravel`, `cat` with `can_reorder`) keep row-major order here.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from aotc.frontend.emitter import Emitter, mistake
from aotc.frontend.language.convert import bitcast as reinterpret
from aotc.frontend.language.convert import (
    broadcast,
    broadcast_to,
    cast,
    constant,
    splat,
    static_axis,
    static_bool,
    static_dtype,
    static_int,
    static_scalar_dtype,
    static_shape,
    to_scalar,
    to_value,
)
from aotc.frontend.values import Operand, Slice, is_tuple, shape, show
from aotc.ir.core import Value
from aotc.ir.dialects import tile
from aotc.ir.types import TileType


def _spread_items(items: tuple[Operand, ...]) -> Operand:
    """Take `f(x, 2, 4)` as `f(x, (2, 4))`."""
    return items[0] if len(items) == 1 and is_tuple(items[0]) else items


# ---- making tiles -----------------------------------------------------------------------------


def arange(emit: Emitter, start: Operand, end: Operand) -> Value:
    """Return the tile of consecutive integers from `start` up to but without `end`."""
    first, last = static_int(start, "the start of arange"), static_int(end, "the end of arange")
    extent = last - first
    if extent <= 0:
        raise mistake(f"arange needs an end above its start, got {first} and {last}")
    if extent & (extent - 1):
        raise mistake(
            f"the extent of arange must be a power of two, got {last} - {first} = {extent}",
            remedy=f"use tl.arange({first}, {first + (1 << extent.bit_length())}) and mask what "
            "is too much",
        )
    if first < 0 or last > 1 << 31:
        raise mistake(f"arange must stay within 0 and 2**31, got {first} and {last}")
    static_shape((extent,))
    return emit(tile.Arange(first, last)).out


def full(emit: Emitter, shape: Operand, value: Operand, dtype: Operand) -> Value:
    """Return a tile with `value` in every element."""
    extents = static_shape(shape) if shape != () else ()
    kind = static_scalar_dtype(dtype)
    if isinstance(value, int | float):
        return constant(emit, value, kind, extents)
    scalar = to_scalar(emit, to_value(emit, value, "a value to fill the tile with"))
    return splat(emit, cast(emit, scalar, kind), extents)


def zeros(emit: Emitter, shape: Operand, dtype: Operand) -> Value:
    """Return a tile of zeros."""
    return full(emit, shape, 0, dtype)


def zeros_like(emit: Emitter, input: Operand) -> Value:  # noqa: A002 - Triton's parameter name
    """Return zeros of the shape and type of another tile."""
    value = to_value(emit, input)
    return full(emit, shape(value), 0, static_dtype(value.type))


# ---- reshaping --------------------------------------------------------------------------------


def reshape(
    emit: Emitter,
    input: Operand,  # noqa: A002 - Triton's parameter name
    *shape: Operand,
    can_reorder: Operand = False,
) -> Value:
    """Return the elements in row-major order under another shape."""
    static_bool(can_reorder, "can_reorder")
    return _reshape(emit, input, _spread_items(shape))


def _reshape(emit: Emitter, operand: Operand, new_shape: Operand) -> Value:
    value = to_value(emit, operand, "a tile")
    if new_shape == ():
        return to_scalar(emit, value)
    extents = static_shape(new_shape)
    source = shape(value)
    if prod(source) != prod(extents):
        raise mistake(
            f"cannot reshape {source}, {prod(source)} elements, to {extents}, "
            f"{prod(extents)} elements"
        )
    if not source:
        return splat(emit, value, extents)
    return value if source == extents else emit(tile.Reshape(value, extents)).out


def view(emit: Emitter, input: Operand, *shape: Operand) -> Value:  # noqa: A002
    """Return the elements under another shape."""
    return _reshape(emit, input, _spread_items(shape))


def ravel(
    emit: Emitter,
    x: Operand,
    can_reorder: Operand = False,  # noqa: FBT002 - Triton's signature
) -> Value:
    """Return the elements in a row."""
    del can_reorder
    value = to_value(emit, x)
    return _reshape(emit, value, (prod(shape(value)),))


def item(emit: Emitter, input: Operand) -> Value:  # noqa: A002 - Triton's parameter name
    """Return the only element of a tile as a scalar."""
    return to_scalar(emit, to_value(emit, input))


def expand_dims(emit: Emitter, input: Operand, axis: Operand) -> Value:  # noqa: A002
    """Insert axes of extent 1, counted in the result."""
    value = to_value(emit, input)
    positions = axis if is_tuple(axis) else (axis,)
    num_axes = len(shape(value)) + len(positions)
    axes = sorted(static_axis(position, num_axes) for position in positions)
    if len(dict.fromkeys(axes)) != len(axes):
        raise mistake(f"expand_dims got an axis twice: {positions}")
    for position in axes:
        value = _insert_axis(emit, value, position)
    return value


def _insert_axis(emit: Emitter, value: Value, axis: int) -> Value:
    if not isinstance(value.type, TileType):
        return splat(emit, value, (1,))
    return emit(tile.ExpandDims(value, axis)).out


def squeeze(emit: Emitter, x: Operand, dim: Operand) -> Value:
    """Drop an axis of extent 1."""
    value = to_value(emit, x)
    extents = shape(value)
    axis = static_axis(dim, len(extents), "dim")
    if extents[axis] != 1:
        raise mistake(
            f"squeeze drops an axis of extent 1, axis {axis} of {extents} has {extents[axis]}"
        )
    return _reshape(emit, value, extents[:axis] + extents[axis + 1 :])


def unsqueeze(emit: Emitter, x: Operand, dim: Operand) -> Value:
    """Insert an axis of extent 1."""
    return expand_dims(emit, x, dim)


def subscript(emit: Emitter, value: Value, index: Operand) -> Value:
    """Apply `x[:, None]`: `None` inserts an axis, `:` keeps one. Raises: CompileError.

    A `:` beyond the last axis does nothing, as in Triton: existing kernels index scalars with it.
    """
    items = index if is_tuple(index) else (index,)
    for axis, item in enumerate(items):
        if item is None:
            value = _insert_axis(emit, value, min(axis, len(shape(value))))
        elif item != Slice(None, None, None):
            raise mistake(
                f"a tile is indexed by `None` and `:` only, got {show(item)}",
                remedy="elements of a tile live in many threads; use tl.where with tl.sum to pick "
                "some, or load them from memory",
            )
    return value


# ---- permuting and broadcasting ---------------------------------------------------------------


def permute(emit: Emitter, input: Operand, *dims: Operand) -> Value:  # noqa: A002
    """Reorder the axes: result axis `i` is axis `dims[i]` of the operand."""
    return transpose(emit, to_value(emit, input, "a tile"), _spread_items(dims))


def trans(emit: Emitter, input: Operand, *dims: Operand) -> Value:  # noqa: A002
    """Reorder the axes; without an order, swap the last two."""
    value = to_value(emit, input, "a tile")
    order = _spread_items(dims)
    if order == ():
        num_axes = len(shape(value))
        if num_axes < 2:
            raise mistake(f"trans without an order needs at least two axes, got {show(value)}")
        order = (*range(num_axes - 2), num_axes - 1, num_axes - 2)
    return transpose(emit, value, order)


def transpose(emit: Emitter, value: Value, order: Operand) -> Value:
    """Reorder the axes as `order` says. Raises: CompileError if it is no permutation."""
    items = order if is_tuple(order) else (order,)
    num_axes = len(shape(value))
    axes = tuple(static_int(item, "each axis") for item in items)
    if sorted(axes) != list(range(num_axes)):
        raise mistake(f"the order must name the axes 0 to {num_axes - 1} once each, got {axes}")
    return value if list(axes) == sorted(axes) else emit(tile.Trans(value, axes)).out


def broadcast_shape(emit: Emitter, input: Operand, *shape: Operand) -> Value:  # noqa: A002
    """Repeat a scalar, or a tile along its axes of extent 1."""
    extents = static_shape(_spread_items(shape))
    return broadcast_to(emit, to_value(emit, input), extents)


def broadcast_pair(emit: Emitter, input: Operand, other: Operand) -> tuple[Value, ...]:  # noqa: A002
    """Bring two values to their common shape."""
    return broadcast(emit, to_value(emit, input), to_value(emit, other))


# ---- joining and splitting --------------------------------------------------------------------


def join(emit: Emitter, a: Operand, b: Operand) -> Value:
    """Join two tiles along a new last axis of extent 2."""
    left, right = broadcast(emit, to_value(emit, a), to_value(emit, b))
    if left.type != right.type:
        raise mistake(f"join takes two tiles of one type, got {show(left)} and {show(right)}")
    if shape(left):
        return emit(tile.Join(left, right)).out
    left, right = splat(emit, left, (1,)), splat(emit, right, (1,))
    return _reshape(emit, emit(tile.Join(left, right)).out, (2,))


def split(emit: Emitter, a: Operand) -> tuple[Value, ...]:
    """Return the two halves of a tile along its last axis of extent 2."""
    value = to_value(emit, a, "a tile")
    extents = shape(value)
    if extents[-1:] != (2,):
        raise mistake(f"split needs a last axis of extent 2, got {show(value)}")
    if len(extents) == 1:
        halves = emit(tile.Split(_reshape(emit, value, (1, 2))))
        return to_scalar(emit, halves.lhs), to_scalar(emit, halves.rhs)
    halves = emit(tile.Split(value))
    return halves.lhs, halves.rhs


def interleave(emit: Emitter, a: Operand, b: Operand) -> Value:
    """Alternate the elements of two tiles along their last axis."""
    joined = join(emit, a, b)
    extents = shape(joined)
    if len(extents) == 1:
        return joined
    return _reshape(emit, joined, (*extents[:-2], 2 * extents[-2]))


def cat(
    emit: Emitter,
    input: Operand,  # noqa: A002 - Triton's parameter name
    other: Operand,
    can_reorder: Operand = False,  # noqa: FBT002 - Triton's signature
    dim: Operand = 0,
) -> Value:
    """Concatenate two tiles of one shape along an axis, in order."""
    static_bool(can_reorder, "can_reorder")
    left, right = to_value(emit, input, "a tile"), to_value(emit, other, "a tile")
    if left.type != right.type or not shape(left):
        raise mistake(
            f"cat takes two tiles of one type and shape, got {show(left)} and {show(right)}",
            remedy="cast or broadcast one of them first",
        )
    extents = shape(left)
    axis = static_axis(dim, len(extents), "dim")
    order = list(range(len(extents)))
    order.insert(axis, len(extents))
    interleaved = transpose(emit, join(emit, left, right), tuple(order))
    return _reshape(emit, interleaved, (*extents[:axis], 2 * extents[axis], *extents[axis + 1 :]))


def flip(emit: Emitter, x: Operand, dim: Operand = None) -> Value:
    """Reverse a tile along an axis: swap the halves at every power of two of its extent."""
    value = to_value(emit, x, "a tile")
    extents = shape(value)
    axis = static_axis(-1 if dim is None else dim, len(extents), "dim")
    bits = extents[axis].bit_length() - 1
    value = _reshape(emit, value, (*extents[:axis], *[2] * bits, *extents[axis + 1 :]))
    for bit in range(axis, axis + bits):
        last = len(shape(value)) - 1
        order = (*(i for i in range(last + 1) if i != bit), bit)
        left, right = split(emit, transpose(emit, value, order))
        back = (*range(bit), last, *range(bit, last))
        value = transpose(emit, join(emit, right, left), back)
    return _reshape(emit, value, extents)


# ---- types ------------------------------------------------------------------------------------


def convert(
    emit: Emitter,
    input: Operand,  # noqa: A002 - Triton's parameter name
    dtype: Operand,
    fp_downcast_rounding: Operand = None,
    bitcast: Operand = False,  # noqa: FBT002 - Triton's signature
) -> Value:
    """Convert to another dtype, or read the bits as one."""
    value = to_value(emit, input)
    target = static_dtype(dtype)
    if static_bool(bitcast, "bitcast"):
        return reinterpret(emit, value, target)
    if fp_downcast_rounding is not None and not isinstance(fp_downcast_rounding, str):
        raise mistake(
            f"fp_downcast_rounding must be 'rtne' or 'rtz', got {show(fp_downcast_rounding)}"
        )
    return cast(emit, value, target, fp_downcast_rounding)


def to_tensor(emit: Emitter, x: Operand) -> Value:
    """Return a number as a run-time scalar."""
    return to_value(emit, x)


FUNCTIONS: dict[str, Callable[..., Operand]] = {
    "arange": arange,
    "full": full,
    "zeros": zeros,
    "zeros_like": zeros_like,
    "reshape": reshape,
    "view": view,
    "ravel": ravel,
    "item": item,
    "expand_dims": expand_dims,
    "squeeze": squeeze,
    "unsqueeze": unsqueeze,
    "permute": permute,
    "trans": trans,
    "broadcast_to": broadcast_shape,
    "broadcast": broadcast_pair,
    "join": join,
    "split": split,
    "interleave": interleave,
    "cat": cat,
    "flip": flip,
    "cast": convert,
    "to": convert,
    "to_tensor": to_tensor,
}

"""Reductions and scans, named ones and ones with a user's combine function.

A combine is a block of scalar ops. Named reductions build theirs directly; a user's function is
translated into one, with scalars for parameters. Widening follows Triton: sums and products of narrow
integers are computed in 32 bits, as are minima and maxima of all narrow types. Sums of half-precision
floats are not widened. Cumulative sums and products of bf16 are computed in fp32, as up to Triton 3.8:
with 8 bits of mantissa a running bf16 sum soon stops growing.

With indices, the smaller index wins among equal values unless `tie_break_left` is false. NaN is
ignored, as in minima and maxima without indices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aotc.frontend.emitter import Emitter, mistake
from aotc.frontend.language import math_functions, operators
from aotc.frontend.language.convert import (
    broadcast_to,
    cast,
    constant,
    static_axis,
    static_bool,
    static_scalar_dtype,
    to_value,
)
from aotc.frontend.language.shapes import expand_dims, ravel, reshape
from aotc.frontend.values import (
    Builtin,
    Closure,
    Function,
    Operand,
    element,
    is_tuple,
    shape,
    show,
    show_type,
)
from aotc.ir.core import Block, Value
from aotc.ir.dialects import arith, scf, tile
from aotc.ir.rewrite import erase_dead
from aotc.ir.types import BF16, FP32, I32, U32, ScalarType, TileType

Combine = Callable[[Emitter, Sequence[Value]], Sequence[Value]]


# ---- the machinery ----------------------------------------------------------------------------


def _tile(emit: Emitter, operand: Operand, name: str) -> Value:
    value = to_value(emit, operand, f"a tile for tl.{name}")
    if not isinstance(value.type, TileType):
        raise mistake(f"tl.{name} takes a tile, got the scalar {show(value)}")
    return value


def _combine_block(emit: Emitter, inputs: Sequence[Value], combine: Combine) -> Block:
    kinds = [element(value) for value in inputs]
    block = Block([*kinds, *kinds])
    with emit.into(block):
        combined = combine(emit, block.args)
        emit(scf.Yield(combined))
    for op in reversed([*block]):  # such as a tile made only to ask for its dtype
        erase_dead(op)
    return block


def _reduce(
    emit: Emitter, inputs: Sequence[Value], axis: Operand, combine: Combine, keep_dims: Operand
) -> tuple[Value, ...]:
    extents = shape(inputs[0])
    if axis is None:
        position = 0
        inputs = [ravel(emit, value) for value in inputs]
    else:
        position = static_axis(axis, len(extents))
    block = _combine_block(emit, inputs, combine)
    outs = emit(tile.Reduce(inputs, position, block)).outs
    if not static_bool(keep_dims, "keep_dims"):
        return tuple(outs)
    axes = tuple(range(len(extents))) if axis is None else (position,)
    return tuple(expand_dims(emit, value, axes) for value in outs)


def _scan(
    emit: Emitter, inputs: Sequence[Value], axis: Operand, combine: Combine, reverse: Operand
) -> tuple[Value, ...]:
    position = static_axis(axis, len(shape(inputs[0])))
    block = _combine_block(emit, inputs, combine)
    return tuple(emit(tile.Scan(inputs, position, block, static_bool(reverse, "reverse"))).outs)


def _pairwise(op: operators.Emit) -> Combine:
    return lambda emit, args: [op(emit, args[0], args[1])]


def _user_combine(emit: Emitter, function: Operand, inputs: Sequence[Value], name: str) -> Combine:
    if not isinstance(function, Function | Builtin | Closure | str):  # a text names one
        raise mistake(
            f"the combine function of tl.{name} must be a @triton.jit function, got "
            f"{show(function)}"
        )
    kinds = [element(value) for value in inputs]

    def combine(emit: Emitter, args: Sequence[Value]) -> Sequence[Value]:
        out = emit.call(function, args)
        items = out if is_tuple(out) else (out,)
        if len(items) != len(kinds):
            raise mistake(
                f"the combine function {function} must return {len(kinds)} values, "
                f"it returns {len(items)}"
            )
        results: list[Value] = []
        for operand, kind in zip(items, kinds, strict=True):
            if isinstance(operand, int | float) and isinstance(kind, ScalarType):
                operand = constant(emit, operand, kind)  # noqa: PLW2901 - the same result, typed
            value = to_value(emit, operand, f"a scalar from {function}")
            if value.type != kind:
                raise mistake(
                    f"the combine function {function} must return {show_type(kind)}, "
                    f"it returns {show(value)}",
                    remedy="cast inside the function, or cast the tile before",
                )
            results.append(value)
        return results

    del emit
    return combine


def _inputs(emit: Emitter, operand: Operand, name: str) -> list[Value]:
    items = operand if is_tuple(operand) else (operand,)
    if not items:
        raise mistake(f"tl.{name} needs at least one tile")
    values = [_tile(emit, item, name) for item in items]
    for value in values[1:]:
        if shape(value) != shape(values[0]):
            raise mistake(f"the tiles of tl.{name} must have one shape, got {show(tuple(values))}")
    return values


def reduce(
    emit: Emitter,
    input: Operand,  # noqa: A002 - Triton's parameter name
    axis: Operand,
    combine_fn: Operand,
    keep_dims: Operand = False,  # noqa: FBT002 - Triton's signature
) -> Operand:
    """Reduce one or several tiles along an axis with a user's function."""
    inputs = _inputs(emit, input, "reduce")
    combine = _user_combine(emit, combine_fn, inputs, "reduce")
    outs = _reduce(emit, inputs, axis, combine, keep_dims)
    return outs if is_tuple(input) else outs[0]


def associative_scan(
    emit: Emitter,
    input: Operand,  # noqa: A002 - Triton's parameter name
    axis: Operand,
    combine_fn: Operand,
    reverse: Operand = False,  # noqa: FBT002 - Triton's signature
) -> Operand:
    """Scan one or several tiles along an axis with a user's function."""
    inputs = _inputs(emit, input, "associative_scan")
    combine = _user_combine(emit, combine_fn, inputs, "associative_scan")
    outs = _scan(emit, inputs, axis, combine, reverse)
    return outs if is_tuple(input) else outs[0]


# ---- widening ---------------------------------------------------------------------------------


def _sum_type(kind: ScalarType) -> ScalarType:
    if kind.is_int and kind.bits < I32.bits:
        return I32 if kind.is_signed else U32
    return kind


def _scan_type(kind: ScalarType) -> ScalarType:
    return FP32 if kind == BF16 else _sum_type(kind)


def _scalar_element(value: Value, name: str) -> ScalarType:
    kind = element(value)
    if not isinstance(kind, ScalarType):
        raise mistake(f"tl.{name} takes numbers, got {show(value)}")
    return kind


def _widened(
    emit: Emitter,
    operand: Operand,
    dtype: Operand,
    name: str,
    widen: Callable[[ScalarType], ScalarType],
) -> Value:
    """Cast a tile to `dtype`, or to its type widened by `widen` if `dtype` is None."""
    value = _tile(emit, operand, name)
    kind = _scalar_element(value, name)
    sum_type = widen(kind) if dtype is None else static_scalar_dtype(dtype, "dtype")
    return cast(emit, value, sum_type)


def _for_extremum(emit: Emitter, operand: Operand, name: str) -> Value:
    value = _tile(emit, operand, name)
    kind = _scalar_element(value, name)
    if kind.bits >= I32.bits:
        return value
    return cast(emit, value, FP32 if kind.is_float else I32)


# ---- named reductions -------------------------------------------------------------------------


def sum_(
    emit: Emitter,
    input: Operand,  # noqa: A002 - Triton's parameter name
    axis: Operand = None,
    keep_dims: Operand = False,  # noqa: FBT002 - Triton's signature
    dtype: Operand = None,
) -> Value:
    """Add the elements along an axis, or all of them."""
    value = _widened(emit, input, dtype, "sum", _sum_type)
    return _reduce(emit, [value], axis, _pairwise(operators.add), keep_dims)[0]


def _bitwise(name: str, op: operators.Emit) -> Callable[..., Value]:
    def function(
        emit: Emitter,
        input: Operand,  # noqa: A002 - Triton's parameter name
        axis: Operand = None,
        keep_dims: Operand = False,  # noqa: FBT002 - Triton's signature
    ) -> Value:
        value = _tile(emit, input, name)
        if not _scalar_element(value, name).is_int:
            raise mistake(f"tl.{name} takes integers, got {show(value)}")
        return _reduce(emit, [value], axis, _pairwise(op), keep_dims)[0]

    return function


def _extremum(
    name: str, op: Callable[..., Value], predicate: arith.Predicate
) -> Callable[..., Operand]:
    def function(
        emit: Emitter,
        input: Operand,  # noqa: A002 - Triton's parameter name
        axis: Operand = None,
        return_indices: Operand = False,  # noqa: FBT002 - Triton's signature
        return_indices_tie_break_left: Operand = True,  # noqa: FBT002 - Triton's signature
        keep_dims: Operand = False,  # noqa: FBT002 - Triton's signature
    ) -> Operand:
        if static_bool(return_indices, "return_indices"):
            value = _tile(emit, input, name)
            left = static_bool(return_indices_tie_break_left, "return_indices_tie_break_left")
            return _with_indices(emit, value, axis, _indexed(predicate, left), keep_dims)
        value = _for_extremum(emit, input, name)
        return _reduce(emit, [value], axis, _pairwise(op), keep_dims)[0]

    return function


def _arg_extremum(name: str, predicate: arith.Predicate) -> Callable[..., Value]:
    def function(
        emit: Emitter,
        input: Operand,  # noqa: A002 - Triton's parameter name
        axis: Operand,
        tie_break_left: Operand = True,  # noqa: FBT002 - Triton's signature
        keep_dims: Operand = False,  # noqa: FBT002 - Triton's signature
    ) -> Value:
        value = _tile(emit, input, name)
        left = static_bool(tie_break_left, "tie_break_left")
        return _with_indices(emit, value, axis, _indexed(predicate, left), keep_dims)[1]

    return function


def _indexed(predicate: arith.Predicate, tie_break_left: bool) -> Combine:  # noqa: FBT001
    """Combine two values with indices; on a tie keep the smaller index if `tie_break_left`.

    A number beats a NaN. With Triton's plain comparison a NaN drops the number on one side. The result
    would then depend on the order of elements, and so on the layout.
    """

    def combine(emit: Emitter, args: Sequence[Value]) -> Sequence[Value]:
        value, index, other, other_index = args
        better = emit(arith.Compare(value, other, predicate)).out
        if _is_float(value):
            better = emit(arith.Or(better, _is_nan(emit, other))).out
        if tie_break_left:
            tie = emit(arith.Compare(value, other, "eq")).out
            earlier = emit(arith.Compare(index, other_index, "lt")).out
            better = emit(arith.Or(better, emit(arith.And(tie, earlier)).out)).out
        return (
            emit(arith.Select(better, value, other)).out,
            emit(arith.Select(better, index, other_index)).out,
        )

    return combine


def _is_float(value: Value) -> bool:
    kind = element(value)
    return isinstance(kind, ScalarType) and kind.is_float


def _is_nan(emit: Emitter, value: Value) -> Value:
    return emit(arith.Compare(value, value, "ne")).out


def _with_indices(
    emit: Emitter, value: Value, axis: Operand, combine: Combine, keep_dims: Operand
) -> tuple[Value, ...]:
    _scalar_element(value, "max")
    source = shape(value)
    if axis is None:
        value = ravel(emit, value)
    extents = shape(value)
    position = 0 if axis is None else static_axis(axis, len(extents))
    index = emit(tile.Arange(0, extents[position])).out
    flat = tuple(extents[i] if i == position else 1 for i in range(len(extents)))
    index = broadcast_to(emit, reshape(emit, index, flat), extents)
    best, where = _reduce(emit, [value, index], position, combine, keep_dims=False)
    if _is_float(best):  # it is a NaN only if all are, and the first of them is at 0
        first = constant(emit, 0, I32, shape(best))
        where = emit(arith.Select(_is_nan(emit, best), first, where)).out
    outs = (best, where)
    if not static_bool(keep_dims, "keep_dims"):
        return outs
    axes = tuple(range(len(source))) if axis is None else (position,)
    return tuple(expand_dims(emit, i, axes) for i in outs)


# ---- named scans ------------------------------------------------------------------------------


def _cumulative(name: str, op: operators.Emit) -> Callable[..., Value]:
    def function(
        emit: Emitter,
        input: Operand,  # noqa: A002 - Triton's parameter name
        axis: Operand = 0,
        reverse: Operand = False,  # noqa: FBT002 - Triton's signature
        dtype: Operand = None,
    ) -> Value:
        value = _widened(emit, input, dtype, name, _scan_type)
        return _scan(emit, [value], axis, _pairwise(op), reverse)[0]

    return function


def softmax(
    emit: Emitter,
    x: Operand,
    dim: Operand = None,
    keep_dims: Operand = None,
    ieee_rounding: Operand = False,  # noqa: FBT002 - Triton's signature
) -> Value:
    """Return exp(x - max) over its sum along `dim`, by default the first axis."""
    del keep_dims
    axis = 0 if dim is None else dim
    value = _tile(emit, x, "softmax")
    peak = _reduce(
        emit,
        [_for_extremum(emit, value, "softmax")],
        axis,
        _pairwise(math_functions.maximum),
        keep_dims=True,
    )[0]
    shifted = operators.subtract(emit, value, peak)
    power = to_value(emit, math_functions.FUNCTIONS["exp"](emit, shifted))
    total = _reduce(emit, [power], axis, _pairwise(operators.add), keep_dims=True)[0]
    return math_functions.fdiv(emit, power, total, ieee_rounding)


FUNCTIONS: dict[str, Callable[..., Operand]] = {
    "sum": sum_,
    "max": _extremum("max", math_functions.maximum, "gt"),
    "min": _extremum("min", math_functions.minimum, "lt"),
    "argmax": _arg_extremum("argmax", "gt"),
    "argmin": _arg_extremum("argmin", "lt"),
    "xor_sum": _bitwise("xor_sum", operators.bit_xor),
    "reduce_or": _bitwise("reduce_or", operators.bit_or),
    "reduce": reduce,
    "cumsum": _cumulative("cumsum", operators.add),
    "cumprod": _cumulative("cumprod", operators.multiply),
    "associative_scan": associative_scan,
    "softmax": softmax,
}

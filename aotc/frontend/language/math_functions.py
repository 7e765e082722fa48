"""Elementwise functions of the language: exponentials, roots, rounding, minima, divisions.

Floating functions take fp32 and fp64 only, as Triton's do. A half-precision argument is an error with
a cast as remedy, because silent widening would hide the precision.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from aotc.frontend.emitter import Emitter, mistake
from aotc.frontend.language import operators
from aotc.frontend.language.convert import Number, cast, expect_computable, static_bool, to_value
from aotc.frontend.language.operators import meet, meet_all
from aotc.frontend.values import (
    Operand,
    PropagateNan,
    element,
    is_tuple,
    show,
    show_type,
)
from aotc.ir.core import Value
from aotc.ir.dialects import arith
from aotc.ir.types import FP32, FP64, I1, ScalarType


def _expect(name: str, value: Value, allowed: tuple[ScalarType, ...]) -> Value:
    kind = element(value)
    if kind not in allowed:
        expected = " or ".join(show_type(scalar) for scalar in allowed)
        raise mistake(
            f"tl.{name} takes {expected}, got {show_type(kind)}",
            remedy=f"cast the argument with .to(tl.{show_type(allowed[0])})",
        )
    return value


def _unary(
    name: str, op: Callable[[Value], arith.Unary], allowed: tuple[ScalarType, ...] = (FP32, FP64)
) -> Callable[[Emitter, Operand], Value]:
    def function(emit: Emitter, x: Operand) -> Value:
        return emit(op(_expect(name, to_value(emit, x, f"an argument of tl.{name}"), allowed))).out

    return function


def absolute(emit: Emitter, x: Operand) -> Value:
    """Return the absolute value; of an unsigned integer, itself."""
    value = to_value(emit, x)
    kind = element(value)
    if not isinstance(kind, ScalarType):
        raise mistake(f"tl.abs takes a number, got {show(value)}")
    expect_computable(kind, "tl.abs")
    if kind.is_int and not kind.is_signed:
        return value
    return emit(arith.Abs(value)).out


def _min_or_max(
    name: str, op: Callable[[Value, Value, bool], arith.MinMax]
) -> Callable[..., Value]:
    def function(
        emit: Emitter, x: Operand, y: Operand, propagate_nan: Operand = PropagateNan.NONE
    ) -> Value:
        left, right, _ = meet(emit, x, y, name)
        return emit(op(left, right, _propagates(propagate_nan))).out

    return function


def _propagates(operand: Operand) -> bool:
    if not isinstance(operand, PropagateNan):
        raise mistake(f"propagate_nan must be tl.PropagateNan.ALL or .NONE, got {show(operand)}")
    return operand is PropagateNan.ALL


minimum = _min_or_max("minimum", arith.Min)
maximum = _min_or_max("maximum", arith.Max)


def clamp(
    emit: Emitter,
    x: Operand,
    min: Operand,  # noqa: A002 - Triton's parameter name
    max: Operand,  # noqa: A002 - Triton's parameter name
    propagate_nan: Operand = PropagateNan.NONE,
) -> Value:
    """Limit `x` to the range from `min` to `max`."""
    value, low, high = meet_all(emit, (x, min, max), "clamp")
    propagate = _propagates(propagate_nan)
    value = emit(arith.Max(value, low, propagate)).out
    return emit(arith.Min(value, high, propagate)).out


def _logical(combine: operators.Emit) -> Callable[..., Operand]:
    def function(emit: Emitter, input: Operand, other: Operand) -> Operand:  # noqa: A002
        return combine(emit, input, other)

    return function


def _smallest_or_largest(
    pick: Callable[[list[Number]], Number], function: Callable[..., Value], name: str
) -> Callable[..., Operand]:
    """Python's own `min` and `max`: of constants a constant, else elementwise."""

    def call(emit: Emitter, *args: Operand) -> Operand:
        items = args[0] if len(args) == 1 and is_tuple(args[0]) else args
        numbers = [item for item in items if isinstance(item, int | float)]
        if items and len(numbers) == len(items):
            return pick(numbers)
        if len(items) < 2:
            raise mistake(f"{name} needs at least two values, got {len(items)}")
        result = items[0]
        for item in items[1:]:
            result = function(emit, result, item)
        return result

    return call


def fma(emit: Emitter, x: Operand, y: Operand, z: Operand) -> Value:
    """Multiply `x` by `y` and add `z`, rounding once."""
    a, b, c = meet_all(emit, (x, y, z), "fma")
    kind = element(a)
    if not isinstance(kind, ScalarType) or not kind.is_float:
        raise mistake(f"tl.fma takes floats, got {show(a)}")
    return emit(arith.Fma(a, b, c)).out


def div_rn(emit: Emitter, x: Operand, y: Operand) -> Value:
    """Divide with correct rounding."""
    lhs, rhs, kind = meet(emit, x, y, "div_rn")
    if kind != FP32:
        raise mistake(
            f"tl.div_rn takes float32, got {show(x)} and {show(y)}",
            remedy="cast the arguments with .to(tl.float32)",
        )
    return emit(arith.DivRn(lhs, rhs)).out


def fdiv(
    emit: Emitter,
    x: Operand,
    y: Operand,
    ieee_rounding: Operand = False,  # noqa: FBT002 - Triton's signature
    approx: Operand = False,  # noqa: FBT002 - Triton's signature
) -> Value:
    """Divide floats, correctly rounded if asked."""
    exact = static_bool(ieee_rounding, "ieee_rounding")
    if exact and static_bool(approx, "approx"):
        raise mistake("ieee_rounding and approx exclude each other")
    lhs, rhs, kind = meet(emit, x, y, "fdiv", arithmetic="division")
    if not kind.is_float:
        raise mistake(
            f"tl.fdiv takes floats, got {show(x)} and {show(y)}", remedy="use `/` for integers"
        )
    return emit(arith.DivRn(lhs, rhs) if exact else arith.Div(lhs, rhs)).out


def umulhi(emit: Emitter, x: Operand, y: Operand) -> Value:
    """Return the high half of the product of two integers of 32 or 64 bits."""
    lhs, rhs, kind = meet(emit, x, y, "umulhi")
    if not kind.is_int or kind.bits not in (32, 64):
        raise mistake(f"tl.umulhi takes integers of 32 or 64 bits, got {show(x)} and {show(y)}")
    # "u": the product of the unsigned bit patterns, also for signed types.
    if kind.is_signed:
        unsigned = ScalarType(f"u{kind.bits}", kind.bits, "uint")
        lhs = emit(arith.Bitcast(lhs, unsigned)).out
        rhs = emit(arith.Bitcast(rhs, unsigned)).out
        return emit(arith.Bitcast(emit(arith.MulHi(lhs, rhs)).out, kind)).out
    return emit(arith.MulHi(lhs, rhs)).out


def cdiv(emit: Emitter, x: Operand, div: Operand) -> Operand:
    """Divide integers, rounding up."""
    less = operators.binary(emit, operators.BINARY[ast.Sub], div, 1)
    total = operators.binary(emit, operators.BINARY[ast.Add], x, less)
    return operators.binary(emit, operators.BINARY[ast.FloorDiv], total, div)


def swizzle2d(
    emit: Emitter, i: Operand, j: Operand, size_i: Operand, size_j: Operand, size_g: Operand
) -> tuple[Operand, Operand]:
    """Swizzle (i, j): walk rows in groups of `size_g`, column by column within a group."""

    def apply(op: type[ast.operator], left: Operand, right: Operand) -> Operand:
        return operators.binary(emit, operators.BINARY[op], left, right)

    index = apply(ast.Add, apply(ast.Mult, i, size_j), j)
    whole = apply(ast.Mult, size_g, size_j)
    first = apply(ast.Mult, apply(ast.FloorDiv, index, whole), size_g)
    rows = PYTHON_FUNCTIONS["min"](
        emit, apply(ast.Sub, size_i, first), size_g
    )  # the last has fewer
    inside = apply(ast.Mod, index, whole)
    row = apply(ast.Add, first, apply(ast.Mod, inside, rows))
    return row, apply(ast.FloorDiv, inside, rows)


def sigmoid(emit: Emitter, x: Operand) -> Value:
    """Return 1 / (1 + exp(-x))."""
    value = _expect("sigmoid", to_value(emit, x), (FP32, FP64))
    power = emit(arith.Exp(operators.negate(emit, value))).out
    return operators.divide(emit, 1, operators.add(emit, 1, power))


def _operator(emit_op: operators.Emit) -> Callable[..., Value]:
    def function(
        emit: Emitter,
        x: Operand,
        y: Operand,
        sanitize_overflow: Operand = True,  # noqa: FBT002 - Triton's signature
    ) -> Value:
        del sanitize_overflow
        return emit_op(emit, x, y)

    return function


def where(emit: Emitter, condition: Operand, x: Operand, y: Operand) -> Value:
    """Take `x` where the condition holds, else `y`."""
    return operators.select(emit, condition, x, y)


def logical_argument(emit: Emitter, operand: Operand) -> Value:
    """Convert a condition to truth values: nonzero is true."""
    return cast(emit, to_value(emit, operand, "a condition"), I1)


_EXPONENTIAL = {
    "exp": arith.Exp,
    "exp2": arith.Exp2,
    "log": arith.Log,
    "log2": arith.Log2,
    "sin": arith.Sin,
    "cos": arith.Cos,
    "sqrt": arith.Sqrt,
    "rsqrt": arith.Rsqrt,
    "erf": arith.Erf,
    "floor": arith.Floor,
    "ceil": arith.Ceil,
}

FUNCTIONS: dict[str, Callable[..., Operand]] = {
    **{name: _unary(name, op) for name, op in _EXPONENTIAL.items()},
    "sqrt_rn": _unary("sqrt_rn", arith.SqrtRn, (FP32,)),
    "abs": absolute,
    "minimum": minimum,
    "maximum": maximum,
    "clamp": clamp,
    "fma": fma,
    "div_rn": div_rn,
    "fdiv": fdiv,
    "umulhi": umulhi,
    "cdiv": cdiv,
    "swizzle2d": swizzle2d,
    "sigmoid": sigmoid,
    "where": where,
    "add": _operator(operators.add),
    "sub": _operator(operators.subtract),
    "mul": _operator(operators.multiply),
}

METHODS: dict[str, Callable[..., Operand]] = {
    "logical_and": _logical(operators.logical_and),
    "logical_or": _logical(operators.logical_or),
}
"""Functions available as methods only."""

PYTHON_FUNCTIONS: dict[str, Callable[..., Operand]] = {
    "min": _smallest_or_largest(min, minimum, "min"),
    "max": _smallest_or_largest(max, maximum, "max"),
}

"""Rules for `arith` ops: a table from op class to a function on whole arrays."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from aotc.ir.core import Op
from aotc.ir.dialects import arith
from aotc.ir.types import FP64, PointerType, ScalarType, element_of, shape_of
from aotc.verify.arrays import Array, view
from aotc.verify.interpreter import libdevice, numerics
from aotc.verify.interpreter.numerics import Poison, dtype_of
from aotc.verify.interpreter.program import Program, Rule


def _scalar_of(type_: object) -> ScalarType:
    element = element_of(type_)  # pyright: ignore[reportArgumentType]
    assert isinstance(element, ScalarType)
    return element


def _constant(program: Program, op: arith.Constant) -> Array:
    del program
    return np.full(shape_of(op.type), _number(op.value, repr(op.value), _scalar_of(op.type)))


@lru_cache(maxsize=1024)
def _number(value: float, text: str, element: ScalarType) -> Array:
    """Return a number of a type; `text` is its literal, to tell -0.0 from 0.0."""
    del text
    if element.is_float:
        return numerics.round_to(np.array(value, np.float64), element)
    # A constant may be written as the unsigned reading of a signed type's bits.
    wrapped = int(value) & ((1 << element.bits) - 1)
    unsigned = np.array(wrapped, f"u{element.size_bytes}")
    return np.asarray(unsigned != 0 if element.is_bool else view(unsigned, dtype_of(element)))


def _binary(function: Callable[[Array, Array], Any]) -> Rule:
    """Return the rule of an op computed by NumPy in the operands' type."""

    def rule(program: Program, op: arith.Binary, a: Array, b: Array) -> Array:
        del program
        if a.dtype == np.bool_:  # one-bit integers: NumPy's arithmetic on them differs
            return np.asarray(function(a.astype(np.uint8), b.astype(np.uint8))) & 1 != 0
        return numerics.in_type(function, _scalar_of(op.lhs.type), a, b)

    return rule


def _undefined(
    function: Callable[[Array, Array, Poison], Array],
    on_floats: Callable[[Array, Array], Array] | None = None,
) -> Rule:
    """Return the rule of a binary op undefined for some integers."""

    def rule(program: Program, op: arith.Binary, a: Array, b: Array) -> Array:
        element = _scalar_of(op.lhs.type)
        if element.is_float and on_floats is not None:
            return numerics.in_type(on_floats, element, a, b)
        return function(a, b, program.poison)

    return rule


def _min_max(of_integers: Callable[..., Any], *, least: bool) -> Rule:
    def rule(program: Program, op: arith.MinMax, a: Array, b: Array) -> Array:
        del program
        element = _scalar_of(op.lhs.type)
        if element.is_int:
            return np.asarray(of_integers(a, b))
        pick = partial(numerics.extreme, least=least, propagate_nan=op.propagate_nan)
        return numerics.in_type(pick, element, a, b)

    return rule


_PREDICATES: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}


def _compare(program: Program, op: arith.Compare, a: Array, b: Array) -> Array:
    del program
    return _PREDICATES[op.predicate](a, b)


def _unary(function: Callable[[Array], Any]) -> Rule:
    """Return the rule of a change of sign, exact in the operand's type."""

    def rule(program: Program, op: arith.Unary, value: Array) -> Array:
        del program, op
        if value.dtype == np.bool_:  # an integer of one bit is its own negative, and no less than 0
            return value
        return np.asarray(function(value))

    return rule


def _rounded(function: Callable[[Array], Any]) -> Rule:
    """Return the rule of a float function: computed in fp64, rounded once."""

    def rule(program: Program, op: Op, value: Array) -> Array:
        del program
        return numerics.through_fp64(function, value, _scalar_of(op.results[0].type))

    return rule


def _flushed(function: Callable[..., Any]) -> Rule:
    """Return the rule of a float function with a subnormal-flushing instruction."""

    def rule(program: Program, op: Op, *operands: Array) -> Array:
        del program
        element = _scalar_of(op.results[0].type)
        if element == FP64:
            return numerics.round_to(np.asarray(function(*operands)), element)
        return numerics.through_fp32(function, element, *operands)

    return rule


def _reciprocal_root(value: Array) -> Array:
    return np.asarray(1.0 / np.sqrt(value))


def _fma(program: Program, op: arith.Fma, a: Array, b: Array, c: Array) -> Array:
    del program
    return numerics.fma(a, b, c, _scalar_of(op.out.type))


def _select(program: Program, op: Op, condition: Array, a: Array, b: Array) -> Array:
    del program, op
    return np.where(condition, a, b)


def _cast(program: Program, op: arith.Cast, value: Array) -> Array:
    source = _scalar_of(op.value.type)
    return numerics.cast(value, source, op.dtype, op.rounding, program.poison)


def _bitcast(program: Program, op: arith.Bitcast, value: Array) -> Array:
    del program
    return numerics.bitcast(value, op.dtype)


def _addptr(program: Program, op: arith.AddPtr, pointer: Array, offset: Array) -> Array:
    del program
    kind = element_of(op.pointer.type)
    assert isinstance(kind, PointerType)
    return pointer + offset.astype(np.int64) * np.int64(kind.pointee.size_bytes)


def _libdevice(program: Program, op: arith.Libdevice, *arguments: Array) -> Array:
    out = libdevice.evaluate(op.symbol, arguments, op.dtype)
    if out is None:
        raise program.error(op, f"of {op.symbol} is not known to the interpreter")
    return out


ARITH_RULES: dict[type[Op], Rule] = {
    arith.Constant: _constant,
    arith.Add: _binary(np.add),
    arith.Sub: _binary(np.subtract),
    arith.Mul: _binary(np.multiply),
    arith.Div: _undefined(numerics.divide, numerics.quotient),
    arith.DivRn: _undefined(numerics.divide, numerics.quotient),
    arith.Rem: _undefined(numerics.remainder, numerics.modulus),
    arith.MulHi: _undefined(numerics.multiply_high),
    arith.And: _binary(np.bitwise_and),
    arith.Or: _binary(np.bitwise_or),
    arith.Xor: _binary(np.bitwise_xor),
    arith.Shl: _undefined(numerics.shift_left),
    arith.Shr: _undefined(numerics.shift_right),
    arith.Min: _min_max(np.minimum, least=True),
    arith.Max: _min_max(np.maximum, least=False),
    arith.Compare: _compare,
    arith.Neg: _unary(np.negative),
    arith.Abs: _unary(np.abs),
    arith.Exp: _flushed(np.exp),
    arith.Exp2: _flushed(np.exp2),
    arith.Log: _rounded(np.log),
    arith.Log2: _rounded(np.log2),
    arith.Sqrt: _flushed(np.sqrt),
    arith.SqrtRn: _rounded(np.sqrt),
    arith.Rsqrt: _flushed(_reciprocal_root),
    arith.Sin: _flushed(np.sin),
    arith.Cos: _flushed(np.cos),
    arith.Erf: _flushed(numerics.erf),
    arith.Floor: _rounded(np.floor),
    arith.Ceil: _rounded(np.ceil),
    arith.Fma: _fma,
    arith.Select: _select,
    arith.Cast: _cast,
    arith.Bitcast: _bitcast,
    arith.AddPtr: _addptr,
    arith.Libdevice: _libdevice,
}

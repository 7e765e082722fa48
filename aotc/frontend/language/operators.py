"""The operators of the language: arithmetic, comparison, bits and logic on operands.

Each operator has one entry in `BINARY`, `COMPARE` or `UNARY`: Python's function for constants, and
the emission for run-time values. The rules are Triton's: `//` and `%` of run-time integers truncate
as in C, of constants they floor as in Python;
`/` of integers is fp32; `>>` is arithmetic for signed and logical for unsigned integers.

Invariant: two constants give a constant; anything else gives a `Value`.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast as type_cast

from aotc.frontend.emitter import Emitter, mistake
from aotc.frontend.language.constants import constexpr_like, not_known, without_constexpr
from aotc.frontend.language.convert import (
    bitcast,
    broadcast,
    cast,
    constant,
    expect_computable,
    not_a_value,
    to_value,
    type_of_number,
)
from aotc.frontend.language.language_classes import class_union
from aotc.frontend.language.promotion import (
    Arithmetic,
    PromotionError,
    computation_type,
)
from aotc.frontend.values import (
    Constexpr,
    External,
    Operand,
    element,
    is_tuple,
    shape,
    show,
    show_type,
)
from aotc.ir.core import Value
from aotc.ir.dialects import arith
from aotc.ir.types import FP8E4B15, FP32, I1, I64, SCALARS, PointerType, ScalarType, TileType

_MAX_STATIC_BITS = 4096
_MAX_STATIC_ITEMS = 1 << 16

Emit = Callable[[Emitter, Operand, Operand], Value]


# ---- bringing operands together ---------------------------------------------------------------


def meet(
    emit: Emitter,
    left: Operand,
    right: Operand,
    symbol: str,
    *,
    arithmetic: Arithmetic = "plain",
) -> tuple[Value, Value, ScalarType]:
    """Convert two numbers to their common type and shape. Raises: CompileError."""
    left_kind, right_kind = _scalar_type(left, symbol), _scalar_type(right, symbol)
    try:
        kind = computation_type(
            left_kind,
            right_kind,
            left_is_literal=not isinstance(left, Value),
            right_is_literal=not isinstance(right, Value),
            arithmetic=arithmetic,
        )
    except PromotionError as error:
        raise mistake(
            f"`{symbol}` does not take {show_type(left_kind)} and {show_type(right_kind)}: {error}",
            remedy="cast one of them with .to(...)",
        ) from error
    lhs = _as_type(emit, left, kind, right)
    rhs = _as_type(emit, right, kind, lhs)
    lhs, rhs = broadcast(emit, lhs, rhs)
    return lhs, rhs, kind


def _scalar_type(operand: Operand, symbol: str) -> ScalarType:
    if isinstance(operand, Value):
        kind = element(operand)
        if isinstance(kind, ScalarType):
            return kind
        raise mistake(f"`{symbol}` does not take a pointer, got {show(operand)}")
    if isinstance(operand, int | float):
        return type_of_number(operand)
    raise not_a_value(operand, f"a number or a tile for `{symbol}`")


def _as_type(emit: Emitter, operand: Operand, kind: ScalarType, like: Operand = None) -> Value:
    """Return an operand in type `kind`; a number gets the shape of the value `like`."""
    if isinstance(operand, Value):
        return cast(emit, operand, kind)
    if isinstance(operand, int | float):
        return constant(emit, operand, kind, shape(like) if isinstance(like, Value) else ())
    raise not_a_value(operand, "a number")


def common_type(operands: Sequence[Operand], symbol: str) -> ScalarType:
    """Return the common type of several operands: of run-time ones first, then the literals."""
    kinds: dict[bool, ScalarType] = {}
    try:
        for operand in operands:
            literal = not isinstance(operand, Value)
            kind = _scalar_type(operand, symbol)
            previous = kinds.get(literal)
            kinds[literal] = kind if previous is None else computation_type(previous, kind)
        if len(kinds) == 2:
            return computation_type(kinds[False], kinds[True], right_is_literal=True)
    except PromotionError as error:
        raise mistake(f"the operands of `{symbol}` do not meet in one type: {error}") from error
    return next(iter(kinds.values()))


def meet_all(emit: Emitter, operands: Sequence[Operand], symbol: str) -> tuple[Value, ...]:
    """Convert several numbers to their common type and shape. Raises: CompileError."""
    kind = common_type(operands, symbol)
    largest = max(
        (operand for operand in operands if isinstance(operand, Value)),
        key=lambda value: len(shape(value)),
        default=None,
    )
    return broadcast(emit, *(_as_type(emit, operand, kind, largest) for operand in operands))


def _is_pointer(operand: Operand) -> bool:
    return isinstance(operand, Value) and isinstance(element(operand), PointerType)


# ---- arithmetic -------------------------------------------------------------------------------


def add(emit: Emitter, left: Operand, right: Operand) -> Value:
    """Add numbers, or move a pointer."""
    if _is_pointer(right) and not _is_pointer(left):
        left, right = right, left
    if _is_pointer(left):
        return _add_pointer(emit, to_value(emit, left), right)
    lhs, rhs, _ = meet(emit, left, right, "+")
    return emit(arith.Add(lhs, rhs)).out


def _add_pointer(emit: Emitter, pointer: Value, offset: Operand) -> Value:
    if _is_pointer(offset):
        raise mistake("cannot add two pointers", remedy="add an integer offset to a pointer")
    step = to_value(emit, offset, "an integer offset")
    kind = element(step)
    if not isinstance(kind, ScalarType) or not kind.is_int:
        raise mistake(
            f"a pointer is moved by an integer, got {show(step)}",
            remedy="cast the offset with .to(tl.int32) or .to(tl.int64)",
        )
    if not kind.is_signed and kind.bits < I64.bits:
        # Offsets are signed: a wide unsigned one must not turn negative.
        step = cast(emit, step, I64)
    pointer, step = broadcast(emit, pointer, step)
    return emit(arith.AddPtr(pointer, step)).out


def subtract(emit: Emitter, left: Operand, right: Operand) -> Value:
    """Subtract numbers, or move a pointer back."""
    if _is_pointer(left):
        if _is_pointer(right):
            raise mistake(
                "cannot subtract two pointers",
                remedy="cast both to tl.int64, subtract, and divide by the bytes of an element",
            )
        offset: Operand = -right if isinstance(right, int) else None
        if offset is None:
            offset = negate(emit, to_value(emit, right, "an integer offset"))
        return _add_pointer(emit, to_value(emit, left), offset)
    lhs, rhs, _ = meet(emit, left, right, "-")
    return emit(arith.Sub(lhs, rhs)).out


def multiply(emit: Emitter, left: Operand, right: Operand) -> Value:
    """Multiply numbers."""
    lhs, rhs, _ = meet(emit, left, right, "*")
    return emit(arith.Mul(lhs, rhs)).out


def divide(emit: Emitter, left: Operand, right: Operand) -> Value:
    """Divide as floats: the quotient of integers is fp32."""
    lhs, rhs, kind = meet(emit, left, right, "/", arithmetic="division")
    if kind.is_int:
        lhs, rhs = cast(emit, lhs, FP32), cast(emit, rhs, FP32)
    return emit(arith.Div(lhs, rhs)).out


def floor_divide(emit: Emitter, left: Operand, right: Operand) -> Value:
    """Divide integers, truncating towards zero."""
    lhs, rhs, kind = meet(emit, left, right, "//", arithmetic="division")
    if kind.is_float:
        raise mistake(
            f"`//` is for integers, got {show(left)} and {show(right)}",
            remedy="use tl.floor(x / y)",
        )
    return emit(arith.Div(lhs, rhs)).out


def remainder(emit: Emitter, left: Operand, right: Operand) -> Value:
    """Take the remainder with the sign of the dividend."""
    lhs, rhs, _ = meet(emit, left, right, "%", arithmetic="division")
    return emit(arith.Rem(lhs, rhs)).out


def power(emit: Emitter, left: Operand, right: Operand) -> Value:
    """Refuse: `**` exists for constants only."""
    del emit
    raise mistake(
        f"`**` is for constants only, got {show(left)} and {show(right)}",
        remedy="multiply out a small power, or use libdevice.pow or tl.exp2(y * tl.log2(x))",
    )


# ---- bits -------------------------------------------------------------------------------------


def _bitwise(
    emit: Emitter, left: Operand, right: Operand, symbol: str
) -> tuple[Value, Value, ScalarType]:
    lhs, rhs, kind = meet(emit, left, right, symbol)
    if kind.is_float:
        raise mistake(
            f"`{symbol}` is for integers and truth values, got {show(left)} and {show(right)}",
            remedy="to work on the bits of a float, use .to(tl.int32, bitcast=True)",
        )
    return lhs, rhs, kind


def _emit_bitwise(op: Callable[[Value, Value], arith.Binary], symbol: str) -> Emit:
    def emit_op(emit: Emitter, left: Operand, right: Operand) -> Value:
        lhs, rhs, _ = _bitwise(emit, left, right, symbol)
        return emit(op(lhs, rhs)).out

    return emit_op


bit_and = _emit_bitwise(arith.And, "&")
bit_or = _emit_bitwise(arith.Or, "|")
bit_xor = _emit_bitwise(arith.Xor, "^")


def _shifted(
    emit: Emitter, left: Operand, right: Operand, symbol: str
) -> tuple[Value, Value, ScalarType]:
    lhs, rhs, kind = _bitwise(emit, left, right, symbol)
    if isinstance(right, int) and not 0 <= right < kind.bits:
        emit.remark(f"shifting {show(lhs)} by {right} is undefined: it has {kind.bits} bits")
    return lhs, rhs, kind


def shift_left(emit: Emitter, left: Operand, right: Operand) -> Value:
    """Shift the bits of an integer to the left."""
    lhs, rhs, _ = _shifted(emit, left, right, "<<")
    return emit(arith.Shl(lhs, rhs)).out


def shift_right(emit: Emitter, left: Operand, right: Operand) -> Value:
    """Shift right, arithmetically if the left operand is signed, regardless of the common type."""
    lhs, rhs, kind = _shifted(emit, left, right, ">>")
    # A Python number on the left takes its signedness from the right operand.
    decides = element(
        left if isinstance(left, Value) else right if isinstance(right, Value) else lhs
    )
    if not isinstance(decides, ScalarType) or decides.is_signed == kind.is_signed:
        return emit(arith.Shr(lhs, rhs)).out
    if kind.is_bool:
        return emit(arith.Shr(lhs, rhs)).out
    view = SCALARS[f"{'i' if decides.is_signed else 'u'}{kind.bits}"]
    shifted = emit(arith.Shr(bitcast(emit, lhs, view), bitcast(emit, rhs, view))).out
    return bitcast(emit, shifted, kind)


# ---- comparison and logic ---------------------------------------------------------------------


def _emit_compare(predicate: arith.Predicate, symbol: str) -> Emit:
    def emit_op(emit: Emitter, left: Operand, right: Operand) -> Value:
        lhs, rhs, _ = meet(emit, left, right, symbol)
        return emit(arith.Compare(lhs, rhs, predicate)).out

    return emit_op


equal = _emit_compare("eq", "==")
less = _emit_compare("lt", "<")


def truth(emit: Emitter, operand: Operand, symbol: str) -> Value:
    """Return a truth value or a tile of them. Raises: CompileError for other types."""
    value = to_value(emit, operand, f"a truth value for `{symbol}`")
    if element(value) != I1:
        raise mistake(
            f"`{symbol}` takes truth values, got {show(value)}",
            remedy="compare with zero: `x != 0`",
        )
    return value


def logical_and(emit: Emitter, left: Operand, right: Operand) -> Value:
    """And of two truth values, both computed."""
    lhs, rhs = broadcast(emit, truth(emit, left, "and"), truth(emit, right, "and"))
    return emit(arith.And(lhs, rhs)).out


def logical_or(emit: Emitter, left: Operand, right: Operand) -> Value:
    """Or of two truth values, both computed."""
    lhs, rhs = broadcast(emit, truth(emit, left, "or"), truth(emit, right, "or"))
    return emit(arith.Or(lhs, rhs)).out


# ---- unary ------------------------------------------------------------------------------------


def negate(emit: Emitter, operand: Operand) -> Value:
    """Negate a number."""
    value = to_value(emit, operand, "a number")
    if _is_pointer(value):
        raise mistake(f"cannot negate a pointer, got {show(value)}")
    expect_computable(element(value), "`-`")
    return emit(arith.Neg(value)).out


def invert(emit: Emitter, operand: Operand) -> Value:
    """Flip every bit."""
    value = to_value(emit, operand, "an integer")
    kind = element(value)
    if not isinstance(kind, ScalarType) or not kind.is_int:
        raise mistake(f"`~` is for integers and truth values, got {show(value)}")
    extents = value.type.shape if isinstance(value.type, TileType) else ()
    all_bits = -1 if kind.is_signed else (1 << kind.bits) - 1
    return emit(arith.Xor(value, constant(emit, all_bits, kind, extents))).out


def logical_not(emit: Emitter, operand: Operand) -> Value:
    """Negate a truth value."""
    return invert(emit, truth(emit, operand, "not"))


def _plus(emit: Emitter, operand: Operand) -> Value:
    return to_value(emit, operand, "a number")


# ---- constants --------------------------------------------------------------------------------


def _bounded(symbol: str, compute: Callable[[Operand, Operand], Operand]) -> Callable[..., Operand]:
    """Compute on constants; refuse results too large for memory."""

    def compute_bounded(left: Operand, right: Operand) -> Operand:
        if isinstance(left, int) and isinstance(right, int):
            grows = right if symbol == "<<" else left.bit_length() * right
            if symbol in ("<<", "**") and grows > _MAX_STATIC_BITS:
                raise mistake(f"the constant {left} {symbol} {right} is too large")
        if symbol == "*":
            for items, times in ((left, right), (right, left)):
                if isinstance(items, tuple | str) and isinstance(times, int):
                    size = len(items) * times  # pyright: ignore[reportUnknownArgumentType]
                    if size > _MAX_STATIC_ITEMS:
                        raise mistake(f"a repetition of {size} items is too large")
        return compute(left, right)

    return compute_bounded


@dataclass(frozen=True, eq=False)
class BinaryOperator:
    """A binary operator: its symbol, its function on constants, its emission."""

    symbol: str
    compute: Callable[[Operand, Operand], Operand]
    emit: Emit


def _equal(left: Operand, right: Operand) -> bool:
    # A constant such as "bf16" of a manifest is a dtype here. A kernel may compare it with the name.
    if isinstance(left, str) and isinstance(right, ScalarType):
        left, right = right, left
    if isinstance(left, ScalarType) and isinstance(right, str):
        return right in (left.name, show_type(left))
    return left == right


def _not_equal(left: Operand, right: Operand) -> bool:
    return not _equal(left, right)


def _python(name: str) -> Callable[..., Operand]:
    # Python's own functions check their operands, so they are used directly.
    return getattr(operator, name)


def _binary(symbol: str, compute: Callable[..., Operand], emit: Emit) -> BinaryOperator:
    bounded = _bounded(symbol, compute) if symbol in ("<<", "**", "*") else compute
    return BinaryOperator(symbol, bounded, emit)


BINARY: dict[type[ast.operator], BinaryOperator] = {
    ast.Add: _binary("+", _python("add"), add),
    ast.Sub: _binary("-", _python("sub"), subtract),
    ast.Mult: _binary("*", _python("mul"), multiply),
    ast.Div: _binary("/", _python("truediv"), divide),
    ast.FloorDiv: _binary("//", _python("floordiv"), floor_divide),
    ast.Mod: _binary("%", _python("mod"), remainder),
    ast.Pow: _binary("**", _python("pow"), power),
    ast.BitAnd: _binary("&", _python("and_"), bit_and),
    ast.BitOr: _binary("|", _python("or_"), bit_or),
    ast.BitXor: _binary("^", _python("xor"), bit_xor),
    ast.LShift: _binary("<<", _python("lshift"), shift_left),
    ast.RShift: _binary(">>", _python("rshift"), shift_right),
}

COMPARE: dict[type[ast.cmpop], BinaryOperator] = {
    ast.Eq: _binary("==", _equal, equal),
    ast.NotEq: _binary("!=", _not_equal, _emit_compare("ne", "!=")),
    ast.Lt: _binary("<", _python("lt"), less),
    ast.LtE: _binary("<=", _python("le"), _emit_compare("le", "<=")),
    ast.Gt: _binary(">", _python("gt"), _emit_compare("gt", ">")),
    ast.GtE: _binary(">=", _python("ge"), _emit_compare("ge", ">=")),
}


@dataclass(frozen=True, eq=False)
class UnaryOperator:
    """A unary operator: its symbol, its function on a constant, its emission."""

    symbol: str
    compute: Callable[[Operand], Operand]
    emit: Callable[[Emitter, Operand], Value]


UNARY: dict[type[ast.unaryop], UnaryOperator] = {
    ast.USub: UnaryOperator("-", _python("neg"), negate),
    ast.UAdd: UnaryOperator("+", _python("pos"), _plus),
    ast.Invert: UnaryOperator("~", _python("invert"), invert),
    ast.Not: UnaryOperator("not", _python("not_"), logical_not),
}


def binary(emit: Emitter, op: BinaryOperator, left: Operand, right: Operand) -> Operand:
    """Apply an operator: to two constants in Python, else by emitting it."""
    if isinstance(left, Value) or isinstance(right, Value):
        return op.emit(emit, left, right)
    if op.symbol == "|" and (union := class_union(left, right)) is not None:
        return union
    return compute(op.symbol, op.compute, left, right)


def unary(emit: Emitter, op: UnaryOperator, operand: Operand) -> Operand:
    """Apply an operator: to a constant in Python, else by emitting it."""
    if isinstance(operand, Value):
        return op.emit(emit, operand)
    return compute(op.symbol, op.compute, operand)


_ORDINARY = (int, float, str, tuple, type(None))
_AROUND_KERNELS = (Constexpr, External, list, dict)


def compute(symbol: str, function: Callable[..., Operand], *operands: Operand) -> Operand:
    """Compute on constants. Raises: CompileError with Python's message."""
    comparing = symbol in ("==", "!=", "not")
    for operand in operands:
        if isinstance(operand, _AROUND_KERNELS):
            return _compute_around_kernels(symbol, function, *operands)
        if not comparing and not isinstance(operand, _ORDINARY):
            raise not_a_value(operand, f"a number or a tile for `{symbol}`")
    try:
        return function(*operands)
    except (TypeError, ValueError, ArithmeticError) as error:
        shown = " and ".join(show(operand) for operand in operands)
        remedy = ""
        if any(operand is None for operand in operands):
            remedy = (
                "an argument may be None, or a function return nothing: test with `is not None`"
            )
        raise mistake(
            f"cannot compute `{symbol}` of the constants {shown}: {error}", remedy=remedy
        ) from error


def _compute_around_kernels(
    symbol: str, function: Callable[..., Operand], *operands: Operand
) -> Operand:
    plain = [without_constexpr(operand) for operand in operands]
    for operand in plain:
        if isinstance(operand, External):
            raise not_known(operand)
    if symbol == "|" and all(isinstance(operand, dict) for operand in plain):
        left, right = (type_cast("dict[Operand, Operand]", operand) for operand in plain)
        return {**left, **right}
    has_lists = any(isinstance(operand, list) for operand in plain)
    plain = [
        tuple(type_cast("list[Operand]", operand)) if isinstance(operand, list) else operand
        for operand in plain
    ]
    result = compute(symbol, function, *plain)
    if has_lists and is_tuple(result):
        result = list(result)
    return constexpr_like(operands, result)


def select(emit: Emitter, condition: Operand, x: Operand, y: Operand) -> Value:
    """Take `x` where the condition holds, else `y`; all three broadcast."""
    chosen = cast(emit, to_value(emit, condition, "a condition"), I1)
    if _is_pointer(x) and _is_pointer(y):
        lhs, rhs = to_value(emit, x), to_value(emit, y)
        if element(lhs) != element(rhs):
            raise mistake(f"`where` chooses between one type, got {show(lhs)} and {show(rhs)}")
    elif {element(lhs) for lhs in (x, y) if isinstance(lhs, Value)} == {FP8E4B15}:
        # Nothing is computed in it, but elements may be chosen.
        lhs = _as_type(emit, x, FP8E4B15, y)
        rhs = _as_type(emit, y, FP8E4B15, lhs)
    else:
        lhs, rhs, _ = meet(emit, x, y, "where")
    chosen, lhs, rhs = broadcast(emit, chosen, lhs, rhs)
    return emit(arith.Select(chosen, lhs, rhs)).out

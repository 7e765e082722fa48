"""Elementwise arithmetic on scalars and tiles.

Every op here works on scalars, on tiles without a layout and on tiles with one. Operands agree in
shape and layout, so lowering is register by register and interpreting is one NumPy call. The
element type selects the instruction (signed or unsigned division, integer or float minimum), so
there is one op for each idea.

Semantics are Triton's: integer division truncates as C, float `div` may be approximate
(`div.full.f32`) and `div_rn` is correctly rounded, shifts right are arithmetic for signed types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from aotc.ir.core import Op, Value, attribute, operand, operands, result
from aotc.ir.effects import Trait
from aotc.ir.types import (
    I1,
    ElementType,
    PointerType,
    ScalarType,
    TileType,
    Type,
    element_of,
    with_element,
)

Predicate = Literal["eq", "ne", "lt", "le", "gt", "ge"]
Rounding = Literal["rtne", "rtz"]


class Constant(Op, opcode="arith.constant", pure=True, traits=(Trait.SOURCE,)):
    """One value, or the same value in every element of a tile."""

    value: int | float | bool = attribute()
    type: Type = attribute()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        element = element_of(self.type)
        self.expect(isinstance(element, ScalarType), "a constant is not a pointer")
        return (self.type,)


class Elementwise(Op, traits=(Trait.ELEMENTWISE,)):
    """Base of ops on corresponding elements of their operands."""

    def element(self) -> ElementType:
        """Return the element type of the result."""
        return element_of(self.operands[0].type)

    def infer(self) -> Sequence[Type]:
        types = [value.type for value in self.operands]
        first = types[0]
        for other in types:
            if other is not first and not same_place(first, other):
                self.error(f"operands {first} and {other} differ in shape or layout")
        return (with_element(first, self.element()),)


def same_place(left: Type, right: Type) -> bool:
    """Return whether values of two types are both scalars, or tiles of one shape and layout."""
    if isinstance(left, TileType) and isinstance(right, TileType):
        return left.shape == right.shape and left.layout == right.layout
    return not isinstance(left, TileType) and not isinstance(right, TileType)


# ---- binary -----------------------------------------------------------------------------------


class Binary(Elementwise):
    """Base of ops on two operands of one type, with a result of it."""

    lhs: Value = operand()
    rhs: Value = operand()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        left, right = self.lhs.type, self.rhs.type
        if left is not right and left != right:
            self.error(f"operands are {left} and {right}")
        return (left,)


class Add(Binary, opcode="arith.add", pure=True):
    """Sum; integers wrap."""


class Sub(Binary, opcode="arith.sub", pure=True):
    """Difference; integers wrap."""


class Mul(Binary, opcode="arith.mul", pure=True):
    """Product; integers wrap."""


class Div(Binary, opcode="arith.div", pure=True, traits=(Trait.COSTLY,)):
    """Quotient: truncating for integers, possibly approximate (2 ulp) for fp32."""


class DivRn(Binary, opcode="arith.div_rn", pure=True, traits=(Trait.COSTLY,)):
    """Correctly rounded float quotient."""


class Rem(Binary, opcode="arith.rem", pure=True, traits=(Trait.COSTLY,)):
    """Remainder with the sign of the dividend, as C's `%` and `fmod`."""


class MulHi(Binary, opcode="arith.mulhi", pure=True):
    """High half of the full integer product."""


class And(Binary, opcode="arith.and", pure=True):
    """Bitwise and."""


class Or(Binary, opcode="arith.or", pure=True):
    """Bitwise or."""


class Xor(Binary, opcode="arith.xor", pure=True):
    """Bitwise exclusive or."""


class Shl(Binary, opcode="arith.shl", pure=True):
    """Shift left; undefined when the amount reaches the width."""


class Shr(Binary, opcode="arith.shr", pure=True):
    """Shift right: arithmetic for signed elements, logical for unsigned ones."""


class MinMax(Binary):
    """Base of minimum and maximum; `propagate_nan` says whether a NaN operand wins."""

    propagate_nan: bool = attribute(default=False)


class Min(MinMax, opcode="arith.min", pure=True):
    """Smaller operand."""


class Max(MinMax, opcode="arith.max", pure=True):
    """Larger operand.

    With `is_reference` it is a softmax shift: the kernel stores the same, but for roundings, if
    elements are less by numbers up to 15, each by another number each time.
    """

    is_reference: bool = attribute(default=False)


class Compare(Binary, opcode="arith.compare", pure=True):
    """Truth of `lhs predicate rhs`; ordered for floats, but `ne` is unordered."""

    predicate: Predicate = attribute()

    def infer(self) -> Sequence[Type]:
        (kind,) = super().infer()
        return (with_element(kind, I1),)


# ---- unary ------------------------------------------------------------------------------------


class Unary(Elementwise):
    """Base of ops on one operand with a result of its type."""

    value: Value = operand()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        return (self.value.type,)


class Neg(Unary, opcode="arith.neg", pure=True):
    """Negation; of an integer modulo its width."""


class Abs(Unary, opcode="arith.abs", pure=True):
    """Absolute value."""


class Exp(Unary, opcode="arith.exp", pure=True, traits=(Trait.COSTLY,)):
    """e to the power, through `ex2.approx.ftz`."""


class Exp2(Unary, opcode="arith.exp2", pure=True, traits=(Trait.COSTLY,)):
    """2 to the power, `ex2.approx.ftz`."""


class Log(Unary, opcode="arith.log", pure=True, traits=(Trait.COSTLY,)):
    """Natural logarithm, as libdevice has it."""


class Log2(Unary, opcode="arith.log2", pure=True, traits=(Trait.COSTLY,)):
    """Logarithm to base 2, as libdevice has it."""


class Sqrt(Unary, opcode="arith.sqrt", pure=True, traits=(Trait.COSTLY,)):
    """Square root, `sqrt.approx`."""


class SqrtRn(Unary, opcode="arith.sqrt_rn", pure=True, traits=(Trait.COSTLY,)):
    """Correctly rounded square root."""


class Rsqrt(Unary, opcode="arith.rsqrt", pure=True, traits=(Trait.COSTLY,)):
    """Reciprocal square root, `rsqrt.approx`."""


class Sin(Unary, opcode="arith.sin", pure=True, traits=(Trait.COSTLY,)):
    """Sine."""


class Cos(Unary, opcode="arith.cos", pure=True, traits=(Trait.COSTLY,)):
    """Cosine."""


class Erf(Unary, opcode="arith.erf", pure=True, traits=(Trait.COSTLY,)):
    """Error function."""


class Floor(Unary, opcode="arith.floor", pure=True):
    """Largest integer not above, as a float."""


class Ceil(Unary, opcode="arith.ceil", pure=True):
    """Smallest integer not below, as a float."""


# ---- the rest ---------------------------------------------------------------------------------


class Fma(Elementwise, opcode="arith.fma", pure=True):
    """`lhs * rhs + addend` with one rounding."""

    lhs: Value = operand()
    rhs: Value = operand()
    addend: Value = operand()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        left, right, addend = self.lhs.type, self.rhs.type, self.addend.type
        if left != right or left != addend:
            self.error(f"operands are {left}, {right} and {addend}")
        return (left,)


class Select(Elementwise, opcode="arith.select", pure=True):
    """`if_true` where the condition holds, else `if_false`."""

    condition: Value = operand()
    if_true: Value = operand()
    if_false: Value = operand()
    out: Value = result()

    def element(self) -> ElementType:
        condition = element_of(self.condition.type)
        left, right = element_of(self.if_true.type), element_of(self.if_false.type)
        if condition != I1:
            self.error(f"the condition has elements {condition}, not i1")
        if left != right:
            self.error(f"the arms have elements {left} and {right}")
        return left


class Cast(Elementwise, opcode="arith.cast", pure=True):
    """The value in another scalar type.

    Integers wrap or extend by the source's sign; a float goes to an integer towards zero; to i1
    is "is not zero". `rounding` is for a float to a narrower float.
    """

    value: Value = operand()
    dtype: ScalarType = attribute()
    rounding: Rounding = attribute(default="rtne")
    out: Value = result()

    def element(self) -> ElementType:
        source = element_of(self.value.type)
        self.expect(isinstance(source, ScalarType), "a pointer is bitcast, not cast")
        return self.dtype


class Bitcast(Elementwise, opcode="arith.bitcast", pure=True):
    """The same bits in another type of the same width; a pointer is 64 bits."""

    value: Value = operand()
    dtype: ElementType = attribute()
    out: Value = result()

    def element(self) -> ElementType:
        source = element_of(self.value.type)
        self.expect(
            source.bits == self.dtype.bits or (source.bits <= 8 and self.dtype.bits <= 8),
            f"{source} and {self.dtype} differ in width",
        )
        return self.dtype


class AddPtr(Elementwise, opcode="arith.addptr", pure=True):
    """The pointer moved by `offset` elements of its pointee."""

    pointer: Value = operand()
    offset: Value = operand()
    out: Value = result()

    def element(self) -> ElementType:
        pointer, offset = element_of(self.pointer.type), element_of(self.offset.type)
        self.expect(isinstance(pointer, PointerType), f"{pointer} is not a pointer")
        self.expect(isinstance(offset, ScalarType) and offset.is_int, f"{offset} is not an integer")
        return pointer


class Libdevice(Elementwise, opcode="arith.libdevice", pure=True, traits=(Trait.COSTLY,)):
    """A function of NVIDIA's libdevice, such as `__nv_tanhf`, on every element."""

    symbol: str = attribute()
    dtype: ScalarType = attribute()
    arguments: Sequence[Value] = operands()
    out: Value = result()

    def element(self) -> ElementType:
        return self.dtype

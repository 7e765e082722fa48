"""Encode expressions for archives: postfix bytecode on a stack of 64-bit integers.

One evaluator in C runs the grids, guards, sizes and tensor-map fields of every kernel at launch.
`run` is its reference. The opcodes are specified in `docs/reference/archive-format.md`, section 6.

Invariant: `run(encode(e, params).code, arguments)` gives the same value or failure as `evaluate`
for `e`; an expression has exactly one encoding.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from aotc.ir.expression import (
    INT64_MAX,
    INT64_MIN,
    Binary,
    Expression,
    ExpressionError,
    Extent,
    Integer,
    Name,
    Unary,
    compute,
)

MAX_CODE_BYTES = 4096
MAX_STACK = 32


class Opcode(IntEnum):
    """Name the bytecode's instructions; the numbers are the archive format's."""

    CONST8 = 0x01
    CONST32 = 0x02
    CONST64 = 0x03
    ARG = 0x04
    SHAPE = 0x05
    STRIDE = 0x06
    ADD = 0x10
    SUB = 0x11
    MUL = 0x12
    FLOORDIV = 0x13
    MOD = 0x14
    MIN = 0x15
    MAX = 0x16
    CDIV = 0x17
    NEG = 0x18
    EQ = 0x20
    NE = 0x21
    LT = 0x22
    LE = 0x23
    GT = 0x24
    GE = 0x25
    AND = 0x28
    OR = 0x29
    NOT = 0x2A


_BINARY = {
    "+": Opcode.ADD,
    "-": Opcode.SUB,
    "*": Opcode.MUL,
    "//": Opcode.FLOORDIV,
    "%": Opcode.MOD,
    "min": Opcode.MIN,
    "max": Opcode.MAX,
    "cdiv": Opcode.CDIV,
    "==": Opcode.EQ,
    "!=": Opcode.NE,
    "<": Opcode.LT,
    "<=": Opcode.LE,
    ">": Opcode.GT,
    ">=": Opcode.GE,
    "and": Opcode.AND,
    "or": Opcode.OR,
}
_UNARY = {"-": Opcode.NEG, "not": Opcode.NOT}
_OPERATORS: dict[Opcode, Unary | Binary] = {
    **{opcode: Binary(op, Name("a"), Name("b")) for op, opcode in _BINARY.items()},
    **{opcode: Unary(op, Name("a")) for op, opcode in _UNARY.items()},
}


@dataclass(frozen=True, slots=True)
class Code:
    """The bytecode of an expression, and its stack depth."""

    code: bytes
    stack_depth: int


def _constant(value: int) -> bytes:
    if -(1 << 7) <= value < 1 << 7:
        return struct.pack("<Bb", Opcode.CONST8, value)
    if -(1 << 31) <= value < 1 << 31:
        return struct.pack("<Bi", Opcode.CONST32, value)
    return struct.pack("<Bq", Opcode.CONST64, value)


def _emit(node: Expression, params: Mapping[str, int], out: bytearray) -> int:
    """Append the code of `node` to `out` and return its stack depth."""
    match node:
        case Integer(value):
            out += _constant(value)
        case Name(name, col) | Extent(name, col=col) if name not in params:
            raise ExpressionError(f"`{name}` is not an argument of the launch", col)
        case Name(name):
            out += struct.pack("<BH", Opcode.ARG, params[name])
        case Extent(name, kind, dim):
            opcode = Opcode.SHAPE if kind == "shape" else Opcode.STRIDE
            out += struct.pack("<BHB", opcode, params[name], dim)
        case Unary(op, operand):
            slots = _emit(operand, params, out)
            out.append(_UNARY[op])
            return slots
        case Binary(op, lhs, rhs):
            slots = max(_emit(lhs, params, out), 1 + _emit(rhs, params, out))
            out.append(_BINARY[op])
            return slots
    return 1


def encode(root: Expression, params: Mapping[str, int]) -> Code:
    """Compile to bytecode; `params` maps the launch arguments to their indices.

    Raises: `ExpressionError` for a name that is no argument, or an expression beyond the format's
    limits.
    """
    out = bytearray()
    slots = _emit(root, params, out)
    if slots > MAX_STACK:
        raise ExpressionError(f"needs {slots} intermediate values, at most {MAX_STACK} are kept")
    if len(out) > MAX_CODE_BYTES:
        raise ExpressionError(f"compiles to {len(out)} bytes, at most {MAX_CODE_BYTES} are kept")
    return Code(bytes(out), slots)


@dataclass(frozen=True, slots=True)
class TensorArgument:
    """A tensor as passed to a launch: address, sizes, strides in elements."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


_OPERANDS = {
    Opcode.CONST8: struct.Struct("<b"),
    Opcode.CONST32: struct.Struct("<i"),
    Opcode.CONST64: struct.Struct("<q"),
    Opcode.ARG: struct.Struct("<H"),
    Opcode.SHAPE: struct.Struct("<HB"),
    Opcode.STRIDE: struct.Struct("<HB"),
}


def _load(opcode: Opcode, operands: tuple[int, ...], args: Sequence[int | TensorArgument]) -> int:
    """Return the value pushed by an instruction without stack operands."""
    if opcode in (Opcode.CONST8, Opcode.CONST32, Opcode.CONST64):
        return operands[0]
    arg = args[operands[0]]
    if opcode is Opcode.ARG:
        return arg if isinstance(arg, int) else arg.address
    if isinstance(arg, int):
        raise ExpressionError(f"argument {operands[0]} is not a tensor")
    return (arg.shape if opcode is Opcode.SHAPE else arg.strides)[operands[1]]


def run(code: bytes, arguments: Sequence[int | TensorArgument]) -> int:
    """Run bytecode of `encode`: the reference for the evaluator in C.

    Raises: `ExpressionError` for an overflow or a division by zero; `ValueError` for an unknown
    opcode and `IndexError` for code that `encode` cannot write.
    """
    stack: list[int] = []
    position = 0
    while position < len(code):
        opcode = Opcode(code[position])
        position += 1
        operator = _OPERATORS.get(opcode)
        if operator is not None:
            rhs = stack.pop()
            lhs = stack.pop() if isinstance(operator, Binary) else 0
            stack.append(compute(operator, lhs, rhs))
        else:
            layout = _OPERANDS[opcode]
            value = _load(opcode, layout.unpack_from(code, position), arguments)
            if not INT64_MIN <= value <= INT64_MAX:
                raise ExpressionError("an argument does not fit 64 bits")
            stack.append(value)
            position += layout.size
    (result,) = stack
    return result

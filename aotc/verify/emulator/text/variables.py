"""Variable declarations in PTX text: types, spaces and initial values."""

from __future__ import annotations

import struct

from aotc.verify.emulator.syntax import Immediate
from aotc.verify.emulator.text.program import Variable
from aotc.verify.emulator.text.tokens import Cursor

TYPE_BITS = {
    **{f".{kind}{bits}": bits for kind in "bsu" for bits in (8, 16, 32, 64)},
    **{f".f{bits}": bits for bits in (16, 32, 64)},
    ".f16x2": 32,
    ".pred": 1,
    ".b128": 128,
}
SPACES = (".shared", ".global", ".const", ".local")


def parse_type_bits(cursor: Cursor) -> int:
    """Parse a type and return its width."""
    token = cursor.next()
    if token.text not in TYPE_BITS:
        raise cursor.error(f"expected a type, got {token.text!r}", token)
    return TYPE_BITS[token.text]


def parse_variable(cursor: Cursor, space: str) -> Variable:
    """Parse a declaration, after the word that names its space."""
    align = cursor.integer("an alignment") if cursor.take(".align") else 1
    bits = parse_type_bits(cursor)
    name = cursor.word("a variable's name")
    count = 1
    while cursor.take("["):
        count *= 0 if cursor.peek() == "]" else cursor.integer("an extent")
        cursor.expect("]")
    data = _initializer(cursor, bits // 8) if cursor.take("=") else b""
    cursor.expect(";")
    return Variable(name, space, count * bits // 8, max(align, bits // 8), data)


def _initializer(cursor: Cursor, size_bytes: int) -> bytes:
    values: list[Immediate] = []
    if cursor.take("{"):
        while not cursor.take("}"):
            values.append(parse_constant(cursor))
            cursor.take(",")
    else:
        values.append(parse_constant(cursor))
    mask = (1 << 8 * size_bytes) - 1
    return b"".join((value.value & mask).to_bytes(size_bytes, "little") for value in values)


def parse_constant(cursor: Cursor) -> Immediate:
    """Parse a constant: an integer, or a float as its bits.

    A float is `0f…` or `0d…` with its bits, or a decimal number of 64 bits.
    """
    sign = -1 if cursor.peek() == "-" else 1
    if cursor.peek() in ("-", "+"):
        cursor.next()
    token = cursor.token
    kind = token.text[:2].lower()
    if token.kind == "number" and kind in ("0f", "0d"):
        cursor.next()
        bits = 32 if kind == "0f" else 64
        sign_bit = 1 << bits - 1 if sign < 0 else 0
        return Immediate(int("0x" + token.text[2:], 0) ^ sign_bit, bits)
    if token.kind == "number" and "." in token.text:
        cursor.next()
        (bits,) = struct.unpack("<Q", struct.pack("<d", sign * float(token.text)))
        return Immediate(bits, 64)
    return Immediate(sign * cursor.integer("a constant"))

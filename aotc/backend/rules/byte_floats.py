"""Integers of 8 bits as floats, without an instruction that converts: bytes become mantissas.

A float of the binade whose last bit counts 1 has an integer in its mantissa. So a byte that is put
there, by one permutation of the bytes of a word, is itself plus a constant, which a subtraction
takes away exactly. Conversions of integers run at a quarter of the rate of these instructions, or
less. What is converted are bytes that are known to lie in words, as those that are loaded do.

Source: Kim et al., "Who Says Elephants Can't Run", 2022, for halves of unsigned bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aotc.backend import nvvm_convert
from aotc.backend.emitter import Emitter
from aotc.backend.llvm_types import constant
from aotc.ir.types import BF16, FP16, FP32, I8, U8, ScalarType

_SIGNS = 0x80808080  # as unsigned, a signed byte with its sign flipped is 128 more


def convert_bytes(
    emit: Emitter, values: Sequence[str], source: ScalarType, target: ScalarType
) -> list[str] | None:
    """Return 8-bit integers as floats, or None where that is better done one by one."""
    convert = _CONVERSIONS.get((source, target))
    if convert is None or len(values) % 2 or any(value not in emit.parts for value in values):
        return None
    return convert(emit, values)


def _to_half(emit: Emitter, values: Sequence[str], bias: int) -> list[str]:
    """Return halves: 1024 and more count single units."""

    def pair(low: str, high: str) -> tuple[str, str]:
        numbers = _mantissas(emit, low, high, 0x64, _SIGNS if bias else 0)
        vector = emit.value(f"bitcast i32 {numbers} to <2 x half>")
        offset = f"half {constant(float(1024 + bias), FP16)}"
        moved = emit.value(f"fsub <2 x half> {vector}, <{offset}, {offset}>")
        return _elements(emit, moved, "half")

    return _in_pairs(values, pair)


def _signed_to_half(emit: Emitter, values: Sequence[str]) -> list[str]:
    return _to_half(emit, values, 128)


def _unsigned_to_half(emit: Emitter, values: Sequence[str]) -> list[str]:
    return _to_half(emit, values, 0)


def _signed_to_bfloat(emit: Emitter, values: Sequence[str]) -> list[str]:
    """Return bfloats: from 128 to 255 they count single units, and seven bits are all they have.

    The eighth, which counts -128, decides whether 128 or 256 is taken away.
    """

    def pair(low: str, high: str) -> tuple[str, str]:
        numbers = _mantissas(emit, low, high, 0x43, 0)
        low_bits = emit.value(f"and i32 {numbers}, {_signed(0xFF7FFF7F)}")
        sign_bits = emit.value(f"and i32 {numbers}, {_signed(0xFF80FF80)}")
        operands = [
            ("<2 x bfloat>", emit.value(f"bitcast i32 {bits} to <2 x bfloat>"))
            for bits in (sign_bits, low_bits)
        ]
        minus_one = "<bfloat {0}, bfloat {0}>".format(constant(-1.0, BF16))
        operands.insert(1, ("<2 x bfloat>", minus_one))
        return _elements(emit, emit.call("<2 x bfloat>", "llvm.fma.v2bf16", operands), "bfloat")

    return _in_pairs(values, pair)


def _signed_to_single(emit: Emitter, values: Sequence[str]) -> list[str]:
    """Return singles: 2^23 and more count single units."""
    magic = 0x4B000000
    done: list[str] = []
    for value in values:
        word, index = emit.parts[value]
        flipped = emit.value(f"xor i32 {word}, {_signed(_SIGNS)}")
        bits = nvvm_convert.permute_bytes(emit, flipped, str(magic), 0x7650 | index)
        number = emit.value(f"bitcast i32 {bits} to float")
        done.append(emit.value(f"fsub float {number}, {constant(float((1 << 23) + 128), FP32)}"))
    return done


def _mantissas(emit: Emitter, low: str, high: str, exponent: int, flip: int) -> str:
    """Return a word of two 16-bit numbers: bytes `low` and `high` below bytes of `exponent`."""
    (word, first), (other, second) = emit.parts[low], emit.parts[high]
    if flip:
        word, other = (emit.value(f"xor i32 {each}, {_signed(flip)}") for each in (word, other))
    if word == other:
        exponents = str(exponent * 0x01010101)
        return nvvm_convert.permute_bytes(emit, word, exponents, 0x4040 | first | second << 8)
    both = nvvm_convert.permute_bytes(emit, word, other, 0x4040 | first | (4 + second) << 8)
    alone = emit.value(f"and i32 {both}, {0x00FF00FF}")
    return emit.value(f"or i32 {alone}, {exponent * 0x01000100}")


def _in_pairs(values: Sequence[str], pair: Callable[[str, str], tuple[str, str]]) -> list[str]:
    done: list[str] = []
    for low, high in zip(values[::2], values[1::2], strict=True):
        done += pair(low, high)
    return done


def _elements(emit: Emitter, vector: str, kind: str) -> tuple[str, str]:
    low, high = (
        emit.value(f"extractelement <2 x {kind}> {vector}, i32 {index}") for index in (0, 1)
    )
    return low, high


def _signed(bits: int) -> int:
    """Return 32 bits as LLVM writes an i32."""
    return bits - (1 << 32) if bits >> 31 else bits


_CONVERSIONS: dict[tuple[ScalarType, ScalarType], Callable[[Emitter, Sequence[str]], list[str]]] = {
    (I8, FP16): _signed_to_half,
    (U8, FP16): _unsigned_to_half,
    (I8, BF16): _signed_to_bfloat,
    (I8, FP32): _signed_to_single,
}

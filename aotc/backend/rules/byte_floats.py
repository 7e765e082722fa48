"""Convert 8-bit integers to floats without conversion instructions: bytes become mantissas.

Where the last mantissa bit is worth 1, the mantissa of a float is an integer. So a byte placed
there by a byte permutation of a word is its value plus a constant, removed exactly by a
subtraction. For two 16-bit floats this takes fewer instructions than two conversions and their
packing. It applies to bytes known to be parts of words, such as loaded ones.

Source: Kim et al., "Who Says Elephants Can't Run", 2022, for halves of unsigned bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aotc.backend import nvvm_convert
from aotc.backend.emitter import Emitter
from aotc.backend.llvm_types import constant
from aotc.backend.packing import in_pairs, vector_elements
from aotc.ir.types import BF16, FP16, I8, U8, ScalarType

_SIGNS = 0x80808080  # with its sign bit flipped, a signed byte is 128 more, as unsigned


def convert_bytes(
    emit: Emitter, values: Sequence[str], source: ScalarType, target: ScalarType
) -> list[str] | None:
    """Convert 8-bit integers to floats, or return None where single conversions are better."""
    convert = _CONVERSIONS.get((source, target))
    if convert is None or len(values) % 2 or any(value not in emit.parts for value in values):
        return None
    return convert(emit, values)


def _to_half(emit: Emitter, values: Sequence[str], bias: int) -> list[str]:
    """Convert to halves; their last bit is worth 1 from 1024 on."""

    def pair(low: str, high: str) -> tuple[str, str]:
        numbers = _mantissas(emit, low, high, 0x64, _SIGNS if bias else 0)
        vector = emit.value(f"bitcast i32 {numbers} to <2 x half>")
        offset = f"half {constant(float(1024 + bias), FP16)}"
        difference = emit.value(f"fsub <2 x half> {vector}, <{offset}, {offset}>")
        return vector_elements(emit, difference, "<2 x half>")

    return in_pairs(values, pair)


def _signed_to_half(emit: Emitter, values: Sequence[str]) -> list[str]:
    return _to_half(emit, values, 128)


def _unsigned_to_half(emit: Emitter, values: Sequence[str]) -> list[str]:
    return _to_half(emit, values, 0)


def _signed_to_bfloat(emit: Emitter, values: Sequence[str]) -> list[str]:
    """Convert to bfloats: from 128 to 255 the last bit is worth 1, and the mantissa has seven bits.

    The eighth bit, worth -128, decides whether 128 or 256 is subtracted.
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
        scaled = emit.call("<2 x bfloat>", "llvm.fma.v2bf16", operands)
        return vector_elements(emit, scaled, "<2 x bfloat>")

    return in_pairs(values, pair)


def _mantissas(emit: Emitter, low: str, high: str, exponent: int, flip: int) -> str:
    """Return a word of two 16-bit numbers: bytes `low` and `high` below bytes of `exponent`."""
    (word, first), (other, second) = emit.parts[low], emit.parts[high]
    if flip:
        word, other = (emit.value(f"xor i32 {bits}, {_signed(flip)}") for bits in (word, other))
    if word == other:
        exponents = str(exponent * 0x01010101)
        return nvvm_convert.permute_bytes(emit, word, exponents, 0x4040 | first | second << 8)
    pair = nvvm_convert.permute_bytes(emit, word, other, 0x4040 | first | (4 + second) << 8)
    alone = emit.value(f"and i32 {pair}, {0x00FF00FF}")
    return emit.value(f"or i32 {alone}, {exponent * 0x01000100}")


def _signed(bits: int) -> int:
    """Return 32 bits as LLVM writes an i32."""
    return bits - (1 << 32) if bits >> 31 else bits


_CONVERSIONS: dict[tuple[ScalarType, ScalarType], Callable[[Emitter, Sequence[str]], list[str]]] = {
    (I8, FP16): _signed_to_half,
    (U8, FP16): _unsigned_to_half,
    (I8, BF16): _signed_to_bfloat,
}

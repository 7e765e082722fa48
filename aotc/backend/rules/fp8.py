"""fp8 conversions in integer arithmetic, for targets and roundings without an instruction.

The result equals `cvt.rn.satfinite` bit for bit: large numbers and infinities become the largest
finite one, and a NaN becomes 0x7f, without a sign.
"""

from __future__ import annotations

from dataclasses import dataclass

from aotc.backend.emitter import Emitter
from aotc.ir.dialects.arith import Rounding
from aotc.ir.types import FP8E4NV, ScalarType

_SINGLE_BIAS = 127
_SINGLE_MANTISSA = 23


@dataclass(frozen=True, slots=True)
class _Format:
    bias: int
    mantissa: int
    largest: int  # bits of the largest finite number

    @property
    def smallest_normal_exponent(self) -> int:
        return 1 - self.bias

    @property
    def quantum_exponent(self) -> int:
        """Exponent of the smallest subnormal number."""
        return self.smallest_normal_exponent - self.mantissa


_FORMATS = {"fp8e4nv": _Format(7, 3, 0x7E), "fp8e5": _Format(15, 2, 0x7B)}


def fp8_to_half(emit: Emitter, value: str, source: ScalarType) -> str:
    """Return the half equal to the fp8 number with the bits of the i8 `value`."""
    wide = emit.value(f"zext i8 {value} to i16")
    if source != FP8E4NV:
        # e5m2 is a half without its low byte.
        return _as_half(emit, emit.value(f"shl i16 {wide}, 8"))
    magnitude = emit.value(f"and i16 {wide}, 127")
    sign = emit.value(f"shl i16 {emit.value(f'and i16 {wide}, 128')}, 8")
    shifted = emit.value(f"shl i16 {magnitude}, 7")
    # With a half's bias the exponent is 8 too small; the multiplication is exact.
    scaled = emit.value(f"fmul half {_as_half(emit, shifted)}, 0xH5C00")
    bits = emit.value(f"bitcast half {scaled} to i16")
    is_nan = emit.value(f"icmp eq i16 {magnitude}, 127")
    bits = emit.value(f"select i1 {is_nan}, i16 32767, i16 {bits}")
    return _as_half(emit, emit.value(f"or i16 {bits}, {sign}"))


def _as_half(emit: Emitter, bits: str) -> str:
    return emit.value(f"bitcast i16 {bits} to half")


def single_to_fp8(emit: Emitter, value: str, target: ScalarType, rounding: Rounding) -> str:
    """Return the bits, an i8, of a float rounded to fp8 and saturated."""
    form = _FORMATS[target.name]
    bits = emit.value(f"bitcast float {value} to i32")
    magnitude = emit.value(f"and i32 {bits}, 2147483647")
    normal = _normal_bits(emit, magnitude, form, rounding)
    subnormal = _subnormal_bits(emit, magnitude, form, rounding)
    first_normal = (_SINGLE_BIAS + form.smallest_normal_exponent) << _SINGLE_MANTISSA
    is_subnormal = emit.value(f"icmp ult i32 {magnitude}, {first_normal}")
    number = emit.value(f"select i1 {is_subnormal}, i32 {subnormal}, i32 {normal}")
    sign = emit.value(f"and i32 {emit.value(f'lshr i32 {bits}, 24')}, 128")
    number = emit.value(f"or i32 {number}, {sign}")
    is_nan = emit.value(f"icmp ugt i32 {magnitude}, {0xFF << _SINGLE_MANTISSA}")
    number = emit.value(f"select i1 {is_nan}, i32 127, i32 {number}")
    return emit.value(f"trunc i32 {number} to i8")


def _normal_bits(emit: Emitter, magnitude: str, form: _Format, rounding: Rounding) -> str:
    """Return exponent and mantissa of a normal number in the format, saturating."""
    drop = _SINGLE_MANTISSA - form.mantissa
    rounded = magnitude
    if rounding == "rtne":
        # Half a unit minus one, plus the lowest remaining bit: ties go to even.
        odd = emit.value(f"and i32 {emit.value(f'lshr i32 {magnitude}, {drop}')}, 1")
        half = emit.value(f"add i32 {magnitude}, {(1 << (drop - 1)) - 1}")
        rounded = emit.value(f"add i32 {half}, {odd}")
    shifted = emit.value(f"lshr i32 {rounded}, {drop}")
    rebiased = emit.value(f"sub i32 {shifted}, {(_SINGLE_BIAS - form.bias) << form.mantissa}")
    return emit.call("i32", "llvm.smin.i32", [("i32", rebiased), ("i32", str(form.largest))])


def _subnormal_bits(emit: Emitter, magnitude: str, form: _Format, rounding: Rounding) -> str:
    """Round a small number to a multiple of the smallest subnormal."""
    number = emit.value(f"bitcast i32 {magnitude} to float")
    if rounding == "rtz":
        scale = (_SINGLE_BIAS - form.quantum_exponent) << _SINGLE_MANTISSA
        factor = emit.value(f"bitcast i32 {scale} to float")
        scaled = emit.value(f"fmul float {number}, {factor}")
        return emit.value(f"fptoui float {scaled} to i32")
    # Adding a number with a last bit worth one quantum rounds to a multiple of the quantum.
    magic = (_SINGLE_BIAS + _SINGLE_MANTISSA + form.quantum_exponent) << _SINGLE_MANTISSA
    anchor = emit.value(f"bitcast i32 {magic} to float")
    total = emit.value(f"fadd float {number}, {anchor}")
    return emit.value(f"sub i32 {emit.value(f'bitcast float {total} to i32')}, {magic}")

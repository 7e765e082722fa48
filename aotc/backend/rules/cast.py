"""Rules for conversions between scalar types.

Floats convert through fp32, exact for every narrower type, in pairs where the hardware converts
pairs. fp64 reaches a narrow type through fp32 rounded to odd: its sticky bit keeps the second
rounding correct. Conversion to fp8 saturates and rounds once; targets without the instruction do it
in integer arithmetic, with bit-identical results.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from aotc.backend import nvvm_convert
from aotc.backend.emitter import Emitter
from aotc.backend.integers import Component
from aotc.backend.llvm_types import constant, llvm_type
from aotc.backend.lower import Lowering, Results, lowers
from aotc.backend.packing import in_pairs, vector_elements, word_elements
from aotc.backend.rules.byte_floats import convert_bytes
from aotc.backend.rules.fp8 import fp8_to_half, single_to_fp8
from aotc.ir.dialects import arith
from aotc.ir.dialects.arith import Rounding
from aotc.ir.types import BF16, FP8E4NV, FP8E5, FP16, FP32, FP64, ScalarType, element_of
from aotc.target import Feature

_FP8_NAMES = {FP8E4NV.name: "e4m3", FP8E5.name: "e5m2"}
_BEYOND_FP32 = 1 << 24  # from here on fp32 rounds integers
_PAIR_ROUNDING: dict[Rounding, str] = {"rtne": "rn", "rtz": "rz"}


@lowers(arith.Cast)
def lower_cast(ctx: Lowering, op: arith.Cast) -> Results:
    """Lower a conversion between scalar types."""
    source, target = element_of(op.value.type), op.dtype
    if not isinstance(source, ScalarType):
        op.error("converts a pointer")
    values = ctx.raw(op.value)
    if source == target:
        return [values]
    if source.is_float and target.is_float:
        operands = ctx.registers(op.value)
        return [tuple(convert_registers(ctx, operands, source, target, op.rounding))]
    if target.is_bool:
        return [tuple(_is_not_zero(ctx, value, source) for value in ctx.registers(op.value))]
    if source.is_float:
        return [tuple(_float_to_int(ctx, ctx.registers(op.value), source, target))]
    if target.is_float:
        converted = ctx.fields.to_floats(values, source, target)
        if converted is not None:
            return [tuple(converted)]
        operands = ctx.registers(op.value)
        return [tuple(_int_to_float(ctx, operands, source, target, op.rounding))]
    return [tuple(_resize(ctx, value, source, target) for value in values)]


def _resize(ctx: Lowering, value: Component, source: ScalarType, target: ScalarType) -> Component:
    resized = ctx.ints.extend(value, source.bits, target.bits, signed=source.is_signed)
    (before, _), (after, _) = ctx.ints.split(value), ctx.ints.split(resized)
    ctx.fields.resize(after, before, target.bits)
    return resized


def _is_not_zero(ctx: Lowering, value: str, source: ScalarType) -> str:
    if source.is_int:
        return ctx.emit.value(f"icmp ne {llvm_type(source)} {value}, 0")
    if source.bits < 32:
        value, source = convert_registers(ctx, [value], source, FP32)[0], FP32
    zero = constant(0.0, source)
    return ctx.emit.value(f"fcmp une {llvm_type(source)} {value}, {zero}")


def _float_to_int(
    ctx: Lowering, values: Sequence[str], source: ScalarType, target: ScalarType
) -> list[str]:
    if source.bits < 32:
        values, source = convert_registers(ctx, values, source, FP32), FP32
    opcode = "fptosi" if target.is_signed else "fptoui"
    kinds = f"{llvm_type(source)} {{}} to {llvm_type(target)}"
    return [
        _saturated(value, target) or ctx.emit.value(f"{opcode} {kinds.format(value)}")
        for value in values
    ]


def _saturated(value: str, target: ScalarType) -> str:
    """Return the hardware's result for a constant beyond an integer's range, else "".

    To LLVM it is poison, and a register of it is never written.
    """
    if not value.startswith("0x"):
        return ""
    (number,) = struct.unpack(">d", bytes.fromhex(value[2:]))
    low = -(1 << target.bits - 1) if target.is_signed else 0
    high = low + (1 << target.bits) - 1
    if low - 1 < number < high + 1:
        return ""
    return str(0 if math.isnan(number) else low if number < 0 else high)


def _int_to_float(
    ctx: Lowering,
    values: Sequence[str],
    source: ScalarType,
    target: ScalarType,
    rounding: Rounding,
) -> list[str]:
    converted = convert_bytes(ctx.emit, values, source, target)
    if converted is not None:
        return converted
    if target == BF16 and rounding == "rtne":
        most = max(ctx.ints.possible(value, source.bits) for value in values)
        if most >= _BEYOND_FP32:
            return [_int_to_bfloat(ctx, value, source) for value in values]
    # Narrower types go through fp32: integers rounded by fp32 overflow fp16 anyway.
    middle = FP64 if target == FP64 else FP32
    opcode = "sitofp" if source.is_signed else "uitofp"
    kinds = f"{llvm_type(source)} {{}} to {llvm_type(middle)}"
    floats = [ctx.emit.value(f"{opcode} {kinds.format(value)}") for value in values]
    return convert_registers(ctx, floats, middle, target, rounding)


def _int_to_bfloat(ctx: Lowering, value: str, source: ScalarType) -> str:
    """Convert an integer to a bfloat, rounding once even if fp32 would round too."""
    emit, kind = ctx.emit, llvm_type(source)
    if Feature.BF16_ARITH in ctx.target.features:
        return emit.value(f"{'sitofp' if source.is_signed else 'uitofp'} {kind} {value} to bfloat")
    single = nvvm_convert.int_to_single_towards_zero(
        emit, value, source.bits, signed=source.is_signed
    )
    opcode = "fptosi" if source.is_signed else "fptoui"
    back = emit.value(f"{opcode} float {single} to {kind}")
    inexact = emit.value(f"icmp ne {kind} {back}, {value}")
    return emit.value(f"fptrunc float {_with_sticky(emit, single, inexact)} to bfloat")


# ---- floats -----------------------------------------------------------------------------------


def convert_registers(
    ctx: Lowering,
    values: Sequence[str],
    source: ScalarType,
    target: ScalarType,
    rounding: Rounding = "rtne",
) -> list[str]:
    """Return floats converted from `source` to `target`."""
    if source == target:
        return list(values)
    if source in (FP8E4NV, FP8E5):
        values, source = _widen_fp8(ctx, values, source), FP16
        return convert_registers(ctx, values, source, target, rounding)
    if source == FP64 and not (target == FP16 and rounding == "rtne"):
        if target == FP32 and rounding == "rtne":
            return [ctx.emit.value(f"fptrunc double {value} to float") for value in values]
        values = [_truncate_double(ctx.emit, value, odd=rounding == "rtne") for value in values]
        return convert_registers(ctx, values, FP32, target, rounding)
    if target.bits > source.bits:
        if target == FP64 and source.bits == 16:
            values, source = convert_registers(ctx, values, source, FP32), FP32
        if source == BF16:
            return [_widen_bfloat(ctx.emit, value) for value in values]
        return _cast_each(ctx, "fpext", values, source, target)
    if source not in (FP32, FP64):
        values, source = convert_registers(ctx, values, source, FP32), FP32
    if source == FP64:
        return _cast_each(ctx, "fptrunc", values, source, target)
    if target.bits == 8:
        return _narrow_to_fp8(ctx, values, target, rounding)
    return _narrow_to_16_bits(ctx, values, target, rounding)


def _cast_each(
    ctx: Lowering, opcode: str, values: Sequence[str], source: ScalarType, target: ScalarType
) -> list[str]:
    before, after = llvm_type(source), llvm_type(target)
    return [ctx.emit.value(f"{opcode} {before} {value} to {after}") for value in values]


def _widen_bfloat(emit: Emitter, value: str) -> str:
    """Convert a bfloat to a float: its bits are the high half of the float's.

    For a part of a word this is one instruction on the word; extracting the high half first would
    take two.
    """
    if value not in emit.parts:
        return emit.value(f"fpext bfloat {value} to float")
    word, half = emit.parts[value]
    bits = emit.value(f"and i32 {word}, -65536" if half else f"shl i32 {word}, 16")
    return emit.value(f"bitcast i32 {bits} to float")


def _truncate_double(emit: Emitter, value: str, *, odd: bool) -> str:
    """Return a double rounded to a float towards zero, or to odd: its last bit set if inexact."""
    single = emit.call("float", "llvm.nvvm.d2f.rz", [("double", value)])
    if not odd:
        return single
    back = emit.value(f"fpext float {single} to double")
    return _with_sticky(emit, single, emit.value(f"fcmp une double {back}, {value}"))


def _with_sticky(emit: Emitter, single: str, inexact: str) -> str:
    """Turn a float rounded towards zero into one rounded to odd."""
    bits = emit.value(f"bitcast float {single} to i32")
    sticky = emit.value(f"zext i1 {inexact} to i32")
    return emit.value(f"bitcast i32 {emit.value(f'or i32 {bits}, {sticky}')} to float")


def _narrow_to_16_bits(
    ctx: Lowering, values: Sequence[str], target: ScalarType, rounding: Rounding
) -> list[str]:
    emit, kind = ctx.emit, llvm_type(target)
    if len(values) == 1:
        return [_narrow_one(emit, values[0], target, rounding)]

    def pair(low: str, high: str) -> tuple[str, str]:
        rounded = nvvm_convert.round_pair(emit, low, high, kind, _PAIR_ROUNDING[rounding])
        return word_elements(emit, rounded, f"<2 x {kind}>")

    return in_pairs(values, pair, constant(0.0, FP32))


def _narrow_one(emit: Emitter, value: str, target: ScalarType, rounding: Rounding) -> str:
    kind = llvm_type(target)
    if rounding == "rtne":
        return emit.value(f"fptrunc float {value} to {kind}")
    if target == FP16:
        return emit.value(f"bitcast i16 {nvvm_convert.round_to_zero_half(emit, value)} to half")
    return emit.call("bfloat", "llvm.nvvm.f2bf16.rz", [("float", value)])


def _widen_fp8(ctx: Lowering, values: Sequence[str], source: ScalarType) -> list[str]:
    """Convert fp8 numbers to halves, exactly."""
    emit = ctx.emit
    if Feature.FP8_CVT not in ctx.target.features:
        return [fp8_to_half(emit, value, source) for value in values]

    def pair(low: str, high: str) -> tuple[str, str]:
        bytes_ = emit.value(f"insertelement <2 x i8> zeroinitializer, i8 {low}, i32 0")
        bytes_ = emit.value(f"insertelement <2 x i8> {bytes_}, i8 {high}, i32 1")
        packed = emit.value(f"bitcast <2 x i8> {bytes_} to i16")
        return vector_elements(
            emit, nvvm_convert.unpack_fp8(emit, packed, _FP8_NAMES[source.name]), "<2 x half>"
        )

    return in_pairs(values, pair, "0")


def _narrow_to_fp8(
    ctx: Lowering, values: Sequence[str], target: ScalarType, rounding: Rounding
) -> list[str]:
    emit = ctx.emit
    if Feature.FP8_CVT not in ctx.target.features or rounding == "rtz":
        return [single_to_fp8(emit, value, target, rounding) for value in values]

    def pair(low: str, high: str) -> tuple[str, str]:
        packed = nvvm_convert.pack_fp8(emit, low, high, _FP8_NAMES[target.name])
        bytes_ = emit.value(f"bitcast i16 {packed} to <2 x i8>")
        return vector_elements(emit, bytes_, "<2 x i8>")

    return in_pairs(values, pair, constant(0.0, FP32))

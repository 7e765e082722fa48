"""Conversions of numbers and permutations of bytes; a part of `nvvm`, with the same invariant."""

from __future__ import annotations

from aotc.backend.emitter import Emitter


def permute_bytes(emit: Emitter, low: str, high: str, selector: int | str) -> str:
    """Return an i32 of bytes of two words; each nibble of `selector` picks one, 0 to 7 from `low`.

    Source: PTX ISA 9.7.9.7 `prmt`.
    """
    operands = [("i32", low), ("i32", high), ("i32", str(selector))]
    return emit.call("i32", "llvm.nvvm.prmt", operands)


def round_pair(emit: Emitter, low: str, high: str, kind: str, rounding: str) -> str:
    """Return two floats rounded to `<2 x kind>`; rounding is rn or rz.

    Source: PTX ISA 9.7.9.21 `cvt`.
    """
    stem = {"half": "f16x2", "bfloat": "bf16x2"}[kind]
    return emit.call(
        f"<2 x {kind}>", f"llvm.nvvm.ff2{stem}.{rounding}", [("float", high), ("float", low)]
    )


def int_to_single_towards_zero(emit: Emitter, value: str, bits: int, *, signed: bool) -> str:
    """Return an integer of 32 or 64 bits as a float, rounded towards zero.

    Source: PTX ISA 9.7.9.21 `cvt.rz.f32.s32`.
    """
    stem = {(32, True): "i2f", (32, False): "ui2f", (64, True): "ll2f", (64, False): "ull2f"}
    return emit.call("float", f"llvm.nvvm.{stem[bits, signed]}.rz", [(f"i{bits}", value)])


def round_to_zero_half(emit: Emitter, value: str) -> str:
    """Return a float rounded towards zero to half, as the i16 of its bits.

    Source: PTX ISA 9.7.9.21 `cvt.rz.f16.f32`.
    """
    return emit.value(f'call i16 asm "cvt.rz.f16.f32 $0, $1;", "=h,f"(float {value})')


def pack_fp8(emit: Emitter, low: str, high: str, kind: str) -> str:
    """Return two floats rounded to nearest fp8 and saturated: an i16, `low` in its low byte.

    Source: PTX ISA 9.7.9.21 `cvt.rn.satfinite.e4m3x2.f32`.
    """
    return emit.call("i16", f"llvm.nvvm.ff.to.{kind}x2.rn", [("float", high), ("float", low)])


def unpack_fp8(emit: Emitter, pair: str, kind: str) -> str:
    """Return the two fp8 numbers of an i16 as `<2 x half>`, exactly.

    Source: PTX ISA 9.7.9.21 `cvt.rn.f16x2.e4m3x2`.
    """
    return emit.call("<2 x half>", f"llvm.nvvm.{kind}x2.to.f16x2.rn", [("i16", pair)])

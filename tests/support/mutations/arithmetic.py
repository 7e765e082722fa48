"""Bugs in arithmetic and conversions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aotc.backend import division, nvvm, nvvm_convert
from aotc.backend.rules import arith as arith_rules
from aotc.backend.rules import cast, fp8
from aotc.ir.dialects import arith
from aotc.schedule.cleanup import simplify
from tests.support.mutations.plant import Mutation, entry, in_llvm, in_ptx, replacing, wrapping

_BINARY = arith_rules._BINARY


def _unsigned_for_signed(cls: type[arith.Binary]) -> Any:
    _, unsigned, floating = _BINARY[cls]
    return entry(_BINARY, cls, (unsigned, unsigned, floating))


def _flooring(ctx: Any, element: Any, args: Any) -> str:
    """Divide as Python does."""
    kind = "i32"
    quotient = ctx.emit.value(f"sdiv {kind} {args[0]}, {args[1]}")
    rest = ctx.emit.value(f"srem {kind} {args[0]}, {args[1]}")
    signs = ctx.emit.value(f"xor {kind} {args[0]}, {args[1]}")
    differ = ctx.emit.value(f"icmp slt {kind} {signs}, 0")
    inexact = ctx.emit.value(f"icmp ne {kind} {rest}, 0")
    down = ctx.emit.value(f"and i1 {differ}, {inexact}")
    return ctx.emit.value(f"sub {kind} {quotient}, {ctx.emit.value(f'zext i1 {down} to i32')}")


MUTATIONS = (
    Mutation(
        "unsigned division",
        "division does not see the sign",
        "integers",
        _unsigned_for_signed(arith.Div),
    ),
    Mutation(
        "division rounds down",
        "quotients are floored as in Python where they are to be truncated as in C",
        "integers",
        entry(_BINARY, arith.Div, (_flooring, *_BINARY[arith.Div][1:])),
    ),
    Mutation(
        "unsigned remainder",
        "the remainder does not see the sign",
        "integers",
        _unsigned_for_signed(arith.Rem),
    ),
    Mutation(
        "a shared divisor's sign is lost",
        "quotients by a prepared divisor are those by its magnitude",
        "shared",
        wrapping(
            division, "prepare", lambda base: lambda *a, **k: replace(base(*a, **k), sign="0")
        ),
    ),
    Mutation(
        "a shared divisor rounds down",
        "negative quotients by a prepared divisor are not rounded towards 0",
        "shared",
        in_llvm(r"= lshr i32 (%\w+), 31\b", r"= and i32 \1, 0"),
    ),
    Mutation(
        "logical shift for an arithmetic one",
        "a shift to the right fills with zeros",
        "integers",
        in_llvm(r"= ashr ", "= lshr "),
    ),
    Mutation(
        "unsigned comparison",
        "the signedness of a comparison is lost",
        "integers",
        in_llvm(r"icmp slt", "icmp ult"),
    ),
    Mutation(
        "unsigned minimum",
        "the wrong row of a table of intrinsics",
        "integers",
        in_llvm(r"llvm\.smin", "llvm.umin"),
    ),
    Mutation(
        "signed high product",
        "umulhi as mulhi",
        "integers",
        wrapping(
            nvvm,
            "mul_high",
            lambda high: (
                lambda emit, left, right, bits, **_: high(emit, left, right, bits, signed=True)
            ),
        ),
    ),
    Mutation(
        "unsigned byte extended with its sign",
        "a conversion looks at the type it goes to",
        "integers",
        in_llvm(r"zext i8", "sext i8"),
    ),
    Mutation(
        "signed byte extended with zeros",
        "a conversion looks at the width alone",
        "integers",
        in_llvm(r"sext i8", "zext i8"),
    ),
    Mutation(
        "operands of a difference swapped",
        "an op that does not commute is put in order as one that does",
        "integers",
        in_llvm(r"sub i32 (%\w+), (%\w+)", r"sub i32 \2, \1"),
    ),
    Mutation(
        "nothing minus x is x",
        "an identity of sums is applied to differences",
        "integers",
        entry(
            simplify._PATTERNS,
            arith.Sub,
            (*simplify._PATTERNS[arith.Sub], simplify.left_identity),
        ),
    ),
    Mutation(
        "conversion to half towards zero",
        "the wrong rounding mode of cvt",
        "floats",
        entry(cast._PAIR_ROUNDING, "rtne", "rz"),
    ),
    Mutation(
        "fp8 beyond its largest number",
        "a conversion in integer arithmetic does not saturate",
        "floats",
        entry(fp8._FORMATS, "fp8e4nv", replace(fp8._FORMATS["fp8e4nv"], largest=0x7F)),
    ),
    Mutation(
        "fp8 ties away from zero",
        "half a unit is added without a look at the last bit",
        "floats",
        in_llvm(r"(add i32 %\w+), 524287", r"\1, 524288"),
    ),
    Mutation(
        "fp8 halves in the wrong order",
        "a packed conversion takes its operands the other way round",
        "floats",
        wrapping(
            nvvm_convert, "pack_fp8", lambda pack: lambda emit, a, b, kind: pack(emit, b, a, kind)
        ),
        "sm_90a",
    ),
    Mutation(
        "NaN lost in a maximum",
        "max.NaN without the NaN",
        "floats",
        replacing(arith_rules, "_nan_winning", lambda stem: arith_rules._call(f"{stem}num")),
    ),
    Mutation(
        "NaN equal to itself",
        "an ordered comparison became an unordered one",
        "floats",
        in_llvm(r"fcmp oeq", "fcmp ueq"),
    ),
    Mutation(
        "zero minus x is the opposite of x",
        "an identity that does not hold for zeros",
        "floats",
        in_llvm(r"fsub contract float 0x0000000000000000,", "fneg float"),
    ),
    Mutation(
        "subnormal products flushed",
        "ftz where nobody asked for it",
        "floats",
        in_ptx(r"mul(\.rn)?\.f32", r"mul\1.ftz.f32"),
    ),
    Mutation(
        "exponential to a base that is rounded",
        "the logarithm of e has the digits of a half",
        "normalise",
        in_llvm("0x3FF7154760000000", "0x3FF7140000000000"),
    ),
    Mutation(
        "exponential to a base a few ulp off",
        "the logarithm of e is wrong in its last three bits",
        "normalise_fp32",
        in_llvm("0x3FF7154760000000", "0x3FF7154700000000"),
    ),
    Mutation(
        "square root of low precision",
        "sqrt.approx where the correctly rounded root was asked for",
        "floats",
        in_ptx(r"sqrt\.rn\.f32", "sqrt.approx.ftz.f32"),
    ),
    Mutation(
        "quotient of low precision",
        "div.full where the correctly rounded quotient was asked for",
        "floats",
        in_ptx(r"div\.rn\.f32", "div.full.f32"),
    ),
)

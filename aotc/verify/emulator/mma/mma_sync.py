"""Matrix instructions of one warp on registers: `mma.sync` and `movmatrix`.

All warps that execute one together are multiplied together: their fragments are gathered into
(warps, M, K) and (warps, K, N), multiplied and scattered back.

PTX leaves only the rounding of sums open. Here products are exact; their sum with the accumulator
is taken in float64 and rounded once. Hardware aligns a few products at a time to the largest and
truncates, so per term it may differ by about 2^-23 (Hopper's fp8: 2^-13) of the largest term. So
compare results within a bound that grows with the sum of the terms' magnitudes. Integers are exact.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from aotc.verify.arrays import Array
from aotc.verify.emulator.engine.context import Context
from aotc.verify.emulator.engine.registry import (
    WARP_COMPUTES,
    Execute,
    WarpCompute,
    executes,
    warp_computes,
)
from aotc.verify.emulator.errors import Unsupported
from aotc.verify.emulator.mma.formats import FORMATS, Float64, Format, encode
from aotc.verify.emulator.mma.fragments import Fragment, accumulator, operand_a, operand_b
from aotc.verify.emulator.syntax import Instruction, elements_of

_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")

# Allowed by the ISA, by the type of A: K for M = 8, K for M = 16, and result types.
_INTEGERS = frozenset({"s32"})
_HALF_OR_SINGLE = frozenset({"f16", "f32"})
_SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...], frozenset[str]]] = {
    "f16": ((), (8, 16), _HALF_OR_SINGLE),
    "bf16": ((), (8, 16), frozenset({"f32"})),
    "tf32": ((), (4, 8), frozenset({"f32"})),
    "f64": ((4,), (4, 8, 16), frozenset({"f64"})),
    "e4m3": ((), (16, 32), _HALF_OR_SINGLE),
    "e5m2": ((), (16, 32), _HALF_OR_SINGLE),
    "s8": ((16,), (16, 32), _INTEGERS),
    "u8": ((16,), (16, 32), _INTEGERS),
    "s4": ((32,), (32, 64), _INTEGERS),
    "u4": ((32,), (32, 64), _INTEGERS),
    "b1": ((128,), (128, 256), _INTEGERS),
}


def multiply(a: Array, b: Array) -> Float64:
    """Return the sums of products in float64, without warnings for infinities and NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.matmul(a, b)


def _differing_bits(a: Array, b: Array) -> Float64:
    """Return popcounts of `a ^ b`, for rows of `a` and columns of `b`."""
    return a.sum(-1, keepdims=True) + b.sum(-2, keepdims=True) - 2.0 * multiply(a, b)


def _types(modifiers: tuple[str, ...]) -> tuple[str, str, str, str]:
    """Return the types of D, A, B and C, listed after the layouts and `.satfinite`."""
    names = tuple(name for name in modifiers if name in FORMATS)
    if len(names) != 4:
        raise Unsupported(f"the types {'.'.join(names)}")
    return names[0], names[1], names[2], names[3]


_KNOWN_WORDS = frozenset({"sync", "aligned", "row", "col", "satfinite", "xor", "and", "popc", "rn"})


@warp_computes("mma")
def mma(instruction: Instruction) -> WarpCompute:
    """Multiply and add matrices of a warp's registers.

    Source: PTX ISA, "Multiply-and-Accumulate Instruction: mma".
    """
    modifiers = instruction.modifiers
    shape = next((match for word in modifiers if (match := _SHAPE.fullmatch(word))), None)
    unknown = [
        word
        for word in modifiers
        if word not in _KNOWN_WORDS and word not in FORMATS and not _SHAPE.fullmatch(word)
    ]
    if unknown or shape is None:
        raise Unsupported(f"the modifier .{unknown[0]}" if unknown else "a shape is missing")
    if [word for word in modifiers if word in ("row", "col")] != ["row", "col"]:
        raise Unsupported("layouts other than .row.col")
    m, n, k = (int(extent) for extent in shape.groups())
    d_type, a_type, b_type, c_type = _types(modifiers)
    if "rn" in modifiers and a_type != "f64":
        raise Unsupported("the modifier .rn")
    small, large, results = _SHAPES.get(a_type, ((), (), frozenset[str]()))
    if n != 8 or k not in {8: small, 16: large}.get(m, ()) or d_type not in results:
        raise Unsupported(f"{shape[0]} of {a_type} with a result of {d_type}")
    a_format, b_format, c_format = FORMATS[a_type], FORMATS[b_type], FORMATS[c_type]
    if a_format.bits != b_format.bits or a_format.is_int != b_format.is_int:
        raise Unsupported(f"{a_type} times {b_type}")
    a_fragment, b_fragment = operand_a(m, k, a_format.bits), operand_b(k, b_format.bits)
    c_fragment, d_fragment = (
        accumulator(m, n, c_format.bits),
        accumulator(m, n, FORMATS[d_type].bits),
    )
    fragments = (d_fragment, a_fragment, b_fragment, c_fragment)
    for operand, fragment in zip(instruction.operands, fragments, strict=True):
        if len(elements_of(operand)) != fragment.num_registers:
            raise Unsupported(f"an operand that is not of {fragment.num_registers} registers")
    product: Callable[[Array, Array], Float64] = _differing_bits if "xor" in modifiers else multiply
    saturate = "satfinite" in modifiers

    def elements(fragment: Fragment, format_: Format) -> Callable[[Array], Float64]:
        return lambda words: format_.decode(fragment.gather(words))

    def compute(a: Float64, b: Float64, c: Float64) -> Array:
        with np.errstate(invalid="ignore", over="ignore"):
            total = product(a, b) + c
        return d_fragment.scatter(encode(d_type, total, saturate=saturate))

    decode = (
        elements(a_fragment, a_format),
        elements(b_fragment, b_format),
        elements(c_fragment, c_format),
    )
    bits = tuple(source.register_bits for source in (a_fragment, b_fragment, c_fragment))
    return WarpCompute(bits, decode, compute)


@warp_computes("movmatrix")
def movmatrix(instruction: Instruction) -> WarpCompute:
    """Transpose a warp's 8x8 matrix of 16-bit elements, one row per four lanes.

    Source: PTX ISA, "Matrix Transpose Instruction: movmatrix".
    """
    if instruction.modifiers != ("sync", "aligned", "m8n8", "trans", "b16"):
        raise Unsupported("modifiers other than .sync.aligned.m8n8.trans.b16")
    fragment = operand_a(8, 8, 16)

    def compute(elements: Array) -> Array:
        return fragment.scatter(np.swapaxes(elements, 1, 2))

    return WarpCompute((fragment.register_bits,), (fragment.gather,), compute)


@executes("mma", "movmatrix")
def matrix_instruction(instruction: Instruction) -> Execute:
    """Return the step of a single instruction."""
    rule = WARP_COMPUTES[instruction.opcode](instruction)
    target, *sources = (elements_of(operand) for operand in instruction.operands)

    def execute(ctx: Context) -> None:
        ctx.require_whole_warps()
        words = map(ctx.read_each, sources, rule.bits)
        values = [decode(registers) for decode, registers in zip(rule.decode, words, strict=True)]
        ctx.write_each(target, rule.compute(*values))

    return execute

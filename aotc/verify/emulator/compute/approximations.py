"""Model the errors of approximate instructions, on top of correctly rounded results.

Rules compute `ex2.approx` and its kin correctly rounded. Hardware is a step or two off for some
operands, always the same for the same operand. So the bits of the operands decide whether a result
is moved, which way, and how far. The share of moved results was measured on an H200
(docs/internals/calibration.md); the distance is within the PTX ISA's bound. Results exact on
hardware stay: zeros, infinities, NaN, powers of two, and subnormals.

Invariant: equal operands of equal instructions give equal results, in any launch and on any lane.
"""

# The stubs leave the type of an array shifted by a NumPy scalar unknown.
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aotc.verify.emulator.compute.form import TYPES, in_halves
from aotc.verify.emulator.compute.registry import Bits, Compute
from aotc.verify.emulator.compute.rounding import FORMATS, FloatFormat
from aotc.verify.emulator.syntax import Instruction

_KINDS = frozenset(("approx", "full"))


@dataclass(frozen=True, slots=True)
class _Spread:
    """Shares of results off by one step (`near`) and by `far` steps (`beyond`)."""

    near: float
    beyond: float = 0.0
    far: int = 2


# By opcode and type: the share of results an H200 does not round correctly. With an error bound
# above one step, a tenth of them take more. `tanh` is off by up to 2^-12.
_SPREADS: dict[tuple[str, str], _Spread] = {
    ("ex2", "f32"): _Spread(0.26, 0.03),
    ("lg2", "f32"): _Spread(0.24, 0.03),
    ("rcp", "f32"): _Spread(0.13),
    ("rsqrt", "f32"): _Spread(0.11),
    ("sqrt", "f32"): _Spread(0.09),
    ("div", "f32"): _Spread(0.24, 0.03),
    ("sin", "f32"): _Spread(0.45, 0.30, 4),
    ("cos", "f32"): _Spread(0.45, 0.30, 4),
    ("tanh", "f32"): _Spread(0.20, 0.24, 1 << 11),
    ("ex2", "f16"): _Spread(0.30),
    ("ex2", "bf16"): _Spread(0.05),
    ("tanh", "f16"): _Spread(0.22),
    ("tanh", "bf16"): _Spread(0.03),
}
_WHOLE = 1 << 32
_MIX = (np.uint32(0x9E3779B1), np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35))


def with_error(instruction: Instruction, compute: Compute) -> Compute:
    """Return `compute` with an approximate instruction's error; unchanged if exact."""
    if _KINDS.isdisjoint(instruction.modifiers):
        return compute
    kind = next((TYPES[name] for name in reversed(instruction.modifiers) if name in TYPES), None)
    spread = None if kind is None else _SPREADS.get((instruction.opcode, kind.element.name))
    if kind is None or spread is None:
        return compute
    move = _mover(FORMATS[kind.element.name], spread)
    if kind.count > 1:
        move = in_halves(move, kind)

    def approximate(*words: Bits) -> Bits | tuple[Bits, ...]:
        return move(compute(*words), *words)

    return approximate


def _mover(form: FloatFormat, spread: _Spread) -> Compute:
    """Return a function (result, *operands) that moves some results by some steps."""
    far = np.uint32(_WHOLE * spread.beyond)
    near_limit = np.uint32(_WHOLE * (spread.beyond + spread.near))
    exponent, mantissa = form.infinity, form.max_subnormal
    word = form.dtype.type

    def move(result: Bits, *words: Bits) -> Bits:
        draw = _draw(words)
        size = result & form.magnitude
        # Both neighbours must be finite and normal, so a zero mantissa is left alone.
        fits = (result & mantissa != 0) & (size < exponent) & (size > mantissa)
        steps = np.where(draw < far, word(spread.far), word(1))
        room = np.minimum(result & mantissa, mantissa - (result & mantissa))
        steps = np.minimum(steps, room)
        hit = fits & (draw < near_limit)
        up = draw & np.uint32(1) != 0
        return np.where(hit, np.where(up, result + steps, result - steps), result).astype(
            form.dtype, copy=False
        )

    return move


def _draw(words: tuple[Bits, ...]) -> Bits:
    """Hash the operands' bits to a uniform number below 2 ** 32."""
    draw = np.asarray(np.uint32(0x2545F491))
    for word in words:
        draw = (draw ^ word.astype(np.uint32)) * _MIX[0]
        draw = draw ^ (draw >> np.uint32(15))
    draw = draw * _MIX[1]
    draw = (draw ^ (draw >> np.uint32(13))) * _MIX[2]
    return draw ^ (draw >> np.uint32(16))

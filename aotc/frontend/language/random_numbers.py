"""Random numbers: the counter-based generator Philox.

There is no state: equal seeds and offsets give equal numbers on every target and in any program, and
the same numbers as in Triton. A call makes four 32-bit numbers, so the `4x` functions cost no more than
the others.

Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", section 3.3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import tau

from aotc.frontend.emitter import Emitter, mistake
from aotc.frontend.language import math_functions, operators
from aotc.frontend.language.convert import bitcast, cast, constant, static_int, to_value
from aotc.frontend.values import Operand, element, show
from aotc.ir.core import Value
from aotc.ir.types import I32, I64, U32, U64, ScalarType

_ROUNDS = 10
_LEAST_UNIFORM = 1.0e-7  # keeps the logarithm finite


@dataclass(frozen=True, slots=True)
class _Words:
    """Constants of Philox for a word type: multipliers, key increments, scale to floats.

    `scale` is the largest factor that keeps the greatest signed word below 1 in fp32.
    """

    signed: ScalarType
    factors: tuple[int, int]
    increments: tuple[int, int]
    scale: float


_WORDS = {
    U32: _Words(I32, (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85), 4.6566127342e-10),
    U64: _Words(
        I64,
        (0xD2E7470EE14C6C93, 0xCA5A826395121157),
        (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B),
        1.0842020432385337e-19,
    ),
}


def _integer(emit: Emitter, operand: Operand, role: str) -> tuple[Value, ScalarType]:
    value = to_value(emit, operand, role)
    kind = element(value)
    if not isinstance(kind, ScalarType) or not kind.is_int:
        raise mistake(f"{role} must be an integer, got {show(value)}")
    return value, kind


def _num_rounds(operand: Operand) -> int:
    number = static_int(operand, "n_rounds")
    if number < 0:
        raise mistake(f"n_rounds must not be negative, got {number}")
    return number


# ---- words ------------------------------------------------------------------------------------


def philox_impl(
    emit: Emitter,
    c0: Operand,
    c1: Operand,
    c2: Operand,
    c3: Operand,
    k0: Operand,
    k1: Operand,
    n_rounds: Operand = _ROUNDS,
) -> tuple[Value, ...]:
    """Return the counter after `n_rounds` rounds under a key."""
    counter = [
        _integer(emit, word, f"c{i} of philox_impl") for i, word in enumerate((c0, c1, c2, c3))
    ]
    kind = counter[0][1]
    if kind not in _WORDS:
        raise mistake(
            f"tl.philox_impl takes uint32 or uint64, got {show(counter[0][0])}",
            remedy="cast the counter with .to(tl.uint32)",
        )
    words = _WORDS[kind]
    (first, _), (second, _), (third, _), (fourth, _) = counter
    keys = [_integer(emit, word, f"k{i} of philox_impl")[0] for i, word in enumerate((k0, k1))]
    for _ in range(_num_rounds(n_rounds)):
        low_factor, high_factor = (constant(emit, word, kind) for word in words.factors)
        high = math_functions.umulhi(emit, high_factor, third)
        low = math_functions.umulhi(emit, low_factor, first)
        second, fourth, first, third = (
            operators.multiply(emit, high_factor, third),
            operators.multiply(emit, low_factor, first),
            operators.bit_xor(emit, operators.bit_xor(emit, high, second), keys[0]),
            operators.bit_xor(emit, operators.bit_xor(emit, low, fourth), keys[1]),
        )
        keys = [
            operators.add(emit, key, constant(emit, word, kind))
            for key, word in zip(keys, words.increments, strict=True)
        ]
    return first, second, third, fourth


def philox(
    emit: Emitter,
    seed: Operand,
    c0: Operand,
    c1: Operand,
    c2: Operand,
    c3: Operand,
    n_rounds: Operand = _ROUNDS,
) -> tuple[Value, ...]:
    """Return four words for a seed of 64 bits and a counter of four words."""
    key = cast(emit, _integer(emit, seed, "the seed")[0], U64)
    counter = [_integer(emit, word, f"c{i} of philox") for i, word in enumerate((c0, c1, c2, c3))]
    bits = counter[0][1].bits
    kind = next((word for word in _WORDS if word.bits == bits), None)
    if kind is None or any(word.bits != bits for _, word in counter):
        shown = ", ".join(show(word) for word, _ in counter)
        raise mistake(f"tl.philox takes four words of 32 bits, or four of 64, got {shown}")
    low, high = key, constant(emit, 0, U64)
    if kind == U32:
        high = cast(emit, operators.shift_right(emit, key, 32), U32)
        low = cast(emit, key, U32)
    first, second, third, fourth = (bitcast(emit, word, kind) for word, _ in counter)
    return philox_impl(emit, first, second, third, fourth, low, high, n_rounds)


def randint4x(
    emit: Emitter, seed: Operand, offset: Operand, n_rounds: Operand = _ROUNDS
) -> tuple[Value, ...]:
    """Return four tiles of random uint32."""
    position, kind = _integer(emit, offset, "the offset")
    low = cast(emit, position, U32)
    zero = operators.multiply(emit, low, 0)
    high = (
        cast(emit, operators.shift_right(emit, position, 32), U32) if kind.bits > U32.bits else zero
    )
    return philox(emit, seed, low, high, zero, zero, n_rounds)


def randint(emit: Emitter, seed: Operand, offset: Operand, n_rounds: Operand = _ROUNDS) -> Value:
    """Return a tile of random uint32."""
    return randint4x(emit, seed, offset, n_rounds)[0]


# ---- floats -----------------------------------------------------------------------------------


def uint_to_uniform_float(emit: Emitter, x: Operand) -> Value:
    """Return words as fp32 from 0 up to but without 1."""
    value, kind = _integer(emit, x, "the argument of tl.uint_to_uniform_float")
    words = next((entry for key, entry in _WORDS.items() if key.bits == kind.bits), None)
    if words is None:
        raise mistake(f"tl.uint_to_uniform_float takes 32 or 64 bits, got {show(value)}")
    number = bitcast(emit, value, words.signed)
    is_negative = operators.less(emit, number, 0)
    number = operators.select(emit, is_negative, operators.invert(emit, number), number)
    return operators.multiply(emit, number, words.scale)


def pair_uniform_to_normal(emit: Emitter, u1: Operand, u2: Operand) -> tuple[Value, Value]:
    """Transform two uniform numbers to two normal ones (Box-Muller)."""
    functions = math_functions.FUNCTIONS
    logarithm = functions["log"](emit, math_functions.maximum(emit, _LEAST_UNIFORM, u1))
    radius = functions["sqrt"](emit, operators.multiply(emit, -2.0, logarithm))
    angle = operators.multiply(emit, tau, u2)
    return (
        operators.multiply(emit, radius, functions["cos"](emit, angle)),
        operators.multiply(emit, radius, functions["sin"](emit, angle)),
    )


def rand4x(
    emit: Emitter, seed: Operand, offsets: Operand, n_rounds: Operand = _ROUNDS
) -> tuple[Value, ...]:
    """Return four blocks of fp32, uniform from 0 up to but without 1."""
    words = randint4x(emit, seed, offsets, n_rounds)
    return tuple(uint_to_uniform_float(emit, word) for word in words)


def rand(emit: Emitter, seed: Operand, offset: Operand, n_rounds: Operand = _ROUNDS) -> Value:
    """Return a block of fp32, uniform from 0 up to but without 1."""
    return uint_to_uniform_float(emit, randint(emit, seed, offset, n_rounds))


def randn4x(
    emit: Emitter, seed: Operand, offset: Operand, n_rounds: Operand = _ROUNDS
) -> tuple[Value, ...]:
    """Return four blocks of fp32, normal with mean 0 and variance 1."""
    u1, u2, u3, u4 = rand4x(emit, seed, offset, n_rounds)
    return (*pair_uniform_to_normal(emit, u1, u2), *pair_uniform_to_normal(emit, u3, u4))


def randn(emit: Emitter, seed: Operand, offset: Operand, n_rounds: Operand = _ROUNDS) -> Value:
    """Return a block of fp32, normal with mean 0 and variance 1."""
    u1, u2, _, _ = rand4x(emit, seed, offset, n_rounds)
    return pair_uniform_to_normal(emit, u1, u2)[0]


FUNCTIONS: dict[str, Callable[..., Operand]] = {
    "philox_impl": philox_impl,
    "philox": philox,
    "randint4x": randint4x,
    "randint": randint,
    "uint_to_uniform_float": uint_to_uniform_float,
    "pair_uniform_to_normal": pair_uniform_to_normal,
    "rand4x": rand4x,
    "rand": rand,
    "randn4x": randn4x,
    "randn": randn,
}

"""Floating-point arithmetic, exact to the bit: sums, products, fma, quotients, roots.

Every result is rounded once, in the requested direction. Results of fp16 and bf16 are computed in
binary32 where the double rounding is safe (24 bits suffice for one operation on 11). Otherwise they
are computed in binary64, rounded to odd.

`.ftz` flushes a result below the normal numbers, judged after rounding with unbounded exponents.
`neg` and `abs` give canonical NaN, as an H200 does unless it folds them into a consumer's operand.
In fp64 they quiet NaN and keep its sign.

Source: PTX ISA 9.7.3 "Floating Point Instructions", 9.7.4 "Half Precision Floating Point
Instructions", 9.7.5 "Mixed Precision Floating Point Instructions".
"""

# A rule is a lambda with one parameter per operand; `Compute` leaves their number open.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce

import numpy as np

from aotc.verify.emulator.compute import binary64 as exact
from aotc.verify.emulator.compute.form import Form, flatten, rule
from aotc.verify.emulator.compute.registry import Bits, Compute
from aotc.verify.emulator.compute.rounding import (
    BF16,
    F16,
    F32,
    F64,
    ROUNDINGS,
    SCALE,
    FloatFormat,
    format_of,
    round_sum,
    round_to,
    step,
)
from aotc.verify.emulator.errors import Unsupported


def element_format(form: Form) -> FloatFormat:
    """Return the format of the type, or of a packed type's elements."""
    return format_of(form.type.element.name)


def wide(form: FloatFormat, bits: Bits) -> Bits:
    """Convert bits to float64 values."""
    return form.load(bits).astype(np.float64, copy=False)


DEFAULT_NAN = np.uint64(0xFFF8000000000000)
"""The binary64 NaN of an invalid operation on numbers."""


def with_nan(compute: Callable[..., Bits], *order: int) -> Callable[..., Bits]:
    """Return `compute` of binary64 with an H200's NaN: the first NaN operand in `order`, quieted.

    Without a NaN operand, it is `DEFAULT_NAN`.
    """

    def around(*words: Bits) -> Bits:
        result = compute(*words)
        unordered = F64.is_nan(result)
        if not unordered.any():
            return result
        nan: Bits = np.asarray(DEFAULT_NAN)
        for index in reversed(order):
            nan = np.where(F64.is_nan(words[index]), words[index] | F64.quiet, nan)
        return np.where(unordered, nan, result)

    return around


def finished(
    form: Form,
    fmt: FloatFormat,
    compute: Callable[..., Bits],
    scaled: Callable[..., Bits] | None = None,
) -> Compute:
    """Wrap `compute` in the effects of `.ftz`, `.sat` and `.relu`.

    `scaled` returns the results times `2 ** SCALE`, for operations that round subnormal results.
    """
    after: list[Callable[[Bits], Bits]] = []
    flush = form.flag("ftz")
    if flush:
        if fmt not in (F16, F32):
            raise Unsupported(f".ftz of .{fmt.name}")
        after.append(fmt.flush)
    if form.flag("sat"):
        after.append(fmt.saturate)
    if form.flag("relu"):
        after.append(fmt.rectify)
    if not after:
        return compute

    def around(*words: Bits) -> Bits:
        if flush:
            words = tuple(fmt.flush(word) for word in words)
        result = compute(*words)
        if flush and scaled is not None:
            result = fmt.flush_raised(result, partial(scaled, *words))
        for finish in after:
            result = finish(result)
        return result

    return around


# ---- sums and products ------------------------------------------------------------------------


@rule("float", "add", "sub", sources=2, packed="halves", types=0)
def _add_sub(form: Form) -> Compute:
    fmt, widen = _mixed(form, 2)
    mode = form.choice(*ROUNDINGS, default="rn")
    load, store, sign = fmt.load, fmt.store, fmt.sign
    subtract = form.instruction.opcode == "sub"
    if fmt is F64:
        add = exact.directed_sum(mode) if mode != "rn" else lambda a, b: store(load(a) + load(b))
        return finished(
            form, fmt, with_nan((lambda a, b: add(a, b ^ sign)) if subtract else add, 1, 0)
        )
    if mode == "rn":
        if subtract:
            return widen(finished(form, fmt, lambda a, b: store(load(a) - load(b))))
        return widen(finished(form, fmt, lambda a, b: store(load(a) + load(b))))
    add = lambda a, b: round_sum(wide(fmt, a), wide(fmt, b), fmt, mode)  # noqa: E731
    return widen(finished(form, fmt, (lambda a, b: add(a, b ^ sign)) if subtract else add))


def _mixed(form: Form, count: int) -> tuple[FloatFormat, Callable[[Compute], Compute]]:
    """Return the format to compute in, and a wrapper to widen narrower sources.

    With two types, the first is the result's and the last source's; `count` is the number of
    sources.
    """
    if len(form.types) == 1:
        return element_format(form), lambda function: function
    fmt, narrow = (format_of(kind.name) for kind in form.types[-2:])
    if len(form.types) != 2 or fmt is not F32 or narrow not in (F16, BF16):
        raise Unsupported(f"types {', '.join('.' + kind.name for kind in form.types)}")
    form.reads(*[narrow.bits] * (count - 1), fmt.bits)

    def widen(function: Compute) -> Compute:
        return lambda *words: function(
            *(fmt.store(narrow.load(word)) for word in words[:-1]), words[-1]
        )

    return fmt, widen


@rule("float", "mul", sources=2, packed="halves")
def _mul(form: Form) -> Compute:
    fmt, mode = element_format(form), form.choice(*ROUNDINGS, default="rn")
    load, store = fmt.load, fmt.store
    nearest: Compute = lambda a, b: store(load(a) * load(b))  # noqa: E731
    if fmt is F64:
        return with_nan(nearest if mode == "rn" else exact.directed("mul", mode), 1, 0)

    # Products of 24-bit mantissas fit in 53 bits.
    def product(a: Bits, b: Bits, scale: float = 1.0) -> Bits:
        return round_to(wide(fmt, a) * wide(fmt, b) * scale, fmt, mode)

    return finished(
        form, fmt, nearest if mode == "rn" else product, partial(product, scale=2.0**SCALE)
    )


@rule("float", "fma", "mad", sources=3, packed="halves", types=0)
def _fma(form: Form) -> Compute:
    fmt, widen = _mixed(form, 3)
    mode = form.choice(*ROUNDINGS)
    if fmt is F64:
        fused = exact.fma if mode == "rn" else exact.directed("fma", mode)
        return finished(form, fmt, with_nan(fused, 1, 2, 0))

    def compute(a: Bits, b: Bits, c: Bits, scale: float = 1.0) -> Bits:
        product = wide(fmt, a) * wide(fmt, b) * scale
        return round_sum(product, wide(fmt, c) * scale, fmt, mode)

    def in_half(a: Bits, b: Bits, c: Bits) -> Bits:
        # At 53 bits, the lost part never decides a rounding to 11 bits.
        return fmt.store(wide(fmt, a) * wide(fmt, b) + wide(fmt, c))

    once = in_half if fmt is F16 and mode == "rn" else compute
    return widen(finished(form, fmt, once, partial(compute, scale=2.0**SCALE)))


# ---- quotients and roots ----------------------------------------------------------------------


@rule("float", "div", sources=2)
def _div(form: Form) -> Compute:
    fmt = element_format(form)
    kind = form.choice("approx", "full", *ROUNDINGS)
    _require_format(fmt, F32, F64)
    if kind in ("approx", "full"):
        _require_format(fmt, F32)
        divide = _divide_approximately if kind == "approx" else _quotient("rn", fmt)
        return finished(form, fmt, divide)
    divide = _quotient(kind, fmt)
    return finished(form, fmt, divide, lambda a, b: divide(_scaled(a), b))


def _scaled(bits: Bits) -> Bits:
    """Return binary32 bits times `2 ** SCALE`; no overflow where the quotient is small."""
    return F32.store(F32.load(bits) * np.float32(2.0**SCALE))


def _require_format(fmt: FloatFormat, *formats: FloatFormat) -> None:
    if fmt not in formats:
        raise Unsupported(f"type .{fmt.name}")


def _quotient(mode: str, fmt: FloatFormat) -> Callable[[Bits, Bits], Bits]:
    load, store = fmt.load, fmt.store
    nearest: Compute = lambda a, b: store(load(a) / load(b))  # noqa: E731
    if fmt is F64:
        # A code sequence: unlike sums and products, it checks the dividend first.
        return with_nan(nearest if mode == "rn" else exact.directed("div", mode), 0, 1)
    if mode == "rn":
        return nearest

    def compute(a: Bits, b: Bits) -> Bits:
        x, y = wide(fmt, a), wide(fmt, b)
        bits = store(load(a) / load(b))
        # Exact, so its sign tells the side of the true quotient.
        left = (x - wide(fmt, bits) * y) * np.copysign(1.0, y)
        return step(bits, fmt, left > 0, left < 0, mode)

    return compute


def _divide_approximately(a: Bits, b: Bits) -> Bits:
    """Return `div.approx`: a product with the reciprocal, so 0 once that is subnormal."""
    quotient = F32.load(a) / F32.load(b)
    huge = (b & F32.magnitude) > np.uint32(0x7E800000)  # 2 ** 126
    finite = (b & F32.magnitude) < F32.infinity
    flushed = F32.load(a) * np.copysign(np.float32(0), F32.load(b))
    return F32.store(np.where(huge & finite, flushed, quotient))


@rule("float", "rcp", sources=1)
def _rcp(form: Form) -> Compute:
    fmt = element_format(form)
    kind = form.choice("approx", *ROUNDINGS)
    _require_format(fmt, F32, F64)
    if kind == "approx" and fmt is F64:
        return _high_word(form, lambda value: 1.0 / value)
    divide, dividend = _quotient("rn" if kind == "approx" else kind, fmt), np.asarray(fmt.one)
    scaled = None if kind == "approx" else lambda a: divide(_scaled(dividend), a)
    return finished(form, fmt, lambda a: divide(dividend, a), scaled)


@rule("float", "sqrt", sources=1)
def _sqrt(form: Form) -> Compute:
    fmt = element_format(form)
    kind = form.choice("approx", *ROUNDINGS)
    _require_format(fmt, F32, F64)
    if kind in ("approx", "rn"):
        if kind == "approx":
            _require_format(fmt, F32)
        root = lambda a: fmt.store(np.sqrt(fmt.load(a)))  # noqa: E731
        return finished(form, fmt, with_nan(root, 0) if fmt is F64 else root)
    if fmt is F64:
        return finished(form, fmt, with_nan(exact.directed("sqrt", kind), 0))

    def compute(a: Bits) -> Bits:
        bits = fmt.store(np.sqrt(fmt.load(a)))
        root = wide(fmt, bits)
        left = wide(fmt, a) - root * root
        return step(bits, fmt, left > 0, left < 0, kind)

    return finished(form, fmt, compute)


@rule("float", "rsqrt", sources=1)
def _rsqrt(form: Form) -> Compute:
    fmt = element_format(form)
    form.choice("approx")
    _require_format(fmt, F32, F64)
    if fmt is F64 and "ftz" in form.instruction.modifiers:
        return _high_word(form, lambda value: 1.0 / np.sqrt(value))
    inverse = lambda a: fmt.store(1.0 / np.sqrt(wide(fmt, a)))  # noqa: E731
    return finished(form, fmt, with_nan(inverse, 0) if fmt is F64 else inverse)


def _high_word(form: Form, function: Callable[[Bits], Bits]) -> Compute:
    """Return a coarse fp64 approximation: from the operand's high word, low word zero.

    Source: PTX ISA 9.7.3.14 `rcp.approx.ftz.f64`, 9.7.3.18 `rsqrt.approx.ftz.f64`.
    """
    form.choice("ftz")
    high = np.uint64(0xFFFFFFFF00000000)
    half = np.uint64(1 << 31)
    wide_result = with_nan(lambda a: F64.store(function(F64.load(a))), 0)

    def compute(a: Bits) -> Bits:
        result = wide_result(F64.flush(a & high))
        finite = (result & F64.magnitude) < F64.infinity
        # NaN keeps its high word; a number is rounded to it.
        return F64.flush((result + np.where(finite, half, np.uint64(0))) & high)

    return compute


# ---- sign and size ----------------------------------------------------------------------------


@rule("float", "neg", "abs", sources=1, packed="halves")
def _neg_abs(form: Form) -> Compute:
    fmt = element_format(form)
    sign, magnitude = fmt.sign, fmt.magnitude
    negate = form.instruction.opcode == "neg"

    def compute(a: Bits) -> Bits:
        result, unordered = a ^ sign if negate else a & magnitude, fmt.is_nan(a)
        if not unordered.any():
            return result
        return np.where(unordered, a | fmt.quiet if fmt is F64 else fmt.nan, result)

    return finished(form, fmt, compute)


@rule("float", "copysign", sources=2)
def _copysign(form: Form) -> Compute:
    """Combine the first operand's sign with the second's magnitude."""
    fmt = element_format(form)
    _require_format(fmt, F32, F64)
    return lambda a, b: (a & fmt.sign) | (b & fmt.magnitude)


@rule("float", "min", "max", packed="halves")
def _min_max(form: Form) -> Compute:
    """Take the minimum or maximum: -0 < +0; a number beats NaN unless `.NaN` is set."""
    fmt = element_format(form)
    count = len(flatten(form.instruction.operands[1:]))
    form.reads(*[form.type.bits] * (3 if count == 3 and fmt is F32 else 2))
    least, nan_wins = form.instruction.opcode == "min", form.flag("NaN")
    xorsign = form.flag("xorsign")
    if xorsign:
        form.choice("abs")
    pick = np.minimum if least else np.maximum

    def two(a: Bits, b: Bits) -> Bits:
        signs = (a ^ b) & fmt.sign
        if xorsign:
            a, b = a & fmt.magnitude, b & fmt.magnitude
        x, y = fmt.load(a), fmt.load(b)
        # Equal numbers have equal bits, except zeros of opposite sign.
        result = np.where(x == y, a | b if least else a & b, fmt.store(pick(x, y)))
        x_nan, y_nan = x != x, y != y  # noqa: PLR0124
        if (x_nan | y_nan).any():
            if not nan_wins:
                result = np.where(x_nan & ~y_nan, b, np.where(y_nan & ~x_nan, a, result))
            if fmt is F64:
                result = np.where(x_nan & y_nan, b | fmt.quiet, result)
            signs = np.where(fmt.is_nan(result), fmt.dtype.type(0), signs)
        return result | signs if xorsign else result

    return finished(form, fmt, lambda *words: reduce(two, words))


@rule("float", "testp", sources=1)
def _testp(form: Form) -> Compute:
    fmt = element_format(form)
    _require_format(fmt, F32, F64)
    tests: dict[str, Callable[[Bits], Bits]] = {
        "finite": lambda size: size < fmt.infinity,
        "infinite": lambda size: size == fmt.infinity,
        "number": lambda size: size <= fmt.infinity,
        "notanumber": lambda size: size > fmt.infinity,
        # Zeros are normal.
        "normal": lambda size: ((size == 0) | (size > fmt.max_subnormal)) & (size < fmt.infinity),
        "subnormal": lambda size: (size > 0) & (size <= fmt.max_subnormal),
    }
    test = tests[form.choice(*tests)]
    return lambda a: test(a & fmt.magnitude)


# ---- functions that the hardware approximates -------------------------------------------------

_FUNCTIONS: dict[str, tuple[Callable[[Bits], Bits], tuple[FloatFormat, ...]]] = {
    "sin": (np.sin, (F32,)),
    "cos": (np.cos, (F32,)),
    "lg2": (np.log2, (F32,)),
    "ex2": (np.exp2, (F32, F16, BF16)),
    "tanh": (np.tanh, (F32, F16, BF16)),
}


@rule("float", *_FUNCTIONS, sources=1, packed="halves")
def _approximate(form: Form) -> Compute:
    """Compute in binary64 and round: the exact value behind the hardware's approximation."""
    fmt = element_format(form)
    function, formats = _FUNCTIONS[form.instruction.opcode]
    _require_format(fmt, *formats)
    form.choice("approx")
    if fmt is BF16 and form.instruction.opcode == "ex2":
        form.choice("ftz")
        return lambda a: fmt.flush(fmt.store(function(wide(fmt, fmt.flush(a)))))
    return finished(form, fmt, lambda a: fmt.store(function(wide(fmt, a))))

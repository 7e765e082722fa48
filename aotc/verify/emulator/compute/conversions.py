"""`cvt`: between integers, floats and packed pairs of small floats.

Every conversion rounds once. A float out of an integer's range saturates. Negative numbers lose
their sign in ue8m0, which has none.

Source: PTX ISA 9.7.9.21 `cvt`, 9.7.9.22 `cvt.pack`.
"""

# A rule is a lambda with one parameter per operand; `Compute` leaves their number open.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aotc.verify.arrays import clipped, view
from aotc.verify.emulator.compute.float_arithmetic import wide
from aotc.verify.emulator.compute.form import Form, PtxType, flatten, rule
from aotc.verify.emulator.compute.integer_arithmetic import integer_dtype
from aotc.verify.emulator.compute.registry import Bits, Compute, bits_dtype
from aotc.verify.emulator.compute.rounding import (
    F16,
    F32,
    F64,
    FORMATS,
    ROUNDINGS,
    SCALE,
    FloatFormat,
    Floats,
    fix_odd,
    format_of,
    round_to,
    step,
    two_sum,
)
from aotc.verify.emulator.compute.small_floats import SMALL_FORMATS, SmallFormat
from aotc.verify.emulator.errors import Unsupported
from aotc.verify.emulator.syntax import Register

_TO_INTEGRAL: dict[str, Callable[..., Any]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}


@rule("", "cvt", packed="itself", types=0)
def _cvt(form: Form) -> Compute:
    if form.flag("pack"):
        return _pack_integers(form)
    if len(form.types) != 2:
        raise Unsupported(f"{len(form.types)} types")
    target, source = form.types
    if target.count > 1:
        return _to_pair(form, target, source)
    form.reads(source.bits)
    if target.name == "tf32":
        return _to_tf32(form, source)
    convert = _CONVERSIONS.get((target.kind, source.kind))
    if convert is None or source.count > 1:
        raise Unsupported(f"types .{target.name}.{source.name}")
    return convert(form, target, source)


# ---- integers ---------------------------------------------------------------------------------


def _between_integers(form: Form, target: PtxType, source: PtxType) -> Compute:
    read, write = integer_dtype(source), integer_dtype(target)
    low, high = _common_range(read, write)
    clamp = form.flag("sat")
    finish = _widened(form, target)

    def compute(a: Bits) -> Bits:
        value = view(a, read)
        if clamp:
            value = clipped(value, low, high)
        return finish(value.astype(write))

    return compute


def _common_range(read: np.dtype[Any], write: np.dtype[Any]) -> tuple[Any, Any]:
    """Return the limits of both types' common range, as numbers of the first."""
    read_range, write_range = np.iinfo(read), np.iinfo(write)
    return read.type(max(read_range.min, write_range.min)), read.type(
        min(read_range.max, write_range.max)
    )


def _widened(form: Form, target: PtxType) -> Callable[[Bits], Bits]:
    """Return a function from integers to bits, sign-extended to the register's width."""
    unsigned = bits_dtype(target.bits)
    register = form.instruction.operands[0]
    if not (target.signed and isinstance(register, Register) and register.bits > target.bits):
        return lambda value: view(value, unsigned)
    dtype = np.dtype(f"i{register.bits // 8}")
    whole = bits_dtype(register.bits)
    return lambda value: view(value.astype(dtype), whole)


def _pack_integers(form: Form) -> Compute:
    """Clamp and pack two integers, the first above the second, below a third register's bits."""
    target, source = form.types[:2]
    form.choice("sat")
    third = len(form.types) == 3
    if source.name != "s32" or target.kind != "int" or target.bits not in (2, 4, 8, 16):
        raise Unsupported(f"types .{target.name}.{source.name}")
    if third != (target.bits < 16):
        raise Unsupported(f"{len(flatten(form.instruction.operands)) - 1} sources")
    form.reads(*[32] * (2 + third))
    bits = target.bits
    low = -(1 << (bits - 1)) if target.signed else 0
    high = low + (1 << bits) - 1
    mask = np.uint32((1 << bits) - 1)

    def clamped(a: Bits) -> Bits:
        return view(clipped(view(a, np.int32), np.int32(low), np.int32(high)), np.uint32) & mask

    def compute(a: Bits, b: Bits, *c: Bits) -> Bits:
        result = (clamped(a) << np.uint32(bits)) | clamped(b)
        return result | (c[0] << np.uint32(2 * bits)) if c else result

    return compute


# ---- between integers and floats --------------------------------------------------------------


def _float_to_integer(form: Form, target: PtxType, source: PtxType) -> Compute:
    fmt, dtype = format_of(source.name), integer_dtype(target)
    whole = _TO_INTEGRAL[form.choice(*_TO_INTEGRAL)]
    form.flag("sat")  # implied
    flush = _flush(form, fmt)
    limits = np.iinfo(dtype)
    # NaN converts to 0 only between types of at most 32 bits.
    unordered = 0 if source.bits < 64 and target.bits < 64 else 1 << (target.bits - 1)
    nan = view(bits_dtype(target.bits).type(unordered), dtype)
    lowest, above = float(limits.min), 2.0 ** (target.bits - target.signed)
    finish = _widened(form, target)

    def compute(a: Bits) -> Bits:
        value = whole(wide(fmt, flush(a)))
        # Both limits are powers of two, exact in binary64; `above` is the first value out of range.
        small, big = value < lowest, value >= above
        fits = ~(small | big | (value != value))  # noqa: PLR0124
        result = np.where(fits, value, 0.0).astype(dtype)
        if not fits.all():
            result = np.where(small, dtype.type(limits.min), result)
            result = np.where(big, dtype.type(limits.max), result)
            result = np.where(value != value, nan, result)  # noqa: PLR0124
        return finish(result)

    return compute


def _integer_to_float(form: Form, target: PtxType, source: PtxType) -> Compute:
    fmt, dtype = format_of(target.name), integer_dtype(source)
    mode = form.choice(*ROUNDINGS)
    saturate = form.flag("sat")
    convert = _integer_rounding(fmt, dtype, mode)
    return (lambda a: fmt.saturate(convert(a))) if saturate else convert


def _integer_rounding(fmt: FloatFormat, dtype: np.dtype[Any], mode: str) -> Callable[[Bits], Bits]:
    if mode == "rn" and fmt in (F32, F64):
        native = np.dtype(f"f{fmt.bits // 8}")
        return lambda a: view(view(a, dtype).astype(native), fmt.dtype)
    if dtype.itemsize < 8:
        return lambda a: round_to(view(a, dtype).astype(np.float64), fmt, mode)
    if fmt is F64:

        def to_double(a: Bits) -> Bits:
            total, error = _parts(view(a, dtype))
            return step(F64.store(total), F64, error > 0, error < 0, mode)

        return to_double
    return lambda a: round_to(fix_odd(*_parts(view(a, dtype))), fmt, mode)


def _parts(value: Bits) -> tuple[Floats, Floats]:
    """Return 64-bit integers as the sum of two float64 numbers."""
    low = value & value.dtype.type(0x7FF)
    return two_sum((value - low).astype(np.float64), low.astype(np.float64))


# ---- floats -----------------------------------------------------------------------------------


def _flush(form: Form, *formats: FloatFormat) -> Callable[[Bits], Bits]:
    """Take `.ftz`, and return the flush of the source, the first of `formats`; one must be f32."""
    if not form.flag("ftz"):
        return lambda bits: bits
    if F32 not in formats:
        raise Unsupported(".ftz without .f32")
    return F32.flush if formats[0] is F32 else lambda bits: bits


def _between_floats(form: Form, target: PtxType, source: PtxType) -> Compute:
    into, of = format_of(target.name), format_of(source.name)
    flushes = "ftz" in form.instruction.modifiers
    flush = _flush(form, of, into)
    if into is F16:
        flush = lambda bits: bits  # noqa: E731 - an H200 reads subnormal fp32 even with `.ftz`
    convert = _float_rounding(form, into, of, flushes=flushes)
    after = _finishes(form, into)
    if flushes and into is F32:
        after.insert(0, F32.flush)

    def compute(a: Bits) -> Bits:
        result = convert(flush(a))
        for finish in after:
            result = finish(result)
        return result

    return compute if after or flushes else convert


def _float_rounding(
    form: Form, into: FloatFormat, of: FloatFormat, *, flushes: bool = False
) -> Callable[[Bits], Bits]:
    integral = form.choice(*_TO_INTEGRAL, default="")
    if integral:
        if into is not of:
            raise Unsupported(f".{integral} between types")
        whole = _TO_INTEGRAL[integral]
        return lambda a: into.store(whole(of.load(a)))
    if into is of:
        form.choice(*ROUNDINGS, default="rn")
        # Only flushing is arithmetic; without it NaN stays unchanged.
        return (lambda a: into.store(of.load(a))) if flushes else lambda a: a
    # Only a wider format, with at least as many exponent bits, holds all numbers.
    exact = into.bits > of.bits
    # Between the two 16-bit formats, ptxas accepts no default for `.rn`.
    mode = form.choice(*ROUNDINGS, default="rn" if into.bits >= of.bits else None)
    if of is F64:
        return _from_double(into, mode, flushes=flushes)
    if of.name == "bf16" and into is F32:
        # A shift, so NaN stays unchanged.
        return lambda a: a.astype(np.uint32) << np.uint32(16)
    if exact:
        # Flushing fp32 makes NaN canonical.
        load = F32.canonical if flushes and of is F32 else lambda a, _: a
        return lambda a: into.store(of.load(load(a, of.is_nan(a))))
    if mode == "rn":
        return lambda a: into.store(of.load(a))  # from binary32, in one rounding
    return lambda a: round_to(wide(of, a), into, mode)


def _from_double(into: FloatFormat, mode: str, *, flushes: bool) -> Callable[[Bits], Bits]:
    """Return the rounding of binary64; NaN keeps its sign and the payload bits that fit."""

    def convert(a: Bits) -> Bits:
        result, unordered = round_to(F64.load(a), into, mode), F64.is_nan(a)
        if flushes:
            result = into.flush_raised(
                result, lambda: round_to(F64.load(a) * 2.0**SCALE, into, mode)
            )
        return np.where(unordered, into.narrowed_nan(a), result) if unordered.any() else result

    return convert


def _finishes(form: Form, fmt: FloatFormat) -> list[Callable[[Bits], Bits]]:
    flags = (
        (form.flag("satfinite"), fmt.saturate_finite),
        (form.flag("relu"), fmt.rectify),
        (form.flag("sat"), fmt.saturate),
    )
    return [finish for is_set, finish in flags if is_set]


def _to_tf32(form: Form, source: PtxType) -> Compute:
    """Round to 10 mantissa bits, with the low 13 bits zero.

    `.rna` has no instruction: its code adds half a step to finite numbers and truncates, NaN too.
    """
    if source.name != "f32":
        raise Unsupported(f"type .{source.name}")
    mode = form.choice("rn", "rz", "rna")
    dropped, lowest = np.uint32(0x1FFF), np.uint32(0x2000)
    half = np.uint32(0x1000)
    if mode == "rna":
        clamps = form.flag("satfinite")

        def away(a: Bits) -> Bits:
            finite = (a & F32.magnitude) < F32.infinity
            result = (a + np.where(finite, half, np.uint32(0))) & ~dropped
            # Clamp to the number below infinity, and step NaN down by as much.
            beyond = (result & F32.magnitude) >= F32.infinity
            return result - np.where(beyond, lowest, np.uint32(0)) if clamps else result

        return away
    after = _finishes(form, F32)

    def compute(a: Bits) -> Bits:
        to_even = half - np.uint32(1) + ((a // lowest) & np.uint32(1))
        raised = a + to_even if mode == "rn" else a
        result = F32.canonical(raised & ~dropped, F32.is_nan(a))
        for finish in after:
            result = finish(result)
        # Neither the largest fp32 number nor canonical NaN fits tf32.
        return result & ~dropped

    return compute


# ---- pairs ------------------------------------------------------------------------------------


def _to_pair(form: Form, target: PtxType, source: PtxType) -> Compute:
    """Convert two floats, the first into the upper half, or both halves of a packed source."""
    if target.kind != "float" or source.kind != "float":
        raise Unsupported(f"types .{target.name}.{source.name}")
    part = target.bits // 2
    convert = _element(form, target.element.name, source.element.name)
    word = bits_dtype(target.bits)
    shift = word.type(part)

    def joined(upper: Bits, lower: Bits) -> Bits:
        return (convert(upper).astype(word) << shift) | convert(lower).astype(word)

    if source.name == "f32":
        form.reads(32, 32)
        return joined
    if source.count == 1:
        raise Unsupported(f"type .{source.name}")
    form.reads(source.bits)
    whole, half = bits_dtype(source.bits), source.bits // 2
    # 4-bit codes lie in bytes; decoding drops the upper bits.
    element = bits_dtype(max(half, 8))
    return lambda a: joined((a >> whole.type(half)).astype(element), a.astype(element))


def _element(form: Form, target: str, source: str) -> Callable[[Bits], Bits]:
    if target in SMALL_FORMATS:
        return _to_small(form, SMALL_FORMATS[target], format_of(source))
    into = format_of(target)
    after = _finishes(form, into)
    if source in SMALL_FORMATS:
        form.choice("rn")  # the conversion is exact
        small = SMALL_FORMATS[source]
        convert: Callable[[Bits], Bits] = lambda a: into.store(small.decode(a))  # noqa: E731
    elif source == "f32" and into in (F16, FORMATS["bf16"]):
        convert = _float_rounding(form, into, F32)
    else:
        raise Unsupported(f"types .{target}x2.{source}x2")

    def compute(a: Bits) -> Bits:
        result = convert(a)
        for finish in after:
            result = finish(result)
        return result

    return compute if after else convert


def _to_small(form: Form, small: SmallFormat, of: FloatFormat) -> Callable[[Bits], Bits]:
    form.choice("satfinite")
    mode = form.choice("rn", "rz", "rp")
    rectify = form.flag("relu")

    def compute(a: Bits) -> Bits:
        value = wide(of, a)
        return small.encode(np.where(value <= 0, 0.0, value) if rectify else value, mode)

    return compute


_CONVERSIONS: dict[tuple[str, str], Callable[[Form, PtxType, PtxType], Compute]] = {
    ("int", "int"): _between_integers,
    ("int", "float"): _float_to_integer,
    ("float", "int"): _integer_to_float,
    ("float", "float"): _between_floats,
}

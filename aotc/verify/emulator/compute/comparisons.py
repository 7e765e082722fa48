"""Comparisons and selections.

Source: PTX ISA 9.7.6 "Comparison and Selection Instructions", 9.7.7 the same for half precision,
9.3.1 "Comparisons".
"""

# A rule is a lambda with one parameter per operand; `Compute` leaves their number open.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from aotc.verify.arrays import view
from aotc.verify.emulator.compute.float_arithmetic import element_format
from aotc.verify.emulator.compute.form import Form, PtxType, rule
from aotc.verify.emulator.compute.integer_arithmetic import integer_dtype
from aotc.verify.emulator.compute.registry import Bits, Compute, bits_dtype
from aotc.verify.emulator.compute.rounding import F16, F32, FloatFormat, format_of
from aotc.verify.emulator.errors import Unsupported
from aotc.verify.emulator.syntax import Pair

Comparison: TypeAlias = Callable[..., Any]

_EQUALITY: dict[str, Comparison] = {"eq": np.equal, "ne": np.not_equal}
_ORDER: dict[str, Comparison] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
# Unsigned only: lower, lower or same, higher, higher or same.
_UNSIGNED_ORDER = {"lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal}
_FLOAT: dict[str, Comparison] = {
    **_ORDER,
    "eq": np.equal,
    "ne": lambda a, b: (a < b) | (a > b),
    "equ": lambda a, b: ~((a < b) | (a > b)),
    "neu": np.not_equal,
    "ltu": lambda a, b: ~(a >= b),
    "leu": lambda a, b: ~(a > b),
    "gtu": lambda a, b: ~(a <= b),
    "geu": lambda a, b: ~(a < b),
    "num": lambda a, b: (a == a) & (b == b),  # noqa: PLR0124
    "nan": lambda a, b: (a != a) | (b != b),  # noqa: PLR0124
}
_COMBINE: dict[str, Callable[..., Any]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}


def _comparison(form: Form) -> Comparison:
    """Return the comparison, element by element, for the form's last type."""
    kind = form.type.element
    if kind.kind == "float":
        return _float_comparison(form, element_format(form))
    dtype = integer_dtype(kind)
    if kind.bits == 8:
        raise Unsupported(f"type .{kind.name}")
    tables = {**_EQUALITY}
    if kind.name[0] != "b":
        tables |= _ORDER
    if kind.name[0] == "u":
        tables |= _UNSIGNED_ORDER
    function = tables[form.choice(*tables)]
    if not kind.signed or function in _EQUALITY.values():
        return function
    return lambda a, b: function(view(a, dtype), view(b, dtype))


def _float_comparison(form: Form, fmt: FloatFormat) -> Comparison:
    function = _FLOAT[form.choice(*_FLOAT)]
    load, flush = fmt.load, fmt.flush
    if not form.flag("ftz"):
        return lambda a, b: function(load(a), load(b))
    if fmt not in (F16, F32):
        raise Unsupported(f".ftz of .{fmt.name}")
    return lambda a, b: function(load(flush(a)), load(flush(b)))


@rule("int", "setp", packed="no")
@rule("float", "setp", packed="itself")
def _setp(form: Form) -> Compute:
    """Compare; `p|q` is the result and its negation, or the results of both halves."""
    compare = _comparison(form)
    combine = _COMBINE.get(form.choice(*_COMBINE, default=""))
    bits, packed = form.type.bits, form.type.count > 1
    form.reads(bits, bits, *[1] * bool(combine))
    pair = isinstance(form.instruction.operands[0], Pair)
    if packed:
        if not pair:
            raise Unsupported("one result of two halves")
        compare = _by_halves(compare, form.type)

    def compute(a: Bits, b: Bits, *c: Bits) -> Bits | tuple[Bits, ...]:
        holds = compare(a, b)
        contrary = holds[..., 1] if packed else ~holds
        results = (holds[..., 0] if packed else holds, contrary)
        if combine:
            results = tuple(combine(result, *c) for result in results)
        return results if pair else results[0]

    return compute if pair or combine else compare


def _by_halves(compare: Comparison, packed: PtxType) -> Comparison:
    part = bits_dtype(packed.element.bits)
    return lambda *words: compare(*(view(np.asarray(word)[..., None], part) for word in words))


@rule("int", "set", types=2)
@rule("float", "set", packed="itself", types=2)
def _set(form: Form) -> Compute:
    """Compare; true is all ones, or 1.0 for a floating-point result."""
    target, _ = form.types
    compare = _comparison(form)
    combine = _COMBINE.get(form.choice(*_COMBINE, default=""))
    bits = form.type.bits
    form.reads(bits, bits, *[1] * bool(combine))
    packed = form.type.count > 1
    if packed != (target.count > 1):
        raise Unsupported(f"types .{target.name}.{form.type.name}")
    if packed:
        compare = _by_halves(compare, form.type)
    element = target.element
    dtype = bits_dtype(element.bits)
    all_ones = (1 << element.bits) - 1
    true = format_of(element.name).one if element.kind == "float" else dtype.type(all_ones)

    def compute(a: Bits, b: Bits, *c: Bits) -> Bits:
        holds = compare(a, b)
        if combine:
            holds = combine(holds, c[0][..., None] if packed else c[0])
        result = np.where(holds, true, dtype.type(0))
        return view(result, bits_dtype(target.bits))[..., 0] if packed else result

    return compute


@rule("", "selp")
def _selp(form: Form) -> Compute:
    bits = form.type.bits
    if bits not in (16, 32, 64):
        raise Unsupported(f"type .{form.type.name}")
    form.reads(bits, bits, 1)
    dtype = bits_dtype(bits)

    def compute(a: Bits, b: Bits, c: Bits) -> Bits:
        # Twice as fast as `where`, which branches.
        return b ^ ((a ^ b) & np.negative(c.astype(dtype)))

    return compute


@rule("int", "slct", types=2)
@rule("float", "slct", types=2)
def _slct(form: Form) -> Compute:
    """Select the first operand where the third is >= 0, else (NaN too) the second."""
    target, kind = form.types
    if kind.name not in ("s32", "f32"):
        raise Unsupported(f"type .{kind.name}")
    form.reads(target.bits, target.bits, 32)
    if kind.name == "s32":
        return lambda a, b, c: np.where(view(c, np.int32) >= 0, a, b)
    flush = F32.flush if form.flag("ftz") else np.asarray
    return lambda a, b, c: np.where(F32.load(flush(c)) >= 0, a, b)

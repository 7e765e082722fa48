"""Bound hardware's deviation from the interpreter by interpreting with noise.

A compiler may reorder sums, contract a product and a sum into one `fma`, and use approximate
instructions. So the kernel is interpreted again with such ops perturbed by hardware's possible
error. An element that depends on none of them stays unchanged and is compared to the bit. One
after a long chain moves by the chain's error, and near the zero of a difference by more. The
moves become bounds; see `compare.py`.

Errors must not cancel by luck, or a bound would be too small. So each op, or each of a few
groups of ops, has a run that always perturbs its results upwards, and the moves of these runs
are added up. In further runs all ops move up or down at random, for errors one direction
does not show, such as in a difference of two sums.

The table has a row for each inexact op. Units are steps of the op's type (2**-23 of a value in
fp32). Values are at least the errors the CUDA C++ Programming Guide and the PTX ISA state
for the backend's instruction or libdevice function.

Results exact in any order are not moved: products without rounding, sums of whole
numbers within the mantissa. Where partial sums may overflow in some order of the hardware's,
any result is right.

Invariant: an op that is not moved here has one right result, if `is_inexact` is false for all
ops that reach it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import arith, assembly, descriptor, scf, tile
from aotc.ir.dialects.mapped import Map
from aotc.ir.types import FP8E4NV, FP8E5, FP32, FP64, ElementType, ScalarType, element_of
from aotc.verify.arrays import Array, clipped, reshape
from aotc.verify.checks.atomic_sums import AtomicSums
from aotc.verify.checks.sums_in_any_order import (
    finite,
    largest_of,
    overflows_against_infinity,
    sums_of_products,
)
from aotc.verify.checks.value_flow import carried, sources
from aotc.verify.fp8_sums import STEP_K, fp8_sums
from aotc.verify.interpreter import libdevice
from aotc.verify.interpreter.numerics import round_to
from aotc.verify.interpreter.program import Program, Rule, Rules
from aotc.verify.interpreter.replay import Recording

# The smallest normal fp32: approximations flush smaller numbers to zero.
_FLUSHED = 2.0**-126
# The error of fp8 dots relative to the sum of magnitudes, besides the error in `fp8_sums`.
_FP8_SUM_STEP = 2.0**-12
_FP8_HALF_STEP = 2.0**-10
_FP8_NAMES: dict[ElementType, str] = {FP8E4NV: "e4m3", FP8E5: "e5m2"}


@dataclass(frozen=True, slots=True)
class _Error:
    """The error of an op: `steps` of its result, after `operand_steps` of its operand."""

    steps: float
    operand_steps: float = 0.0


_APPROXIMATE: dict[type[Op], _Error] = {
    arith.Exp: _Error(2.0, 1.0),  # ex2.approx of a rounded product
    arith.Exp2: _Error(2.0),
    arith.Log: _Error(2.0),
    arith.Log2: _Error(2.0),
    arith.Sqrt: _Error(2.0),
    arith.Rsqrt: _Error(2.0),
    arith.Sin: _Error(2.0),
    arith.Cos: _Error(2.0),
    arith.Erf: _Error(2.0),
    arith.Div: _Error(2.0),  # div.full
    arith.Libdevice: _Error(5.0),
}
_EXACT_IN_FP64 = (arith.Div, arith.Sqrt)
_LIBDEVICE_ERRORS = {  # by a part of the symbol
    "fast_tanh": _Error(2.0**12),  # tanh.approx
    "fast_pow": _Error(128.0),  # exp2 of a rounded product
    "fast_": _Error(4.0, 4.0),  # absolute errors up to 2^-21
    "gamma": _Error(16.0),
}
# Approximate PTX instructions, and contractible ones: these state no rounding.
_APPROXIMATE_TEXT = re.compile(
    r"\.(?:approx|full)\b|\b(?:add|sub|mul)(?:\.ftz|\.sat)*\.(?:f16|bf16|f32|f64)"
)
# `tanh.approx` is off by 2^-11, others by a few steps of fp32.
_ASSEMBLY_ERRORS = {"tanh": 2.0**-10, "": 2.0**-20}
_SUMS = (arith.Add, arith.Sub)
# A sum of whole numbers counts as exact if this many bits of the mantissa stay free: sums of other
# parts of the tile may be larger than this one.
_SPARE_BITS = 6

_CARRYING = (scf.For, scf.If, scf.While)
_RENAMES = (tile.Splat, tile.Broadcast, tile.ExpandDims, tile.Reshape, tile.Trans, arith.Neg)


def is_inexact(op: Op) -> bool:
    """Return whether hardware may round the result of `op` differently than the interpreter."""
    if isinstance(op, tile.Reduce | tile.Scan):
        return any(_is_order_dependent(inner) for inner in op.combine.walk())
    if isinstance(op, Map):
        return any(is_inexact(inner) for inner in op.body.walk())
    if isinstance(op, tile.AtomicRmw | descriptor.DescriptorReduce):
        return op.kind == "add" and _float_of(op.value) is not None
    if isinstance(op, tile.Dot):
        return _float_of(op.acc) is not None
    if isinstance(op, arith.Libdevice):
        return op.symbol not in libdevice.EXACT
    if isinstance(op, assembly.Assembly):
        is_approximate = _APPROXIMATE_TEXT.search(op.text) is not None
        return is_approximate and any(_float_of(out) is not None for out in op.outs)
    if isinstance(op, arith.Mul):
        through = (arith.Select,) if _scales_dot(op) else ()
        return _float_of(op.out) is not None and _feeds_sum(op.out, through=through)
    if isinstance(op, _SUMS):
        return _float_of(op.out) is not None and (_is_rounded_twice(op) or bool(_shared(op)))
    if type(op) in _APPROXIMATE:
        element = _float_of(op.results[0])
        return element is not None and not (element == FP64 and isinstance(op, _EXACT_IN_FP64))
    return False


def _is_order_dependent(op: Op) -> bool:
    """Return whether combining in another order may round differently."""
    is_sum = isinstance(op, (*_SUMS, arith.Mul, arith.Fma))
    return is_inexact(op) or (is_sum and _float_of(op.results[0]) is not None)


def _float_of(value: Value) -> ScalarType | None:
    element = element_of(value.type)
    return element if isinstance(element, ScalarType) and element.is_float else None


def _feeds_sum(value: Value, *, through: tuple[type[Op], ...] = ()) -> bool:
    """Return whether a sum takes a value, through renames, carries or ops of `through`."""
    seen: dict[Value, None] = {}
    worklist = [value]
    while worklist:
        link = worklist.pop()
        if link in seen:
            continue
        seen[link] = None
        for user in link.users:
            if isinstance(user, _SUMS):
                return True
            if isinstance(user, (*_RENAMES, *through)):
                worklist += user.results
        worklist += carried(link)
    return False


def _scales_dot(op: arith.Mul) -> bool:
    """Return whether a factor is a dot's result: passes move masks off such products."""
    return any(isinstance(_renamed(factor).op, tile.Dot) for factor in (op.lhs, op.rhs))


def _renamed(value: Value) -> Value:
    while isinstance(value.op, _RENAMES):
        value = value.op.operands[0]
    return value


def _is_rounded_twice(op: Op) -> bool:
    """Return whether a sum in a chain, scaled or not, has inexact terms."""
    return _feeds_sum(op.results[0], through=(arith.Mul,)) and _adds_inexact(op)


def _shared(op: Op) -> list[int]:
    """Return the operands of a sum that are products with other uses.

    The sum may take them unrounded, and the other uses rounded: in a product minus itself, the
    rounding error remains.
    """
    return [index for index, value in enumerate(op.operands) if _is_shared_product(value)]


def _is_shared_product(value: Value) -> bool:
    is_shared = False
    is_selected = False
    worklist = [value]
    while worklist:
        link = worklist.pop()
        source = link.op
        is_shared |= len(dict.fromkeys(link.users)) > 1
        if isinstance(source, arith.Mul):
            return is_shared and (_scales_dot(source) or not is_selected)
        if isinstance(source, arith.Select):
            is_selected = True
            worklist += (source.if_true, source.if_false)
        elif isinstance(source, _RENAMES):
            worklist += source.operands
    return False


def _adds_inexact(op: Op) -> bool:
    """Return whether a chain of sums has an inexact operand.

    Then a sum may round to the other side, by a step larger than the operand's, and later sums
    may cancel all but this step.
    """
    seen: dict[Value, None] = {}
    worklist = list(op.operands)
    while worklist:
        value = worklist.pop()
        if value in seen:
            continue
        seen[value] = None
        source = value.op
        if source is None or isinstance(source, _CARRYING):
            worklist += sources(value)
        elif isinstance(source, (*_SUMS, *_RENAMES)):
            worklist += source.operands
        elif is_inexact(source):
            return True
    return False


def _less(value: Array, share: float) -> Array:
    """Return values smaller in magnitude by a share of themselves."""
    return (value.astype(np.float64) * (1.0 - share)).astype(value.dtype)


def _exact_product(a: Array, b: Array) -> Array:
    """Return exact products of operands up to fp32."""
    return a.astype(np.float64) * b.astype(np.float64)


def _dot_errors(
    op: tile.Dot, element: ScalarType, a: Array, b: Array, acc: Array
) -> tuple[Array, Array | None, Array | None]:
    """Return a dot's error bound, where it is exact, and where it may overflow.

    The last two are as in `sums_of_products`. Promoting fp8 products costs the accumulator no
    more than an addition.
    """
    rounding = 2.0 * 2.0**-element.mantissa_bits
    source = _float_of(op.a)
    is_fp8 = source is not None and source.bits == 8
    step = rounding
    if is_fp8:
        step = _FP8_SUM_STEP if element == FP32 else _FP8_HALF_STEP
    size, is_exact, overflows = sums_of_products(a, b, acc, step)
    off = step * size
    if not is_fp8:
        return off, is_exact, overflows
    interval = op.max_num_imprecise_acc and max(op.max_num_imprecise_acc, STEP_K)
    if interval:
        off += (rounding - step) * np.abs(finite(acc))
    wide_a, wide_b, wide = (finite(value.astype(np.float64)) for value in (a, b, acc))
    kinds = _FP8_NAMES[element_of(op.a.type)], _FP8_NAMES[element_of(op.b.type)]
    narrow = fp8_sums(wide_a, wide_b, wide, kinds, interval)
    off += np.abs(narrow - (np.matmul(wide_a, wide_b) + wide))
    return off, is_exact, overflows


# ---- rules ------------------------------------------------------------------------------------


def _adds(op: tile.Reduce, index: int) -> bool:
    """Return whether a reduction's result of this number is a sum of floats."""
    last, num_values = op.combine.terminator.operands[index].op, len(op.outs)
    if not isinstance(last, arith.Add) or _float_of(op.outs[index]) is None:
        return False
    return set(last.operands) == {op.combine.args[index], op.combine.args[num_values + index]}


def inexact_ops(kernel: Kernel) -> list[Op]:
    """Return the inexact ops of a kernel; a reduction or map stands for the ops in it."""
    inexact: list[Op] = []
    worklist = [kernel.body]
    while worklist:
        for op in worklist.pop():
            if is_inexact(op):
                inexact.append(op)
            if not isinstance(op, tile.Reduce | tile.Scan | Map):
                worklist += op.blocks
    return inexact


def noisy_rules(
    rules: Rules,
    seed: int,
    active: Collection[Op],
    recording: Recording | None = None,
    *,
    upwards: bool,
    apart: int = 0,
) -> Rules:
    """Return `rules` with noise: ops of `active` are off by a random part of their error.

    With a `recording`, `rules` must replay it. A result open to any number becomes the same
    infinity for all ops. But an op takes the other infinity if its number among the ops of its
    type in `active` has a bit of `apart`.
    """
    noise = _Noise(rules, seed, active, recording or Recording(), upwards=upwards, apart=apart)
    return noise.rules()


class _Noise:
    def __init__(
        self,
        rules: Rules,
        seed: int,
        active: Collection[Op],
        recording: Recording,
        *,
        upwards: bool,
        apart: int,
    ) -> None:
        self._recording = recording
        self._rng = np.random.default_rng(seed)
        self._rules = rules
        self._infinity = np.inf if seed % 2 else -np.inf
        self._active: dict[Op, float] = {}  # the infinity each op takes
        numbers = Counter[type[Op]]()
        for op in active:
            takes_other = numbers[type(op)] & apart
            self._active[op] = -self._infinity if takes_other else self._infinity
            numbers[type(op)] += 1
        self._upwards = upwards
        self._combining = 0
        self._atomic_sums = AtomicSums()

    def _moves(self, op: Op) -> bool:
        """Return whether to move the result of `op`, or of the enclosing reduction."""
        return bool(self._combining) or op in self._active

    def rules(self) -> Rules:
        wrapped: dict[type[Op], Rule] = dict(self._rules)
        for cls in _APPROXIMATE:
            wrapped[cls] = self._approximate_rule(self._rules[cls])
        wrapped[arith.Div] = self._quotient_rule(wrapped[arith.Div])
        wrapped[arith.Mul] = self._product_rule(self._rules[arith.Mul])
        for cls in (*_SUMS, arith.Fma):
            wrapped[cls] = self._sum_rule(self._rules[cls])
        for cls in (assembly.InlineAsm, assembly.VolatileAsm):
            wrapped[cls] = self._assembly_rule(self._rules[cls])
        for cls in (tile.Reduce, tile.Scan, Map):
            wrapped[cls] = self._combining_rule(self._rules[cls])
        wrapped[tile.Dot] = self._dot_rule(self._rules[tile.Dot])
        for cls in (tile.AtomicRmw, descriptor.DescriptorReduce):
            wrapped[cls] = self._atomic_rule(self._rules[cls])
        return wrapped

    def _perturbed(self, value: Any, element: ScalarType, steps: float) -> Array:
        """Return `value` moved by between half and all of `steps` of its type."""
        value = np.asarray(value)
        wide = value.astype(np.float64)
        part = self._part(value.shape)
        noisy = wide + part * steps * 2.0**-element.mantissa_bits * np.abs(finite(wide))
        if element == FP32:
            # Flushed or kept: upward runs must show the flush as a move.
            subnormal = 0.0 if self._upwards else wide * (part > 0)
            may_be_flushed = np.abs(wide) < _FLUSHED * (1.0 + steps * 2.0**-element.mantissa_bits)
            noisy = np.where(may_be_flushed, subnormal, noisy)
        return reshape(np.asarray(round_to(np.asarray(noisy), element)), value.shape)

    def _part(self, shape: tuple[int, ...]) -> Array:
        """Return each element's random part of its error: at least half."""
        part = self._rng.random(shape)
        if self._upwards:
            part *= 0.5
            part += 0.5
            return part
        part -= 0.5
        part += np.copysign(0.5, part)
        return part

    def _approximate_rule(self, base: Rule) -> Rule:
        def rule(program: Program, op: Op, *operands: Array) -> Any:
            element = _float_of(op.results[0])
            if element is None or not self._moves(op):
                return base(program, op, *operands)
            parts = (part for part in _LIBDEVICE_ERRORS if part in getattr(op, "symbol", ""))
            error = _LIBDEVICE_ERRORS.get(next(parts, ""), _APPROXIMATE[type(op)])
            if error.operand_steps:
                operands = tuple(
                    self._perturbed(value, element, error.operand_steps) for value in operands
                )
            out = np.asarray(base(program, op, *operands))
            noisy = self._perturbed(out, element, error.steps)
            if not self._upwards or not np.isinf(out).any():
                return noisy
            # A slight overflow may not happen on hardware: upward runs must show a move.
            share = (error.steps + error.operand_steps) * 2.0**-element.mantissa_bits
            first = _less(operands[0], share)
            less = np.asarray(base(program, op, first, *operands[1:]))
            return np.where(np.isinf(out) & np.isfinite(less), less, noisy).astype(out.dtype)

        return rule

    def _quotient_rule(self, base: Rule) -> Rule:
        """Return the rule of quotients; an infinite divisor may just not have overflowed."""

        def rule(program: Program, op: arith.Div, a: Array, b: Array) -> Any:
            out = np.asarray(base(program, op, a, b))
            if not self._upwards or not self._moves(op) or _float_of(op.out) not in (FP32, FP64):
                return out
            least = np.where(np.isinf(b), finite(a) * np.copysign(np.finfo(out.dtype).tiny, b), 0.0)
            return np.where(least != 0.0, least, out).astype(out.dtype)

        return rule

    def _product_rule(self, base: Rule) -> Rule:
        """Return the rule of contractible products: unrounded, they may not overflow."""

        def rule(program: Program, op: arith.Mul, a: Array, b: Array) -> Any:
            out = np.asarray(base(program, op, a, b))
            element = _float_of(op.out)
            if element is None or not self._moves(op):
                return out
            noisy = self._perturbed(out, element, 1.0)
            if element != FP64:
                noisy = np.where(_exact_product(a, b) == out, out, noisy).astype(out.dtype)
            return self._choose_open(op, noisy, np.isfinite(a) & np.isfinite(b) & ~np.isfinite(out))

        return rule

    def _choose_open(self, op: Op, value: Array, is_open: Array) -> Array:
        """Replace open values by an infinity, NaN or a number.

        A later op may hide the difference between two choices, as a maximum hides NaN among
        negative numbers. So random runs of consecutive seeds take one infinity each, and an
        upward run takes NaN, or a number in place of NaN. A product of two open values may be
        NaN for either choice, so in some runs they differ.
        """
        if not is_open.any():
            return value
        other: Array | float = self._active.get(op, self._infinity)
        if self._upwards:
            other = np.where(np.isnan(value), 0.0, np.nan)
        return np.where(is_open, other, value).astype(value.dtype)

    def _assembly_rule(self, base: Rule) -> Rule:
        """Return the rule of assembly: floats of approximate instructions are moved."""

        def rule(program: Program, op: assembly.Assembly, *operands: Array) -> Any:
            outs = base(program, op, *operands)
            assert isinstance(outs, list)
            error = next(size for name, size in _ASSEMBLY_ERRORS.items() if name in op.text)
            noisy: list[Array] = []
            for value, out in zip(op.outs, outs, strict=True):
                element = _float_of(value)
                moves = element is not None and is_inexact(op) and self._moves(op)
                if element is not None and moves:
                    steps = max(2.0, error * 2.0**element.mantissa_bits)
                    noisy.append(self._perturbed(out, element, steps))
                else:
                    noisy.append(out)
            return noisy

        return rule

    def _sum_rule(self, base: Rule) -> Rule:
        """Return the rule of sums: off where the order is open, and where operands are off."""

        def rule(program: Program, op: Op, *operands: Array) -> Any:
            out = np.asarray(base(program, op, *operands))
            element = _float_of(op.results[0])
            if element is None or not self._moves(op):
                return out
            products = _shared(op) if isinstance(op, _SUMS) and not self._combining else []
            if products:
                out = self._unrounded(out, element, [operands[index] for index in products])
                if not _is_rounded_twice(op):
                    return out
            noisy = self._perturbed(out, element, 1.0)
            if not isinstance(op, _SUMS):
                return noisy
            a, b = (operand.astype(np.float64) for operand in operands)
            size = np.abs(a) + np.abs(b)
            is_exact = (a == np.rint(a)) & (b == np.rint(b))
            is_exact &= size < 2.0 ** (element.mantissa_bits - _SPARE_BITS)
            if not self._combining:  # a sum of two numbers has one order
                sign = -1.0 if isinstance(op, arith.Sub) else 1.0
                is_exact |= (a + sign * b == out) & (element != FP64)
                return np.where(is_exact, out, noisy).astype(out.dtype)
            noisy = np.where(is_exact, out, noisy).astype(out.dtype)
            largest = largest_of(out)
            # An overflow in some order is open; noise alone must not hide it by
            # an infinity.
            noisy = np.where(np.isfinite(out), clipped(noisy, -largest, largest), noisy)
            return self._choose_open(
                op, noisy.astype(out.dtype), np.isfinite(size) & (size > largest)
            )

        return rule

    def _unrounded(self, total: Array, element: ScalarType, products: list[Array]) -> Array:
        """Return a sum of unrounded products: off by part of a step of theirs."""
        size = sum(np.abs(finite(product.astype(np.float64))) for product in products)
        noisy = total + self._part(total.shape) * 2.0**-element.mantissa_bits * size
        return np.asarray(round_to(np.asarray(noisy, np.float64), element))

    def _combining_rule(self, base: Rule) -> Rule:
        def rule(program: Program, op: Op, *operands: Array) -> Array | Sequence[Array] | None:
            moves = int(op in self._active)
            outer, self._infinity = self._infinity, self._active.get(op, self._infinity)
            self._combining += moves
            try:
                outs = base(program, op, *operands)
            finally:
                self._combining -= moves
                self._infinity = outer
            if not moves or not isinstance(op, tile.Reduce):
                return outs
            assert isinstance(outs, list)
            return [
                self._in_any_order(op, index, value, out) if _adds(op, index) else out
                for index, (value, out) in enumerate(zip(operands, outs, strict=True))
            ]

        return rule

    def _in_any_order(self, op: tile.Reduce, index: int, value: Array, out: Array) -> Array:
        """Return sums as another order may give them, in which large terms cancel later.

        In any order, partial sums are about as large as the root of the sum of squares.
        """
        element = _float_of(op.outs[index])
        assert element is not None
        wide = value.astype(np.float64)
        size = finite(np.abs(wide))
        is_exact = (wide == np.rint(wide)).all(axis=op.axis)
        is_exact &= size.sum(axis=op.axis) < 2.0 ** (element.mantissa_bits - _SPARE_BITS)
        steps = 2.0**-element.mantissa_bits * np.sqrt(np.square(size).sum(axis=op.axis))
        noisy = out + self._part(out.shape) * steps
        largest = largest_of(out)
        noisy = np.where(is_exact | ~np.isfinite(out), out, clipped(noisy, -largest, largest))
        noisy = np.asarray(round_to(np.asarray(noisy, np.float64), element))
        return self._choose_open(op, noisy, overflows_against_infinity(wide, op.axis, largest))

    def _dot_rule(self, base: Rule) -> Rule:
        """Return the rule of dots, off by steps of the sum of magnitudes."""

        def rule(program: Program, op: tile.Dot, a: Array, b: Array, acc: Array) -> Any:
            out = np.asarray(base(program, op, a, b, acc))
            element = _float_of(op.acc)
            if element is None or op not in self._active:
                return out
            off, is_exact, overflows = self._recording.derived(
                out, lambda: _dot_errors(op, element, a, b, acc)
            )
            assert off is not None
            wide, noisy = out.astype(np.float64), self._part(out.shape)
            noisy *= off
            np.add(wide, noisy, out=noisy)
            if is_exact is not None:
                noisy = np.where(is_exact, wide, noisy)
            if overflows is not None:  # to either side
                noisy = self._choose_open(op, noisy, overflows)
            return round_to(noisy, element)

        return rule

    def _atomic_rule(self, base: Rule) -> Rule:
        """Return the rule of atomics, which add floats in any order."""

        def rule(program: Program, op: tile.AtomicRmw, *operands: Any) -> Any:
            element = _float_of(op.value)
            if element is None or op not in self._active:
                return base(program, op, *operands)
            program.memory.adjust_atomic = partial(self._reordered, op, element)
            try:
                return base(program, op, *operands)
            finally:
                program.memory.adjust_atomic = None

        return rule

    def _reordered(
        self,
        op: Op,
        element: ScalarType,
        address: Array,
        before: Array,
        value: Array,
        after: Array,
    ) -> Array:
        """Return sums at addresses as another order may give them."""
        largest = largest_of(after)
        sums = self._atomic_sums.add(address, before, value, element, largest)
        part = self._part(after.shape)
        # Less than a step would be rounded back, besides other moves.
        move = np.copysign(np.maximum(np.abs(part) * sums.deviation, sums.step), part)
        noisy = clipped(sums.total + np.where(sums.step > 0.0, move, 0.0), -largest, largest)
        total = np.where(np.isfinite(sums.total), noisy, sums.total)
        stored = self._choose_open(op, np.asarray(round_to(total, element)), sums.is_open)
        self._atomic_sums.leave(address, stored)
        return stored

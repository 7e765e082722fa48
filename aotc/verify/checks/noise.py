"""How far hardware may be from the interpreter, found by interpreting with noise.

A compiler may sum in another order, contract a product and a sum into one `fma`, and use
instructions that are only approximately right. So the kernel is interpreted again with such ops
moved by as much as the hardware may be off: an element that depends on none of them stays as it is
and is compared to the bit, one after a long chain moves by what the chain can lose, near a zero of
a difference by more. What moves is the bound; see `compare.py`.

Errors must not cancel by luck, or a bound would be too small. So there is a run for each of the
ops, or for each of a few groups of them, in which it moves its results upwards, always, and what
these runs move is added up; and there are runs in which all ops move theirs up or down at random,
for what an error in one direction does not show, such as a difference of two sums.

The table has a row for each op that is not exact. Units are steps of the type the op is computed
in (2**-23 of a value in fp32); values are at least those that the CUDA C++ Programming Guide and
the PTX ISA state for the instruction or the libdevice function that the backend emits.

What is exact in any order is not moved: products that need no rounding, sums of whole numbers that
stay within the mantissa. Where parts of a sum may overflow, in an order that hardware chooses, the
result is anything.

Invariant: an op that is not moved here, in a kernel for which `is_inexact` says no of all ops that
matter, has one right result.
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
from aotc.verify.interpreter.numerics import round_to
from aotc.verify.interpreter.program import Program, Rule, Rules
from aotc.verify.interpreter.replay import Recording

# The smallest normal fp32: what approximations flush to zero.
_FLUSHED = 2.0**-126
# What sums of fp8 products may be off by, of the sum of magnitudes, besides what `fp8_sums` says.
_FP8_SUM_STEP = 2.0**-12
_FP8_HALF_STEP = 2.0**-10
_FP8_NAMES: dict[ElementType, str] = {FP8E4NV: "e4m3", FP8E5: "e5m2"}


@dataclass(frozen=True, slots=True)
class _Error:
    """Say how far an op is off: `steps` of its result, after `operand_steps` of its operand."""

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
# What of libdevice rounds once or not at all.
_EXACT_LIBDEVICE = tuple(
    f"__nv_{name}{suffix}"
    for name in (
        *("fabs", "floor", "ceil", "trunc", "rint", "nearbyint", "round", "copysign", "fmin"),
        *("fmax", "fmod", "isnan", "isinf", "isnand", "isinfd", "finite", "fma", "fdim"),
    )
    for suffix in ("", "f")
)
# What the PTX ISA calls approximate, and what it lets be contracted: no rounding is written.
_APPROXIMATE_TEXT = re.compile(
    r"\.(?:approx|full)\b|\b(?:add|sub|mul)(?:\.ftz|\.sat)*\.(?:f16|bf16|f32|f64)"
)
# `tanh.approx` is off by 2^-11, others by a few steps of fp32.
_ASSEMBLY_ERRORS = {"tanh": 2.0**-10, "": 2.0**-20}
_SUMS = (arith.Add, arith.Sub)
# A sum of whole numbers is taken for exact if this many bits of the mantissa stay free: sums of
# other parts of a tile may be larger than the one that is seen.
_SPARE_BITS = 6

_CARRYING = (scf.For, scf.If, scf.While)
_RENAMES = (tile.Splat, tile.Broadcast, tile.ExpandDims, tile.Reshape, tile.Trans, arith.Neg)


def is_inexact(op: Op) -> bool:
    """Return whether hardware may round the result of `op` differently than the interpreter."""
    if isinstance(op, tile.Reduce | tile.Scan):
        return any(_is_order_dependent(each) for each in op.combine.walk())
    if isinstance(op, Map):
        return any(is_inexact(each) for each in op.body.walk())
    if isinstance(op, tile.AtomicRmw | descriptor.DescriptorReduce):
        return op.kind == "add" and _float_of(op.value) is not None
    if isinstance(op, tile.Dot):
        return _float_of(op.acc) is not None
    if isinstance(op, arith.Libdevice):
        return op.symbol not in _EXACT_LIBDEVICE
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
    """Return whether a sum takes a value, renamed or carried, or what ops of `through` make of it."""
    seen: dict[Value, None] = {}
    worklist = [value]
    while worklist:
        each = worklist.pop()
        if each in seen:
            continue
        seen[each] = None
        for user in each.users:
            if isinstance(user, _SUMS):
                return True
            if isinstance(user, (*_RENAMES, *through)):
                worklist += user.results
        worklist += carried(each)
    return False


def _scales_dot(op: arith.Mul) -> bool:
    """Return whether a factor is the result of a dot: masks are moved away from such products."""
    return any(isinstance(_renamed(factor).op, tile.Dot) for factor in (op.lhs, op.rhs))


def _renamed(value: Value) -> Value:
    while isinstance(value.op, _RENAMES):
        value = value.op.operands[0]
    return value


def _is_rounded_twice(op: Op) -> bool:
    """Return whether a sum in a chain may be rounded to the other side, scaled on its way or not."""
    return _feeds_sum(op.results[0], through=(arith.Mul,)) and _adds_inexact(op)


def _shared(op: Op) -> list[int]:
    """Return which operands of a sum are products that others use as well.

    The sum may take them as they are before they are rounded, and others rounded: what is left of
    the difference of a product and itself is the rounding error.
    """
    return [at for at, value in enumerate(op.operands) if _is_shared_product(value)]


def _is_shared_product(value: Value) -> bool:
    is_shared = False
    is_selected = False
    worklist = [value]
    while worklist:
        each = worklist.pop()
        source = each.op
        is_shared |= len(dict.fromkeys(each.users)) > 1
        if isinstance(source, arith.Mul):
            return is_shared and (_scales_dot(source) or not is_selected)
        if isinstance(source, arith.Select):
            is_selected = True
            worklist += (source.if_true, source.if_false)
        elif isinstance(source, _RENAMES):
            worklist += source.operands
    return False


def _adds_inexact(op: Op) -> bool:
    """Return whether a chain of sums has an operand that hardware may round differently.

    A sum of it may then be rounded to the other side, by a step of its own that is larger than the
    operand's, and the sums after it may cancel what is left.
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
    """Return values smaller in magnitude by a share of them."""
    return (value.astype(np.float64) * (1.0 - share)).astype(value.dtype)


def _exact_product(a: Array, b: Array) -> Array:
    """Return products of operands up to fp32 as they are before they are rounded."""
    return a.astype(np.float64) * b.astype(np.float64)


def _dot_errors(
    op: tile.Dot, element: ScalarType, a: Array, b: Array, acc: Array
) -> tuple[Array, Array | None, Array | None]:
    """Return by how much a dot may be off, and as `sums_of_products` what is exact and what overflows.

    fp8 products that are promoted cost the accumulator no more than an addition does.
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


def _adds(op: tile.Reduce, at: int) -> bool:
    """Return whether a reduction's result of this number is a sum of floats."""
    last, num_values = op.combine.terminator.operands[at].op, len(op.outs)
    if not isinstance(last, arith.Add) or _float_of(op.outs[at]) is None:
        return False
    return set(last.operands) == {op.combine.args[at], op.combine.args[num_values + at]}


def inexact_ops(kernel: Kernel) -> list[Op]:
    """Return the inexact ops of a kernel; what is inside a reduction or a map counts as that."""
    found: list[Op] = []
    worklist = [kernel.body]
    while worklist:
        for op in worklist.pop():
            if is_inexact(op):
                found.append(op)
            if not isinstance(op, tile.Reduce | tile.Scan | Map):
                worklist += op.blocks
    return found


def noisy_rules(
    rules: Rules,
    seed: int,
    active: Collection[Op],
    recording: Recording | None = None,
    *,
    upwards: bool,
    apart: int = 0,
) -> Rules:
    """Return `rules` in which the ops of `active` are off by a random part of their error.

    With a `recording`, `rules` are to recall what is recorded. What may be any number is the same
    infinity for all ops; but those of a type whose number in `active` has a bit of `apart` take the other.
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
        self._active: dict[Op, float] = {}  # which infinity each takes
        numbers = Counter[type[Op]]()
        for op in active:
            takes_other = numbers[type(op)] & apart
            self._active[op] = -self._infinity if takes_other else self._infinity
            numbers[type(op)] += 1
        self._upwards = upwards
        self._combining = 0
        self._atomic_sums = AtomicSums()

    def _moves(self, op: Op) -> bool:
        """Return whether to move the result of `op`, or of the reduction it is in."""
        return bool(self._combining) or op in self._active

    def rules(self) -> Rules:
        wrapped: dict[type[Op], Rule] = dict(self._rules)
        for cls, error in _APPROXIMATE.items():
            wrapped[cls] = self._approximate(self._rules[cls], error)
        wrapped[arith.Div] = self._quotient(wrapped[arith.Div])
        wrapped[arith.Mul] = self._product(self._rules[arith.Mul])
        for cls in (*_SUMS, arith.Fma):
            wrapped[cls] = self._combined(self._rules[cls])
        for cls in (assembly.InlineAsm, assembly.VolatileAsm):
            wrapped[cls] = self._assembly(self._rules[cls])
        for cls in (tile.Reduce, tile.Scan, Map):
            wrapped[cls] = self._combining_rule(self._rules[cls])
        wrapped[tile.Dot] = self._dot(self._rules[tile.Dot])
        for cls in (tile.AtomicRmw, descriptor.DescriptorReduce):
            wrapped[cls] = self._atomic(self._rules[cls])
        return wrapped

    def _moved(self, value: Any, element: ScalarType, steps: float) -> Array:
        """Return `value` moved by up to `steps` of its type, at least by half of that."""
        value = np.asarray(value)
        wide = value.astype(np.float64)
        part = self._part(value.shape)
        moved = wide + part * steps * 2.0**-element.mantissa_bits * np.abs(finite(wide))
        if element == FP32:
            # Flushed or kept: the runs that add up what moves must see the move.
            kept = 0.0 if self._upwards else wide * (part > 0)
            may_be_flushed = np.abs(wide) < _FLUSHED * (1.0 + steps * 2.0**-element.mantissa_bits)
            moved = np.where(may_be_flushed, kept, moved)
        return reshape(np.asarray(round_to(np.asarray(moved), element)), value.shape)

    def _part(self, shape: tuple[int, ...]) -> Array:
        """Return how much of its error each element makes: at least half of it."""
        part = self._rng.random(shape)
        if self._upwards:
            part *= 0.5
            part += 0.5
            return part
        part -= 0.5
        part += np.copysign(0.5, part)
        return part

    def _approximate(self, base: Rule, error: _Error) -> Rule:
        def rule(program: Program, op: Op, *operands: Array) -> Any:
            element = _float_of(op.results[0])
            if element is None or not self._moves(op):
                return base(program, op, *operands)
            if error.operand_steps:
                operands = tuple(
                    self._moved(value, element, error.operand_steps) for value in operands
                )
            out = np.asarray(base(program, op, *operands))
            moved = self._moved(out, element, error.steps)
            if not self._upwards or not np.isinf(out).any():
                return moved
            # What overflows by little may not: the runs that add up what moves must see that.
            share = (error.steps + error.operand_steps) * 2.0**-element.mantissa_bits
            first = _less(operands[0], share)
            less = np.asarray(base(program, op, first, *operands[1:]))
            return np.where(np.isinf(out) & np.isfinite(less), less, moved).astype(out.dtype)

        return rule

    def _quotient(self, base: Rule) -> Rule:
        """Return the rule of quotients by what overflowed, which may have been just below that."""

        def rule(program: Program, op: arith.Div, a: Array, b: Array) -> Any:
            out = np.asarray(base(program, op, a, b))
            if not self._upwards or not self._moves(op) or _float_of(op.out) not in (FP32, FP64):
                return out
            least = np.where(np.isinf(b), finite(a) * np.copysign(np.finfo(out.dtype).tiny, b), 0.0)
            return np.where(least != 0.0, least, out).astype(out.dtype)

        return rule

    def _product(self, base: Rule) -> Rule:
        """Return the rule of products that may be contracted: unrounded, they may not overflow."""

        def rule(program: Program, op: arith.Mul, a: Array, b: Array) -> Any:
            out = np.asarray(base(program, op, a, b))
            element = _float_of(op.out)
            if element is None or not self._moves(op):
                return out
            moved = self._moved(out, element, 1.0)
            if element != FP64:
                moved = np.where(_exact_product(a, b) == out, out, moved).astype(out.dtype)
            return self._open(op, moved, np.isfinite(a) & np.isfinite(b) & ~np.isfinite(out))

        return rule

    def _open(self, op: Op, value: Array, is_open: Array) -> Array:
        """Return values of which some may be anything: infinities, NaN and numbers.

        What follows may hide the difference of two of them, as a maximum hides that of NaN from what
        is negative. So runs of consecutive seeds at random take one infinity each, and a run upwards
        takes NaN, or a number where the value is NaN of itself. The product of two may be NaN whichever
        both take, so in some runs they take different ones.
        """
        if not is_open.any():
            return value
        other: Array | float = self._active.get(op, self._infinity)
        if self._upwards:
            other = np.where(np.isnan(value), 0.0, np.nan)
        return np.where(is_open, other, value).astype(value.dtype)

    def _assembly(self, base: Rule) -> Rule:
        """Return the rule of assembly, whose floats are moved if it is approximate."""

        def rule(program: Program, op: assembly.Assembly, *operands: Array) -> Any:
            outs = base(program, op, *operands)
            assert isinstance(outs, list)
            error = next(size for name, size in _ASSEMBLY_ERRORS.items() if name in op.text)
            moved: list[Array] = []
            for value, out in zip(op.outs, outs, strict=True):
                element = _float_of(value)
                moves = element is not None and is_inexact(op) and self._moves(op)
                if element is not None and moves:
                    steps = max(2.0, error * 2.0**element.mantissa_bits)
                    moved.append(self._moved(out, element, steps))
                else:
                    moved.append(out)
            return moved

        return rule

    def _combined(self, base: Rule) -> Rule:
        """Return the rule of sums: off where their order is open, and where operands are off."""

        def rule(program: Program, op: Op, *operands: Array) -> Any:
            out = np.asarray(base(program, op, *operands))
            element = _float_of(op.results[0])
            if element is None or not self._moves(op):
                return out
            products = _shared(op) if isinstance(op, _SUMS) and not self._combining else []
            if products:
                out = self._unrounded(out, element, [operands[at] for at in products])
                if not _is_rounded_twice(op):
                    return out
            moved = self._moved(out, element, 1.0)
            if not isinstance(op, _SUMS):
                return moved
            a, b = (operand.astype(np.float64) for operand in operands)
            size = np.abs(a) + np.abs(b)
            is_exact = (a == np.rint(a)) & (b == np.rint(b))
            is_exact &= size < 2.0 ** (element.mantissa_bits - _SPARE_BITS)
            if not self._combining:  # of two numbers alone, in the order that is written
                sign = -1.0 if isinstance(op, arith.Sub) else 1.0
                is_exact |= (a + sign * b == out) & (element != FP64)
                return np.where(is_exact, out, moved).astype(out.dtype)
            moved = np.where(is_exact, out, moved).astype(out.dtype)
            largest = largest_of(out)
            # What overflows in some order is open; noise alone makes no infinity, which would hide that.
            moved = np.where(np.isfinite(out), clipped(moved, -largest, largest), moved)
            return self._open(op, moved.astype(out.dtype), np.isfinite(size) & (size > largest))

        return rule

    def _unrounded(self, total: Array, element: ScalarType, products: list[Array]) -> Array:
        """Return a sum that takes products unrounded: off by a part of a step of theirs."""
        size = sum(np.abs(finite(product.astype(np.float64))) for product in products)
        moved = total + self._part(total.shape) * 2.0**-element.mantissa_bits * size
        return np.asarray(round_to(np.asarray(moved, np.float64), element))

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
                self._in_any_order(op, at, value, out) if _adds(op, at) else out
                for at, (value, out) in enumerate(zip(operands, outs, strict=True))
            ]

        return rule

    def _in_any_order(self, op: tile.Reduce, at: int, value: Array, out: Array) -> Array:
        """Return sums as another order may give them, in which large terms cancel later.

        Partial sums are about as large as the root of the sum of squares, in whatever order.
        """
        element = _float_of(op.outs[at])
        assert element is not None
        wide = value.astype(np.float64)
        size = finite(np.abs(wide))
        is_exact = (wide == np.rint(wide)).all(axis=op.axis)
        is_exact &= size.sum(axis=op.axis) < 2.0 ** (element.mantissa_bits - _SPARE_BITS)
        steps = 2.0**-element.mantissa_bits * np.sqrt(np.square(size).sum(axis=op.axis))
        moved = out + self._part(out.shape) * steps
        largest = largest_of(out)
        moved = np.where(is_exact | ~np.isfinite(out), out, clipped(moved, -largest, largest))
        moved = np.asarray(round_to(np.asarray(moved, np.float64), element))
        return self._open(op, moved, overflows_against_infinity(wide, op.axis, largest))

    def _dot(self, base: Rule) -> Rule:
        """Return the rule of products whose sum is off by steps of the sum of magnitudes."""

        def rule(program: Program, op: tile.Dot, a: Array, b: Array, acc: Array) -> Any:
            out = np.asarray(base(program, op, a, b, acc))
            element = _float_of(op.acc)
            if element is None or op not in self._active:
                return out
            off, is_exact, overflows = self._recording.derived(
                out, lambda: _dot_errors(op, element, a, b, acc)
            )
            assert off is not None
            wide, moved = out.astype(np.float64), self._part(out.shape)
            moved *= off
            np.add(wide, moved, out=moved)
            if is_exact is not None:
                moved = np.where(is_exact, wide, moved)
            if overflows is not None:  # to either side
                moved = self._open(op, moved, overflows)
            return round_to(moved, element)

        return rule

    def _atomic(self, base: Rule) -> Rule:
        """Return the rule of atomics, whose sums of floats are made in any order."""

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
        # By what is less than a step they would be rounded back, and what else moves them as well.
        move = np.copysign(np.maximum(np.abs(part) * sums.deviation, sums.step), part)
        moved = clipped(sums.total + np.where(sums.step > 0.0, move, 0.0), -largest, largest)
        total = np.where(np.isfinite(sums.total), moved, sums.total)
        stored = self._open(op, np.asarray(round_to(total, element)), sums.is_open)
        self._atomic_sums.leave(address, stored)
        return stored

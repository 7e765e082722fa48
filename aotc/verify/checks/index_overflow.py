"""Detect 32-bit overflow in addresses, where a kernel accesses unintended memory.

From the first wrap to the access, each value of an address is shadowed by the exact one, in
64 bits. Masked-out elements may wrap.

Invariant: an access is reported only if an unmasked element's address differs in 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aotc.ir.core import Kernel, Op
from aotc.ir.dialects import arith, tile
from aotc.verify.arrays import Array
from aotc.verify.checks.value_flow import backward
from aotc.verify.interpreter.program import InterpretError, Program, Rule, Rules

_WIDE_BYTES = 8
_EXACT: Mapping[type[Op], Callable[[Array, Array], Array]] = {
    arith.Add: np.add,
    arith.Sub: np.subtract,
    arith.Mul: np.multiply,
    arith.Shl: np.left_shift,
}
_PASSING = (
    *(tile.Splat, tile.Broadcast, tile.ExpandDims, tile.Reshape, tile.Trans),
    *(arith.Cast, arith.Select, arith.AddPtr),
)
_ACCESSES = (tile.Load, tile.Store, tile.AtomicRmw, tile.AtomicCas)
_WORDS: Mapping[type[Op], str] = {
    arith.Add: "sum",
    arith.Sub: "difference",
    arith.Mul: "product",
    arith.Shl: "shift",
}


class IndexOverflowError(InterpretError):
    """Report an address computed in too few bits."""


@dataclass(frozen=True, slots=True)
class _Wrapped:
    """A wrapped value of an address, its exact value in 64 bits, and the first wrapping op."""

    value: Array
    exact: Array
    culprit: Op


@dataclass(slots=True)
class OverflowWatch:
    """Find the first op of an address to wrap.

    `wraps` is set even if no access uses such an element.
    """

    kernel: Kernel
    wraps: bool = False
    culprit: Op | None = None
    access: Op | None = None
    # Keyed by the array's identity, which control flow preserves.
    _wrapped: dict[int, _Wrapped] = field(default_factory=dict[int, _Wrapped])

    def recording(self, rules: Rules) -> Rules:
        """Return `rules` wrapped with the overflow watch."""
        offsets = [op.offset for op in self.kernel.walk() if isinstance(op, arith.AddPtr)]
        watched = {value.op for value in backward(offsets, through_loads=False)}
        computed = {kind: self._computing(rules[kind], watched, kind) for kind in _EXACT}
        passed = {kind: self._passing(rules[kind]) for kind in _PASSING}
        accessed = {kind: self._accessing(rules[kind]) for kind in _ACCESSES}
        return {**rules, **computed, **passed, **accessed}

    def error(self) -> IndexOverflowError | None:
        """Return the error at the wrapping op; None if no access is affected."""
        if self.culprit is None or self.access is None:
            return None
        word = _WORDS[type(self.culprit)]
        message = f"this int32 {word} of an address overflows"
        error = IndexOverflowError(message, self.culprit.loc)
        error.remedy = "compute it in 64 bits: `.to(tl.int64)` on an operand"
        error.add_context(f"the access at {self.access.loc} is elsewhere than it is meant to be")
        return error

    def _computing(self, base: Rule, watched: set[Op | None], kind: type[Op]) -> Rule:
        exactly = _EXACT[kind]

        def rule(program: Program, op: Op, a: Array, b: Array) -> Any:
            out = np.asarray(base(program, op, a, b))
            if op not in watched or out.dtype.kind != "i":
                return out
            culprit = self._culprit(a, b)
            is_narrow = out.dtype.itemsize < _WIDE_BYTES
            if is_narrow or culprit is not None:
                exact = exactly(self._wide(a), self._wide(b))
                wraps = is_narrow and bool((exact != out).any())
                self.wraps |= wraps
                if wraps or culprit is not None:
                    self._wrapped[id(out)] = _Wrapped(out, exact, culprit or op)
            return out

        return rule

    def _passing(self, base: Rule) -> Rule:
        def rule(program: Program, op: Op, *operands: Array) -> Any:
            out = np.asarray(base(program, op, *operands))
            culprit = self._culprit(*operands)
            if culprit is None:
                return out
            exact: Any = None
            if not isinstance(op, arith.Cast):
                exact = base(program, op, *map(self._wide, operands))
            elif out.dtype.kind == "i" and out.dtype.itemsize == _WIDE_BYTES:
                exact = self._wide(operands[0])
            if exact is not None:
                self._wrapped[id(out)] = _Wrapped(out, np.asarray(exact), culprit)
            return out

        return rule

    def _accessing(self, base: Rule) -> Rule:
        def rule(program: Program, op: Any, *operands: Array | None) -> Any:
            values = dict(zip(op.slots, operands, strict=True))
            wrapped = self._find(values[op.pointer])
            if wrapped is not None and self.culprit is None:
                differs = wrapped.exact != wrapped.value
                mask = values.get(getattr(op, "mask", None))
                if (differs if mask is None else differs & mask).any():
                    self.culprit, self.access = wrapped.culprit, op
            return base(program, op, *operands)

        return rule

    def _find(self, value: Array | None) -> _Wrapped | None:
        wrapped = self._wrapped.get(id(value)) if self._wrapped else None
        return wrapped if wrapped is not None and wrapped.value is value else None

    def _culprit(self, *values: Array) -> Op | None:
        """Return the culprit of the first wrapped value."""
        wrapped = map(self._find, values)
        return next((wrap.culprit for wrap in wrapped if wrap is not None), None)

    def _wide(self, value: Array) -> Array:
        """Return the exact value; an unwrapped integer, converted to 64 bits."""
        wrapped = self._find(value)
        if wrapped is not None:
            return wrapped.exact
        return value.astype(np.int64) if value.dtype.kind == "i" else value

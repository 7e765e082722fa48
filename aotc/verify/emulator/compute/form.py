"""Modifiers of a computing instruction, and the declaration of rules for them.

An opcode means different things for integers, floats and predicates, so a rule is declared for an
opcode *and* a kind of type. A rule gets a `Form`, takes its modifiers out of it and returns a
function of bits. Modifiers left over are refused, so a rule cannot ignore one by mistake.

For a packed type such as `f16x2`, the element's rule is applied to both halves here. Operands wider
than the rule's (constants, wide registers) are narrowed here too, so a rule may return as little as
`np.add`.

Invariant: callers silence floating-point warnings (`np.errstate(all="ignore")`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from aotc.verify.arrays import view
from aotc.verify.emulator.compute.registry import Bits, Compute, bits_dtype, computes
from aotc.verify.emulator.errors import Unsupported
from aotc.verify.emulator.syntax import Immediate, Instruction, Operand, Register, Vector


@dataclass(frozen=True, slots=True)
class PtxType:
    """Name a fundamental type; `bits` is the total of all its elements.

    `kind` is "int" (`signed` or not; `.b32` too), "float" or "pred".
    """

    name: str
    kind: str
    bits: int
    signed: bool = False
    count: int = 1

    @property
    def element(self) -> PtxType:
        """Element type of a packed type; itself otherwise."""
        return TYPES[self.name.removesuffix(f"x{self.count}")] if self.count > 1 else self


TYPES = {
    kind.name: kind
    for kind in (
        PtxType("pred", "pred", 1),
        *(PtxType(f"b{bits}", "int", bits) for bits in (8, 16, 32, 64)),
        *(PtxType(f"u{bits}", "int", bits) for bits in (2, 4, 8, 16, 32, 64)),
        *(PtxType(f"s{bits}", "int", bits, signed=True) for bits in (2, 4, 8, 16, 32, 64)),
        PtxType("u16x2", "int", 32, count=2),
        PtxType("s16x2", "int", 32, signed=True, count=2),
        *(PtxType(f"f{bits}", "float", bits) for bits in (16, 32, 64)),
        PtxType("bf16", "float", 16),
        PtxType("tf32", "float", 32),
        PtxType("f16x2", "float", 32, count=2),
        PtxType("bf16x2", "float", 32, count=2),
        PtxType("f32x2", "float", 64, count=2),
        *(PtxType(name, "float", 8) for name in ("e4m3", "e5m2", "ue8m0")),
        *(PtxType(f"{name}x2", "float", 16, count=2) for name in ("e4m3", "e5m2", "ue8m0")),
        *(PtxType(name, "float", 6) for name in ("e2m3", "e3m2")),
        *(PtxType(f"{name}x2", "float", 16, count=2) for name in ("e2m3", "e3m2")),
        PtxType("e2m1", "float", 4),
        PtxType("e2m1x2", "float", 8, count=2),
    )
}


class Form:
    """Hold an instruction's modifiers until a rule takes them."""

    def __init__(self, instruction: Instruction) -> None:
        self.instruction = instruction
        self.types = tuple(TYPES[name] for name in instruction.modifiers if name in TYPES)
        self._left = [name for name in instruction.modifiers if name not in TYPES]
        self.source_bits: tuple[int, ...] = ()

    @property
    def type(self) -> PtxType:
        """The type of the sources, named last."""
        if not self.types:
            raise Unsupported("no type")
        return self.types[-1]

    def flag(self, name: str) -> bool:
        """Take a modifier if present; return whether it was."""
        is_present = name in self._left
        if is_present:
            self._left.remove(name)
        return is_present

    def choice(self, *names: str, default: str | None = None) -> str:
        """Take the modifier among `names`.

        Raises: Unsupported if none is present and there is no default.
        """
        for name in names:
            if self.flag(name):
                return name
        if default is None:
            raise Unsupported(f"expected one of {', '.join('.' + name for name in names)}")
        return default

    def reads(self, *bits: int) -> None:
        """Declare each source's width, where it differs from the type's."""
        self.source_bits = bits

    def finish(self) -> None:
        """Raise Unsupported if a modifier is left over."""
        if self._left:
            raise Unsupported(f"modifier {', '.join('.' + name for name in self._left)}")


Rule: TypeAlias = Callable[[Form], Compute]
Packed: TypeAlias = Literal["no", "halves", "itself"]


@dataclass(frozen=True, slots=True)
class _TypedRule:
    rule: Rule
    sources: int
    packed: Packed
    types: int


_RULES: dict[tuple[str, str], _TypedRule] = {}


def rule(
    kind: str, *opcodes: str, sources: int = 0, packed: Packed = "no", types: int = 1
) -> Callable[[Rule], Rule]:
    """Declare a rule for `opcodes` with a last type of `kind`; "" matches any other kind.

    The instruction has `sources` sources of that type; with 0, the rule calls `Form.reads`. It
    names `types` types; with 0, the rule counts them. A packed type is refused ("no"), split into
    elements for the rule ("halves"), or left to the rule ("itself").
    """

    def register(function: Rule) -> Rule:
        for opcode in opcodes:
            if not any(registered == opcode for registered, _ in _RULES):
                computes(opcode)(_dispatch)
            if (opcode, kind) in _RULES:
                raise ValueError(f"{opcode} has two rules for {kind or 'any'} types")
            _RULES[opcode, kind] = _TypedRule(function, sources, packed, types)
        return function

    return register


def _dispatch(instruction: Instruction) -> Compute:
    form = Form(instruction)
    declared = _RULES.get((instruction.opcode, form.type.kind))
    declared = declared or _RULES.get((instruction.opcode, ""))
    if declared is None:
        raise Unsupported(f"type .{form.type.name}")
    if declared.sources:
        form.reads(*[form.type.bits] * declared.sources)
    if declared.types and len(form.types) != declared.types:
        raise Unsupported(f"types {', '.join('.' + kind.name for kind in form.types)}")
    packed = form.type.count > 1
    if packed and declared.packed == "no":
        raise Unsupported(f"type .{form.type.name}")
    function = declared.rule(form)
    form.finish()
    if packed and declared.packed == "halves":
        function = in_halves(function, form.type)
    return _narrowed(function, flatten(instruction.operands[1:]), form.source_bits)


def flatten(operands: Sequence[Operand]) -> list[Operand]:
    """Return the operands with vectors replaced by their elements."""
    flat: list[Operand] = []
    for operand in operands:
        flat.extend(operand.elements if isinstance(operand, Vector) else (operand,))
    return flat


def in_halves(function: Compute, packed: PtxType) -> Compute:
    """Lift a function of elements to packed words."""
    whole, part = bits_dtype(packed.bits), bits_dtype(packed.element.bits)

    def apply(*words: Bits) -> Bits:
        result = function(*(view(np.asarray(word)[..., None], part) for word in words))
        return view(np.ascontiguousarray(result), whole)[..., 0]

    return apply


def _narrowed(function: Compute, sources: Sequence[Operand], bits: Sequence[int]) -> Compute:
    """Return the function with operands narrowed to `bits`; unchanged if all are that wide."""
    if len(sources) != len(bits):
        raise Unsupported(f"expected {len(bits)} sources, got {len(sources)}")
    casts = [_cast(source, width) for source, width in zip(sources, bits, strict=True)]
    if not any(casts):
        return function

    def narrow(*words: Bits) -> Bits | tuple[Bits, ...]:
        return function(
            *(cast(word) if cast else word for cast, word in zip(casts, words, strict=True))
        )

    return narrow


def _cast(source: Operand, bits: int) -> Callable[[Bits], Bits] | None:
    if isinstance(source, Register) and source.bits == bits:
        return None
    if isinstance(source, Immediate) and source.float_bits == 64 and bits == 32:
        return _rounded  # `20.0` is a double, which PTX rounds to the type of the instruction
    if isinstance(source, Immediate) and source.float_bits not in (0, bits):
        raise Unsupported(f"a constant of {source.float_bits} bits where {bits} are read")
    if bits == 1:
        return lambda word: word != 0
    dtype: np.dtype[Any] = bits_dtype(bits)
    if isinstance(source, Immediate):
        return _cached_cast(dtype)
    return lambda word: word.astype(dtype, copy=False)


def _rounded(word: Bits) -> Bits:
    """Return a double as the nearest single."""
    return view(view(word, np.float64).astype(np.float32), np.uint32)


def _cached_cast(dtype: np.dtype[Any]) -> Callable[[Bits], Bits]:
    """Return a cast that caches its last array, for constants."""
    cached: list[Bits] = [np.zeros(0), np.zeros(0)]

    def cast(word: Bits) -> Bits:
        if word is not cached[0]:
            cached[:] = word, word.astype(dtype, copy=False)
        return cached[1]

    return cast

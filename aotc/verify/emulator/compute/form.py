"""What the modifiers of a computing instruction say, and how rules for them are declared.

One opcode means different things for integers, floats and predicates, so a rule is declared for an
opcode *and* a kind of type. A rule is given a `Form`, takes the modifiers it knows out of it and
returns a function of bits. What is left over afterwards is not known, and refused: a rule cannot
ignore a modifier by mistake.

A packed type such as `f16x2` is its element's rule applied to both halves, which is done here.
Operands that are not exactly as wide as the rule wants (constants, wide registers) are narrowed
here too, so that what a rule returns may be as short as `np.add`.

Invariant: floating-point warnings are the caller's to silence (`np.errstate(all="ignore")`).
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
    """Name a fundamental type; `bits` is that of all its elements together.

    `kind` is "int" (`signed` or not; `.b32` too), "float" or "pred".
    """

    name: str
    kind: str
    bits: int
    signed: bool = False
    count: int = 1

    @property
    def element(self) -> PtxType:
        """What a packed type holds several of."""
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
    """Hold what an instruction's modifiers say, until a rule takes it."""

    def __init__(self, instruction: Instruction) -> None:
        self.instruction = instruction
        self.types = tuple(TYPES[name] for name in instruction.modifiers if name in TYPES)
        self._left = [name for name in instruction.modifiers if name not in TYPES]
        self.source_bits: tuple[int, ...] = ()

    @property
    def type(self) -> PtxType:
        """The type of the sources, which is named last."""
        if not self.types:
            raise Unsupported("no type")
        return self.types[-1]

    def flag(self, name: str) -> bool:
        """Take a modifier if it is there; return whether it was."""
        found = name in self._left
        if found:
            self._left.remove(name)
        return found

    def choice(self, *names: str, default: str | None = None) -> str:
        """Take the one of `names` that is there.

        Raises: Unsupported if none is, and there is no default.
        """
        for name in names:
            if self.flag(name):
                return name
        if default is None:
            raise Unsupported(f"expected one of {', '.join('.' + name for name in names)}")
        return default

    def reads(self, *bits: int) -> None:
        """Say how many bits each source has, if not all those of the type."""
        self.source_bits = bits

    def finish(self) -> None:
        """Raise Unsupported if a modifier is left that nobody took."""
        if self._left:
            raise Unsupported(f"modifier {', '.join('.' + name for name in self._left)}")


Rule: TypeAlias = Callable[[Form], Compute]
Packed: TypeAlias = Literal["no", "halves", "itself"]


@dataclass(frozen=True, slots=True)
class _Declared:
    rule: Rule
    sources: int
    packed: Packed
    types: int


_RULES: dict[tuple[str, str], _Declared] = {}


def rule(
    kind: str, *opcodes: str, sources: int = 0, packed: Packed = "no", types: int = 1
) -> Callable[[Rule], Rule]:
    """Declare a rule for `opcodes` whose last type is of `kind`; "" stands for every other kind.

    The instruction has `sources` sources of that type; with 0, the rule calls `Form.reads`. It
    names `types` types; with 0, the rule counts them. Packed types are refused, or halved so that
    the rule's function sees elements, or the rule's business.
    """

    def register(function: Rule) -> Rule:
        for opcode in opcodes:
            if not any(known == opcode for known, _ in _RULES):
                computes(opcode)(_dispatch)
            if (opcode, kind) in _RULES:
                raise ValueError(f"{opcode} has two rules for {kind or 'any'} types")
            _RULES[opcode, kind] = _Declared(function, sources, packed, types)
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
        raise Unsupported(f"types {', '.join('.' + one.name for one in form.types)}")
    packed = form.type.count > 1
    if packed and declared.packed == "no":
        raise Unsupported(f"type .{form.type.name}")
    function = declared.rule(form)
    form.finish()
    if packed and declared.packed == "halves":
        function = in_halves(function, form.type)
    return _narrowed(function, flatten(instruction.operands[1:]), form.source_bits)


def flatten(operands: Sequence[Operand]) -> list[Operand]:
    """Return the operands with the elements of vectors in their places."""
    flat: list[Operand] = []
    for operand in operands:
        flat.extend(operand.elements if isinstance(operand, Vector) else (operand,))
    return flat


def in_halves(function: Compute, packed: PtxType) -> Compute:
    """Return a function of packed words that applies `function` to each element."""
    whole, part = bits_dtype(packed.bits), bits_dtype(packed.element.bits)

    def apply(*words: Bits) -> Bits:
        result = function(*(view(np.asarray(word)[..., None], part) for word in words))
        return view(np.ascontiguousarray(result), whole)[..., 0]

    return apply


def _narrowed(function: Compute, sources: Sequence[Operand], bits: Sequence[int]) -> Compute:
    """Return the function with its operands cut down to `bits`; itself if they are that wide."""
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
        return _kept(dtype)
    return lambda word: word.astype(dtype, copy=False)


def _rounded(word: Bits) -> Bits:
    """Return a double as the nearest single."""
    return view(view(word, np.float64).astype(np.float32), np.uint32)


def _kept(dtype: np.dtype[Any]) -> Callable[[Bits], Bits]:
    """Return a cast of what is the same array each time."""
    known: list[Bits] = [np.zeros(0), np.zeros(0)]

    def cast(word: Bits) -> Bits:
        if word is not known[0]:
            known[:] = word, word.astype(dtype, copy=False)
        return known[1]

    return cast

"""Integers known to be some neighbouring bits of a word, and their conversion to 16-bit floats.

Weights of a few bits are packed in words, from which a kernel takes them by shifts and masks, one by one,
to convert them. Two of them are converted together in fewer instructions than it takes to mask one:
where the last mantissa bit of a float is worth 1, its mantissa is an integer, so bits of a word, in the
places of two mantissas, are two floats that are too large by a constant. The mask of both and the
exponents are one instruction, the subtraction another.

What an integer is of which word is noted as shifts and masks are lowered; these are written as ever,
and dropped by LLVM if nothing else uses them.

Invariant: a noted integer has the bits of its field, and if it is `exact`, no others.
Source: Kim et al., "Who Says Elephants Can't Run", 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from aotc.backend import nvvm_convert
from aotc.backend.emitter import Emitter
from aotc.backend.integers import Affine, Component, Integers
from aotc.backend.llvm_types import constant, llvm_type
from aotc.backend.packing import in_pairs, word_elements
from aotc.ir.types import BF16, FP16, ScalarType

_WORD_BITS = 32
_HALF_BITS = 16
_BYTE_BITS = 8


@dataclass(frozen=True, slots=True)
class BitField:
    """The `width` bits of the i32 `word` that begin at bit `base + offset`; `base` may be "" for 0."""

    word: str
    base: str
    offset: int
    width: int
    exact: bool = False


class BitFields:
    """Which integers are fields of words."""

    def __init__(self, emit: Emitter, ints: Integers) -> None:
        self.emit = emit
        self.ints = ints
        self._fields: dict[str, BitField] = {}

    def of(self, name: str, bits: int) -> BitField | None:
        """Return the field that an integer of `bits` is, or begins with."""
        if name in self._fields:
            return self._fields[name]
        if name in self.emit.parts:
            word, index = self.emit.parts[name]
            return BitField(word, "", bits * index, bits)
        if bits > _WORD_BITS or not name.startswith("%"):
            return None
        word = name if bits == _WORD_BITS else self._widened(name, bits)
        return BitField(word, "", 0, bits)

    def shift(self, name: str, value: str, amount: Component, bits: int, *, signed: bool) -> str:
        """Note that `name` is `value` shifted right by `amount`; return it."""
        field = self.of(value, bits)
        base, offset = self.ints.split(amount)
        most = (self.ints.possible(base, bits) if base else 0) + offset
        if field is None or most >= field.width or (base and field.base) or offset < 0:
            return name
        if base and bits < _WORD_BITS:
            base = self._widened(base, bits)
            self.ints.learn(base, most - offset)
        moved = replace(field, base=base or field.base, offset=field.offset + offset)
        # What is shifted in are signs.
        exact = field.exact or (not signed and field.width == bits)
        self._fields[name] = replace(moved, width=field.width - most, exact=exact and not base)
        return name

    def _widened(self, name: str, bits: int) -> str:
        return self.emit.value(f"zext i{bits} {name} to i{_WORD_BITS}")

    def mask(self, name: str, value: str, mask: int, bits: int) -> str:
        """Note that `name` is `value` with the bits of a mask only; return it."""
        width = mask.bit_length()
        field = self.of(value, bits) if width > 0 and mask == (1 << width) - 1 else None
        if field is not None and width <= field.width:
            self._fields[name] = replace(field, width=width, exact=True)
        return name

    def resize(self, name: str, value: str, bits: int) -> str:
        """Note that `name` is `value` in an integer of `bits`; return it."""
        field = self._fields.get(value)
        if field is not None and field.exact and field.width < bits:
            self._fields[name] = field
        return name

    # ---- conversion ----------------------------------------------------------

    def to_floats(self, values: Sequence[Component], target: ScalarType) -> list[str] | None:
        """Convert integers that are fields plus a constant, or return None if some are not.

        All are to have the same constant, and results that are exact.
        """
        if target not in _EXPONENTS or len(values) % 2:
            return None
        split = [self.ints.split(value) for value in values]
        fields = [self._fields.get(base) for base, _ in split]
        exact = [field for field in fields if field is not None and field.exact]
        mantissa_bits, exponent = _EXPONENTS[target]
        offsets = {offset for _, offset in split}
        widest = max((field.width for field in exact), default=0)
        if len(exact) < len(values) or len(offsets) > 1 or widest > min(mantissa_bits, _BYTE_BITS):
            return None
        bias = (1 << mantissa_bits) - offsets.pop()
        if not 0 <= bias <= 2 << mantissa_bits:
            return None
        kind = llvm_type(target)
        constants = f"{kind} {constant(float(bias), target)}"
        known = dict(zip(map(str, range(len(exact))), exact, strict=True))

        def pair(low: str, high: str) -> tuple[str, str]:
            bits = self._pair(known[low], known[high])
            numbers = self.emit.value(f"or i32 {bits}, {exponent * 0x10001}")
            vector = self.emit.value(f"bitcast i32 {numbers} to <2 x {kind}>")
            moved = self.emit.value(f"fsub <2 x {kind}> {vector}, <{constants}, {constants}>")
            return word_elements(self.emit, moved, f"<2 x {kind}>")

        return in_pairs(list(known), pair)

    def _pair(self, low: BitField, high: BitField) -> str:
        """Return a word with a field in either half, and zeros."""
        masks = (1 << low.width) - 1 | (1 << high.width) - 1 << _HALF_BITS
        if high == replace(low, offset=low.offset + _HALF_BITS, width=high.width):
            both = self._shifted(low, low.offset)
        else:
            (word, first), (other, second) = self._in_byte(low), self._in_byte(high)
            selector = first | 0x10 | (4 + second) << 8 | 0x1000
            both = nvvm_convert.permute_bytes(self.emit, word, other, selector)
        return self.emit.value(f"and i32 {both}, {masks}")

    def _in_byte(self, field: BitField) -> tuple[str, int]:
        """Return a word with a field at the start of one of its bytes, and which byte."""
        if field.base:
            return self._shifted(field, field.offset), 0
        byte, shift = divmod(field.offset, _BYTE_BITS)
        return self._shifted(field, shift), byte

    def _shifted(self, field: BitField, offset: int) -> str:
        if not field.base and not offset:
            return field.word
        amount = self.ints.materialize(Affine(field.base, offset), _WORD_BITS)
        return self.emit.value(f"lshr i32 {field.word}, {amount}")


_EXPONENTS = {BF16: (7, 0x4300), FP16: (10, 0x6400)}
"""The mantissa bits of a float, and the bits of that whose last mantissa bit is worth 1."""

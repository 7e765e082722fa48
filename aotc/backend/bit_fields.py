"""Conversion of bit fields of a word to 16-bit floats, two at a time.

A kernel unpacks weights of a few bits from words by shifts and masks, one by one, and converts
them. Converting two together takes fewer instructions than masking one. Where the last mantissa bit
of a float is worth 1, its mantissa is an integer. So bits of a word, moved to the two mantissas,
are two floats plus a constant. One instruction masks both and sets their exponents, another
subtracts.

The lowering of shifts and masks records the word and bits of each integer. The shifts and masks are
written as usual, and LLVM drops them if they are unused.

Invariant: a recorded integer has the bits of its field, and if it is `exact`, no others. Source:
Kim et al., "Who Says Elephants Can't Run", 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from aotc.backend import nvvm_convert
from aotc.backend.emitter import Emitter
from aotc.backend.integers import Affine, Component, Integers
from aotc.backend.llvm_types import constant, llvm_type
from aotc.backend.packing import word_elements
from aotc.ir.types import BF16, FP16, ScalarType

_WORD_BITS = 32
_HALF_BITS = 16
_BYTE_BITS = 8


@dataclass(frozen=True, slots=True)
class BitField:
    """`width` bits of the i32 `word` from bit `base + offset` on; `base` may be "" for 0."""

    word: str
    base: str
    offset: int
    width: int
    exact: bool = False


class BitFields:
    """The integers known to be fields of words."""

    def __init__(self, emit: Emitter, ints: Integers) -> None:
        self.emit = emit
        self.ints = ints
        self._fields: dict[str, BitField] = {}
        self._differences: dict[str, tuple[str, str]] = {}
        self._assembled: dict[str, tuple[tuple[BitField, int], ...]] = {}

    def of(self, name: str, bits: int) -> BitField | None:
        """Return the field equal to an integer of `bits`, or its low bits."""
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
        """Record `name` as `value` shifted right by `amount`; return it."""
        field = self.of(value, bits)
        base, offset = self.ints.split(amount)
        most = (self.ints.possible(base, bits) if base else 0) + offset
        if field is None or most >= field.width or (base and field.base) or offset < 0:
            return name
        if base and bits < _WORD_BITS:
            base = self._widened(base, bits)
            self.ints.learn(base, most - offset)
        shifted = replace(field, base=base or field.base, offset=field.offset + offset)
        # The bits shifted in are signs.
        exact = field.exact or (not signed and field.width == bits)
        self._fields[name] = replace(shifted, width=field.width - most, exact=exact and not base)
        return name

    def _widened(self, name: str, bits: int) -> str:
        return self.emit.value(f"zext i{bits} {name} to i{_WORD_BITS}")

    def mask(self, name: str, value: str, mask: int, bits: int) -> str:
        """Record `name` as `value` under a mask; return it."""
        start = (mask & -mask).bit_length() - 1
        width = mask.bit_length() - start
        if mask <= 0 or mask >> start != (1 << width) - 1:
            return name
        field = self.of(value, bits)
        if field is None or start + width > field.width:
            return name
        masked = replace(field, offset=field.offset + start, width=width, exact=True)
        if start:
            self._assembled[name] = ((masked, start),)
        else:
            self._fields[name] = masked
        return name

    def shift_left(self, name: str, value: str, amount: Component, bits: int) -> str:
        """Record `name` as `value` shifted left by `amount`; return it."""
        base, offset = self.ints.split(amount)
        shifted = tuple((field, start + offset) for field, start in self._parts(value))
        if not base and all(start + field.width <= bits for field, start in shifted):
            self._assembled[name] = shifted
        return name

    def combine(self, name: str, left: str, right: str) -> str:
        """Record `name` as the union of the bits of `left` and `right`; return it."""
        parts = sorted((*self._parts(left), *self._parts(right)), key=lambda part: part[1])
        ends = [start + field.width for field, start in parts]
        is_apart = all(end <= start for end, (_, start) in zip(ends, parts[1:], strict=False))
        if self._parts(left) and self._parts(right) and is_apart:
            self._assembled[name] = tuple(parts)
        return name

    def _parts(self, name: str) -> tuple[tuple[BitField, int], ...]:
        """Return the fields of an assembled integer, each with its start; () if unknown."""
        if self._is_exact(name):
            return ((self._fields[name], 0),)
        return self._assembled.get(name, ())

    def resize(self, name: str, value: str, bits: int) -> str:
        """Record `name` as `value` in an integer of `bits`; return it."""
        field = self._fields.get(value)
        if field is not None and field.exact and field.width < bits:
            self._fields[name] = field
        return name

    def subtract(self, name: Component, left: Component, right: Component) -> Component:
        """Record `name` as the signed difference of two fields; return it."""
        bases = (self.ints.split(left), self.ints.split(right))
        if isinstance(name, str) and all(
            self._is_exact(base) and not offset for base, offset in bases
        ):
            self._differences[name] = bases[0][0], bases[1][0]
        return name

    def _is_exact(self, name: str) -> bool:
        return name in self._fields and self._fields[name].exact

    # ---- conversion ----------------------------------------------------------

    def to_floats(
        self, values: Sequence[Component], source: ScalarType, target: ScalarType
    ) -> list[str] | None:
        """Convert fields plus a constant, or differences of two fields.

        Return None for any others. All must be alike and have the same constant, and their results
        must be exact.
        """
        if target not in _EXPONENTS or len(values) % 2:
            return None
        kind, (mantissa_bits, _) = llvm_type(target), _EXPONENTS[target]
        split = [self.ints.split(value) for value in values]
        offsets = {offset for _, offset in split}
        offset = offsets.pop()
        if (
            offsets
            or not -(1 << mantissa_bits) <= offset <= 1 << mantissa_bits
            or (offset and not source.is_signed)
        ):
            return None
        pairs = [self._differences.get(base) for base, _ in split]
        if all(pairs) and source.is_signed and not offset:
            names = [pair[0] for pair in pairs if pair is not None]
            subtrahends = [pair[1] for pair in pairs if pair is not None]
            biases = self._biased(subtrahends, source, target)
        else:
            names = [base for base, _ in split]
            constants = f"{kind} {constant(float((1 << mantissa_bits) - offset), target)}"
            biases = [f"<{constants}, {constants}>"] * (len(values) // 2)
        numbers = self._biased(names, source, target)
        if numbers is None or biases is None:
            return None
        floats: list[str] = []
        for number, less in zip(numbers, biases, strict=True):
            vector = self.emit.value(f"fsub <2 x {kind}> {number}, {less}")
            floats += word_elements(self.emit, vector, f"<2 x {kind}>")
        return floats

    def _biased(
        self, names: Sequence[str], source: ScalarType, target: ScalarType
    ) -> list[str] | None:
        """Return pairs of floats, each plus the power of two with a last bit worth 1.

        Return None if a name is no field, or too wide.
        """
        mantissa_bits, exponent = _EXPONENTS[target]
        fields = [self._fields[name] for name in names if self._is_exact(name)]
        widest = max((field.width for field in fields), default=0)
        most = min(mantissa_bits, _BYTE_BITS, source.bits - source.is_signed)
        if len(fields) < len(names) or widest > most:
            return None
        kind = llvm_type(target)
        vectors: list[str] = []
        for low, high in zip(fields[::2], fields[1::2], strict=True):
            numbers = self.emit.value(f"or i32 {self._pair(low, high)}, {exponent * 0x10001}")
            vectors.append(self.emit.value(f"bitcast i32 {numbers} to <2 x {kind}>"))
        return vectors

    def to_halves(self, values: Sequence[str], kind: str) -> list[str] | None:
        """Return integers of 16 bits, put together from fields, as floats of the same bits.

        Two of them are put together at once. Return None if they are not all alike.
        """
        if len(values) % 2:
            return None
        halves: list[str] = []
        for low, high in zip(values[::2], values[1::2], strict=True):
            word = self._assemble(self._parts(low), self._parts(high))
            if not word:
                return None
            vector = self.emit.value(f"bitcast i32 {word} to <2 x {kind}>")
            halves += word_elements(self.emit, vector, f"<2 x {kind}>")
        return halves

    def _assemble(
        self, low: Sequence[tuple[BitField, int]], high: Sequence[tuple[BitField, int]]
    ) -> str:
        """Return a word of two integers assembled alike, or "" if they are not."""
        if [(field.width, start) for field, start in low] != [
            (field.width, start) for field, start in high
        ]:
            return ""
        word, origin = "", min((field.offset for field, _ in low), default=0)
        for (first, start), (second, _) in zip(low, high, strict=True):
            pair = self._pair(first, second, start, origin)
            word = self.emit.value(f"or disjoint i32 {word}, {pair}") if word else pair
        return word

    def _pair(self, low: BitField, high: BitField, field_start: int = 0, origin: int = -1) -> str:
        """Return a word with a field at the same start in each half, and zeros.

        If both come from one word, it is shifted right by `origin`, at most the offset of `low`:
        several pairs of a word then share the shift.
        """
        masks = ((1 << low.width) - 1 | (1 << high.width) - 1 << _HALF_BITS) << field_start
        distance = high.offset - low.offset
        if (high.word, high.base) == (low.word, low.base) and 0 < distance <= _HALF_BITS:
            start = low.offset if origin < 0 else origin
            shifted, by = self._shifted(low, start), field_start - low.offset + start
            if distance < _HALF_BITS:
                pair = self._repeated(shifted, high.offset + high.width - start, by, distance)
            else:
                pair = self._moved(shifted, by)
        else:
            (word, first), (other, second) = self._in_byte(low), self._in_byte(high)
            selector = first | 0x10 | (4 + second) << 8 | 0x1000
            pair = self._moved(
                nvvm_convert.permute_bytes(self.emit, word, other, selector), field_start
            )
        return self.emit.value(f"and i32 {pair}, {masks}")

    def _moved(self, word: str, by: int) -> str:
        """Return a word shifted left, or right by a negative number."""
        if not by:
            return word
        return self.emit.value(f"{'shl' if by > 0 else 'lshr'} i32 {word}, {abs(by)}")

    def _repeated(self, word: str, width: int, by: int, distance: int) -> str:
        """Return a word shifted by `by`, plus a copy half a word less `distance` higher.

        Both shifts are one multiplication: its unit is less busy than the one of logical
        operations.
        """
        again = _HALF_BITS - distance
        if self.ints.possible(word, _WORD_BITS) >> again:
            word = self.emit.value(f"and i32 {word}, {(1 << width) - 1}")
            self.ints.learn(word, (1 << width) - 1)
        if by < 0 or width > again:  # else the sum is one of disjoint bits
            word = self._moved(word, by)
            return self.emit.value(f"or i32 {word}, {self._moved(word, again)}")
        return self.emit.value(f"mul i32 {word}, {(1 << by) + (1 << by + again)}")

    def _in_byte(self, field: BitField) -> tuple[str, int]:
        """Return a word with a field at the start of a byte, and the byte's index."""
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

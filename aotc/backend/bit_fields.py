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
from aotc.backend.packing import word_elements
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
        self._differences: dict[str, tuple[str, str]] = {}
        self._assembled: dict[str, tuple[tuple[BitField, int], ...]] = {}

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
        place = (mask & -mask).bit_length() - 1
        width = mask.bit_length() - place
        if mask <= 0 or mask >> place != (1 << width) - 1:
            return name
        field = self.of(value, bits)
        if field is None or place + width > field.width:
            return name
        kept = replace(field, offset=field.offset + place, width=width, exact=True)
        if place:
            self._assembled[name] = ((kept, place),)
        else:
            self._fields[name] = kept
        return name

    def shift_left(self, name: str, value: str, amount: Component, bits: int) -> str:
        """Note that `name` is `value` shifted left by `amount`; return it."""
        base, offset = self.ints.split(amount)
        moved = tuple((field, place + offset) for field, place in self._parts(value))
        if not base and all(place + field.width <= bits for field, place in moved):
            self._assembled[name] = moved
        return name

    def combine(self, name: str, left: str, right: str) -> str:
        """Note that `name` has the bits of both `left` and `right`; return it."""
        parts = sorted((*self._parts(left), *self._parts(right)), key=lambda part: part[1])
        ends = [place + field.width for field, place in parts]
        is_apart = all(end <= place for end, (_, place) in zip(ends, parts[1:], strict=False))
        if self._parts(left) and self._parts(right) and is_apart:
            self._assembled[name] = tuple(parts)
        return name

    def _parts(self, name: str) -> tuple[tuple[BitField, int], ...]:
        """Return the fields that an integer is put together from, each with its place; () if unknown."""
        if self._is_exact(name):
            return ((self._fields[name], 0),)
        return self._assembled.get(name, ())

    def resize(self, name: str, value: str, bits: int) -> str:
        """Note that `name` is `value` in an integer of `bits`; return it."""
        field = self._fields.get(value)
        if field is not None and field.exact and field.width < bits:
            self._fields[name] = field
        return name

    def subtract(self, name: Component, left: Component, right: Component) -> Component:
        """Note that `name` is the difference of two fields, signed; return it."""
        bases = (self.ints.split(left), self.ints.split(right))
        if isinstance(name, str) and all(self._is_exact(base) and not at for base, at in bases):
            self._differences[name] = bases[0][0], bases[1][0]
        return name

    def _is_exact(self, name: str) -> bool:
        return name in self._fields and self._fields[name].exact

    # ---- conversion ----------------------------------------------------------

    def to_floats(
        self, values: Sequence[Component], source: ScalarType, target: ScalarType
    ) -> list[str] | None:
        """Convert integers that are fields plus a constant, or differences of two fields.

        Return None if some are neither. All are to be alike, have the same constant, and results that are exact.
        """
        if target not in _EXPONENTS or len(values) % 2:
            return None
        kind, (one, _) = llvm_type(target), _EXPONENTS[target]
        split = [self.ints.split(value) for value in values]
        offsets = {offset for _, offset in split}
        offset = offsets.pop()
        if offsets or not -(1 << one) <= offset <= 1 << one or (offset and not source.is_signed):
            return None
        pairs = [self._differences.get(base) for base, _ in split]
        if all(pairs) and source.is_signed and not offset:
            names = [pair[0] for pair in pairs if pair is not None]
            subtrahends = [pair[1] for pair in pairs if pair is not None]
            taken = self._biased(subtrahends, source, target)
        else:
            names = [base for base, _ in split]
            constants = f"{kind} {constant(float((1 << one) - offset), target)}"
            taken = [f"<{constants}, {constants}>"] * (len(values) // 2)
        numbers = self._biased(names, source, target)
        if numbers is None or taken is None:
            return None
        floats: list[str] = []
        for number, less in zip(numbers, taken, strict=True):
            moved = self.emit.value(f"fsub <2 x {kind}> {number}, {less}")
            floats += word_elements(self.emit, moved, f"<2 x {kind}>")
        return floats

    def _biased(
        self, names: Sequence[str], source: ScalarType, target: ScalarType
    ) -> list[str] | None:
        """Return pairs of floats that are too large by the power of two whose last bit is worth 1.

        Return None if some of the names are no fields, or too wide.
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
        """Return a word of two integers that are put together alike, "" if they are not."""
        if [(field.width, place) for field, place in low] != [
            (field.width, place) for field, place in high
        ]:
            return ""
        word, origin = "", min((field.offset for field, _ in low), default=0)
        for (first, place), (second, _) in zip(low, high, strict=True):
            pair = self._pair(first, second, place, origin)
            word = self.emit.value(f"or disjoint i32 {word}, {pair}") if word else pair
        return word

    def _pair(self, low: BitField, high: BitField, place: int = 0, origin: int = -1) -> str:
        """Return a word with a field at a place of either half, and zeros.

        If both are of one word, that is shifted to where its bit `origin`, at most that of `low`, is the first:
        several pairs of a word then share the shift.
        """
        masks = ((1 << low.width) - 1 | (1 << high.width) - 1 << _HALF_BITS) << place
        distance = high.offset - low.offset
        if (high.word, high.base) == (low.word, low.base) and 0 < distance <= _HALF_BITS:
            start = low.offset if origin < 0 else origin
            moved, by = self._shifted(low, start), place - low.offset + start
            if distance < _HALF_BITS:
                both = self._repeated(moved, high.offset + high.width - start, by, distance)
            else:
                both = self._moved(moved, by)
        else:
            (word, first), (other, second) = self._in_byte(low), self._in_byte(high)
            selector = first | 0x10 | (4 + second) << 8 | 0x1000
            both = self._moved(nvvm_convert.permute_bytes(self.emit, word, other, selector), place)
        return self.emit.value(f"and i32 {both}, {masks}")

    def _moved(self, word: str, by: int) -> str:
        """Return a word shifted left, or right by a negative number."""
        if not by:
            return word
        return self.emit.value(f"{'shl' if by > 0 else 'lshr'} i32 {word}, {abs(by)}")

    def _repeated(self, word: str, width: int, by: int, distance: int) -> str:
        """Return the first bits of a word shifted by `by`, and once more half a word less `distance` higher.

        Both shifts are one multiplication, whose unit has less to do than that of logical operations.
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

"""Integers and addresses as a base plus a constant, and their known bits.

Most registers of a tile hold the same number plus a constant each: `base + 0`, `base + 1`, … With a
separate constant, registers share the base. The constant can become the immediate offset of a load
or store, where it is free. A sum becomes an instruction only when something other than an address
uses it.

Widening needs care: `sext(base + 8)` is `sext(base) + 8` only if the sum does not wrap. So every
name carries the mask of its possible bits. A constant moves through a widening only if its bits are
clear in the base: then the sum is a bitwise or, and never wraps. The clear bits come from launch
values promised to be multiples of 16, and from `arange`.

Invariant: an `Affine` of an integer type always equals its base plus its offset, modulo 2**bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from aotc.backend import nvvm_memory
from aotc.backend.emitter import Emitter


class Affine(NamedTuple):
    """`base + offset`: an integer, or a pointer in bytes. `base` is "" for a constant."""

    # One is made for each register of a tile of addresses: a tuple costs a quarter of a dataclass.

    base: str
    offset: int


Component: TypeAlias = "str | Affine"
"""The content of one register of a thread: an LLVM value's name, a literal, or a sum."""

Registers: TypeAlias = "tuple[Component, ...]"
"""A thread's registers of a tile; one component for a scalar."""


class Integers:
    """Do integer and pointer arithmetic on components, emitting instructions where needed."""

    def __init__(self, emit: Emitter) -> None:
        self.emit = emit
        self._possible: dict[str, int] = {}
        self._terms: dict[str, tuple[str, ...]] = {}
        self._moved: dict[str, tuple[str, str]] = {}
        self._multiples: dict[str, tuple[str, int]] = {}

    # ---- known bits -------------------------------------------------------

    def possible(self, name: str, bits: int) -> int:
        """Return the mask of possibly set bits of `name`."""
        return self._possible.get(name, (1 << bits) - 1)

    def learn(self, name: str, possible: int) -> str:
        """Record that bits of `name` outside `possible` are clear; return it."""
        self._possible[name] = self._possible.get(name, possible) & possible
        return name

    def trailing_zeros(self, component: Component, bits: int) -> int:
        """Return how many low bits of a component are known to be clear."""
        base, offset = self.split(component)
        mask = offset | (self.possible(base, bits) if base else 0)
        return _trailing_zeros(mask, bits)

    def is_non_negative(self, component: Component, bits: int) -> bool:
        """Return whether the sign bit is known to be clear."""
        base, offset = self.split(component)
        if not base:
            return offset >= 0
        return not (self.possible(base, bits) | offset) >> (bits - 1) and self._adds_bits(
            base, offset, bits
        )

    # ---- bases and offsets -----------------------------------

    @staticmethod
    def split(component: Component) -> tuple[str, int]:
        """Return base and offset of a component."""
        if isinstance(component, Affine):
            return component
        if component.startswith("%"):
            return component, 0
        if component.lstrip("-").isdigit():
            return "", int(component)
        return component, 0

    @staticmethod
    def join(base: str, offset: int, bits: int) -> Component:
        """Return the component `base + offset`, the offset wrapped to `bits`."""
        offset = wrap(offset, bits)
        if base and offset == 0:
            return base
        return Affine(base, offset)

    def materialize(self, component: Component, bits: int) -> str:
        """Return an operand with the whole integer."""
        if isinstance(component, str):
            return component
        base, offset = component.base, component.offset
        if not base:
            return str(offset)
        if offset == 0:
            return base
        if self._adds_bits(base, offset, bits):
            possible = self.possible(base, bits) | offset
            return self.learn(self.emit.value(f"or disjoint i{bits} {base}, {offset}"), possible)
        zeros = _trailing_zeros(self.possible(base, bits) | offset, bits)
        name = self.emit.value(f"add i{bits} {base}, {offset}")
        return self.learn(name, _mask_above(zeros, bits))

    def materialize_pointer(self, component: Component) -> str:
        """Return an operand with the whole global address."""
        if isinstance(component, str):
            return component
        if component.offset == 0:
            return component.base
        return self.emit.value(
            f"getelementptr i8, ptr addrspace(1) {component.base}, i64 {component.offset}"
        )

    def _adds_bits(self, base: str, offset: int, bits: int) -> bool:
        return offset >= 0 and not self.possible(base, bits) & offset

    # ---- arithmetic ----------------------------------------------------------

    def add(self, left: Component, right: Component, bits: int) -> Component:
        """Return the sum."""
        (a, a_offset), (b, b_offset) = self.split(left), self.split(right)
        if a and b:
            a = self._add_bases(a, b, bits)
        return self.join(a or b, a_offset + b_offset, bits)

    def _add_bases(self, a: str, b: str, bits: int) -> str:
        may_a, may_b = self.possible(a, bits), self.possible(b, bits)
        if not may_a & may_b:
            name = self.emit.value(f"or disjoint i{bits} {a}, {b}")
            self._terms[name] = (*self.terms(a), *self.terms(b))
            return self.learn(name, may_a | may_b)
        name = self.emit.value(f"add i{bits} {a}, {b}")
        self._terms[name] = (*self.terms(a), *self.terms(b))
        largest = (1 << (max(may_a, may_b).bit_length() + 1)) - 1
        return self.learn(name, _mask_above(_trailing_zeros(may_a | may_b, bits), bits) & largest)

    def sub(self, left: Component, right: Component, bits: int) -> Component:
        """Return the difference."""
        (a, a_offset), (b, b_offset) = self.split(left), self.split(right)
        if b:
            zeros = _trailing_zeros(
                (self.possible(a, bits) if a else 0) | self.possible(b, bits), bits
            )
            name = self.emit.value(f"sub i{bits} {a or 0}, {b}")
            a = self.learn(name, _mask_above(zeros, bits))
        return self.join(a, a_offset - b_offset, bits)

    def mul(self, left: Component, right: Component, bits: int) -> Component:
        """Return the product modulo 2**bits."""
        if self.split(left)[0] == "":
            left, right = right, left
        (a, a_offset), (b, b_offset) = self.split(left), self.split(right)
        if not b:
            return self.join(
                self._mul_constant(a, b_offset, bits) if a else "", a_offset * b_offset, bits
            )
        zeros = self.trailing_zeros(left, bits) + self.trailing_zeros(right, bits)
        a, b = self.materialize(left, bits), self.materialize(right, bits)
        name = self.emit.value(f"mul i{bits} {a}, {b}")
        return self.learn(name, _mask_above(min(zeros, bits), bits))

    def mul_signed(self, left: Component, right: Component, bits: int) -> Component:
        """Return the product of signed numbers; in an address it is assumed not to wrap."""
        out = self.mul(left, right, bits)
        name, sides = self.split(out)[0], (self.split(left), self.split(right))
        for (base, _), (other, factor) in (sides, sides[::-1]):
            if name not in ("", base) and not other:
                self._multiples[name] = base, wrap(factor, bits)
        return out

    def scale(
        self, value: Component, factor: Component, bits: int, *, signed: bool = False
    ) -> Component:
        """Return the product modulo 2**bits, multiplying base and constant separately.

        Registers with different constants alone then share the product of the base.
        """
        mul = self.mul_signed if signed else self.mul
        (a, a_offset), (b, b_offset) = self.split(value), self.split(factor)
        if not a or not b or b_offset or a_offset <= 0 or not self._adds_bits(a, a_offset, bits):
            return mul(value, factor, bits)
        return self.add(self.mul(a, b, bits), mul(b, Affine("", a_offset), bits), bits)

    def _mul_constant(self, a: str, factor: int, bits: int) -> str:
        if wrap(factor, bits) in (0, 1):
            return a if wrap(factor, bits) else ""
        may = self.possible(a, bits)
        if factor > 0 and factor & (factor - 1) == 0:
            shift = factor.bit_length() - 1
            name = self.emit.value(f"shl i{bits} {a}, {shift}")
            return self.learn(name, may << shift & (1 << bits) - 1)
        zeros = _trailing_zeros(may, bits) + _trailing_zeros(factor, bits)
        possible = _mask_above(min(zeros, bits), bits)
        if factor > 0:
            possible &= (1 << (may * factor).bit_length()) - 1
        return self.learn(self.emit.value(f"mul i{bits} {a}, {wrap(factor, bits)}"), possible)

    def divide(self, value: Component, log2: int, bits: int) -> tuple[Component, Component] | None:
        """Return quotient and remainder by a power of two, if base and constant have bits apart.

        The value must be known not to be negative as a signed number.
        """
        base, offset = self.split(value)
        may, low = self.possible(base, bits) if base else 0, (1 << log2) - 1
        if not self.is_non_negative(value, bits) or offset < 0 or may & offset:
            return None
        quotient = remainder = base
        if may & low:
            quotient = self.emit.value(f"lshr i{bits} {base}, {log2}") if may & ~low else ""
        elif may and log2:
            quotient = self.emit.value(f"lshr i{bits} {base}, {log2}")
        if may & ~low:
            remainder = self.emit.value(f"and i{bits} {base}, {low}") if may & low else ""
        if quotient not in ("", base):
            self.learn(quotient, may >> log2)
        if remainder not in ("", base):
            self.learn(remainder, may & low)
        quotient_sum = self.join(quotient, offset >> log2, bits)
        return quotient_sum, self.join(remainder, offset & low, bits)

    def extend(self, value: Component, source: int, bits: int, *, signed: bool) -> Component:
        """Extend or truncate an integer of `source` bits to `bits`."""
        if source == bits:
            return value
        base, offset = self.split(value)
        if bits < source:
            cut = base and self._unary("trunc", base, source, bits, self.possible(base, source))
            return self.join(cut, offset, bits)
        if not base:
            return Affine("", offset if signed else offset & (1 << source) - 1)
        keeps = self._adds_bits(base, offset, source)
        if not keeps:
            base, offset = self.materialize(value, source), 0
        may = self.possible(base, source)
        sign = signed and may >> (source - 1)
        opcode = "sext" if sign else "zext nneg" if signed else "zext"
        if sign:
            may |= (1 << bits) - (1 << source)
        return self.join(self._unary(opcode, base, source, bits, may), offset, bits)

    def _unary(self, opcode: str, base: str, source: int, bits: int, possible: int) -> str:
        name = self.emit.value(f"{opcode} i{source} {base} to i{bits}")
        return self.learn(name, possible & (1 << bits) - 1)

    def distance(
        self, base: str, constants: Sequence[int], other: Component, bits: int
    ) -> str | None:
        """Return `base - other`: comparing it with `-c` (signed) compares `base + c` with `other`.

        This holds for each of the constants `c`; None if one of the sums may wrap.
        """
        if not base or not all(self._adds_bits(base, constant, bits) for constant in constants):
            return None
        name = self.materialize(other, bits)
        arguments = (f"i{bits}", base), (f"i{bits}", name)
        if self.possible(base, bits) >> (bits - 1):
            # A difference out of range is beyond every constant it is compared with.
            return self.emit.call(f"i{bits}", f"llvm.ssub.sat.i{bits}", arguments)
        # All negative values compare alike, and the difference from -1 is in range.
        least = (f"i{bits}", "-1")
        name = self.emit.call(f"i{bits}", f"llvm.smax.i{bits}", (arguments[1], least))
        return self.emit.value(f"sub i{bits} {base}, {name}")

    # ---- addresses -----------------------------------------------------------

    def terms(self, name: str) -> tuple[str, ...]:
        """Return the terms of a sum."""
        return self._terms.get(name, (name,))

    def origin(self, name: str) -> tuple[str, str]:
        """Return the address `name` is derived from, and the offset, an i64 or ""."""
        return self._moved.get(name, (name, ""))

    def move(self, origin: str, distance: str) -> str:
        """Return the address `distance` bytes, an i64 operand or "", from another one."""
        if not distance:
            return origin
        name = nvvm_memory.add_address(self.emit, origin, distance)
        self._moved[name] = (origin, distance)
        return name

    def add_pointer(
        self, pointer: Component, offset: Component, bits: int, size_bytes: int, *, signed: bool
    ) -> Component:
        """Return the global address moved by `offset` elements of `size_bytes`."""
        base, byte_offset = self.split(pointer)
        index, constant = self.split(self._widen_index(offset, bits, signed=signed))
        if index:
            base, distance = self.origin(base)
            element = f"[{size_bytes} x i8]" if size_bytes > 1 else "i8"
            base = self.emit.value(f"getelementptr {element}, ptr addrspace(1) {base}, i64 {index}")
            base = self.move(base, distance)
        return self.join(base, byte_offset + constant * size_bytes, 64)

    def _widen_index(self, index: Component, bits: int, *, signed: bool) -> Component:
        """Widen an index to an i64 to be added to an address; widen a factor, not a product.

        Both are equal, since the product does not overflow. But a 64-bit product and its addition
        are one instruction, so no register need hold the distance of each address.
        """
        factors: list[int] = []
        base, offset = self.split(index)
        while signed and bits != 64 and not offset and base in self._multiples:
            index, factor = self._multiples[base]
            factors.append(factor)
            base, offset = self.split(index)
        wide = self.extend(index, bits, 64, signed=signed)
        for factor in reversed(factors):
            wide = self.mul(wide, Affine("", factor), 64)
        return wide

    def add_pointers(
        self, pointers: Registers, offsets: Registers, bits: int, size_bytes: int, *, signed: bool
    ) -> Registers:
        """Return the global addresses of a tile, each moved by its offset.

        The common terms of the offsets are added first, so registers share one address. Each keeps
        its distance from it, typically a multiple of a stride, the same for all threads. Signed
        sums in an address are assumed not to wrap, as in Triton.
        """
        sums = [
            self.terms(base) if (base := self.split(component)[0]) else () for component in offsets
        ]
        common = common_parts(sums)
        if not signed or not common or len(dict.fromkeys(sums)) < 2 or len({*pointers}) > 1:
            return tuple(
                self.add_pointer(pointer, offset, bits, size_bytes, signed=signed)
                for pointer, offset in zip(pointers, offsets, strict=True)
            )
        shared = pointers[0]
        for term in common:
            shared = self.add_pointer(shared, term, bits, size_bytes, signed=True)
        base, start = self.split(shared)
        by_terms: dict[tuple[str, ...], str] = {}
        for terms in sums:
            if terms not in by_terms:
                distance = self._distance(without(terms, common), bits, size_bytes)
                by_terms[terms] = self.move(base, distance)
        return tuple(
            self.join(by_terms[terms], start + self.split(offset)[1] * size_bytes, 64)
            for terms, offset in zip(sums, offsets, strict=True)
        )

    def _distance(self, terms: Sequence[str], bits: int, size_bytes: int) -> str:
        """Return the sum of signed terms, times `size_bytes`, as an i64 operand, or ""."""
        total: Component = Affine("", 0)
        for term in terms:
            wide = self._widen_index(term, bits, signed=True)
            total = self.add(total, self.mul(wide, Affine("", size_bytes), 64), 64)
        return self.materialize(total, 64) if terms else ""

    # ---- linear maps of the thread number ------------------------------------

    def linear(self, thread: str, columns: Sequence[int]) -> str:
        """Return the XOR of `columns[i]` over the set bits `i` of the i32 `thread`, or "".

        A matrix over GF(2) is the sum of its diagonals, and a diagonal is a mask and a shift: bits
        with the same shift, as in `lane * 4`, cost one shift together.
        """
        diagonals: dict[int, int] = {}
        for bit, column in enumerate(columns):
            for out_bit in range(column.bit_length()):
                if column >> out_bit & 1:
                    shift = out_bit - bit
                    diagonals[shift] = diagonals.get(shift, 0) | 1 << bit
        out, possible = "", 0
        for shift, mask in diagonals.items():
            term, bits = self._diagonal(thread, mask, shift)
            if out:
                opcode = "xor" if possible & bits else "or disjoint"
                out = self.emit.thread_value(f"{opcode} i32 {out}, {term}")
            else:
                out = term
            possible |= bits
            self.learn(out, possible)
        return out

    def _diagonal(self, thread: str, mask: int, shift: int) -> tuple[str, int]:
        may = self.possible(thread, 32)
        term = thread
        # Shifting right drops low bits by itself; shifting left keeps all, so mask first.
        if may & ~mask and not (shift < 0 and may >> -shift == mask >> -shift):
            term = self.emit.thread_value(f"and i32 {thread}, {mask}")
            self.learn(term, mask)
        bits = mask << shift if shift >= 0 else mask >> -shift
        if shift > 0:
            term = self.emit.thread_value(f"shl i32 {term}, {shift}")
        elif shift < 0:
            term = self.emit.thread_value(f"lshr i32 {term}, {-shift}")
        return self.learn(term, bits), bits

    def xor_constant(self, base: str, constant: int) -> Component:
        """Return `base ^ constant` of i32: a sum wherever the bits are clear in `base`."""
        if not base:
            return Affine("", constant)
        overlap = constant & self.possible(base, 32)
        if overlap:
            possible = self.possible(base, 32)
            base = self.learn(self.emit.thread_value(f"xor i32 {base}, {overlap}"), possible)
        return self.join(base, constant ^ overlap, 32)


def common_parts(wholes: Sequence[Sequence[str]]) -> list[str]:
    """Return the parts common to all, such as the terms of sums, with multiplicity."""
    common: list[str] = []
    for part in dict.fromkeys(wholes[0]):
        common += [part] * min(parts.count(part) for parts in wholes)
    return common


def without(parts: Sequence[str], removed: Sequence[str]) -> list[str]:
    """Return `parts` less one occurrence of each of `removed`."""
    left = list(parts)
    for part in removed:
        left.remove(part)
    return left


def wrap(value: int, bits: int) -> int:
    """Return `value` modulo 2**bits as a signed number."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _trailing_zeros(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return (value & -value).bit_length() - 1 if value else bits


def _mask_above(zeros: int, bits: int) -> int:
    return (1 << bits) - (1 << zeros)

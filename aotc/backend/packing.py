"""Pack elements into the registers of instructions, and unpack them.

A vector of elements moves as 32-bit words (64-bit for elements of this size), or as one narrower
word if it is narrower. A boolean is a byte, a pointer its 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aotc.backend.emitter import Emitter
from aotc.backend.integers import Component
from aotc.backend.llvm_types import GLOBAL_POINTER, llvm_type, memory_type
from aotc.ir.types import ElementType, PointerType

_WORD_BITS = 32


def word_shape(element: ElementType, vector: int) -> tuple[int, int]:
    """Return the bits of a word and the number of words for `vector` elements."""
    total_bits = 8 * element.size_bytes * vector
    bits = max(min(32, total_bits), 8 * element.size_bytes)
    return bits, total_bits // bits


def pack(emit: Emitter, values: Sequence[str], element: ElementType) -> list[str]:
    """Pack `values` into words, each in a register of 16 bits or more."""
    bits, count = word_shape(element, len(values))
    per_word = len(values) // count
    word = emit.packed.get(tuple(values))
    if word is not None:
        return [word]
    stored = [_to_memory(emit, value, element) for value in values]
    return [
        _widen(emit, _gather(emit, stored[start : start + per_word], element, bits), bits)
        for start in range(0, len(stored), per_word)
    ]


def packed_words(
    emit: Emitter, values: Sequence[Component], element: ElementType
) -> list[str] | None:
    """Return the i32 words known to have `values` as their parts, or None."""
    per_word = _WORD_BITS // (8 * element.size_bytes)
    if per_word < 2 or len(values) % per_word:
        return None
    words: list[str] = []
    for start in range(0, len(values), per_word):
        run = values[start : start + per_word]
        parts = tuple(value for value in run if isinstance(value, str))
        word = emit.packed.get(parts)
        if word is None:
            return None
        words.append(word)
    return words


def unpack(emit: Emitter, words: Sequence[str], element: ElementType, vector: int) -> list[str]:
    """Return the elements held by `words`, as `pack` arranged them."""
    bits, count = word_shape(element, vector)
    per_word = vector // count
    values: list[str] = []
    for word in words:
        whole = emit.value(f"trunc i16 {word} to i8") if bits == 8 else word
        values += _scatter(emit, whole, element, bits, per_word)
    return values


def _stored_type(element: ElementType) -> str:
    """Return the LLVM type of an element in a word: its own, but never i1 or a pointer."""
    kind = llvm_type(element)
    return memory_type(element) if kind in ("i1", GLOBAL_POINTER) else kind


def _to_memory(emit: Emitter, value: str, element: ElementType) -> str:
    if isinstance(element, PointerType):
        return emit.value(f"ptrtoint {GLOBAL_POINTER} {value} to i64")
    return emit.value(f"zext i1 {value} to i8") if element.is_bool else value


def _from_memory(emit: Emitter, value: str, element: ElementType) -> str:
    if isinstance(element, PointerType):
        return emit.value(f"inttoptr i64 {value} to {GLOBAL_POINTER}")
    return emit.value(f"icmp ne i8 {value}, 0") if element.is_bool else value


def _gather(emit: Emitter, values: Sequence[str], element: ElementType, bits: int) -> str:
    kind = _stored_type(element)
    if len(values) == 1:
        return (
            values[0]
            if kind == f"i{bits}"
            else emit.value(f"bitcast {kind} {values[0]} to i{bits}")
        )
    # Not poison: words with equal beginnings are shared, and poison there could be a register never
    # written.
    vector = "zeroinitializer"
    for index, value in enumerate(values):
        vector = emit.value(
            f"insertelement <{len(values)} x {kind}> {vector}, {kind} {value}, i32 {index}"
        )
    return emit.value(f"bitcast <{len(values)} x {kind}> {vector} to i{bits}")


def _scatter(emit: Emitter, word: str, element: ElementType, bits: int, count: int) -> list[str]:
    kind = _stored_type(element)
    if count == 1:
        whole = word
        if kind != f"i{bits}":
            word = emit.value(f"bitcast i{bits} {word} to {kind}")
            emit.packed[(word,)] = whole
        return [_from_memory(emit, word, element)]
    vector = emit.value(f"bitcast i{bits} {word} to <{count} x {kind}>")
    parts = [
        emit.value(f"extractelement <{count} x {kind}> {vector}, i32 {index}")
        for index in range(count)
    ]
    if bits == 32:
        emit.packed[tuple(parts)] = word
        emit.parts.update((part, (word, index)) for index, part in enumerate(parts))
    elif bits == _WORD_BITS // 2:
        wide = emit.value(f"zext i16 {word} to i32")
        emit.parts.update((part, (wide, index)) for index, part in enumerate(parts))
    return [_from_memory(emit, part, element) for part in parts]


def _widen(emit: Emitter, word: str, bits: int) -> str:
    return emit.value(f"zext i8 {word} to i16") if bits == 8 else word


# ---- pairs ------------------------------------------------------------------------------------


def in_pairs(
    values: Sequence[str], pair: Callable[[str, str], tuple[str, str]], padding: str = ""
) -> list[str]:
    """Apply `pair` to values two by two; a last odd one is paired with `padding`."""
    converted: list[str] = []
    for index in range(0, len(values), 2):
        high = values[index + 1] if index + 1 < len(values) else padding
        converted += pair(values[index], high)
    return converted[: len(values)]


def vector_elements(emit: Emitter, vector: str, kind: str) -> tuple[str, str]:
    """Return the two elements of a vector of the type `kind`."""
    low, high = (emit.value(f"extractelement {kind} {vector}, i32 {index}") for index in (0, 1))
    return low, high


def word_elements(emit: Emitter, vector: str, kind: str) -> tuple[str, str]:
    """Return the two elements of a 32-bit vector, and record them as parts of a word."""
    elements = vector_elements(emit, vector, kind)
    word = emit.value(f"bitcast {kind} {vector} to i32")
    emit.packed[elements] = word
    emit.parts.update((element, (word, index)) for index, element in enumerate(elements))
    return elements


# ---- words to shuffle -------------------------------------------------------------------------


def to_i32_words(emit: Emitter, value: str, element: ElementType) -> list[str]:
    """Return one element as i32 words for shuffles: one, or two for 64 bits."""
    kind = llvm_type(element)
    if isinstance(element, PointerType) or element.bits == 64:
        if kind == GLOBAL_POINTER:
            value = emit.value(f"ptrtoint {kind} {value} to i64")
        elif kind != "i64":
            value = emit.value(f"bitcast {kind} {value} to i64")
        low = emit.value(f"trunc i64 {value} to i32")
        high = emit.value(f"lshr i64 {value}, 32")
        return [low, emit.value(f"trunc i64 {high} to i32")]
    bits = element.bits
    if kind != f"i{bits}":
        value = emit.value(f"bitcast {kind} {value} to i{bits}")
    return [value if bits == 32 else emit.value(f"zext i{bits} {value} to i32")]


def from_i32_words(emit: Emitter, words: Sequence[str], element: ElementType) -> str:
    """Return the element of the words from `to_i32_words`."""
    kind = llvm_type(element)
    if len(words) == 2:
        low = emit.value(f"zext i32 {words[0]} to i64")
        high = emit.value(f"shl i64 {emit.value(f'zext i32 {words[1]} to i64')}, 32")
        whole = emit.value(f"or disjoint i64 {low}, {high}")
        if kind == GLOBAL_POINTER:
            return emit.value(f"inttoptr i64 {whole} to {kind}")
        return whole if kind == "i64" else emit.value(f"bitcast i64 {whole} to {kind}")
    bits = element.bits
    whole = words[0] if bits == 32 else emit.value(f"trunc i32 {words[0]} to i{bits}")
    return whole if kind == f"i{bits}" else emit.value(f"bitcast i{bits} {whole} to {kind}")

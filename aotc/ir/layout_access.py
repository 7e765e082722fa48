"""Memory accesses of the threads that hold a distributed tile.

Given the layouts of a tile over threads and of a buffer, an element's offset is an XOR of two
parts. One depends on the thread (`thread_offsets`), one on the register. It is a sum where the two
have no bit in common, so the latter fits an instruction's immediate. Registers whose offsets form
an aligned run are one vector access (`vector_accesses`). The planner of conversions and the
lowering of shared loads and stores both use these functions.

Invariant: every element of a thread is in exactly one access, once. Registers with a copy of
another register are left out, and `representatives` maps them to the original.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from aotc.ir import gf2
from aotc.ir.layout import LinearLayout


@dataclass(frozen=True, slots=True)
class Access:
    """One vector: `registers` in memory order, from `offset_elems` XOR the thread's offset."""

    registers: tuple[int, ...]
    offset_elems: int


@dataclass(frozen=True, slots=True)
class ThreadOffsets:
    """Offsets in elements, by XOR, of each lane bit and each warp bit of a thread."""

    lanes: tuple[int, ...]
    warps: tuple[int, ...]


@lru_cache(maxsize=2048)
def representatives(layout: LinearLayout) -> tuple[int, ...]:
    """Return, for each register, the first register of the same thread with the same element.

    #ll<register=[[0],[1]] lane=[[2]] : [4]>   ->   (0, 0, 2, 2)
    """
    span = gf2.Span()
    stands_for: list[int] = []
    for bit, column in enumerate(layout.columns("register")):
        combination = span.solve(column)
        span.add(column)
        stands_for.append(1 << bit if combination is None else gf2.combine(stands_for, combination))
    return tuple(gf2.span_table(stands_for))


def distinct_register_bits(layout: LinearLayout) -> list[int]:
    """Return the register bits with an element that lower bits do not reach."""
    span = gf2.Span()
    return [bit for bit, column in enumerate(layout.columns("register")) if span.add(column)]


@lru_cache(maxsize=2048)
def thread_offsets(layout: LinearLayout, memory: LinearLayout) -> ThreadOffsets:
    """Return the offset in `memory` of each thread's register 0.

    Requires: `memory`, with the input `offset`, holds all elements of `layout`.
    """
    mask = memory.in_size("offset") - 1
    span = _offset_span(memory)
    lanes, warps = (
        tuple(_offset_of(span, column) & mask for column in layout.columns(name))
        for name in ("lane", "warp")
    )
    return ThreadOffsets(lanes, warps)


@lru_cache(maxsize=2048)
def vector_accesses(
    layout: LinearLayout, memory: LinearLayout, vector_elems: int
) -> tuple[tuple[Access, ...], ...]:
    """Cover a thread's registers once by accesses of `vector_elems` elements.

    One tuple for each value of `memory`'s input `repetition`, so a single one for a plain buffer.
    The repetition of an element must not depend on the thread.

    Raises: ValueError when the registers hold no such vectors, or when a thread's offset is not a
    multiple of them.
    """
    bits = distinct_register_bits(layout)
    columns = layout.columns("register")
    register_span = gf2.Span(columns[bit] for bit in bits)
    width = vector_elems.bit_length() - 1
    vector: list[int] = []
    for element in memory.columns("offset")[:width]:
        mask = register_span.solve(element)
        if mask is None:
            raise ValueError(f"registers of {layout} hold no {vector_elems} neighbours of {memory}")
        vector.append(gf2.combine([1 << bit for bit in bits], mask))
    if len(vector) < width:
        raise ValueError(f"{memory} has no vectors of {vector_elems} elements")
    offsets = thread_offsets(layout, memory)
    if any(offset & (vector_elems - 1) for offset in (*offsets.lanes, *offsets.warps)):
        raise ValueError(f"threads of {layout} are not aligned to {vector_elems} in {memory}")

    span = _offset_span(memory)
    starts = gf2.independent([1 << bit for bit in bits], vector)
    positions = [_offset_of(span, columns[start.bit_length() - 1]) for start in starts]
    out: list[list[Access]] = [[] for _ in range(memory.in_size("repetition"))]
    offset_bits = memory.in_bits("offset")
    for start, position in zip(gf2.span_table(starts), gf2.span_table(positions), strict=True):
        # Begin at the vector's start: at an offset divisible by its length.
        inside = position & (vector_elems - 1)
        registers = gf2.span_table(vector, start ^ gf2.combine(vector, inside))
        offset = (position ^ inside) & ((1 << offset_bits) - 1)
        out[position >> offset_bits].append(Access(tuple(registers), offset))
    return tuple(map(tuple, out))


@lru_cache(maxsize=2048)
def run_elems_in_order(layout: LinearLayout, memory: LinearLayout) -> int:
    """Return how many of the lowest registers lie in `memory` in order, despite the rest.

    It is the longest run for which all runs, of all registers and threads, start at a multiple of
    its length.
    """
    span = _offset_span(memory)
    mask = memory.in_size("offset") - 1
    registers = [_offset_of(span, column) & mask for column in layout.columns("register")]
    threads = thread_offsets(layout, memory)
    bits = 0
    while bits < len(registers) and registers[bits] == 1 << bits:
        bits += 1
    starts = (*threads.lanes, *threads.warps)
    while any(start & (1 << bits) - 1 for start in (*registers[bits:], *starts)):
        bits -= 1
    return 1 << bits


@lru_cache(maxsize=2048)
def _offset_span(memory: LinearLayout) -> gf2.Span:
    return gf2.Span((*memory.columns("offset"), *memory.columns("repetition")))


def _offset_of(span: gf2.Span, element: int) -> int:
    position = span.solve(element)
    if position is None:
        raise ValueError(f"element {element} is not in the buffer")
    return position

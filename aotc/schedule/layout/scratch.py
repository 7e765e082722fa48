"""The shared-memory layout of a conversion: wide vectors, and no bank conflicts.

Shared memory has 32 banks of 4 bytes. A warp's access of up to 4 bytes a lane is one *phase*, of 8
bytes two (half warps), of 16 bytes four (quarter warps). A phase takes one *wavefront* for each
different word of its busiest bank. All maps being linear, the words of a phase form an affine
space, and the number of wavefronts is `2 ** (rank of words - rank of their banks)`.

A scratch layout is a basis of the tile's elements, cut into three: the lowest offset bits are the
*vector* (and the rest of a 4-byte word), the next select the *bank*, the highest the *segment*. Two
lanes collide when they differ by a segment and no bank. So the segment space must meet neither the
span of a phase of the store nor the span of a phase of the load. Write these two as `I + E` and `I
+ F` with the intersection `I`. Such a space is spanned by `e_i ^ f_i` and by the vectors outside
both: it always has enough dimensions.

Vectors must also start where they are aligned in every thread: the bits of lanes and warps must
have no part in the vector bits of their side. So bank and segment bits are chosen from a complement
of the vector with all threads of the side with the wider vector.

Invariant: a scratch layout is a bijection between offsets (and repetitions) and elements. Source:
"Linear Layouts" (2025), optimal swizzling; extended to a wider vector on one side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aotc.ir import gf2
from aotc.ir.layout import LinearLayout, log2_exact

BANK_BYTES = 4
LINE_BYTES = 128
MAX_VECTOR_BYTES = 16
_LANE_BITS = 5


@dataclass(frozen=True, slots=True)
class Side:
    """The elements touched by the store or the load of a conversion, as packed bases.

    Lanes and warps have one base a bit, 0 for a bit that takes no part. `idle` are the bases of
    other addresses that must be aligned. They are of threads with copies, which compute the address
    of a store and do not store, and of further rows of matrices.
    """

    registers: tuple[int, ...]
    lanes: tuple[int, ...]
    warps: tuple[int, ...]
    idle: tuple[int, ...] = ()

    def phase(self, vector_bytes: int) -> list[int]:
        """Return the bases of the lanes served by one phase of such an access."""
        return [lane for lane in self.lanes[: phase_lane_bits(vector_bytes)] if lane]

    def threads(self) -> list[int]:
        """Return all bases of differences between threads."""
        return [column for column in (*self.lanes, *self.warps, *self.idle) if column]

    def vector_registers(self) -> list[int]:
        """Return the registers allowed in a vector: independent of all thread bits.

        A thread starting inside another's vector would start at no multiple of its length.
        """
        return gf2.independent(self.registers, self.threads())


@dataclass(frozen=True, slots=True)
class Scratch:
    """A scratch layout as packed bases of elements, with the vectors it allows.

    `offset` lists the element each offset bit leads to, `repetition` the rest of the tile, stored
    and loaded in later rounds through the same bytes.
    """

    offset: tuple[int, ...]
    repetition: tuple[int, ...]
    store_vector_bits: int
    load_vector_bits: int


def phase_lane_bits(vector_bytes: int) -> int:
    """Return how many lane bits a phase spans: 5 up to 4 bytes a lane, 4 at 8, 3 at 16."""
    return _LANE_BITS - log2_exact(max(1, vector_bytes // BANK_BYTES))


def wavefronts_per_access(
    lane_offsets: Sequence[int], vector_elems: int, element_bytes: int, skip_lanes: int = 0
) -> int:
    """Return the number of wavefronts of one access of a warp.

    `lane_offsets` is the offset in elements added by each lane bit (by XOR); lanes with a bit of
    `skip_lanes` set take no part.
    """
    vector_bytes = vector_elems * element_bytes
    word_shift = log2_exact(BANK_BYTES)
    in_phase = phase_lane_bits(vector_bytes)
    active = [
        (bit < in_phase, column * element_bytes >> word_shift)
        for bit, column in enumerate(lane_offsets)
        if not skip_lanes >> bit & 1
    ]
    words = [word for phase, word in active if phase]
    words += [1 << bit for bit in range(log2_exact(max(1, vector_bytes // BANK_BYTES)))]
    banks = [word & (LINE_BYTES // BANK_BYTES - 1) for word in words]
    later_phases = sum(not phase for phase, _ in active)
    return 1 << (gf2.rank(words) - gf2.rank(banks) + later_phases)


@dataclass(frozen=True, slots=True)
class Wavefronts:
    """Shared-memory cycles of one warp's accesses to a tile, and the fewest they could be."""

    total: int
    minimum: int


def count_wavefronts(
    layout: LinearLayout,
    shared: LinearLayout,
    vector_elems: int,
    element_bits: int,
    skip_lanes: int = 0,
) -> Wavefronts:
    """Count, lane by lane, the wavefronts of warp 0 of `layout` for all of its registers once.

    `shared` maps `offset` (and more) to the tile's coordinates; registers whose offsets share an
    aligned run of `vector_elems` are one access. Deliberately knows nothing of linearity.
    """
    element_bytes = max(1, element_bits // 8)
    offsets = layout.invert_and_compose(shared).sublayout(layout.in_dims, ["offset"])
    lanes = [lane for lane in range(1 << _LANE_BITS) if not lane & skip_lanes]
    offsets_by_lane = {lane: offsets.table("register", lane=lane) for lane in lanes}
    first = offsets_by_lane[0]
    accesses = [
        register
        for register in range(len(first))
        if first[register] % vector_elems == 0 and first[register] not in first[:register]
    ]
    vector_bytes = vector_elems * element_bytes
    per_phase = 1 << phase_lane_bits(vector_bytes)
    total = minimum = 0
    for register in accesses:
        for start in range(0, 1 << _LANE_BITS, per_phase):
            touched: dict[int, set[int]] = {}
            for lane in range(start, start + per_phase):
                if lane not in offsets_by_lane:
                    continue
                begin = offsets_by_lane[lane][register] * element_bytes
                for byte in range(begin, begin + vector_bytes, min(BANK_BYTES, vector_bytes)):
                    word = byte // BANK_BYTES
                    touched.setdefault(word % (LINE_BYTES // BANK_BYTES), set()).add(word)
            if touched:
                total += max(len(words) for words in touched.values())
                words_touched = sum(len(words) for words in touched.values())
                minimum += -(-words_touched * BANK_BYTES // LINE_BYTES)
    return Wavefronts(total, minimum)


def bank_conflicts(
    layout: LinearLayout, shared: LinearLayout, vector_elems: int, element_bits: int
) -> int:
    """Return the wavefronts of `count_wavefronts` beyond the fewest possible."""
    count = count_wavefronts(layout, shared, vector_elems, element_bits)
    return count.total - count.minimum


# ---- construction -----------------------------------------------------------------------------


def candidates(
    store: Side,
    load: Side,
    elements: Sequence[int],
    element_bytes: int,
    max_scratch_bytes: int | None,
) -> list[Scratch]:
    """Return scratch layouts worth comparing, the first of each kind the widest.

    `elements` is a basis of all moved elements. Vectors shared by both sides come first; then one
    side may have more of them. A side's vector is shortened until neither side has a conflict. A
    tile larger than `max_scratch_bytes` is cut along registers unneeded by lanes, warps and vectors
    of either side; vectors are shortened if this is not enough.
    """
    widest = log2_exact(max(1, MAX_VECTOR_BYTES // element_bytes))
    scratch_bits = len(elements)
    if max_scratch_bytes is not None:
        limit = max(1, max_scratch_bytes // element_bytes).bit_length() - 1
        scratch_bits = min(scratch_bits, limit)
    shared_registers = gf2.intersection(store.vector_registers(), load.vector_registers())
    tile = _Tile(store, load, tuple(elements), element_bytes, scratch_bits)
    for both_bits in range(min(widest, len(shared_registers)), -1, -1):
        scratches = _widened(tile, shared_registers[:both_bits], widest)
        if scratches:
            return scratches
    # Not even single elements fit the limit: the smallest scratch there is.
    smallest = _build(tile, [], (0, 0), at_least_threads=True)
    return [] if smallest is None else [smallest]


def _widened(tile: _Tile, shared: Sequence[int], widest: int) -> list[Scratch]:
    """Return layouts with the vector `shared`, widened on one side as far as useful."""
    scratches: list[Scratch] = []
    for side_index, side in enumerate((tile.store, tile.load)):
        extra = gf2.independent(side.vector_registers(), shared)[: widest - len(shared)]
        # Without any extra the two sides are alike: the store has settled it already.
        for extra_bits in range(len(extra), -1 if side_index == 0 else 0, -1):
            vector = [*shared, *extra[:extra_bits]]
            bits = (len(vector), len(shared)) if side_index == 0 else (len(shared), len(vector))
            scratch = _build(tile, vector, bits)
            if scratch is not None:
                scratches.append(scratch)
                if is_conflict_free(scratch, tile.store, tile.load, tile.element_bytes):
                    break
    return scratches


def for_run(
    store: Side,
    load: Side,
    elements: Sequence[int],
    element_bytes: int,
    run: Sequence[int],
    forced: tuple[bool, bool],
) -> list[Scratch]:
    """Return the scratch layouts with `run`, 16 bytes, as the vector of the `forced` sides.

    A side (store, load) that is not forced has as much of it, from the lowest bit, as it holds in
    its registers, or less if this avoids a conflict.
    """
    if len(gf2.independent(run)) < len(run):
        return []
    tile = _Tile(store, load, tuple(elements), element_bytes, len(elements))
    widths: list[int] = []
    for side, is_forced in zip((store, load), forced, strict=True):
        span = gf2.Span(side.vector_registers())
        width = next((bit for bit, column in enumerate(run) if column not in span), len(run))
        if is_forced and width < len(run):
            return []
        widths.append(width)
    scratches: list[Scratch] = []
    narrow = widths[0] if forced[1] else widths[1]
    for bits in range(narrow, -1, -1):
        widths_of_sides = (len(run) if forced[0] else bits, len(run) if forced[1] else bits)
        scratch = _build(tile, run, widths_of_sides)
        if scratch is not None:
            scratches.append(scratch)
            if all(forced) or is_conflict_free(scratch, store, load, element_bytes):
                break
    return scratches


def is_conflict_free(scratch: Scratch, store: Side, load: Side, element_bytes: int) -> bool:
    """Say whether every phase of both sides takes one wavefront."""
    span = gf2.Span(scratch.offset + scratch.repetition)
    for side, bits in ((store, scratch.store_vector_bits), (load, scratch.load_vector_bits)):
        in_phase = side.phase(element_bytes << bits)
        offsets = [mask for lane in in_phase if (mask := span.solve(lane)) is not None]
        if wavefronts_per_access(offsets, 1 << bits, element_bytes) > 1:
            return False
    return True


@dataclass(frozen=True, slots=True)
class _Tile:
    """The tile to move: both sides, a basis of the elements, and the number of offset bits."""

    store: Side
    load: Side
    elements: tuple[int, ...]
    element_bytes: int
    scratch_bits: int


def _build(
    tile: _Tile, vector: Sequence[int], bits: tuple[int, int], *, at_least_threads: bool = False
) -> Scratch | None:
    """Return the layout with this vector, or None if threads would be misaligned or it is too big.

    `vector` are the lowest offset bits, `bits` how many of them (store, load) access at once.
    """
    sides = (tile.store, tile.load)
    low = _fill_word(tile, vector)
    word_bits = _word_bits(tile.element_bytes)
    ambient, repetition = _cut(tile, low, at_least_threads=at_least_threads)
    if len(ambient) > tile.scratch_bits and not at_least_threads:
        return None
    line_bits = log2_exact(LINE_BYTES // tile.element_bytes)
    need = max(0, len(ambient) - line_bits)
    touched = [
        [*side.phase(tile.element_bytes << count), *low[: max(count, word_bits)]]
        for side, count in zip(sides, bits, strict=True)
    ]
    wider, other = (0, 1) if bits[0] >= bits[1] else (1, 0)
    rest = _Complement(low)
    rest.extend(sides[wider].threads())
    if need:
        # Tilt: a phase of the narrow side must span every vector bit, or too many of its lanes
        # would fall into one bank.
        out_of_reach = gf2.independent(
            low[bits[other] :], [*touched[other], *sides[wider].threads()]
        )
        free = gf2.independent(sides[other].phase(1), [*low, *rest.basis])
        rest.extend(lane ^ missing for lane, missing in zip(free, out_of_reach, strict=False))
    rest.extend(sides[other].threads())
    rest.extend(ambient)
    segment = _segment(rest.basis, touched, need)
    bank = gf2.independent(rest.basis, segment)
    offset = (*low, *bank, *segment)
    span = gf2.Span(offset)
    for side, count in zip(sides, bits, strict=True):
        for column in side.threads():
            packed_offset = span.solve(column)
            if packed_offset is None or packed_offset & ((1 << count) - 1):
                return None
    return Scratch(offset, tuple(repetition), *bits)


def _segment(
    complement: Sequence[int], touched: Sequence[Sequence[int]], need: int
) -> Sequence[int]:
    """Return `need` vectors of the span of `complement` outside both touched spaces.

    Only when the touched spaces are too big do some of the vectors lie in them.
    """
    left, right = (gf2.intersection(complement, space) for space in touched)
    shared = gf2.intersection(left, right)
    pairs = [
        e ^ f
        for e, f in zip(gf2.independent(left, shared), gf2.independent(right, shared), strict=False)
    ]
    outside = gf2.independent(complement, [*left, *right])
    return gf2.independent([*outside, *pairs, *complement])[:need]


class _Complement:
    """Collect vectors independent of `base` and of each other."""

    def __init__(self, base: Sequence[int]) -> None:
        self._span = gf2.Span(base)
        self.basis: list[int] = []

    def extend(self, vectors: Iterable[int]) -> None:
        self.basis += [vector for vector in vectors if self._span.add(vector)]


def _word_bits(element_bytes: int) -> int:
    """Return how many low offset bits stay within one 4-byte word."""
    return log2_exact(max(1, BANK_BYTES // element_bytes))


def _fill_word(tile: _Tile, vector: Sequence[int]) -> list[int]:
    """Complete a vector to a 4-byte word, with lanes shared by both sides if there are any."""
    missing = _word_bits(tile.element_bytes) - len(vector)
    if missing <= 0:
        return list(vector)
    store, load = tile.store.phase(1), tile.load.phase(1)
    preferred = [*gf2.intersection(store, load), *store, *load, *tile.elements]
    return [*vector, *gf2.independent(preferred, vector)[:missing]]


def _cut(
    tile: _Tile, low: Sequence[int], *, at_least_threads: bool
) -> tuple[Sequence[int], Sequence[int]]:
    """Return a basis of the elements of one repetition, and of the repetitions.

    One repetition spans the vector and all differences between threads, so the repetition of an
    element depends on its register alone.
    """
    if tile.scratch_bits >= len(tile.elements) and not at_least_threads:
        return tile.elements, ()
    required = gf2.independent([*low, *tile.store.threads(), *tile.load.threads()])
    rest = gf2.independent(tile.elements, required)
    room = max(0, tile.scratch_bits - len(required))
    return [*required, *rest[:room]], rest[room:]

"""Registers of a thread in the fragments of an `mma.sync`.

`mma.sync` multiplies a 16xK by a Kx8 fragment, spread over a warp in one fixed way. A tile is many
fragments, and its layout maps registers to elements. A layout need not be the manual's picture: a
dot does not change when rows, columns or K are permuted, as long as both tiles with this axis are
permuted alike. So the fragments are read off the layouts of the three tiles, and only their
agreement is checked:

    axis M   registers of A and of the accumulator; lanes 2-4 of both
    axis N   registers of B and of the accumulator; lanes 2-4 of B are one more register of the
             accumulator and its lanes 0-1
    axis K   registers of A and B; lanes 0-1 of both

A tile smaller than a fragment leaves bits without an element. Along M and N the missing rows and
columns are copies, computed and dropped; along K copies would be summed, so they are zeros.

Invariant: every multiply-add of the dot is in exactly one instruction. Source: PTX ISA, "Matrix
Fragments for mma.m8n8k4", "…m16n8k8", "…m16n8k16", "…m16n8k32".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from aotc.ir import gf2
from aotc.ir.layout import LinearLayout, log2_exact

ZERO = -1
"""Stands in a word for an element that the tile does not have."""

_WORD_BITS = 32
_K_LANES = 2
_ROW_LANES = 3

Word = tuple[int, ...]
Fragment = tuple[Word, ...]
Grid = tuple[tuple[tuple[Fragment, ...], ...], ...]


@dataclass(frozen=True, slots=True)
class Fragments:
    """Name the registers of every fragment of a dot.

    `a[batch][row][k]`, `b[batch][column][k]` and `acc[batch][row][column]` are fragments: words in
    the order of the instruction's operands, each the registers of the elements packed in it. A word
    of `acc` has one element. In lanes with a bit of `copy_lanes` set, A and B hold copies along K,
    to be zeroed.
    """

    a: Grid
    b: Grid
    acc: Grid
    copy_lanes: int


@lru_cache(maxsize=256)
def fragments(
    shape: tuple[int, ...],
    a: LinearLayout,
    b: LinearLayout,
    acc: LinearLayout,
    element_bits: int,
) -> Fragments:
    """Return the fragments of `mma.sync` of `shape` (m, n, k) in tiles of these layouts.

    The tiles are (M, K), (K, N) and (M, N), all with a leading axis for batches or none.
    Raises: ValueError when the layouts do not agree.
    """
    _check_threads(a, b, acc)
    a_bits, b_bits, acc_bits = _RegisterBits(a), _RegisterBits(b), _RegisterBits(acc)
    _agree("M", a_bits.axis(-2), acc_bits.axis(-2))
    paired = b.bases("lane")[_K_LANES][-1]
    _agree("N", b_bits.axis(-1), [step for step in acc_bits.axis(-1) if step != paired])
    _agree("K", a_bits.axis(-1), b_bits.axis(-2))
    _agree("the batches", a_bits.batch(), acc_bits.batch())
    _agree("the batches", b_bits.batch(), acc_bits.batch())
    in_word = log2_exact(max(1, _WORD_BITS // element_bits))
    k_words = log2_exact(shape[2]) - _K_LANES - in_word
    row_words = log2_exact(shape[0]) - _ROW_LANES
    rows, summed = a_bits.masks(-2), a_bits.masks(-1)
    a_grid = _grid(
        a_bits.batches(),
        gf2.span_table(rows[row_words:]),
        gf2.span_table(summed[in_word + k_words :]),
        _words(summed, in_word, k_words, _table(rows[:row_words], row_words)),
    )
    columns, summed = b_bits.masks(-1), b_bits.masks(-2)
    b_grid = _grid(
        b_bits.batches(),
        gf2.span_table(columns),
        gf2.span_table(summed[in_word + k_words :]),
        _words(summed, in_word, k_words, [0]),
    )
    rows, steps = acc_bits.masks(-2), list(zip(acc_bits.axis(-1), acc_bits.masks(-1), strict=True))
    pair = [mask for step, mask in steps if step == paired]
    acc_grid = _grid(
        acc_bits.batches(),
        gf2.span_table(rows[row_words:]),
        gf2.span_table([mask for step, mask in steps if step != paired]),
        [
            (row ^ column,)
            for row in _table(rows[:row_words], row_words)
            for column in _table(pair, 1)
        ],
    )
    return Fragments(a_grid, b_grid, acc_grid, a.zero_mask("lane") & ((1 << _K_LANES) - 1))


# ---- agreement of the layouts ------------------------------------------------------------------


class _RegisterBits:
    """Sort the register bits of a layout by the axis they move along, and by how far."""

    def __init__(self, layout: LinearLayout) -> None:
        self.rank = len(layout.shape)
        self._bits: list[list[tuple[int, int]]] = [[] for _ in range(self.rank)]
        for bit, basis in enumerate(layout.bases("register")):
            axes = [axis for axis, step in enumerate(basis) if step]
            if len(axes) != 1:
                raise ValueError(f"register bit {bit} of {layout} is not along one axis")
            self._bits[axes[0]].append((basis[axes[0]], 1 << bit))
        for bits in self._bits:
            bits.sort()

    def axis(self, axis: int) -> list[int]:
        """Return the steps along an axis, the shortest first."""
        return [step for step, _ in self._bits[axis]]

    def masks(self, axis: int) -> list[int]:
        """Return the register bit of each step along an axis."""
        return [mask for _, mask in self._bits[axis]]

    def batch(self) -> list[int]:
        return self.axis(0) if self.rank > 2 else []

    def batches(self) -> list[int]:
        """Return the first register of each batch."""
        return gf2.span_table(self.masks(0) if self.rank > 2 else [])


def _agree(dimension: str, left: Sequence[int], right: Sequence[int]) -> None:
    if left != right:
        raise ValueError(f"operands of a dot disagree along {dimension}: {left} and {right}")


def _check_threads(a: LinearLayout, b: LinearLayout, acc: LinearLayout) -> None:
    """Check that lanes and warps hold the instruction's rows and columns."""
    a_lanes, b_lanes, acc_lanes = (layout.bases("lane") for layout in (a, b, acc))
    _agree("M", [c[-2] for c in a_lanes], [0, 0, *(c[-2] for c in acc_lanes[_K_LANES:])])
    _agree("K", [c[-1] for c in a_lanes], [*(c[-2] for c in b_lanes[:_K_LANES]), 0, 0, 0])
    paired = b_lanes[_K_LANES][-1]
    if paired and all(basis[-1] != paired for basis in acc.bases("register")):
        raise ValueError(f"registers of {acc} do not pair column {paired} of a dot")
    columns = [paired, *(c[-1] for c in acc_lanes[:_K_LANES])]
    _agree("N", [c[-1] for c in b_lanes], [0, 0, *columns])
    a_warps, b_warps, acc_warps = (layout.bases("warp") for layout in (a, b, acc))
    _agree("M", [c[-2] for c in a_warps], [c[-2] for c in acc_warps])
    _agree("N", [c[-1] for c in b_warps], [c[-1] for c in acc_warps])
    for layout, along in ((a, -1), (b, -2)):
        _agree("K", [c[along] for c in layout.bases("warp")], [0] * len(acc_warps))
    if len(acc.shape) > 2:
        for name in ("lane", "warp"):
            for layout in (a, b):
                _agree(
                    "the batches",
                    [c[0] for c in layout.bases(name)],
                    [c[0] for c in acc.bases(name)],
                )


# ---- fragments --------------------------------------------------------------------------------


def _table(masks: Sequence[int], bits: int, *, copies: bool = True) -> list[int]:
    """Return the register at each value of `bits` bits, where bits beyond `masks` are missing."""
    table = gf2.span_table(masks)
    while len(table) < 1 << bits:
        table += table if copies else [ZERO] * len(table)
    return table


def _words(summed: Sequence[int], in_word: int, k_words: int, rows: Sequence[int]) -> list[Word]:
    """Return the words of a fragment; words of different rows are neighbours.

    `summed` are the register bits along K: the lowest are in a word, the next tell words apart.
    """
    elements = _table(summed[:in_word], in_word, copies=False)
    steps = _table(summed[in_word : in_word + k_words], k_words, copies=False)
    return [
        tuple(ZERO if ZERO in (step, element) else step ^ row ^ element for element in elements)
        for step in steps
        for row in rows
    ]


def _grid(
    batches: Sequence[int], outer: Sequence[int], inner: Sequence[int], words: Sequence[Word]
) -> Grid:
    """Return the fragment `words` moved to every repetition."""
    return tuple(
        tuple(
            tuple(
                tuple(
                    tuple(ZERO if r == ZERO else r ^ batch ^ row ^ column for r in word)
                    for word in words
                )
                for column in inner
            )
            for row in outer
        )
        for batch in batches
    )

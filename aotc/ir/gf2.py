"""Linear algebra over GF(2) on vectors packed into integers.

Bit `i` of an integer is coordinate `i` of a vector, addition is XOR, and a matrix is the sequence
of its columns. Tiles have a few dozen bits, so one machine word holds a vector and elimination
costs a handful of integer operations a column: layouts are queried thousands of times a kernel.

Invariant: functions are pure and results depend on the order of the arguments only, so every choice
of basis is reproducible.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def combine(columns: Sequence[int], mask: int) -> int:
    """Return the XOR of the columns at the set bits of `mask`: the matrix times `mask`."""
    out = 0
    while mask:
        low = mask & -mask
        out ^= columns[low.bit_length() - 1]
        mask ^= low
    return out


def span_table(columns: Iterable[int], start: int = 0) -> list[int]:
    """Return `start` XOR `combine(columns, k)` for `k` in order, `2 ** len(columns)` entries."""
    table = [start]
    for column in columns:
        table += [entry ^ column for entry in table]
    return table


class Span:
    """Grow a subspace vector by vector, and express members by the added vectors.

    A vector already in the span is counted, so masks refer to insertion order, but no answer uses
    it. So free bits are zero.
    """

    __slots__ = ("_count", "_rows")

    def __init__(self, vectors: Iterable[int] = ()) -> None:
        # (vector, mask of the added vectors it sums). No later row has the leading bit of an
        # earlier one, so one pass in order clears all leading bits of a vector.
        self._rows: list[tuple[int, int]] = []
        self._count = 0
        for vector in vectors:
            self.add(vector)

    @property
    def rank(self) -> int:
        return len(self._rows)

    def add(self, vector: int) -> bool:
        """Add a vector; return whether it enlarged the span."""
        rest, mask = self._eliminate(vector)
        if rest:
            self._rows.append((rest, mask ^ 1 << self._count))
        self._count += 1
        return rest != 0

    def reduce(self, vector: int) -> int:
        """Return the vector with the pivots of the span eliminated; zero if it is a member."""
        return self._eliminate(vector)[0]

    def __contains__(self, vector: int) -> bool:
        return self._eliminate(vector)[0] == 0

    def solve(self, vector: int) -> int | None:
        """Return the mask of added vectors with the XOR `vector`, or None if it is no member."""
        rest, mask = self._eliminate(vector)
        return None if rest else mask

    def _eliminate(self, vector: int) -> tuple[int, int]:
        mask = 0
        for row, made_of in self._rows:
            # Smaller exactly when the row's leading bit was set.
            if vector ^ row < vector:
                vector ^= row
                mask ^= made_of
        return vector, mask


def rank(vectors: Iterable[int]) -> int:
    """Return the dimension of the span of `vectors`."""
    return len(_echelon(vectors))


def independent(vectors: Iterable[int], modulo: Iterable[int] = ()) -> list[int]:
    """Return, in order, the vectors outside the span of `modulo` and earlier vectors."""
    rows = _echelon(modulo)
    basis: list[int] = []
    for vector in vectors:
        rest = vector
        for row in rows:
            if rest ^ row < rest:
                rest ^= row
        if rest:
            rows.append(rest)
            basis.append(vector)
    return basis


def _echelon(vectors: Iterable[int]) -> list[int]:
    """Return rows in echelon form, as in `Span`, without their masks."""
    rows: list[int] = []
    for vector in vectors:
        rest = vector
        for row in rows:
            if rest ^ row < rest:
                rest ^= row
        if rest:
            rows.append(rest)
    return rows


def intersection(left: Sequence[int], right: Sequence[int]) -> list[int]:
    """Return a basis of the intersection of the spans of `left` and `right`.

    Each member is made of the earliest possible vectors of `left`, so a shared vector of `left` is
    returned unchanged.
    """
    left = independent(left)
    right_span = Span(right)
    shared = [vector for vector in left if vector in right_span]
    # Eliminate the rest of `left` modulo `right`: each dependence is one more shared vector.
    rest = [vector for vector in left if vector not in right_span]
    images = Span()
    reduced: list[int] = []
    for vector in rest:
        image = right_span.reduce(vector)
        mask = images.solve(image)
        if mask is not None:
            shared.append(vector ^ combine(reduced, mask))
        images.add(image)
        reduced.append(vector)
    return shared


def complement(vectors: Iterable[int], num_bits: int) -> list[int]:
    """Return unit vectors, lowest first, to complete `vectors` to a basis of `num_bits` bits."""
    return independent((1 << bit for bit in range(num_bits)), vectors)


def transpose(columns: Sequence[int], num_rows: int) -> list[int]:
    """Return the rows of a matrix as integers: bit `c` of entry `r` is bit `r` of column `c`."""
    return [
        sum((column >> row & 1) << index for index, column in enumerate(columns))
        for row in range(num_rows)
    ]


def kernel(columns: Sequence[int]) -> list[int]:
    """Return a basis of the masks `k` with `combine(columns, k) == 0`."""
    span = Span()
    basis: list[int] = []
    for index, column in enumerate(columns):
        mask = span.solve(column)
        if mask is not None:
            basis.append(mask ^ (1 << index))
        span.add(column)
    return basis

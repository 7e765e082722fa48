"""Boundary shapes of tile kernels: none, one, a prime, and about a tile's edge."""

from __future__ import annotations

from collections.abc import Iterator


def boundary_extents(block: int) -> list[int]:
    """Return extents about multiples of `block`: 1, prime, one less, equal, one more, several."""
    return sorted({1, 17, block - 1, block, block + 1, 2 * block, 3 * block + 5} - {0})


def boundary_matrices(block: int) -> Iterator[tuple[int, int]]:
    """Yield (rows, columns): no rows, then every boundary extent of columns with a few rows."""
    yield 0, block
    for index, columns in enumerate(boundary_extents(block)):
        yield (1, 3, 2, 5)[index % 4], columns

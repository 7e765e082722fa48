"""The launcher's limits on a grid, in CTAs.

Invariant: the launcher's own limits, in `runtime_c/src/select.c`, are the same.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_GRID = (2**31 - 1, 65535, 65535)
_NUM_HALVINGS = 6  # a grid may have a factor besides the blocks of an extent


def is_launchable(programs: Sequence[int], num_ctas: int) -> bool:
    """Return whether a grid of programs, each a cluster of `num_ctas`, may be launched.

    >>> is_launchable((1 << 29, 65535), 4), is_launchable(((1 << 29) - 1, 65535), 4) (False,
    True)
    """
    limits = (MAX_GRID[0] // num_ctas, *MAX_GRID[1:])
    return all(count <= limit for count, limit in zip(programs, limits, strict=False))


def long_blocks(count: int, num_ctas: int) -> list[int]:
    """Return candidate numbers of blocks for a long extent, at most `count`, descending."""
    most = min(count, MAX_GRID[0] // num_ctas)
    return list(dict.fromkeys(max(1, most >> halvings) for halvings in range(_NUM_HALVINGS)))

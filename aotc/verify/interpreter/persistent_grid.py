"""How many blocks a launch has where a block runs one program after the other.

A GPU gets as many as run at a time, often one for each program of a small launch. Here they are
few, so that a launch of two programs already has a block that runs both, and one of three has
blocks that do not run equally many.

Invariant: there are blocks exactly if there are programs, and never more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_MAX_BLOCKS = 3


def num_looping_blocks(grid: Sequence[int]) -> int:
    """Return how many blocks (with clusters: clusters) run the programs of `grid`.

    >>> [num_looping_blocks([programs]) for programs in (0, 1, 2, 3, 4, 5, 100)]
    [0, 1, 1, 2, 2, 3, 3]
    """
    return min(_MAX_BLOCKS, -(-math.prod(grid) // 2))

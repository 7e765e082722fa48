"""The number of CTAs in a launch of a persistent kernel.

A GPU launches as many as it holds at a time, often one for each program instance of a small
launch. Here they are few: at two instances one CTA already runs both, and at three the CTAs run
different numbers.

Invariant: there are CTAs if and only if there are program instances, and never more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_MAX_CTAS = 3


def num_persistent_ctas(grid: Sequence[int]) -> int:
    """Return the number of CTAs, or clusters, for the program instances of `grid`.

    >>> [num_persistent_ctas([programs]) for programs in (0, 1, 2, 3, 4, 5, 100)] [0, 1, 1, 2,
    2, 3, 3]
    """
    return min(_MAX_CTAS, -(-math.prod(grid) // 2))

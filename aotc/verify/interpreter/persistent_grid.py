"""How many CTAs a launch of a persistent kernel has.

A GPU gets as many as are resident at a time, often one for each program instance of a small launch.
Here they are few, so that a launch of two instances already has a CTA that runs both, and one of
three has CTAs that do not run equally many.

Invariant: there are CTAs exactly if there are program instances, and never more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_MAX_CTAS = 3


def num_persistent_ctas(grid: Sequence[int]) -> int:
    """Return how many CTAs (with clusters: clusters) run the program instances of `grid`.

    >>> [num_persistent_ctas([programs]) for programs in (0, 1, 2, 3, 4, 5, 100)]
    [0, 1, 1, 2, 2, 3, 3]
    """
    return min(_MAX_CTAS, -(-math.prod(grid) // 2))

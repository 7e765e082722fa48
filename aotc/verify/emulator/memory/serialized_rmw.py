"""Read-modify-write in turn, for lanes that may share an address.

Invariant: the result equals running the lanes one after the other, in ascending order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt


def in_turn(
    cells: npt.NDArray[Any],
    index: npt.NDArray[np.int64],
    operation: Callable[[npt.NDArray[Any], npt.NDArray[np.int64]], npt.NDArray[Any]],
) -> npt.NDArray[Any]:
    """Replace `cells[index]` by `operation(old cells, positions in index)`; return the old cells.

    A repeated index sees the result of its previous occurrence.
    """
    if (index[1:] > index[:-1]).all():  # distinct, as when each lane has its own
        old = cells[index]
        cells[index] = operation(old, np.arange(len(index)))
        return old
    old = np.empty(len(index), cells.dtype)
    order = np.argsort(index, kind="stable")
    ranked = index[order]
    first = np.concatenate((np.ones(min(len(index), 1), np.bool_), ranked[1:] != ranked[:-1]))
    starts = np.flatnonzero(first)
    turn = np.arange(len(index)) - np.repeat(starts, np.diff(np.append(starts, len(index))))
    order = order[np.argsort(turn, kind="stable")]  # all first turns, then all second turns, …
    bounds = np.append(0, np.cumsum(np.bincount(turn))) if len(index) else np.zeros(1, np.int64)
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        positions = order[begin:end]
        current = cells[index[positions]]
        old[positions] = current
        cells[index[positions]] = operation(current, positions)
    return old

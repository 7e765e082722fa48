"""Steps of purely computing instructions: rows of the register file in, rows out.

These closures are the inner loop of the emulator, so they do nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, cast

import numpy as np

from aotc.verify.emulator.compute.registry import Compute
from aotc.verify.emulator.engine.divergence import Lanes
from aotc.verify.emulator.engine.registers import Row

Step: TypeAlias = Callable[[Lanes], None]


class Source(Protocol):
    """A row of the register file, or a substitute, indexed by lanes."""

    def __getitem__(self, lanes: Any, /) -> Any:
        """Return the values of lanes."""
        ...


def single_result(function: Compute, target: Any, sources: Sequence[Source]) -> Step:
    """Return a step that writes one row, specialised for one to three operands."""
    if isinstance(function, np.ufunc) and _fits(function, target, sources):
        return _in_place(function, target, sources)
    if len(sources) == 1:
        (a,) = sources

        def one(lanes: Lanes) -> None:
            target[lanes] = function(a[lanes])

        return one
    if len(sources) == 2:
        a, b = sources

        def two(lanes: Lanes) -> None:
            target[lanes] = function(a[lanes], b[lanes])

        return two
    if len(sources) == 3:
        a, b, c = sources

        def three(lanes: Lanes) -> None:
            target[lanes] = function(a[lanes], b[lanes], c[lanes])

        return three

    def many(lanes: Lanes) -> None:
        target[lanes] = function(*[source[lanes] for source in sources])

    return many


def _fits(function: np.ufunc, target: Any, sources: Sequence[Source]) -> bool:
    """Return whether a ufunc of rows yields the target's dtype, and so can write in place."""
    rows = [cast("Row", row) for row in (*sources, target) if isinstance(row, np.ndarray)]
    if len(sources) != 2 or len(rows) != 3:
        return False
    first, second, result = (row.dtype for row in rows)
    return function.resolve_dtypes((first, second, None))[-1] == result


def _in_place(function: np.ufunc, target: Row, sources: Sequence[Source]) -> Step:
    a, b = sources

    def in_place(lanes: Lanes) -> None:
        if type(lanes) is slice:
            function(a[lanes], b[lanes], out=target[lanes])
        else:
            target[lanes] = function(a[lanes], b[lanes])

    return in_place


def several_results(function: Compute, targets: Sequence[Any], sources: Sequence[Source]) -> Step:
    """Return a step that writes several rows."""

    def several(lanes: Lanes) -> None:
        results = function(*[source[lanes] for source in sources])
        for target, result in zip(targets, results, strict=True):
            target[lanes] = result

    return several

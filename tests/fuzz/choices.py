"""Sources of the generator's decisions: a seed, or Hypothesis, which shrinks them.

Every decision is a number below a bound, and 0 is the simplest. So one generator serves a long
run reproduced by its seed and a test that ends in its smallest failure.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


class Source(Protocol):
    """Yield numbers."""

    def below(self, bound: int) -> int:
        """Return a number from 0 up to but without `bound`."""
        ...


class Seeded:
    """Draw from a generator of random numbers."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, bound: int) -> int:
        return self._random.randrange(bound)


class Drawn:
    """Draw from Hypothesis."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self._draw = draw

    def below(self, bound: int) -> int:
        return self._draw(st.integers(0, bound - 1)) if bound > 1 else 0


class Choices:
    """Make decisions of every kind from numbers; the first option is the simplest."""

    def __init__(self, source: Source) -> None:
        self.below = source.below

    def pick(self, options: Sequence[T]) -> T:
        """Return one of `options`."""
        return options[self.below(len(options))]

    def weighted(self, options: Sequence[tuple[int, T]]) -> T:
        """Return one of `options`, as often as its weight says."""
        left = self.below(sum(weight for weight, _ in options))
        for weight, option in options:
            left -= weight
            if left < 0:
                return option
        raise ValueError("no options")

    def chance(self, times: int, of: int) -> bool:
        """Return True `times` times of so many; False is the simpler."""
        return self.below(of) >= of - times

    def between(self, low: int, high: int) -> int:
        """Return a number from `low` to `high`, both included."""
        return low + self.below(high - low + 1)

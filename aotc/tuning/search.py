"""Search for the fastest config: successive halving, with a stated confidence.

Every round launches the remaining configs more often than the one before, interleaved: each pass
has each config once, in a new random order. Configs are compared by the ratio of their times within
passes, so that clock drift affects all of them alike.

A config is dropped when it is slower than the best with the stated confidence, shared among all
comparisons. Of the others, the slower half is dropped where it seems slower by more than twice the
error of the times. Launches are bounded, including the checks of results: at most a quarter of
measuring every config as often as the winner.

Invariant: equal seeds and times give equal searches.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, median
from typing import TypeAlias

DEFAULT_CONFIDENCE = 0.95
PASSES = (2, 2, 4, 8, 16)
"""By round; with the launch to check the result, the winner has twice the last number."""

_MAX_SHARE = 4  # divisor: launches are at most this part of an exhaustive search
_FIRST_NOISE = 0.05  # of a time, before there are two to compare
_LEAST_NOISE = 0.003
_MAD = 1.4826  # from the median deviation to a standard deviation
_MEDIAN = 1.2533  # the median's standard error, relative to the mean's
_EQUAL = 0.01  # closer configs are not separated by launching them less often

Passes: TypeAlias = "tuple[tuple[int, ...], ...]"
Measure: TypeAlias = "Callable[[int, Passes], Sequence[Sequence[float]]]"
"""Return the seconds of each config of each pass of a round."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """The result of a search: seconds by config, the best first, and its number of launches."""

    seconds: dict[int, float]
    num_launches: int

    @property
    def best(self) -> int:
        """The fastest config."""
        return next(iter(self.seconds))


def exhaustive_launches(num_configs: int) -> int:
    """Return the launches to measure every config as often as the winner."""
    return num_configs * (1 + sum(PASSES))


def halve(
    configs: Sequence[int],
    measure: Measure,
    confidence: float = DEFAULT_CONFIDENCE,
    seed: int = 0,
    *,
    is_exhaustive: bool = False,
) -> Ranking:
    """Return the times of configs, ranked.

    `configs` start with the ones expected to be fast. With probability `confidence` every config
    dropped as slower is slower. With `is_exhaustive` none is dropped.
    """
    search = _Search(configs, confidence)
    for index, num_passes in enumerate(PASSES):
        left = list(configs) if is_exhaustive else search.left(num_passes)
        if len(left) < 2 and index:
            break
        passes = _interleaved(left, num_passes, f"{seed} {index}")
        search.add(passes, measure(index, passes))
    return search.ranking()


def _interleaved(configs: Sequence[int], num_passes: int, seed: str) -> Passes:
    """Return passes over configs, each in its own order."""
    rng = random.Random(seed)  # noqa: S311 - an order, no secret
    passes: list[tuple[int, ...]] = []
    for _ in range(num_passes):
        order = list(configs)
        rng.shuffle(order)
        passes.append(tuple(order))
    return tuple(passes)


class _Search:
    def __init__(self, configs: Sequence[int], confidence: float) -> None:
        self._order = list(configs)
        self._times: dict[int, dict[int, float]] = {config: {} for config in configs}  # by pass
        self._left = list(configs)
        self._num_passes = self._num_rounds = 0
        self._launches = len(configs)  # each is launched once for the check
        self._max_launches = exhaustive_launches(len(configs)) // _MAX_SHARE
        comparisons = max(1, len(configs) * len(PASSES))
        self._z = NormalDist().inv_cdf(1 - (1 - confidence) / comparisons)

    def add(self, passes: Passes, seconds: Sequence[Sequence[float]]) -> None:
        """Add the measurements of a round."""
        for order, times in zip(passes, seconds, strict=True):
            for config, time in zip(order, times, strict=True):
                self._times[config][self._num_passes] = time
            self._num_passes += 1
            self._launches += len(order)
        self._num_rounds += 1

    def left(self, num_passes: int) -> list[int]:
        """Return the configs for the next round of `num_passes` passes."""
        if not self._num_passes:
            return self._left
        ratios = self._log_ratios(self._left)
        noise = self._noise(ratios)
        count = self._num_passes
        error = noise / math.sqrt(count) * (_MEDIAN if count > 2 else 1.0)
        middle = {config: median(logarithms) for config, logarithms in ratios.items()}
        ranked = sorted(self._left, key=lambda config: (middle[config], self._order.index(config)))
        half = math.ceil(len(self._order) / 2**self._num_rounds)
        remaining = [
            config
            for rank, config in enumerate(ranked)
            # A ratio has the noise of both sides.
            if middle[config] <= self._z * error
            and (rank < half or middle[config] <= max(_EQUAL, 2 * error))
        ]
        room = (self._max_launches - self._launches) // num_passes
        self._left = remaining[: max(0, room)]
        return self._left

    def _log_ratios(self, configs: Sequence[int]) -> dict[int, list[float]]:
        """Return the logarithms of times relative to the best config's, pass by pass."""
        shared = [
            number
            for number in range(self._num_passes)
            if all(number in self._times[c] for c in configs)
        ]
        best = min(configs, key=lambda c: (median(self._times[c].values()), self._order.index(c)))
        return {
            config: [
                math.log(self._times[config][number] / self._times[best][number])
                for number in shared
            ]
            for config in configs
        }

    def _noise(self, ratios: dict[int, list[float]]) -> float:
        """Estimate the standard deviation of a ratio from all configs."""
        deviations = [
            abs(value - median(logarithms))
            for logarithms in ratios.values()
            if any(logarithms)
            for value in logarithms
        ]
        count = self._num_passes
        if count < 2 or not deviations:
            return _FIRST_NOISE
        spread = _MAD * median(deviations) * math.sqrt(count / (count - 1))
        return max(spread, _LEAST_NOISE)

    def ranking(self) -> Ranking:
        """Return all times; dropped configs' are relative to the best in their passes."""
        timed = [config for config in self._order if self._times[config]]
        longest = max(len(self._times[config]) for config in timed)
        # Only configs measured to the end: a few lucky passes prove nothing.
        best = min(
            (config for config in timed if len(self._times[config]) == longest),
            key=lambda config: (median(self._times[config].values()), self._order.index(config)),
        )
        seconds = {config: self._relative(config, best) for config in timed}
        rank = {config: position for position, config in enumerate(self._order)}
        ranked = sorted(timed, key=lambda c: (c != best, seconds[c], rank[c]))
        return Ranking({config: seconds[config] for config in ranked}, self._launches)

    def _relative(self, config: int, best: int) -> float:
        """Return a config's time, from its ratio to the best in their common passes."""
        times, bests = self._times[config], self._times[best]
        ratio = median(times[number] / bests[number] for number in times)
        return median(bests.values()) * ratio

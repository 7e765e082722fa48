"""Guess the times of configs between measured launches: estimates, corrected by what is measured.

How far the logarithms of estimates are off is interpolated between measured launches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

Key: TypeAlias = Mapping[str, int]


class LaunchEstimates(Protocol):
    """Estimates of some configs of a kernel; `samples` are launches all over the range of arguments."""

    @property
    def samples(self) -> Sequence[Key]: ...

    def logarithms(self, keys: Sequence[Key]) -> list[list[float]]:
        """Return the logarithms of the times of all configs, a list a launch."""
        ...


Estimator: TypeAlias = Callable[[int, Sequence[int]], "LaunchEstimates | None"]
"""The estimates of a combination's configs, None if there are none."""

_NUM_NEIGHBOURS = 3
_NEAR = 1e-6
_DOUBT = 1.0
"""How fast a correction fades: at a factor of two from the nearest measured launch, it is halved."""


def guesses(
    keys: Sequence[Key], losses: Sequence[Sequence[float]], estimates: LaunchEstimates
) -> list[tuple[Key, list[float]]]:
    """Return launches between and around measured ones, with the losses that configs probably have there."""
    samples = estimates.samples
    names = sorted(name for name in samples[0] if all(name in key for key in keys))
    if not names:
        return []
    places = [_place(key, names) for key in keys]
    known = {tuple(key[name] for name in names) for key in keys}
    others = [tuple(sample[name] for name in names) for sample in samples]
    new = dict.fromkeys([*_between(keys, places, names), *others])
    around = [_completed(values, names, keys, places) for values in new if values not in known]
    if not around:
        return []
    wrong = [
        [loss - guess for loss, guess in zip(*rows, strict=True)]
        for rows in zip(losses, estimates.logarithms(keys), strict=True)
    ]
    guessed: list[tuple[Key, list[float]]] = []
    for key, estimate in zip(around, estimates.logarithms(around), strict=True):
        correction = _interpolated(_place(key, names), places, wrong)
        times = [guess + change for guess, change in zip(estimate, correction, strict=True)]
        least = min(times)
        guessed.append((key, [time - least for time in times]))
    return guessed


def _completed(
    values: Sequence[int],
    names: Sequence[str],
    keys: Sequence[Key],
    places: Sequence[Sequence[float]],
) -> Key:
    """Return a launch whose other arguments are those of the nearest measured one."""
    changed = dict(zip(names, values, strict=True))
    place = _place(changed, names)
    nearest = min(range(len(keys)), key=lambda at: _distance(place, places[at]))
    return {**keys[nearest], **changed}


def _place(key: Key, names: Sequence[str]) -> list[float]:
    """Return a launch as a point whose coordinates are logarithms."""
    return [math.log2(max(1, key[name])) for name in names]


def _distance(one: Sequence[float], two: Sequence[float]) -> float:
    return math.fsum((a - b) ** 2 for a, b in zip(one, two, strict=True))


def _between(
    keys: Sequence[Key], places: Sequence[Sequence[float]], names: Sequence[str]
) -> list[tuple[int, ...]]:
    """Return the launches halfway between each measured one and the nearest others."""
    halfway: list[tuple[int, ...]] = []
    for at, place in enumerate(places):
        nearest = sorted((_distance(place, other), i) for i, other in enumerate(places) if i != at)
        for _, i in nearest[:_NUM_NEIGHBOURS]:
            halfway.append(tuple(_middle(keys[at][name], keys[i][name]) for name in names))
    return halfway


def _middle(one: int, two: int) -> int:
    """Return the geometric middle, rounded to what divides both numbers."""
    if one <= 0 or two <= 0:
        return (one + two) // 2
    unit = math.gcd(one, two)
    return max(1, round(math.sqrt(one * two) / unit)) * unit


def _interpolated(
    place: Sequence[float], places: Sequence[Sequence[float]], values: Sequence[Sequence[float]]
) -> list[float]:
    """Return the mean of the launches' values, the nearer the heavier, less far from all of them.

    Source: D. Shepard, "A two-dimensional interpolation function for irregularly-spaced data", 1968.
    """
    distances = [_distance(place, other) for other in places]
    weights = [1 / (distance + _NEAR) ** 2 for distance in distances]
    total = math.fsum(weights) * (1 + _DOUBT * min(distances))
    columns = zip(*values, strict=True)
    return [
        math.fsum(w * value for w, value in zip(weights, column, strict=True)) / total
        for column in columns
    ]

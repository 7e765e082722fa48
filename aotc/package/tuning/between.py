"""Estimate the times of configs between measured launches, corrected by measurements.

The error of the estimates' logarithms is interpolated between measured launches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

Key: TypeAlias = Mapping[str, int]


class LaunchEstimates(Protocol):
    """Estimates of some configs of a kernel; `samples` are launches over the whole range of arguments."""

    @property
    def samples(self) -> Sequence[Key]: ...

    def logarithms(self, keys: Sequence[Key]) -> list[list[float]]:
        """Return the logarithms of the times of all configs, a list for each launch."""
        ...


Estimator: TypeAlias = Callable[[int, Sequence[int]], "LaunchEstimates | None"]
"""Returns the estimates of a combination's configs, or None without any."""

_NUM_NEIGHBOURS = 3
_NEAR = 1e-6
_DOUBT = 1.0
"""Decay of a correction: at a factor of two from the nearest measured launch, it is halved."""


def guesses(
    keys: Sequence[Key], losses: Sequence[Sequence[float]], estimates: LaunchEstimates
) -> list[tuple[Key, list[float]]]:
    """Return launches between and around measured ones, with the estimated losses of their configs."""
    samples = estimates.samples
    names = sorted(name for name in samples[0] if all(name in key for key in keys))
    if not names:
        return []
    points = [_point(key, names) for key in keys]
    measured = {tuple(key[name] for name in names) for key in keys}
    samples_at = [tuple(sample[name] for name in names) for sample in samples]
    new = dict.fromkeys([*_between(keys, points, names), *samples_at])
    around = [
        _complete_launch(values, names, keys, points) for values in new if values not in measured
    ]
    if not around:
        return []
    wrong = [
        [loss - guess for loss, guess in zip(*rows, strict=True)]
        for rows in zip(losses, estimates.logarithms(keys), strict=True)
    ]
    guessed: list[tuple[Key, list[float]]] = []
    for key, estimate in zip(around, estimates.logarithms(around), strict=True):
        correction = _interpolate(_point(key, names), points, wrong)
        times = [guess + change for guess, change in zip(estimate, correction, strict=True)]
        least = min(times)
        guessed.append((key, [time - least for time in times]))
    return guessed


def _complete_launch(
    values: Sequence[int],
    names: Sequence[str],
    keys: Sequence[Key],
    points: Sequence[Sequence[float]],
) -> Key:
    """Complete a launch with the other arguments of the nearest measured one."""
    changed = dict(zip(names, values, strict=True))
    point = _point(changed, names)
    nearest = min(range(len(keys)), key=lambda row: _distance(point, points[row]))
    return {**keys[nearest], **changed}


def _point(key: Key, names: Sequence[str]) -> list[float]:
    """Return the logarithms of a launch's arguments, as a point."""
    return [math.log2(max(1, key[name])) for name in names]


def _distance(left: Sequence[float], right: Sequence[float]) -> float:
    return math.fsum((a - b) ** 2 for a, b in zip(left, right, strict=True))


def _between(
    keys: Sequence[Key], points: Sequence[Sequence[float]], names: Sequence[str]
) -> list[tuple[int, ...]]:
    """Return the launches halfway between each measured one and its nearest neighbours."""
    halfway: list[tuple[int, ...]] = []
    for row, point in enumerate(points):
        nearest = sorted((_distance(point, other), i) for i, other in enumerate(points) if i != row)
        for _, i in nearest[:_NUM_NEIGHBOURS]:
            halfway.append(tuple(_middle(keys[row][name], keys[i][name]) for name in names))
    return halfway


def _middle(left: int, right: int) -> int:
    """Return the geometric middle, rounded to a multiple of the common divisor."""
    if left <= 0 or right <= 0:
        return (left + right) // 2
    unit = math.gcd(left, right)
    return max(1, round(math.sqrt(left * right) / unit)) * unit


def _interpolate(
    point: Sequence[float], points: Sequence[Sequence[float]], values: Sequence[Sequence[float]]
) -> list[float]:
    """Return the weighted mean of the launches' values: near ones weigh more; it fades with distance.

    Source: D. Shepard, "A two-dimensional interpolation function for irregularly-spaced data",
    1968.
    """
    distances = [_distance(point, other) for other in points]
    weights = [1 / (distance + _NEAR) ** 2 for distance in distances]
    total = math.fsum(weights) * (1 + _DOUBT * min(distances))
    columns = zip(*values, strict=True)
    return [
        math.fsum(w * value for w, value in zip(weights, column, strict=True)) / total
        for column in columns
    ]

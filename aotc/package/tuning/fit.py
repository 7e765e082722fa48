"""Fit decision trees to the times of a kernel's configs, to select a config for a launch.

A measured launch gets a config within `TOLERANCE` of its best one. Between measured launches,
thresholds lie at the geometric middle: the nearest bucket. With estimates, launches between them
are guessed, too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from aotc.ir import expression
from aotc.ir.expression import INT64_MAX, Binary, Expression, ExpressionError, Integer
from aotc.package.archive import index
from aotc.package.archive.selection import Selection
from aotc.package.tuning.between import Estimator, guesses
from aotc.package.tuning.growth import LOSS_UNIT, Integers, Samples, grow
from aotc.package.tuning.table import KernelTuning, Measurement

TOLERANCE = 0.015
"""Relative loss at a measured launch below which a tree does not grow further."""

GUESS_TOLERANCE = 0.1
"""The same at a launch with guessed times."""

_GUESS_WEIGHT = 0.25

_DROPPED = 0.5
"""Least relative loss of a config without a time: tuning dropped it early, as far from the best."""

MAX_FEATURES = 32
_MAX_GRIDS = 8
_MAX_ARGUMENTS_OF_TRIPLES = 4


def fit(
    tuning: KernelTuning,
    kernel: index.Kernel,
    estimator: Estimator | None = None,
    tolerance: float = TOLERANCE,
) -> tuple[Selection, ...]:
    """Return the selection of each measured combination, in order of combinations.

    Configs, types and arguments missing from the kernel are left out. The `estimator` gives times
    of launches without measurements.
    """
    configs = _matching_configs(tuning, kernel)
    groups: dict[int, list[Measurement]] = {}
    for measurement in tuning.measurements:
        number = _combination(measurement, kernel)
        if number is not None:
            groups.setdefault(number, []).append(measurement)
    selections: list[Selection] = []
    for number, measurements in sorted(groups.items()):
        variants = [
            variant
            for variant in kernel.variants
            if variant.target == tuning.target
            and index.combination(kernel, variant.types, variant.choices) == number
        ]
        launches = _own(measurements, configs, variants)
        if launches is not None:
            launches.add_guesses(estimator, number)
            tree = grow(launches.samples(variants, kernel, tolerance))
            selections.append(Selection(tuning.target, tuning.gpu, number, tree))
    return tuple(selections)


def _matching_configs(tuning: KernelTuning, kernel: index.Kernel) -> dict[int, int]:
    """Map the tuning's accepted configs to the kernel's."""
    positions = {_typed(config): position for position, config in enumerate(kernel.configs)}
    matches = {i: positions.get(_typed(c.items())) for i, c in enumerate(tuning.configs)}
    return {
        i: position
        for i, position in matches.items()
        if position is not None and i not in tuning.rejected
    }


def _typed(config: Iterable[tuple[str, index.Value]]) -> tuple[object, ...]:
    return tuple(sorted((name, *index.value_key(value)) for name, value in config))


def _combination(measurement: Measurement, kernel: index.Kernel) -> int | None:
    """Number the types and choices of a measurement; None if the kernel has no such ones."""
    try:
        types = tuple(measurement.types[variable.name] for variable in kernel.type_variables)
        choices = tuple(measurement.choices[choice.name] for choice in kernel.choices)
        return index.combination(kernel, types, choices)
    except (KeyError, index.ArchiveError):
        return None


@dataclass(slots=True)
class _Launches:
    """The launches of a combination, with the losses of configs: first measured ones, then guessed ones."""

    configs: tuple[int, ...]
    keys: list[Mapping[str, int]]
    losses: list[list[float]]
    weights: list[float]
    num_measured: int

    def add_guesses(self, estimator: Estimator | None, combination: int) -> None:
        """Add launches between the measured ones."""
        estimates = None if estimator is None else estimator(combination, self.configs)
        if estimates is None:
            return
        for key, losses in guesses([*self.keys], [*self.losses], estimates):
            self.keys.append(key)
            self.losses.append(losses)
            self.weights.append(_GUESS_WEIGHT)

    def samples(
        self, variants: Sequence[index.Variant], kernel: index.Kernel, tolerance: float
    ) -> Samples:
        """Return the samples to grow a tree from."""
        import numpy as np  # noqa: PLC0415 - start-up time

        limits = [
            tolerance if row < self.num_measured else GUESS_TOLERANCE
            for row in range(len(self.keys))
        ]
        rows = [[round(LOSS_UNIT * loss) for loss in losses] for losses in self.losses]
        weighted = [
            [round(weight * loss) for loss in losses]
            for weight, losses in zip(self.weights, rows, strict=True)
        ]
        return Samples(
            self.configs,
            _unguarded(variants),
            np.array(rows, np.int64),
            np.array(weighted, np.int64),
            np.array([round(LOSS_UNIT * math.log1p(limit)) for limit in limits], np.int64),
            _features(self.keys, variants, kernel),
        )


def _own(
    measurements: Sequence[Measurement],
    configs: Mapping[int, int],
    variants: Sequence[index.Variant],
) -> _Launches | None:
    """Return the measured launches of one combination; None if its variants have no measurement."""
    built = {variant.config for variant in variants}
    columns = {i: position for i, position in configs.items() if position in built}
    launches = _Launches(tuple(columns.values()), [], [], [], 0)
    for measurement in _merged(measurements):
        losses = _losses([measurement.seconds[i] for i in columns])
        if losses:
            launches.keys.append(measurement.key)
            launches.losses.append(losses)
            launches.weights.append(max(measurement.weight, 0.0))
    launches.num_measured = len(launches.keys)
    mean = math.fsum(launches.weights) / max(1, launches.num_measured)
    launches.weights = [weight / mean if mean else 1.0 for weight in launches.weights]
    return launches if launches.keys else None


def _merged(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Return the last measurement of each launch: a later run replaces an earlier one."""
    return list({tuple(sorted(m.key.items())): m for m in measurements}.values())


def _losses(seconds: Sequence[float | None]) -> list[float]:
    """Return the loss of each config relative to the best, or an empty list if none is timed."""
    timed = [time for time in seconds if time is not None and 0 < time < math.inf]
    if not timed:
        return []
    best, worst = min(timed), max(timed)
    missing = max(math.log1p(_DROPPED), math.log(worst / best))
    return [
        math.log(time / best) if time is not None and 0 < time < math.inf else missing
        for time in seconds
    ]


def _unguarded(variants: Sequence[index.Variant]) -> frozenset[int]:
    """Return the configs valid for every launch, as far as guards decide."""
    least = min(len(variant.guards) for variant in variants)
    return frozenset(
        variant.config
        for variant in variants
        if variant.condition is None and len(variant.guards) == least
    )


def _features(
    launches: Sequence[Mapping[str, int]], variants: Sequence[index.Variant], kernel: index.Kernel
) -> tuple[tuple[Expression, Integers], ...]:
    """Return expressions that distinguish launches, and their values, the simplest first.

    They are the arguments, the number of programs under each config, and products of arguments. Of
    expressions that order the launches alike, the first is kept.
    """
    import numpy as np  # noqa: PLC0415 - start-up time

    params = {param.name for param in kernel.params}
    names = sorted(name for name in launches[0] if all(name in launch for launch in launches))
    arguments = [
        argument
        for argument in map(expression.parse, names)
        if set(expression.free_names(argument)) <= params
        and len({expression.evaluate(argument, launch) for launch in launches}) > 1
    ]
    candidates = [*arguments, *_programs(variants)]
    candidates += [Binary("*", a, b) for a, b in itertools.combinations(arguments, 2)]
    if len(arguments) <= _MAX_ARGUMENTS_OF_TRIPLES:
        triples = itertools.combinations(arguments, 3)
        candidates += [Binary("*", Binary("*", a, b), c) for a, b, c in triples]
    features: dict[bytes, tuple[Expression, Integers]] = {}
    for candidate in candidates:
        values = np.array([_value(candidate, launch) for launch in launches], np.int64)
        distinct, ranks = np.unique(values, return_inverse=True)
        if len(distinct) > 1 and len(features) < MAX_FEATURES:
            features.setdefault(ranks.astype(np.int32).tobytes(), (candidate, values))
    return tuple(features.values())


def _programs(variants: Sequence[index.Variant]) -> list[Expression]:
    """Return the number of programs of a launch under each config, without repeats."""
    products: dict[Expression, None] = {}
    for variant in sorted(variants, key=lambda variant: variant.config):
        axes = [axis for axis in variant.grid if axis != Integer(1)]
        if axes:
            product = axes[0]
            for axis in axes[1:]:
                product = Binary("*", product, axis)
            products.setdefault(product)
    return list(products)[:_MAX_GRIDS]


def _value(feature: Expression, launch: Mapping[str, int]) -> int:
    """Evaluate a feature; one without a value is above all thresholds."""
    try:
        return expression.evaluate(feature, launch)
    except ExpressionError:
        return INT64_MAX

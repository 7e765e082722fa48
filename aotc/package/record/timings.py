"""The times that a program's autotuners measured, as a tuning table of the recorded manifest.

The times are those of Triton's compiler, not of aotc's: a start until `aotc tune` has measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from aotc.config import CONFIG_KEYS
from aotc.package.record.manifest import Written, table_key, target_of, tuned_constants
from aotc.package.record.shapes import passed_integers
from aotc.package.tables import Constant
from aotc.package.tuning.table import KernelTuning, Measurement, TuningTable

Config = tuple[tuple[str, Constant], ...]
_DEFAULTS = {"num_ctas": 1}


@dataclass
class _Times:
    """Times of one kernel on one GPU: by launch and config, in seconds."""

    configs: dict[Config, int] = field(default_factory=dict[Config, int])
    launches: dict[tuple[tuple[str, int], ...], dict[int, float]] = field(
        default_factory=dict[tuple[tuple[str, int], ...], dict[int, float]]
    )
    weights: dict[tuple[tuple[str, int], ...], int] = field(
        default_factory=dict[tuple[tuple[str, int], ...], int]
    )


def recorded_timings(records: Sequence[dict[str, Any]], written: Written) -> TuningTable:
    """Return what autotuners measured of the manifest's kernels; of a launch twice, the last."""
    tuned = tuned_constants(records)
    tunings: dict[tuple[str, str, str], _Times] = {}
    for one in records:
        if not one.get("timings") or "launch" not in one:
            continue
        launch = one["launch"]
        kernel = written.tables.get(table_key(launch, tuned))
        if kernel is None:
            continue
        times = tunings.setdefault((kernel, target_of(launch), one.get("gpu", "")), _Times())
        measured = times.launches.setdefault(tuple(passed_integers(launch).items()), {})
        for settings, told in one["timings"]:
            index = times.configs.setdefault(_config(settings, launch), len(times.configs))
            seconds = seconds_of(told)
            if seconds is not None:
                measured[index] = seconds
        key = tuple(passed_integers(launch).items())
        times.weights[key] = _weight(one, records, tuned)
    return TuningTable(tuple(_tuning(*key, tunings[key]) for key in sorted(tunings)))


def seconds_of(told: Any) -> float | None:
    """Return the seconds that an autotuner's milliseconds are: a number, or the first of quantiles.

    None if it is no time: configs that failed have infinity.
    """
    first: Any = cast("list[Any]", told)[0] if isinstance(told, list) and told else told
    is_time = isinstance(first, int | float) and math.isfinite(first) and first > 0
    return float(first) / 1e3 if is_time else None


def _config(settings: Mapping[str, Constant], launch: Mapping[str, Any]) -> Config:
    """Return a config as the manifest lists it."""
    names = {*launch["signature"], *CONFIG_KEYS}
    return tuple(
        (name, value)
        for name, value in settings.items()
        if name in names and _DEFAULTS.get(name) != value
    )


def _weight(
    one: Mapping[str, Any], records: Sequence[dict[str, Any]], tuned: Mapping[str, set[str]]
) -> int:
    """Return how many launches were counted for which the autotuner has this choice; at least 1."""
    launch = one["launch"]
    table = table_key(launch, tuned)
    names = [name for name in one.get("key", {}) if name in launch["integers"]]
    return max(1, sum(
        other["count"]
        for other in records
        if "count" in other
        and table_key(other["launch"], tuned) == table
        and all(other["launch"]["integers"].get(n) == launch["integers"][n] for n in names)
    ))  # fmt: skip


def _tuning(kernel: str, target: str, gpu: str, times: _Times) -> KernelTuning:
    count = range(len(times.configs))
    return KernelTuning(
        kernel=kernel,
        target=target,
        gpu=gpu,
        configs=tuple(dict(config) for config in times.configs),
        measurements=tuple(
            Measurement(
                key=dict(key),
                types={},
                choices={},
                seconds=tuple(measured.get(index) for index in count),
                weight=float(times.weights[key]),
            )
            for key, measured in times.launches.items()
        ),
        rejected={},
    )

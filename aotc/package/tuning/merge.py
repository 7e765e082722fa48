"""Merge tuning tables: of other kernels, of other GPUs, or of the same measured again.

Configs are compared by their entries, not by their index, so tables still merge after the
manifest's configs were reordered or extended.

Invariant: the order of the tables does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from aotc.package.manifest.toml_table import Constant
from aotc.package.tuning.table import Identity, KernelTuning, Measurement, TuningTable


def merge_tunings(tables: Sequence[TuningTable]) -> TuningTable:
    """Merge tables into one.

    Of times of the same config at the same launch, the later date wins; of one date the shorter
    time. A rejected config is accepted again if it was measured on a later date.
    """
    groups: dict[tuple[str, str, str], list[KernelTuning]] = {}
    for table in tables:
        for tuning in table.kernels:
            groups.setdefault(tuning.identity, []).append(tuning)
    return TuningTable(tuple(_merge_group(groups[identity]) for identity in sorted(groups)))


def _merge_group(tunings: list[KernelTuning]) -> KernelTuning:
    """Merge tunings of the same kernel, target and GPU."""
    if len(tunings) == 1:
        return tunings[0]
    tunings = sorted(tunings, key=_age)
    newest = tunings[-1]
    configs = {config_key(config): config for t in reversed(tunings) for config in t.configs}
    indices = {key: index for index, key in enumerate(configs)}
    merged: dict[Identity, Measurement] = {}
    dates: dict[Identity, list[str]] = {}  # of each time of a measurement
    rejected: dict[int, tuple[str, str]] = {}  # date and reason
    for tuning in tunings:
        new_indices = [indices[config_key(config)] for config in tuning.configs]
        for launch in tuning.measurements:
            reordered = _reordered(launch, new_indices, len(configs))
            old = merged.get(launch.identity, replace(reordered, seconds=(None,) * len(configs)))
            launch_dates = dates.setdefault(launch.identity, [""] * len(configs))
            merged[launch.identity] = _merge_times(old, reordered, launch_dates, tuning.date)
            for config_index, seconds in enumerate(reordered.seconds):
                if seconds is not None and rejected.get(config_index, ("",))[0] < tuning.date:
                    rejected.pop(config_index, None)
        rejected |= {new_indices[i]: (tuning.date, reason) for i, reason in tuning.rejected.items()}
    return replace(
        newest,
        configs=tuple(configs.values()),
        measurements=tuple(merged[identity] for identity in sorted(merged)),
        rejected={index: reason for index, (_, reason) in sorted(rejected.items())},
        confidence=min(tuning.confidence for tuning in tunings),
    )


def _age(tuning: KernelTuning) -> tuple[object, ...]:
    """Return a sort key, the oldest first; tunings of one date are ordered by their content."""
    return tuning.date, len(tuning.configs), repr(tuning)


def config_key(config: Mapping[str, Constant]) -> tuple[tuple[str, str], ...]:
    """Return a key equal for equal configs; 1 and true differ."""
    return tuple(sorted((name, repr(value)) for name, value in config.items()))


def _reordered(launch: Measurement, new_indices: Sequence[int], num_configs: int) -> Measurement:
    seconds: list[float | None] = [None] * num_configs
    for index, time in zip(new_indices, launch.seconds, strict=True):
        seconds[index] = time
    return replace(launch, seconds=tuple(seconds))


def _merge_times(old: Measurement, new: Measurement, dates: list[str], date: str) -> Measurement:
    """Return `old` with the winning times of `new`; `dates` is updated to the result's."""
    seconds = list(old.seconds)
    for index, time in enumerate(new.seconds):
        before = seconds[index]
        if time is None or (before is not None and dates[index] == date and before <= time):
            continue
        seconds[index], dates[index] = time, date
    return replace(new, seconds=tuple(seconds))

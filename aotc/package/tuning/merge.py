"""Join tuning tables: of other kernels, of other GPUs, or of the same measured again.

Configs are told apart by what they say, not by their index, so that tables of a manifest whose
configs were reordered or added to still join.

Invariant: the order of the tables does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from aotc.package.manifest.toml_table import Constant
from aotc.package.tuning.table import Identity, KernelTuning, Measurement, TuningTable


def merge_tunings(tables: Sequence[TuningTable]) -> TuningTable:
    """Return one table with what all have.

    Of times of the same config at the same launch, those of the later date stay, of one date the
    shorter. A config that was rejected is not any more if it was measured on a later date.
    """
    groups: dict[tuple[str, str, str], list[KernelTuning]] = {}
    for table in tables:
        for tuning in table.kernels:
            groups.setdefault(tuning.identity, []).append(tuning)
    return TuningTable(tuple(_merged(groups[identity]) for identity in sorted(groups)))


def _merged(tunings: list[KernelTuning]) -> KernelTuning:
    """Return one tuning of several of the same kernel, target and GPU."""
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
        places = [indices[config_key(config)] for config in tuning.configs]
        for launch in tuning.measurements:
            moved = _moved(launch, places, len(configs))
            old = merged.get(launch.identity, replace(moved, seconds=(None,) * len(configs)))
            known = dates.setdefault(launch.identity, [""] * len(configs))
            merged[launch.identity] = _newer(old, moved, known, tuning.date)
            for place, seconds in enumerate(moved.seconds):
                if seconds is not None and rejected.get(place, ("",))[0] < tuning.date:
                    rejected.pop(place, None)
        rejected |= {places[i]: (tuning.date, reason) for i, reason in tuning.rejected.items()}
    return replace(
        newest,
        configs=tuple(configs.values()),
        measurements=tuple(merged[identity] for identity in sorted(merged)),
        rejected={index: reason for index, (_, reason) in sorted(rejected.items())},
        confidence=min(tuning.confidence for tuning in tunings),
    )


def _age(tuning: KernelTuning) -> tuple[object, ...]:
    """Return what orders tunings, the oldest first; of one date by all that they hold."""
    return tuning.date, len(tuning.configs), repr(tuning)


def config_key(config: Mapping[str, Constant]) -> tuple[tuple[str, str], ...]:
    """Return what two configs have in common that are the same; 1 and true are not."""
    return tuple(sorted((name, repr(value)) for name, value in config.items()))


def _moved(launch: Measurement, places: Sequence[int], num_configs: int) -> Measurement:
    seconds: list[float | None] = [None] * num_configs
    for place, time in zip(places, launch.seconds, strict=True):
        seconds[place] = time
    return replace(launch, seconds=tuple(seconds))


def _newer(old: Measurement, new: Measurement, dates: list[str], date: str) -> Measurement:
    """Return `old` with the times of `new` that win; `dates` becomes those of the result."""
    seconds = list(old.seconds)
    for place, time in enumerate(new.seconds):
        before = seconds[place]
        if time is None or (before is not None and dates[place] == date and before <= time):
            continue
        seconds[place], dates[place] = time, date
    return replace(new, seconds=tuple(seconds))

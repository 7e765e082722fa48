"""Collect the results of a session: the tuning table, and a report of each launch.

Invariant: the table is a function of the run's state, so a run that was killed and resumed writes
the same one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from aotc.package.manifest.toml_table import Constant
from aotc.package.tuning.merge import config_key, merge_tunings
from aotc.package.tuning.table import KernelTuning, Measurement, TuningTable
from aotc.package.tuning.text import rounded
from aotc.tuning.launch_tuner import Options
from aotc.tuning.run_state import RunState, Task


def times_of(task: Task, state: RunState) -> dict[int, float]:
    """Return the seconds of a launch's configs, the best first; partial if it is not done."""
    finished = state.done(task)
    if finished is not None:
        return {int(config): float(time) for config, time in finished["seconds"]}
    times: dict[int, list[float]] = {}
    for record in state.rounds(task):
        for order, seconds in zip(record["passes"], record["seconds"], strict=True):
            for config, time in zip(order, seconds, strict=True):
                times.setdefault(config, []).append(time)
    ranked = sorted(times, key=lambda config: (-len(times[config]), median(times[config]), config))
    return {config: rounded(median(times[config])) for config in ranked}


def table_of(
    tasks: Sequence[Task], state: RunState, options: Options, drivers: Mapping[str, str], date: str
) -> TuningTable:
    """Return the table of all measurements; `drivers` has the driver's version by GPU."""
    groups: dict[tuple[str, str, str], list[Task]] = {}
    for task in tasks:
        groups.setdefault((task.kernel.name, task.target, task.gpu), []).append(task)
    tunings: list[KernelTuning] = []
    for (kernel, target, gpu), members in groups.items():
        configs = members[0].kernel.configs
        measurements = [
            Measurement(
                key=dict(task.launch.key),
                types=dict(task.launch.types),
                choices=dict(task.launch.choices),
                seconds=tuple(times.get(index) for index in range(len(configs))),
                weight=task.launch.weight,
            )
            for task in members
            if (times := times_of(task, state))
        ]
        rejected = state.rejected(members[0])
        if not measurements and not rejected:
            continue
        clocks = [r["clock_mhz"] for task in members for r in state.rounds(task)]
        tunings.append(
            KernelTuning(
                *(kernel, target, gpu, tuple(map(_constants, configs)), tuple(measurements)),
                rejected=dict(sorted(rejected.items())),
                driver=drivers.get(gpu, ""),
                clock_mhz=round(median(clocks)) if clocks else 0,
                date=date,
                l2=options.l2,
                confidence=options.confidence,
            )
        )
    return TuningTable(tuple(sorted(tunings, key=lambda tuning: tuning.identity)))


def _constants(config: Sequence[tuple[str, object]]) -> dict[str, Constant]:
    return {name: value for name, value in config if isinstance(value, bool | int | float | str)}


def updated(before: TuningTable, after: TuningTable) -> TuningTable:
    """Replace the measurements of a table by newer ones of the same launches."""
    again = {tuning.identity: tuning for tuning in after.kernels}
    tunings: list[KernelTuning] = []
    for tuning in before.kernels:
        newer = again.get(tuning.identity)
        if newer is None:
            tunings.append(tuning)
            continue
        measured = {launch.identity for launch in newer.measurements}
        rest = tuple(m for m in tuning.measurements if m.identity not in measured)
        timed = {
            config_key(config)
            for launch in newer.measurements
            for config, seconds in zip(newer.configs, launch.seconds, strict=True)
            if seconds is not None
        }
        rejected = {
            index: reason
            for index, reason in tuning.rejected.items()
            if config_key(tuning.configs[index]) not in timed
        }
        tunings.append(replace(tuning, measurements=rest, rejected=rejected))
    return merge_tunings([TuningTable(tuple(tunings)), after])

"""Convert the timings of a program's autotuners to a tuning table for the recorded manifest.

The timings are of Triton's compiler, not of aotc: a starting point until `aotc tune` has measured.
The table has only the manifest's (launched) configs; the records have all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from aotc.config import CONFIG_KEYS
from aotc.package.manifest.configs import completed
from aotc.package.manifest.spec import CartesianConfigs, KernelSpec, ListedConfigs, Manifest
from aotc.package.manifest.toml_table import Constant
from aotc.package.record.manifest import Written, table_key, target_of, tuned_constants
from aotc.package.record.shapes import passed_integers
from aotc.package.tuning.merge import merge_tunings
from aotc.package.tuning.table import KernelTuning, Measurement, TuningTable
from aotc.package.tuning.text import read_tuning, write_tuning

Config = tuple[tuple[str, Constant], ...]


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


def recorded_timings(
    records: Sequence[dict[str, Any]], written: Written, manifest: Manifest
) -> TuningTable:
    """Return autotuners' timings for the manifest's kernels; the last for repeated launches."""
    configs_by_kernel = {kernel.name: _configs(kernel) for kernel in manifest.kernels}
    tuned = tuned_constants(records)
    tunings: dict[tuple[str, str, str], _Times] = {}
    counted: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        if "count" in record:
            counted.setdefault(table_key(record["launch"], tuned), []).append(record)
    for record in records:
        if not record.get("timings") or "launch" not in record:
            continue
        launch = record["launch"]
        table = table_key(launch, tuned)
        kernel = written.tables.get(table)
        if kernel is None:
            continue
        times = tunings.setdefault((kernel, target_of(launch), record.get("gpu", "")), _Times())
        key = tuple(passed_integers(launch).items())
        measured = times.launches.setdefault(key, {})
        for settings, milliseconds in record["timings"]:
            config = configs_by_kernel[kernel].get(completed(_config(settings, launch)))
            seconds = seconds_of(milliseconds)
            if config is not None and seconds is not None:
                measured[times.configs.setdefault(config, len(times.configs))] = seconds
        times.weights[key] = _weight(record, counted.get(table, ()))
    kernel_tunings = (
        _tuning(*key, tunings[key]) for key in sorted(tunings) if tunings[key].configs
    )
    return TuningTable(tuple(kernel_tunings))


def add_timings(table: TuningTable, path: Path) -> None:
    """Merge a table into a file; timings with a date are kept.

    Raises: ManifestError if the file is not a tuning table; HostError if it cannot be written.
    """
    tables = [read_tuning(path), table] if path.exists() else [table]
    write_tuning(merge_tunings(tables), path)


def seconds_of(milliseconds: Any) -> float | None:
    """Convert an autotuner's milliseconds (a number, or quantiles) to seconds.

    Returns None for invalid times: failed configs have infinity.
    """
    first: Any = (
        next(iter(cast("list[Any]", milliseconds)), None)
        if isinstance(milliseconds, list)
        else milliseconds
    )
    is_time = isinstance(first, int | float) and math.isfinite(first) and first > 0
    return float(first) / 1e3 if is_time else None


def _configs(kernel: KernelSpec) -> dict[tuple[object, ...], Config]:
    """Return the configs of a recorded kernel by their canonical form."""
    configs = kernel.configs
    if isinstance(configs, CartesianConfigs):
        names = [name for name, _ in configs.axes]
        values = itertools.product(*(listed for _, listed in configs.axes))
        listed = [tuple(zip(names, combination, strict=True)) for combination in values]
    else:
        assert isinstance(configs, ListedConfigs)
        listed = [*configs.configs]
    return {completed(dict(config)): config for config in listed}


def _config(settings: Mapping[str, Constant], launch: Mapping[str, Any]) -> dict[str, Constant]:
    """Restrict an autotuner's settings to keys of the kernel's config."""
    names = {*launch["signature"], *CONFIG_KEYS}
    return {name: value for name, value in settings.items() if name in names}


def _weight(record: Mapping[str, Any], counted: Sequence[Mapping[str, Any]]) -> int:
    """Count a table's launches matching the autotuner's key; at least 1."""
    integers = record["launch"]["integers"]
    names = [name for name in record.get("key", {}) if name in integers]
    return max(1, sum(
        other["count"]
        for other in counted
        if all(other["launch"]["integers"].get(name) == integers[name] for name in names)
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

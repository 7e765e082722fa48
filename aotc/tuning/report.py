"""Report a run of `aotc tune`, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aotc.package.archive.label import value_text
from aotc.package.tuning.table import KernelTuning, Measurement
from aotc.tuning.run import Tuned


def text(tuned: Tuned, path: str) -> str:
    """Return the best config of each launch, rejected configs, and a line of summary."""
    lines: list[str] = []
    for tuning in tuned.tunings:
        lines.append(f"{tuning.kernel} on {tuning.gpu}, {tuning.target}, {tuning.clock_mhz} MHz")
        lines += [f"  {_launch_line(tuning, launch)}" for launch in tuning.measurements]
        for index, reason in tuning.rejected.items():
            lines.append(f"  put aside: {_config_text(tuning, index)}: {reason}")
    lines += [f"not tuned: {label}: {reason}" for label, reason in tuned.failures.items()]
    state = "" if tuned.is_complete else f" of {tuned.num_launches}; run it again to go on"
    summary = f"{path}: {tuned.num_done} launches tuned{state}"
    lines.append(f"{summary} ({tuned.num_kernel_launches} timed, {tuned.seconds:.1f} s)")
    return "\n".join(lines)


def _launch_line(tuning: KernelTuning, launch: Measurement) -> str:
    values = {**launch.types, **launch.choices, **launch.key}
    label = " ".join(f"{name}={value_text(value)}" for name, value in values.items())
    best = best_config(launch)
    if best is None:
        return f"{label}: not measured"
    seconds = launch.seconds[best]
    assert seconds is not None
    return f"{label}: {seconds * 1e6:.1f} us by {_config_text(tuning, best)}"


def best_config(launch: Measurement) -> int | None:
    """Return the index of the fastest config, None if none was measured."""
    timed = [(time, index) for index, time in enumerate(launch.seconds) if time is not None]
    return min(timed)[1] if timed else None


def _config_text(tuning: KernelTuning, index: int) -> str:
    config = tuning.configs[index]
    return " ".join(f"{name}={value_text(value)}" for name, value in config.items()) or "its config"


def describe(tuned: Tuned, path: str, warnings: Sequence[str]) -> dict[str, Any]:
    """Return a run as JSON."""
    return {
        "table": path,
        "launches": tuned.num_launches,
        "tuned": tuned.num_done,
        "timed": tuned.num_kernel_launches,
        "seconds": round(tuned.seconds, 3),
        "interrupted": tuned.is_interrupted,
        "best": [
            {
                "kernel": tuning.kernel,
                "target": tuning.target,
                "gpu": tuning.gpu,
                "types": dict(launch.types),
                "choices": dict(launch.choices),
                "key": dict(launch.key),
                "config": dict(tuning.configs[best]),
                "seconds": launch.seconds[best],
            }
            for tuning in tuned.tunings
            for launch in tuning.measurements
            if (best := best_config(launch)) is not None
        ],
        "put_aside": [
            {
                "kernel": tuning.kernel,
                "target": tuning.target,
                "gpu": tuning.gpu,
                "config": dict(tuning.configs[index]),
                "reason": reason,
            }
            for tuning in tuned.tunings
            for index, reason in tuning.rejected.items()
        ],
        "failures": [
            {"launch": label, "reason": reason} for label, reason in tuned.failures.items()
        ],
        "warnings": list(warnings),
    }

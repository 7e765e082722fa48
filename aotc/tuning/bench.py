"""Time the launches of shapes: the chosen config of each, and others to compare.

Passes are interleaved: each has every config once, so that clock drift affects all of them alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Protocol

from aotc.package.archive.index import Kernel, Variant
from aotc.package.archive.selection import ANY_GPU
from aotc.package.cover.choose import Refusal, choose
from aotc.package.tuning.shapes import Launch
from aotc.package.verify.subjects import Subject
from aotc.tuning.buffers import UnsizedError
from aotc.tuning.launcher import LostError
from aotc.tuning.messages import Times

_WARM_REPEATS = 5


class Launching(Protocol):
    """Time launches; implemented by `aotc.tuning.launcher.Launcher`."""

    def prepare(self, launch: Launch, subjects: tuple[Subject, ...], seed: int) -> dict[int, str]:
        """Allocate the buffers; return why configs are refused."""
        ...

    def times(self, configs: Sequence[int], *, is_cold: bool, repeats: int) -> Times:
        """Return the seconds of configs, launched in order."""
        ...


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Number of launches, state of the L2, and whether to time all configs or only relevant ones."""

    passes: int = 20
    is_cold: bool = True
    all_configs: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Timed:
    """A launch and its times: the chosen config's in `low`, `seconds`, `high`; all by index."""

    kernel: Kernel
    launch: Launch
    variant: Variant | None = None
    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    clock_mhz: int = 0
    by_config: Mapping[int, float] = field(default_factory=dict[int, float])
    problem: str = ""


def time_launch(
    launching: Launching,
    kernel: Kernel,
    target: str,
    launch: Launch,
    subjects: tuple[Subject, ...],
    options: BenchOptions,
    gpu: str = ANY_GPU,
) -> Timed:
    """Return the times of a launch, or why it has none. Raises: NoWorkerError, StoppedError."""
    serving = choose(kernel, target, launch, gpu)
    if isinstance(serving, Refusal):
        return Timed(kernel, launch, problem=serving.text)
    try:
        misfits = launching.prepare(launch, subjects, options.seed)
    except UnsizedError as error:
        return Timed(kernel, launch, serving[0], problem=str(error))
    except LostError as error:
        return Timed(kernel, launch, serving[0], problem=f"preparing it {error}")
    chosen = next((variant for variant in serving if variant.config not in misfits), None)
    if chosen is None:
        reason = next(iter(misfits.values()), "")
        return Timed(kernel, launch, problem=f"no config fits: {reason}")
    configs = sorted({variant.config for variant in serving} - misfits.keys())
    timed_configs = configs if options.all_configs else sorted({chosen.config, configs[0]})
    times, clocks, lost = _passes(launching, timed_configs, options)
    if not times.get(chosen.config):
        problem = lost.get(chosen.config, "it has no time")
        return Timed(kernel, launch, chosen, problem=problem)
    chosen_times = sorted(times[chosen.config])
    low, _, high = quantiles(chosen_times, n=4) if len(chosen_times) > 1 else chosen_times * 3
    return Timed(
        kernel,
        launch,
        chosen,
        seconds=median(chosen_times),
        low=low,
        high=high,
        clock_mhz=round(median(clocks)),
        by_config={config: median(samples) for config, samples in times.items() if samples},
    )


def _passes(
    launching: Launching, configs: Sequence[int], options: BenchOptions
) -> tuple[dict[int, list[float]], list[int], dict[int, str]]:
    """Return times by config, clocks, and reasons for lost configs; lost ones are left out."""
    times: dict[int, list[float]] = {config: [] for config in configs}
    clocks: list[int] = []
    lost: dict[int, str] = {}
    repeats = 1 if options.is_cold else _WARM_REPEATS
    for config in configs:
        reason = _first_launch(launching, config)
        if reason:
            lost[config] = reason
    left = [config for config in configs if config not in lost]
    for _ in range(options.passes if left else 0):
        try:
            pass_times = launching.times(left, is_cold=options.is_cold, repeats=repeats)
        except LostError as error:
            lost |= dict.fromkeys(left, f"a launch {error}")
            break
        clocks.append(pass_times.clock_mhz)
        for config, seconds in zip(left, pass_times.seconds, strict=True):
            times[config].append(seconds)
        left = left[1:] + left[:1]
    return times, clocks or [0], lost


def _first_launch(launching: Launching, config: int) -> str:
    """Launch a config once to load it, without timing; return why it fails."""
    try:
        launching.times([config], is_cold=False, repeats=1)
    except LostError as error:
        return f"the launch {error}"
    return ""

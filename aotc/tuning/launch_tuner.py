"""Tune one launch on one GPU: compare results, then times.

Invariant: a config that hangs, faults or differs is recorded before anything else is launched.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

from aotc.package.tuning.table import CacheState
from aotc.tuning.compare import Comparison, elements_of
from aotc.tuning.launcher import Launcher, LostError
from aotc.tuning.messages import Refusal, Times
from aotc.tuning.run_state import Configs, RunState, Task
from aotc.tuning.search import DEFAULT_CONFIDENCE, Passes, halve

DIFFERS = "differs from the result of the others"
_WARM_REPEATS = 5
_MAX_LOSSES = 3  # of a pass; after these, its configs run one by one


class OutOfTimeError(Exception):
    """The user's time limit is over."""


class UntunableError(Exception):
    """A launch cannot be measured; the message has the reason."""


class _RejectedError(Exception):
    """A config was rejected during a search; the search restarts without it."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the measurements; `deadline` is by the monotonic clock, 0 for none."""

    l2: CacheState = "cold"
    confidence: float = DEFAULT_CONFIDENCE
    seed: int = 0
    launch_seconds: float = 20.0
    deadline: float = 0.0
    is_exhaustive: bool = False


@dataclass(slots=True)
class LaunchTuner:
    """Tune one launch, resuming from the records in `state`."""

    task: Task
    launcher: Launcher
    state: RunState
    options: Options

    def tune(self) -> None:
        """Rank the configs of the launch.

        Raises: UnsizedError, UntunableError, OutOfTimeError, NoWorkerError, StoppedError.
        """
        task = self.task
        seed = self.options.seed + int(task.number[:6], 16)
        try:
            misfits = self.launcher.prepare(task.launch, task.subjects, seed)
        except LostError as error:
            raise UntunableError(f"preparing it {error}") from None
        fitting = [config for config in task.order if config not in misfits]
        if not fitting:
            reason = next(iter(misfits.values()), "it has no config")
            raise UntunableError(f"no config fits: {reason}")
        fitting = self._compare(fitting)
        while True:
            try:
                self._rank(fitting)
            except _RejectedError:
                continue
            return

    def _left(self, configs: Sequence[int]) -> Configs:
        rejected = self.state.rejected(self.task)
        return tuple(config for config in configs if config not in rejected)

    def _compare(self, configs: Sequence[int]) -> Sequence[int]:
        """Launch each config once, reject those that hang, fault or differ, and return the others."""
        left = self._left(configs)
        if self.state.is_checked(self.task, left):
            return left
        comparison: Comparison | None = None
        launched: list[int] = []
        for config in left:
            self._check_time()
            try:
                outputs = self.launcher.outputs(config)
            except LostError as error:
                self.state.reject(self.task, config, str(error), "")
                continue
            if isinstance(outputs, Refusal):
                continue
            if comparison is None:
                tolerance = max(
                    (subject.spec.tolerance for subject in self.task.subjects), default=0.0
                )
                elements = elements_of(outputs, self.task.launch.types)
                comparison = Comparison(elements, tolerance)
            comparison.add(config, outputs)
            launched.append(config)
        if comparison is not None:
            verdict = comparison.verdict([dict(config) for config in self.task.kernel.configs])
            for config, difference in verdict.outliers.items():
                self.state.reject(self.task, config, DIFFERS, f": {difference}")
            if verdict.constant:
                self.state.note(self.task, verdict.constant)
        self.state.check(self.task, launched)
        return launched

    def _rank(self, configs: Sequence[int]) -> None:
        left = self._left(configs)
        if not left:
            raise UntunableError("every config hangs, faults or differs")

        def measure(index: int, passes: Passes) -> Sequence[Sequence[float]]:
            before = self.state.round(self.task, left, index, passes)
            if before is None:
                seconds, clock_mhz = self._measured(passes)
                before = self.state.add_round(self.task, left, index, passes, seconds, clock_mhz)
            return before["seconds"]

        seed = _seed(self.options.seed, self.task.number)
        ranking = halve(
            left,
            measure,
            self.options.confidence,
            seed,
            is_exhaustive=self.options.is_exhaustive,
        )
        self.state.finish(self.task, ranking.seconds, ranking.num_launches)

    def _measured(self, passes: Passes) -> tuple[list[tuple[float, ...]], int]:
        """Return the seconds of passes and the lowest measured clock."""
        seconds: list[tuple[float, ...]] = []
        clocks: list[int] = []
        for order in passes:
            self._check_time()
            times, clock_mhz = self._pass(order)
            seconds.append(times)
            clocks.append(clock_mhz)
        return seconds, min(clocks)

    def _pass(self, order: Sequence[int]) -> tuple[tuple[float, ...], int]:
        """Return the seconds of one pass. Raises: _RejectedError."""
        for _ in range(_MAX_LOSSES):
            times = self._times(order)
            if isinstance(times, Times):
                return times.seconds, times.clock_mhz
            self._blame(order)
        raise UntunableError("its configs hang or fault together, and alone they do not")

    def _times(self, order: Sequence[int]) -> Times | str:
        """Return the times of a pass, or how it was lost."""
        is_cold = self.options.l2 == "cold"
        repeats = 1 if is_cold else _WARM_REPEATS
        try:
            return self.launcher.times(order, is_cold=is_cold, repeats=repeats)
        except LostError as error:
            return str(error)

    def _blame(self, order: Sequence[int]) -> None:
        """Launch the configs of a pass one by one, and reject the one that fails.

        Raises: _RejectedError.
        """
        for config in order:
            times = self._times([config])
            if isinstance(times, str):
                self.state.reject(self.task, config, times, "")
                raise _RejectedError

    def _check_time(self) -> None:
        if self.options.deadline and time.monotonic() > self.options.deadline:
            raise OutOfTimeError


def _seed(seed: int, number: str) -> int:
    digest = hashlib.sha256(f"{seed} {number}".encode()).digest()
    return int.from_bytes(digest[:6], "little")

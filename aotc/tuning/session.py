"""Run a tuning session: launches shared among GPUs, a thread for each.

Each launch is tuned by one GPU of every kind. If another launch rejects one of its configs, it is
tuned again without it.

Invariant: however a session ends, the journal has all measurements.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from aotc.tuning.buffers import UnsizedError
from aotc.tuning.launch_tuner import LaunchTuner, Options, OutOfTimeError, UntunableError
from aotc.tuning.launcher import Launcher, NoWorkerError, StoppedError
from aotc.tuning.run_state import RunState, Task

_WAIT_SECONDS = 0.2


class Listener(Protocol):
    """Follow a session."""

    def started(self, num_variants: int, num_cached: int) -> None:
        """Report the number of launches, and of those already done."""
        ...

    def advanced(self, label: str, state: str, seconds: float) -> None:
        """Report a finished launch; `state` is empty if all is well."""
        ...

    def warned(self, message: str) -> None:
        """Report a warning."""
        ...


class Tuner(Protocol):
    """One GPU, here or elsewhere."""

    @property
    def gpu(self) -> str:
        """The GPU's name by the driver."""
        ...

    def tune(self, task: Task, state: RunState, options: Options) -> None:
        """Rank the configs of a launch, like `LaunchTuner`, with the same errors."""
        ...

    def close(self) -> None:
        """End its processes."""
        ...


@dataclass(slots=True)
class LocalTuner:
    """A GPU of this machine."""

    gpu: str
    launcher: Launcher

    def tune(self, task: Task, state: RunState, options: Options) -> None:
        LaunchTuner(task, self.launcher, state, options).tune()

    def close(self) -> None:
        self.launcher.close()


@dataclass(slots=True)
class Schedule:
    """Schedule launches on kinds of GPU; threads share it."""

    tasks: Sequence[Task]
    state: RunState
    failures: dict[str, str] = field(default_factory=dict[str, str])
    """Reasons for untunable launches, by number."""
    _running: dict[str, str] = field(default_factory=dict[str, str])  # and the GPU's kind
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def waiting(self) -> list[Task]:
        """Return the launches to do."""
        return [
            task
            for task in self.tasks
            if not self.state.is_done(task) and task.number not in self.failures
        ]

    def take(self, gpu: str, stop: threading.Event) -> Task | None:
        """Return the next launch for a kind of GPU; None if none is left.

        Wait while others run: a launch of theirs may have to be tuned again.
        """
        with self._changed:
            while not stop.is_set():
                for task in self.waiting():
                    if task.gpu == gpu and task.number not in self._running:
                        self._running[task.number] = gpu
                        return task
                if gpu not in self._running.values():
                    return None
                self._changed.wait(_WAIT_SECONDS)
            return None

    def give_back(self, task: Task, failure: str = "") -> None:
        """Give back a launch; `failure` is the reason it cannot be tuned."""
        with self._changed:
            del self._running[task.number]
            if failure:
                self.failures[task.number] = failure
            self._changed.notify_all()


@dataclass(slots=True)
class Session:
    """Tune all launches of a schedule; the launching threads stop soon after `stop` is set."""

    schedule: Schedule
    options: Options
    listener: Listener
    stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _error: Exception | None = None

    def run(self, tuners: Sequence[Tuner]) -> None:
        """Tune on GPUs until all is done, or time is over.

        Raises: KeyboardInterrupt, or a thread's error, once all processes have ended.
        """
        num_tasks = len(self.schedule.tasks)
        self.listener.started(num_tasks, num_tasks - len(self.schedule.waiting()))
        threads = [
            threading.Thread(target=self._serve, args=(tuner,), daemon=True) for tuner in tuners
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(_WAIT_SECONDS)  # with a limit, so that a Ctrl-C is noticed
        except KeyboardInterrupt:
            self.stop.set()
            for thread in threads:
                thread.join()
            raise
        if self._error is not None:
            raise self._error

    def _serve(self, tuner: Tuner) -> None:
        try:
            while (task := self.schedule.take(tuner.gpu, self.stop)) is not None:
                if not self._tune(task, tuner):
                    return
        except Exception as error:  # noqa: BLE001 - raised again by `run`
            self._error = error
            self.stop.set()
        finally:
            tuner.close()

    def _tune(self, task: Task, tuner: Tuner) -> bool:
        """Tune a launch; return whether to go on."""
        start = time.monotonic()
        failure, goes_on = "", True
        before = set(self.schedule.state.rejected(task))
        try:
            tuner.tune(task, self.schedule.state, self.options)
        except (UnsizedError, UntunableError) as error:
            failure = str(error)
        except (OutOfTimeError, StoppedError):
            goes_on = False
        except NoWorkerError as error:
            self._say(self.listener.warned, f"{task.gpu} is of no use any more: {error}")
            goes_on = False
        finally:
            self.schedule.give_back(task, failure)
        for config, reason in self.schedule.state.details(task).items():
            if config not in before:
                shown = ", ".join(f"{n}={v}" for n, v in task.kernel.configs[config])
                self._say(self.listener.warned, f"{task.kernel.name} {shown}: {reason}")
        if goes_on:
            state = f"FAILED: {failure}" if failure else ""
            took = time.monotonic() - start
            self._say(self.listener.advanced, task.launch.label, state, took)
        return goes_on

    def _say(self, report: Callable[..., None], *arguments: object) -> None:
        with self._lock:
            report(*arguments)

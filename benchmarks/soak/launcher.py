"""A launching process and its watchdog.

Before each launch the process writes it to the journal and tells the watchdog. The watchdog
expects the next message within a limit, a longer one while the process reports work on the host.
A silent process hangs: it is killed and the launch is named. Nothing more is launched on its
GPU, since a kernel may well outlive its process. A process is replaced if it ends, or reports an
error that leaves its context unusable.

Invariant: every case handed over gets one outcome, unless the GPU hangs.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

from aotc.verify.checks.check import ExecutionFault, Unsuited
from aotc.verify.checks.device import NoDeviceError
from benchmarks.soak.case import ON_HOST, Case, Device
from benchmarks.soak.journal import Attempt, Journal, Outcome

OpenDevice: TypeAlias = Callable[[], Device]

_OPENING_SECONDS = 120.0
_STOP_SECONDS = 5.0
# Inputs of gigabytes are written, and results compared, beside as many other processes as there are.
_HOST_SECONDS = 180.0
LOADING = "loading"


@dataclass(frozen=True, slots=True)
class Batch:
    """A file of `count` cases of a phase, the ones before `start` done."""

    phase: str
    path: Path
    count: int
    start: int = 0


def write_batch(phase: str, path: Path, cases: Sequence[Case]) -> Batch:
    """Write cases to a file; shared objects are written once."""
    with path.open("wb") as file:  # buffers of gigabytes are written as they are, without a copy
        pickle.dump(list(cases), file, protocol=pickle.HIGHEST_PROTOCOL)
    return Batch(phase, path, len(cases))


# ---- the process ------------------------------------------------------------------------------


def _serve(pipe: Connection, journal: Journal, open_device: OpenDevice, gpu: str) -> None:
    """Run the watchdog's cases, one at a time."""
    if gpu:  # the driver reads it at its initialisation, still to come
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    # The watchdog is gone.
    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        try:
            device = open_device()
        except NoDeviceError as error:
            pipe.send(error)
            return
        pipe.send(device.name)
        device.watch(pipe.send)
        cases: list[Case] = []
        loaded: Path | None = None
        while True:
            task: tuple[Batch, int] | None = pipe.recv()
            if task is None:
                return
            batch, index = task
            if batch.path != loaded:
                cases, loaded = [], batch.path  # the former ones make room first
                with batch.path.open("rb") as file:
                    cases = pickle.load(file)
            outcome = _outcome(cases[index], device, pipe, journal, batch.phase)
            journal.finish(outcome)
            pipe.send(outcome)
            if outcome.status == "fault":
                return  # after some errors the driver reports nothing else any more


def _outcome(case: Case, device: Device, pipe: Connection, journal: Journal, phase: str) -> Outcome:
    start, count = time.monotonic(), 0
    passed_over: dict[str, None] = {}

    def tell(launch: str) -> None:
        attempt = Attempt(case.name, launch, phase)
        journal.tell(attempt)
        pipe.send((attempt, case.command))

    def done(status: Any, detail: str = "") -> Outcome:
        seconds = round(time.monotonic() - start, 3)
        command = case.command if detail else ""
        skipped = tuple(passed_over)
        return Outcome(
            *(case.name, phase, status, detail, command, count, seconds, case.remarks, skipped)
        )

    launch = LOADING
    tell(launch)
    try:
        with case.opened(device) as launches:
            for launch, attempt in launches:
                tell(launch)
                count += 1
                try:
                    wrong = attempt()
                except Unsuited as error:
                    count -= 1
                    passed_over[f"{launch}: {error}"] = None
                    continue
                if wrong:
                    return done("wrong", f"{launch}: {wrong}")
    except ExecutionFault as error:
        return done("fault", f"{launch}: {error}")
    except Exception as error:  # noqa: BLE001 - a case that cannot be run is a finding
        return done("error", f"{launch}: {type(error).__name__}: {error}")
    if passed_over and not count:
        return done("dropped", next(iter(passed_over)))
    return done("right")


# ---- the watch --------------------------------------------------------------------------------


@dataclass
class SharedGpu:
    """A GPU shared by launchers: `name` as in CUDA_VISIBLE_DEVICES, "" for the first one.

    `hung` is the outcome of the first hanging case; afterwards nothing new is launched there.
    """

    name: str = ""
    hung: Outcome | None = None


@dataclass
class Launcher:
    """Run batches of cases in a process on `gpu`, with `limit_seconds` for each launch.

    `open_device` is called in the process, so it must be picklable.
    """

    open_device: OpenDevice
    journal: Journal
    limit_seconds: float
    gpu: SharedGpu = field(default_factory=SharedGpu)
    device: str = ""
    busy_seconds: float = 0.0
    _process: Any = field(default=None, init=False)
    _pipe: Any = field(default=None, init=False)

    def run(self, batch: Batch) -> Iterator[Outcome]:
        """Yield the outcomes of a batch's cases, none after a hang. Raises: NoLauncherError."""
        for index in range(batch.start, batch.count):
            if self.gpu.hung is not None:
                return
            self.open()
            started = time.monotonic()
            outcome = self._run(batch, index)
            self.busy_seconds += time.monotonic() - started
            yield outcome

    def open(self) -> None:
        """Start the process, if there is none. Raises: NoLauncherError without a device."""
        if self._process is None:
            self._start()

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            with suppress(BrokenPipeError):
                self._pipe.send(None)
            self._process.join(_STOP_SECONDS)
            self._kill()

    def _run(self, batch: Batch, index: int) -> Outcome:
        """Return a case's outcome."""
        attempt = Attempt(f"{batch.path.name}[{index}]", LOADING, batch.phase), ""
        limit_seconds = self.limit_seconds
        try:
            self._pipe.send((batch, index))
            while True:
                # The process names its next attempt, or reports the case's outcome.
                if not self._pipe.poll(limit_seconds):
                    hung = self._lost(attempt, "hang", f"no end after {limit_seconds:g} s")
                    self.gpu.hung = self.gpu.hung or hung
                    self._kill()
                    return hung
                word = self._pipe.recv()
                if isinstance(word, Outcome):
                    break
                limit_seconds = _HOST_SECONDS if word == ON_HOST else self.limit_seconds
                if isinstance(word, tuple):
                    attempt = word
        except (EOFError, ConnectionResetError, BrokenPipeError):
            self._process.join(_STOP_SECONDS)
            code = self._process.exitcode
            self._process = None
            return self._lost(attempt, "lost", f"its process ended with code {code}")
        if word.status == "fault":
            self._process.join(_STOP_SECONDS)
            self._kill()
        return word

    def _lost(self, last_message: tuple[Attempt, str], status: Any, detail: str) -> Outcome:
        attempt, command = last_message
        outcome = Outcome(
            attempt.case, attempt.phase, status, f"{attempt.launch}: {detail}", command, 1
        )
        self.journal.finish(outcome)
        return outcome

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, self.journal, self.open_device, self.gpu.name)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        if not self._pipe.poll(_OPENING_SECONDS):
            self._kill()
            raise NoLauncherError(f"the device was not opened within {_OPENING_SECONDS:g} s")
        try:
            opened: str | NoDeviceError = self._pipe.recv()
        except EOFError:
            self._process.join(_STOP_SECONDS)
            code = self._process.exitcode
            self._process = None
            raise NoLauncherError(f"the process that opens the device ended with {code}") from None
        if isinstance(opened, NoDeviceError):
            raise NoLauncherError(str(opened))
        self.device = opened

    def _kill(self) -> None:
        # A process waiting for the GPU in the driver may not even end when it is killed.
        self._process.kill()
        self._process.join(_STOP_SECONDS)
        self._process = None


class NoLauncherError(Exception):
    """Report a missing device."""

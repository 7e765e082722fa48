"""The one process that launches, and the watch over it.

Before each launch the process writes it to the journal and tells the watch, which then expects the
next word within a limit. A process that says nothing for longer hangs: it is killed, the launch is
named, and nothing is launched any more, since a kernel may well outlive its process. A process that
ends, or reports an error after which a context is of no use, is replaced by another one.

Invariant: every case handed over gets one outcome, unless the watch saw a hang before.
"""

from __future__ import annotations

import multiprocessing
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
from benchmarks.soak.case import Case, Device
from benchmarks.soak.journal import Attempt, Journal, Outcome

OpenDevice: TypeAlias = Callable[[], Device]

_OPENING_SECONDS = 120.0
_STOP_SECONDS = 5.0
LOADING = "loading"


@dataclass(frozen=True, slots=True)
class Batch:
    """Name a file of cases of a phase, and how many there are."""

    phase: str
    path: Path
    count: int


def write_batch(phase: str, path: Path, cases: Sequence[Case]) -> Batch:
    """Write cases to a file; what they share is written once."""
    path.write_bytes(pickle.dumps(list(cases), protocol=pickle.HIGHEST_PROTOCOL))
    return Batch(phase, path, len(cases))


# ---- the process ------------------------------------------------------------------------------


def _serve(pipe: Connection, journal: Journal, open_device: OpenDevice) -> None:
    """Run the cases of one file after the other, from the given one on."""
    # A watch that is gone leaves nobody to tell.
    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        try:
            device = open_device()
        except NoDeviceError as error:
            pipe.send(error)
            return
        pipe.send(device.name)
        while True:
            task: tuple[Batch, int] | None = pipe.recv()
            if task is None:
                return
            batch, start = task
            cases: list[Case] = pickle.loads(batch.path.read_bytes())
            for case in cases[start:]:
                outcome = _outcome(case, device, pipe, journal, batch.phase)
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
class Launcher:
    """Run batches of cases, each launch of which has `limit_seconds`.

    `hung` is the outcome of the case that did not end, after which nothing is launched. `open_device`
    is called in the process, so it is a function that can be pickled.
    """

    open_device: OpenDevice
    journal: Journal
    limit_seconds: float
    device: str = ""
    hung: Outcome | None = None
    busy_seconds: float = 0.0
    _process: Any = field(default=None, init=False)
    _pipe: Any = field(default=None, init=False)

    def run(self, batch: Batch) -> Iterator[Outcome]:
        """Yield what came of each case of a batch, none after a hang."""
        started = time.monotonic()
        done = 0
        while done < batch.count and self.hung is None:
            self.open()
            self._pipe.send((batch, done))
            for outcome in self._outcomes(batch.phase, batch.count - done):
                done += 1
                yield outcome
        self.busy_seconds += time.monotonic() - started

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

    def _outcomes(self, phase: str, count: int) -> Iterator[Outcome]:
        """Yield outcomes until there are `count`, or the process is of no more use."""
        told: tuple[Attempt, str] = (Attempt("", "", phase), "")
        while count:
            try:
                # The process says what it tries next, or what came of a case.
                if not self._pipe.poll(self.limit_seconds):
                    self.hung = self._lost(told, "hang", f"no end after {self.limit_seconds:g} s")
                    self._kill()
                    yield self.hung
                    return
                word = self._pipe.recv()
            except (EOFError, ConnectionResetError):
                self._process.join(_STOP_SECONDS)
                code = self._process.exitcode
                self._process = None
                yield self._lost(told, "lost", f"its process ended with code {code}")
                return
            if not isinstance(word, Outcome):
                told = word
                continue
            yield word
            count -= 1
            if word.status == "fault":
                self._process.join(_STOP_SECONDS)
                self._kill()
                return

    def _lost(self, told: tuple[Attempt, str], status: Any, detail: str) -> Outcome:
        attempt, command = told
        outcome = Outcome(
            attempt.case, attempt.phase, status, f"{attempt.launch}: {detail}", command, 1
        )
        self.journal.finish(outcome)
        return outcome

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, self.journal, self.open_device)
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
            raise NoLauncherError(f"the process that opens the device ended with {code}") from None
        if isinstance(opened, NoDeviceError):
            raise NoLauncherError(str(opened))
        self.device = opened

    def _kill(self) -> None:
        # One that waits for the GPU in the driver may not even end when it is killed.
        self._process.kill()
        self._process.join(_STOP_SECONDS)
        self._process = None


class NoLauncherError(Exception):
    """Report that there is nothing to launch on."""

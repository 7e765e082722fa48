"""Run a phase: workers make cases ready, the launcher tries them, the journal holds what came of it.

    jobs ──workers──► batches of cases, as files ──launcher──► outcomes

The files wait in a short queue, so that workers are ahead of the launcher but not far.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from aotc.package.workers import Failure, Job, run_all
from benchmarks.soak.journal import Outcome
from benchmarks.soak.launcher import Batch, Launcher, NoLauncherError, write_batch


class Prepared(Protocol):
    """What workers hand back."""

    @property
    def cases(self) -> list[Any]: ...

    @property
    def outcomes(self) -> list[Outcome]: ...


@dataclass(frozen=True, slots=True)
class Ready:
    """What became of a job: outcomes that are known already, and the files of its cases.

    `held` are those that are launched last.
    """

    outcomes: list[Outcome]
    batch: Batch | None = None
    held: Batch | None = None


Prepare: TypeAlias = Callable[[Any], Prepared]
Say: TypeAlias = Callable[[Outcome], None]
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Work:
    """Make the cases of a job ready in a worker, and write them to files of `folder`.

    With `holds_all` all are launched last, else those that are risky.
    """

    phase: str
    prepare: Prepare
    folder: Path
    holds_all: bool = False

    def __call__(self, numbered: tuple[int, Any]) -> Ready:
        """Do one job."""
        number, task = numbered
        made = self.prepare(task)
        held = [case for case in made.cases if self.holds_all or case.is_risky]
        now = [case for case in made.cases if not (self.holds_all or case.is_risky)]
        # Their order is that of the jobs.
        names = (f"{number:06}.now", f"{number:06}.held")
        batches = [
            write_batch(self.phase, self.folder / f"{self.phase}.{name}", cases) if cases else None
            for name, cases in zip(names, (now, held), strict=True)
        ]
        return Ready(made.outcomes, *batches)


@dataclass(frozen=True, slots=True)
class Limits:
    """How many worker processes there are, and when to stop, on the clock `time.monotonic`."""

    num_workers: int
    deadline: float


def run_phase(
    jobs: Sequence[Job[Any]], work: Work, launcher: Launcher, limits: Limits, say: Say
) -> list[Batch]:
    """Run jobs until there are no more, the deadline, or a hang; return what is held back.

    `work` runs in workers, so it can be pickled; `say` is called with every outcome.
    Raises: NoLauncherError.
    """
    numbered = [Job(job.label, (at, job.request)) for at, job in enumerate(jobs)]
    launching = _Launching(launcher, 2 * limits.num_workers, limits.deadline, say)
    held: list[Batch] = []
    made = run_all(numbered, work, limits.num_workers)
    try:
        for done in made:
            ready = done.result
            if isinstance(ready, Failure):
                detail = f"making it ready: {ready.report}"
                ready = Ready([Outcome(ready.label, work.phase, "error", detail)])
            for outcome in ready.outcomes:
                launcher.journal.finish(outcome)
                say(outcome)
            if ready.batch is not None:
                launching.put(ready.batch)
            if ready.held is not None:
                held.append(ready.held)
            if launching.is_over or time.monotonic() > limits.deadline:
                break
    finally:
        made.close()
        launching.close()
    return sorted(held, key=lambda batch: batch.path)


def run_held(held: Sequence[Batch], launcher: Launcher, limits: Limits, say: Say) -> None:
    """Launch what was held back, in order, until the deadline or a hang."""
    for batch in held:
        if time.monotonic() > limits.deadline or launcher.hung is not None:
            return
        for outcome in launcher.run(batch):
            say(outcome)


class _Launching:
    """A thread that hands batches to the launcher, since workers must not wait for it."""

    def __init__(self, launcher: Launcher, size: int, deadline: float, say: Say) -> None:
        self._launcher, self._deadline, self._say = launcher, deadline, say
        self._queue: queue.Queue[Batch | None] = queue.Queue(size)
        self._error: Exception | None = None
        self.is_over = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def put(self, batch: Batch) -> None:
        """Hand over a batch; wait while too many are there, unless nothing is launched any more."""
        while not self.is_over:
            try:
                self._queue.put(batch, timeout=_POLL_SECONDS)
            except queue.Full:
                continue
            return

    def close(self) -> None:
        """Wait for what was handed over. Raises: what the launcher did."""
        while self._thread.is_alive():
            try:
                self._queue.put(None, timeout=_POLL_SECONDS)
                break
            except queue.Full:
                continue
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while (batch := self._queue.get()) is not None:
                if time.monotonic() > self._deadline:
                    break
                for outcome in self._launcher.run(batch):
                    self._say(outcome)
                batch.path.unlink()
                if self._launcher.hung is not None:
                    break
        except NoLauncherError as error:
            self._error = error
        finally:
            self.is_over = True

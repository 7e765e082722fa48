"""Run jobs: workers make cases ready, launchers try them, the journal holds the outcomes.

    jobs ──workers──► batches of cases, as files ──launchers──► outcomes

The files wait in a short queue, so that workers are ahead of the launchers but not far.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from aotc.package.builder.workers import Failure, Job, run_all
from benchmarks.soak.journal import Journal, Outcome
from benchmarks.soak.launcher import Batch, write_batch
from benchmarks.soak.launchers import Launchers


class Prepared(Protocol):
    """A worker's output."""

    @property
    def cases(self) -> list[Any]: ...

    @property
    def outcomes(self) -> list[Outcome]: ...


@dataclass(frozen=True, slots=True)
class Ready:
    """Result of a job: early outcomes, and the files of its cases.

    The cases of `held_batch` are launched last.
    """

    outcomes: list[Outcome]
    batch: Batch | None = None
    held_batch: Batch | None = None


Prepare: TypeAlias = Callable[[Any], Prepared]
Say: TypeAlias = Callable[[Outcome], None]


@dataclass(frozen=True, slots=True)
class Task:
    """Content of a job: a group of variants, or seeds of programs, of a phase."""

    phase: str
    content: Any


@dataclass(frozen=True, slots=True)
class Work:
    """Make a task's cases ready in a worker, and write them to files of `folder`.

    Held back are all cases of the phases in `held_phases`, and the risky ones of others.
    """

    prepare: Mapping[str, Prepare]
    folder: Path
    held_phases: tuple[str, ...] = ()

    def __call__(self, numbered: tuple[int, Task]) -> Ready:
        """Do one job."""
        number, task = numbered
        prepared = self.prepare[task.phase](task.content)
        is_held = [task.phase in self.held_phases or case.is_risky for case in prepared.cases]
        parts = [
            [
                case
                for case, is_case_held in zip(prepared.cases, is_held, strict=True)
                if is_case_held == held_back
            ]
            for held_back in (False, True)
        ]
        # In the order of the jobs.
        names = (f"{number:06}.now", f"{number:06}.held")
        batches = [
            write_batch(task.phase, self.folder / f"{task.phase}.{name}", cases) if cases else None
            for name, cases in zip(names, parts, strict=True)
        ]
        return Ready(prepared.outcomes, *batches)


@dataclass(frozen=True, slots=True)
class Limits:
    """Number of worker processes, and the stop time on the clock `time.monotonic`.

    `reserve` returns the seconds needed to launch a number of held-back cases.
    """

    num_workers: int
    deadline: float
    reserve: Callable[[int], float] = lambda _count: 0.0


def run_jobs(
    jobs: Sequence[Job[Task]],
    work: Work,
    launchers: Launchers,
    journal: Journal,
    limits: Limits,
    say: Say,
    spent: dict[str, float] | None = None,
) -> list[Batch]:
    """Run jobs until they end, time is up, or every GPU hangs; return held-back batches.

    `work` runs in workers, so it must be picklable; `say` is called with every outcome.
    Held-back batches are in the order of `work.prepare`'s phases, and then of the jobs. The
    workers' seconds are added to `spent`, by phase. Raises: NoLauncherError.
    """
    numbered = [Job(job.label, (number, job.request)) for number, job in enumerate(jobs)]
    held_batches: list[Batch] = []

    def is_late() -> bool:
        left = limits.deadline - time.monotonic()
        return left < limits.reserve(sum(batch.count for batch in held_batches))

    finished_jobs = run_all(numbered, work, limits.num_workers)
    with launchers.launching(2 * limits.num_workers, is_late, say) as launching:
        try:
            for finished_job in finished_jobs:
                ready, phase = finished_job.result, finished_job.task.request[1].phase
                if spent is not None:
                    spent[phase] = spent.get(phase, 0.0) + finished_job.seconds
                if isinstance(ready, Failure):
                    detail = f"making it ready: {ready.report}"
                    ready = Ready([Outcome(ready.label, phase, "error", detail)])
                for outcome in ready.outcomes:
                    journal.finish(outcome)
                    say(outcome)
                if ready.batch is not None:
                    launching.put(ready.batch)
                if ready.held_batch is not None:
                    held_batches.append(ready.held_batch)
                if launching.is_over or is_late():
                    break
        finally:
            finished_jobs.close()
    phases = list(work.prepare)
    return sorted(held_batches, key=lambda batch: (phases.index(batch.phase), batch.path))


def run_held(batches: Sequence[Batch], launchers: Launchers, deadline: float, say: Say) -> None:
    """Launch held-back batches in order, until the deadline or every GPU hangs."""
    with launchers.launching(1, lambda: time.monotonic() > deadline, say) as launching:
        for batch in batches:
            launching.put(batch)

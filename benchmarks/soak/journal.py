"""Attempts and outcomes: a file of JSON lines that outlives its writers.

A launch is written down before it is tried, a case when it is done. A case without an outcome is
the one a process, a command or a machine ended with.

Invariant: a line is written by one system call. So a reader sees whole lines, and at most the
last one cut off.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

Status: TypeAlias = Literal[
    "right", "built", "wrong", "fault", "hang", "lost", "error", "dropped", "refused"
]

# Statuses failing a soak. Dropped cases do not fit the target. Refused ones have a config the
# kernel cannot have. The compiler reports both explicitly.
FAILURES: tuple[Status, ...] = ("wrong", "fault", "hang", "lost", "error")


Key: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a case: `detail` describes the failure, `command` reproduces it.

    "built" is a case to be compiled alone, "hang" a launch over its time limit. "lost" means its
    process ended or was killed, "error" the case could not be made ready. `passed_over` are
    launches without room on the device, each with its reason; they do not count in
    `num_launches`.
    """

    case: str
    phase: str
    status: Status
    detail: str = ""
    command: str = ""
    num_launches: int = 0
    seconds: float = 0.0
    remarks: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()

    @property
    def is_failure(self) -> bool:
        """Return whether the soak fails for it."""
        return self.status in FAILURES


@dataclass(frozen=True, slots=True)
class Attempt:
    """A launch of a case about to be tried, in a phase."""

    case: str
    launch: str
    phase: str


@dataclass(frozen=True, slots=True)
class Run:
    """One run of phases: planned cases of each, and the kernels of its variants.

    `launcher_seconds` sums the time launchers had a case, over `num_launchers` at a time.
    `worker_seconds`, by phase, are of worker processes, `num_jobs` at a time.
    """

    planned: Mapping[str, int]
    device: str
    date: str
    seconds: float
    launcher_seconds: float
    num_jobs: int
    num_launchers: int = 1
    kernels: tuple[str, ...] = ()
    worker_seconds: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass
class Record:
    """A journal's contents: outcomes, and the last attempt of each case without one.

    Both are by phase and case.
    """

    outcomes: dict[Key, Outcome] = field(default_factory=dict[Key, Outcome])
    open: dict[Key, Attempt] = field(default_factory=dict[Key, Attempt])
    runs: list[Run] = field(default_factory=list[Run])

    def take(self, outcome: Outcome) -> None:
        """Add an outcome; a later one of the same case replaces it."""
        self.outcomes[outcome.phase, outcome.case] = outcome
        self.open.pop((outcome.phase, outcome.case), None)

    def known(self, phase: str) -> set[str]:
        """Return the cases tried in a phase, with any outcome."""
        return {case for of, case in (*self.outcomes, *self.open) if of == phase}


class Journal:
    """Append to the file at `path`; any number of processes may at the same time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def tell(self, attempt: Attempt) -> None:
        """Write down an attempt before it starts."""
        self._append({"try": asdict(attempt)})

    def finish(self, outcome: Outcome) -> None:
        """Write down a case's outcome."""
        self._append({"done": asdict(outcome)})

    def end(self, run: Run) -> None:
        """Write down the end of a run."""
        self._append({"run": asdict(run)})

    def read(self) -> Record:
        """Return all lines so far, from any writer."""
        record = Record()
        for entry in self._entries():
            if "try" in entry:
                attempt = Attempt(**entry["try"])
                key = attempt.phase, attempt.case
                if key not in record.outcomes:
                    record.open[key] = attempt
            elif "run" in entry:
                run = entry["run"]
                record.runs.append(Run(**{**run, "kernels": tuple(run["kernels"])}))
            else:
                fields = entry["done"]
                lists = {name: tuple(fields.get(name, ())) for name in ("remarks", "passed_over")}
                record.take(Outcome(**{**fields, **lists}))
        return record

    def _entries(self) -> Iterator[dict[str, Any]]:
        if not self.path.exists():
            return
        for line in self.path.read_bytes().split(b"\n")[:-1]:
            # A line may follow one cut off by a crash of the machine.
            with suppress(ValueError):
                yield json.loads(line)

    def _append(self, entry: Mapping[str, Any]) -> None:
        line = json.dumps(entry).encode() + b"\n"
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, line)
        finally:
            os.close(handle)

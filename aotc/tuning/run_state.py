"""Track the state of a run: the journal's records, by launch and GPU.

A launch is done when its configs were ranked, and none of these was rejected then or later: a wrong
config may be the fastest, and cause others to be dropped.

Invariant: the state only depends on the journal; it is the same after a kill.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from aotc.package.archive.index import Kernel
from aotc.package.tuning.shapes import Launch
from aotc.package.tuning.text import rounded
from aotc.package.verify.subjects import Subject
from aotc.tuning.journal import Record, Records
from aotc.tuning.search import Passes

Configs: TypeAlias = "tuple[int, ...]"


@dataclass(frozen=True, slots=True)
class Task:
    """One launch to tune on one kind of GPU; `order` has the configs, those to try first at the front.

    `subjects` are variants for the launch, with tile IR: the ones with the largest buffers.
    """

    launch: Launch
    kernel: Kernel
    subjects: tuple[Subject, ...]
    target: str
    gpu: str
    order: Configs

    @property
    def number(self) -> str:
        """Identifies the launch in the journal."""
        text = repr((self.launch.identity, self.gpu))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def subject_of_rejection(self) -> str:
        """Key under which configs are rejected."""
        return f"{self.launch.kernel} {self.target} {self.gpu}"


@dataclass(slots=True)
class RunState:
    """The records of a journal; threads may share it."""

    journal: Records
    _rejected: dict[str, dict[int, str]] = field(default_factory=dict[str, dict[int, str]])
    _details: dict[str, dict[int, str]] = field(default_factory=dict[str, dict[int, str]])
    _notes: dict[str, dict[str, None]] = field(default_factory=dict[str, dict[str, None]])
    _checked: dict[str, set[int]] = field(default_factory=dict[str, set[int]])
    _rounds: dict[tuple[str, Configs, int], Record] = field(
        default_factory=dict[tuple[str, Configs, int], Record]
    )
    _done: dict[str, Record] = field(default_factory=dict[str, Record])
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        for record in self.journal.records:
            self._take(record)

    def _add(self, record: Record) -> None:
        with self._lock:
            self.journal.add(record)
            self._take(record)

    def add_all(self, records: Sequence[Record]) -> None:
        """Add records from another process."""
        for record in records:
            self._add(record)

    def about(self, task: Task) -> list[Record]:
        """Return all records relevant to a task."""
        number, subject = task.number, task.subject_of_rejection
        with self._lock:
            return [
                record
                for record in self.journal.records
                if number in (record.get("checked"), record.get("launch"), record.get("done"))
                or subject in (record.get("rejected"), record.get("depends"))
            ]

    def _take(self, record: Record) -> None:
        """Update the state by a record of the journal."""
        if "rejected" in record:
            rejected = self._rejected.setdefault(record["rejected"], {})
            rejected.setdefault(record["config"], record["reason"])
            details = self._details.setdefault(record["rejected"], {})
            details.setdefault(record["config"], record["detail"])
        elif "depends" in record:
            self._notes.setdefault(record["depends"], {})[record["constant"]] = None
        elif "checked" in record:
            self._checked.setdefault(record["checked"], set()).update(record["configs"])
        elif "round" in record:
            self._rounds[record["launch"], tuple(record["configs"]), record["round"]] = record
        elif "done" in record:
            self._done[record["done"]] = record

    def reject(self, task: Task, config: int, reason: str, detail: str) -> None:
        """Reject a config of a kernel, for all launches.

        The `reason` is the same for every launch, the `detail` is the first launch's.
        """
        shown = f"{reason}{detail}, at {task.launch.label}"
        head = {"rejected": task.subject_of_rejection, "config": config}
        self._add({**head, "reason": reason, "detail": shown})

    def details(self, task: Task) -> dict[int, str]:
        """Return the details of rejected configs, from the first launch that failed."""
        with self._lock:
            return dict(self._details.get(task.subject_of_rejection, {}))

    def rejected(self, task: Task) -> dict[int, str]:
        """Return the rejected configs of a task's kernel, with the reasons."""
        with self._lock:
            return dict(self._rejected.get(task.subject_of_rejection, {}))

    def note(self, task: Task, constant: str) -> None:
        """Record that results of a kernel depend on a constant of its configs."""
        self._add({"depends": task.subject_of_rejection, "constant": constant})

    def notes(self, task: Task) -> dict[str, None]:
        """Return the constants that determine results of a task's kernel."""
        with self._lock:
            return dict(self._notes.get(task.subject_of_rejection, {}))

    def check(self, task: Task, configs: Sequence[int]) -> None:
        """Record that the results of configs agree."""
        self._add({"checked": task.number, "configs": list(configs)})

    def is_checked(self, task: Task, configs: Sequence[int]) -> bool:
        """Return whether the results of configs were compared."""
        return self._checked.get(task.number, set()) >= set(configs)

    def round(self, task: Task, configs: Configs, index: int, passes: Passes) -> Record | None:
        """Return the record of a round of a search, None if not measured."""
        record = self._rounds.get((task.number, configs, index))
        if record is None or record["passes"] != [list(order) for order in passes]:
            return None
        return record

    def add_round(
        self,
        task: Task,
        configs: Configs,
        index: int,
        passes: Passes,
        seconds: Sequence[Sequence[float]],
        clock_mhz: int,
    ) -> Record:
        """Record the measurements of a round, and return the record."""
        record = {
            "round": index,
            "launch": task.number,
            "configs": list(configs),
            "passes": [list(order) for order in passes],
            "seconds": [[rounded(time) for time in times] for times in seconds],
            "clock_mhz": clock_mhz,
        }
        self._add(record)
        return record

    def finish(self, task: Task, seconds: dict[int, float], num_launches: int) -> None:
        """Record that a launch's configs are ranked."""
        self._add(
            {
                "done": task.number,
                "label": task.launch.label,
                "seconds": [[config, rounded(time)] for config, time in seconds.items()],
                "launches": num_launches,
            }
        )

    def is_done(self, task: Task) -> bool:
        """Return whether a launch's configs are ranked, and none of them was rejected since."""
        record = self._done.get(task.number)
        if record is None:
            return False
        return not {config for config, _ in record["seconds"]} & self.rejected(task).keys()

    def done(self, task: Task) -> Record | None:
        """Return the record of a finished launch, None if it is not done."""
        return self._done[task.number] if self.is_done(task) else None

    def rounds(self, task: Task) -> list[Record]:
        """Return the measured rounds of a launch, without configs rejected since."""
        rejected = self.rejected(task).keys()
        return [
            record
            for (number, configs, _), record in list(self._rounds.items())
            if number == task.number and not rejected & set(configs)
        ]

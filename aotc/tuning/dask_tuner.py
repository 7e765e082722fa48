"""Tune on the GPUs of a Dask cluster's workers.

A launch is one task, sent to the worker with the chosen GPU, together with its records so far; its
new records come back. A process that launches stays open in the worker for the next task.

Invariant: a lost worker's launch is tuned elsewhere, and no received record is lost.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from aotc.ir.diagnostics import HostError
from aotc.package.builder.dask_executor import connected_client
from aotc.package.inspect import cuda_driver
from aotc.tuning.buffers import UnsizedError
from aotc.tuning.journal import Record
from aotc.tuning.launch_tuner import LaunchTuner, Options, OutOfTimeError, UntunableError
from aotc.tuning.launcher import Launcher, NoWorkerError, StoppedError
from aotc.tuning.run import Cluster, Device, Subject, devices_of
from aotc.tuning.run_state import RunState, Task

_WAIT_SECONDS = 0.2
_ANSWERS: dict[str, type[Exception]] = {
    error.__name__: error
    for error in (UnsizedError, UntunableError, OutOfTimeError, NoWorkerError, StoppedError)
}


@dataclass(slots=True)
class _Memory:
    """Records in memory."""

    records: list[Record]

    def add(self, record: Record) -> None:
        self.records.append(record)


@dataclass(frozen=True, slots=True)
class Answer:
    """The records added by a task, and the name and text of the error that ended it."""

    records: tuple[Record, ...]
    error: str = ""
    message: str = ""


_launchers: dict[str, Launcher] = {}


def list_devices(driver: str) -> tuple[str, tuple[Device, ...]]:
    """Return this worker's host and GPUs."""
    machine = cuda_driver.ask(driver)
    return socket.gethostname(), () if machine.problem else devices_of(machine, "all")


def tune_there(
    task: Task,
    records: Sequence[Record],
    options: Options,
    seconds: float,
    archive: bytes,
    driver: str,
    visible: str,
) -> Answer:
    """Tune a launch on a GPU of this worker; `seconds` are left, 0 for no limit."""
    memory = _Memory(list(records))
    launcher = _launchers.get(visible)
    if launcher is None or launcher.archive != archive:
        if launcher is not None:
            launcher.close()
        launcher = _launchers[visible] = Launcher(archive, driver, visible, options.launch_seconds)
    deadline = time.monotonic() + seconds if seconds else 0.0
    error: Exception | None = None
    try:
        LaunchTuner(task, launcher, RunState(memory), replace(options, deadline=deadline)).tune()
    except tuple(_ANSWERS.values()) as raised:
        error = raised
    added = tuple(memory.records[len(records) :])
    return Answer(added, type(error).__name__ if error is not None else "", str(error or ""))


def end_launchers() -> None:
    """End this worker's launching processes."""
    while _launchers:
        _, launcher = _launchers.popitem()
        launcher.stop.set()  # ends a launch of a cancelled task
        launcher.close()


@dataclass(slots=True)
class DaskTuner:
    """One GPU of a worker."""

    gpu: str
    visible: str
    worker: str
    client: Any
    archive: Any  # a future of its bytes
    driver: str
    stop: threading.Event = field(default_factory=threading.Event)

    def tune(self, task: Task, state: RunState, options: Options) -> None:
        """Tune a launch there. Raises: as `LaunchTuner`."""
        left = options.deadline - time.monotonic() if options.deadline else 0.0
        if options.deadline and left <= 0:
            raise OutOfTimeError
        sent = self.client.submit(
            *(tune_there, task, state.about(task), options, left),
            *(self.archive, self.driver, self.visible),
            workers=[self.worker],
            pure=False,
            retries=0,
        )
        try:
            answer = self._answer(sent)
        finally:
            sent.release()
        state.add_all(answer.records)
        if answer.error:
            raise _ANSWERS[answer.error](answer.message)

    def _answer(self, sent: Any) -> Answer:
        """Wait for the answer. Raises: StoppedError, NoWorkerError."""
        while True:
            if self.stop.is_set():
                sent.cancel(force=True)
                raise StoppedError
            try:
                return sent.result(timeout=_WAIT_SECONDS)
            except TimeoutError:
                if sent.status == "pending" and self.worker not in self.client.nthreads():
                    raise NoWorkerError(f"the worker at {self.worker} is lost") from None
            except Exception as error:  # noqa: BLE001 - of Dask, in any of its layers
                raise NoWorkerError(f"the worker at {self.worker}: {error}") from None

    def close(self) -> None:
        """Do nothing: the processes end with the session."""


@contextmanager
def dask_tuners(address: str, subject: Subject, driver: str) -> Generator[Cluster]:
    """Yield the GPUs of a Dask cluster's workers, each once.

    Raises: HostError if there is no cluster, or no GPU there.
    """
    with connected_client(address, 1) as client:
        listed: dict[str, tuple[str, tuple[Device, ...]]] = client.run(list_devices, driver)
        archive = client.scatter(subject.archive, broadcast=True)
        stop = threading.Event()
        tuners: dict[tuple[str, str], DaskTuner] = {}
        devices: list[Device] = []
        for worker, (host, among) in sorted(listed.items()):
            for device in among:
                if (host, device.visible) not in tuners:
                    fields = (device.name, device.visible, worker, client, archive, driver, stop)
                    tuners[host, device.visible] = DaskTuner(*fields)
                    devices.append(device)
        if not tuners:
            message = f"none of the {len(listed)} workers of {address} has a GPU"
            raise HostError(message, remedy="start workers on hosts with GPUs: dask worker")
        try:
            yield Cluster(devices, list(tuners.values()), stop)
        finally:
            stop.set()
            client.run(end_launchers, on_error="return")

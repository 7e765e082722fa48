"""Run a worker process that launches on a GPU: send requests, watch it, and restart it.

Invariant: a request is answered, or it raises within its time limit; a hanging process is killed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from aotc.package.tuning.shapes import Launch
from aotc.package.verify.subjects import Subject
from aotc.tuning.buffers import UnsizedError
from aotc.tuning.messages import (
    Answer,
    Check,
    Identity,
    Open,
    Output,
    Prepare,
    Refusal,
    Request,
    Time,
    Times,
)

OPEN_SECONDS = 120.0
PREPARE_SECONDS = 120.0
_END_SECONDS = 10.0
_LAUNCHES_IN_TIME = 10  # that may each take as long as the limit of one
_POLL_SECONDS = 0.2


class LostError(Exception):
    """A request has no answer: the process hung, or the context was lost, as the message tells."""


class StoppedError(Exception):
    """The user asked to stop."""


class NoWorkerError(Exception):
    """No process can launch on this GPU."""


@dataclass(slots=True)
class Launcher:
    """A process that launches on one GPU.

    A process that hangs or faults is ended; the next request starts another. `device` is the GPU's
    `CUDA_VISIBLE_DEVICES`, `launch_seconds` the time limit of launches, after which the process
    counts as hung.
    """

    archive: bytes
    driver: str
    device: str
    launch_seconds: float
    stop: threading.Event = field(default_factory=threading.Event)
    _process: subprocess.Popen[bytes] | None = None
    _connection: Connection | None = None
    _prepared: tuple[Launch, tuple[Subject, ...], int] | None = None
    _identity: Identity | None = field(default=None)

    @property
    def identity(self) -> Identity:
        """The GPU. Raises: NoWorkerError."""
        self._start()
        assert self._identity is not None
        return self._identity

    def prepare(self, launch: Launch, subjects: tuple[Subject, ...], seed: int) -> dict[int, str]:
        """Allocate the buffers of a launch; return why configs are refused.

        Raises: UnsizedError, LostError, NoWorkerError.
        """
        self._prepared = launch, subjects, seed
        self._start()
        answer = self._ask(Prepare(launch, subjects, seed), PREPARE_SECONDS)
        if isinstance(answer, Refusal):
            raise UnsizedError(answer.reason)
        assert isinstance(answer, dict)
        return answer

    def outputs(self, config: int) -> list[Output] | Refusal:
        """Launch a config of the prepared launch, if it is not refused.

        Raises: LostError, NoWorkerError.
        """
        self._restart()
        answer = self._ask(Check(config), self.launch_seconds)
        assert isinstance(answer, list | Refusal)
        return answer

    def times(self, configs: Sequence[int], *, is_cold: bool, repeats: int) -> Times:
        """Time configs of the prepared launch. Raises: LostError, NoWorkerError."""
        self._restart()
        # Not every launch of a long pass may take as long as a single one may.
        seconds = self.launch_seconds * (1 + len(configs) * repeats / _LAUNCHES_IN_TIME)
        answer = self._ask(Time(tuple(configs), is_cold, repeats), seconds)
        if isinstance(answer, Refusal):
            raise LostError(f"is refused: {answer.reason}")
        assert isinstance(answer, Times)
        return answer

    def _restart(self) -> None:
        """Restart a lost process, and prepare its launch again."""
        if self._process is None:
            assert self._prepared is not None
            try:
                self.prepare(*self._prepared)
            except (LostError, UnsizedError) as error:  # it was possible before
                self.close()
                raise NoWorkerError(f"preparing the launch again {error}") from None

    def _start(self) -> None:
        if self._process is not None:
            return
        parent_end, child_end = Pipe()
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": self.device}
        environment["PYTHONSAFEPATH"] = "1"  # excludes modules of the working folder
        root = str(Path(__file__).resolve().parents[2])
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [root, os.environ.get("PYTHONPATH")])
        )
        self._process = subprocess.Popen(
            [sys.executable, "-m", "aotc.tuning.worker", str(child_end.fileno())],
            pass_fds=[child_end.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C only reaches the parent
        )
        child_end.close()
        self._connection = parent_end
        try:
            answer = self._ask(Open(self.archive, self.driver), OPEN_SECONDS)
        except LostError as error:
            raise NoWorkerError(str(error)) from None
        assert isinstance(answer, Identity)
        self._identity = answer

    def _ask(self, request: Request, seconds: float) -> Answer:
        """Send a request and return the answer. Raises: LostError."""
        assert self._connection is not None
        try:
            self._connection.send(request)
            if not self._answers_within(self._connection, seconds):
                self.close()
                raise LostError(f"does not end within {seconds:g} s")
            answer: Answer = self._connection.recv()
        except (EOFError, OSError):
            status = self.close()
            raise LostError(f"ends the process that launches it, {status}") from None
        if isinstance(answer, Refusal) and answer.is_lost:
            self.close()
            raise LostError(f"fails: {answer.reason}")
        return answer

    def _answers_within(self, connection: Connection, seconds: float) -> bool:
        """Wait for an answer. Raises: StoppedError."""
        deadline = time.monotonic() + seconds
        while not connection.poll(min(_POLL_SECONDS, seconds)):
            if self.stop.is_set():
                self.close()
                raise StoppedError
            if time.monotonic() > deadline:
                return False
        return True

    def close(self) -> str:
        """End the process; return how it ended."""
        process, connection = self._process, self._connection
        self._process = self._connection = None
        if connection is not None:
            connection.close()
        if process is None:
            return ""
        status = process.poll()
        with contextlib.suppress(OSError):
            process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
        return f"status {status}"

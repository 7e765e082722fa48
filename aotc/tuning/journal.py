"""Append measurements to a journal of JSON lines that survives a killed run.

A line is appended and synchronised with the disk before the next measurement begins, so a kill
loses at most the current one. The first line identifies the run: another archive or another way to
measure is another run.

Invariant: one process writes a journal at a time, and every line but the last one is complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeAlias, cast, final

from aotc.ir.diagnostics import HostError
from aotc.regular_file import MAX_RECORDS_BYTES, read_regular

Record: TypeAlias = "dict[str, Any]"


class Records(Protocol):
    """Records of measurements, with more added over time."""

    @property
    def records(self) -> Sequence[Record]:
        """All records, in order."""
        ...

    def add(self, record: Record) -> None:
        """Add a record."""
        ...


@final
class Journal:
    """The records of a run, in a file locked while the block is open."""

    def __init__(self, path: Path, run: Mapping[str, Any]) -> None:
        self.records: list[Record] = []
        self._path = path
        self._run = dict(run)
        self._descriptor = -1
        self._lock = threading.Lock()

    @property
    def run(self) -> Record:
        """Identity of the run, from the first line."""
        return self._run

    def __enter__(self) -> Journal:
        """Open and lock the file.

        Raises: HostError if it cannot be written, another process has it, or it is of another run.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            self._descriptor = os.open(self._path, flags, 0o644)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            content = read_regular(self._path, MAX_RECORDS_BYTES)
            whole = content[: content.rfind(b"\n") + 1]
            os.ftruncate(self._descriptor, len(whole))
        except BlockingIOError:
            self._close()
            message = f"another `aotc tune` writes {self._path}"
            raise HostError(message, remedy="wait for it, or give another -o") from None
        except OSError as error:
            self._close()
            message = f"cannot write {self._path}: {error.strerror or error}"
            raise HostError(message, remedy="give another -o") from None
        self._read(whole)
        return self

    def _read(self, content: bytes) -> None:
        records = list(_parsed(content))
        if not records:
            self.add({"run": self._run})
            return
        before: Record = records[0].get("run", {})
        if {**before, "date": ""} != {**self._run, "date": ""}:
            self._close()
            message = f"{self._path} is of another run: other kernels or options"
            raise HostError(message, remedy="--fresh begins anew; or give another -o")
        self._run = before
        self.records = records[1:]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def add(self, record: Record) -> None:
        """Append a record; it is on the disk when this returns."""
        line = json.dumps(record, allow_nan=False).encode() + b"\n"
        with self._lock:
            if "run" not in record:
                self.records.append(record)
            while line:
                line = line[os.write(self._descriptor, line) :]
            os.fsync(self._descriptor)

    def remove(self) -> None:
        """Remove the file; its records are no longer needed."""
        self._path.unlink(missing_ok=True)


def _parsed(content: bytes) -> Iterator[Record]:
    """Yield the records of a journal; other lines than JSON are skipped."""
    for line in content.decode("utf-8", errors="replace").splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            record: object = json.loads(line)
            if isinstance(record, dict):
                yield cast("Record", record)

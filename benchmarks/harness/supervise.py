"""Measure in another process: a hang or a lost GPU costs one candidate, and it is not tried again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

QUIET_SECONDS = 180.0
MAX_PROCESSES = 20
COMMAND = (sys.executable, "-m", "benchmarks.harness.measure")


class Results:
    """Rows by workload, and candidates not to be tried again; stored in a file, if there is one.

    Rows and candidates of another archive do not count. `run` has the other keys of the file, as
    `docs/results` has them.
    """

    def __init__(
        self, archive: Path, path: Path | None, run: dict[str, Any], *, again: bool = False
    ) -> None:
        self.path, self.run = path, run
        self.archive = hashlib.sha256(archive.read_bytes()).hexdigest()
        stored = json.loads(path.read_text()) if path and path.exists() else {}
        same = stored.get("archive") == self.archive
        listed = stored["rows"] if same and not again else []
        self.rows: dict[str, Any] = {row["work"]: row for row in listed}
        self.bad: list[str] = stored["bad"] if same else []

    def write(self) -> None:
        """Write the results to the file atomically."""
        if self.path is None:
            return
        content = {**self.run, "rows": [*self.rows.values()]}
        content |= {"archive": self.archive, "bad": self.bad}
        unfinished = self.path.with_suffix(".tmp")
        unfinished.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        unfinished.replace(self.path)


class Child:
    """A measuring process, with progress in lines of JSON."""

    def __init__(self, command: Sequence[str], task: dict[str, Any]) -> None:
        # Its own process group: children hold its output open, and must end with it.
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(task))
        self.process.stdin.close()
        self.output: queue.Queue[str | None] = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self.output.put(line)
        self.output.put(None)

    def end(self) -> int:
        """Wait for the end, and return the exit code."""
        self.reader.join()
        return self.process.wait()

    def stop(self) -> None:
        """End the process and its children, if they still run."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    def lines(self, quiet_seconds: float) -> Iterator[dict[str, Any]]:
        """Yield its messages until it ends, or is killed after a long silence."""
        while True:
            try:
                line = self.output.get(timeout=quiet_seconds)
            except queue.Empty:
                self.stop()
                return
            if line is None:
                return
            if line.startswith("{"):
                yield json.loads(line)


def measure(
    task: dict[str, Any],
    results: Results,
    command: Sequence[str] = COMMAND,
    quiet_seconds: float = QUIET_SECONDS,
) -> None:
    """Run a task with `command`; after a lost process, retry without its last candidate."""
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_PROCESSES):
            child = Child(command, task | {"done": list(results.rows), "bad": results.bad})
            trying, rows = "", 0
            stack.callback(child.stop)
            for line in child.lines(quiet_seconds):
                trying = line.get("trying", trying)
                if note := line.get("note"):
                    print(note, flush=True)
                if card := line.get("card"):
                    results.run["card"] = card
                if row := line.get("row"):
                    results.rows[row["work"]] = row
                    results.write()
                    trying, rows = "", rows + 1
                    print(text_of(row), flush=True)
            code = child.end()
            if code == 0:
                return
            if code == 1 or not (trying or rows):
                raise SystemExit(f"the measuring process ended with exit code {code}")
            if trying:
                print(f"  lost the process (exit code {code}) at {trying}", flush=True)
                results.bad.append(trying)
                results.write()
        raise SystemExit(f"gave up after {MAX_PROCESSES} processes")


def exit_when_terminated() -> None:
    """Exit on SIGTERM: the measuring process has a session of its own, and is ended by `measure`."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def text_of(row: dict[str, Any]) -> str:
    """Return a row as a line: every peer's figure, ratios of aotc to peers, failures."""
    figures = "  ".join(f"{peer} {figure:,}" for peer, figure in row["figures"].items())
    ratios = "  ".join(f"over {peer} {value:.3f}" for peer, value in row.get("ratios", {}).items())
    failed = "".join(
        f"   {count} OF {peer.upper()}'S CANDIDATES FAILED"
        for peer, count in row.get("failed", {}).items()
    )
    mhz = row.get("clocks", {}).get("sm_mhz", 0)
    return f"{row['work']:36} {row['unit']}: {figures}   {ratios}   {mhz:.0f} MHz{failed}"

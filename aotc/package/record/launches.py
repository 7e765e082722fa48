"""Run a program under the recorder, and keep its launches in `FOLDER/launches.jsonl`.

Each process of the program appends to its own file in `FOLDER/parts`. After the program, or before
the next one, all parts are merged into `launches.jsonl` and removed. The file is replaced
atomically. Records accumulate over runs, and an interrupted run loses no launch.

Counts are summed over processes and runs: a record with a `count` has the counted `launch`.

Invariant: `launches.jsonl` has each record once, in order of first appearance; counts come last.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from aotc.ir.diagnostics import CompileError
from aotc.package.text_output import make_folder, write_text
from aotc.regular_file import MAX_RECORDS_BYTES, read_regular

_HOOK = Path(__file__).parent / "hook"


def run_recorded(command: Sequence[str], folder: Path) -> int:
    """Run a command under the recorder and merge its launches; return its exit code.

    An interrupt ends the command with SIGINT's exit code; its launches are kept.

    Raises: CompileError if the command does not exist; HostError if the folder cannot be made.
    """
    parts = folder / "parts"
    make_folder(parts)
    path = os.pathsep.join([str(_HOOK), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "AOTC_RECORD_DIR": str(parts.resolve())}
    try:
        process = subprocess.Popen(list(command), env=environment)
    except OSError as error:
        raise cannot_run(command[0], error, "aotc record -- python app.py") from None
    try:
        return process.wait()
    except KeyboardInterrupt:
        _end(process)
        return -signal.SIGINT
    finally:
        merge(folder)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process possibly interrupted by the terminal too; terminate or kill it."""
    for end, seconds in ((None, 2.0), (process.terminate, 10.0), (process.kill, None)):
        if end is not None:
            end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            return


def cannot_run(program: str, error: OSError, example: str) -> CompileError:
    """Return the error for a command failing to start."""
    message = f"expected a command, cannot run {program!r}: {error.strerror}"
    return CompileError(message, remedy=f"such as: {example}")


def with_python(command: Sequence[str]) -> list[str]:
    """Prefix a script or `-m module` with this Python; return other commands unchanged."""
    is_program = command[0] == "-m" or command[0].endswith(".py")
    return [sys.executable, *command] if is_program else [*command]


def add(records: Sequence[dict[str, Any]], folder: Path) -> None:
    """Add records to a folder."""
    parts = folder / "parts"
    make_folder(parts)
    text = "".join(f"{json.dumps(record)}\n" for record in records)
    write_text(parts / f"{os.getpid()}-log.jsonl", text)
    merge(folder)


def merge(folder: Path) -> None:
    """Merge the records of all processes into the folder's `launches.jsonl`."""
    merged = folder / "launches.jsonl"
    parts = sorted((folder / "parts").glob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    lines: dict[str, None] = {}
    counts: dict[str, int] = {}
    for path in (merged, *parts):
        numbered: dict[int, str] = {}  # launches of this process
        highest: dict[int, int] = {}
        for line, record in _lines(path):
            launch = json.dumps(record.get("launch"), sort_keys=True)
            if "of" in record and "launch" in record:
                numbered[record["of"]] = launch
            elif "of" in record:
                highest[record["of"]] = record["count"]  # a count only rises
            elif "count" in record:
                counts[launch] = counts.get(launch, 0) + record["count"]
            else:
                lines[line] = None
        for number, count in highest.items():
            launch = numbered.get(number, "null")
            counts[launch] = counts.get(launch, 0) + count
    counts.pop("null", None)
    lines |= dict.fromkeys(
        f'{{"count": {count}, "launch": {launch}}}' for launch, count in counts.items()
    )
    write_text(merged, "".join(f"{line}\n" for line in lines))
    for path in parts:
        path.unlink(missing_ok=True)


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the records of a folder."""
    return [record for _, record in _lines(folder / "launches.jsonl")]


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield lines and records of a file; skip partial lines from killed processes."""
    try:
        content = read_regular(path, MAX_RECORDS_BYTES)
    except FileNotFoundError:
        return
    except OSError as error:
        raise CompileError(f"cannot read {path}: {error.strerror}") from None
    for line in content.decode("utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield line, cast("dict[str, Any]", record)

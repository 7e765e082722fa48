"""Run a library's functions in several processes, each importing the library once.

    python library_parts.py LIBRARY OUTPUTS -j N --seconds S [--only NAMES] [--configs K]

Runs `library_program.py` N times; the processes share the functions, and all are ended after S
seconds. Writes OUTPUTS.json in the same form, for all together, with the files of outputs. An
unfinished function has failed. Imports neither torch nor Triton itself.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Run the functions, and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("library")
    parser.add_argument("outputs", type=Path)
    parser.add_argument("-j", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60.0)
    options, passed = parser.parse_known_args()
    end = time.perf_counter() + options.seconds
    program = [sys.executable, str(Path(__file__).with_name("library_program.py")), options.library]
    files = [options.outputs.with_suffix(f".{part}.pt") for part in range(options.j)]
    with tempfile.TemporaryDirectory() as temporary:
        claims = Path(temporary) / "claims"
        claims.mkdir()
        running: list[tuple[subprocess.Popen[bytes], Path]] = []
        for file in files:
            errors = Path(temporary) / file.name
            with errors.open("wb") as stream:
                command = [*program, str(file), "--claims", str(claims), *passed]
                process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stream)
            running.append((process, errors))
        problems = [_end(process, errors, end) for process, errors in running]
    record = _together([file for file in files if file.exists()], problems)
    Path(f"{options.outputs}.json").write_text(json.dumps(record))


def _end(process: subprocess.Popen[bytes], errors: Path, end: float) -> str:
    """Wait for a process until a time, then end it; return the last line of its problem, if any."""
    try:
        process.wait(timeout=max(end - time.perf_counter(), 0.01))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return "no time was left"
    lines = errors.read_text(errors="replace").splitlines() or [f"exit {process.returncode}"]
    return lines[-1] if process.returncode else ""


def _together(files: list[Path], problems: list[str]) -> dict[str, Any]:
    parts = [json.loads(Path(f"{file}.json").read_text()) for file in files]
    ran = [name for part in parts for name in part["ran"]]
    failed = {name: why for part in parts for name, why in part["failed"].items()}
    why = next(filter(None, problems), "not run")
    names = parts[0]["names"] if parts else ["all"]
    failed |= {name: why for name in names if name not in {*ran, *failed}}
    return {
        "ran": ran,
        "failed": failed,
        "seconds": {name: took for part in parts for name, took in part["seconds"].items()},
        "launched": sorted({kernel for part in parts for kernel in part["launched"]}),
        "first_s": min((part["first_s"] for part in parts if part["first_s"]), default=0.0),
        "all_s": max((part["all_s"] for part in parts), default=0.0),
        "files": list(map(str, files)),
    }


if __name__ == "__main__":
    main()

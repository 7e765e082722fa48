"""Matrix products on Hopper against cuBLAS and Triton, interleaved in one process.

    aotc build benchmarks/hopper.toml -o dist
    python benchmarks/hopper.py dist/hopper_grid.aotc [--work descriptors small …] [--json FILE]

For every workload each peer first picks its fastest configuration: aotc from the archive, Triton
from its own for the same source files, cuBLAS (through torch) by its heuristic. Every candidate
is checked against a product in fp64 before it is timed; failures are reported and left out. Then
the fastest ones run in turn, and ratios are taken round by round. A ratio above 1 means aotc is
faster.

A workload is measured by another process (`hopper_measure.py`). A hang or a lost GPU costs the
current candidate, and it is not tried again. Results are written to --json after each workload.
Finished workloads are not measured again, unless --again is given.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llm_shapes import SHAPES

QUIET_SECONDS = 60.0
MAX_PROCESSES = 20


class Results:
    """Rows by workload, and candidates not to be tried again; stored in a file, if there is one.

    Rows and candidates of another archive do not count.
    """

    def __init__(self, archive: Path, path: Path | None, *, again: bool) -> None:
        self.path = path
        self.archive = hashlib.sha256(archive.read_bytes()).hexdigest()
        stored = json.loads(path.read_text()) if path and path.exists() else {}
        same = stored.get("archive") == self.archive
        self.rows: dict[str, Any] = stored["rows"] if same and not again else {}
        self.bad: list[str] = stored["bad"] if same else []

    def write(self) -> None:
        """Write the results to the file atomically."""
        if self.path is None:
            return
        content = {"archive": self.archive, "rows": self.rows, "bad": self.bad}
        unfinished = self.path.with_suffix(".tmp")
        unfinished.write_text(json.dumps(content, indent=2) + "\n")
        unfinished.replace(self.path)


class Child:
    """A measuring process, with progress in lines of JSON."""

    def __init__(self, command: list[str], task: dict[str, Any]) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        # Its own process group: children hold its output open, and must end with it.
        self.process = subprocess.Popen(command, text=True, start_new_session=True, **pipes)
        self.process.stdin.write(json.dumps(task))
        self.process.stdin.close()
        self.said: queue.Queue[str | None] = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        with self.process.stdout as said:
            for line in said:
                self.said.put(line)
        self.said.put(None)

    def end(self) -> int:
        """Wait for the end, and return the exit code."""
        self.reader.join()
        return self.process.wait()

    def lines(self, quiet_seconds: float) -> Iterator[dict[str, Any]]:
        """Yield its messages until it ends, or is killed after a long silence."""
        while True:
            try:
                line = self.said.get(timeout=quiet_seconds)
            except queue.Empty:
                os.killpg(self.process.pid, signal.SIGKILL)
                return
            if line is None:
                return
            if line.startswith("{"):
                yield json.loads(line)


def measure(
    command: list[str],
    task: dict[str, Any],
    results: Results,
    quiet_seconds: float = QUIET_SECONDS,
) -> None:
    """Run a task with `command`; after a lost process, retry without its last candidate."""
    for _ in range(MAX_PROCESSES):
        child = Child(command, task | {"done": list(results.rows), "bad": results.bad})
        trying, rows = "", 0
        for line in child.lines(quiet_seconds):
            trying = line.get("trying", trying)
            if note := line.get("note"):
                print(f"  {note}", flush=True)
            if row := line.get("row"):
                results.rows[row["work"]] = row
                results.write()
                trying, rows = "", rows + 1
                print(summary(row), flush=True)
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


def summary(row: dict[str, Any]) -> str:
    """Return a line of the table: each peer's time, and the ratios with their deciles."""
    speeds = "  ".join(
        f"{peer} {row[peer]['microseconds']:8.1f} us {row[peer]['tflops']:6.1f} TFLOP/s "
        f"{row[peer]['terabytes_per_second']:5.2f} TB/s"
        for peer in ("aotc", "triton", "library")
        if peer in row
    )
    ratios = "  ".join(
        f"over {peer} {over['median']:.3f} ({over['low']:.3f}-{over['high']:.3f})"
        for peer in ("triton", "library")
        if (over := row.get(f"over_{peer}"))
    )
    failed = row.get("aotc", {}).get("failed", 0)
    wrong = f"   {failed} OF AOTC'S CANDIDATES FAILED" if failed else ""
    mhz = row["clocks"].get("sm_mhz", 0)
    return f"{row['work']:44} {speeds}   {ratios}   {mhz:.0f} MHz{wrong}"


def shapes_summary(rows: dict[str, Any]) -> str:
    """Return the geometric mean over the layers of models, and the worst of them."""
    over = {
        shape.name: rows[shape.name]["over_library"]["median"]
        for shape in SHAPES
        if "over_library" in rows.get(shape.name, {})
    }
    if not over:
        return "no shape was measured"
    mean = math.exp(sum(map(math.log, over.values())) / len(over))
    worst = min(over, key=lambda name: over[name])
    return (
        f"{len(over)} shapes: geometric mean {mean:.3f} of the library, "
        f"least {over[worst]:.3f} ({worst})"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("archive", type=Path)
    parser.add_argument("--work", nargs="+", default=[], help="items of hopper_work.py, or all")
    parser.add_argument("--json", type=Path, help="results, read and written")
    parser.add_argument("--again", action="store_true", help="measure what is in --json as well")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="of tuning, for each peer and workload"
    )
    parser.add_argument("--no-triton", action="store_true")
    parser.add_argument("--no-graphs", action="store_true", help="charge peers for the host, too")
    parser.add_argument(
        "--pause", type=float, default=0.0, help="milliseconds of rest before each call"
    )
    folder = Path(tempfile.gettempdir()) / "aotc-benchmark-triton"
    parser.add_argument("--triton-cache", type=Path, default=folder)
    options = parser.parse_args()
    results = Results(options.archive, options.json, again=options.again)
    task = {
        "items": options.work,
        "archive": str(options.archive),
        "seconds": options.seconds,
        "triton": not options.no_triton,
        "triton_cache": str(options.triton_cache),
        "graphs": not options.no_graphs,
        "pause_seconds": options.pause / 1e3,
    }
    script = Path(__file__).with_name("hopper_measure.py")
    try:
        measure([sys.executable, str(script)], task, results)
    finally:
        print(shapes_summary(results.rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Build time of the whole of kernels.toml by the number of workers; nothing cached. No GPU.

python benchmarks/build_scaling.py [--runs 3] [MANIFEST]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


def seconds(manifest: str, jobs: int) -> float:
    """Return how long one build takes as a whole process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "aotc", "build", manifest, "-o", folder]
        start = time.perf_counter()
        subprocess.run(
            [*command, "--no-cache", "-j", str(jobs)], check=True, capture_output=True, cwd=ROOT
        )
        return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("manifest", nargs="?", default=str(ROOT / "kernels.toml"))
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    counts = [1 << bit for bit in range(cores.bit_length()) if 1 << bit <= cores]
    times: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(options.runs):
        for count in counts:
            times[count].append(seconds(options.manifest, count))
    first = statistics.median(times[1])
    print(f"{cores} cores")
    for count, values in times.items():
        median = statistics.median(values)
        print(f"-j {count:3}   {median:6.2f} s   {first / median:.2f}x")
    return 0


if __name__ == "__main__":
    sys.exit(main())

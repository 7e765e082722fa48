"""Functions in a C program's first launch, by time, one after the other.

    python -m benchmarks.first_launch_spans dist/kernels.aotc --kernels vector_add --forms stored [--fake]

As `first_launch_in_c`, with everything compiled with -finstrument-functions
(`first_launch_spans.c`). Prints medians over fresh processes of each call's total and own
microseconds. The clock adds some tens of nanoseconds to own time per call. Calls below `--least`
are left out.
"""

from __future__ import annotations

import argparse
import bisect
import json
import os
import statistics
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.first_launch_in_c import launches
from tests.support.fake_gpu import ROOT, FakeGpu, build

_LIBC = [
    "malloc",
    "calloc",
    "free",
    "pread",
    "fstat",
    "mmap",
    "close",
    "fopen",
    "fread",
    "fseek",
    "fclose",
    "open",
    "memcmp",
]


def _compile(folder: Path, runtime: Path) -> Path:
    program = folder / "first_launch_spans"
    wrapped = ",".join(f"--wrap={name}" for name in _LIBC)
    command = [
        *(
            "cc",
            "-std=gnu11",
            "-O2",
            f"-I{runtime / 'include'}",
            "-Wl,-z,now",
            "-rdynamic",
            "-fno-builtin-memcmp",
        ),
        *("-finstrument-functions", "-finstrument-functions-exclude-file-list=.h"),
        f"-Wl,{wrapped}",
        *(str(ROOT / f"benchmarks/first_launch{part}.c") for part in ("", "_trace", "_spans")),
        "-Wl,--wrap=aotci_sha256,--wrap=aotci_sha256_update",
        *map(str, sorted((runtime / "src").glob("*.c"))),
        *("-o", str(program), "-ldl", "-lpthread"),
    ]
    subprocess.run(command, check=True)
    return program


def _symbols(program: Path) -> tuple[list[int], list[str], int]:
    process = subprocess.run(["nm", "-n", str(program)], check=True, capture_output=True, text=True)
    rows = [line.split() for line in process.stdout.splitlines()]
    texts = [(int(row[0], 16), row[2]) for row in rows if len(row) == 3 and row[1] in "tTwW"]
    anchor = next(address for address, name in texts if name == "spans_begin")
    return [address for address, _ in texts], [name for _, name in texts], anchor


def _run(program: Path, way: str, written: Path, library: str) -> dict[str, Any]:
    command = [str(program), way, str(written), library, "1"]
    process = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    return json.loads(process.stdout.splitlines()[0])


def _report(
    runs: list[dict[str, Any]], symbols: tuple[list[int], list[str], int], least: float
) -> None:
    addresses, names, anchor = symbols
    shapes = Counter(
        tuple((address - run["anchor"], depth) for address, depth, _, _ in run["spans"])
        for run in runs
    )
    shape, count = shapes.most_common(1)[0]
    alike = [
        run["spans"]
        for run in runs
        if tuple((address - run["anchor"], depth) for address, depth, _, _ in run["spans"]) == shape
    ]
    print(f"  {count} of {len(runs)} runs with the same {len(shape)} calls")
    total_us = [statistics.median(run[i][3] for run in alike) / 1e3 for i in range(len(shape))]
    begun = [statistics.median(run[i][2] for run in alike) / 1e3 for i in range(len(shape))]
    self_us = list(total_us)
    stack: list[int] = []
    for i, (_, depth) in enumerate(shape):
        del stack[depth:]
        if stack:
            self_us[stack[-1]] -= total_us[i]
        stack.append(i)
    for i, (offset, depth) in enumerate(shape):
        if total_us[i] >= least:
            name = names[bisect.bisect_right(addresses, offset + anchor) - 1]
            print(f"  {begun[i]:8.2f} {total_us[i]:8.2f} {self_us[i]:8.2f}  {'  ' * depth}{name}")


def main() -> None:
    """Compile, run, and print a tree for each kernel, form and way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("archives", type=Path, nargs="+")
    parser.add_argument("--kernels", default="vector_add")
    parser.add_argument("--forms", default="stored")
    parser.add_argument("--ways", default="bare,mapped")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--least", type=float, default=0.25)
    parser.add_argument("--runtime", type=Path, default=ROOT / "runtime_c")
    parser.add_argument("--fake", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        program = _compile(folder, options.runtime)
        gpu = FakeGpu(build(folder))
        library = str(gpu.path) if options.fake else "libcuda.so.1"
        selected = launches(options.archives, folder, gpu, options.forms.split(","))
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        for name, form, written in selected:
            if name not in options.kernels.split(","):
                continue
            for way in options.ways.split(","):
                runs = [_run(program, way, written, library) for _ in range(options.runs + 1)][1:]
                print(f"{name} {form} {way}", flush=True)
                _report(runs, _symbols(program), options.least)


if __name__ == "__main__":
    main()

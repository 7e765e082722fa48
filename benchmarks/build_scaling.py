"""Build time of a manifest by the number of workers; nothing cached. No GPU.

    python benchmarks/build_scaling.py [--runs 3] [--counts 1 2 4] [--dask] [--factor 72] [--kernel softmax …]

With --factor every config of kernels.toml has as many versions, of stages and limits of registers:
10,000 variants, of which few are alike. With --dask workers are of a local cluster.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tomli

ROOT = Path(__file__).parents[1]
STAGES = (1, 2, 3, 4, 5, 6)
REGISTERS = (None, 64, 72, 88, 96, 112, 128, 160, 176, 192, 224, 255)


def value_text(value: object) -> str:
    """Return a value as TOML has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(map(value_text, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def lines_of(table: dict[str, object]) -> list[str]:
    """Return the entries of a table."""
    return [f"{key} = {value_text(value)}" for key, value in table.items()]


def large_manifest(factor: int) -> str:
    """Return kernels.toml with every config in `factor` versions."""
    data = tomli.loads((ROOT / "kernels.toml").read_text())
    versions = list(itertools.product(STAGES, REGISTERS))[:factor]
    lines = ["[package]", *lines_of(data["package"])]
    for kernel in data["kernel"]:
        axes = kernel.pop("configs", {})
        configs = kernel.pop("config", None) or [
            dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())
        ]
        kernel["source"] = str(ROOT / kernel["source"])
        tables = {key: kernel.pop(key) for key in list(kernel) if isinstance(kernel[key], dict)}
        lines += ["", "[[kernel]]", *lines_of(kernel)]
        for name, table in tables.items():
            lines += [f"[kernel.{name}]", *lines_of(table)]
        for config, (stages, registers) in itertools.product(configs, versions):
            limit = {} if registers is None else {"maxnreg": registers}
            lines += ["[[kernel.config]]", *lines_of({**config, "num_stages": stages, **limit})]
    return "\n".join(lines) + "\n"


def seconds(command: list[str], jobs: int) -> float:
    """Return how long one build takes as a whole process."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        build = [*command, "-o", folder, "--no-cache", "-j", str(jobs)]
        subprocess.run(build, check=True, capture_output=True, cwd=ROOT)
        return time.perf_counter() - start


def main() -> int:
    """Build by each number of workers in turn, and print medians."""
    cores = len(os.sched_getaffinity(0))
    counts = [1 << bit for bit in range(cores.bit_length()) if 1 << bit <= cores]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("manifest", nargs="?", default=str(ROOT / "kernels.toml"))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--counts", type=int, nargs="+", default=counts, help="of workers")
    parser.add_argument("--factor", type=int, help="versions of each config of kernels.toml")
    parser.add_argument("--kernel", nargs="+", default=[])
    parser.add_argument("--dask", action="store_true", help="local workers of a cluster")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        manifest = options.manifest
        if options.factor:
            manifest = str(Path(folder) / "kernels.toml")
            Path(manifest).write_text(large_manifest(options.factor))
        command = [sys.executable, "-m", "aotc", "build", manifest]
        command += [word for name in options.kernel for word in ("--kernel", name)]
        command += ["--dask", "local"] if options.dask else []
        times: dict[int, list[float]] = {count: [] for count in options.counts}
        for _, count in itertools.product(range(options.runs), options.counts):
            times[count].append(seconds(command, count))
    first = statistics.median(times[options.counts[0]])
    print(f"{cores} cores")
    for count, values in times.items():
        median = statistics.median(values)
        print(f"-j {count:3}   {median:6.2f} s   {first / median:.2f}x", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Compare `aotc tune` with exhaustive times: its quality, its time, and the cost of a kill.

    aotc build benchmarks/tuning/kernels.toml -o dist
    python benchmarks/tuning/exhaustive.py dist/tuning.aotc times.json
    python benchmarks/tuning/search.py dist/tuning.aotc times.json [--kernels matmul] [--kills 20]

For each kernel: the exhaustive time of the fastest config over the tuned config's, the launches
over an exhaustive search's, and the seconds. With `--kills` the run is also killed at random
times and restarted until it is done; its table must have the same launches.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from aotc.package.tuning.table import KernelTuning
from aotc.package.tuning.text import read_tuning
from aotc.tuning.report import best_config
from aotc.tuning.search import exhaustive_launches

HERE = Path(__file__).parent


def command(options: argparse.Namespace, kernel: str, output: Path) -> list[str]:
    shapes, manifest = HERE / "shapes.toml", HERE / "kernels.toml"
    inputs = [options.archive, "--manifest", str(manifest), "--shapes", str(shapes)]
    rest = ["--only", kernel, "-o", str(output), "--gpus", options.gpus, "--json"]
    return [sys.executable, "-m", "aotc", "tune", *inputs, *rest]


def key_of(values: dict[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)


def shares(tuning: KernelTuning, measured: dict[str, Any]) -> list[float]:
    """Return, for each launch, the exhaustive best over the exhaustive time of the chosen config."""
    rows = {
        key_of({**measurement["key"], **measurement["choices"]}): measurement["seconds"]
        for measurement in measured["measurements"]
    }
    index_of = {key_of(config): index for index, config in enumerate(measured["configs"])}
    ratios: list[float] = []
    for launch in tuning.measurements:
        times = rows.get(key_of({**launch.key, **launch.choices}))
        best = best_config(launch)
        if times is None or best is None:
            continue
        chosen = times[index_of[key_of(dict(tuning.configs[best]))]]
        if chosen is not None:
            ratios.append(min(time for time in times if time is not None) / chosen)
    return ratios


def killed(options: argparse.Namespace, kernel: str, output: Path, seconds: float) -> int:
    """Kill the run at random times, then let it end; return how often it was killed."""
    count = 0
    for _ in range(options.kills):
        process = subprocess.Popen(
            command(options, kernel, output), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(random.uniform(0.5, 4 + 2 * seconds / options.kills))
        count += process.poll() is None
        process.kill()
        process.wait()
    subprocess.run(command(options, kernel, output), check=True, stdout=subprocess.DEVNULL)
    return count


def launches_of(tuning: KernelTuning) -> set[object]:
    return {launch.identity for launch in tuning.measurements}


def report(
    options: argparse.Namespace, kernel: str, measured: dict[str, Any], folder: Path
) -> None:
    output = folder / f"{kernel}.tuning.toml"
    run = subprocess.run(command(options, kernel, output), stdout=subprocess.PIPE, check=False)
    run_report = json.loads(run.stdout)
    (tuning,) = read_tuning(output).kernels
    near = shares(tuning, measured)
    timed = sum(
        exhaustive_launches(sum(time is not None for time in launch.seconds))
        for launch in tuning.measurements
    )
    print(
        f"{kernel}: {run_report['tuned']} launches x {len(tuning.configs)} configs in"
        f" {run_report['seconds']:.1f} s with {run_report['timed'] / timed:.1%} of the launches;"
        f" of the exhaustive best {statistics.mean(near):.4f} in the mean, {min(near):.3f} at least"
    )
    for line in (*run_report["put_aside"], *run_report["failures"]):
        print(f"  {line}")
    if options.kills:
        again = folder / f"{kernel}.killed.tuning.toml"
        count = killed(options, kernel, again, run_report["seconds"])
        (other,) = read_tuning(again).kernels
        same = launches_of(other) == launches_of(tuning)
        near = shares(other, measured)
        verdict = "the same launches" if same else "OTHER LAUNCHES"
        print(f"  killed {count} times: {verdict}, {statistics.mean(near):.4f} in the mean")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive")
    parser.add_argument("times", type=Path)
    parser.add_argument("--kernels", nargs="*")
    parser.add_argument("--gpus", default="all")
    parser.add_argument("--kills", type=int, default=0)
    options = parser.parse_args()
    measured_by_kernel = {
        measured["kernel"]: measured for measured in json.loads(options.times.read_text())
    }
    with tempfile.TemporaryDirectory() as folder:
        for kernel in options.kernels or measured_by_kernel:
            report(options, kernel, measured_by_kernel[kernel], Path(folder))


if __name__ == "__main__":
    main()

"""The command line: `prepare` where the compiler is, `run` where the GPU is, `report` anywhere."""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from aotc.verify.checks.device import NoDeviceError
from benchmarks.calibration import variants
from benchmarks.calibration.groups import GROUPS
from benchmarks.calibration.judge import chunks, device_name, judge_chunk
from benchmarks.calibration.report import Results, differences, tables

ROOT = Path(__file__).parents[2]
TARGET = "sm_90a"
_DIGESTS = "ptx.json"
_ARCHIVE = "kernels.aotc"
T = TypeVar("T")
R = TypeVar("R")


def main() -> int:
    """Run the requested command; return 1 if a bound is broken."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibration")
    commands = parser.add_subparsers(required=True)
    prepare_parser = commands.add_parser("prepare", help="assemble all cases and the kernels")
    prepare_parser.add_argument("-o", dest="folder", type=Path, required=True)
    prepare_parser.set_defaults(command=prepare)
    run_parser = commands.add_parser("run", help="run both sides and compare")
    run_parser.add_argument("folder", type=Path)
    run_parser.add_argument("--json", type=Path, help="write the results to this file")
    run_parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    run_parser.add_argument("--group", action="append", default=[], choices=list(GROUPS))
    run_parser.add_argument("--kernel", action="append", default=None, metavar="NAME")
    run_parser.add_argument(
        "--emulator-only", action="store_true", help="compare warps in step with random order"
    )
    run_parser.set_defaults(command=run)
    report_parser = commands.add_parser("report", help="print the tables of a run")
    report_parser.add_argument("file", type=Path)
    report_parser.set_defaults(command=report)
    options = parser.parse_args()
    return options.command(options)


# ---- prepare ------------------------------------------------------------------------------------


def prepare(options: argparse.Namespace) -> int:
    """Write a cubin for each group, the texts' digests, and an archive of kernels.toml."""
    from aotc.backend.ptxas import assemble
    from aotc.target import TARGETS

    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    for group in GROUPS.values():
        cubin = assemble(group.ptx, TARGETS[TARGET]).cubin
        (folder / f"{group.name}.cubin").write_bytes(cubin)
        print(f"{group.name}: {len(group.cases)} cases, {len(cubin):,} bytes")
    (folder / _DIGESTS).write_text(json.dumps(_digests(), indent=1) + "\n")
    command = [sys.executable, "-m", "aotc", "build", str(ROOT / "kernels.toml"), "--with-ptx"]
    command += ["--target", TARGET, "-o", str(folder)]
    return subprocess.run(command, check=False, cwd=ROOT).returncode


def _digests() -> dict[str, str]:
    return {name: hashlib.sha256(group.ptx.encode()).hexdigest() for name, group in GROUPS.items()}


# ---- run ----------------------------------------------------------------------------------------


def run(options: argparse.Namespace) -> int:
    """Run cases and variants in several processes; print and write the results."""
    folder: Path = options.folder.resolve()
    if json.loads((folder / _DIGESTS).read_text()) != _digests():
        print(f"{folder} was prepared from other cases: prepare it again", file=sys.stderr)
        return 2
    device = "the emulator alone"
    if not options.emulator_only:
        try:
            device = _in_a_process(device_name)
        except NoDeviceError as error:
            print(error, file=sys.stderr)
            return 2
    start = time.perf_counter()
    results = Results(device, time.strftime("%Y-%m-%d"))
    for chunk_results in _each(judge_chunk, _chosen_chunks(options, folder), options.jobs):
        results.cases += chunk_results
    _say(start, f"{len(results.cases)} cases")
    archive = folder / _ARCHIVE
    work = partial(variants.judge_variant, archive, on_gpu=not options.emulator_only)
    results.variants = list(_each(work, _chosen_variants(options, archive), options.jobs))
    _say(start, f"{len(results.variants)} variants")
    results.seconds = time.perf_counter() - start
    record = results.to_json()
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    # As `report` would read it back.
    record = json.loads(json.dumps(record))
    print(tables(record))
    print(differences(record))
    print("within all bounds" if results.is_within else "BOUNDS ARE BROKEN")
    return 0 if results.is_within else 1


def _chosen_chunks(options: argparse.Namespace, folder: Path) -> list:
    if options.kernel is not None and not options.group:
        return []
    return chunks(None if options.emulator_only else folder, options.group)


def _chosen_variants(options: argparse.Namespace, archive: Path) -> list[str]:
    if options.group and options.kernel is None:
        return []
    names = options.kernel or []
    return [label for label in variants.labels(archive) if not names or label.split()[0] in names]


def _say(start: float, message: str) -> None:
    print(f"{message} after {time.perf_counter() - start:.0f} s", file=sys.stderr)


def _in_a_process(function: Callable[[], R]) -> R:
    """Call a function in its own process, so this one stays without a context."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function).result()


def _each(function: Callable[[T], R], items: Sequence[T], jobs: int) -> Iterator[R]:
    """Yield a function's results in the order of items; in this process if `jobs` is 1."""
    if jobs == 1 or len(items) < 2:
        yield from map(function, items)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        chunk_results: Iterable[R] = pool.map(function, items)
        yield from chunk_results


# ---- report -------------------------------------------------------------------------------------


def report(options: argparse.Namespace) -> int:
    """Print the tables of a run, for the documentation."""
    print(tables(json.loads(options.file.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())

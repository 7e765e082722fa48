"""The command line: phases that can be run one by one, in one journal, and what they show.

    python -m benchmarks.soak all -o OUT                    # everything, what may hang last
    python -m benchmarks.soak variants -o OUT --minutes 5   # one phase, goes on where it ended
    python -m benchmarks.soak build -o OUT                  # compile alone: which remarks are seen
    python -m benchmarks.soak report -o OUT                 # the table once more

OUT holds `journal.jsonl`, a line for everything that was tried, and `soak.json`, the figures. A phase
that is run again goes on with what has no outcome yet. Exits 1 if anything failed or was not reached.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from aotc.package.workers import Job, default_jobs
from benchmarks.soak import programs, report, variants
from benchmarks.soak.devices import Emulator, GpuDevice
from benchmarks.soak.journal import Journal, Outcome, Run
from benchmarks.soak.launcher import Batch, Launcher, NoLauncherError
from benchmarks.soak.soak import Limits, Prepared, Work, run_held, run_phase
from benchmarks.soak.variants import Group, Settings

_PROGRAMS_PER_JOB = 8
_SMOKE_SHARE = 0.0
_SMOKE_PROGRAMS = 12
_EMULATED_SECONDS = 600.0
_SECONDS_A_LINE = 15.0
# Seeds of other soaks do not overlap while each has fewer programs than this.
_SEEDS_APART = 1_000_000


def main(arguments: list[str] | None = None) -> int:
    """Run the phases that are asked for and print what they show; return the exit status."""
    options = _parser().parse_args(arguments)
    journal = Journal(options.out / "journal.jsonl")
    phases = report.PHASES if options.phase == "all" else (options.phase,)
    if options.phase != "report":
        try:
            _soak(phases, options, journal)
        except NoLauncherError as error:
            print(error, file=sys.stderr)
            return 2
    record = report.with_lost(journal.read())
    found = report.figures(record)
    (options.out / "soak.json").write_text(json.dumps(found, indent=1) + "\n")
    print(report.table(found))
    return 0 if report.is_green(found) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("phase", choices=("all", report.BUILD, *report.PHASES, "report"))
    parser.add_argument(
        "-o", "--out", type=Path, required=True, help="folder of journal and figures"
    )
    parser.add_argument("-j", "--jobs", type=int, default=default_jobs(), help="worker processes")
    parser.add_argument("--minutes", type=float, default=60.0, help="launch nothing new after")
    parser.add_argument("--seed", type=int, default=0, help="draws variants, inputs and programs")
    parser.add_argument("--share", type=float, default=1.0, help="of the variants that are run")
    parser.add_argument("--programs", type=int, default=10_000, help="how many are run")
    parser.add_argument("--seeds", type=int, nargs="+", help="the programs of these seeds alone")
    parser.add_argument("--repeats", type=int, default=2, help="how often each launch is tried")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds for a launch")
    parser.add_argument("--kernel", action="append", default=[], help="variants of this one alone")
    parser.add_argument(
        "--skip-held", action="store_true", help="leave what is held back to another command"
    )
    parser.add_argument("--smoke", action="store_true", help="a handful, in the emulator")
    return parser


def _soak(phases: Sequence[str], options: argparse.Namespace, journal: Journal) -> None:
    """Run phases, and then what they hold back. Raises: NoLauncherError."""
    limits = Limits(options.jobs, time.monotonic() + 60 * options.minutes)
    is_emulated = options.smoke or report.BUILD in phases
    limit = _EMULATED_SECONDS if is_emulated else options.limit
    launcher = Launcher(Emulator if is_emulated else GpuDevice, journal, limit)
    say = _Progress()
    held: list[Batch] = []
    with TemporaryDirectory(prefix="aotc-soak-", dir=_fast_folder()) as folder:
        try:
            launcher.open()
            for phase in phases:
                held += _run(phase, options, launcher, limits, Path(folder), say)
            if not options.skip_held:
                _run_held(held, options, launcher, limits, say)
        finally:
            launcher.close()
            say.print_line()


def _run(
    phase: str,
    options: argparse.Namespace,
    launcher: Launcher,
    limits: Limits,
    folder: Path,
    say: Callable[[Outcome], None],
) -> list[Batch]:
    """Run a phase; return what it holds back."""
    start, busy = time.monotonic(), launcher.busy_seconds
    settings = Settings(
        seed=options.seed,
        repeats=1 if options.smoke else options.repeats,
        emulates=options.smoke,
        interprets=phase != report.BUILD,
    )
    # What was tried before and never done is a failure, and not to be tried again.
    known = launcher.journal.read().known(phase)
    prepare: Callable[[Any], Prepared]
    if phase == "programs":
        seeds = [seed for seed in _seeds(options) if programs.name_of(seed) not in known]
        planned = len(_seeds(options))
        starts = range(0, len(seeds), _PROGRAMS_PER_JOB)
        jobs = [Job(f"seed {seeds[at]}…", seeds[at : at + _PROGRAMS_PER_JOB]) for at in starts]
        prepare = partial(programs.prepare, settings=settings, phase=phase)
    else:
        groups = _groups(phase, options)
        planned = sum(len(group.subjects) for group in groups)
        jobs = [Job(group.label, group) for group in _left(groups, known)]
        if phase != "risky":  # what a deadline cuts off is then of all kinds
            random.Random(options.seed).shuffle(jobs)
        prepare = partial(variants.prepare, settings=settings, phase=phase)
    print(f"{phase}: {planned:,} cases, {len(jobs):,} jobs of {options.jobs} workers", flush=True)
    work = Work(phase, prepare, folder, holds_all=phase == "risky")
    try:
        return run_phase(jobs, work, launcher, limits, say)
    finally:
        _end(phase, planned, options, launcher, start, busy)


def _run_held(
    held: Sequence[Batch],
    options: argparse.Namespace,
    launcher: Launcher,
    limits: Limits,
    say: Callable[[Outcome], None],
) -> None:
    """Launch what phases held back."""
    start, busy = time.monotonic(), launcher.busy_seconds
    count = sum(batch.count for batch in held)
    print(f"{count:,} cases were held back, now they are launched", flush=True)
    try:
        run_held(held, launcher, limits, say)
    finally:
        _end(report.HELD, count, options, launcher, start, busy)


def _end(
    phase: str,
    planned: int,
    options: argparse.Namespace,
    launcher: Launcher,
    start: float,
    busy: float,
) -> None:
    seconds, launching = time.monotonic() - start, launcher.busy_seconds - busy
    date = time.strftime("%Y-%m-%d")
    numbers = (planned, round(seconds, 1), round(launching, 1), options.jobs)
    launcher.journal.end(Run(phase, launcher.device, date, *numbers))


def _fast_folder() -> str | None:
    shared = Path("/dev/shm")
    return str(shared) if shared.is_dir() else None


def _seeds(options: argparse.Namespace) -> list[int]:
    if options.seeds:
        return options.seeds
    first = options.seed * _SEEDS_APART
    return list(range(first, first + (_SMOKE_PROGRAMS if options.smoke else options.programs)))


def _groups(phase: str, options: argparse.Namespace) -> list[Group]:
    sources = variants.RISKY if phase == "risky" else variants.SOURCES
    if phase == report.BUILD:
        sources = (*variants.SOURCES, *variants.RISKY)
    if options.smoke:
        return variants.select(sources, options.seed, _SMOKE_SHARE, variants.SMOKE)
    return variants.select(sources, options.seed, options.share, options.kernel)


def _left(groups: list[Group], known: set[str]) -> Iterator[Group]:
    for group in groups:
        subjects = tuple(s for s in group.subjects if f"{group.source}: {s.label}" not in known)
        if subjects:
            yield Group(group.source, subjects)


class _Progress:
    """Print what fails at once, and from time to time how far the soak is."""

    def __init__(self) -> None:
        self._start, self._last = time.monotonic(), 0.0
        self._counts: Counter[str] = Counter()

    def __call__(self, outcome: Outcome) -> None:
        self._counts[outcome.phase] += 1
        if outcome.is_failure:
            print(f"{outcome.status}: {outcome.case}\n  {outcome.detail[:1000]}", flush=True)
        if time.monotonic() - self._start - self._last > _SECONDS_A_LINE:
            self.print_line()

    def print_line(self) -> None:
        """Print how far the soak is."""
        self._last = time.monotonic() - self._start
        counts = ", ".join(f"{count:,} {phase}" for phase, count in self._counts.items())
        print(f"{self._last:5.0f} s: {counts}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

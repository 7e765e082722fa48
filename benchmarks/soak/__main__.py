"""The command line: run phases into one journal and report on them.

python -m benchmarks.soak all -o OUT --minutes 6 --devices 0,1  # everything, likely hangs last
python -m benchmarks.soak variants -o OUT                       # one phase
python -m benchmarks.soak build -o OUT                          # compile alone, for remarks
python -m benchmarks.soak report -o OUT                         # the table once more

OUT holds `journal.jsonl`, a line for everything tried, and `soak.json`, the figures. A repeated
command goes on with the cases without an outcome. Exits 1 if anything failed or was not reached.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from aotc.package.builder.workers import default_jobs
from benchmarks.soak import plan, programs, report, variants
from benchmarks.soak.devices import Emulator, GpuDevice
from benchmarks.soak.journal import Journal, Outcome, Run
from benchmarks.soak.launcher import NoLauncherError
from benchmarks.soak.launchers import Launchers
from benchmarks.soak.plan import Plan
from benchmarks.soak.soak import Limits, Prepare, Work, run_held, run_jobs
from benchmarks.soak.variants import Draw, Settings, Source
from tests.fuzz.long_programs import FIRST_LONG_SEED, with_long

_RISKY, _PROGRAMS = "risky", "programs"
_SMOKE_SHARE = 0.0
_SMOKE_PROGRAMS = 12
_EMULATED_SECONDS = 600.0
_SECONDS_A_LINE = 15.0
# Seeds of other soaks do not overlap while each has fewer programs than this.
_SEEDS_APART = 1_000_000
# Held-back cases get the time of as many others, and half as much again.
_RESERVE_FACTOR = 1.5


def main(arguments: list[str] | None = None) -> int:
    """Run the requested phases and print the report; return the exit status."""
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
    figures = report.figures(record)
    (options.out / "soak.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(report.table(figures))
    return 0 if report.is_green(figures) else 1


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
    parser.add_argument("--devices", default="", help="GPUs, as CUDA_VISIBLE_DEVICES has them")
    parser.add_argument("--launchers", type=int, default=4, help="processes that share a GPU")
    parser.add_argument("--minutes", type=float, default=60.0, help="launch nothing new after")
    parser.add_argument("--seed", type=int, default=0, help="draws variants, inputs and programs")
    parser.add_argument("--share", type=float, default=1.0, help="of the variants that are run")
    parser.add_argument("--programs", type=int, default=10_000, help="how many are run")
    parser.add_argument("--seeds", type=int, nargs="+", help="the programs of these seeds alone")
    parser.add_argument("--repeats", type=int, default=2, help="how often each launch is tried")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds for a launch")
    parser.add_argument("--kernel", action="append", default=[], help="variants of this one alone")
    parser.add_argument(
        "--earlier",
        type=Path,
        action="append",
        default=[],
        metavar="OUT",
        help="of another soak, which variants of few kernels were launched in: those come first",
    )
    parser.add_argument(
        "--skip-held", action="store_true", help="leave what is held back to another command"
    )
    parser.add_argument("--smoke", action="store_true", help="a handful, in the emulator")
    return parser


def _soak(phases: Sequence[str], options: argparse.Namespace, journal: Journal) -> None:
    """Run phases together, then their held-back cases. Raises: NoLauncherError."""
    start = time.monotonic()
    is_emulated = options.smoke or report.BUILD in phases
    launchers = Launchers(
        Emulator if is_emulated else partial(GpuDevice, num_processes=options.launchers),
        journal,
        _EMULATED_SECONDS if is_emulated else options.limit,
        options.devices.split(","),
        1 if is_emulated else options.launchers,
    )
    plans: list[Plan] = []
    spent: dict[str, float] = {}
    say = _Progress()
    try:
        with ThreadPoolExecutor(1) as beside:
            opening = beside.submit(launchers.open)
            plans = _plans(phases, options, journal)
            opening.result()
        for phase_plan in plans:
            seconds = time.monotonic() - start
            print(
                f"{seconds:5.0f} s: {phase_plan.num_cases:,} {phase_plan.phase} are planned",
                flush=True,
            )
        _run(plans, options, launchers, journal, start, say, spent)
    finally:
        launchers.close()
        say.print_line()
        run = Run(
            planned={phase_plan.phase: phase_plan.num_cases for phase_plan in plans},
            device=launchers.device,
            date=time.strftime("%Y-%m-%d"),
            seconds=round(time.monotonic() - start, 1),
            launcher_seconds=round(launchers.busy_seconds, 1),
            num_jobs=options.jobs,
            num_launchers=len(launchers.each),
            kernels=tuple(
                dict.fromkeys(kernel for phase_plan in plans for kernel in phase_plan.kernels)
            ),
            worker_seconds={phase: round(seconds, 1) for phase, seconds in spent.items()},
        )
        journal.end(run)


def _run(
    plans: Sequence[Plan],
    options: argparse.Namespace,
    launchers: Launchers,
    journal: Journal,
    start: float,
    say: _Progress,
    spent: dict[str, float],
) -> None:
    def reserve(count: int) -> float:
        num_done = max(1, say.num_launched)
        seconds_per_launch = launchers.busy_seconds / num_done / len(launchers.each)
        return 0.0 if options.skip_held else count * seconds_per_launch * _RESERVE_FACTOR

    deadline = start + 60 * options.minutes
    limits = Limits(options.jobs, deadline, reserve)
    prepare = {phase_plan.phase: _prepare(phase_plan.phase, options) for phase_plan in plans}
    with TemporaryDirectory(prefix="aotc-soak-", dir=_fast_folder()) as folder:
        work = Work(prepare, Path(folder), held_phases=(_RISKY,))
        held_batches = run_jobs(plan.jobs_of(plans), work, launchers, journal, limits, say, spent)
        if not options.skip_held:
            count = sum(batch.count for batch in held_batches)
            print(f"{count:,} cases were held back, now they are launched", flush=True)
            run_held(held_batches, launchers, deadline, say)


def _prepare(phase: str, options: argparse.Namespace) -> Prepare:
    settings = Settings(
        seed=options.seed,
        repeats=1 if options.smoke else options.repeats,
        emulates=options.smoke,
        interprets=phase != report.BUILD,
    )
    of_phase = programs.prepare if phase == _PROGRAMS else variants.prepare
    return partial(of_phase, settings=settings, phase=phase)


def _plans(phases: Sequence[str], options: argparse.Namespace, journal: Journal) -> list[Plan]:
    record = journal.read()
    earlier = [Journal(out / "journal.jsonl").read() for out in options.earlier]
    soaked = plan.count_soaked([record, *earlier])
    sources = {phase: _SOURCES.get(phase, ()) for phase in phases}
    named = [named_source for phase in phases for named_source in _named(sources[phase], options)]
    # In one go: workers take a while to start.
    how = Draw(options.seed, _SMOKE_SHARE if options.smoke else options.share)
    drawn = plan.draw_all(named, how, options.jobs) if named else []
    plans: list[Plan] = []
    for phase in phases:
        # A case tried before without an outcome is a failure, and not to be tried again.
        finished = record.known(phase)
        names = {source.name for source in sources[phase]}
        groups = [group for group in drawn if group.source in names]
        if phase == _PROGRAMS:
            plans.append(plan.plan_programs(phase, _seeds(options), finished))
        elif phase == _RISKY:  # its order is the manifest's
            plans.append(plan.plan_variants(phase, groups, finished))
        else:
            plans.append(plan.plan_variants(phase, groups, finished, soaked, options.seed))
    return plans


_SOURCES = {
    "variants": variants.SOURCES,
    _RISKY: variants.RISKY,
    report.BUILD: (*variants.SOURCES, *variants.RISKY),
}


def _named(sources: Sequence[Source], options: argparse.Namespace) -> list[tuple[Source, str]]:
    return variants.named_kernels(sources, variants.SMOKE if options.smoke else options.kernel)


def _fast_folder() -> str | None:
    shared = Path("/dev/shm")
    return str(shared) if shared.is_dir() else None


def _seeds(options: argparse.Namespace) -> list[int]:
    if options.seeds:
        return options.seeds
    first = options.seed * _SEEDS_APART % FIRST_LONG_SEED  # beyond it all programs are long
    count = _SMOKE_PROGRAMS if options.smoke else options.programs
    return with_long(range(first, first + count))


class _Progress:
    """Print failures at once, and the soak's progress from time to time."""

    def __init__(self) -> None:
        self._start, self._last = time.monotonic(), 0.0
        self._counts: Counter[str] = Counter()
        self.num_launched = 0

    def __call__(self, outcome: Outcome) -> None:
        self.num_launched += outcome.num_launches > 0
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

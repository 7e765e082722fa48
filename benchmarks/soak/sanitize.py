"""Ordinary kernels under compute-sanitizer: memory, races, barriers, and uninitialised memory.

    python -m benchmarks.soak.sanitize -o OUT [--kernels 24] [--seed 0] [--tools memcheck racecheck]

`--seed` draws kernels of `kernels.toml` and `kernels/*.toml`. A variant of each is compiled and
interpreted on all cores, as for a soak. Then each tool runs its own process with two launches of
every variant, and compares the results. OUT has the tools' output. Exits 1 if a tool reports
anything, or a result is wrong; 2 if there is no sanitizer or no GPU.

Errors of the API are no findings: the loader queries parameters of each kernel until an error
ends the list.
"""

from __future__ import annotations

import argparse
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from aotc.backend import disassemble
from aotc.package.builder.workers import Failure, Job, default_jobs, run_all
from aotc.verify.checks.check import ExecutionFault, Unsuited
from aotc.verify.checks.device import NoDeviceError
from aotc.verify.checks.reference import Reference
from benchmarks.calibration.gpu import Gpu
from benchmarks.soak.devices import GpuDevice
from benchmarks.soak.races import count_unjudged
from benchmarks.soak.variants import (
    ROOT,
    Group,
    Prepared,
    Settings,
    Source,
    VariantCase,
    VariantDevice,
    prepare,
    select,
)

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
# Loops go round, rings are used again, and program instances differ along each axis.
_LAUNCHES = ("deep", "apart", "several", "over", "full")
_PER_VARIANT = 2
_MAX_BYTES = 64 << 20
_FOUND, _NO_GPU = 9, 2
_SUMMARY = re.compile(r"^=+ (?:ERROR|RACECHECK) SUMMARY: (.*)$", re.MULTILINE)
_ERRORS = re.compile(r"\((\d+) errors?, ")
_SHOWN_LINES = 30
_ALL_RIGHT = ", 0 launches are wrong"


@dataclass(frozen=True, slots=True)
class Said:
    """A tool's summary, its whole output, and its process's exit status (None: killed)."""

    tool: str
    summary: str
    output: str
    status: int | None
    num_unjudged: int = 0

    @property
    def is_clean(self) -> bool:
        """Return whether there are no findings, all launches ran, and their results are right.

        Warnings of racecheck are shown and no failure. Where a warp initialises an mbarrier, the
        uniform datapath does it once for all lanes. Racecheck takes the elected lane's arrival
        for a race with the other 31. Errors it cannot judge are no failure either (`races`).
        """
        errors = _ERRORS.search(self.summary)
        is_told = self.status == _FOUND and errors and int(errors[1]) == self.num_unjudged
        return bool((self.status == 0 or is_told) and self.summary and _ALL_RIGHT in self.output)


# ---- making ready -----------------------------------------------------------------------------


def ready(groups: Sequence[Group], settings: Settings, jobs: int) -> tuple[list[VariantCase], int]:
    """Return the cases of groups, with few launches each, and how many could not be made ready."""
    work = partial(prepare, settings=settings, phase="sanitize")
    cases: list[VariantCase] = []
    num_failed = 0
    for job in run_all([Job(group.label, group) for group in groups], work, jobs):
        if isinstance(job.result, Failure):
            print(f"{job.task.label}: {job.result.report}")
            num_failed += 1
            continue
        prepared: Prepared = job.result
        cases += [_shortened(case) for case in prepared.cases]
        for outcome in prepared.outcomes:
            print(f"{outcome.case}: {outcome.status}: {outcome.detail.splitlines()[0]}")
            num_failed += outcome.is_failure
    return sorted(cases, key=lambda case: case.name), num_failed


def _shortened(case: VariantCase) -> VariantCase:
    members = tuple(replace(member, references=_few(member.references)) for member in case.members)
    return replace(case, members=members)


def _few(references: Sequence[Reference]) -> tuple[Reference, ...]:
    """Return the most telling launches, without huge buffers."""
    small = [reference for reference in references if _size(reference) <= _MAX_BYTES]
    labelled = [
        reference for name in _LAUNCHES for reference in small if reference.launch.label == name
    ]
    return tuple(labelled[:_PER_VARIANT] or small[:1])


def _size(reference: Reference) -> int:
    return sum(buffer.size_bytes for buffer in reference.buffers.values())


# ---- the process under the sanitizer ----------------------------------------------------------


def launch_all(cases: Sequence[VariantCase], device: VariantDevice) -> int:
    """Make every launch once; print errors, and return their number."""
    num_wrong = 0
    for case in cases:
        print(f"launches {case.name}", flush=True)  # the tool's next output is about it
        with case.opened(device) as launches:
            for label, attempt in launches:
                try:
                    detail = attempt()
                except Unsuited as error:
                    print(f"  passed over: {label}: {error}")
                    continue
                except ExecutionFault as error:
                    print(f"  fault: {label}: {error}", flush=True)
                    return num_wrong + 1  # the context is of no use any more
                if detail:
                    print(f"  wrong: {label}: {detail}")
                    num_wrong += 1
    print(f"launched {len(cases)} variants, {num_wrong} launches are wrong", flush=True)
    return num_wrong


def _child(path: Path) -> int:
    cases: list[VariantCase] = pickle.loads(path.read_bytes())
    try:
        # No memory reuse: earlier writes would count as initialisation.
        device = GpuDevice(Gpu())
    except NoDeviceError as error:
        print(error)
        return _NO_GPU
    return int(launch_all(cases, device) > 0)


# ---- the tools --------------------------------------------------------------------------------


def run_tools(
    tools: Sequence[str], command: Callable[[str], list[str]], out: Path, seconds: float
) -> list[Said]:
    """Run the command of each tool, all at once, with its output in a file of `out`.

    A tool is killed after `seconds`.
    """
    end = time.monotonic() + seconds
    running: dict[str, subprocess.Popen[bytes]] = {}
    for tool in tools:
        with (out / f"{tool}.txt").open("wb") as file:
            # Its own session: the tool's program must end with it.
            running[tool] = subprocess.Popen(
                command(tool),
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                start_new_session=True,
            )
    reports: list[Said] = []
    for tool, process in running.items():
        status: int | None = None
        try:
            status = process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output = (out / f"{tool}.txt").read_text(errors="replace")
        summaries = _SUMMARY.findall(output)
        reports.append(Said(tool, summaries[-1] if summaries else "", output, status))
    return reports


def sanitized(sanitizer: str, path: Path, tool: str) -> list[str]:
    """Return the command to launch a file's cases under a tool."""
    options = ["--tool", tool, "--report-api-errors", "no", "--error-exitcode", str(_FOUND)]
    child = [sys.executable, "-m", "benchmarks.soak.sanitize", "--launch", str(path)]
    return [sanitizer, *options, *child]


def _sass(case: VariantCase) -> str:
    cubins = [variant.cubin for member in case.members for variant in member.kernel.variants]
    return "\n".join(map(disassemble, cubins))


def main(arguments: Sequence[str] | None = None) -> int:
    """Make variants ready, run each tool, print a line for each."""
    options = _parser().parse_args(arguments)
    if options.launch is not None:
        return _child(options.launch)
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        print("compute-sanitizer is not installed", file=sys.stderr)
        return _NO_GPU
    start = time.monotonic()
    sources = [ROOT / "kernels.toml", *sorted((ROOT / "kernels").glob("*.toml"))]
    groups = select([Source(path, 1) for path in sources], options.seed)
    # Some of each manifest, for any number.
    count = min(options.kernels, len(groups))
    groups = [groups[index * len(groups) // count] for index in range(count)]
    settings = Settings(seed=options.seed, repeats=1)
    cases, num_failed = ready(groups, settings, options.jobs)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out.resolve() / "cases.pickle"
    path.write_bytes(pickle.dumps(cases, protocol=pickle.HIGHEST_PROTOCOL))
    print(f"{time.monotonic() - start:5.0f} s: {len(cases)} variants are ready", flush=True)
    tools = run_tools(
        options.tools, partial(sanitized, sanitizer, path), options.out, options.seconds
    )
    sass_of = {case.name: partial(_sass, case) for case in cases}
    tools = [
        replace(report, num_unjudged=count_unjudged(report.output, sass_of)) for report in tools
    ]
    for tool_report in tools:
        ended = (
            "did not end in time" if tool_report.status is None else f"status {tool_report.status}"
        )
        unjudged = f", {tool_report.num_unjudged} of stages that are filled again" * bool(
            tool_report.num_unjudged
        )
        print(f"{tool_report.tool}: {tool_report.summary or 'no summary'} ({ended}{unjudged})")
        if not tool_report.is_clean:
            print("\n".join(tool_report.output.splitlines()[-_SHOWN_LINES:]))
    print(f"{time.monotonic() - start:5.0f} s")
    if any(tool_report.status == _NO_GPU for tool_report in tools):
        return _NO_GPU
    return int(
        num_failed > 0 or not cases or not all(tool_report.is_clean for tool_report in tools)
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak.sanitize",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-o", "--out", type=Path, default=Path("sanitize"))
    parser.add_argument("-j", "--jobs", type=int, default=default_jobs(), help="worker processes")
    parser.add_argument("--seed", type=int, default=0, help="draws variants and inputs")
    parser.add_argument("--kernels", type=int, default=24, help="how many are launched")
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--seconds", type=float, default=60.0, help="for all tools together")
    parser.add_argument("--launch", type=Path, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""Share of public packages' kernels verified by `aotc verify`, and its speed.

    pip download --no-deps --dest wheels liger-kernel fla-core
    for wheel in wheels/*.whl; do unzip -q -d packages/$(basename "${wheel%%-*}") "$wheel"; done
    python -m benchmarks.verify_packages packages [--guesses] [--variants 1] [--limit 120] [--results FILE]

Each folder in `packages` is one package. `aotc init` writes a manifest of each of its files.
Kernels without open points in it are whole; with `--guesses` also the ones with constants and
block sizes chosen without a launch. Of each kernel, variants spread over all are compiled as far
as PTX and verified, each within a time limit. Some types and sizes in a manifest do not fit the
kernel: after a refused or dropped variant, the next takes its place. A wrong result may be the
kernel's own fault: an index out of bounds its callers never reach, or undefined values.

A long list goes in portions. Variants in `--results` are not verified again, and after
`--seconds` of processor time a run starts no more kernels. Its table covers the whole file.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import re
import sys
import time
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from aotc.ir.diagnostics import DiagnosticError
from aotc.package.builder.workers import Failure, Job, default_jobs, run_all
from aotc.package.init.manifest import write_manifest
from aotc.package.verify.subjects import Subject, load_subjects
from aotc.package.verify.variants import verify_variant
from benchmarks.check_packages import version_of
from benchmarks.soak.limits import time_limit

TARGET = "sm_90a"
_KERNEL = "[[kernel]]\n"
_TODO = "# TODO: "
_TRIES = 8  # variants of a kernel, until the target accepts one
# Choices `aotc init` is not sure of.
_GUESS = re.compile(_TODO + r"(the sizes that launches pass|launches pass (?!None)|no launch is)")

Status: TypeAlias = Literal[
    "verified", "partly verified", "wrong", "unverified", "dropped", "failed", "out of time"
]
STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True, slots=True)
class Verified:
    """Outcome of a variant, and its processor seconds.

    `part` names the variants it was picked from, the same in every run.
    """

    package: str
    part: str
    label: str
    status: Status
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Candidates:
    """Part number `part_index`, of `count`, of a manifest's variants.

    The first one the target accepts is verified.
    """

    part: str
    manifest: Path
    part_index: int
    count: int

    def subjects(self) -> list[Subject]:
        """Return the variants to try, none where there are fewer than parts."""
        subjects = load_subjects(str(self.manifest))
        start, stop = (
            index * len(subjects) // self.count for index in (self.part_index, self.part_index + 1)
        )
        return spread(subjects[start:stop], _TRIES)


@dataclass(frozen=True, slots=True)
class Package:
    """A package's kernels to verify."""

    name: str
    version: str
    num_kernels: int
    num_whole: int
    candidates: tuple[Candidates, ...]


# ---- manifests --------------------------------------------------------------------------------


def look_at(
    folder: Path, manifests: Path, *, variants: int, guesses: bool, jobs: int = 1
) -> Package:
    """Write manifests of a package's files; return the variants to verify."""
    write = partial(write_manifests, folder=folder, manifests=manifests, guesses=guesses)
    sources = [source for source in sorted(folder.rglob("*.py")) if _has_kernels(source)]
    if jobs == 1:
        written = [write(source) for source in sources]
    else:
        with ProcessPoolExecutor(jobs) as pool:
            written = [*pool.map(write, sources)]
    whole = [path for _, paths in written for path in paths]
    candidates = [
        Candidates(f"{path.stem} {number}", path, number, variants)
        for path in whole
        for number in range(variants)
    ]
    num_kernels = sum(count for count, _ in written)
    return Package(folder.name, version_of(folder), num_kernels, len(whole), tuple(candidates))


def write_manifests(
    source: Path, *, folder: Path, manifests: Path, guesses: bool
) -> tuple[int, list[Path]]:
    """Write a manifest of a file, and one for each of its whole kernels.

    Returns how many kernels the file has, and the latter manifests.
    """
    path = manifests / folder.name / f"{'.'.join(source.relative_to(folder).parts)[:-3]}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        written = write_manifest([str(source)], str(path), [TARGET])
    except DiagnosticError:
        return 0, []  # no kernels
    path.write_text(written.text, encoding="utf-8")  # to see its open points
    alone: list[Path] = []
    for number, text in enumerate(whole_kernels(written.text, guesses=guesses)):
        # A manifest each: a wrong one is then left out alone.
        alone.append(path.with_suffix(f".{number}.toml"))
        alone[-1].write_text(text, encoding="utf-8")
    return written.num_kernels, alone


def _has_kernels(source: Path) -> bool:
    """Return whether a file may have kernels: most files of a package have none."""
    return b"jit" in source.read_bytes()


def whole_kernels(manifest: str, *, guesses: bool) -> list[str]:
    """Return a manifest for each kernel without open points."""
    head, *rest = re.split(r"^\n", manifest, flags=re.MULTILINE)
    package, *tables = rest
    manifests: list[str] = []
    for table in tables:
        if not table.startswith(_KERNEL):
            continue  # an unnameable value is written as a comment
        todos = [line for line in table.splitlines() if _TODO in line]
        if not todos or (guesses and all(map(_GUESS.search, todos))):
            manifests.append(f"{head}\n{package}\n{table}")
    return manifests


def spread(subjects: Sequence[Subject], count: int) -> list[Subject]:
    """Return up to `count` of the subjects, evenly spread."""
    count = min(count, len(subjects))
    return [subjects[index * len(subjects) // count] for index in range(count)]


# ---- verifying --------------------------------------------------------------------------------


def verify(task: tuple[str, Candidates], limit_seconds: float) -> Verified | None:
    """Verify the first variant that compiles in this process; None if none does."""
    package, candidates = task
    start, label = time.process_time(), candidates.part

    def done(status: Status, detail: str = "") -> Verified:
        seconds = round(time.process_time() - start, 2)
        return Verified(package, candidates.part, label, status, detail, seconds)

    refused: Verified | None = None
    try:
        subjects = candidates.subjects()
    except DiagnosticError as error:
        return done("failed", error.render())
    start = time.process_time()
    for subject in subjects:
        label = subject.label
        try:
            with time_limit(limit_seconds):
                result = verify_variant(subject)
        except TimeoutError as error:
            return done("out of time", str(error))
        except DiagnosticError as error:
            refused = refused or done("failed", error.render())
            continue
        if result.status == "dropped":
            refused = refused or done("dropped", result.dropped)
            continue
        gaps = (f"{launch.label}: {launch.gap}" for launch in result.launches if launch.gap)
        wrong = (
            f"{launch.label} {dict(launch.scalars)}: {launch.detail}"
            for launch in result.launches
            if launch.status in ("wrong", "fault")
        )
        return done(result.status, next(wrong, "") or next(gaps, ""))
    return refused


def verify_all(
    packages: Sequence[Package],
    finished: Container[tuple[str, str]],
    limit_seconds: float,
    jobs: int,
) -> Iterator[Verified]:
    """Yield the outcome of each variant of all packages, except the `finished` parts."""
    tasks = [
        Job(f"{package.name}: {candidates.part}", (package.name, candidates))
        for package in packages
        for candidates in package.candidates
        if (package.name, candidates.part) not in finished
    ]
    for job in run_all(tasks, partial(verify, limit_seconds=limit_seconds), jobs):
        if isinstance(job.result, Failure):
            package, candidates = job.task.request
            report = job.result.report
            yield Verified(package, candidates.part, candidates.part, "failed", report, job.seconds)
        elif job.result is not None:
            yield job.result


def read_results(path: Path | None) -> list[Verified]:
    """Return the results of earlier runs from a file, one a line."""
    if path is None or not path.exists():
        return []
    return [Verified(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]


# ---- report -----------------------------------------------------------------------------------


def table(packages: Sequence[Package], outcomes: Sequence[Verified]) -> str:
    """Return a row for each package, and one for all."""
    names = "|".join(status.removesuffix(" verified") for status in STATUSES)
    rows = [
        f"|package|version|kernels|whole|variants|{names}|mean|longest|",
        "|-" * (7 + len(STATUSES)) + "|",
    ]
    for package in (*packages, None):
        listed = packages if package is None else [package]
        package_outcomes = [
            outcome for outcome in outcomes if package is None or outcome.package == package.name
        ]
        counts = collections.Counter(outcome.status for outcome in package_outcomes)
        seconds = [outcome.seconds for outcome in package_outcomes] or [0.0]
        cells = (
            "all" if package is None else package.name,
            "" if package is None else package.version,
            sum(checked.num_kernels for checked in listed),
            sum(checked.num_whole for checked in listed),
            len(package_outcomes),
            *(counts[status] for status in STATUSES),
            f"{sum(seconds) / len(seconds):.1f} s",
            f"{max(seconds):.1f} s",
        )
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="with a folder for each package")
    parser.add_argument("--packages", nargs="*", help="of these names alone")
    parser.add_argument(
        "--manifests", type=Path, default=Path("manifests"), help="are written here"
    )
    parser.add_argument("--guesses", action="store_true", help="take constants that init chose")
    parser.add_argument("--variants", type=int, default=1, help="of each kernel")
    parser.add_argument("--every", type=int, default=1, help="take each so many of the variants")
    parser.add_argument(
        "--limit", type=float, default=120.0, help="processor seconds for a variant"
    )
    parser.add_argument("-j", "--jobs", type=int, default=default_jobs())
    parser.add_argument(
        "--results", type=Path, help="add to this file, and verify what is not there"
    )
    parser.add_argument("--seconds", type=float, default=math.inf, help="of the processor, in all")
    options = parser.parse_args()
    folders = [folder for folder in sorted(options.folder.iterdir()) if folder.is_dir()]
    folders = [
        folder for folder in folders if not options.packages or folder.name in options.packages
    ]
    if not folders:
        print(f"no packages in {options.folder}", file=sys.stderr)
        return 1
    look = partial(look_at, variants=options.variants, guesses=options.guesses, jobs=options.jobs)
    packages = [look(folder, options.manifests) for folder in folders]
    packages = [
        replace(package, candidates=package.candidates[:: options.every]) for package in packages
    ]
    outcomes = read_results(options.results)
    finished = {(outcome.package, outcome.part) for outcome in outcomes}
    left = options.seconds
    for outcome in verify_all(packages, finished, options.limit, options.jobs):
        outcomes.append(outcome)
        print(
            f"{outcome.seconds:7.1f} {outcome.status:16} {outcome.package}: {outcome.label}",
            flush=True,
        )
        if outcome.detail:
            print(f"        {outcome.detail.splitlines()[0]}")
        if options.results:
            with options.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(outcome)) + "\n")
        left -= outcome.seconds
        if left <= 0:
            print("the rest is for another run")
            break
    print(table(packages, outcomes))
    return int(any(outcome.status == "out of time" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())

"""Audit the SASS of all cubins of manifests or archives.

    python -m benchmarks.audit_cubins kernels.toml kernels/*.toml [--every 1] [--results FILE]

A long list goes in portions. Subjects in `--results` are not audited again, and after
`--seconds` of processor time, ptxas and nvdisasm included, no more start. The summary covers the
whole file.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from aotc.ir.diagnostics import DiagnosticError
from aotc.package.builder.workers import Failure, Job, default_jobs, run_all
from aotc.package.verify.audit import audit_variant
from aotc.package.verify.subjects import Subject, load_subjects


@dataclass(frozen=True, slots=True)
class Audited:
    """Findings of the audit in each cubin of a variant: kind, instruction, whether it is a failure.

    With a `refusal` the variant has none.
    """

    path: str
    label: str
    cubins: list[list[tuple[str, str, bool]]]
    refusal: str = ""
    seconds: float = 0.0


def spent() -> float:
    """Return the processor seconds of this process and of its finished children."""
    usages = (
        resource.getrusage(scope) for scope in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def audited(task: tuple[str, Subject]) -> Audited:
    """Audit the cubins of one variant."""
    path, subject = task
    start = spent()
    try:
        cubin_findings = audit_variant(subject)
    except DiagnosticError as error:
        return Audited(path, subject.label, [], error.render(), round(spent() - start, 3))
    cubins = [
        [(finding.kind, finding.text, finding.is_failure) for finding in cubin]
        for cubin in cubin_findings
    ]
    return Audited(path, subject.label, cubins, "", round(spent() - start, 3))


def read_results(path: Path | None) -> list[Audited]:
    """Return the results of earlier runs from a file, one a line."""
    if path is None or not path.exists():
        return []
    return [Audited(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def summary(audits: Sequence[Audited]) -> Iterator[str]:
    """Yield lines on the audited cubins, each kind of finding, and each failing cubin."""
    cubins = [cubin for audit in audits for cubin in audit.cubins]
    refused = sum(bool(audit.refusal) for audit in audits)
    seconds = sum(audit.seconds for audit in audits)
    yield f"{len(audits)} variants, {len(cubins)} cubins, {refused} refused, {seconds:.0f} CPU-s"
    kinds = Counter(kind for cubin in cubins for kind in {kind for kind, *_ in cubin})
    for kind, count in sorted(kinds.items()):
        yield f"{kind}: in {count} cubins"
    for audit in audits:
        failures = [text for cubin in audit.cubins for _, text, is_failure in cubin if is_failure]
        if failures:
            yield f"fails: {audit.path}: {audit.label}: {failures[0]} and {len(failures) - 1} more"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="+", help="manifests or archives")
    parser.add_argument("--kernel", action="append", default=[], help="of these alone")
    parser.add_argument("--every", type=int, default=1, help="take each so many of the variants")
    parser.add_argument("-j", "--jobs", type=int, default=default_jobs())
    parser.add_argument(
        "--results", type=Path, help="add to this file, and audit what is not there"
    )
    parser.add_argument("--seconds", type=float, default=math.inf, help="of the processor, in all")
    options = parser.parse_args()
    audits = read_results(options.results)
    finished_keys = {(audit.path, audit.label) for audit in audits}
    tasks = [
        Job(subject.label, (path, subject))
        for path in options.paths
        for subject in load_subjects(path, options.kernel, [])[:: options.every]
        if (path, subject.label) not in finished_keys
    ]
    left = options.seconds
    for job in run_all(tasks, audited, options.jobs):
        audit_result = job.result
        if isinstance(audit_result, Failure):
            path, subject = job.task.request
            audit_result = Audited(path, subject.label, [], audit_result.report, job.seconds)
        audits.append(audit_result)
        if options.results:
            with options.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(audit_result)) + "\n")
        left -= audit_result.seconds
        if left <= 0:
            print("the rest is for another run")
            break
    print("\n".join(summary(audits)))
    return int(
        any(is_failure for audit in audits for cubin in audit.cubins for *_, is_failure in cubin)
    )


if __name__ == "__main__":
    sys.exit(main())

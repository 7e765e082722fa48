"""Report `aotc verify`: a table, texts for wrong variants, and the same as plain data.

Invariant: keys of the data are added, never renamed.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rich.table import Table
from rich.text import Text

from aotc.ir.diagnostics import one_line
from aotc.package.builder.workers import Done, Failure
from aotc.package.inspect import sarif
from aotc.package.verify.subjects import Subject
from aotc.package.verify.variants import VariantResult
from aotc.verify.checks.check import Finding
from aotc.verify.sass import findings as sass

Data: TypeAlias = dict[str, Any]
Verified: TypeAlias = Done[Subject, VariantResult]

_WORST = ("wrong", "failed", "unverified", "partly verified", "verified", "dropped")
_MAX_GAPS = 8
_MAX_AUDITED = 4


@dataclass(slots=True)
class Report:
    """Collect the results of variants; `command` verifies all of them again with the same seed.

    With `allow_partial`, a variant with some launches not run also counts as right.
    """

    command: tuple[str, ...]
    outcomes: list[Verified] = field(default_factory=list[Verified])
    allow_partial: bool = False

    @property
    def results(self) -> list[VariantResult]:
        """Results of the verified variants, in order of completion."""
        return [
            outcome.result for outcome in self.outcomes if isinstance(outcome.result, VariantResult)
        ]

    @property
    def failures(self) -> list[Failure]:
        """Variants that could not be compiled or emulated."""
        return [outcome.result for outcome in self.outcomes if isinstance(outcome.result, Failure)]

    @property
    def is_bug(self) -> bool:
        """Return whether anything failed because of a bug in aotc."""
        return any(failure.is_bug for failure in self.failures)

    @property
    def is_right(self) -> bool:
        """Return whether every variant that fits its target is verified."""
        states = [result.status for result in self.results]
        right = ("verified", "dropped", *(["partly verified"] if self.allow_partial else []))
        return not self.failures and all(state in right for state in states)

    def reproduce(self, label: str) -> str:
        """Return the command to verify one variant again."""
        return shlex.join([*self.command, "--variant", label])

    def wrong(self) -> list[str]:
        """Return a text for each variant that is not verified."""
        return [
            text
            for result in self.results
            if (text := _wrong(result, self.reproduce(result.label)))
        ]

    def summary(self, seconds: float) -> str:
        """Summarise all results in one line."""
        states = [_state(outcome) for outcome in self.outcomes]
        counts = [f"{states.count(state)} {state}" for state in _WORST if state in states]
        audited = sum(len(result.cubins) for result in self.results)
        if audited:
            counts.append(f"{audited} cubin{'s' * (audited > 1)} audited")
        return f"{', '.join(counts) or 'nothing to verify'} ({seconds:.1f} s)"

    @staticmethod
    def state(outcome: Verified) -> str:
        """Return a variant's status in a word if it is not right, else an empty string."""
        state = _state(outcome)
        return "" if state in ("verified", "dropped") else state.upper()

    def sarif_results(self, path: str) -> Iterator[sarif.Result]:
        """Yield the variants that are not right, each at its kernel in the manifest or at `path`."""
        for outcome in self.outcomes:
            subject = outcome.task.request
            file, line = path, 0
            if subject.expanded is not None:
                loc = subject.expanded[1].kernel.loc
                file, line = loc.file, loc.line
            if isinstance(outcome.result, Failure):
                yield from sarif.failure_results(outcome.result, file)
            elif text := _wrong(outcome.result, self.reproduce(subject.label)):
                level = "error" if outcome.result.status == "wrong" else "warning"
                yield sarif.Result(outcome.result.status, level, text, file, line)

    def describe(self) -> Data:
        """Return everything as JSON-ready data."""
        return {
            "status": "verified" if self.is_right else "failed",
            "variants": [self._describe(outcome) for outcome in self.outcomes],
        }

    def _describe(self, outcome: Verified) -> Data:
        head: Data = {
            "variant": outcome.task.label,
            "kernel": outcome.task.request.kernel,
            "target": outcome.task.request.target.name,
            "status": _state(outcome),
            "seconds": round(outcome.seconds, 3),
            "worker": outcome.worker,
            "command": self.reproduce(outcome.task.label),
        }
        if isinstance(outcome.result, Failure):
            return {**head, "report": outcome.result.report, "bug": outcome.result.is_bug}
        return {
            **head,
            "dropped": outcome.result.dropped,
            "lane_instructions": outcome.result.lane_instructions,
            "launches": [
                {**_describe_finding(finding), "fallback": is_fallback}
                for is_fallback, findings in _members(outcome.result)
                for finding in findings
            ],
            "cubins": [
                {"findings": [_describe_audited(finding) for finding in cubin]}
                for cubin in outcome.result.cubins
            ],
        }


def table(outcomes: Sequence[Verified], *, by_variant: bool) -> Table:
    """Return a row for each kernel and target, or for each variant."""
    rows: dict[str, list[Verified]] = {}
    for outcome in outcomes:
        subject = outcome.task.request
        key = subject.label if by_variant else f"{subject.kernel} {subject.target}"
        rows.setdefault(key, []).append(outcome)
    output = Table(box=None, pad_edge=False)
    output.add_column("variant" if by_variant else "kernel", overflow="fold")
    for name in ("variants", "launches", "passed over", "lane instructions", "seconds"):
        output.add_column(name, justify="right")
    output.add_column("status")
    for key in sorted(rows):
        output.add_row(Text(one_line(key)), *_cells(rows[key]))
    return output


def _cells(outcomes: Sequence[Verified]) -> list[str]:
    results = [outcome.result for outcome in outcomes if isinstance(outcome.result, VariantResult)]
    findings = [finding for result in results for finding in result.launches]
    passed = sum(finding.status == "passed over" for finding in findings)
    states = [_state(outcome) for outcome in outcomes]
    return [
        str(len(outcomes)),
        str(len(findings)),
        str(passed),
        f"{sum(result.lane_instructions for result in results):,}",
        f"{sum(outcome.seconds for outcome in outcomes):.2f}",
        next(state for state in _WORST if state in states),
    ]


def _state(outcome: Verified) -> str:
    return "failed" if isinstance(outcome.result, Failure) else outcome.result.status


def _members(result: VariantResult) -> Iterator[tuple[bool, tuple[Finding, ...]]]:
    """Yield (is it the fallback, findings) for each kernel of a variant."""
    yield False, result.findings
    if result.fallback is not None:
        yield True, result.fallback


def _wrong(result: VariantResult, command: str) -> str:
    if result.status in ("verified", "dropped"):
        return ""
    lines = [one_line(f"{result.status}: {result.label}")]
    for is_fallback, findings in _members(result):
        wrong = [f for f in findings if f.status in ("wrong", "fault")]
        form = "" if result.fallback is None else f"with{'out' * is_fallback} tensor maps: "
        for finding in wrong:
            lines.append(f"  {form}with {shape_text(finding)}, grid {finding.grid}")
            lines += [f"    {line}" for line in finding.detail.splitlines()]
        gaps = [] if result.status == "wrong" else [f for f in findings if f.gap]
        reasons: dict[str, list[str]] = {}
        for finding in gaps[:_MAX_GAPS]:
            where = f"{one_line(finding.label)}, with {shape_text(finding)}, grid {finding.grid}"
            reasons.setdefault(finding.gap, []).append(f"  {form}not checked: {where}")
        for reason, launches in reasons.items():
            lines += [*launches, *(f"    {line}" for line in reason.splitlines())]
        if len(gaps) > _MAX_GAPS:
            lines.append(f"  {form}and {len(gaps) - _MAX_GAPS} launches more")
        if not findings:
            lines.append(f"  {form}no arguments were found that satisfy the variant's guards")
    lines += _audited(result)
    gaps = [finding.gap for finding in result.launches if finding.gap]
    # A gap may name a remedy of its own.
    has_remedies = bool(gaps) and all("  help:" in gap for gap in gaps)
    if result.status in ("unverified", "partly verified") and not has_remedies:
        lines.append("  help: say in [kernel.verify] what the arguments may be")
    return "\n".join([*lines, f"  to see it again: {one_line(command)}"])


def _audited(result: VariantResult) -> Iterator[str]:
    """Yield lines on the first findings of the audit in each cubin."""
    for is_fallback, cubin in enumerate(result.cubins):
        wrong = [finding for finding in cubin if finding.is_failure]
        if not wrong:
            continue
        form = f" with{'out' * is_fallback} tensor maps" * (len(result.cubins) > 1)
        yield f"  the cubin{form} does not do what its PTX says:"
        for finding in wrong[:_MAX_AUDITED]:
            yield from (f"    {line}" for line in finding.render().splitlines())
        if len(wrong) > _MAX_AUDITED:
            yield f"    and {len(wrong) - _MAX_AUDITED} more"


def _describe_audited(finding: sass.Finding) -> Data:
    return {
        "kind": finding.kind,
        "failure": finding.is_failure,
        "address": finding.address,
        "instruction": finding.text,
        "meaning": finding.meaning,
        "source": finding.source,
        "ways": [[[step.branch, step.target] for step in way] for way in finding.ways],
    }


def shape_text(finding: Finding) -> str:
    """Format the arguments of a launch, as in `n = 3, eps = 0.5`."""
    values = (
        f"{name} = {f'{value:.4g}' if isinstance(value, float) else value}"
        for name, value in finding.scalars.items()
    )
    return ", ".join(values) or "no scalar arguments"


def _describe_finding(finding: Finding) -> Data:
    mismatch = finding.mismatch
    described: Data = {
        "class": finding.label,
        "arguments": dict(finding.scalars),
        "grid": list(finding.grid),
        "status": finding.status,
        "lane_instructions": finding.lane_instructions,
        "stored_bytes": finding.num_stored,
    }
    if finding.detail:
        described["detail"] = finding.detail
    if mismatch is not None:
        described["mismatch"] = {
            "buffer": mismatch.buffer,
            "index": mismatch.index,
            "expected": mismatch.expected,
            "actual": mismatch.actual,
            "bound": mismatch.bound,
            "wrong": mismatch.num_wrong,
            "written": mismatch.num_written,
        }
    return described

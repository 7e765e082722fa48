"""Report of a soak: figures as JSON, and a table for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.soak import programs, remarks
from benchmarks.soak.journal import FAILURES, Outcome, Record
from benchmarks.soak.plan import count_soaked

PHASES = ("variants", "programs", "risky")  # the phase most likely to hang comes last
BUILD = "build"
_MAX_SHOWN = 20


def with_lost(record: Record) -> Record:
    """Return the record with a lost outcome for each attempt without one."""
    for attempt in list(record.open.values()):
        detail = f"{attempt.launch}: tried, and the soak ended with it"
        record.take(Outcome(attempt.case, attempt.phase, "lost", detail))
    return record


def figures(record: Record) -> dict[str, Any]:
    """Return all figures of a soak, for JSON; a failure is in full."""
    failures = [outcome for outcome in record.outcomes.values() if outcome.is_failure]
    lines = {line for outcome in record.outcomes.values() for line in outcome.remarks}
    seen = {remarks.without_numbers(line) for line in lines}
    return {
        "dates": sorted({run.date for run in record.runs}),
        "devices": sorted({run.device for run in record.runs}),
        "seconds": round(sum(run.seconds for run in record.runs), 1),
        "launcher_seconds": round(sum(run.launcher_seconds for run in record.runs), 1),
        "launchers": max((run.num_launchers for run in record.runs), default=0),
        "jobs": max((run.num_jobs for run in record.runs), default=0),
        "phases": {
            phase: _phase(record, phase) for phase in (BUILD, *PHASES) if _has(record, phase)
        },
        "long_programs": sum(
            outcome.num_launches > 0 and programs.is_long(outcome.case)
            for outcome in record.outcomes.values()
        ),
        "failures": [_failure(outcome) for outcome in failures],
        "passed_over": [
            {"case": outcome.case, "phase": outcome.phase, "launch": launch}
            for outcome in record.outcomes.values()
            for launch in outcome.passed_over
        ],
        "kernels": _kernels(record),
        "remarks": {
            "seen": sorted(seen),
            "never": [
                f"{text.place}: {text.text}" for text in remarks.never_seen(lines, remarks.texts())
            ],
        },
    }


def _has(record: Record, phase: str) -> bool:
    return any(phase in run.planned for run in record.runs) or any(
        outcome.phase == phase for outcome in record.outcomes.values()
    )


def _phase(record: Record, phase: str) -> dict[str, Any]:
    outcomes = [outcome for outcome in record.outcomes.values() if outcome.phase == phase]
    counts = Counter(outcome.status for outcome in outcomes)
    planned = max(
        (run.planned[phase] for run in record.runs if phase in run.planned), default=len(outcomes)
    )
    return {
        "planned": planned,
        "run": sum(outcome.num_launches > 0 for outcome in outcomes),
        "launches": sum(outcome.num_launches for outcome in outcomes),
        "passed_over": sum(len(outcome.passed_over) for outcome in outcomes),
        "not_reached": max(0, planned - len(outcomes)),
        **{
            status: counts[status] for status in ("right", "built", "dropped", "refused", *FAILURES)
        },
        "launcher_seconds": round(sum(outcome.seconds for outcome in outcomes), 1),
        "worker_seconds": round(sum(run.worker_seconds.get(phase, 0.0) for run in record.runs), 1),
    }


def _kernels(record: Record) -> dict[str, Any]:
    """Return the number of kernels with planned variants, and the kernels never launched."""
    planned = dict.fromkeys(kernel for run in record.runs for kernel in run.kernels)
    launched = count_soaked([record])
    return {
        "planned": len(planned),
        "launched": sum(kernel in launched for kernel in planned),
        "never": [kernel for kernel in planned if kernel not in launched],
    }


def _failure(outcome: Outcome) -> dict[str, str]:
    return {
        "case": outcome.case,
        "phase": outcome.phase,
        "status": outcome.status,
        "detail": outcome.detail,
        "command": outcome.command,
    }


_COLUMNS = (
    "planned",
    "run",
    "launches",
    "passed_over",
    "right",
    "built",
    "dropped",
    "refused",
    "failed",
    "not_reached",
)


def table(figures: Mapping[str, Any]) -> str:
    """Return the figures in lines of text: a row a phase, then the failures."""
    rows = [("phase", *(name.replace("_", " ") for name in _COLUMNS), "launcher s", "worker s")]
    for phase, counts in figures["phases"].items():
        cells = {**counts, "failed": sum(counts[status] for status in FAILURES)}
        numbers = [f"{cells[name]:,}" for name in _COLUMNS]
        seconds = f"{counts['launcher_seconds']:.0f}", f"{counts['worker_seconds']:.0f}"
        rows.append((phase, *numbers, *seconds))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if position else cell.ljust(width)
            for position, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    kernels = figures["kernels"]
    lines.append(
        f"\nvariants of {kernels['launched']:,} of {kernels['planned']:,} kernels launched"
    )
    lines += _few([f"no variant of {kernel}" for kernel in kernels["never"]])
    never = figures["remarks"]["never"]
    seen = len(figures["remarks"]["seen"])
    lines.append(f"\n{seen} kinds of remarks seen; {len(never)} texts of the schedule never")
    lines += _few(never)
    lines += _failed(figures["failures"])
    lines.append(
        f"\n{', '.join(figures['devices'])}; {', '.join(figures['dates'])}; {figures['seconds']:.0f} s; "
        f"{figures['launchers']} launchers, busy for {figures['launcher_seconds']:.0f} s in all; "
        f"{figures['jobs']} workers"
    )
    lines.append(_totals(figures))
    return "\n".join(lines)


def _totals(figures: Mapping[str, Any]) -> str:
    phases: Mapping[str, Any] = figures["phases"]
    failed = sum(counts[status] for counts in phases.values() for status in FAILURES)
    core_seconds = sum(counts["worker_seconds"] for counts in phases.values())
    by_phase = ", ".join(
        f"{counts['worker_seconds']:,.0f} of {phase}" for phase, counts in phases.items()
    )
    run = ", ".join(f"{counts['run']:,} {phase}" for phase, counts in phases.items())
    return (
        f"in all: launched {run} ({figures['long_programs']:,} programs long); {failed:,} failed; "
        f"{core_seconds:,.0f} core-seconds of workers ({by_phase})"
    )


def _few(texts: Sequence[str]) -> list[str]:
    lines = [f"  {text}" for text in texts[:_MAX_SHOWN]]
    if len(texts) > _MAX_SHOWN:
        lines.append(f"  … and {len(texts) - _MAX_SHOWN} more, in the JSON")
    return lines


def _failed(failures: Sequence[Mapping[str, str]]) -> list[str]:
    lines = [f"\n{len(failures)} failed" + (":" if failures else "")]
    for failure in failures[:_MAX_SHOWN]:
        lines.append(f"  {failure['status']}: {failure['case']}")
        lines.append(f"    {failure['detail'][:600]}")
        if failure["command"]:
            lines.append(f"    {failure['command']}")
    if len(failures) > _MAX_SHOWN:
        lines.append(f"  … and {len(failures) - _MAX_SHOWN} more, in the JSON")
    return lines


def is_green(figures: Mapping[str, Any]) -> bool:
    """Return whether, by all figures, nothing failed and every planned case was reached."""
    return not figures["failures"] and all(
        not phase["not_reached"] for phase in figures["phases"].values()
    )

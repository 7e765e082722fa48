"""Write findings as SARIF 2.1.0, for code hosts and editors to show at lines of the source.

Source: Static Analysis Results Interchange Format 2.1.0, OASIS, sections 3.13 to 3.30.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import quote

from aotc import __version__
from aotc.package.builder.workers import Failure
from aotc.package.inspect.survey import Checked

Level = Literal["error", "warning", "note"]
_PLACE = re.compile(r"(?P<file>[^\n]+?):(?P<line>\d+):(?P<column>\d+): error: (?P<message>[^\n]*)")


@dataclass(frozen=True, slots=True)
class Result:
    """A finding of one rule, at a line if `line` is not 0; columns count from 1."""

    rule: str
    level: Level
    message: str
    file: str
    line: int = 0
    column: int = 0


def sarif_text(results: Iterable[Result]) -> str:
    """Return a log of one run with each result once."""
    listed = list(dict.fromkeys(results))
    rules = [{"id": rule} for rule in dict.fromkeys(result.rule for result in listed)]
    driver = {"name": "aotc", "semanticVersion": __version__, "rules": rules}
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "columnKind": "unicodeCodePoints",
                "results": [_described(result) for result in listed],
            }
        ],
    }
    return json.dumps(log, indent=1) + "\n"


def _described(result: Result) -> dict[str, Any]:
    path = Path(result.file)
    uri = path.as_uri() if path.is_absolute() else quote(path.as_posix())
    location: dict[str, Any] = {"artifactLocation": {"uri": uri}}
    if result.line:
        column = {"startColumn": result.column} if result.column else {}
        location["region"] = {"startLine": result.line, **column}
    return {
        "ruleId": result.rule,
        "level": result.level,
        "message": {"text": result.message},
        "locations": [{"physicalLocation": location}],
    }


def check_results(checked: Checked) -> Iterator[Result]:
    """Yield the findings of a check: features not supported, unnamed kernels, unread files."""
    for kernel in checked.kernels:
        for refusal in kernel.missing:
            level: Level = "warning" if refusal.when else "error"
            message = f"{refusal.message} ({refusal.when})" if refusal.when else refusal.message
            yield Result("unsupported", level, message, refusal.file, refusal.line)
    for maker in checked.unnamed:
        message = f"{maker.maker} makes a kernel of {maker.name} when a program runs"
        yield Result("unnamed", "note", message, maker.file, maker.line)
    for report in checked.unread:
        place = _PLACE.match(report)
        if place is not None:
            line, column = int(place["line"]), int(place["column"])
            yield Result("unread", "error", place["message"], place["file"], line, column)
    for failure in checked.failures:
        yield from failure_results(failure, failure.label)


def failure_results(failure: Failure, file: str) -> Iterator[Result]:
    """Yield the mistakes in a failure, or the failure itself at `file`."""
    mistakes = cast("tuple[Mapping[str, Any], ...]", failure.mistakes)
    for mistake in mistakes:
        line, column = mistake["line"] or 0, mistake["column"] or 0
        remedy = f"\n{mistake['remedy']}" if mistake["remedy"] else ""
        text = f"{mistake['message']}{remedy}"
        yield Result("mistake", "error", text, mistake["file"] or file, line, column)
    if not mistakes:
        yield Result("bug" if failure.is_bug else "failed", "error", failure.report, file)

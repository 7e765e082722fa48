"""FileCheck in process: IR text and its CHECK lines side by side in one string."""

from __future__ import annotations

import contextlib
import io
import re

from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser, pattern_for_opts

_CHECK = re.compile(r"^\s*// CHECK")


def without_checks(text: str) -> str:
    """Return `text` without its CHECK lines, for the IR parser."""
    return "\n".join(line for line in text.splitlines() if not _CHECK.match(line)) + "\n"


def check(expected: str, actual: str) -> None:
    """Match `actual` against the CHECK lines of `expected`."""
    options = Options("<checks>")
    matcher = Matcher(
        options,
        FInput("<actual>", FInput.canonicalize_line_ends(actual)),
        Parser(options, io.StringIO(expected), *pattern_for_opts(options)),
    )
    report = io.StringIO()
    matcher.stderr = report
    with contextlib.redirect_stdout(report):
        code = matcher.run()
    assert code == 0, f"{report.getvalue()}\n--- actual ---\n{actual}"

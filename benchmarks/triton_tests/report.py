"""A table of the outcomes of Triton's tests, from the JSON lines of `bridge.py`.

    python -m benchmarks.triton_tests.report FILE…

- `passed`; `skipped` by the test itself, or since it reads what only Triton's compiler has.
- `refused too`: the test expects Triton to refuse, and aotc does so in other words.
- `spelling`: an assertion about Triton's PTX, after the test has compared the results.
- `failed`: everything else, listed by message. The share of the applicable is passed and refused too, over these
  and failed.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

Outcome: TypeAlias = dict[str, Any]

_SPELLING = re.compile(r"AssertionError: assert .{0,80}in '\.version", re.DOTALL)
_OTHER_WORDS = re.compile(
    r"Regex pattern did not match|Wrong error message|Pattern:|does not match", re.DOTALL
)


def kind_of(outcome: Outcome) -> str:
    """Return the table's row for an outcome."""
    error = outcome["error"]
    if outcome["outcome"] != "failed":
        return str(outcome["outcome"])
    if outcome["refusals"] and _OTHER_WORDS.search(error):
        return "refused too"
    is_about_ptx = bool(_SPELLING.match(error)) or (
        "ptx" in outcome["reads_triton"] and error.startswith("AssertionError")
    )
    return "spelling" if is_about_ptx else "failed"


def message_of(outcome: Outcome) -> str:
    """Return a refusal or an error in one line, with numbers replaced for counting."""
    text = outcome["refusals"][-1] if outcome["refusals"] else outcome["error"]
    lines = [line for line in text.splitlines() if "error:" in line] or text.splitlines() or [""]
    return re.sub(r"\d+", "N", re.sub(r"^.*?error: ", "", lines[0]))[:200]


def report(outcomes: Iterable[Outcome]) -> str:
    """Return the table, and failures by message, the most frequent first."""
    counts: Counter[str] = Counter()
    failures: defaultdict[str, list[str]] = defaultdict(list)
    for outcome in outcomes:
        kind = kind_of(outcome)
        counts[kind] += 1
        if kind == "failed":
            failures[message_of(outcome)].append(outcome["test"].rpartition("::")[2])
    good = counts["passed"] + counts["refused too"]
    share = 100 * good / max(1, good + counts["failed"])
    rows = [f"{kind:<12}{count:>6}" for kind, count in counts.most_common()]
    ranked = sorted(failures.items(), key=lambda item: (-len(item[1]), item[0]))
    lines = [f"{len(tests):>5}  {message}  ({min(tests)})" for message, tests in ranked]
    return "\n".join([*rows, f"applicable tests that pass: {share:.1f} %", *lines])


if __name__ == "__main__":
    print(
        report(
            json.loads(line)
            for name in sys.argv[1:]
            for line in Path(name).read_text().splitlines()
        )
    )

"""Plain words: rates of prose and of bare names, and a budget for each file above them.

    python -m tests.support.prose            lower the budgets to today's counts
    python -m tests.support.prose --start    write today's counts, also where they rose

Bare names are variables such as `found` or `each`: they tell the history of a thing, not its kind. Bindings
are matched by regular expressions, since parsing every file takes longer than the tests of a package.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

Counts: TypeAlias = dict[str, int]

ROOT = Path(__file__).resolve().parents[2]
BUDGETS = Path(__file__).with_name("prose_budgets.txt")
WHAT_PER_THOUSAND = 2
LONG_PER_HUNDRED = 2
LONG_SENTENCE = 30  # words
FREE = 2  # of either kind in a file of Python: a quoted message, a loop over names of a test

BARE = re.compile(
    r"found|made|given|held|kept|done|known|moved|taken|wanted|needed|each|ones?|own|others|places?|at|stands|asked"
    r"|told|said|put|used|meant|got|came|comes|goes|went|gone|here|there|what|which|who|whose|that|those|this|these"
    r"|its?|them|they|both|all|any|some|none|nothing|everything|something|anything|someone|beside|behind"
)
_WHAT = re.compile(r"\bwhat\b", re.IGNORECASE)
_FENCE = re.compile(r"(?ms)^ *```.*?^ *```$")
_ASSIGNED = re.compile(
    r"(?m)^[ \t]*(?:for[ \t]+)?((?:\w+[ \t]*,[ \t]*)*\w+)[ \t]*(?::[^=\n]*)?=(?!=)"
)
_LOOP = re.compile(r"\bfor[ \t]+([\w, \t()*]+?)[ \t]+in\b")
_WALRUS = re.compile(r"(\w+)[ \t]*:=")
_HEADER = re.compile(r"\bdef \w+\(([^()]*(?:\([^()]*\)[^()]*)*)\)")
_PARAMETER = re.compile(r"(?:^|,)\s*\*{0,2}(\w+)")


def files() -> Iterator[Path]:
    """Yield the sources of aotc and its tests, and the pages."""
    quoting = (Path(__file__), ROOT / "tests" / "test_prose.py")
    for folder in ("aotc", "tests"):
        yield from (path for path in sorted((ROOT / folder).rglob("*.py")) if path not in quoting)
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
    yield from (path for path in sorted(pages) if path.parent.name != "results")


def bare_names(source: str) -> int:
    """Return the number of Python variables and parameters with a bare name."""
    groups = [*_ASSIGNED.findall(source), *_LOOP.findall(source), *_WALRUS.findall(source)]
    names = [name for group in groups for name in re.findall(r"\w+", group)]
    names += [name for header in _HEADER.findall(source) for name in _PARAMETER.findall(header)]
    return sum(BARE.fullmatch(name) is not None for name in names)


def sentences(page: str) -> list[str]:
    """Return the sentences of a page: code and tables are none, list items and headings end one."""
    text = re.sub(r"(?m)^\s*\|.*$|^#.*$|^<!--.*$", "", _FENCE.sub("", page))
    blocks = re.split(r"\n\s*\n|(?m:^)\s*(?:[-*]|\d+\.)\s", text)
    return [
        sentence
        for block in blocks
        for sentence in re.split(r"(?<=[.!?:;])\s+", " ".join(block.split()))
        if len(sentence.split()) > 2
    ]


def excess(path: Path) -> Counts:
    """Return the excess of a file over the limits without a budget."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        whats, bare = len(_WHAT.findall(text)), bare_names(text)
        return {"what": max(0, whats - FREE), "bare": max(0, bare - FREE)}
    prose = _FENCE.sub("", text)
    every = sentences(text)
    free_words = max(1, len(re.findall(r"[A-Za-z']+", prose)) * WHAT_PER_THOUSAND // 1000)
    free_sentences = max(1, len(every) * LONG_PER_HUNDRED // 100)
    long = sum(len(sentence.split()) > LONG_SENTENCE for sentence in every)
    return {
        "what": max(0, len(_WHAT.findall(prose)) - free_words),
        "long": max(0, long - free_sentences),
    }


def all_excess() -> dict[str, Counts]:
    """Return the excess of each file over the limits."""
    counts = {str(path.relative_to(ROOT)): excess(path) for path in files()}
    return {
        name: {key: number for key, number in count.items() if number}
        for name, count in counts.items()
        if any(count.values())
    }


def read_budgets() -> dict[str, Counts]:
    """Return the budgets of the table, a line for each file."""
    budgets: dict[str, Counts] = {}
    for line in BUDGETS.read_text().splitlines():
        name, *fields = line.split()
        budgets[name] = {
            key: int(number) for key, _, number in (field.partition("=") for field in fields)
        }
    return budgets


def write_budgets(budgets: dict[str, Counts]) -> None:
    """Write the table, sorted, without zeros."""
    lines = [
        " ".join([name, *(f"{key}={number}" for key, number in sorted(counts.items()) if number)])
        for name, counts in sorted(budgets.items())
        if any(counts.values())
    ]
    BUDGETS.write_text("".join(f"{line}\n" for line in lines))


def lowered(budgets: dict[str, Counts], counts: dict[str, Counts]) -> dict[str, Counts]:
    """Return the lower of the table's and today's counts as budgets."""
    return {
        name: {key: min(number, counts.get(name, {}).get(key, 0)) for key, number in budget.items()}
        for name, budget in budgets.items()
    }


if __name__ == "__main__":
    today = all_excess()
    write_budgets(today if "--start" in sys.argv else lowered(read_budgets(), today))

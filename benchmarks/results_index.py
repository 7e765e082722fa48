"""Write docs/results/index.md from the runs beside it, one JSON file each.

    python benchmarks/results_index.py

A run has an area, a title, a card, a date, commands, a unit, rows, and perhaps a note. A row has a work, a figure (null
if only ratios were kept), ratios to peers, and a unit of its own if it differs. A run with "headline" comes first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

Run: TypeAlias = Mapping[str, Any]

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
AREAS = {
    "matmul": "Matmul",
    "attention": "Attention",
    "bandwidth": "Bandwidth",
    "public": "Public libraries",
    "launch": "Launch",
    "build": "Compile and build time",
    "tuning": "Tuning",
    "archives": "Archives",
    "verification": "Verification",
    "correctness": "Correctness",
}
_REQUIRED = ("area", "title", "card", "date", "command", "unit", "rows")
_COLUMNS = 119
_HEAD = """\
# Results

The latest figure of each kind, with its card, its date and its command. `python benchmarks/results_index.py` writes
this page from the JSON files beside it, one for each run. Older figures are in the history of the repository.

## How they are measured

- Peers run in the same process, or alternate run by run, on fresh random data.
- A ratio to a peer is the median of pairs; above 1 aotc is faster, unless the row says "time".
- Each peer picks its best configuration over the same grid first.
- Correctness comes first: every candidate is compared with an fp64 reference before it is timed.
- `python -m benchmarks.harness` measures kernels. Runs before 29 November 2026 are by the scripts that it replaced, of
  the same kernels, configurations and shapes.
- H100 is an NVIDIA H100 80GB HBM3, H200 an NVIDIA H200, both with driver 580.159.04, PyTorch 2.11.0+cu130 and Triton
  3.6.0. Figures without a GPU name the processor.
- Cards differ by a few per cent in clock and power: compare ratios across cards, not rates.
"""


def mistakes(name: str, run: Run) -> list[str]:
    """Return the faults of a run's JSON."""
    if missing := [key for key in _REQUIRED if key not in run]:
        return [f"{name}: missing {missing}"]
    faults: list[str] = []
    if run["area"] not in AREAS:
        faults.append(f"{name}: area {run['area']!r}, expected one of {list(AREAS)}")
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", run["date"]):
        faults.append(f"{name}: date {run['date']!r}, expected YYYY-MM-DD")
    if not run["command"] and not run.get("note"):
        faults.append(f"{name}: neither a command nor a note")
    if not run["rows"]:
        faults.append(f"{name}: no rows")
    return faults + [
        f"{name}: a row needs a work and a figure or ratios: {row}"
        for row in run["rows"]
        if "work" not in row or (row.get("figure") is None and not row.get("ratios"))
    ]


def _ratio(value: object) -> str:
    """Return a ratio with two decimals at least."""
    return f"{value:.2f}" if isinstance(value, float) and len(str(value)) < 4 else str(value)


def _figure(row: Run, unit: str) -> str:
    value = row.get("figure")
    if value is None:
        return ""
    number = f"{value:,}" if isinstance(value, int) else str(value)
    return f"{number} {row.get('unit', unit)}"


def _rows(run: Run) -> list[str]:
    """Return a run's rows of its area's table, under one with its title, card and date."""
    lines = [f"| **{run['title']}** | | | {run['card']} | {run['date']} |"]
    for row in run["rows"]:
        ratios = ", ".join(
            f"{peer} {_ratio(value)}" for peer, value in row.get("ratios", {}).items()
        )
        lines.append(f"| {row['work']} | {_figure(row, run['unit'])} | {ratios} | | |")
    return lines


def _command(run: Run) -> list[str]:
    """Return the list item with a run's commands and note, wrapped."""
    commands = "; ".join(f"`{text}`" for text in run["command"])
    words = f"- {run['title']}: {commands}{'. ' if commands else ''}{run.get('note', '')}".split()
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + 1 + len(word) > _COLUMNS:
            lines.append(f"  {word}")
        else:
            lines[-1] += f" {word}"
    return lines


def page(runs: Iterable[Run]) -> str:
    """Return the index of runs, by area, headlines first."""
    runs = sorted(runs, key=lambda run: not run.get("headline"))
    lines = _HEAD.splitlines()
    for area, title in AREAS.items():
        area_runs = [run for run in runs if run["area"] == area]
        lines += ["", f"## {title}", "", "| work | figure | over peers | card | date |"]
        lines += ["|---|---|---|---|---|", *(line for run in area_runs for line in _rows(run)), ""]
        lines += [line for run in area_runs for line in _command(run)]
    return "\n".join(lines) + "\n"


def runs_of(folder: Path) -> list[Run]:
    """Return the runs of a folder, by name; raise ValueError for faulty ones."""
    runs = {path.name: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    if faults := [fault for name, run in runs.items() for fault in mistakes(name, run)]:
        raise ValueError("\n".join(faults))
    return list(runs.values())


if __name__ == "__main__":
    (RESULTS / "index.md").write_text(page(runs_of(RESULTS)))

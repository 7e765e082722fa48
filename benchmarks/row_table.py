"""What benchmarks of kernels by rows share: their options, the fastest of candidates, and a table of results.

Invariant: a run that is cut short leaves what it has measured, on the screen and in the file.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from peers import Launch, of_turn, ranked

Config = Mapping[str, Any]
Row = Mapping[str, Any]
_Operands = TypeVar("_Operands")


def parser(
    description: str | None, work: Iterable[str], columns: Iterable[int]
) -> argparse.ArgumentParser:
    """Return a parser of the options: an archive, works, numbers of columns, and where results go."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("archive", type=Path)
    made.add_argument("--work", nargs="*", choices=list(work), default=list(work))
    made.add_argument("--columns", nargs="*", type=int, default=list(columns))
    made.add_argument("--no-triton", action="store_true")
    made.add_argument("--json", type=Path)
    return made


def fastest(
    candidates: Iterator[tuple[Config, Callable[[_Operands], Launch]]],
    problem: Callable[[Launch, _Operands], str],
    sets: Sequence[_Operands],
    *,
    trials: int,
    launches: int,
) -> tuple[str, Launch] | None:
    """Return the fastest of the candidates of which `problem` finds nothing wrong, None if there is none.

    Each takes the sets of operands in turn, so that the L2 does not hold them.
    """
    turns, kept = itertools.count(), dict[str, Launch]()
    for config, bind in candidates:
        key = json.dumps(dict(config))
        calls = [bind(each) for each in sets]
        try:
            trouble = problem(calls[0], sets[0])
        except Exception as error:  # noqa: BLE001 - Triton's errors have no common class
            trouble = f"{type(error).__name__}: {str(error)[:200]}"
        if trouble:
            print(f"    {key}: {trouble}", flush=True)
        else:
            kept[key] = of_turn(calls, turns)
    ranking = ranked(kept, trials, launches, ahead=True) if kept else []
    for took, key in ranking:
        print(f"        {1e3 * took:8.1f} us  {key}", flush=True)
    return (ranking[0][1], kept[ranking[0][1]]) if ranking else None


def line(row: Row) -> str:
    """Return a row as text: rates, and what each peer's time or rate is of aotc's."""
    rates = "  ".join(f"{peer} {rate:.3f}" for peer, rate in row["tb_s"].items())
    over = "  ".join(f"{peer} {times:.3f}" for peer, times in row["over"].items())
    return f"{row['work']:24} TB/s: {rates}   aotc over: {over}   {row['configs']}"


def tabulate(rows: Iterable[Row], path: Path | None) -> None:
    """Print rows as they come and once more at the end, and keep all there are in a file."""
    import torch

    table: list[Row] = []
    for row in rows:
        table.append(row)
        print(line(row), flush=True)
        torch.cuda.empty_cache()
        if path:
            path.write_text(json.dumps(table, indent=2) + "\n")
    print(*map(line, table), sep="\n")

"""Options, fastest candidates and table of results for benchmarks of row kernels.

Invariant: an interrupted run leaves its measurements on the screen and in the file.
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
    options = argparse.ArgumentParser(description=description)
    options.add_argument("archive", type=Path)
    options.add_argument("--work", nargs="*", choices=list(work), default=list(work))
    options.add_argument("--columns", nargs="*", type=int, default=list(columns))
    options.add_argument("--no-triton", action="store_true")
    options.add_argument("--json", type=Path)
    return options


def fastest(
    candidates: Iterator[tuple[Config, Callable[[_Operands], Launch]]],
    problem: Callable[[Launch, _Operands], str],
    sets: Sequence[_Operands],
    *,
    trials: int,
    launches: int,
) -> tuple[str, Launch] | None:
    """Return the fastest candidate without a `problem`, None if there is none.

    Each takes the sets of operands in turn, so that the L2 does not hold them.
    """
    turns, launches_by_key = itertools.count(), dict[str, Launch]()
    for config, bind in candidates:
        key = json.dumps(dict(config))
        calls = [bind(args) for args in sets]
        try:
            trouble = problem(calls[0], sets[0])
        except Exception as error:  # noqa: BLE001 - Triton's errors have no common class
            trouble = f"{type(error).__name__}: {str(error)[:200]}"
        if trouble:
            print(f"    {key}: {trouble}", flush=True)
        else:
            launches_by_key[key] = of_turn(calls, turns)
    ranking = ranked(launches_by_key, trials, launches, ahead=True) if launches_by_key else []
    for took, key in ranking:
        print(f"        {1e3 * took:8.1f} us  {key}", flush=True)
    return (ranking[0][1], launches_by_key[ranking[0][1]]) if ranking else None


def line(row: Row) -> str:
    """Return a row as text: rates, and each peer's time or rate relative to aotc's."""
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

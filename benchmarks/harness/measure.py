"""Measure workloads in this process, and tell of them by lines of JSON; see supervise.py."""

from __future__ import annotations

import json
import statistics
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from benchmarks.harness.bench import Bench, Choice
from benchmarks.harness.registry import selected
from benchmarks.harness.task import Task, survive, tell
from benchmarks.harness.workload import Workload
from benchmarks.peers import Clocks, ratio

_ROUND_SECONDS, _MIN_ROUNDS, _MAX_ROUNDS = 1.5, 21, 201


def row_of(
    workload: Workload, times: Mapping[str, list[float]], choices: Mapping[str, Choice]
) -> dict[str, Any]:
    """Return the row of results: aotc's figure, and ratios to peers by the median of rounds."""
    row: dict[str, Any] = {"work": workload.name, "unit": workload.unit, "figure": None}
    if "aotc" in times:
        row["figure"] = figure_of(workload, statistics.median(times["aotc"]))
        row["ratios"] = {
            peer: round(ratio(values, times["aotc"]) / share_of(workload, peer), 3)
            for peer, values in times.items()
            if peer != "aotc"
        }
    row["figures"] = {
        peer: figure_of(workload, statistics.median(values), share_of(workload, peer))
        for peer, values in times.items()
    }
    row["configs"] = {peer: choice.label for peer, choice in choices.items()}
    row["failed"] = {peer: choice.failed for peer, choice in choices.items() if choice.failed}
    return row


def share_of(workload: Workload, peer: str) -> float:
    """Return the share of the work that a peer does."""
    return workload.peers[peer].share if peer in workload.peers else 1.0


def figure_of(workload: Workload, milliseconds: float, share: float = 1.0) -> float:
    """Return a time in the workload's unit, with four digits."""
    rate = 1e3 * milliseconds
    if workload.unit != "µs":
        rate = workload.work * share / milliseconds / 1e9
    return float(f"{rate:.4g}")


def measure(workload: Workload, task: Task, library: Any) -> dict[str, Any]:
    """Choose each peer's best, run them in turn, and return the row."""
    bench = Bench(workload, task, library)
    choices = bench.choices()
    launches = {peer: choice.launch for peer, choice in choices.items()}
    if not launches:
        raise RuntimeError("no peer has a launch that is right")
    if not task.may_try(f"{workload.name}: in turn"):
        raise RuntimeError("the peers' best were lost in turn")
    slow = max(statistics.median(times) for times in bench.timed(launches, 3).values())
    rounds = int(1e3 * _ROUND_SECONDS / (slow * workload.launches * len(launches)))
    with Clocks() as clocks:
        times = bench.timed(launches, min(_MAX_ROUNDS, max(_MIN_ROUNDS, rounds)))
    return row_of(workload, times, choices) | {"clocks": clocks.median}


def run(task: Task) -> None:
    """Measure workloads one after the other."""
    import torch

    import aotc

    tell(note=f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    tell(card=torch.cuda.get_device_name())
    library = aotc.load(task.archive)
    for workload in selected(task.family, task.items, task.only):
        if workload.name in task.done or not task.may_try(f"{workload.name}: operands"):
            continue
        try:
            tell(row=measure(workload, task, library))
        except Exception:  # noqa: BLE001 - the other workloads can be measured all the same
            tell(note=traceback.format_exc())
            survive()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    run(Task(**json.load(sys.stdin)))

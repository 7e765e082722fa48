"""Compare two archives of benchmarks/hopper.toml, interleaved in one process.

    python benchmarks/two_archives.py before.aotc after.aotc [--work descriptors small …] [--json FILE]
    python benchmarks/two_archives.py before.aotc after.aotc --work descriptors --every

The effect of a change in the compiler shows only if both run in turn, on the same data and at
the same clocks. For every workload the fastest configurations of each archive are selected. Then
each of them runs from both archives, beside the library. `--every` runs all common
configurations: use it with few kernels of few configurations. A ratio above 1 means `after` is
faster.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import hopper_measure as measure
import torch
from hopper_work import ITEMS
from peers import in_turn

import aotc

ROUNDS = 151


def _best(work, calls, task) -> list[str]:
    """Return the keys of the best configurations of an archive."""
    choice = measure.choose("aotc", list(calls.items()), work, measure.MIN_CALLS, task)
    return [choice.key] if choice else []


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--work", nargs="+", default=["descriptors", "pointers", "small"])
    parser.add_argument("--seconds", type=float, default=5.0, help="of choosing, for each archive")
    parser.add_argument("--every", action="store_true", help="time what is not best, too")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    archives = {"before": aotc.load(options.before), "after": aotc.load(options.after)}
    task = measure.Task(
        *(options.work, str(options.after), options.seconds),
        triton=False, triton_cache="", graphs=True, pause_seconds=0.0, done=[], bad=[],
    )  # fmt: skip
    rows = []
    for item in options.work:
        for name, make in ITEMS[item].items():
            work = make()
            names = [n for n in work.kernels if all(n in label for label in archives.values())]
            work.kernels = tuple(names)
            measure.shared_by_parts(work, archives["after"])
            binds = {label: dict(measure.aotc_calls(work, archives[label])) for label in archives}
            keys = {key for calls in binds.values() for key in calls}
            if not options.every:
                keys = {key for label in archives for key in _best(work, binds[label], task)}
            for key in sorted(keys & binds["before"].keys() & binds["after"].keys()):
                makers = {label: calls[key] for label, calls in binds.items()}
                makers["library"] = measure.of_layers(work.library)
                launches = {
                    label: measure.graphed([bind(args) for args in work.sets], work.turns)
                    for label, bind in makers.items()
                }
                times = in_turn(launches, ROUNDS, 1, ahead=True)
                row = {"work": name, "config": key}
                row |= {f"{label}_us": 1e3 * statistics.median(times[label]) for label in times}
                row["after_over_before"] = measure.spread(times["before"], times["after"])
                row["after_over_library"] = measure.spread(times["library"], times["after"])
                rows.append(row)
                over = row["after_over_before"]
                print(
                    f"{name:24} before {row['before_us']:8.1f} us  after {row['after_us']:8.1f} us  "
                    f"ratio {over['median']:.3f} ({over['low']:.3f}-{over['high']:.3f})  "
                    f"over library {row['after_over_library']['median']:.3f}  {key}",
                    flush=True,
                )
            torch.cuda.empty_cache()
    if options.json:
        device = torch.cuda.get_device_name()
        options.json.write_text(json.dumps({"device": device, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Times of the backward kernels with heads of 256: alone, in a row, and in the pass.

    aotc build benchmarks/attention_backward.toml -o dist
    python benchmarks/attention_backward_parts.py dist/attention_backward.aotc [--full]

At its power limit a GPU slows down the longer it computes. So each kernel is timed alone after a
pause, many times in a row, and between events in consecutive passes. `nvidia-smi` reports the
clock meanwhile.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from attention_backward import (
    NUM_DOTS,
    STORED,
    TOLERANCE,
    WORK,
    ConfiguredLaunch,
    Tensors,
    cudnn_launch,
    launches_of,
    sums_of,
)
from peers import Launch, milliseconds, ranked

import aotc

IN_A_ROW = 40
PASSES = 20
REST_SECONDS = 0.3


def clock_and_power(launch: Launch, seconds: float) -> str:
    """Return the output of `nvidia-smi` while a launch repeats."""
    query = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader"]
    count = int(1000 * seconds / milliseconds(launch, 3)) + 1
    for _ in range(count):
        launch()
    process = subprocess.run(query, capture_output=True, text=True, check=False)
    torch.cuda.synchronize()
    return (process.stdout.splitlines() or ["no nvidia-smi"])[0]


def rested(launch: Launch) -> float:
    """Return the median milliseconds of a launch after a pause."""
    times: list[float] = []
    for _ in range(5):
        time.sleep(REST_SECONDS / 3)
        times.append(milliseconds(launch, 1, ahead=True))
    return statistics.median(times)


def within(parts: Sequence[Launch]) -> list[float]:
    """Return the median milliseconds of each part of a pass, of passes in a row."""
    marks = [
        [torch.cuda.Event(enable_timing=True) for _ in range(len(parts) + 1)] for _ in range(PASSES)
    ]
    for events in marks:
        for event, part in zip(events, parts, strict=False):
            event.record()
            part()
        events[-1].record()
    torch.cuda.synchronize()
    return [
        statistics.median(events[index].elapsed_time(events[index + 1]) for events in marks)
        for index in range(len(parts))
    ]


def error(tensors: Tensors, launch: Launch, grads: slice) -> float:
    """Return the error of a launch's gradients as a multiple of the tolerance."""
    for tensor in (*tensors.grads[grads], tensors.dscores):
        tensor.fill_(float("nan"))
    launch()
    errors = [
        ((grad[head].double() - exact).abs().max() / exact.abs().max()).nan_to_num(math.inf).item()
        for head, expected in zip(tensors.heads, tensors.expected, strict=True)
        for grad, exact in zip(tensors.grads[grads], expected[grads], strict=True)
    ]
    return max(errors) / TOLERANCE


def fastest(library: Any, name: str, tensors: Tensors, block_m: object = None) -> ConfiguredLaunch:
    """Return a kernel's fastest configuration, with BLOCK_M if given; print all."""
    launches = dict(launches_of(library, name, tensors))
    for label, launch in list(launches.items()):
        if block_m not in (None, launch.config["BLOCK_M"]):
            del launches[label]
        elif name.startswith("backward_pair"):
            wrong = error(tensors, launch.whole, slice(1, 3))
            print(f"  {wrong:.3g} of what is tolerated: {label}")
    order = ranked({label: launch.whole for label, launch in launches.items()}, 3, 3, ahead=True)
    for took, label in order:
        rate = NUM_DOTS[name] / 2 * tensors.shape.flops / took / 1e9
        print(f"  {rate:6.1f} TFLOP/s  {label}", flush=True)
    return launches[order[0][1]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--full", action="store_true")
    options = parser.parse_args()
    library = aotc.load(options.archive)
    shape = WORK["d256"][0 if options.full else 1]
    tensors = Tensors(shape)
    sums = sums_of(tensors, library)
    passes: dict[str, Launch] = {}
    for names in (("backward_pair", "backward_queries"), STORED[shape.dim]):
        pair = fastest(library, names[0], tensors)
        last = fastest(library, names[1], tensors, pair.config.get("BLOCK_Q"))
        parts: list[Launch] = [sums, pair.whole, last.whole]

        def whole(parts=parts) -> None:
            for part in parts:
                part()

        print(f"  {tensors.wrong(whole):.3g} of what is tolerated")
        in_pass = within(parts)
        print(f"{' '.join(names)}: rested, in a row, in the pass, ms; clock and power in a row")
        for name, part, took in zip(("sums", *names), parts, in_pass, strict=True):
            alone, row = rested(part), milliseconds(part, IN_A_ROW, ahead=True)
            clocks = clock_and_power(part, 0.4) if name != "sums" else ""
            print(f"  {name}: {alone:.4f} {row:.4f} {took:.4f}  {clocks}", flush=True)
        passes[" ".join(names)] = whole
    passes["cudnn"] = cudnn_launch(tensors)
    for name, launch in passes.items():
        alone, row = rested(launch), milliseconds(launch, PASSES, ahead=True)
        print(f"  {name}: {alone:.4f} {row:.4f}  {clock_and_power(launch, 0.4)}", flush=True)


if __name__ == "__main__":
    main()

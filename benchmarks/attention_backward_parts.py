"""What the kernels of a backward pass with heads of 256 take alone, in a row, and in the pass.

    aotc build benchmarks/attention_backward.toml -o dist
    python benchmarks/attention_backward_parts.py dist/attention_backward.aotc [--full]

A GPU at its limit of power is slower the longer it computes, so each kernel is timed alone after a pause, many
times in a row, and between events in passes in a row, with the clock that `nvidia-smi` tells meanwhile.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from attention import LOG2_E
from attention_backward import NUM_DOTS, TOLERANCE, WORK, Tensors, cudnn_launch
from peers import Launch, built, milliseconds, ranked

import aotc

IN_A_ROW = 40
PASSES = 20
REST_SECONDS = 0.3


def clock_and_power(launch: Launch, seconds: float) -> str:
    """Return what `nvidia-smi` says while a launch runs again and again."""
    query = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader"]
    count = int(1000 * seconds / milliseconds(launch, 3)) + 1
    for _ in range(count):
        launch()
    found = subprocess.run(query, capture_output=True, text=True, check=False)
    torch.cuda.synchronize()
    return (found.stdout.splitlines() or ["no nvidia-smi"])[0]


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
        statistics.median(events[at].elapsed_time(events[at + 1]) for events in marks)
        for at in range(len(parts))
    ]


def error(tensors: Tensors, launch: Launch, name: str) -> float:
    """Return the error of one kernel's gradients as a multiple of what is tolerated."""
    of_kernel = slice(0, 1) if name == "backward_queries" else slice(1, 3)
    for each in tensors.grads[of_kernel]:
        each.fill_(float("nan"))
    launch()
    errors = [
        ((grad[at].double() - exact).abs().max() / exact.abs().max()).nan_to_num(math.inf).item()
        for at, expected in zip(tensors.heads, tensors.expected, strict=True)
        for grad, exact in zip(tensors.grads[of_kernel], expected[of_kernel], strict=True)
    ]
    return max(errors) / TOLERANCE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--full", action="store_true")
    options = parser.parse_args()
    library = aotc.load(options.archive)
    shape = WORK["d256"][0 if options.full else 1]
    tensors = Tensors(shape)
    scale, num_rows = shape.dim**-0.5, tensors.q.numel() // shape.dim
    dq, dk, dv = map(tensors.rows_of, tensors.grads)
    inputs = (*map(tensors.rows_of, (tensors.q, tensors.k, tensors.v, tensors.dout)),)
    rows = (tensors.lse_log2, tensors.delta)
    scalars = (scale, scale * LOG2_E, 1, shape.length, shape.length)
    choices = {"HEAD_DIM": shape.dim, "CAUSAL": shape.causal}

    def sums() -> None:
        first = (tensors.out, tensors.dout, tensors.delta, None, num_rows)
        library["delta"].launch(first, choices={"HEAD_DIM": shape.dim})

    sums()
    parts: list[Launch] = [sums]
    overlapping: list[Launch] = [sums]
    flop: list[float] = [0.0]
    outputs = {"backward_pair": (dk, dv), "backward_queries": (dq,)}
    names = [each for each in library if each.startswith(tuple(outputs))]
    for name in sorted(names, key=lambda each: (each not in outputs, each)):
        kernel = library[name]
        base = "backward_queries" if "queries" in name else "backward_pair"
        arguments = (*inputs, *rows, *outputs[base], *scalars)
        launches: dict[str, Launch] = {}
        overlaps: dict[str, Launch] = {}
        for config in built(kernel, choices):
            label = f"{name} {config}"
            chosen = {"config": config, "choices": choices}
            launches[label] = partial(kernel.launch, arguments, **chosen)
            overlaps[label] = partial(kernel.launch, arguments, **chosen, pdl=True)
            print(f"  {error(tensors, launches[label], base):.3g} of what is tolerated: {label}")
        order = ranked(launches, 3, 3, ahead=True)
        work = NUM_DOTS[base] / 2 * shape.flops
        for took, label in order:
            print(f"  {work / took / 1e9:6.1f} TFLOP/s  {label}", flush=True)
        if name in outputs:
            parts.append(launches[order[0][1]])
            overlapping.append(overlaps[order[0][1]])
            flop.append(work)

    def whole() -> None:
        for part in parts:
            part()

    def overlapped() -> None:
        for part in overlapping:
            part()

    print(f"  {tensors.wrong(whole):.3g}, {tensors.wrong(overlapped):.3g} of what is tolerated")
    in_pass = within(parts)
    print("kernel: rested, in a row, in the pass, ms; clock and power in a row")
    for index, (part, work) in enumerate(zip(parts, flop, strict=True)):
        alone, row = rested(part), milliseconds(part, IN_A_ROW, ahead=True)
        rates = " ".join(f"{work / each / 1e9:6.1f}" for each in (alone, row, in_pass[index]))
        told = clock_and_power(part, 0.4) if index else ""
        print(f"  {index}: {alone:.4f} {row:.4f} {in_pass[index]:.4f}  {rates}  {told}", flush=True)
    peers: dict[str, Launch] = {"pass": whole, "PDL": overlapped, "cudnn": cudnn_launch(tensors)}
    for name, launch in peers.items():
        alone, row = rested(launch), milliseconds(launch, PASSES, ahead=True)
        print(f"  {name}: {alone:.4f} {row:.4f}  {clock_and_power(launch, 0.4)}", flush=True)


if __name__ == "__main__":
    main()

"""Measure workloads in this process and report by lines: the other half of benchmarks/hopper.py.

The task is JSON on the input. Every line of output is a JSON object: the candidate about to be
tried, so a hang or crash has a name; notes; and the finished row of each workload.

Each call is timed alone between two events, like the other peers' calls beside it. It is a CUDA
graph of one launch, queued while the GPU spins, so the host's time does not count. On demand it
is the host's own call, and an idle GPU's wait for it counts. Large products reach the GPU's
power limit, and clocks fall. They follow many calls, so peers in turn have the same clocks. A
pause before each call lets the clocks recover.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import hopper_triton
import torch
from hopper_work import ITEMS, Arguments, Work, layers_of
from peers import Clocks, Launch, built, in_turn, of_turn, ranked, ratio

import aotc

TRIAL_SECONDS = 4e-4
ASSUMED_FLOPS, ASSUMED_BYTES = 8e14, 4e12
MIN_CALLS, MAX_CALLS = 3, 11
TRIALS = 15
FINALISTS = 8
ROUND_SECONDS = 1.0
MIN_ROUNDS, MAX_ROUNDS = 31, 401
MAX_COUNTERS = 1 << 16
NUM_SMS = 132
BROKEN = 3
"""The exit code when the GPU's context is lost, and this process with it."""

Bind = Callable[[Arguments], Launch]
"""From arguments to a launch on them, with all that can be done ahead of it done."""


@dataclass
class Task:
    """Workloads to measure, without the `done` ones and without `bad` candidates.

    `seconds` are for tuning, of each peer and workload. Calls are replays of `graphs`, or as the host
    makes them; the GPU rests for `pause_seconds` before each.
    """

    items: list[str]
    archive: str
    seconds: float
    triton: bool
    triton_cache: str
    graphs: bool
    pause_seconds: float
    done: list[str]
    bad: list[str]

    def may_try(self, name: str) -> bool:
        """Report the try of `name` and return True, or False for a bad candidate."""
        if name in self.bad:
            return False
        tell(trying=name)
        return True


def tell(**line: object) -> None:
    """Write one line for the reader."""
    print(json.dumps(line), flush=True)


# ---- launches ---------------------------------------------------------------------------------


def graphed(calls: list[Launch], turns: Iterator[int]) -> Launch:
    """Return the same as `of_turn`, each call as a graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graphs: list[torch.cuda.CUDAGraph] = []
    with torch.cuda.stream(stream):
        calls[0]()  # set-up at a stream's first launch is no part of a graph
        for call in calls:
            graphs.append(torch.cuda.CUDAGraph())
            graphs[-1].capture_begin()
            try:
                call()
            finally:
                graphs[-1].capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return of_turn([graph.replay for graph in graphs], turns)


def problem(call: Launch, work: Work) -> str:
    """Return the error in a call's result on the first operands, if any."""
    first = work.sets[0]
    for layer in layers_of(first):
        layer[work.out].fill_(float("nan"))
        if "counter_ptr" in layer:
            layer["counter_ptr"].zero_()
    call()
    torch.cuda.synchronize()
    wrong = work.wrong(first[work.out])
    return "" if wrong <= 1.0 else f"wrong: {wrong:.3g} times what rounding explains"


def sensible(config: dict[str, Any], work: Work) -> bool:
    """Return whether a config is worth a try: blocks not far larger than the problem."""
    if "SPLIT_K" in config and "NUM_SMS" not in config:
        rows = min(256, max(16, 1 << (work.m - 1).bit_length()))
        tiles = -(-work.m // config["BLOCK_M"]) * -(-work.n // config["BLOCK_N"])
        fits = config["BLOCK_M"] in (rows, rows // 2 if rows > 64 else rows)
        return fits and (config["SPLIT_K"] == 1 or tiles * config["SPLIT_K"] <= 4 * NUM_SMS)
    return work.m > 64 or config.get("BLOCK_M", 0) <= 64


def workspace_elems(config: dict[str, Any], work: Work) -> int:
    """Return the number of fp32 partial sums of programs sharing tiles."""
    width = config.get("COLUMNS", config["BLOCK_N"])
    tiles = -(-work.m // config["BLOCK_M"]) * -(-work.n // width)
    split = tiles % config["NUM_SMS"] if "NUM_SMS" in config else tiles
    return split * config["BLOCK_M"] * width * config["SPLIT_K"]


def shared_by_parts(work: Work, library) -> None:
    """Give every set the workspace and counters of programs sharing tiles."""
    configs = [config for name in work.kernels for config in built(library[name])]
    configs += [config for name in work.triton for config in hopper_triton.CONFIGS[name]]
    configs = [config for config in configs if config.get("SPLIT_K", 1) > 1]
    sizes = [workspace_elems(config, work) for config in configs if sensible(config, work)]
    workspace = torch.empty(max(sizes, default=4), device="cuda")
    counters = torch.zeros(MAX_COUNTERS, device="cuda", dtype=torch.int32)
    for args in work.sets:
        for layer in layers_of(args):
            layer.update(workspace_ptr=workspace, counter_ptr=counters)


def of_layers(bind: Bind) -> Bind:
    """Return a function launching all layers of a set in order."""

    def bound(args: Arguments) -> Launch:
        launches = [bind(layer) for layer in layers_of(args)]

        def launch() -> None:
            for layer_launch in launches:
                layer_launch()

        return launches[0] if len(launches) == 1 else launch

    return bound


def aotc_calls(work: Work, library) -> Iterator[tuple[str, Bind]]:
    """Yield the archive's candidates for a workload."""
    for name in work.kernels:
        kernel = library[name]
        names = [param.name for param in kernel.info.params]
        for config in built(kernel):
            if not sensible(config, work):
                continue

            def bind(args: Arguments, kernel=kernel, config=config, names=names) -> Launch:
                passed = [args[name] for name in names]
                return partial(kernel.launch, passed, config=config, pdl=bool(config.get("PDL")))

            yield f"{name} {json.dumps(config)}", of_layers(bind)


def triton_calls(work: Work, task: Task) -> Iterator[tuple[str, Bind]]:
    """Yield Triton's candidates from the same sources, once all are compiled."""
    if not task.may_try(f"{work.name}: triton"):
        return
    started = time.monotonic()
    points = [
        (name, config)
        for name in work.triton
        for config in hopper_triton.CONFIGS[name]
        if sensible(config, work)
    ]
    for name, config, trouble in hopper_triton.compiled(
        points, layers_of(work.sets[0])[0], task.triton_cache
    ):
        key = f"{name} {json.dumps(config)}"
        if trouble:
            tell(note=f"Triton: {key}: {trouble}")
        else:
            yield key, of_layers(hopper_triton.launcher(name, config))
    tell(note=f"Triton took {time.monotonic() - started:.0f} s to compile")


# ---- choosing ---------------------------------------------------------------------------------


@dataclass
class Choice:
    """The fastest of a peer's candidates, and how many there were."""

    key: str
    launch: Launch
    tried: int
    failed: int
    left_out: int


def choose(
    peer: str,
    candidates: list[tuple[str, Bind]],
    work: Work,
    count: int,
    task: Task,
    yardstick: Choice | None = None,
) -> Choice | None:
    """Try every candidate `count` times within the time; rank the fastest ones in turn.

    Each is timed in turn with the yardstick, if there is one. A warming GPU would otherwise
    favour the first candidates.
    """
    finalists: list[tuple[float, str, Launch]] = []
    failed = tried = 0
    end = time.monotonic() + task.seconds
    for key, bind in candidates:
        name = f"{peer} {key}"
        if time.monotonic() > end or not task.may_try(name):
            continue
        tried += 1
        try:
            calls = [bind(args) for args in work.sets]
            if trouble := problem(calls[0], work):
                raise ValueError(trouble)  # noqa: TRY301 - told as every other
            launch = (graphed if task.graphs else of_turn)(calls, work.turns)
            pair = {"it": launch, "yardstick": yardstick.launch if yardstick else launch}
            times = in_turn(pair, count, 1, ahead=task.graphs)
            took = ratio(times["it"], times["yardstick"])
        except Exception as error:  # noqa: BLE001 - whatever it is, the next may work
            failed += 1
            tell(note=f"{work.name}: {name}: {type(error).__name__}: {str(error)[:200]}")
            survive()
            continue
        finalists = sorted([*finalists, (took, key, launch)], key=lambda finalist: finalist[0])[
            :FINALISTS
        ]
    if not finalists:
        return None
    launches = {key: launch for _, key, launch in finalists}
    ranking = ranked(launches, TRIALS, 1, task.pause_seconds, ahead=task.graphs)
    for took, key in ranking:
        tell(note=f"    {peer:7} {1e3 * took:8.1f} us  {key}")
    best = ranking[0][1]
    return Choice(best, launches[best], tried, failed, len(candidates) - tried)


def survive() -> None:
    """End this process if the GPU's context is lost: nothing more can be measured in it."""
    try:
        torch.cuda.synchronize()
        torch.zeros(1, device="cuda").item()
    except Exception:  # noqa: BLE001
        sys.exit(BROKEN)


# ---- rows -------------------------------------------------------------------------------------


def spread(of: list[float], to: list[float]) -> dict[str, float]:
    """Return median and deciles of the ratio of `of` to `to`, round by round."""
    ratios = [a / b for a, b in zip(of, to, strict=True)]
    deciles = statistics.quantiles(ratios, n=10)
    return {"median": statistics.median(ratios), "low": deciles[0], "high": deciles[-1]}


def measure(work: Work, library, task: Task) -> dict[str, Any]:
    """Choose each peer's best, run them in turn, and return the row."""
    shared_by_parts(work, library)
    estimate = max(work.flops / ASSUMED_FLOPS, work.nbytes / ASSUMED_BYTES)
    count = max(MIN_CALLS, min(MAX_CALLS, round(TRIAL_SECONDS / estimate + 0.5)))
    chosen: dict[str, Choice | None] = {}
    library_calls = [(work.name, of_layers(work.library))]
    chosen["library"] = choose("library", library_calls, work, count, task)
    yardstick = chosen["library"]
    ours = list(aotc_calls(work, library))
    chosen["aotc"] = choose("aotc", ours, work, count, task, yardstick)
    if task.triton and work.triton:
        calls = list(triton_calls(work, task))
        chosen["triton"] = choose("triton", calls, work, count, task, yardstick)
    peers = {name: choice for name, choice in chosen.items() if choice}
    rounds = round(ROUND_SECONDS / (estimate * max(1, len(peers))))
    rounds = max(MIN_ROUNDS, min(MAX_ROUNDS, rounds))
    if not task.may_try(f"{work.name}: in turn"):
        raise RuntimeError("the peers' best were lost in turn")
    with Clocks() as clocks:
        launches = {name: choice.launch for name, choice in peers.items()}
        times = in_turn(launches, rounds, 1, task.pause_seconds, ahead=task.graphs)
    row: dict[str, Any] = {"work": work.name, "m": work.m, "n": work.n, "k": work.k}
    row |= {"rounds": rounds, "sets": len(work.sets), "clocks": clocks.median}
    for name, choice in peers.items():
        took = statistics.median(times[name])
        row[name] = {
            "microseconds": 1e3 * took,
            "tflops": work.flops / took / 1e9,
            "terabytes_per_second": work.nbytes / took / 1e9,
            "config": choice.key,
            "tried": choice.tried,
            "failed": choice.failed,
            "left_out": choice.left_out,
        }
        if name != "aotc" and "aotc" in times:
            row[f"over_{name}"] = spread(times[name], times["aotc"])
    return row


def run(task: Task) -> None:
    """Measure workloads one after the other."""
    if unknown := [item for item in task.items if item not in ITEMS]:
        raise SystemExit(f"expected items of {', '.join(ITEMS)}; got {', '.join(unknown)}")
    torch.manual_seed(0)
    tell(note=f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    library = aotc.load(task.archive)
    for item in task.items or ITEMS:
        for name, make in ITEMS[item].items():
            if name in task.done or not task.may_try(f"{name}: operands"):
                continue
            try:
                tell(row=measure(make(), library, task))
            except Exception:  # noqa: BLE001 - the other workloads can be measured all the same
                tell(note=traceback.format_exc())
                survive()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    run(Task(**json.load(sys.stdin)))

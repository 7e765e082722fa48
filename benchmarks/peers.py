"""Timing, ranking and taking turns, shared by the harness and other benchmarks against peers.

A GPU's clocks move with its temperature and with the multiplied data. So two figures compare
only if taken in turn, in one process, on the same data. Ratios are therefore taken round by
round, between neighbouring launches, and only then summed up.
"""

from __future__ import annotations

import random
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

Launch = Callable[[], object]


# Some 500 us: the host's time for launches of several kernels, with tensor maps and choices, and
# for Triton's with sixty arguments. With 30 us, launches of 20 us measured the host instead.
_SPIN_CYCLES = 1_000_000
CLOCKS = {
    "sm_mhz": "clocks.sm",
    "memory_mhz": "clocks.mem",
    "watts": "power.draw",
    "celsius": "temperature.gpu",
}


def milliseconds(launch: Launch, launches: int, *, ahead: bool = False) -> float:
    """Return a launch's milliseconds on the GPU, over several in a row.

    An idle GPU waits for the host, and this counts. If the host is to be `ahead`, the GPU spins
    first while the launch is put into its queue.
    """
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    if ahead:
        torch.cuda._sleep(_SPIN_CYCLES)  # noqa: SLF001 - torch has no other name for it
    start.record()
    for _ in range(launches):
        launch()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / launches


class Clocks:
    """Sample the GPU's clocks and power while peers run; `median` is there afterwards."""

    def __enter__(self):
        self.median: dict[str, float] = {}
        self.process = None
        if shutil.which("nvidia-smi") is None:
            return self
        query = f"--query-gpu={','.join(CLOCKS.values())}"
        self.process = subprocess.Popen(
            ["nvidia-smi", *_this_gpu(), query, "--format=csv,noheader,nounits", "-lms", "100"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is None:
            return
        time.sleep(0.1)
        self.process.terminate()
        lines = [line.split(",") for line in self.process.communicate()[0].splitlines()]
        columns = zip(*(line for line in lines if len(line) == len(CLOCKS)), strict=True)
        self.median = {
            name: statistics.median(map(float, column))
            for name, column in zip(CLOCKS, columns, strict=False)
        }


def _this_gpu() -> list[str]:
    """Return the options restricting `nvidia-smi` to torch's GPU, where torch knows its UUID."""
    import torch

    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    return [] if uuid is None else ["-i", f"GPU-{uuid}"]


def of_turn(calls: Sequence[Launch], turns: Iterator[int]) -> Launch:
    """Return a launch of the calls in turn, each on its own operands.

    Peers sharing `turns`, with two calls or more, never hit the previous peer's data in the L2.
    """

    def launch() -> None:
        calls[next(turns) % len(calls)]()

    return launch


def in_turn(
    peers: Mapping[str, Launch],
    rounds: int,
    launches: int,
    pause_seconds: float = 0.0,
    *,
    ahead: bool = False,
) -> dict[str, list[float]]:
    """Return the milliseconds of each peer, round by round; the GPU rests before each.

    Rounds are in random order. The previous launch decides how hot a GPU at its power limit is,
    so no peer should always follow the same one. The seed is fixed.
    """
    times: dict[str, list[float]] = {name: [] for name in peers}
    order, dice = list(peers), random.Random(len(peers))
    for _ in range(rounds):
        for name in order:
            time.sleep(pause_seconds)
            times[name].append(milliseconds(peers[name], launches, ahead=ahead))
        dice.shuffle(order)
    return times


def ranked(
    candidates: Mapping[str, Launch],
    trials: int,
    launches: int,
    pause_seconds: float = 0.0,
    *,
    ahead: bool = False,
) -> list[tuple[float, str]]:
    """Return median milliseconds and names, the fastest first, of candidates timed in turn."""
    times = in_turn(candidates, trials, launches, pause_seconds, ahead=ahead)
    return sorted((statistics.median(values), name) for name, values in times.items())


def ratio(of: Iterable[float], to: Iterable[float]) -> float:
    """Return the median ratio of `of` to `to`, round by round."""
    return statistics.median(a / b for a, b in zip(of, to, strict=True))


def spread(of: Sequence[float], to: Sequence[float]) -> dict[str, float]:
    """Return median and deciles of the ratio of `of` to `to`, round by round."""
    ratios = [a / b for a, b in zip(of, to, strict=True)]
    deciles = statistics.quantiles(ratios, n=10)
    return {"median": statistics.median(ratios), "low": deciles[0], "high": deciles[-1]}


def built(kernel: Any, choices: Mapping[str, object] | None = None) -> list[dict[str, object]]:
    """Return the archive's configs, for the kernel's own among `choices`: not all fit the target."""
    own = {name: value for name, value in (choices or {}).items() if name in kernel.info.choices}
    existing = [
        dict(variant.config)
        for variant in kernel.info.variants
        if all(variant.choices[name] == value for name, value in own.items())
    ]
    return [config for config in map(dict, kernel.info.configs) if config in existing]

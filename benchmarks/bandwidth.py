"""Bandwidth of the memory-bound kernels against Triton and a copy, interleaved in one process.

    aotc build kernels.toml -o dist --target sm_90a
    python benchmarks/bandwidth.py dist/kernels.aotc [--json FILE]

Both compile the same source files. Each peer first picks its fastest configuration for the
shape: aotc from the archive, Triton from a superset of its blocks and warp counts. "capped" is
Triton with register caps tried as well. Then the fastest ones run in turn, ROUNDS times, and the
medians are compared. Data are random and fresh for each shape. Every working set is larger than
the L2, and each launch takes the next of several buffer sets.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import triton

import aotc

ROOT = Path(__file__).parents[1]
ROUNDS = 61
TRIALS = 15
LAUNCHES = 8
SETS = 3

TUNED = ("num_warps", "maxnreg")
CAPS = {"triton": (None,), "capped": (None, 64, 80, 96, 128)}

Launch = Callable[[int], None]


def source(name: str):
    """Import a module of kernels/ as Triton's users do."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "kernels" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def timed(launch: Launch, first: int) -> float:
    """Return the microseconds a launch takes, over LAUNCHES in a row."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for number in range(LAUNCHES):
        launch((first + number) % SETS)
    end.record()
    end.synchronize()
    return 1e3 * start.elapsed_time(end) / LAUNCHES


def best(candidates: dict[str, Launch]) -> tuple[str, Launch]:
    """Return the fastest candidate by the median of timings taken in turn."""
    scores: dict[str, list[float]] = {name: [] for name in candidates}
    for launch in candidates.values():
        launch(0)
    for number in range(TRIALS):
        for name, launch in candidates.items():
            scores[name].append(timed(launch, number))
    name = min(scores, key=lambda name: statistics.median(scores[name]))
    return name, candidates[name]


def in_turn(peers: dict[str, Launch]) -> dict[str, list[float]]:
    """Return the microseconds of each peer, round by round."""
    times: dict[str, list[float]] = {name: [] for name in peers}
    for number in range(ROUNDS):
        for name, launch in peers.items():
            times[name].append(timed(launch, number))
    return times


class Work:
    """One workload: its buffers, its bytes, and the launches of each peer."""

    def __init__(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.name, self.shape, self.dtype = name, shape, dtype
        self.sets = [self.buffers() for _ in range(SETS)]

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.float32).to(self.dtype)

    def buffers(self) -> list[object]:
        raise NotImplementedError

    def bytes_moved(self) -> int:
        raise NotImplementedError

    def triton_grid(self, config: dict[str, int]) -> tuple[int, ...]:
        raise NotImplementedError


class Add(Work):
    kernel, module, function = "vector_add", "elementwise", "vector_add_kernel"

    def buffers(self) -> list[object]:
        (n,) = self.shape
        return [self.random(n), self.random(n), torch.empty(n, device="cuda", dtype=self.dtype), n]

    def bytes_moved(self) -> int:
        return 3 * self.shape[0] * self.dtype.itemsize

    def triton_grid(self, config: dict[str, int]) -> tuple[int, ...]:
        return (triton.cdiv(self.shape[0], config["BLOCK"]),)


class SiluMul(Work):
    kernel, module, function = "silu_mul", "elementwise", "silu_mul_kernel"

    def buffers(self) -> list[object]:
        m, n = self.shape
        out = torch.empty(m, n, device="cuda", dtype=self.dtype)
        return [self.random(m, 2 * n), out, 2 * n, m, n]

    def bytes_moved(self) -> int:
        return 3 * self.shape[0] * self.shape[1] * self.dtype.itemsize

    def triton_grid(self, config: dict[str, int]) -> tuple[int, ...]:
        return (self.shape[0], triton.cdiv(self.shape[1], config["BLOCK"]))


class Rows(Work):
    def bytes_moved(self) -> int:
        return 2 * self.shape[0] * self.shape[1] * self.dtype.itemsize

    def triton_grid(self, config: dict[str, int]) -> tuple[int, ...]:
        del config
        return (self.shape[0],)


class Softmax(Rows):
    kernel, module, function = "softmax", "softmax", "softmax_kernel"

    def buffers(self) -> list[object]:
        m, n = self.shape
        return [self.random(m, n), torch.empty(m, n, device="cuda", dtype=self.dtype), n, m, n]


class RmsNorm(Rows):
    kernel, module, function = "rmsnorm", "norm", "rmsnorm_kernel"

    def buffers(self) -> list[object]:
        m, n = self.shape
        out = torch.empty(m, n, device="cuda", dtype=self.dtype)
        return [self.random(m, n), self.random(n), out, n, m, n, 1e-6]


WORK = [
    (Add, (1 << 27,), torch.float32),
    (Add, (1 << 28,), torch.bfloat16),
    (SiluMul, (16384, 8192), torch.bfloat16),
    (Softmax, (16384, 4096), torch.bfloat16),
    (Softmax, (8192, 16384), torch.bfloat16),
    (RmsNorm, (16384, 4096), torch.bfloat16),
    (RmsNorm, (8192, 16384), torch.bfloat16),
]


def serves(work: Work, config: dict[str, object]) -> bool:
    """Return whether a config fits: without a loop, the block must hold a row."""
    return config.get("LOOP") is not False or config["BLOCK"] >= work.shape[-1]


def aotc_launches(library, work: Work) -> dict[str, Launch]:
    kernel = library[work.kernel]
    launches = {}
    for config in kernel.info.configs:
        if serves(work, dict(config)):
            launches[str(config)] = lambda number, config=config: kernel.launch(
                tuple(work.sets[number]), config=config
            )
    return launches


def triton_launches(work: Work, configs: list[dict[str, object]]) -> dict[str, Launch]:
    function = getattr(source(work.module), work.function)
    launches = {}
    for config in configs:
        grid = work.triton_grid(config)
        launches[str(config)] = lambda number, config=config, grid=grid: function[grid](
            *work.sets[number], **config
        )
    return launches


def triton_configs(kernel, work: Work, caps: tuple[int | None, ...]) -> list[dict[str, object]]:
    """Return the archive's blocks with every warp count and each cap on registers."""
    shared = dict(kernel.info.constants)
    configs = []
    for config, warps, cap in itertools.product(kernel.info.configs, (2, 4, 8, 16, 32), caps):
        base = {name: value for name, value in config.items() if name not in TUNED}
        configs.append(shared | base | {"num_warps": warps} | ({"maxnreg": cap} if cap else {}))
    distinct = {str(config): config for config in configs if serves(work, config)}
    return list(distinct.values())


def measure(library, work: Work) -> dict[str, object]:
    peers = {}
    chosen = {}
    chosen["aotc"], peers["aotc"] = best(aotc_launches(library, work))
    kernel = library[work.kernel]
    for peer, caps in CAPS.items():
        configs = triton_configs(kernel, work, caps)
        chosen[peer], peers[peer] = best(triton_launches(work, configs))
    flat = [
        torch.empty(work.bytes_moved() // 2, dtype=torch.uint8, device="cuda") for _ in range(2)
    ]
    peers["copy"] = lambda number: flat[1].copy_(flat[0])
    agree(work, peers)
    times = in_turn(peers)
    median = {name: statistics.median(values) for name, values in times.items()}
    ratios = {
        peer: statistics.median(t / a for t, a in zip(times[peer], times["aotc"], strict=True))
        for peer in CAPS
    }
    return {
        "work": f"{work.name} {'x'.join(map(str, work.shape))} {str(work.dtype)[6:]}",
        **{f"{name}_tb_s": work.bytes_moved() / median[name] / 1e6 for name in peers},
        **{f"over_{peer}": ratio for peer, ratio in ratios.items()},
        **{f"{peer}_config": config for peer, config in chosen.items()},
    }


def agree(work: Work, peers: dict[str, Launch]) -> None:
    """Check the peers against each other before anything is compared."""
    # The output is the last tensor among the arguments of every kernel here.
    out = [buffer for buffer in work.sets[0] if isinstance(buffer, torch.Tensor)][-1]
    results = []
    for name in ("aotc", *CAPS):
        out.fill_(float("nan"))
        peers[name](0)
        results.append(out.clone())
    for other in results[1:]:
        torch.testing.assert_close(results[0], other, rtol=2e-2, atol=1e-5)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    library = aotc.load(options.archive)
    rows = []
    print(f"{torch.cuda.get_device_name()}, Triton {triton.__version__}, torch {torch.__version__}")
    print(f"{'TB/s':30} {'aotc':>7} {'Triton':>7} {'capped':>7} {'copy':>7}   over Triton, capped")
    for kind, shape, dtype in WORK:
        row = measure(library, kind(kind.kernel, shape, dtype))
        rows.append(row)
        rates = " ".join(f"{row[f'{peer}_tb_s']:7.3f}" for peer in ("aotc", *CAPS, "copy"))
        print(f"{row['work']:30} {rates}   {row['over_triton']:.3f} {row['over_capped']:.3f}")
        for peer in ("aotc", *CAPS):
            print(f"    {peer:7} {row[f'{peer}_config']}", flush=True)
        torch.cuda.empty_cache()
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

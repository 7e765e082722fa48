"""Time every config of the plain kernels on a GPU, for many shapes: the baseline of tuning.

    python benchmarks/tuning/exhaustive.py tuning.aotc times.json [--seconds 1.0]

Configs of a shape are launched in turn, in a random order each round, each with a flushed L2.
The JSON is a list of kernels with their configs, and for each shape the median times.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import aotc
from aotc.runtime import AotcError

sys.path.insert(0, str(Path(__file__).parents[1]))
from llm_shapes import SHAPES

L2_BYTES = 1 << 27
ROW_ELEMS = 1 << 26
MIN_ROUNDS, MAX_ROUNDS = 5, 41
SLEEP_CYCLES = 150_000  # some 80 us for a launch

Arguments = dict[str, Any]


def random_tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)


def matmuls() -> Iterator[tuple[Arguments, dict[str, Any]]]:
    for shape in SHAPES:
        a, b = random_tensor(shape.m, shape.k), random_tensor(shape.n, shape.k)
        c = torch.empty(shape.m, shape.n, device="cuda", dtype=torch.bfloat16)
        sizes = {"M": shape.m, "N": shape.n, "K": shape.k}
        strides = {"stride_am": shape.k, "stride_bn": shape.k, "stride_cm": shape.n}
        yield {"a_ptr": a, "b_ptr": b, "c_ptr": c, **sizes, **strides}, {}


def attentions() -> Iterator[tuple[Arguments, dict[str, Any]]]:
    for head in (64, 128):
        for causal in (False, True):
            for seq_len, num_heads in (
                (512, 256),
                (1024, 128),
                (2048, 64),
                (4096, 64),
                (8192, 32),
                (2048, 8),
            ):
                q, k, v = (random_tensor(num_heads, seq_len, head) for _ in range(3))
                sizes = {"num_heads": num_heads, "seq_len": seq_len, "scale": head**-0.5}
                tensors = {"q_ptr": q, "k_ptr": k, "v_ptr": v, "out_ptr": torch.empty_like(q)}
                yield {**tensors, **sizes}, {"HEAD": head, "CAUSAL": causal}


def decodes() -> Iterator[tuple[Arguments, dict[str, Any]]]:
    for num_heads in (8, 64, 512):
        for seq_len in (1024, 4096, 16384, 65536):
            if num_heads * seq_len > 1 << 24:
                continue
            q = random_tensor(num_heads, 16, 128)
            k, v = (random_tensor(num_heads, seq_len, 128) for _ in range(2))
            part = torch.empty(num_heads, 16, 16, 128, device="cuda")
            lse = torch.empty(num_heads, 16, 16, device="cuda")
            tensors = {"q_ptr": q, "k_ptr": k, "v_ptr": v, "part_ptr": part, "lse_ptr": lse}
            yield {**tensors, "num_heads": num_heads, "seq_len": seq_len, "scale": 128**-0.5}, {}


def experts() -> Iterator[tuple[Arguments, dict[str, Any]]]:
    for num_experts, n, k in ((8, 14336, 4096), (64, 2816, 2048), (128, 1536, 2048)):
        for rows in (16, 64, 256, 1024):
            x, w = random_tensor(num_experts, rows, k), random_tensor(num_experts, n, k)
            out = torch.empty(num_experts, rows, n, device="cuda", dtype=torch.bfloat16)
            counts = torch.randint(
                rows // 4, rows + 1, (num_experts,), device="cuda", dtype=torch.int32
            )
            sizes = {"num_experts": num_experts, "rows_per_expert": rows, "N": n, "K": k}
            yield {"x_ptr": x, "w_ptr": w, "out_ptr": out, "count_ptr": counts, **sizes}, {}


def rows(names: tuple[str, ...]) -> Iterator[tuple[Arguments, dict[str, Any]]]:
    for n_cols in [256 << i for i in range(11)]:
        n_rows = ROW_ELEMS // n_cols
        x = random_tensor(n_rows, n_cols)
        weights = {name: random_tensor(n_cols) for name in names}
        sizes = {"n_rows": n_rows, "n_cols": n_cols, **({"eps": 1e-6} if names else {})}
        yield {"x_ptr": x, **weights, "out_ptr": torch.empty_like(x), **sizes}, {}


WORKS = {
    "matmul": (matmuls, "c_ptr"),
    "attention": (attentions, "out_ptr"),
    "decode": (decodes, None),
    "expert_matmul": (experts, None),
    "softmax": (lambda: rows(()), "out_ptr"),
    "rms_norm": (lambda: rows(("w_ptr",)), "out_ptr"),
    "layer_norm": (lambda: rows(("w_ptr", "b_ptr")), "out_ptr"),
}


class Timer:
    """Times of launches in turn, each with a cold L2."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._flush = torch.empty(L2_BYTES, device="cuda", dtype=torch.int8)
        self._random = random.Random(1)

    def medians(self, launches: dict[int, Any]) -> dict[int, float]:
        events = lambda: torch.cuda.Event(enable_timing=True)  # noqa: E731
        times: dict[int, list[float]] = {index: [] for index in launches}
        started = time.monotonic()
        for count in range(MAX_ROUNDS):
            if count >= MIN_ROUNDS and time.monotonic() - started > self._seconds:
                break
            order = list(launches)
            self._random.shuffle(order)
            pairs = []
            torch.cuda._sleep(SLEEP_CYCLES * len(order))  # noqa: SLF001 - so that no launch waits for the CPU
            for index in order:
                start, end = events(), events()
                self._flush.zero_()
                start.record()
                launches[index]()
                end.record()
                pairs.append((index, start, end))
            torch.cuda.synchronize()
            for index, start, end in pairs:
                times[index].append(start.elapsed_time(end) * 1e-3)
        return {index: statistics.median(values[1:]) for index, values in times.items()}


def measured(kernel: Any, work: Any, timer: Timer) -> list[dict[str, Any]]:
    make, out = work
    configs = kernel.info.configs
    names = [param.name for param in kernel.info.params]
    measurements = []
    for args, choices in make():
        passed = [args[name] for name in names]
        launches: dict[int, Any] = {}
        reference = None
        wrong = []
        for index, config in enumerate(configs):
            launch = lambda config=config: kernel.launch(passed, config=config, choices=choices)  # noqa: B023, E731
            try:
                launch()
            except AotcError:
                continue  # its guards do not hold, or it was left out
            torch.cuda.synchronize()
            if out is not None:
                sample = args[out].flatten()[: 1 << 20].float()
                reference = sample.clone() if reference is None else reference
                if not torch.allclose(sample, reference, rtol=2e-2, atol=2e-1):
                    wrong.append(index)
            launches[index] = launch
        medians = timer.medians(launches)
        key = {name: args[name] for name in names if isinstance(args[name], int)}
        seconds = [medians.get(index) for index in range(len(configs))]
        measurements.append({"key": key, "choices": choices, "seconds": seconds, "wrong": wrong})
        torch.cuda.empty_cache()
    return measurements


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive")
    parser.add_argument("output", type=Path)
    parser.add_argument("--seconds", type=float, default=1.0, help="of measuring, for a shape")
    parser.add_argument("--kernels", nargs="*", default=list(WORKS))
    options = parser.parse_args()
    library = aotc.load(options.archive)
    timer = Timer(options.seconds)
    results = []
    for name in options.kernels:
        started = time.monotonic()
        kernel = library[name]
        measurements = measured(kernel, WORKS[name], timer)
        results.append(
            {
                "kernel": name,
                "target": "sm_90a",
                "gpu": torch.cuda.get_device_name(),
                "configs": [dict(config) for config in kernel.info.configs],
                "measurements": measurements,
            }
        )
        num_wrong = sum(len(measurement["wrong"]) for measurement in measurements)
        print(
            f"{name}: {len(measurements)} shapes, {num_wrong} wrong, {time.monotonic() - started:.0f} s"
        )
        options.output.write_text(json.dumps(results))


if __name__ == "__main__":
    main()

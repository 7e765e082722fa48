"""Gain of bulk copies of rows over loads and stores by threads, in one kernel.

    aotc build benchmarks/bulk_rows.toml -o dist
    python benchmarks/bulk_rows.py dist/bulk_rows.aotc [--json FILE]

One source, `bulk_rows_kernel.py`, is built in three ways: threads load and store; a warp loads
by bulk copies and threads store; or both go by bulk copies. Each build, and Triton on the same
source, picks its fastest configuration first. The number of programs is part of it: one for each
row, or one to four for each SM. Then the fastest ones run in turn. A ratio above 1 means faster
than threads.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import statistics
import sys
from pathlib import Path

import torch
import triton
from bandwidth import SETS, Launch, best, in_turn

import aotc

SHAPES = ((16384, 4096), (8192, 16384), (1024, 131072))
WAYS = ("threads", "bulk_loads", "bulk_loads_and_stores")


def buffers(rows: int, columns: int) -> list[object]:
    """Return the arguments of a launch: bf16 rows, where they go to, their scales, stride and shape."""
    x = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
    scales = torch.rand(rows, device="cuda") + 0.5
    return [x, torch.empty_like(x), scales, columns, rows, columns]


def aotc_launches(kernel, sets: list[list[object]]) -> dict[str, Launch]:
    return {
        str(config): lambda number, config=config: kernel.launch(tuple(sets[number]), config=config)
        for config in kernel.info.configs
    }


def triton_launches(threads, sets: list[list[object]]) -> dict[str, Launch]:
    """Return launches of the threads' configurations, pipelined as well."""
    function = importlib.import_module("bulk_rows_kernel").scale_rows_kernel
    rows = sets[0][4]
    launches = {}
    for config, stages in itertools.product(threads.info.configs, (1, 4)):
        choices = dict(config) | {"STAGES": stages}
        grid = (min(rows, choices["PROGRAMS"]),)
        launches[str(choices)] = lambda number, choices=choices, grid=grid: function[grid](
            *sets[number], **choices
        )
    return launches


def check(name: str, launch: Launch, arguments: list[object]) -> None:
    """Check a launch against the product in fp64, over a poisoned output."""
    x, out, scales = arguments[:3]
    out.fill_(float("nan"))
    launch(0)
    for part in range(0, x.shape[0], 1024):
        part_rows = slice(part, part + 1024)
        expected = (x[part_rows].double() * scales[part_rows, None].double()).to(x.dtype)
        if not torch.allclose(out[part_rows].float(), expected.float(), rtol=2**-7, atol=0.0):
            message = f"{name}: wrong result"
            raise SystemExit(message)


def measure(library, rows: int, columns: int) -> dict[str, object]:
    sets = [buffers(rows, columns) for _ in range(SETS)]
    peers, chosen = {}, {}
    for way in WAYS:
        chosen[way], peers[way] = best(aotc_launches(library[way], sets))
    chosen["triton"], peers["triton"] = best(triton_launches(library["threads"], sets))
    for name, launch in peers.items():
        check(name, launch, sets[0])
    peers["copy"] = lambda number: sets[number][1].copy_(sets[number][0])
    times = in_turn(peers)
    num_bytes = 2 * rows * columns * 2
    return {
        "shape": f"{rows}x{columns}",
        "tb_s": {
            name: num_bytes / statistics.median(samples) / 1e6 for name, samples in times.items()
        },
        "over_threads": {
            name: statistics.median(t / o for t, o in zip(times["threads"], samples, strict=True))
            for name, samples in times.items()
        },
        "configs": chosen,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    library = aotc.load(options.archive)
    print(f"{torch.cuda.get_device_name()}, Triton {triton.__version__}, torch {torch.__version__}")
    results = []
    for rows, columns in SHAPES:
        row = measure(library, rows, columns)
        results.append(row)
        print(row["shape"])
        for name, rate in row["tb_s"].items():
            ratio, config = row["over_threads"][name], row["configs"].get(name, "")
            print(f"    {name:22} {rate:6.3f} TB/s  {ratio:.3f}  {config}", flush=True)
        torch.cuda.empty_cache()
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Transposes of large matrices of 8, 16 and 32-bit elements against Triton, torch and a copy.

    aotc build benchmarks/transpose.toml -o dist
    python benchmarks/transpose.py dist/transpose.aotc [--no-triton] [--json FILE]

aotc and Triton compile the same source of kernels/. Every configuration is checked against torch
before it is timed. The fastest of each, torch's own and a copy of as many bytes run in turn on
matrices larger than the L2; ratios are medians of rounds.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from peers import Launch, built, in_turn, of_turn, ranked, ratio

ROOT = Path(__file__).parents[1]
BYTES = 1 << 28
COLUMNS = 8192
SETS = 2
ROUNDS, TRIALS, LAUNCHES = 41, 7, 3
DTYPES = ("int8", "bfloat16", "float32")


def operands(dtype: Any) -> list[Any]:
    """Return a random matrix, room for its transpose, and the numbers of a launch."""
    import torch

    rows = BYTES // dtype.itemsize // COLUMNS
    x = torch.randint(-99, 99, (rows, COLUMNS), device="cuda").to(dtype)
    out = torch.empty(COLUMNS, rows, device="cuda", dtype=dtype)
    return [x, out, COLUMNS, rows, rows, COLUMNS]


def best(
    candidates: Iterator[tuple[str, Callable[[list[Any]], Launch]]], sets: list[list[Any]]
) -> tuple[str, Launch] | None:
    """Return the fastest of the correct candidates."""
    turns, launches_by_key = itertools.count(), dict[str, Launch]()
    x, out = sets[0][:2]
    for key, bind in candidates:
        calls = [bind(args) for args in sets]
        out.zero_()
        calls[0]()
        if (out == x.t()).all():
            launches_by_key[key] = of_turn(calls, turns)
        else:
            print(f"    {key}: wrong", flush=True)
    ranking = ranked(launches_by_key, TRIALS, LAUNCHES, ahead=True) if launches_by_key else []
    for took, key in ranking[:4]:
        print(f"        {1e3 * took:8.1f} us  {key}", flush=True)
    return (ranking[0][1], launches_by_key[ranking[0][1]]) if ranking else None


def aotc_candidates(kernel: Any) -> Iterator[tuple[str, Callable[[list[Any]], Launch]]]:
    """Yield the archive's launches."""
    for config in built(kernel):
        yield (
            json.dumps(config),
            lambda args, config=config: lambda: kernel.launch(tuple(args), config=config),
        )


def triton_candidates(kernel: Any) -> Iterator[tuple[str, Callable[[list[Any]], Launch]]]:
    """Yield Triton's launches of the same source, with the archive's configs."""
    path = ROOT / "kernels" / "transpose.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = module.transpose2d_kernel

    def bind(config: dict[str, Any], args: list[Any]) -> Launch:
        rows, columns = args[4:]
        grid = (-(-rows // config["BLOCK_M"]), -(-columns // config["BLOCK_N"]))
        return lambda: function[grid](*args, **config)

    for config in built(kernel):
        yield json.dumps(config), lambda args, config=config: bind(config, args)


def measure(library: Any, name: str, *, has_triton: bool) -> dict[str, Any]:
    """Choose each peer's best, run them in turn, and return the row."""
    import torch

    dtype, kernel = getattr(torch, name), library["transpose2d"]
    sets = [operands(dtype) for _ in range(SETS)]
    print(name, flush=True)
    chosen = {"aotc": best(aotc_candidates(kernel), sets)}
    if has_triton:
        chosen["triton"] = best(triton_candidates(kernel), sets)
    fastest_of = {peer: choice for peer, choice in chosen.items() if choice}
    turns = itertools.count()
    peers = {peer: launch for peer, (_, launch) in fastest_of.items()}
    peers["torch"] = of_turn([lambda e=args: e[1].copy_(e[0].t()) for args in sets], turns)
    flat = [[args[0].view(-1), args[1].view(-1)] for args in sets]
    peers["copy"] = of_turn([lambda e=args: e[1].copy_(e[0]) for args in flat], turns)
    times = in_turn(peers, ROUNDS, LAUNCHES, ahead=True)
    return {
        "work": name,
        "tb_s": {p: 2 * BYTES / statistics.median(samples) / 1e9 for p, samples in times.items()},
        "over": {p: ratio(samples, times["aotc"]) for p, samples in times.items() if p != "aotc"},
        "configs": {peer: key for peer, (key, _) in fastest_of.items()},
    }


def main() -> int:
    """Measure the requested work."""
    import torch

    import aotc

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--no-triton", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    library = aotc.load(options.archive)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    rows = [measure(library, name, has_triton=not options.no_triton) for name in DTYPES]
    for row in rows:
        rates = "  ".join(f"{peer} {rate:.3f}" for peer, rate in row["tb_s"].items())
        over = "  ".join(f"{peer} {times:.3f}" for peer, times in row["over"].items())
        print(f"{row['work']:10} TB/s: {rates}   times of aotc's: {over}   {row['configs']}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

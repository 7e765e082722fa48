"""Rows of 1k to 256k columns, each by a cluster of 1 to 8 CTAs, against a copy, Triton and torch.

    aotc build benchmarks/long_rows.toml -o dist
    python benchmarks/long_rows.py dist/long_rows.aotc [--work softmax …] [--columns 4096 …] [--json FILE]

aotc and Triton compile the same sources of kernels/, one program instance for each row. Triton has
one CTA for a row, and 4 to 32 warps. Every configuration is held against float64 on some rows
before it is timed, over a poisoned result. The best of each, a copy of as many bytes and torch's own function run
in turn, on bf16 operands that the L2 does not hold; ratios are medians of rounds.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers import Launch, built, in_turn, of_turn, ranked, ratio

ROOT = Path(__file__).parents[1]
ELEMENTS = 1 << 27
SETS = 2
ROUNDS, TRIALS, LAUNCHES = 41, 7, 3
COLUMNS = (1024, 4096, 16384, 32768, 65536, 131072, 262144)
EPS = 1e-6
# Elements that a thread of fewer than 32 warps holds under Triton; more of them spill and compile for minutes.
MAX_HELD = 128
LOOP_BLOCKS = (4096, 8192, 16384)

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Work:
    """A kernel, where its source is, and the vectors of weights and statistics that it takes.

    Arguments are rows, weights, the result, statistics, and numbers.
    """

    file: str
    weights: int = 0
    statistics: int = 0
    has_loop: bool = True

    def arguments(self, rows: int, columns: int) -> list[Any]:
        """Return random operands, and room for results."""
        import torch

        def random(*shape: int) -> Any:
            return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

        x = random(rows, columns)
        weights = [random(columns) for _ in range(self.weights)]
        found = [torch.empty(rows, device="cuda") for _ in range(self.statistics)]
        eps = [EPS] if self.weights else []
        return [x, *weights, torch.empty_like(x), *found, columns, rows, columns, *eps]

    def weights_of(self, arguments: list[Any]) -> list[Any]:
        """Return what stands between rows and the result."""
        return arguments[1 : 1 + self.weights]

    def out(self, arguments: list[Any]) -> Any:
        """Return the result among the arguments."""
        return arguments[1 + self.weights]


@dataclass(frozen=True)
class Gradient(Work):
    """Cross-entropy and its gradient: targets stand in the place of weights, one of each row."""

    def arguments(self, rows: int, columns: int) -> list[Any]:
        """Return random logits and targets; the loss is the mean over rows."""
        import torch

        x = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
        target = torch.randint(columns, (rows,), device="cuda")
        found = [torch.empty(rows, device="cuda") for _ in range(self.statistics)]
        return [x, target, torch.empty_like(x), *found, columns, rows, columns, -100, 1 / rows]


WORK = {
    "softmax": Work("softmax.py"),
    "rmsnorm": Work("norm.py", weights=1),
    "layernorm": Work("norm.py", weights=2, statistics=2),
    "cross_entropy_grad": Gradient("softmax.py", weights=1, statistics=2, has_loop=False),
}


def by_torch(name: str, x: Any, weights: list[Any]) -> Any:
    """Return what torch's own function makes of rows, of any dtype."""
    from torch.nn import functional

    if name == "softmax":
        return functional.softmax(x, -1)
    if name == "cross_entropy_grad":
        import torch

        logits = x.detach().requires_grad_()
        return torch.autograd.grad(functional.cross_entropy(logits, *weights), logits)[0]
    normalize = functional.rms_norm if name == "rmsnorm" else functional.layer_norm
    return normalize(x, x.shape[-1:], *weights, eps=EPS)


def serves(config: Config, columns: int) -> bool:
    """Return whether a config is one for rows of a length: a block that is held is all of it."""
    return config["BLOCK"] < columns if config.get("LOOP") else config["BLOCK"] == columns


def triton_configs(columns: int, *, has_loop: bool = True) -> Iterator[Config]:
    """Yield configs with one block for a row that threads can hold, and with loops over it."""
    choice = {"LOOP": False} if has_loop else {}
    for warps in (4, 8, 16, 32):
        if warps == 32 or columns <= MAX_HELD * 32 * warps:
            yield {"BLOCK": columns, **choice, "num_warps": warps}
    if not has_loop:
        return
    for block, warps in itertools.product(LOOP_BLOCKS, (4, 8, 16, 32)):
        if block < columns and block <= 64 * 32 * warps:
            yield {"BLOCK": block, "LOOP": True, "num_warps": warps}


def problem(name: str, launch: Callable[[], object], arguments: list[Any]) -> str:
    """Return what is wrong with the result of a launch, if anything: some rows against float64."""
    import torch

    work = WORK[name]
    x, weights, out = arguments[0], work.weights_of(arguments), work.out(arguments)
    out.fill_(float("nan"))
    launch()
    if out.isnan().any():
        return "parts of the result are not written"
    rows = torch.linspace(0, x.shape[0] - 1, 8).long().cuda()
    if isinstance(work, Gradient):
        expected = by_torch(name, x[rows].double(), [weights[0][rows]]) * (len(rows) / len(x))
    else:
        expected = by_torch(name, x[rows].double(), [each.double() for each in weights])
    slack = 1e-3 * float(expected.abs().median())
    wrong = (out[rows].double() - expected).abs() > 2**-7 * expected.abs() + slack
    return f"{int(wrong.sum())} elements are wrong" if wrong.any() else ""


def best(
    name: str, candidates: Iterator[tuple[Config, Callable[[list[Any]], Launch]]], sets: list[Any]
) -> tuple[str, Launch] | None:
    """Return the fastest of the candidates that compute what they should."""
    turns, kept = itertools.count(), dict[str, Launch]()
    for config, bind in candidates:
        key = json.dumps(dict(config))
        calls = [bind(each) for each in sets]
        try:
            trouble = problem(name, calls[0], sets[0])
        except Exception as error:  # noqa: BLE001 - Triton's errors have no common class
            trouble = f"{type(error).__name__}: {str(error)[:200]}"
        if trouble:
            print(f"    {name} {key}: {trouble}", flush=True)
        else:
            kept[key] = of_turn(calls, turns)
    ranking = ranked(kept, TRIALS, LAUNCHES, ahead=True) if kept else []
    for took, key in ranking:
        print(f"        {1e3 * took:8.1f} us  {key}", flush=True)
    return (ranking[0][1], kept[ranking[0][1]]) if ranking else None


def aotc_candidates(kernel: Any, columns: int) -> Iterator[tuple[Config, Any]]:
    """Yield what the archive has for rows of a length."""
    for config in built(kernel):
        if serves(config, columns):
            yield (
                config,
                lambda each, config=config: lambda: kernel.launch(tuple(each), config=config),
            )


def triton_candidates(name: str, rows: int, columns: int) -> Iterator[tuple[Config, Any]]:
    """Yield what Triton makes of the same source; nothing where it is not installed."""
    if importlib.util.find_spec("triton") is None:
        return
    path = ROOT / "kernels" / WORK[name].file
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, f"{name}_kernel")
    for config in triton_configs(columns, has_loop=WORK[name].has_loop):
        yield (
            config,
            lambda each, config=config: lambda: function[(rows,)](*each, **config),
        )


def measure(library: Any, name: str, columns: int) -> dict[str, Any]:
    """Choose each peer's best, run them in turn, and return the row."""
    work, rows = WORK[name], ELEMENTS // columns
    sets = [work.arguments(rows, columns) for _ in range(SETS)]
    print(f"{name} {rows}x{columns}", flush=True)
    chosen = {
        "aotc": best(name, aotc_candidates(library[name], columns), sets),
        "triton": best(name, triton_candidates(name, rows, columns), sets),
    }
    found = {peer: choice for peer, choice in chosen.items() if choice}
    turns = itertools.count()
    copies = [lambda each=each: work.out(each).copy_(each[0]) for each in sets]
    own = [lambda each=each: by_torch(name, each[0], work.weights_of(each)) for each in sets]
    peers = {peer: launch for peer, (_, launch) in found.items()}
    peers |= {"torch": of_turn(own, turns), "copy": of_turn(copies, turns)}
    for launch in peers.values():
        launch()
    times = in_turn(peers, ROUNDS, LAUNCHES, ahead=True)
    moved = 2 * ELEMENTS * 2
    return {
        "work": f"{name} {rows}x{columns}",
        "tb_s": {peer: moved / statistics.median(each) / 1e9 for peer, each in times.items()},
        "over": {
            peer: ratio(each, times["aotc"])
            for peer, each in times.items()
            if "aotc" in times and peer != "aotc"
        },
        "configs": {peer: key for peer, (key, _) in found.items()},
    }


def line(row: Mapping[str, Any]) -> str:
    """Return a row as text: rates, and how many times as long as ours each peer takes."""
    rates = "  ".join(f"{peer} {rate:.3f}" for peer, rate in row["tb_s"].items())
    over = "  ".join(f"{peer} {times:.3f}" for peer, times in row["over"].items())
    return f"{row['work']:24} TB/s: {rates}   times of aotc's: {over}   {row['configs']}"


def main() -> int:
    """Measure what is asked for."""
    import torch

    import aotc

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--work", nargs="*", choices=WORK, default=list(WORK))
    parser.add_argument("--columns", nargs="*", type=int, default=list(COLUMNS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    library = aotc.load(options.archive)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    rows: list[dict[str, Any]] = []
    for name, columns in itertools.product(options.work, options.columns):
        rows.append(measure(library, name, columns))
        print(line(rows[-1]), flush=True)
        torch.cuda.empty_cache()
        if options.json:  # each time: a run that is cut short leaves what it has measured
            options.json.write_text(json.dumps(rows, indent=2) + "\n")
    print(*map(line, rows), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The two layers of a mixture of experts against Triton, and against the rate of a dense product.

    aotc build benchmarks/fused_moe.toml -o dist
    python benchmarks/fused_moe.py dist/fused_moe.aotc [--tokens N] [--no-triton] [--json FILE]

Tokens go to 8 of 128 experts each, at random. aotc and Triton compile the same source,
`kernels/fused_moe.py`: the first layer with SwiGLU, the second one with the experts' weights. Each picks
its best configuration first; then the best ones run in turn with a dense product of as many rows by
`kernels/persistent_matmul.py`, one matrix instead of those of 128 experts. Rates count the rows that
there are, not those that fill blocks up. Every configuration is held against float64 before it is timed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from peers import Launch, built, in_turn, ranked, ratio

KERNELS = Path(__file__).parents[1] / "kernels"
ROUNDS, TRIALS, LAUNCHES = 31, 5, 3
EXPERTS, EACH = 128, 8
HIDDEN, INNER = 4096, 1536
# BLOCK_M, BLOCK_N, warps, stages
TRITON_CONFIGS = ((64, 128, 4, 4), (64, 256, 4, 4), (128, 128, 8, 4), (128, 256, 8, 3))


class Layer:
    """The operands of one layer, the row numbers for each size of blocks, and the check."""

    def __init__(self, tokens: int, *, first: bool) -> None:
        import torch

        self.first, self.rows = first, tokens * EACH
        self.n, self.k = (INNER, HIDDEN) if first else (HIDDEN, INNER)
        width = 2 * self.n if first else self.n
        self.flop = 2 * self.rows * width * self.k
        chosen = torch.rand(tokens, EXPERTS, device="cuda").topk(EACH, 1).indices.flatten()
        self.chosen = chosen.cpu()
        made = {"device": "cuda", "dtype": torch.bfloat16}
        self.a = torch.randn(tokens if first else self.rows, self.k, **made)
        self.b = torch.randn(EXPERTS, width, self.k, **made) / self.k**0.5
        self.out = torch.empty(self.rows, self.n, **made)
        self.weight = torch.rand(self.rows, device="cuda")
        self.dense = torch.randn(self.rows, self.k, **made)
        self.dense_out = torch.empty(self.rows, width, **made)

    def sorted_rows(self, block: int) -> dict[str, Any]:
        """Return row numbers by expert, filled up to whole blocks, and the expert of each block."""
        import torch

        numbers, experts = [], []
        for expert in range(EXPERTS):
            rows = (self.chosen == expert).nonzero().flatten()
            count = -(-len(rows) // block)
            fill = torch.full((count * block - len(rows),), self.rows)
            numbers += [rows, fill]
            experts += [expert] * count
        total = sum(map(len, numbers))
        # A launch has room for the most blocks that there can be.
        numbers.append(torch.full((self.rows + EXPERTS * block - total,), self.rows))
        experts += [0] * (self.rows // block + EXPERTS - len(experts))
        return {
            "sorted_ptr": torch.cat(numbers).int().cuda(),
            "expert_ptr": torch.tensor(experts, dtype=torch.int32, device="cuda"),
            "padded_ptr": torch.tensor([total], dtype=torch.int32, device="cuda"),
        }

    def arguments(self, block: int) -> dict[str, Any]:
        """Return the arguments of the kernel by name."""
        return {
            "a_ptr": self.a,
            "b_ptr": self.b,
            "out_ptr": self.out,
            "weight_ptr": self.weight,
            **self.sorted_rows(block),
            "N": self.n,
            "K": self.k,
            "n_rows": self.rows,
            "rows_per_token": EACH if self.first else 1,
            "stride_am": self.k,
            "stride_be": self.b.stride(0),
            "stride_bn": self.k,
            "stride_om": self.n,
            "n_blocks": self.rows // block + EXPERTS,
        }

    @property
    def choices(self) -> dict[str, bool]:
        """What the kernel does besides multiplying."""
        return {"WEIGHTED": not self.first, "SWIGLU": self.first}

    def check(self, name: str, launch: Launch) -> bool:
        """Return whether a launch is right for some experts, over results that were poisoned."""
        import torch

        self.out.fill_(float("nan"))
        launch()
        if self.out.isnan().any():
            print(f"    {name} leaves rows out", file=sys.stderr)
            return False
        for expert in (0, EXPERTS // 2, EXPERTS - 1):
            rows = (self.chosen == expert).nonzero().flatten().cuda()
            token = rows // EACH if self.first else rows
            expected = self.a[token].double() @ self.b[expert].double().T
            if self.first:
                gate, up = expected.chunk(2, 1)
                expected = torch.nn.functional.silu(gate) * up
            else:
                expected *= self.weight[rows].double()[:, None]
            error = (self.out[rows].double() - expected).abs().max() / expected.abs().max()
            if not error < 2**-7:
                print(f"    {name} is wrong by {error:.3g} of the largest", file=sys.stderr)
                return False
        return True


def aotc_candidates(layer: Layer, archive: str) -> Iterator[tuple[str, Launch]]:
    """Yield a launch of each configuration of the archive."""
    import aotc

    kernel = aotc.load(archive)["fused_moe"]
    seen: dict[int, dict[str, Any]] = {}
    ours = [v for v in kernel.info.variants if dict(v.choices) == layer.choices]
    have = [dict(variant.config) for variant in ours]
    for config in [each for each in built(kernel) if each in have]:
        block = int(config["BLOCK_M"])
        if block not in seen:
            seen[block] = layer.arguments(block)
        arguments = list(seen[block].values())

        def launch(config=config, arguments=arguments) -> None:
            kernel.launch(arguments, config=config, choices=layer.choices)

        yield str(config), launch


def triton_candidates(layer: Layer) -> Iterator[tuple[str, Launch]]:
    """Yield a launch of each configuration that Triton compiles."""
    sys.path.insert(0, str(KERNELS))
    from fused_moe import fused_moe_kernel  # this script's folder comes after

    for block_m, block_n, warps, stages in TRITON_CONFIGS:
        arguments = layer.arguments(block_m)
        constants = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": 64, "GROUP_M": 8}
        constants |= layer.choices
        grid = (arguments["n_blocks"] * -(-layer.n // block_n),)

        def launch(grid=grid, passed=arguments | constants, options=(warps, stages)) -> None:
            fused_moe_kernel[grid](**passed, num_warps=options[0], num_stages=options[1])

        name = f"{block_m}x{block_n}, {warps} warps, {stages} stages"
        try:
            launch()
        except Exception as error:  # noqa: BLE001 - a configuration that Triton cannot hold
            print(f"    Triton: {name}: {type(error).__name__}", file=sys.stderr)
            continue
        yield name, launch


def dense_candidates(layer: Layer, archive: str) -> Iterator[tuple[str, Launch]]:
    """Yield a launch of each configuration of a dense product with as many rows."""
    import aotc

    kernel = aotc.load(archive)["linear"]
    rows, width = layer.dense_out.shape
    for config in built(kernel):
        arguments = [layer.dense, layer.b[0], layer.dense_out, rows, width, layer.k]

        def launch(config=config, arguments=arguments) -> None:
            kernel.launch(arguments, config=config)

        yield str(config), launch


def measure(
    layer: Layer, candidates: dict[str, Callable[[Layer], Iterator[tuple[str, Launch]]]]
) -> dict[str, object]:
    """Return the row of a layer: TFLOP/s of each, and how much faster aotc is."""
    name = "gate and up" if layer.first else "down"
    print(f"{name}: {layer.rows} rows, N {layer.b.shape[1]}, K {layer.k}", flush=True)
    peers: dict[str, Launch] = {}
    for peer, of_layer in candidates.items():
        right = {
            label: each
            for label, each in of_layer(layer)
            if peer == "dense" or layer.check(label, each)
        }
        if not right:
            continue
        ranking = ranked(right, TRIALS, LAUNCHES, ahead=True)
        for took, label in ranking[:4]:
            print(f"    {peer:7} {layer.flop / took / 1e9:6.0f} TFLOP/s  {label}", flush=True)
        peers[peer] = right[ranking[0][1]]
    times = in_turn(peers, ROUNDS, LAUNCHES, ahead=True)
    row: dict[str, object] = {"layer": name, "rows": layer.rows}
    for peer, values in times.items():
        row[peer] = layer.flop / statistics.median(values) / 1e9
        print(f"  {peer:7} {row[peer]:6.0f} TFLOP/s", flush=True)
        if peer != "aotc" and "aotc" in times:
            row[f"aotc/{peer}"] = ratio(values, times["aotc"])
            print(f"    aotc is {row[f'aotc/{peer}']:.3f} times as fast", flush=True)
    return row


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("archive")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--no-triton", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    candidates: dict[str, Callable[[Layer], Iterator[tuple[str, Launch]]]] = {
        "aotc": lambda layer: aotc_candidates(layer, options.archive),
        "triton": triton_candidates,
        "dense": lambda layer: dense_candidates(layer, options.archive),
    }
    if options.no_triton:
        del candidates["triton"]
    rows = [measure(Layer(options.tokens, first=first), candidates) for first in (True, False)]
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

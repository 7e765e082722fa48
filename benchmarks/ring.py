"""Rings of eight CTAs in both directions: tiles sent by st.async against reads from neighbours.

    aotc build benchmarks/ring.toml -o dist
    python benchmarks/ring.py dist/ring.aotc [--json FILE]

Each CTA of a cluster passes a tile on to both neighbours in every step, and adds up the incoming
tiles. A link is one direction from one CTA to the next. Its rate is the bytes of its tiles over
the time of a launch of many steps. Before it is timed, each configuration is checked against the
sums of NumPy, bit by bit, over a poisoned result. The fastest of either way run in turn; ratios
are medians of rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
from peers import built, in_turn, ranked, ratio

SIZE = 8
STEPS, FEW_STEPS = 2048, 19
ROUNDS, TRIALS, LAUNCHES = 31, 5, 2
WAYS = {"st.async": False, "ld.shared::cluster": True}


def expected(x: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return each CTA's sums of the passing rows, to the right and to the left."""
    turned = x.reshape(-1, SIZE, x.shape[-1])
    right, left = (
        np.sum([np.roll(turned, way * step, 1) for step in range(1, steps + 1)], axis=0)
        for way in (1, -1)
    )
    return right.reshape(x.shape), left.reshape(x.shape)


def bytes_of_link(config: dict[str, Any], steps: int) -> int:
    """Return the bytes of one direction between two CTAs in a launch."""
    return steps * config["BLOCK"] * 4


class Ring:
    """A configuration on operands of its own, one cluster for each eight multiprocessors."""

    def __init__(self, kernel: Any, config: dict[str, Any], *, pull: bool, clusters: int) -> None:
        import torch

        self.kernel, self.config, self.pull, self.clusters = kernel, config, pull, clusters
        shape = clusters * SIZE, config["BLOCK"]
        # Whole numbers: sums are exact in any order.
        self.x = torch.randint(-8, 9, shape, device="cuda").float()
        self.right, self.left = (torch.empty_like(self.x) for _ in range(2))

    def launch(self, steps: int = STEPS) -> None:
        """Run the ring."""
        arguments = self.x, self.right, self.left, steps, self.clusters
        self.kernel.launch(arguments, config=self.config, choices={"PULL": self.pull})

    def problem(self) -> str:
        """Return the error in the sums, if any."""
        for out in (self.right, self.left):
            out.fill_(float("nan"))
        self.launch(FEW_STEPS)
        sums = expected(self.x.cpu().numpy(), FEW_STEPS)
        outs = (self.right.cpu().numpy(), self.left.cpu().numpy())
        wrong = sum(int((a != b).sum()) for a, b in zip(outs, sums, strict=True))
        return f"{wrong} elements are wrong" if wrong else ""


def best(rings: list[Ring]) -> Ring:
    """Return the correct ring with the highest rate of a link."""
    right = {}
    for ring in rings:
        trouble = ring.problem()
        if trouble:
            print(f"    {ring.config}: {trouble}", flush=True)
        else:
            right[json.dumps(ring.config)] = ring
    took = ranked({key: ring.launch for key, ring in right.items()}, TRIALS, LAUNCHES)
    rates = {
        key: bytes_of_link(right[key].config, STEPS) / milliseconds / 1e6
        for milliseconds, key in took
    }
    for key, rate in sorted(rates.items(), key=lambda key_and_rate: -key_and_rate[1]):
        print(f"        {rate:8.2f} GB/s a link  {key}", flush=True)
    return right[max(rates, key=lambda key: rates[key])]


def main() -> int:
    """Measure both ways."""
    import torch

    import aotc

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    kernel = aotc.load(options.archive)["ring"]
    clusters = torch.cuda.get_device_properties(0).multi_processor_count // SIZE
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {clusters} clusters")
    rows = []
    configs = [
        {key: value for key, value in config.items() if key != "PULL"} for config in built(kernel)
    ]
    for count in (1, clusters):
        chosen: dict[str, Ring] = {}
        for name, pull in WAYS.items():
            print(f"{name}, {count} clusters", flush=True)
            chosen[name] = best(
                [Ring(kernel, config, pull=pull, clusters=count) for config in configs]
            )
        times = in_turn({name: ring.launch for name, ring in chosen.items()}, ROUNDS, LAUNCHES)
        rates = {
            name: bytes_of_link(ring.config, STEPS) / statistics.median(times[name]) / 1e6
            for name, ring in chosen.items()
        }
        # Tiles of the two may differ in size: compare the time of a byte.
        scale = bytes_of_link(chosen["st.async"].config, 1) / bytes_of_link(
            chosen["ld.shared::cluster"].config, 1
        )
        row = {
            "clusters": count,
            "gb_s_link": rates,
            "ratio": scale * ratio(times["ld.shared::cluster"], times["st.async"]),
            "configs": {name: ring.config for name, ring in chosen.items()},
        }
        rows.append(row)
        print(row, flush=True)
        if options.json:
            options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Additions to global memory by reducing bulk copies, against threads' atomics and cuBLAS.

    aotc build benchmarks/reductions.toml -o dist
    python benchmarks/reductions.py dist/reductions.aotc [--json FILE]

Products are split along K and added up in the result; tensors of integers are added to a total.
From one source, one build adds by `cp.reduce.async.bulk` of a tile in shared memory. The other
adds by `red` of at most four numbers of a thread. Every configuration is checked against float64
first; each peer picks its fastest one, and they run in turn.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from peers import Launch, built, rates_in_turn

ROUNDS, TRIALS, LAUNCHES = 21, 3, 5
# M, N, K: as many tiles as half the SMs of a GPU and fewer, weights' gradients among them.
PRODUCTS = ((512, 512, 16384), (1024, 1024, 16384), (2048, 2048, 8192), (4096, 4096, 8192))
SPLITS = (4, 16)
TENSORS = (1 << 22, 1 << 26)  # elements: the first size stays in the L2 cache
PEERS = {"aotc": "gpu", "threads": "sys"}


def product_rates(kernel: Any, m: int, n: int, k: int, element: str) -> dict[str, float]:
    """Return the TFLOP/s of a product, of each peer."""
    import torch

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[element]
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
    out = torch.zeros(m, n, device="cuda", dtype=dtype)
    plain = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    expected = a.double() @ b.double()

    def right(launch: Launch) -> bool:
        out.zero_()
        launch()
        error = (out.double() - expected).abs().max() / expected.abs().max()
        return bool(error < (2**-6 if element == "bf16" else 2**-16))

    def candidates(scope: str) -> Iterator[tuple[str, Launch]]:
        for split in SPLITS:
            choices = {"SCOPE": scope, "SPLIT_K": split}
            for config in built(kernel, choices):
                # All have contiguous columns, and this is compiled in.
                strides = (tensor.stride(0) for tensor in (a, b, out))
                arguments = [a, b, out, m, n, k, *strides]

                def launch(config=config, choices=choices, arguments=arguments) -> None:
                    kernel.launch(arguments, config=config, choices=choices)

                yield f"{config}, {split} parts", launch

    peers: dict[str, Mapping[str, Launch]] = {
        peer: {name: launch for name, launch in candidates(scope) if right(launch)}
        for peer, scope in PEERS.items()
    }
    peers["cublas"] = {"torch.mm": lambda: torch.mm(a, b, out=plain)}
    print(f"{m}x{n}x{k}, {element} results", flush=True)
    flop = 2 * m * n * k
    return rates_in_turn(peers, flop, trials=TRIALS, rounds=ROUNDS, launches=LAUNCHES)


def tensor_rates(kernel: Any, elements: int) -> dict[str, float]:
    """Return each peer's GB/s, read and written, of adding an i32 tensor to a total."""
    import torch

    x = torch.randint(-4, 5, (elements,), device="cuda").int()
    total = torch.zeros(elements, device="cuda", dtype=torch.int32)
    num_sms = torch.cuda.get_device_properties(0).multi_processor_count
    num_bytes = elements * (x.element_size() + 2 * total.element_size())

    def candidates(*, by_copies: bool) -> Iterator[tuple[str, Launch]]:
        for config in built(kernel):
            for programs in (1, 2, 4):
                if config["warp_specialize"] == by_copies:

                    def launch(config=config, grid=(programs * num_sms,)) -> None:
                        kernel.launch([x, total, elements], grid=grid, config=config)

                    yield f"{config}, {programs} programs an SM", launch

    def right(launch: Launch) -> bool:
        total.zero_()
        launch()
        launch()
        return bool(torch.equal(total, (2 * x).to(total.dtype)))

    peers: dict[str, Mapping[str, Launch]] = {
        peer: {
            name: launch for name, launch in candidates(by_copies=peer == "aotc") if right(launch)
        }
        for peer in PEERS
    }
    peers["torch"] = {"add_": lambda: total.add_(x)}
    print(f"{elements} elements of i32, rates in GB/s", flush=True)
    return rates_in_turn(peers, 1000 * num_bytes, trials=TRIALS, rounds=ROUNDS, launches=LAUNCHES)


def main() -> None:
    """Run the command line."""
    import aotc

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("archive")
    parser.add_argument("--json")
    options = parser.parse_args()
    library = aotc.load(options.archive)
    rows: list[dict[str, object]] = []
    for m, n, k in PRODUCTS:
        for element in ("fp32", "bf16"):
            rates = product_rates(library["split_k"], m, n, k, element)
            rows.append({"m": m, "n": n, "k": k, "out": element, **rates})
    totals = library["accumulate"]
    rows += [{"elements": elements, **tensor_rates(totals, elements)} for elements in TENSORS]
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

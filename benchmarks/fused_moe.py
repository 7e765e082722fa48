"""The two layers of a mixture of experts against Triton, and against the rate of a dense product.

    aotc build benchmarks/fused_moe.toml -o dist
    python benchmarks/fused_moe.py dist/fused_moe.aotc [--weights bf16 fp8 int4] [--tokens N] [--no-triton] \
        [--even] [--alike] [--json FILE]

Tokens go to 8 of 128 experts each, at random. The first layer has SwiGLU unless weights have 4
bits; the second one multiplies by the routing weights. aotc and Triton compile the same sources.
`kernels/fused_moe.py` scatters rows to their tokens. `kernels/fused_moe_columns.py` has
transposed tiles and stores rows in expert order, as the second layer reads them. If the first
layer needs rows in order, in fp8 always, `kernels/rows_in_order.py` orders them first, and its
time counts. Weights of layers with ordered rows, except 4-bit ones, are blocked along K: a step
reads contiguous memory. A loader can do this once. Triton tries both layouts.

Each picks its fastest configuration first. Then these run in turn with a dense product of as
many rows by `kernels/persistent_matmul.py`: one matrix in place of 128, in bf16 if weights have
4 bits. Rates count real rows, not padding. Every configuration is checked against float64 before
it is timed. The whole mixture of experts is one layer after the other: its rates follow from
theirs.

To find the bounds: --even gives all experts equal rows; --alike uses the first expert's weights
for all, so they come from the L2 cache.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fused_moe_layer import EACH, Layer, Run
from peers import Launch, built, rates_in_turn

KERNELS = Path(__file__).parents[1] / "kernels"
ROUNDS, TRIALS, LAUNCHES = 31, 5, 3
CLOCK_SECONDS = 1.5
CUT_RANK = 4  # of weights blocked along K
MOST_IDLE = 0.05  # of the SMs, for programs storing whole blocks of rows
# The kernel ordering rows, timed with the layer.
ORDERS = ("rows_in_order", "scattered_rows")
# BLOCK_M, BLOCK_N, warps, stages
TRITON_CONFIGS = ((64, 128, 4, 4), (64, 256, 4, 4), (128, 128, 8, 4), (128, 256, 8, 3))
TRITON_COLUMN_CONFIGS = ((128, 128, 8, 3), (256, 128, 8, 3))


def aotc_candidates(layer: Layer, archive: str) -> Iterator[tuple[str, Run]]:
    """Yield a launch of each configuration of the archive."""
    import aotc

    kernels = aotc.load(archive)
    for name in (layer.kernel, layer.ordered_kernel, f"{layer.ordered_kernel}_in_order"):
        if name in kernels:
            yield from _candidates_of(layer, kernels, kernels[name])


def _candidates_of(layer: Layer, kernels: Any, kernel: Any) -> Iterator[tuple[str, Run]]:
    ours = [v for v in kernel.info.variants if dict(v.choices).items() <= layer.choices.items()]
    have = [dict(variant.config) for variant in ours]
    ranks = {param.name: param.rank for param in kernel.info.params}
    names = list(ranks)
    seen: dict[tuple[int, ...], dict[str, Any]] = {}
    for config in [key for key in built(kernel) if key in have]:
        sizes: tuple[int, ...] = (int(config["BLOCK_M"]),)
        if "EPILOGUE_M" in config:
            most = int(config.get("MOST", sizes[0] + int(config.get("TAIL", 0))))
            sizes = most, int(config["EPILOGUE_M"])
        if sizes not in seen:
            if kernel.name == layer.kernel:
                seen[sizes] = layer.arguments(*sizes)
            elif layer.weights == "fp8":
                seen[sizes] = layer.blockwise_arguments(
                    2 * int(config["BLOCK_M"]), int(config["TAIL"])
                )
            else:
                seen[sizes] = layer.column_arguments(*sizes)
        passed, choices = dict(seen[sizes]), dict(ours[0].choices)
        if ranks.get("b") == CUT_RANK:
            passed["b"] = layer.cut_weights
        orders: list[Any] = [None]
        if layer.first and kernel.name != layer.kernel:
            if "more" in names or layer.weights == "fp8":
                names_of = [f"{key}_fp8" if layer.weights == "fp8" else key for key in ORDERS]
                orders = [(kernels[name], how) for name in names_of for how in built(kernels[name])]
            else:
                passed["a"] = passed["a_ptr"]
        width = int(config.get("BLOCK_N", kernel.info.constants.get("BLOCK_N", 1)))
        tiles = -(-layer.n // (width // 2 if layer.swiglu else width))
        counts = program_counts(sms() // int(config.get("num_ctas", 1)), tiles)
        for order, count in itertools.product(orders, counts if "n_programs" in names else [0]):
            passed = passed | {"n_programs": count}

            def launch(config=config, passed=passed, choices=choices, order=order) -> None:
                if order is not None:
                    first = [passed[param.name] for param in order[0].info.params]
                    order[0].launch(first, config=order[1])
                kernel.launch([passed[name] for name in names], config=config, choices=choices)

            if "out" in passed:
                how = f"{order[0].name} {order[1]}, " if order else ""
                staged = passed["a"] if order else None
                how += f"{count} programs, " if count else ""
                yield f"{how}{config}", Run(launch, passed["out"], passed["sorted_ptr"], staged)
            else:
                yield str(config), Run(launch, layer.out)


def sms() -> int:
    """Return how many SMs the GPU has."""
    import torch

    return torch.cuda.get_device_properties(0).multi_processor_count


def program_counts(most: int, tiles: int) -> list[int]:
    """Return the grid size: all programs at once, or slightly fewer for whole blocks of rows.

    A block has so many `tiles`; programs storing all of one at a time read its rows together.
    """
    whole = most // tiles * tiles
    return [most, whole] if MOST_IDLE * most >= most - whole > 0 else [most]


def triton_candidates(layer: Layer) -> Iterator[tuple[str, Run]]:
    """Yield a launch of each configuration Triton compiles."""
    sys.path.insert(0, str(KERNELS))

    for name, make in (*_triton_by_rows(layer), *_triton_by_columns(layer)):
        try:
            run = make()
            run()
        except Exception as error:  # noqa: BLE001 - a configuration that Triton cannot hold
            print(f"    Triton: {name}: {type(error).__name__}", file=sys.stderr)
            continue
        yield name, run


def _triton_by_rows(layer: Layer) -> Iterator[tuple[str, Callable[[], Run]]]:
    module = importlib.import_module("fused_moe")  # this script's folder comes after
    kernel = getattr(module, f"{layer.kernel}_kernel")
    for block_m, block_n, warps, stages in TRITON_CONFIGS:
        columns = block_n
        if layer.weights == "fp8":
            block_n = min(block_n, 128)  # noqa: PLW2901 - a tile lies under one scale, or two do
            columns = block_n if layer.swiglu else columns
        constants = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": layer.block_k, "GROUP_M": 8}
        constants |= layer.choices | ({"GROUP_K": 128} if layer.weights == "int4" else {})
        constants |= {"COLUMNS": columns} if layer.weights == "fp8" else {}

        def make(columns=columns, constants=constants, options=(warps, stages)) -> Run:
            passed = layer.arguments(constants["BLOCK_M"]) | constants
            grid = (passed["n_blocks"] * -(-layer.n // columns),)
            how = {"num_warps": options[0], "num_stages": options[1]}
            return Run(lambda: kernel[grid](**passed, **how), layer.out)

        yield f"{block_m}x{columns}, {warps} warps, {stages} stages", make


def _triton_by_columns(layer: Layer) -> Iterator[tuple[str, Callable[[], Run]]]:
    if layer.weights == "fp8":
        return
    kernel = importlib.import_module("fused_moe_columns").fused_moe_columns_kernel
    ways = (False,) if layer.weights == "int4" else (False, True)
    for (block_m, block_n, warps, stages), cut in itertools.product(TRITON_COLUMN_CONFIGS, ways):
        constants = {
            "BLOCK_M": block_m,
            "TAIL": 32,
            "BLOCK_N": block_n,
            "BLOCK_K": 64,
            "EPILOGUE_M": 32,
        }
        constants |= {"SWIGLU": layer.swiglu, "ROWS_PER_TOKEN": EACH if layer.first else 1}

        def make(constants=constants, options=(warps, stages), cut=cut) -> Run:
            from triton.tools.tensor_descriptor import TensorDescriptor

            height, block, tail = constants["BLOCK_N"], constants["BLOCK_M"], constants["TAIL"]
            passed = layer.column_arguments(block + tail, constants["EPILOGUE_M"]) | constants
            out, columns = passed["out"], height // 2 if layer.swiglu else height
            blocks = {"b": [1, height, 64], "out": [constants["EPILOGUE_M"], columns]}
            if layer.swiglu:
                blocks["b"] = [1, height // 16, 2, 8, 64]
            elif layer.weights == "int4":
                blocks |= {"b": [1, height, 8], "scales": [1, 1, height]}
            if cut:
                passed["b"] = layer.cut_weights
                blocks["b"] = [1, 1, height, layer.block_k]
            if layer.first:
                passed |= {
                    "a": passed["a_ptr"],
                    **dict.fromkeys(("more", "factors", "more_factors")),
                }
            else:
                blocks |= {
                    "a": [block, 64],
                    "more": [tail, 64],
                    "factors": [block],
                    "more_factors": [tail],
                }
            for name, shape in blocks.items():
                tensor = passed[name]
                passed[name] = TensorDescriptor(
                    tensor, list(tensor.shape), list(tensor.stride()), shape
                )
            grid = (passed["n_blocks"] * -(-layer.n // columns),)
            how = {"num_warps": options[0], "num_stages": options[1]}
            passed["num_blocks_ptr"] = None  # programs at once, idle ones included
            named = {name: passed[name] for name in kernel.arg_names if name in passed}
            return Run(lambda: kernel[grid](**named, **how), out, passed["sorted_ptr"])

        how = f"columns, {block_m}x{block_n}, {warps} warps, {stages} stages"
        yield f"{how}, weights cut" if cut else how, make


def dense_candidates(layer: Layer, archive: str) -> Iterator[tuple[str, Launch]]:
    """Yield a launch of each configuration of a dense product with as many rows."""
    import torch

    import aotc

    blocks, (rows, width) = layer.k // 128, layer.dense_out.shape
    kernel = aotc.load(archive)["linear_fp8" if layer.weights == "fp8" else "linear"]
    scales: list[Any] = []
    if layer.weights == "fp8":
        scales = [
            torch.rand(blocks, rows, device="cuda"),
            torch.rand(width // 128, blocks, device="cuda"),
        ]
    strides = [blocks] if scales else []
    for config in built(kernel):
        arguments = [layer.dense, layer.dense_b, layer.dense_out, *scales]
        arguments += [rows, width, layer.k, *strides]

        def launch(config=config, arguments=arguments) -> None:
            kernel.launch(arguments, config=config)

        yield str(config), launch


def measure(
    layer: Layer, candidates: dict[str, Callable[[Layer], Iterator[tuple[str, Any]]]]
) -> dict[str, object]:
    """Return the row of a layer: TFLOP/s of each, and how much faster aotc is."""
    name = "gate and up" if layer.first else "down"
    name = f"{name}, {layer.weights}"
    print(f"{name}: {layer.rows} rows, N {layer.b.shape[1]}, K {layer.k}", flush=True)
    right = {
        peer: {
            label: launch
            for label, launch in of_layer(layer)
            if peer == "dense" or layer.check(label, launch)
        }
        for peer, of_layer in candidates.items()
    }
    counts = {"trials": TRIALS, "rounds": ROUNDS, "launches": LAUNCHES}
    rates = rates_in_turn(right, layer.flop, **counts, clock_seconds=CLOCK_SECONDS)
    return {"layer": name, "rows": layer.rows, "flop": layer.flop, **rates}


def whole(layers: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """Return the row of consecutive layers: TFLOP/s of each peer, and aotc's speedups."""
    flop = sum(layer["flop"] for layer in layers)
    peers = [peer for peer in ("aotc", "triton", "dense") if all(peer in layer for layer in layers)]
    rates = {peer: flop / sum(layer["flop"] / layer[peer] for layer in layers) for peer in peers}
    row: dict[str, object] = {"layer": " + ".join(layer["layer"] for layer in layers), **rates}
    row |= {f"aotc/{peer}": rates["aotc"] / rates[peer] for peer in peers if peer != "aotc"}
    print(row["layer"])
    for peer in peers:
        print(
            f"  {peer:7} {rates[peer]:6.0f} TFLOP/s, aotc/{peer} {rates['aotc'] / rates[peer]:.3f}"
        )
    return row


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("archive")
    parser.add_argument("--weights", nargs="+", default=["bf16"], choices=["bf16", "fp8", "int4"])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--no-triton", action="store_true")
    parser.add_argument("--even", action="store_true", help="as many rows for each expert")
    parser.add_argument("--alike", action="store_true", help="all use the first expert's weights")
    parser.add_argument("--json")
    options = parser.parse_args()
    candidates: dict[str, Callable[[Layer], Iterator[tuple[str, Any]]]] = {
        "aotc": lambda layer: aotc_candidates(layer, options.archive),
        "triton": triton_candidates,
        "dense": lambda layer: dense_candidates(layer, options.archive),
    }
    if options.no_triton:
        del candidates["triton"]
    rows: list[dict[str, object]] = []
    for weights in options.weights:
        routing = {"even": options.even, "alike": options.alike}
        layers = [
            measure(Layer(options.tokens, weights, first=first, **routing), candidates)
            for first in (True, False)
        ]
        rows += [*layers, whole(layers)]
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

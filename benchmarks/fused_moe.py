"""The two layers of a mixture of experts against Triton, and against the rate of a dense product.

    aotc build benchmarks/fused_moe.toml -o dist
    python benchmarks/fused_moe.py dist/fused_moe.aotc [--weights bf16 fp8 int4] [--tokens N] [--no-triton] \
        [--even] [--alike] [--json FILE]

Tokens go to 8 of 128 experts each, at random. The first layer has SwiGLU unless weights have 4 bits, the second one
multiplies by the experts' weights. aotc and Triton compile the same sources: `kernels/fused_moe.py`, which stores rows
where they belong, and `kernels/fused_moe_columns.py`, whose tiles are transposed and which stores rows in the order of
their experts, as the second layer then finds them. What the first layer takes in order, in fp8 always, has to be put in
order first (`kernels/rows_in_order.py`), which counts. Weights of layers that take rows in order, but those of 4 bits,
are cut along K, as whoever loads them can do once: what a step reads is one piece of memory. Triton has them both ways.

Each picks its best configuration first; then the best ones run in turn with a dense product of as many rows by
`kernels/persistent_matmul.py`, one matrix instead of those of 128 experts, in bf16 if weights have 4 bits. Rates count
the rows that there are, not those that fill blocks up. Every configuration is held against float64 before it is timed.
The mixture of experts as a whole is one layer after the other: its rates follow from theirs.

What bounds them: with --even all experts have as many rows, with --alike all use the first one's weights, so that
these come from the L2 cache.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers import Launch, built, rates_in_turn

KERNELS = Path(__file__).parents[1] / "kernels"
ROUNDS, TRIALS, LAUNCHES = 31, 5, 3
CLOCK_SECONDS = 1.5
EXPERTS, EACH = 128, 8
HIDDEN, INNER = 4096, 1536
CUT_RANK = 4  # of weights that are cut along K
MOST_IDLE = 0.05  # of the SMs, for programs that store whole blocks of rows
ROWS_AT_ONCE = 64  # of which a program puts scales in order, at most
# What puts rows in order, which is timed with the layer.
ORDERS = ("rows_in_order", "scattered_rows")
# BLOCK_M, BLOCK_N, warps, stages
TRITON_CONFIGS = ((64, 128, 4, 4), (64, 256, 4, 4), (128, 128, 8, 4), (128, 256, 8, 3))
TRITON_COLUMN_CONFIGS = ((128, 128, 8, 3), (256, 128, 8, 3))


@dataclass(frozen=True)
class Run:
    """A launch, and where it leaves results: in order of rows, or row `numbers[i]` at *i*.

    `staged` are operands that it makes first.
    """

    launch: Launch
    out: Any
    numbers: Any = None
    staged: Any = None

    def __call__(self) -> None:
        self.launch()

    def results(self, num_rows: int) -> Any:
        """Return the results in order of rows."""
        if self.numbers is None:
            return self.out
        there = (self.numbers < num_rows).nonzero().flatten()
        found = self.out.new_empty(num_rows, self.out.shape[1])
        found[self.numbers[there].long()] = self.out[there]
        return found


class Layer:
    """The operands of one layer, the row numbers for each size of blocks, and the check."""

    def __init__(
        self, tokens: int, weights: str, *, first: bool, even: bool = False, alike: bool = False
    ) -> None:
        import torch

        self.first, self.weights, self.rows, self.alike = first, weights, tokens * EACH, alike
        self.n, self.k = (INNER, HIDDEN) if first else (HIDDEN, INNER)
        self.swiglu = first and weights != "int4"
        width = 2 * self.n if first else self.n
        if not self.swiglu:
            self.n = width
        self.flop = 2 * self.rows * width * self.k
        chosen = torch.rand(tokens, EXPERTS, device="cuda").topk(EACH, 1).indices.flatten()
        if even:
            chosen = torch.randperm(self.rows, device="cuda") % EXPERTS
        self.chosen = chosen.cpu()
        made = {"device": "cuda", "dtype": torch.bfloat16}
        self.a = torch.randn(tokens if first else self.rows, self.k, **made)
        self.b = torch.randn(EXPERTS, width, self.k, **made) / self.k**0.5
        self.out = torch.empty(self.rows, self.n, **made)
        self.weight = torch.rand(self.rows, device="cuda")
        self.dense = torch.randn(self.rows, self.k, **made)
        self.dense_b = self.b[0].clone()
        self.dense_out = torch.empty(self.rows, width, **made)
        self.scales: dict[str, Any] = {}
        if weights == "fp8":
            eight = torch.float8_e4m3fn
            self.a, self.b, self.dense, self.dense_b = (
                each.to(eight) for each in (self.a, self.b, self.dense, self.dense_b)
            )
            blocks = self.k // 128
            self.scales["scale_a_ptr"] = torch.rand(len(self.a), blocks, device="cuda")
            self.scales["scale_b_ptr"] = torch.rand(EXPERTS, width // 128, blocks, device="cuda")
        elif weights == "int4":
            words = EXPERTS, width, self.k // 8
            self.b = torch.randint(-(2**31), 2**31, words, dtype=torch.int32, device="cuda")
            scale = torch.rand(EXPERTS, self.k // 128, width, device="cuda")
            self.scales["scale_ptr"] = (scale / self.k**0.5).bfloat16()

    @property
    def kernel(self) -> str:
        """The kernel's name."""
        return "fused_moe" if self.weights == "bf16" else f"fused_moe_{self.weights}"

    @property
    def ordered_kernel(self) -> str:
        """The name of the kernel that stores rows in order."""
        form = "" if self.weights == "bf16" else f"_{self.weights}"
        return f"fused_moe_{'up' if self.first else 'down'}{form}"

    def rows_of(self, token: Any) -> Any:
        """Return rows of A in float64."""
        rows = self.a[token].double()
        if self.weights == "fp8":
            rows *= self.scales["scale_a_ptr"][token].double().repeat_interleave(128, 1)
        return rows

    def weights_of(self, expert: int) -> Any:
        """Return the weights of an expert in float64."""
        import torch

        b = self.b[0 if self.alike else expert]
        if self.weights == "fp8":
            scale = self.scales["scale_b_ptr"][0 if self.alike else expert].double()
            return b.double() * scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
        if self.weights == "int4":
            shifts = [index // 2 * 4 + index % 2 * 16 for index in range(8)]
            numbers = torch.stack([b >> shift & 15 for shift in shifts], 2).flatten(1) - 8
            scale = (
                self.scales["scale_ptr"][0 if self.alike else expert].repeat_interleave(128, 0).T
            )
            return (numbers.bfloat16() * scale).double()
        return b.double()

    def sorted_rows(self, block: int) -> dict[str, Any]:
        """Return row numbers by expert, filled up to whole blocks, and the expert of each block."""
        import torch

        numbers, experts = [], []
        for expert in range(EXPERTS):
            rows = (self.chosen == expert).nonzero().flatten()
            count = -(-len(rows) // block)
            fill = torch.full((count * block - len(rows),), self.rows)
            numbers += [rows, fill]
            experts += [0 if self.alike else expert] * count
        total = sum(map(len, numbers))
        # A launch has room for the most blocks that there can be.
        numbers.append(torch.full((self.rows + EXPERTS * block - total,), self.rows))
        experts += [0] * (self.rows // block + EXPERTS - len(experts))
        return {
            "sorted_ptr": torch.cat(numbers).int().cuda(),
            "expert_ptr": torch.tensor(experts, dtype=torch.int32, device="cuda"),
            "padded_ptr": torch.tensor([total], dtype=torch.int32, device="cuda"),
        }

    def rows_in_order(self, most: int, align: int) -> dict[str, Any]:
        """Return rows in the order of their experts, and where blocks of up to `most` begin, longest first.

        Those of an expert are cut into as many blocks as it takes, of about as many rows, and each is filled up to a
        multiple of `align`.
        """
        import torch

        blocks = []
        for expert in range(EXPERTS):
            rows = (self.chosen == expert).nonzero().flatten()
            parts = rows.tensor_split(max(1, -(-len(rows) // most)))
            blocks += [(expert, part) for part in parts]
        blocks.sort(key=lambda each: -len(each[1]))
        starts, numbers = [0], []
        for _, part in blocks:
            numbers += [part, torch.full((-len(part) % align,), self.rows)]
            starts.append(starts[-1] + len(part) + len(numbers[-1]))
        # A launch has room for the most blocks and rows that there can be.
        empty = self.most_blocks(most) - len(blocks)
        capacity = self.rows + self.most_blocks(most) * align
        capacity += -capacity % ROWS_AT_ONCE
        numbers.append(torch.full((capacity - starts[-1],), self.rows))
        numbers = torch.cat(numbers).int()
        made = {"dtype": torch.int32, "device": "cuda"}
        real = numbers.clamp(max=self.rows - 1).long().cuda()
        in_order = {"sorted_ptr": numbers.cuda(), "factors": self.weight[real]}
        in_order["place_ptr"] = self.places(numbers)
        in_order["a"] = in_order["more"] = self.a[real // EACH if self.first else real]
        return in_order | {
            "start_ptr": torch.tensor([*starts[:-1], *[0] * empty], **made),
            "count_ptr": torch.tensor([*(len(part) for _, part in blocks), *[0] * empty], **made),
            "expert_ptr": torch.tensor(
                [*(0 if self.alike else expert for expert, _ in blocks), *[0] * empty], **made
            ),
            "num_blocks_ptr": torch.tensor([len(blocks)], **made),
            "out": torch.empty(capacity, self.n, dtype=torch.bfloat16, device="cuda"),
        }

    def most_blocks(self, most: int) -> int:
        """Return how many blocks of up to `most` rows there can be."""
        return self.rows // most + EXPERTS

    def places(self, numbers: Any) -> Any:
        """Return where each row number stands."""
        import torch

        place = torch.empty(self.rows, dtype=torch.int32)
        there = (numbers.cpu() < self.rows).nonzero().flatten()
        place[numbers.cpu()[there].long()] = there.int()
        return place.cuda()

    @functools.cached_property
    def cut_weights(self) -> Any:
        """The weights, (experts, blocks of K, N, block_k), with SWIGLU 8 of gate and 8 of up in turn."""
        import torch

        b = self.b.view(torch.uint8) if self.weights == "fp8" else self.b
        if self.swiglu:
            b = b.view(EXPERTS, 2, self.n // 8, 8, self.k).transpose(1, 2)
        rows = b.reshape(EXPERTS, -1, self.k // self.block_k, self.block_k)
        return rows.transpose(1, 2).contiguous().view(self.b.dtype)

    def column_arguments(self, most: int, align: int) -> dict[str, Any]:
        """Return the arguments of the kernel whose tiles are transposed by name."""
        b = self.b
        if self.swiglu:
            b = b.view(EXPERTS, 2, self.n // 8, 8, self.k).transpose(1, 2)
        made = {"b": b, **self.rows_in_order(most, align)}
        return made | {
            "a_ptr": self.a,
            "out_ptr": made["a"],
            "num_out": len(made["a"]),
            "n_tokens": len(self.a),
            "stride_om": self.k,
            "scales": self.scales.get("scale_ptr"),
            "more_factors": made["factors"],
            "N": self.n,
            "K": self.k,
            "stride_am": self.k,
            "n_rows": self.rows,
            "n_blocks": self.most_blocks(most),
        }

    def blockwise_arguments(self, block: int, tail: int) -> dict[str, Any]:
        """Return the arguments of the kernel of fp8 whose rows are in order, and of the one that orders them.

        There is as much room for each block as the largest may have, block + tail.
        """
        made = self.column_arguments(block + tail, block + tail)
        scales, num_scales = self.scales["scale_a_ptr"], self.k // 128
        real = made["sorted_ptr"].long().clamp(max=self.rows - 1)
        scale_a = scales[real // EACH if self.first else real].T.contiguous()
        return made | {
            "scale_a": scale_a,
            "out_beyond": made["out"],
            "scale_ptr": scales,
            "out_scale_ptr": scale_a,
            "scale_b_ptr": self.scales["scale_b_ptr"],
            "stride_sm": num_scales,
            "stride_sk": scale_a.stride(0),
            "num_scales": num_scales,
            **self._strides(),
        }

    def arguments(self, block: int) -> dict[str, Any]:
        """Return the arguments of the kernel by name."""
        return {
            "a_ptr": self.a,
            "b_ptr": self.b,
            "out_ptr": self.out,
            **self.scales,
            "weight_ptr": self.weight,
            **self.sorted_rows(block),
            "N": self.n,
            "K": self.k,
            "n_rows": self.rows,
            "rows_per_token": EACH if self.first else 1,
            "stride_am": self.k,
            "stride_be": self.b.stride(0),
            "stride_bn": self.b.stride(1),
            "stride_om": self.n,
            **self._strides(),
            "n_blocks": self.rows // block + EXPERTS,
        }

    def _strides(self) -> dict[str, int]:
        """Return the strides of the scales."""
        if self.weights == "fp8":
            a, b = self.scales["scale_a_ptr"], self.scales["scale_b_ptr"]
            return {"stride_sa": a.stride(0), "stride_sbe": b.stride(0), "stride_sbn": b.stride(1)}
        if self.weights == "int4":
            scale = self.scales["scale_ptr"]
            return {"stride_se": scale.stride(0), "stride_sk": scale.stride(1)}
        return {}

    @property
    def choices(self) -> dict[str, bool]:
        """What the kernel does besides multiplying."""
        more = {} if self.weights == "int4" else {"SWIGLU": self.first}
        return {"WEIGHTED": not self.first, **more}

    @property
    def block_k(self) -> int:
        """How much of K a step takes."""
        return 128 if self.weights == "fp8" else 64

    def check(self, name: str, run: Run) -> bool:
        """Return whether a launch is right for some experts, over results that were poisoned."""
        import torch

        for each in (run.out, *(() if run.staged is None else (run.staged,))):
            each.view(torch.uint8).fill_(0xFF)  # NaN in every format
        run()
        out = run.results(self.rows)
        if out.isnan().any():
            print(f"    {name} leaves rows out", file=sys.stderr)
            return False
        for expert in (0, EXPERTS // 2, EXPERTS - 1):
            rows = (self.chosen == expert).nonzero().flatten().cuda()
            token = rows // EACH if self.first else rows
            expected = self.rows_of(token) @ self.weights_of(expert).T
            if self.swiglu:
                gate, up = expected.chunk(2, 1)
                expected = torch.nn.functional.silu(gate) * up
            if not self.first:
                expected *= self.weight[rows].double()[:, None]
            error = (out[rows].double() - expected).abs().max() / expected.abs().max()
            if not error < 2**-7:
                print(f"    {name} is wrong by {error:.3g} of the largest", file=sys.stderr)
                return False
        return True


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
    for config in [each for each in built(kernel) if each in have]:
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
                names_of = [f"{each}_fp8" if layer.weights == "fp8" else each for each in ORDERS]
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
    """Return how many programs to launch: as many as run at once, or hardly fewer that store whole blocks of rows.

    A block has so many `tiles`; programs that store all of one at a time read its rows together.
    """
    whole = most // tiles * tiles
    return [most, whole] if MOST_IDLE * most >= most - whole > 0 else [most]


def triton_candidates(layer: Layer) -> Iterator[tuple[str, Run]]:
    """Yield a launch of each configuration that Triton compiles."""
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
                each = passed[name]
                passed[name] = TensorDescriptor(each, list(each.shape), list(each.stride()), shape)
            grid = (passed["n_blocks"] * -(-layer.n // columns),)
            how = {"num_warps": options[0], "num_stages": options[1]}
            passed["num_blocks_ptr"] = None  # programs run at once, those without rows among them
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
            label: each
            for label, each in of_layer(layer)
            if peer == "dense" or layer.check(label, each)
        }
        for peer, of_layer in candidates.items()
    }
    counts = {"trials": TRIALS, "rounds": ROUNDS, "launches": LAUNCHES}
    rates = rates_in_turn(right, layer.flop, **counts, clock_seconds=CLOCK_SECONDS)
    return {"layer": name, "rows": layer.rows, "flop": layer.flop, **rates}


def whole(layers: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """Return the row of layers that run one after the other: TFLOP/s of each, and how much faster aotc is."""
    flop = sum(each["flop"] for each in layers)
    peers = [peer for peer in ("aotc", "triton", "dense") if all(peer in each for each in layers)]
    rates = {peer: flop / sum(each["flop"] / each[peer] for each in layers) for peer in peers}
    row: dict[str, object] = {"layer": " + ".join(each["layer"] for each in layers), **rates}
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
        given = {"even": options.even, "alike": options.alike}
        layers = [
            measure(Layer(options.tokens, weights, first=first, **given), candidates)
            for first in (True, False)
        ]
        rows += [*layers, whole(layers)]
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Attention against cuDNN and Triton, interleaved in one process.

    aotc build benchmarks/attention.toml -o dist
    python benchmarks/attention.py dist/attention.aotc [--work d128 d192 …] [--no-triton] [--json FILE]

aotc and Triton compile the same source file; cuDNN comes with torch. Where torch does not run a
shape on cuDNN, its own choice is the peer. aotc picks its fastest configuration of the archive,
Triton its fastest of `TRITON_CONFIGS`. Then these and cuDNN run in turn, and medians of rounds
are compared. Every configuration is checked against float64 on rows of some heads before it is
timed. Data are random.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers import Launch, built, in_turn, ranked, ratio, triton_holds

ROOT = Path(__file__).parents[1]
ROUNDS, TRIALS, LAUNCHES = 41, 7, 3
LOG2_E = 1.4426950408889634
TOGETHER = 16
NUM_CHECKED_HEADS = 3
NUM_CHECKED_ROWS = 256
# Of the magnitude of the largest result: bf16 rounds to 2^-9, weights and result.
TOLERANCE = 1e-2
TRITON_CONFIGS = (
    (128, 128, 8, 2),
    (128, 64, 8, 2),
    (128, 64, 8, 3),
    (64, 64, 4, 3),
)


@dataclass(frozen=True)
class Shape:
    """One workload: heads and lengths of a forward pass."""

    batch: int
    heads: int
    kv_heads: int
    length: int
    dim: int
    causal: bool
    value_dim: int = 0  # features of values, unless as many as of keys

    @property
    def features(self) -> tuple[int, int]:
        """Features of keys and of values."""
        return self.dim, self.value_dim or self.dim

    @property
    def box(self) -> int:
        """Features of a box of queries or keys: tiles have powers of two."""
        return self.dim if self.dim & (self.dim - 1) == 0 else 64

    @property
    def name(self) -> str:
        """Name in result rows."""
        kind = "causal" if self.causal else "full"
        heads = f"{self.heads}" if self.heads == self.kv_heads else f"{self.heads}/{self.kv_heads}"
        features = f"{self.dim}/{self.value_dim}" if self.value_dim else f"{self.dim}"
        return f"{self.batch}x{heads}x{self.length} d{features} {kind}"

    @property
    def flops(self) -> float:
        """Floating-point operations, without masked scores."""
        whole = 2.0 * self.batch * self.heads * self.length**2 * sum(self.features)
        return whole / 2 if self.causal else whole


def both(*sizes: int, value_dim: int = 0) -> list[Shape]:
    return [Shape(*sizes, causal=causal, value_dim=value_dim) for causal in (False, True)]


WORK = {
    "d128": both(4, 16, 16, 8192, 128),
    "d64": both(4, 32, 32, 8192, 64),
    "d256": both(4, 8, 8, 8192, 256),
    "d192": both(4, 16, 16, 8192, 192, value_dim=128),
    "short": [
        shape
        for length, batch in itertools.product((1024, 2048), (1, 2, 4, 8))
        for shape in both(batch, 64, 8, length, 128)
    ],
}


class Tensors:
    """Operands of a shape, and rows of the result in float64."""

    def __init__(self, shape: Shape) -> None:
        import torch

        def random(heads: int, features: int) -> Any:
            tensor = torch.randn(shape.batch, heads, shape.length, features, device="cuda")
            return tensor.to(torch.bfloat16)

        self.shape = shape
        keys, values = shape.features
        self.q, self.k = random(shape.heads, keys), random(shape.kv_heads, keys)
        self.v = random(shape.kv_heads, values)
        self.out = torch.empty_like(self.q[..., :values])
        rows = torch.randint(0, shape.length, (NUM_CHECKED_ROWS,), device="cuda")
        self.rows = torch.cat([rows, torch.tensor([0, shape.length - 1], device="cuda")])
        self.heads = [(0, 0), (shape.batch - 1, shape.heads - 1), (0, shape.heads // 2)]
        self.expected = [self._expected(*head) for head in self.heads[:NUM_CHECKED_HEADS]]

    def _expected(self, batch: int, head: int) -> Any:
        import torch

        kv_head = head // (self.shape.heads // self.shape.kv_heads)
        q, k, v = self.q[batch, head], self.k[batch, kv_head], self.v[batch, kv_head]
        scores = q[self.rows].double() @ k.double().T * self.shape.dim**-0.5
        if self.shape.causal:
            columns = torch.arange(self.shape.length, device="cuda")
            scores.masked_fill_(columns > self.rows[:, None], -math.inf)
        return scores.softmax(-1) @ v.double()

    def wrong(self, launch: Launch) -> float:
        """Return the error of a launch as a multiple of the tolerance."""
        import torch

        self.out.fill_(float("nan"))
        launch()
        torch.cuda.synchronize()
        errors: list[float] = []
        for (batch, head), expected in zip(self.heads, self.expected, strict=False):
            actual = self.out[batch, head, self.rows].double()
            error = (actual - expected).abs().max() / expected.abs().max()
            errors.append(math.inf if error.isnan() else error.item())
        return max(errors) / TOLERANCE

    def rows_of(self, tensor: Any) -> Any:
        """Return a tensor (heads of all batches, length, dim)."""
        return tensor.view(-1, *tensor.shape[2:])


def aotc_launches(tensors: Tensors, library: Any) -> Iterator[tuple[str, Launch]]:
    """Yield each configuration of the archive."""
    shape = tensors.shape
    kernel = library[f"forward_d{shape.dim}"]
    names = (tensors.q, tensors.k, tensors.v, tensors.out)
    scale = shape.dim**-0.5 * LOG2_E
    scalars = (scale, shape.heads, shape.heads // shape.kv_heads, shape.length, shape.length)
    arguments = (*map(tensors.rows_of, names), *scalars)
    for config in built(kernel):
        yield (
            str(config),
            lambda config=config: kernel.launch(
                arguments, config=config, choices={"CAUSAL": shape.causal}
            ),
        )


def triton_launches(tensors: Tensors) -> Iterator[tuple[str, Launch]]:
    """Yield the configurations of Triton's that compile."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    shape = tensors.shape
    sys.path.insert(0, str(ROOT / "kernels"))
    kernel = importlib.import_module("attention_descriptor").attention_descriptor_kernel
    scale = shape.dim**-0.5 * LOG2_E
    scalars = (scale, shape.heads, shape.heads // shape.kv_heads, shape.length, shape.length)
    for block_m, block_n, warps, stages in TRITON_CONFIGS:
        keys, values = shape.box, shape.features[1]
        blocks = [
            [1, block_m, keys],
            [1, block_n, keys],
            [1, block_n, values],
            [1, block_m, values],
        ]
        named = (tensors.q, tensors.k, tensors.v, tensors.out)
        described = [
            TensorDescriptor.from_tensor(tensors.rows_of(tensor), block)
            for tensor, block in zip(named, blocks, strict=True)
        ]
        grid = (-(-shape.length // block_m) * shape.batch * shape.heads,)

        def launch(
            described=described, grid=grid, tile=(block_m, block_n), options=(warps, stages)
        ):
            kernel[grid](
                *described,
                *scalars,
                HEAD_DIM=shape.dim,
                BLOCK_M=tile[0],
                BLOCK_N=tile[1],
                CAUSAL=shape.causal,
                TOGETHER=TOGETHER,
                num_warps=options[0],
                num_stages=options[1],
            )

        name = f"{block_m}x{block_n}, {warps} warps, {stages} stages"
        if triton_holds(name, launch):
            yield name, launch


def cudnn_launch(tensors: Tensors) -> Launch:
    """Return a launch of cuDNN, or of torch's choice if cuDNN lacks the shape."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    shape = tensors.shape

    def attend() -> None:
        tensors.out = torch.nn.functional.scaled_dot_product_attention(
            tensors.q,
            tensors.k,
            tensors.v,
            is_causal=shape.causal,
            enable_gqa=shape.heads != shape.kv_heads,
        )

    def launch() -> None:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            attend()

    try:
        launch()
    except RuntimeError as error:
        print(f"    cuDNN takes no {shape.name}: {str(error).splitlines()[0]}", flush=True)
        return attend
    return launch


@dataclass(frozen=True)
class Pass:
    """A pass of attention: its workloads, checked operands and peers."""

    name: str
    work: Mapping[str, list[Shape]]
    flops: Callable[[Shape], float]
    tensors: Callable[[Shape], Any]
    aotc: Callable[[Any, Any], Iterator[tuple[str, Launch]]]
    triton: Callable[[Any], Iterator[tuple[str, Launch]]]
    cudnn: Callable[[Any], Launch]


def measure(
    attention_pass: Pass, shape: Shape, library: Any, *, with_triton: bool
) -> dict[str, object]:
    """Return the row of a shape."""
    import torch

    tensors, flops = attention_pass.tensors(shape), attention_pass.flops(shape)
    launches = {"aotc": dict(attention_pass.aotc(tensors, library))}
    if with_triton:
        launches["triton"] = dict(attention_pass.triton(tensors))
    peers: dict[str, Launch] = {}
    chosen: dict[str, str] = {}
    for peer, candidates in launches.items():
        for name in list(candidates):
            wrong = tensors.wrong(candidates[name])
            if not wrong <= 1.0:
                print(f"    {peer}: {name} is wrong by {wrong:.3g} of what is tolerated")
                del candidates[name]
        ranking = ranked(candidates, TRIALS, LAUNCHES, ahead=True)
        for took, name in ranking[:4]:
            print(f"    {peer:7} {flops / took / 1e9:6.1f} TFLOP/s  {name}", flush=True)
        if ranking:
            chosen[f"{peer}_config"] = ranking[0][1]
            peers[peer] = candidates[ranking[0][1]]
    peers["cudnn"] = attention_pass.cudnn(tensors)
    wrong = tensors.wrong(peers["cudnn"])
    if not wrong <= 1.0:
        print(f"    cuDNN is wrong by {wrong:.3g} of what is tolerated")
    times = in_turn(peers, ROUNDS, LAUNCHES, ahead=True)
    row: dict[str, object] = {"work": f"{shape.name}{attention_pass.name}"}
    for name, values in times.items():
        row[f"{name}_tflops"] = flops / statistics.median(values) / 1e9
        if name != "aotc" and "aotc" in times:
            row[f"over_{name}"] = ratio(values, times["aotc"])
    torch.cuda.empty_cache()
    return {**row, **chosen}


def run(attention_pass: Pass, description: str | None) -> int:
    """Measure a pass as the command line says, print rows, and write them as JSON."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("archive", type=Path)
    parser.add_argument(
        "--work", nargs="+", choices=attention_pass.work, default=list(attention_pass.work)
    )
    parser.add_argument("--no-triton", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("TRITON_CACHE_DIR", tempfile.mkdtemp())
    import torch

    import aotc

    library = aotc.load(options.archive)
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, "
        f"cuDNN {torch.backends.cudnn.version()}"
    )
    rows: list[dict[str, object]] = []
    for shape in itertools.chain.from_iterable(attention_pass.work[name] for name in options.work):
        row = measure(attention_pass, shape, library, with_triton=not options.no_triton)
        rows.append(row)
        parts = [
            f"{key.partition('_')[0]} {value:6.1f}"
            for key, value in row.items()
            if key.endswith("_tflops")
        ]
        parts += [
            f"{key.replace('_', ' ')} {value:.3f}"
            for key, value in row.items()
            if key.startswith("over_")
        ]
        print(f"{row['work']:32} {'  '.join(parts)}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


FORWARD = Pass(
    *("", WORK, lambda shape: shape.flops, Tensors, aotc_launches, triton_launches, cudnn_launch)
)


if __name__ == "__main__":
    sys.exit(run(FORWARD, __doc__))

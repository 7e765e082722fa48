"""Serving forms of forward attention by aotc, Triton and torch, interleaved in one process.

    aotc build benchmarks/attention_varlen.toml -o dist
    python benchmarks/attention_varlen.py dist/attention_varlen.aotc [--work varlen fp8 …] [--no-triton]

Sequences of many lengths without padding, windows with sinks, soft caps, prefixes, draft trees,
fp8. aotc and Triton compile `kernels/attention_varlen.py`, and each first picks its fastest
configuration. torch takes part where it has the same (`torch.nn.attention.varlen`). Every
configuration is checked against float64, on rows of some sequences and heads, before it is
timed. Masked scores do not count as work. Data are random, results are poisoned.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers import Launch, built, in_turn, ranked, ratio, triton_holds

ROOT = Path(__file__).parents[1]
ROUNDS, TRIALS, LAUNCHES = 31, 5, 3
DIM = 128
LN_2 = math.log(2.0)
# Of the magnitude of the largest result: bf16 rounds to 2^-9, weights and result; fp8 weights do not exist.
TOLERANCE = 1e-2
TRITON_CONFIGS = ((128, 128, 8, 2), (128, 64, 8, 2), (128, 64, 8, 3), (64, 64, 4, 2))
MANY = (8192, 512, 4096, 1024, 6000, 777, 3072, 2048)


@dataclass(frozen=True)
class Shape:
    """One workload: queries and keys of each sequence, heads, and the mask of a query."""

    name: str
    kernel: str
    queries: tuple[int, ...]
    keys: tuple[int, ...] = ()
    heads: int = 32
    kv_heads: int = 8
    constants: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def lengths(self) -> list[tuple[int, int]]:
        """Queries and keys of each sequence."""
        return list(zip(self.queries, self.keys or self.queries, strict=True))


WORK = {
    "varlen": Shape("many lengths, causal", "varlen", MANY, constants={"CAUSAL": True}),
    "full": Shape("many lengths, full", "varlen", MANY, constants={"CAUSAL": False}),
    "chunk": Shape(
        "512 queries behind 8k", "varlen", (512,) * 8, (8192 + 512,) * 8, constants={"CAUSAL": True}
    ),
    "window": Shape("window of 1k, sinks", "window", (16384,) * 2, constants={"WINDOW": 1024}),
    "soft_cap": Shape("soft cap", "soft_cap", MANY, constants={"SOFT_CAP": 30.0}),
    "prefix": Shape("prefixes", "prefix", MANY),
    "tree": Shape("trees of 64 drafts", "tree", (64,) * 32, (8192 + 64,) * 32),
    "fp8_cache": Shape("fp8 keys and values", "fp8_cache", MANY),
    "fp8": Shape("fp8", "fp8", MANY),
}


class Tensors:
    """Operands of a workload, and rows of the result in float64."""

    def __init__(self, shape: Shape) -> None:
        import torch

        self.shape = shape
        counts = [sum(lengths) for lengths in zip(*shape.lengths, strict=True)]
        kinds = [torch.float8_e4m3fn if "fp8" in shape.kernel else torch.bfloat16] * 3
        if shape.kernel == "fp8_cache":
            kinds[0] = torch.bfloat16
        heads = (shape.heads, shape.kv_heads, shape.kv_heads)
        self.q, self.k, self.v = (
            torch.randn(count, of, DIM, device="cuda").to(kind)
            for count, of, kind in zip((counts[0], counts[1], counts[1]), heads, kinds, strict=True)
        )
        self.out = torch.empty(counts[0], shape.heads, DIM, device="cuda", dtype=torch.bfloat16)
        self.cu_q, self.cu_k = (
            torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)
            for lengths in zip(*shape.lengths, strict=True)
        )
        self.extra = self._extra()
        self.picked = [(0, 0), (len(shape.lengths) - 1, shape.heads - 1), (1, shape.heads // 2)]
        self.rows = [self._rows(sequence) for sequence, _ in self.picked]
        self.expected = [
            self._expected(*picked, rows)
            for picked, rows in zip(self.picked, self.rows, strict=True)
        ]

    def _extra(self) -> dict[str, Any]:
        """Return the kernel's other arguments."""
        import torch

        shape = self.shape
        scales = {
            f"{name}_scale_ptr": torch.rand(of, device="cuda") + 0.5
            for name, of in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads))
        }
        bits = torch.randint(-(1 << 62), 1 << 62, (len(self.q),), device="cuda")
        return {
            "window": {"sink_ptr": torch.randn(shape.heads, device="cuda")},
            "prefix": {"prefix_ptr": (self.cu_k.diff() // 2).contiguous()},
            "tree": {"tree_ptr": bits},
            "fp8_cache": {name: scales[name] for name in ("k_scale_ptr", "v_scale_ptr")},
            "fp8": scales,
        }.get(shape.kernel, {})

    def _rows(self, sequence: int) -> Any:
        import torch

        count = self.shape.lengths[sequence][0]
        picked = torch.randint(0, count, (126,), device="cuda")
        return torch.cat([picked, torch.tensor([0, count - 1], device="cuda")])

    def seen(self, sequence: int, rows: Any) -> Any:
        """Return the mask of a sequence's keys for rows of its queries."""
        import torch

        queries, keys = self.shape.lengths[sequence]
        last_key, key = (rows + keys - queries)[:, None], torch.arange(keys, device="cuda")[None, :]
        if self.shape.kernel == "tree":
            bits = self.extra["tree_ptr"][self.cu_q[sequence] + rows][:, None]
            draft = key - (keys - queries)
            return (draft < 0) | ((bits >> (draft & 63)) & 1 != 0)
        if not self.shape.constants.get("CAUSAL", True):
            return torch.ones(len(rows), keys, dtype=torch.bool, device="cuda")
        seen = key <= last_key
        if self.shape.kernel == "prefix":
            seen |= key < self.extra["prefix_ptr"][sequence]
        if self.shape.kernel == "window":
            seen &= key > last_key - self.shape.constants["WINDOW"]
        return seen

    @property
    def flops(self) -> float:
        """Floating-point operations of both dots, for unmasked scores."""
        import torch

        pairs = 0
        for sequence, (queries, _) in enumerate(self.shape.lengths):
            for part in torch.arange(queries, device="cuda").split(2048):
                pairs += int(self.seen(sequence, part).sum())
        return 4.0 * DIM * self.shape.heads * pairs

    def _expected(self, sequence: int, head: int, rows: Any) -> Any:
        import torch

        shape, kv_head = self.shape, head // (self.shape.heads // self.shape.kv_heads)
        rows_of_sequence = slice(int(self.cu_k[sequence]), int(self.cu_k[sequence + 1]))
        q = self.q[int(self.cu_q[sequence]) + rows, head] if self.q.element_size() > 1 else (
            self.q.view(torch.uint8)[int(self.cu_q[sequence]) + rows, head].view(self.q.dtype)
        )  # fmt: skip
        q, k, v = (
            tensor.double()
            for tensor in (q, self.k[rows_of_sequence, kv_head], self.v[rows_of_sequence, kv_head])
        )
        for name, of in (("q", head), ("k", kv_head)):
            q = q * self.extra.get(f"{name}_scale_ptr", torch.ones(of + 1, device="cuda"))[of]
        scores = q @ k.T * DIM**-0.5
        if "SOFT_CAP" in shape.constants:
            cap = shape.constants["SOFT_CAP"]
            scores = (scores / cap).tanh() * cap
        scores.masked_fill_(~self.seen(sequence, rows), -math.inf)
        if "sink_ptr" in self.extra:
            sink = self.extra["sink_ptr"][head].double().expand(len(rows), 1)
            weights = torch.cat([scores, sink], 1).softmax(-1)[:, :-1]
        else:
            weights = scores.softmax(-1)
        scale = self.extra.get("v_scale_ptr", torch.ones(kv_head + 1, device="cuda"))[kv_head]
        return weights @ v * scale

    def wrong(self, launch: Launch) -> float:
        """Return the error of a launch as a multiple of the tolerance."""
        import torch

        self.out.fill_(float("nan"))
        launch()
        torch.cuda.synchronize()
        worst = 0.0
        pairs = zip(self.picked, self.rows, self.expected, strict=True)
        for (sequence, head), rows, expected in pairs:
            actual = self.out[int(self.cu_q[sequence]) + rows, head].double()
            error = ((actual - expected).abs().max() / expected.abs().max()).item()
            worst = math.inf if math.isnan(error) else max(worst, error)
        return worst / TOLERANCE

    def arguments(self) -> dict[str, Any]:
        """Return the arguments by name, tensors as the kernel has them."""
        shape = self.shape
        return {
            **{name: getattr(self, name).transpose(0, 1) for name in "qkv"},
            "out_ptr": self.out, "cu_q_ptr": self.cu_q, "cu_k_ptr": self.cu_k,
            "scale": DIM**-0.5, "max_queries": max(shape.queries),
            "n_sequences": len(shape.lengths), "n_heads": shape.heads,
            "n_kv_heads": shape.kv_heads, **self.extra,
        }  # fmt: skip


def aotc_launches(tensors: Tensors, library: Any) -> Iterator[tuple[str, Launch]]:
    """Yield each configuration of the archive."""
    kernel, values = library[tensors.shape.kernel], tensors.arguments()
    arguments = [values[param.name] for param in kernel.info.params]
    choices = {name: tensors.shape.constants[name] for name in kernel.info.choices}
    for config in built(kernel):
        yield (
            str(config),
            lambda config=config: kernel.launch(arguments, config=config, choices=choices),
        )


def triton_launches(tensors: Tensors) -> Iterator[tuple[str, Launch]]:
    """Yield the configurations of Triton's that compile."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    if str(ROOT / "kernels") not in sys.path:
        sys.path.insert(0, str(ROOT / "kernels"))
    kernel = importlib.import_module("attention_varlen").attention_varlen_kernel
    shape = tensors.shape
    launches: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {}
    for block_m, block_n, warps, stages in TRITON_CONFIGS:
        values = tensors.arguments()
        for name, rows in (("q", block_m), ("k", block_n), ("v", block_n)):
            values[name] = TensorDescriptor.from_tensor(values[name], [1, rows, DIM])
        constants = {"CAUSAL": shape.kernel != "tree", **shape.constants, "HEAD_DIM": DIM}
        tile = {"BLOCK_M": block_m, "BLOCK_N": block_n, "num_warps": warps, "num_stages": stages}
        grid = (-(-max(shape.queries) // block_m), shape.heads, len(shape.lengths))
        name = f"{block_m}x{block_n}, {warps} warps, {stages} stages"
        launches[name] = {**values, **constants, **tile}, grid
    # All at once; a failed compile raises when it is launched.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for kernel_args, grid in launches.values():
            pool.submit(kernel.warmup, **kernel_args, grid=grid)
    for name, (kernel_args, grid) in launches.items():

        def launch(bound_args=kernel_args, grid=grid) -> None:
            kernel[grid](**bound_args)

        if triton_holds(name, launch):
            yield name, launch


def torch_launch(tensors: Tensors) -> Launch | None:
    """Return torch's attention over packed sequences, where it has the same."""
    shape = tensors.shape
    if shape.kernel != "varlen":
        return None
    try:
        attend = importlib.import_module("torch.nn.attention.varlen").varlen_attn
    except (ImportError, AttributeError):
        return None
    group = shape.heads // shape.kv_heads
    k, v = (tensor.repeat_interleave(group, dim=1) for tensor in (tensors.k, tensors.v))
    longest = [max(lengths) for lengths in zip(*shape.lengths, strict=True)]

    causal = shape.constants["CAUSAL"]
    words: dict[str, Any] = {"is_causal": causal}
    if "window_size" in inspect.signature(attend).parameters:  # of later versions
        words = {"window_size": (-1, 0 if causal else -1)}

    def launch() -> None:
        tensors.out = attend(tensors.q, k, v, tensors.cu_q, tensors.cu_k, *longest, **words)

    return launch


def candidates_of(
    tensors: Tensors, library: Any, *, with_triton: bool
) -> dict[str, dict[str, Launch]]:
    """Return each peer's correct launches."""
    launches = {"aotc": dict(aotc_launches(tensors, library))}
    if with_triton:
        launches["triton"] = dict(triton_launches(tensors))
    dense = torch_launch(tensors)
    if dense is not None:
        launches["torch"] = {"varlen_attn": dense}
    for peer, candidates in launches.items():
        for name in list(candidates):
            try:
                wrong = tensors.wrong(candidates[name])
            except Exception as error:  # noqa: BLE001 - a peer that does not take the shape
                print(f"    {peer}: {name}: {type(error).__name__} {str(error)[:100]}")
                wrong = math.inf
            if not wrong <= 1.0:
                print(f"    {peer}: {name} is wrong by {wrong:.3g} of what is tolerated")
                del candidates[name]
    return {peer: candidates for peer, candidates in launches.items() if candidates}


def measure(shape: Shape, library: Any, *, with_triton: bool) -> dict[str, object]:
    """Return the row of a workload."""
    import torch

    tensors = Tensors(shape)
    flops = tensors.flops
    row: dict[str, object] = {"work": shape.name}
    peers: dict[str, Launch] = {}
    for peer, candidates in candidates_of(tensors, library, with_triton=with_triton).items():
        ranking = ranked(candidates, TRIALS, LAUNCHES)
        for took, name in ranking[:3]:
            print(f"    {peer:7} {flops / took / 1e9:6.1f} TFLOP/s  {name}", flush=True)
        row[f"{peer}_config"], peers[peer] = ranking[0][1], candidates[ranking[0][1]]
    times = in_turn(peers, ROUNDS, LAUNCHES, ahead=True)
    for name, values in times.items():
        row[f"{name}_tflops"] = flops / statistics.median(values) / 1e9
        if name != "aotc" and "aotc" in times:
            row[f"over_{name}"] = ratio(values, times["aotc"])
    torch.cuda.empty_cache()
    return row


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print rows, and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--work", nargs="+", choices=WORK, default=list(WORK))
    parser.add_argument("--no-triton", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    os.environ.setdefault("TRITON_CACHE_DIR", tempfile.mkdtemp())
    import torch

    import aotc

    library = aotc.load(options.archive)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    rows: list[dict[str, object]] = []
    for name in options.work:
        row = measure(WORK[name], library, with_triton=not options.no_triton)
        rows.append(row)
        numbers = {key: value for key, value in row.items() if isinstance(value, float)}
        text = "  ".join(f"{key.replace('_', ' ')} {value:.3f}" for key, value in numbers.items())
        print(f"{row['work']:24} {text}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

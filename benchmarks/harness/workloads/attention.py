"""Attention forward and backward by sources written for aotc; `attention_plain` has plain ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.harness import torch_peers
from benchmarks.harness.operands import (
    Arguments,
    Array,
    Arrays,
    HostArrays,
    Part,
    Tolerance,
    Wide,
)
from benchmarks.harness.workload import Configs, Item, Plans, Step, Workload, tiles

LOG2_E = 1.4426950408889634
_CHECKED_ROWS = 256
# bf16 rounds to 2^-9, weights and result, and gradients of scores besides.
TOLERANCE = Tolerance(largest=1e-2)
GRADIENT_TOLERANCE = Tolerance(largest=2e-2)


@dataclass(frozen=True)
class Shape:
    """Heads, lengths and features of a pass."""

    batch: int
    heads: int
    kv_heads: int
    length: int
    dim: int
    causal: bool
    value_dim: int = 0  # features of values, unless as many as of keys

    @property
    def name(self) -> str:
        """Name in result rows."""
        heads = f"{self.heads}" if self.heads == self.kv_heads else f"{self.heads}/{self.kv_heads}"
        features = f"{self.dim}/{self.value_dim}" if self.value_dim else f"{self.dim}"
        kind = "causal" if self.causal else "full"
        return f"{self.batch}×{heads}×{self.length}, d{features}, {kind}"

    @property
    def flops(self) -> float:
        """Floating-point operations of the forward pass, without masked scores."""
        features = self.dim + (self.value_dim or self.dim)
        whole = 2.0 * self.batch * self.heads * self.length**2 * features
        return whole / 2 if self.causal else whole

    @property
    def group(self) -> int:
        """Heads that share keys and values."""
        return self.heads // self.kv_heads

    def operands(self, arrays: Arrays) -> Arguments:
        """Return tensors (heads of all batches, length, features) and numbers, by kernels' names."""
        heads, kv_heads = self.batch * self.heads, self.batch * self.kv_heads
        values, scale = self.value_dim or self.dim, self.dim**-0.5
        return {
            "q": arrays.normal(heads, self.length, self.dim),
            "k": arrays.normal(kv_heads, self.length, self.dim),
            "v": arrays.normal(kv_heads, self.length, values),
            "out": arrays.empty(heads, self.length, values),
            "scale": scale,
            "scale_log2": scale * LOG2_E,
            "n_heads": self.heads,
            "heads_per_kv_head": self.group,
            "n_queries": self.length,
            "n_keys": self.length,
        }

    def checked_heads(self) -> list[int]:
        """Return some heads of all batches."""
        count = self.batch * self.heads
        return sorted({0, self.heads // 2, count - 1})


def full_and_causal(*sizes: int, value_dim: int = 0) -> list[Shape]:
    """Return a full and a causal shape."""
    return [Shape(*sizes, causal=causal, value_dim=value_dim) for causal in (False, True)]


def softmax(scores: Wide) -> Wide:
    """Return weights of rows of scores."""
    power = np.exp(scores - scores.max(-1, keepdims=True))
    return power / power.sum(-1, keepdims=True)


def scores_of(q: Wide, k: Wide, rows: Wide, *, causal: bool) -> Wide:
    """Return scaled scores of the queries `rows`, -inf if masked."""
    scores = q @ k.T * q.shape[-1] ** -0.5
    seen = np.arange(len(k)) <= rows[:, None]
    return np.where(seen, scores, -np.inf) if causal else scores


def forward_reference(shape: Shape, arrays: Arrays, args: Arguments) -> Iterator[Part]:
    """Yield rows of some heads."""
    rng = np.random.default_rng(0)
    count = min(_CHECKED_ROWS, shape.length)
    for head in shape.checked_heads():
        rows = np.unique([0, shape.length - 1, *rng.integers(0, shape.length, count)])
        q, k, v = (
            arrays.wide(args[name][head if name == "q" else head // shape.group]) for name in "qkv"
        )
        scores = scores_of(q[rows], k, rows, causal=shape.causal)
        yield Part("out", (head, rows), softmax(scores) @ v)


# BLOCK_M, BLOCK_N, warps, stages
_TRITON = ((128, 128, 8, 2), (128, 64, 8, 2), (128, 64, 8, 3), (64, 64, 4, 3))
_TILE = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")


def _forward(shape: Shape) -> Workload:
    kernel = f"forward_d{shape.dim}"
    return Workload(
        name=shape.name,
        manifest="benchmarks/attention.toml",
        work=shape.flops,
        unit="TFLOP/s",
        operands=shape.operands,
        reference=lambda arrays, args: forward_reference(shape, arrays, args),
        tolerance=TOLERANCE,
        outputs=("out",),
        kernels=(kernel,),
        choices={"CAUSAL": shape.causal},
        triton={kernel: [config | {"TOGETHER": 16} for config in tiles(_TILE, *_TRITON)]},
        peers={"cuDNN": torch_peers.attention(shape.batch, causal=shape.causal)},
    )


# ---- gradients ----------------------------------------------------------------------------------


def _forward_pass(shape: Shape, arrays: Arrays, args: Arguments) -> tuple[Array, Array]:
    """Return the result of the forward pass, and the log-sum-exp of each row's scores."""
    if not isinstance(arrays, HostArrays):
        return torch_peers.forward_pass(*(args[name] for name in "qkv"), causal=shape.causal)
    outs, sums, rows = [], [], np.arange(shape.length)
    for head in range(len(args["q"])):
        q, k, v = (arrays.wide(args[name][head]) for name in "qkv")
        scores = scores_of(q, k, rows, causal=shape.causal)
        outs.append(softmax(scores) @ v)
        sums.append(np.log(np.exp(scores).sum(-1)))
    return arrays.array(outs, "bf16"), arrays.array(sums, "fp32")


def backward_operands(shape: Shape, arrays: Arrays) -> Arguments:
    """Return the operands of a backward pass."""
    args = shape.operands(arrays)
    size = (shape.batch * shape.heads, shape.length, shape.dim)
    args["out"], lse = _forward_pass(shape, arrays, args)
    args |= {"dout": arrays.normal(*size), "lse": lse, "lse_log2": lse * LOG2_E}
    args |= {"delta": arrays.empty(*size[:2], dtype="fp32")}
    args |= {f"d{name}": arrays.empty(*size) for name in "qkv"}
    return args


def backward_reference(shape: Shape, arrays: Arrays, args: Arguments) -> Iterator[Part]:
    """Yield the gradients of some heads."""
    scale = shape.dim**-0.5
    for head in {0, shape.batch * shape.heads - 1}:
        q, k, v, dout = (arrays.wide(args[name][head]) for name in ("q", "k", "v", "dout"))
        dq, dk, dv = (np.zeros_like(q) for _ in range(3))
        for rows in np.array_split(np.arange(shape.length), -(-shape.length // 1024)):
            weights = softmax(scores_of(q[rows], k, rows, causal=shape.causal))
            dweights = dout[rows] @ v.T
            dscores = weights * (dweights - (weights * dweights).sum(-1, keepdims=True)) * scale
            dq[rows] = dscores @ k
            dk += dscores.T @ q[rows]
            dv += weights.T @ dout[rows]
        yield from (Part("dq", head, dq), Part("dk", head, dk), Part("dv", head, dv))


# By head length: kernels of dK and dV that store gradients of scores, and of dQ from these.
_STORED = {
    128: ("backward_d128_stored", "backward_stored"),
    256: ("backward_pair_stored", "backward_stored"),
}
_HEADS_AT_A_TIME = (4, 8, 64)
_BY_GRADIENT = (("backward_pair", "backward_queries"), ("backward_dk", "backward_dv",
                                                        "backward_queries"))  # fmt: skip
_PARTS = ("q", "k", "v", "dout", "dq", "dk", "dv", "lse_log2", "delta")


def _backward_plans(
    shape: Shape, arrays: Arrays, args: Arguments, configs: Configs
) -> Iterator[Plans]:
    """Yield passes of delta, gradients and conversion, and passes with stored gradients of scores."""
    choices = {"CAUSAL": shape.causal, "HEAD_DIM": shape.dim}
    elems = args["q"].shape[0] * shape.length * shape.dim
    pointers = {"out_ptr": args["out"], "dout_ptr": args["dout"], "delta_ptr": args["delta"]}
    pointers |= {"dq_ptr": None, "n_rows": elems // shape.dim}
    delta = Step("delta", None, pointers, choices, pdl=False)
    if shape.dim in _STORED:
        yield from _stored_plans(shape, arrays, args, configs, delta)
    if shape.dim != 256:
        sums = arrays.empty(*args["q"].shape, dtype="fp32")
        first = Step("delta", None, pointers | {"dq_ptr": sums}, choices, pdl=False)
        last = {"sums_ptr": sums, "out_ptr": args["dq"], "n_elems": elems}
        for config in configs(f"backward_d{shape.dim}", choices):
            gradients = Step(f"backward_d{shape.dim}", config, {"dq": sums}, choices)
            yield (first, gradients, Step("scale_rows", None, last, pdl=False))
        return
    for kernels in _BY_GRADIENT:
        slots = [[Step(name, c, {}, choices) for c in configs(name, choices)] for name in kernels]
        yield (delta, *slots)


def _stored_plans(
    shape: Shape, arrays: Arrays, args: Arguments, configs: Configs, delta: Step
) -> Iterator[Plans]:
    choices = {"CAUSAL": shape.causal, "HEAD_DIM": shape.dim}
    first, last = _STORED[shape.dim]
    num_heads = len(args["q"])
    stored = {
        block: arrays.empty(num_heads, shape.length, -(-shape.length // block) * block)
        for block in (128, 256)
    }
    for block, heads in itertools.product((128, 256), _HEADS_AT_A_TIME):
        heads = min(heads, num_heads)  # noqa: PLW2901
        dscores = stored[block][:heads]
        pairs = itertools.product(configs(first, choices), configs(last, choices))
        for first_config, last_config in pairs:
            if first_config["BLOCK_Q"] != block or last_config["BLOCK_M"] != block:
                continue
            steps: list[Step] = [delta]
            for begin in range(0, num_heads, heads):
                part = {name: args[name][begin : begin + heads] for name in _PARTS}
                part |= dict.fromkeys(("dscores", "dscores_ptr"), dscores[: len(part["q"])])
                steps += [
                    Step(first, first_config, part, choices),
                    Step(last, last_config, part, choices),
                ]
            yield tuple(steps)


_BACKWARD_TRITON = ((64, 128, 8, 2), (64, 128, 8, 1), (64, 64, 4, 2), (128, 64, 8, 1))


def _backward(shape: Shape) -> Workload:
    kernel = f"backward_d{shape.dim}"
    configs = [
        config | {"NARROW": narrow, "TOGETHER": 2}
        for config in tiles(_TILE, *_BACKWARD_TRITON)
        for narrow in (False, True)
    ]
    absent = dict.fromkeys(_STORED.get(shape.dim, ()), ())
    return Workload(
        name=f"{shape.name}, backward",
        manifest="benchmarks/attention_backward.toml",
        work=2.5 * shape.flops,  # five dots, where the forward pass has two
        unit="TFLOP/s",
        operands=lambda arrays: backward_operands(shape, arrays),
        reference=lambda arrays, args: backward_reference(shape, arrays, args),
        tolerance=GRADIENT_TOLERANCE,
        outputs=("dq", "dk", "dv", "delta"),
        plans=lambda arrays, args, built: _backward_plans(shape, arrays, args, built),
        triton={kernel: configs, **absent} if shape.dim != 256 else None,
        peers={"cuDNN": torch_peers.attention_gradients(shape.batch, causal=shape.causal)},
    )


_FORWARD_SHAPES: dict[str, list[Any]] = {
    "d128": full_and_causal(4, 16, 16, 8192, 128),
    "d64": full_and_causal(4, 32, 32, 8192, 64),
    "d256": full_and_causal(4, 8, 8, 8192, 256),
    "d192": full_and_causal(4, 16, 16, 8192, 192, value_dim=128),
    "short": [
        shape
        for length, batch in itertools.product((1024, 2048), (1, 2, 4, 8))
        for shape in full_and_causal(batch, 64, 8, length, 128)
    ],
}
_FORWARD_TITLE = "Attention forward, source written for aotc"
_BACKWARD_TITLE = "Attention backward, source written for aotc"
ITEMS = {
    name: Item("attention", f"{_FORWARD_TITLE}, {name}", [_forward(shape) for shape in shapes])
    for name, shapes in _FORWARD_SHAPES.items()
} | {
    f"backward-{name}": Item(
        "attention", f"{_BACKWARD_TITLE}, {name}", [_backward(s) for s in _FORWARD_SHAPES[name]]
    )
    for name in ("d128", "d64", "d256")
}
TINY = [
    _forward(Shape(1, 2, 1, 70, 64, causal=True)),
    _forward(Shape(1, 1, 1, 70, 192, causal=False, value_dim=128)),
    _backward(Shape(1, 1, 1, 72, 64, causal=True)),
    _backward(Shape(1, 1, 1, 128, 128, causal=False)),
    _backward(Shape(1, 1, 1, 72, 256, causal=True)),
]

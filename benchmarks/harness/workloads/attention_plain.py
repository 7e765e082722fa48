"""Attention from plain sources, without help for a compiler: `benchmarks/attention_plain.py`."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.harness import torch_peers
from benchmarks.harness.operands import Arguments, Arrays
from benchmarks.harness.workload import Configs, Item, Plans, Step, Workload
from benchmarks.harness.workloads.attention import (
    GRADIENT_TOLERANCE,
    TOLERANCE,
    Shape,
    backward_operands,
    backward_reference,
    forward_reference,
    full_and_causal,
)

_MANIFEST = "benchmarks/attention_plain.toml"


def _forward_plans(
    kernel: str, shape: Shape, arrays: Arrays, args: Arguments, configs: Configs
) -> Iterator[Plans]:
    lse = arrays.empty(shape.batch * shape.heads, shape.length, dtype="fp32")
    flat = {name: args[name].reshape(-1, shape.dim) for name in ("q", "k", "v", "out")}
    values = {**flat, "lse_ptr": lse, "n_ctx": shape.length}
    choices = {"CAUSAL": shape.causal, "HEAD_DIM": shape.dim}
    for config in configs(kernel, choices):
        yield (Step(kernel, config, values, choices),)


def _forward(shape: Shape, kernel: str = "forward") -> Workload:
    return Workload(
        name=shape.name,
        manifest=_MANIFEST,
        work=shape.flops,
        unit="TFLOP/s",
        operands=shape.operands,
        reference=lambda arrays, args: forward_reference(shape, arrays, args),
        tolerance=TOLERANCE,
        outputs=("out",),
        plans=lambda arrays, args, configs: _forward_plans(kernel, shape, arrays, args, configs),
        peers={"cuDNN": torch_peers.attention(shape.batch, causal=shape.causal)},
    )


def _backward_plans(shape: Shape, _: Arrays, args: Arguments, configs: Configs) -> Iterator[Plans]:
    """Yield passes of delta, keys and queries."""
    heads, choices = shape.batch * shape.heads, {"CAUSAL": shape.causal, "HEAD_DIM": shape.dim}
    names = ("q", "k", "v", "out", "dout", "dq", "dk", "dv", "lse", "delta")
    values = {f"{name}_ptr": args[name] for name in names}
    values |= {"n_ctx": shape.length, "n_rows": heads * shape.length}
    delta = Step("delta", None, values, choices)

    def step(kernel: str, rows: str, config: object) -> Step:
        assert isinstance(config, dict)
        grid = (shape.length // config[rows], heads)
        return Step(kernel, config, values, choices, grid=grid)

    keys = [step("backward_keys", "BLOCK_N", c) for c in configs("backward_keys", choices)]
    queries = [step("backward_queries", "BLOCK_M", c) for c in configs("backward_queries", choices)]
    yield (delta, keys, queries)


def _backward(shape: Shape) -> Workload:
    return Workload(
        name=f"{shape.name}, backward",
        manifest=_MANIFEST,
        work=2.5 * shape.flops,
        unit="TFLOP/s",
        operands=lambda arrays: backward_operands(shape, arrays),
        reference=lambda arrays, args: backward_reference(shape, arrays, args),
        tolerance=GRADIENT_TOLERANCE,
        outputs=("dq", "dk", "dv", "delta"),
        plans=lambda arrays, args, configs: _backward_plans(shape, arrays, args, configs),
        peers={"cuDNN": torch_peers.attention_gradients(shape.batch, causal=shape.causal)},
    )


def _rescaled(shape: Shape) -> Workload:
    return _forward(shape, "forward_rescaled")


_SHAPES = {
    "d64": full_and_causal(4, 32, 32, 8192, 64),
    "d128": full_and_causal(4, 16, 16, 8192, 128),
    "d256": full_and_causal(4, 8, 8, 8192, 256),
}
ITEMS = (
    {
        name: Item(
            "attention", f"Attention forward, plain source, {name}", list(map(_forward, shapes))
        )
        for name, shapes in _SHAPES.items()
    }
    | {
        f"rescaled-{name}": Item(
            "attention",
            f"Attention forward, plain source, conditional rescaling, {name}",
            list(map(_rescaled, shapes)),
        )
        for name, shapes in _SHAPES.items()
    }
    | {
        f"backward-{name}": Item(
            "attention",
            f"Attention backward through pointers, plain source, {name}",
            list(map(_backward, _SHAPES[name])),
        )
        for name in ("d64", "d128")
    }
)
TINY = [
    _forward(Shape(1, 2, 2, 256, 64, causal=True)),
    _backward(Shape(1, 1, 1, 128, 64, causal=True)),
    _backward(Shape(1, 1, 1, 128, 64, causal=False)),
    _rescaled(Shape(1, 1, 1, 256, 64, causal=True)),
]

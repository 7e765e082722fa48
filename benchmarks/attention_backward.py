"""The backward pass of attention against cuDNN and Triton, interleaved in one process.

    aotc build benchmarks/attention_backward.toml -o dist
    python benchmarks/attention_backward.py dist/attention_backward.aotc [--work d128 d64] [--no-triton]

A pass is three kernels: the sums of dOut * Out, the gradients, and the conversion of dQ from its
fp32 accumulator. With heads of 256 there is no conversion: one kernel computes dQ, and one or
two compute dK and dV. The fastest configuration of each takes part. Each kernel starts while the
previous one ends (PDL). aotc and Triton run the same source file; cuDNN comes with torch,
through autograd. Every configuration is checked against float64 gradients of some heads before
it is timed. Data are random.
"""

from __future__ import annotations

import importlib
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from attention import LOG2_E, ROOT, Pass, Shape, both, run
from peers import Launch, built, ranked, triton_holds

# Of the magnitude of the largest gradient: weights and gradients of scores are rounded to bf16.
TOLERANCE = 2e-2
TRITON_CONFIGS = ((64, 128, 8, 2), (64, 128, 8, 1), (64, 64, 4, 2), (128, 64, 8, 1))
DELTA_ROWS, SCALE_ELEMS = 16, 2048
TOGETHER = 2
ONE_PASS_DIMS = (64, 128)
TRIALS_BY_GRADIENT = 3
NUM_DOTS = {
    "backward_queries": 3,
    "backward_pair": 4,
    "backward_dk": 3,
    "backward_dv": 2,
    "backward_pair_stored": 4,
    "backward_d128_stored": 4,
    "backward_stored": 1,
}
# By head length: kernels for dK and dV with stored score gradients, and the dQ kernels reading
# these.
STORED = {
    128: ("backward_d128_stored", "backward_stored"),
    256: ("backward_pair_stored", "backward_stored"),
}
HEADS_AT_A_TIME = (4, 8, 64)
# Kernels for all gradients together, and how many passes of them to try.
PASSES = {
    ("backward_pair", "backward_queries"): 2,
    ("backward_dk", "backward_dv", "backward_queries"): 1,
}


WORK = {
    "d128": both(4, 16, 16, 8192, 128),
    "d64": both(4, 32, 32, 8192, 64),
    "d256": both(4, 8, 8, 8192, 256),
}


def flops(shape: Shape) -> float:
    """Return the operations of a pass: five dots where the forward pass has two."""
    return 2.5 * shape.flops


class Tensors:
    """Operands of a shape, and the gradients of some heads in float64."""

    def __init__(self, shape: Shape) -> None:
        import torch

        def random() -> Any:
            size = (shape.batch, shape.heads, shape.length, shape.dim)
            return torch.randn(size, device="cuda").to(torch.bfloat16)

        self.shape = shape
        self.q, self.k, self.v, self.dout = (random() for _ in range(4))
        self.out, lse = self._forward()
        self.lse_log2 = (lse * LOG2_E).contiguous()
        self.delta = torch.empty_like(self.lse_log2)
        self.sums = torch.empty(self.q.shape, dtype=torch.float32, device="cuda")
        self.grads = [torch.empty_like(tensor) for tensor in (self.q, self.k, self.v)]
        self.dscores = torch.empty(0, dtype=self.q.dtype, device="cuda")
        self.num_heads = shape.batch * shape.heads
        if shape.dim in STORED:
            size = (self.num_heads, shape.length, shape.length)
            self.dscores = torch.empty(size, dtype=self.q.dtype, device="cuda")
        self.heads = [(0, 0), (shape.batch - 1, shape.heads - 1)]
        self.expected = [self._expected(*head) for head in self.heads]

    def _scores(self, q: Any, k: Any) -> Any:
        import torch

        scores = q @ k.transpose(-1, -2) * self.shape.dim**-0.5
        if self.shape.causal:
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device="cuda").tril()
            scores = scores.masked_fill(~seen, -math.inf)
        return scores

    def _forward(self) -> tuple[Any, Any]:
        """Return the result of the forward pass and the log-sum-exp of each row's scores."""
        import torch

        out, lse = torch.empty_like(self.q), []
        for batch in range(self.shape.batch):
            for head in range(self.shape.heads):
                scores = self._scores(self.q[batch, head].float(), self.k[batch, head].float())
                lse.append(scores.logsumexp(-1))
                out[batch, head] = (scores.softmax(-1) @ self.v[batch, head].float()).to(out.dtype)
        return out, torch.stack(lse).view(self.shape.batch * self.shape.heads, self.shape.length)

    def _expected(self, batch: int, head: int) -> list[Any]:
        import torch

        inputs = [
            tensor[batch, head].double().requires_grad_() for tensor in (self.q, self.k, self.v)
        ]
        out = self._scores(inputs[0], inputs[1]).softmax(-1) @ inputs[2]
        return list(torch.autograd.grad(out, inputs, self.dout[batch, head].double()))

    def wrong(self, launch: Launch) -> float:
        """Return the error of a launch as a multiple of the tolerance."""
        import torch

        for tensor in (*self.grads, self.sums, self.delta, self.dscores):
            tensor.fill_(float("nan"))
        launch()
        torch.cuda.synchronize()
        errors: list[float] = []
        for (batch, head), expected in zip(self.heads, self.expected, strict=True):
            for grad, exact in zip(self.grads, expected, strict=True):
                error = (grad[batch, head].double() - exact).abs().max() / exact.abs().max()
                errors.append(math.inf if error.isnan() else error.item())
        return max(errors) / TOLERANCE

    def rows_of(self, tensor: Any) -> Any:
        """Return a tensor (heads of all batches, length, dim)."""
        return tensor.view(-1, self.shape.length, self.shape.dim)


def aotc_launches(tensors: Tensors, library: Any) -> Iterator[tuple[str, Launch]]:
    """Yield each configuration of the archive."""
    shape = tensors.shape
    if shape.dim in STORED:
        yield from _stored_passes(tensors, library)
    if shape.dim not in ONE_PASS_DIMS:
        yield from _launches_by_gradient(tensors, library)
        return
    kernel, delta = library[f"backward_d{shape.dim}"], library["delta"]
    scale_rows = library["scale_rows"]
    dq, dk, dv = tensors.grads
    scale, num_rows = shape.dim**-0.5, tensors.q.numel() // shape.dim
    first = (tensors.out, tensors.dout, tensors.delta, tensors.sums, num_rows)
    last = (tensors.sums, dq, scale, tensors.q.numel())
    described = (tensors.q, tensors.k, tensors.v, tensors.dout)
    gradients = (tensors.sums, dk, dv)
    scalars = (scale, scale * LOG2_E, 1, shape.length, shape.length)
    arguments = (
        *map(tensors.rows_of, described),
        tensors.lse_log2,
        tensors.delta,
        *map(tensors.rows_of, gradients),
        *scalars,
    )
    choices = {"CAUSAL": shape.causal}
    for config in built(kernel):

        def launch(config=config) -> None:
            delta.launch(first, choices={"HEAD_DIM": shape.dim})
            kernel.launch(arguments, config=config, choices=choices)
            scale_rows.launch(last)

        yield str(config), launch


def _launches_by_gradient(tensors: Tensors, library: Any) -> Iterator[tuple[str, Launch]]:
    """Yield passes of several kernels, each in its fastest configuration, and in the next one."""
    sums = sums_of(tensors, library)
    candidates = {
        name: fastest_first(library, name, tensors)
        for name in dict.fromkeys(itertools.chain.from_iterable(PASSES))
    }
    for names, count in PASSES.items():
        for chosen in itertools.islice(
            zip(*(candidates[name] for name in names), strict=False), count
        ):

            def whole(chosen=chosen) -> None:
                sums()
                for launch in chosen:
                    launch.whole()

            yield ", ".join(launch.label for launch in chosen), whole


def _stored_passes(tensors: Tensors, library: Any) -> Iterator[tuple[str, Launch]]:
    """Yield passes with stored score gradients, a few heads at a time."""
    sums, num_heads = sums_of(tensors, library), tensors.num_heads
    first, last = (fastest_first(library, name, tensors) for name in STORED[tensors.shape.dim])
    for block, heads in itertools.product((128, 256), HEADS_AT_A_TIME):
        chosen = (
            next(launch for launch in first if launch.config["BLOCK_Q"] == block),
            next(launch for launch in last if launch.config["BLOCK_M"] == block),
        )

        def in_turn(heads=heads, chosen=chosen) -> None:
            sums()
            for begin in range(0, num_heads, heads):
                for launch in chosen:
                    launch.part(slice(begin, begin + heads))

        yield ", ".join((*(launch.label for launch in chosen), f"{heads} heads at a time")), in_turn


def sums_of(tensors: Tensors, library: Any) -> Launch:
    """Return the launch of the sums of dOut * Out, after one launch."""
    shape = tensors.shape
    arguments = (tensors.out, tensors.dout, tensors.delta, None, tensors.q.numel() // shape.dim)

    def sums() -> None:
        library["delta"].launch(arguments, choices={"HEAD_DIM": shape.dim})

    sums()
    return sums


@dataclass(frozen=True)
class ConfiguredLaunch:
    """A launch of a kernel of several in one of its configurations, for some of the heads or for all."""

    label: str
    config: dict[str, object]
    part: Callable[[slice], None]
    whole: Launch


def fastest_first(library: Any, name: str, tensors: Tensors) -> list[ConfiguredLaunch]:
    """Return the configurations of a kernel in order of time; print the first."""
    launches = dict(launches_of(library, name, tensors))
    order = ranked({key: launch.whole for key, launch in launches.items()}, TRIALS_BY_GRADIENT, 1)
    num_passes = NUM_DOTS[name] / 2  # a forward pass is two dots
    rate = num_passes * tensors.shape.flops / order[0][0] / 1e9
    print(f"    aotc    {rate:6.1f} TFLOP/s  {order[0][1]}", flush=True)
    return [launches[label] for _, label in order]


def launches_of(
    library: Any, name: str, tensors: Tensors
) -> Iterator[tuple[str, ConfiguredLaunch]]:
    """Yield each configuration of a kernel for some of the gradients."""
    shape, kernel = tensors.shape, library[name]
    choices = {"HEAD_DIM": shape.dim, "CAUSAL": shape.causal}
    choices = {key: value for key, value in choices.items() if key in kernel.info.choices}
    rows = {
        key: tensors.rows_of(tensor)
        for key, tensor in zip(
            ("q", "k", "v", "dout", "dq", "dk", "dv"),
            (tensors.q, tensors.k, tensors.v, tensors.dout, *tensors.grads),
            strict=True,
        )
    }
    rows |= {"lse_log2": tensors.lse_log2, "delta": tensors.delta}
    scale = shape.dim**-0.5
    scalars = {"scale": scale, "scale_log2": scale * LOG2_E, "heads_per_kv_head": 1}
    scalars |= {"n_queries": shape.length, "n_keys": shape.length}
    for config in built(kernel, choices):
        # A kernel with its own grid-dependency wait starts while the previous kernel ends.
        waits = any(
            variant.waits_pdl for variant in kernel.info.variants if variant.config == config
        )

        def part(heads: slice, config=config, waits=waits) -> None:
            named = {key: tensor[heads] for key, tensor in rows.items()} | scalars
            count = min(heads.stop, tensors.num_heads) - heads.start
            named |= dict.fromkeys(("dscores", "dscores_ptr"), tensors.dscores[:count])
            arguments = [named[param.name] for param in kernel.info.params]
            kernel.launch(arguments, config=config, choices=choices, pdl=waits)

        label = f"{name} {config}"
        yield (
            label,
            ConfiguredLaunch(
                label, config, part, lambda part=part: part(slice(0, tensors.num_heads))
            ),
        )


def triton_launches(tensors: Tensors) -> Iterator[tuple[str, Launch]]:
    """Yield the configurations of Triton's that compile."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    shape = tensors.shape
    sys.path.insert(0, str(ROOT / "kernels"))
    module = importlib.import_module("attention_backward")
    dq, dk, dv = tensors.grads
    scale, count = shape.dim**-0.5, tensors.q.numel()
    num_rows = count // shape.dim
    scalars = (scale, scale * LOG2_E, 1, shape.length, shape.length)
    for (block_m, block_n, warps, stages), narrow in itertools.product(
        TRITON_CONFIGS, (False, True)
    ):

        def described(tensor: Any, rows: int) -> Any:
            block = [1, rows, shape.dim]
            return TensorDescriptor.from_tensor(tensors.rows_of(tensor), block)

        arguments = (
            described(tensors.q, block_m),
            described(tensors.k, block_n),
            described(tensors.v, block_n),
            described(tensors.dout, block_m),
            TensorDescriptor.from_tensor(tensors.lse_log2, [1, block_m]),
            TensorDescriptor.from_tensor(tensors.delta, [1, block_m]),
            described(tensors.sums, block_m),
            None,
            described(dk, block_n),
            described(dv, block_n),
            *scalars,
        )
        meta = {"HEAD_DIM": shape.dim, "BLOCK_M": block_m, "BLOCK_N": block_n}
        meta |= {"CAUSAL": shape.causal, "NARROW": narrow, "TOGETHER": TOGETHER}
        meta |= {"num_warps": warps, "num_stages": stages}
        grid = (-(-shape.length // block_n) * shape.batch * shape.heads,)

        def launch(arguments=arguments, meta=meta, grid=grid) -> None:
            module.attention_delta_kernel[(-(-num_rows // DELTA_ROWS),)](
                tensors.out, tensors.dout, tensors.delta, tensors.sums, num_rows,
                HEAD_DIM=shape.dim, BLOCK_M=DELTA_ROWS,
            )  # fmt: skip
            module.attention_backward_kernel[grid](*arguments, **meta)
            module.scale_rows_kernel[(-(-count // SCALE_ELEMS),)](
                tensors.sums, dq, scale, count, BLOCK=SCALE_ELEMS
            )

        name = f"{block_m}x{block_n}, {warps} warps, {stages} stages, {narrow=}"
        if triton_holds(name, launch):
            yield name, launch


def cudnn_launch(tensors: Tensors) -> Launch:
    """Return a launch of cuDNN."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    inputs = [tensor.detach().requires_grad_() for tensor in (tensors.q, tensors.k, tensors.v)]
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        out = torch.nn.functional.scaled_dot_product_attention(
            *inputs, is_causal=tensors.shape.causal
        )

    def launch() -> None:
        tensors.grads = list(torch.autograd.grad(out, inputs, tensors.dout, retain_graph=True))

    return launch


BACKWARD = Pass(*(" backward", WORK, flops, Tensors, aotc_launches, triton_launches, cudnn_launch))


if __name__ == "__main__":
    sys.exit(run(BACKWARD, __doc__))

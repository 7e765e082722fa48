"""Peers that torch has: cuBLAS, cuDNN, its own functions, and copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.harness.operands import Arguments
from benchmarks.harness.task import tell
from benchmarks.harness.workload import Launch, Peer


def copy(source: str, target: str, share: float = 1.0) -> Peer:
    """Return a copy from one operand to another of the same size."""
    return Peer(
        lambda args: lambda: args[target].copy_(args[source].reshape(args[target].shape)),
        share,
        is_checked=False,
    )


def matmul(a: str, b: str, out: str, *, transposed: bool = True) -> Peer:
    """Return cuBLAS' product, of b stored by columns if `transposed`; batches of it for three axes."""

    def bind(args: Arguments) -> Launch:
        import torch

        left, right, result = args[a], args[b], args[out]
        right = right.mT if transposed else right
        product = torch.bmm if left.dim() == 3 else torch.mm
        return lambda: product(left, right, out=result)

    return Peer(bind)


def scaled_matmul(scales: Callable[[Arguments], tuple[Any, Any]], *, fast: bool) -> Peer:
    """Return cuBLAS' product of fp8 with scales, into the operand "c"."""

    def bind(args: Arguments) -> Launch:
        import torch

        multiply: Any = torch._scaled_mm  # noqa: SLF001 - torch has no other name for it
        operands = (args["a"], args["b"].T, *scales(args))
        words = {"use_fast_accum": True} if fast else {}
        return lambda: multiply(*operands, out_dtype=torch.bfloat16, out=args["c"], **words)

    return Peer(bind)


def attention(batch: int, *, causal: bool, out: str = "out") -> Peer:
    """Return cuDNN's attention on (heads of all batches, length, features), else torch's choice."""

    def bind(args: Arguments) -> Launch:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        q, k, v = (args[name].unflatten(0, (batch, -1)) for name in ("q", "k", "v"))

        def attend() -> None:
            result = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
            )
            args[out] = result.flatten(0, 1)

        def launch() -> None:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                attend()

        try:
            launch()
        except RuntimeError as error:
            tell(note=f"    cuDNN takes no such shape: {str(error).splitlines()[0]}")
            return attend
        return launch

    return Peer(bind)


def attention_gradients(batch: int, *, causal: bool) -> Peer:
    """Return cuDNN's backward pass through autograd, into "dq", "dk" and "dv"."""

    def bind(args: Arguments) -> Launch:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        q, k, v, dout = (args[name].unflatten(0, (batch, -1)) for name in ("q", "k", "v", "dout"))
        inputs = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            out = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=causal)

        def launch() -> None:
            gradients = torch.autograd.grad(out, inputs, dout, retain_graph=True)
            for name, gradient in zip(("dq", "dk", "dv"), gradients, strict=True):
                args[name] = gradient.flatten(0, 1)

        return launch

    return Peer(bind)


def forward_pass(q: Any, k: Any, v: Any, *, causal: bool) -> tuple[Any, Any]:
    """Return attention of (heads, length, features), and the log-sum-exp of each row's scores."""
    import torch

    out, sums = torch.empty_like(q), []
    for head in range(len(q)):
        scores = q[head].float() @ k[head].float().T * q.shape[-1] ** -0.5
        if causal:
            seen = torch.ones(scores.shape, dtype=torch.bool, device=q.device).tril()
            scores = scores.masked_fill(~seen, -torch.inf)
        sums.append(scores.logsumexp(-1))
        out[head] = (scores.softmax(-1) @ v[head].float()).to(out.dtype)
    return out, torch.stack(sums)


def calls(function: Callable[[Arguments], object]) -> Peer:
    """Return a function of the operands as a peer."""
    return Peer(lambda args: lambda: function(args))

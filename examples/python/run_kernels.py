"""Launch every kernel of an archive from Python and check each result.

    aotc build kernels.toml
    python examples/python/run_kernels.py [dist/kernels.aotc]

Needs an NVIDIA GPU and torch, which brings the tensors and computes the expected results; neither
Triton nor a compiler. At the end one launch is captured into a CUDA graph and replayed: a loaded
library launches without loading or allocating anything, so that is allowed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch

import aotc

ROWS, COLS = 128, 1000
DEFAULT = Path(__file__).resolve().parents[2] / "dist" / "kernels.aotc"


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def check(name: str, got: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-2) -> None:
    """Compare in float64; the tolerance is relative, with bfloat16's rounding in mind."""
    torch.testing.assert_close(
        got.double(), expected.double(), rtol=tolerance, atol=tolerance, equal_nan=True
    )
    print(f"{name:20} right  {tuple(got.shape)} {str(got.dtype).removeprefix('torch.')}")


def vector_add(kernel: aotc.runtime.Kernel) -> None:
    x, y = normal(ROWS * COLS), normal(ROWS * COLS)
    out = torch.empty_like(x)
    kernel(x, y, out, x.numel())
    check("vector_add", out, x.double() + y.double())


def silu_mul(kernel: aotc.runtime.Kernel) -> None:
    x, out = normal(ROWS, 2 * COLS), normal(ROWS, COLS)
    kernel(x, out, stride=x.stride(0), n_rows=ROWS, n_cols=COLS)
    gate, up = x.double().chunk(2, dim=1)
    check("silu_mul", out, torch.nn.functional.silu(gate) * up)


def rotary(kernel: aotc.runtime.Kernel) -> None:
    n_tokens, n_heads, half_dim = 33, 8, 64
    x = normal(n_tokens, n_heads, 2 * half_dim)
    angles = torch.rand(50, half_dim, device="cuda") * 10
    positions = torch.randint(0, len(angles), (n_tokens,), device="cuda")
    cos, sin = angles[positions].double().cos()[:, None], angles[positions].double().sin()[:, None]
    first, second = x.double().chunk(2, dim=2)
    expected = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=2)
    strides = x.stride(0), x.stride(1)
    kernel(x, angles.cos(), angles.sin(), positions, *strides, n_tokens, n_heads, half_dim)
    check("rotary", x, expected, 2e-2)


def softmax(kernel: aotc.runtime.Kernel) -> None:
    x = normal(ROWS, COLS, dtype=torch.float32)
    out = torch.empty_like(x)
    kernel(x, out, x.stride(0), ROWS, COLS)
    check("softmax", out, x.double().softmax(dim=1), 1e-5)


def cross_entropy(kernel: aotc.runtime.Kernel) -> None:
    logits, target = normal(ROWS, COLS), torch.randint(0, COLS, (ROWS,), device="cuda")
    target[::5] = -100
    loss, lse = torch.empty(2, ROWS, device="cuda")
    kernel(logits, target, loss, lse, logits.stride(0), ROWS, COLS, ignore_index=-100)
    expected = torch.nn.functional.cross_entropy(
        logits.double(), target, ignore_index=-100, reduction="none"
    )
    check("cross_entropy", loss, expected, 1e-5)
    check("  log-sum-exp", lse, logits.double().logsumexp(dim=1), 1e-5)


def rmsnorm(kernel: aotc.runtime.Kernel) -> None:
    x, w = normal(ROWS, COLS), normal(COLS)
    out = torch.empty_like(x)
    kernel(x, w, out, x.stride(0), ROWS, COLS, eps=1e-6)
    wide = x.double()
    check("rmsnorm", out, wide * (wide.square().mean(1, keepdim=True) + 1e-6).rsqrt() * w.double())


def layernorm(kernel: aotc.runtime.Kernel) -> None:
    x, w, b = normal(ROWS, COLS), normal(COLS), normal(COLS)
    out = torch.empty_like(x)
    mean, rstd = torch.empty(2, ROWS, device="cuda")
    kernel(x, w, b, out, mean, rstd, x.stride(0), ROWS, COLS, eps=1e-5)
    expected = torch.nn.functional.layer_norm(x.double(), (COLS,), w.double(), b.double(), 1e-5)
    check("layernorm", out, expected, 2e-2)
    check("  mean", mean, x.double().mean(dim=1), 1e-5)


def transpose2d(kernel: aotc.runtime.Kernel) -> None:
    x, out = normal(ROWS, COLS), normal(COLS, ROWS)
    kernel(x, out, x.stride(0), out.stride(0), ROWS, COLS)
    check("transpose2d", out, x.T, 0)


def argmax_rows(kernel: aotc.runtime.Kernel) -> None:
    x, out = normal(ROWS, COLS, dtype=torch.float32), torch.empty(ROWS, device="cuda").long()
    kernel(x, out, x.stride(0), ROWS, COLS)
    check("argmax_rows", out, x.argmax(dim=1), 0)


def cumsum_rows(kernel: aotc.runtime.Kernel) -> None:
    x = normal(ROWS, COLS, dtype=torch.float32)
    out = torch.empty_like(x)
    kernel(x, out, x.stride(0), ROWS, COLS)
    check("cumsum_rows", out, x.double().cumsum(dim=1), 1e-3)


def quantize_int8_rows(kernel: aotc.runtime.Kernel) -> None:
    x = normal(ROWS, COLS)
    out, scale = (
        torch.empty(ROWS, COLS, device="cuda", dtype=torch.int8),
        torch.empty(ROWS, device="cuda"),
    )
    kernel(x, out, scale, x.stride(0), ROWS, COLS)
    step = x.double().abs().amax(dim=1, keepdim=True) / 127
    check("quantize_int8_rows", scale, step[:, 0], 1e-5)
    assert ((out.double() - x.double() / step).abs() <= 0.5 + 1e-3).all()


CHECKS: dict[str, Callable[[aotc.runtime.Kernel], None]] = {
    check.__name__: check
    for check in (
        vector_add,
        silu_mul,
        rotary,
        softmax,
        cross_entropy,
        rmsnorm,
        layernorm,
        transpose2d,
        argmax_rows,
        cumsum_rows,
        quantize_int8_rows,
    )
}


def in_a_graph(kernel: aotc.runtime.Kernel) -> None:
    """Capture an addition; every replay then uses what is in the buffers at that time."""
    x, y = normal(4096), normal(4096)
    out = torch.empty_like(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # the launch goes to the stream that torch captures
        kernel(x, y, out, x.numel())
    x.copy_(normal(4096))
    graph.replay()
    check("in a CUDA graph", out, x.double() + y.double())


def main(path: Path) -> None:
    torch.manual_seed(0)
    torch.cuda.init()
    with aotc.load(path) as library:
        print(library)
        unchecked = sorted(set(library.kernels) - CHECKS.keys())
        if unchecked:
            raise SystemExit(f"no check for {', '.join(unchecked)}: add one to {__file__}")
        for name in library.kernels:
            CHECKS[name](library[name])
        in_a_graph(library["vector_add"])
        torch.cuda.synchronize()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT)

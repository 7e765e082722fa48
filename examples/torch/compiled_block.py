"""A normalised MLP under `torch.compile`, with kernels of an archive as its operators.

    aotc build kernels.toml --kernel rmsnorm --kernel silu_mul -o dist
    python examples/torch/compiled_block.py [dist/kernels.aotc]

Needs an NVIDIA GPU and PyTorch. The block is RMSNorm, a linear layer, silu(gate) * up, a linear layer, and the sum
with what came in: norm and activation are kernels of the archive, linear layers are PyTorch's. It is run eagerly,
compiled as one graph, exported, and captured into a CUDA graph, and each result is compared with PyTorch's own
operators. Times are printed at the end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import aotc
import aotc.torch

ROWS, COLS, INNER, EPS = 256, 1024, 2816, 1e-6
DEFAULT = Path(__file__).resolve().parents[2] / "dist" / "kernels.aotc"


class Block(torch.nn.Module):
    """RMSNorm and a gated MLP around a residual connection."""

    def __init__(self, ops: aotc.torch.Operators) -> None:
        super().__init__()
        self.ops = ops
        self.weight = torch.nn.Parameter(torch.ones(COLS))
        self.up = torch.nn.Linear(COLS, 2 * INNER, bias=False)
        self.down = torch.nn.Linear(INNER, COLS, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = torch.empty_like(x)
        self.ops.rmsnorm(x, self.weight, normed, x.stride(0), x.shape[0], x.shape[1], EPS)
        gated = self.up(normed)
        inner = gated.new_empty(x.shape[0], INNER)
        self.ops.silu_mul(gated, inner, gated.stride(0), x.shape[0], INNER)
        return x + self.down(inner)


def reference(block: Block, x: torch.Tensor) -> torch.Tensor:
    normed = torch.nn.functional.rms_norm(x, (COLS,), block.weight, EPS)
    gate, up = block.up(normed).chunk(2, dim=1)
    return x + block.down(torch.nn.functional.silu(gate) * up)


def microseconds(call: Callable[[], object], count: int = 100) -> float:
    for _ in range(10):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / count * 1e6


@torch.inference_mode()
def main(path: Path) -> None:
    library = aotc.load(path, kernels=["rmsnorm", "silu_mul"])
    ops = aotc.torch.register(library, kernels=["rmsnorm", "silu_mul"])
    block = Block(ops).to("cuda", torch.bfloat16)
    x = torch.randn(ROWS, COLS, device="cuda", dtype=torch.bfloat16)
    expected = reference(block, x)
    compiled = torch.compile(block, fullgraph=True)
    exported = torch.export.export(block, (x,)).module()
    graph, captured = torch.cuda.CUDAGraph(), torch.empty_like(x)
    block(x)
    with torch.cuda.graph(graph):
        captured.copy_(block(x))
    ways: dict[str, Callable[[], torch.Tensor | None]] = {
        "eager": lambda: block(x),
        "compiled": lambda: compiled(x),
        "exported": lambda: exported(x),
        "CUDA graph": graph.replay,
    }
    for name, call in ways.items():
        found = call()
        torch.testing.assert_close(
            captured if found is None else found, expected, rtol=2e-2, atol=2e-2
        )
        print(f"{name:12} right  {microseconds(call):8.1f} us")
    print(f"{'PyTorch':12}        {microseconds(lambda: reference(block, x)):8.1f} us")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else DEFAULT)

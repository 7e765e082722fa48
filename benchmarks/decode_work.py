"""Workloads of benchmarks/decode.py: shapes, caches in pages, and rows of the result in float64.

A launch of a short context reads less than the L2 holds. So a workload has several sets of pages
in one cache, and launches take them in turn: no launch hits data of the previous one in the L2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

LOG2_E = 1.4426950408889634
LATENT, ROPE = 512, 64
MLA_SCALE = 192**-0.5  # of 128 + 64 features, before keys were absorbed
LEAST_BYTES = 512 << 20  # of all sets together: ten times the L2
NUM_CHECKED = 4
# Of the magnitude of the largest result: bf16 rounds to 2^-9, weights and result.
TOLERANCE = 1e-2


@dataclass(frozen=True)
class Shape:
    """One workload: a token for each of `batch` sequences."""

    batch: int
    length: int
    heads: int = 64
    kv_heads: int = 8
    dim: int = 128
    page: int = 64
    fp8: bool = False
    mla: bool = False
    ragged: bool = False

    @property
    def name(self) -> str:
        """Name in result rows."""
        kind = f"mla {self.heads}" if self.mla else f"{self.heads}/{self.kv_heads}"
        cache = " fp8" if self.fp8 else ""
        lengths = f"{self.length // 2}-{self.length}" if self.ragged else f"{self.length}"
        return f"{self.batch}x{lengths} {kind} page {self.page}{cache}"

    @property
    def kernel(self) -> str:
        """The kernel of benchmarks/decode.toml for it."""
        return "mla_64" if self.mla else f"paged_{self.page}{'_fp8' if self.fp8 else ''}"

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sequence; of ragged ones from a half to all."""
        if not self.ragged:
            return [self.length] * self.batch
        return [self.length - i * (self.length // 2) // self.batch for i in range(self.batch)]

    @property
    def max_pages(self) -> int:
        """Columns of the block table."""
        return -(-self.length // self.page)

    @property
    def token_bytes(self) -> int:
        """Bytes of a token in the cache."""
        if self.mla:
            return (LATENT + ROPE) * 2
        return self.kv_heads * self.dim * 2 * (1 if self.fp8 else 2)

    @property
    def read(self) -> int:
        """Bytes of the cache a launch has to read."""
        return sum(self.lengths) * self.token_bytes

    @property
    def flops(self) -> float:
        """Floating-point operations of both dots."""
        per_token = LATENT + ROPE + LATENT if self.mla else 2 * self.dim
        return 2.0 * self.heads * per_token * sum(self.lengths)

    @property
    def out_dim(self) -> int:
        """Features of a head's result."""
        return LATENT if self.mla else self.dim

    @property
    def num_sets(self) -> int:
        """Sets of pages, used by launches in turn."""
        return max(1, math.ceil(LEAST_BYTES / self.read))


_BOTH = [(batch, length) for length in (8192, 32768, 65536) for batch in (1, 8, 64)]
WORK = {
    "gqa": [Shape(batch, length) for batch, length in _BOTH],
    "pages": [Shape(8, 32768, page=page) for page in (16, 256)],
    "ragged": [Shape(64, 16384, ragged=True)],
    "ratios": [Shape(16, 16384, heads=32, kv_heads=8), Shape(64, 16384, heads=16, kv_heads=1)],
    "fp8": [Shape(batch, length, fp8=True) for batch, length in ((8, 32768), (64, 8192))],
    "mla": [Shape(batch, 8192, heads=128, mla=True) for batch in (1, 16, 64)],
}


class Tensors:
    """Operands of a workload on the GPU, one table of pages for each set, and the result in float64."""

    def __init__(self, shape: Shape, device: str = "cuda") -> None:
        import torch

        self.shape, self.device = shape, device
        pages = shape.num_sets * shape.batch * shape.max_pages
        kind = torch.float8_e4m3fn if shape.fp8 else torch.bfloat16

        def random(*extents: int) -> Any:
            tensor = torch.empty(extents, dtype=kind, device=device)
            for part in tensor.split(
                max(1, extents[0] // 64)
            ):  # fp32 of all would take twice as much
                part.copy_(torch.randn(part.shape, device=device))
            return tensor

        if shape.mla:
            self.cache = random(pages, shape.page, LATENT + ROPE)
            self.q = random(shape.batch, shape.heads, LATENT + ROPE)
        else:
            self.k = random(pages, shape.kv_heads, shape.page, shape.dim)
            self.v = random(pages, shape.kv_heads, shape.page, shape.dim)
            tensor = torch.randn(shape.batch, shape.heads, shape.dim, device=device)
            self.q = tensor.to(torch.bfloat16)
        self.k_scale, self.v_scale = (
            torch.rand(shape.kv_heads, device=device) + 0.5 for _ in range(2)
        )
        order = torch.randperm(pages, device=device, dtype=torch.int32)
        self.tables = order.view(shape.num_sets, shape.batch, shape.max_pages)
        self.lengths = torch.tensor(shape.lengths, dtype=torch.int32, device=device)
        self.out = torch.empty(
            shape.batch, shape.heads, shape.out_dim, dtype=torch.bfloat16, device=device
        )
        picked = [(0, 0), (shape.batch - 1, shape.heads - 1), (shape.batch // 2, shape.heads // 2)]
        self.picked = list(dict.fromkeys(picked))[:NUM_CHECKED]
        self.expected = [self._expected(*pair) for pair in self.picked]

    def tokens(self, cache: Any, sequence: int, index: int = 0) -> Any:
        """Return a sequence's part of a cache, (kv heads, length, dim); of MLA without heads."""
        import torch

        # As bytes: torch does not index every kind of fp8.
        pages = cache.view(torch.uint8)[self.tables[index, sequence].long()].view(cache.dtype)
        if pages.dim() == 4:
            pages = pages.transpose(0, 1)
        length = self.shape.lengths[sequence]
        return pages.flatten(-3, -2)[..., :length, :]

    def _expected(self, sequence: int, head: int) -> Any:
        if self.shape.mla:
            tokens = self.tokens(self.cache, sequence).double()
            scores = tokens @ self.q[sequence, head].double() * MLA_SCALE
            return scores.softmax(0) @ tokens[:, :LATENT]
        kv_head = head // (self.shape.heads // self.shape.kv_heads)
        keys, values = (
            self.tokens(cache, sequence)[kv_head].double() for cache in (self.k, self.v)
        )
        if self.shape.fp8:
            keys, values = keys * self.k_scale[kv_head], values * self.v_scale[kv_head]
        scores = keys @ self.q[sequence, head].double() * self.shape.dim**-0.5
        return scores.softmax(0) @ values

    def wrong(self, launch: Any) -> float:
        """Return the error of a launch on the first set as a multiple of the tolerance."""
        self.out.fill_(float("nan"))
        launch()
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()
        worst = 0.0
        for (sequence, head), expected in zip(self.picked, self.expected, strict=True):
            error = (self.out[sequence, head].double() - expected).abs().max()
            relative = (error / expected.abs().max()).item()
            worst = math.inf if math.isnan(relative) else max(worst, relative)
        return worst / TOLERANCE

    def splits(self, programs: int) -> int:
        """Return the pages of a split for about as many working programs."""
        programs_per_sequence = (
            -(-self.shape.heads // 64) if self.shape.mla else self.shape.kv_heads
        )
        max_splits = max(1, programs // (self.shape.batch * programs_per_sequence))
        return -(-self.shape.max_pages // max_splits)

"""Products split along K: sums by copies that reduce, against atomics of threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.harness import torch_peers
from benchmarks.harness.operands import Arguments, Arrays, Part, Tolerance
from benchmarks.harness.workload import Configs, Item, Peer, Plans, Step, Workload

# M, N, K: as many tiles as half the SMs of a GPU and fewer, weights' gradients among them.
_PRODUCTS = ((512, 512, 16384), (1024, 1024, 16384), (2048, 2048, 8192), (4096, 4096, 8192))


def _split_k(m: int, n: int, k: int, dtype: str, splits: tuple[int, ...] = (4, 16)) -> Workload:
    def operands(arrays: Arrays) -> Arguments:
        args: Arguments = {"a_ptr": arrays.normal(m, k), "b_ptr": arrays.normal(k, n)}
        args |= {"out_ptr": arrays.zeros(m, n, dtype=dtype), "plain": arrays.empty(m, n)}
        strides = {"stride_am": k, "stride_ak": 1, "stride_bk": n, "stride_bn": 1, "stride_om": n}
        return args | {"M": m, "N": n, "K": k, **strides}

    def reference(arrays: Arrays, args: Arguments) -> Iterator[Part]:
        rows = np.unique(np.linspace(0, m - 1, min(m, 64)).astype(np.int64))
        yield Part("out_ptr", rows, arrays.wide(args["a_ptr"][rows]) @ arrays.wide(args["b_ptr"]))

    return Workload(
        name=f"{m}×{n}×{k}, {dtype}",
        manifest="benchmarks/reductions.toml",
        work=2.0 * m * n * k,
        unit="TFLOP/s",
        operands=operands,
        reference=reference,
        tolerance=Tolerance(largest=2**-6 if dtype == "bf16" else 2**-16),
        outputs=(),
        zeroed=("out_ptr",),
        kernels=("split_k",),
        choices={"SCOPE": "gpu", "SPLIT_K": splits},
        rivals={"threads": {"SCOPE": "sys"}},
        triton=None,
        # Of bf16 results, also beside those in fp32.
        peers={"torch.mm": Peer(
            torch_peers.matmul("a_ptr", "b_ptr", "plain", transposed=False).bind, is_checked=False
        )},
        launches=5,
    )  # fmt: skip


def _promotion(promoted: int, size: int) -> Workload:
    """Return a product of fp8 whose sums are promoted to fp32 every so many of K."""

    def operands(arrays: Arrays) -> Arguments:
        a, b = (arrays.normal(size, size, dtype="fp8e4nv") for _ in range(2))
        sizes = {"M": size, "N": size, "K": size}
        return {"a_ptr": a, "b_ptr": b, "c_ptr": arrays.empty(size, size), **sizes}

    def reference(arrays: Arrays, args: Arguments) -> Iterator[Part]:
        rows = slice(0, 32)
        yield Part("c_ptr", rows, arrays.wide(args["a_ptr"][rows]) @ arrays.wide(args["b_ptr"]).T)

    tiles = ((128, 128, 8, 4), (128, 256, 8, 3), (128, 128, 4, 3), (64, 128, 4, 4),
             (64, 256, 4, 3), (128, 64, 4, 4))  # fmt: skip
    names = ("BM", "BN", "num_warps", "num_stages")
    triton: list[dict[str, Any]] = [dict(zip(names, tile, strict=True)) for tile in tiles]

    def plans(_: Arrays, __: Arguments, configs: Configs) -> Iterator[Plans]:
        choices = {"PROMOTED": promoted}
        for config in configs("fp8_accumulation", choices):
            yield (Step("fp8_accumulation", config, choices=choices),)

    return Workload(
        name=f"fp8 {size}, PROMOTED = {promoted}",
        manifest="benchmarks/fp8_accumulation.toml",
        work=2.0 * size**3,
        unit="TFLOP/s",
        operands=operands,
        reference=reference,
        tolerance=Tolerance(value=2**-8, typical=0.05),
        outputs=("c_ptr",),
        plans=plans,
        triton={"fp8_accumulation": triton},
        launches=5,
    )


ITEMS = {
    "sums": Item("matmul", "Split-K sums by TMA reductions, over atomics of threads", [
        _split_k(*sizes, dtype) for sizes in _PRODUCTS for dtype in ("fp32", "bf16")
    ]),
    "promoted": Item("matmul", "fp8 matmul with promoted sums", [
        _promotion(promoted, 4096) for promoted in (0, 1, 128, 64, 32)
    ]),
}  # fmt: skip
TINY = [
    _split_k(130, 144, 512, "fp32"),
    _split_k(64, 144, 512, "bf16", (16,)),
    *(_promotion(promoted, 256) for promoted in (0, 1, 64)),
]

"""Grouped products with tensor maps in pooled scratch memory, on a GPU: also in graphs.

pytest -m gpu tests/e2e/test_scratch_pool_gpu.py [--built FOLDER]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import aotc
from tests.support.built import Built

KERNELS = Path(__file__).parents[2] / "kernels"
MANIFEST = f"""[package]
name = "pooled"
version = "0.1.0"
targets = ["sm_90a"]

[[kernel]]
name = "grouped_gemm"
source = "{KERNELS}/grouped_gemm.py:grouped_gemm_kernel"
grid = ["n_programs"]

[kernel.signature]
a_ptrs = "*i64"
b_ptrs = "*i64"
c_ptrs = "*i64"
sizes_ptr = "*i32"
strides_ptr = "*i32"
order_ptr = "*i32"
n_groups = "i32"
n_programs = "i32"

[kernel.constants]
DTYPE = "bf16"
BLOCK_K = 64

[[kernel.config]]
BLOCK_M = 128
BLOCK_N = 128
EPILOGUE_N = 128
num_warps = 8

[[kernel.config]]
BLOCK_M = 256
BLOCK_N = 128
EPILOGUE_N = 128
num_warps = 8
num_ctas = 2
"""
SIZES = (
    (256, 128, 512),
    (333, 200, 1000),
    (1, 8, 64),
    (129, 120, 8),
    (77, 64, 0),
    (1000, 504, 264),
)
PROGRAMS = 20


@pytest.fixture(scope="module")
def torch() -> Any:
    """Return torch, with a context on the GPU."""
    module = pytest.importorskip("torch")
    module.zeros(1, device="cuda")
    return module


@pytest.fixture(scope="module")
def library(built: Built, torch: Any) -> Any:
    del torch

    def build(folder: Path) -> None:
        from aotc import cli

        (folder / "pooled.toml").write_text(MANIFEST, encoding="utf-8")
        assert cli.run(["build", str(folder / "pooled.toml"), "-o", str(folder)]) == 0

    return aotc.load(built("pooled", build))


class _Products:
    """The operands of all groups, and the expected products."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch

        def tensors(shape: Any) -> list[Any]:
            shapes = [shape(*size) for size in SIZES]
            # A row of nothing has a length all the same.
            padded = [torch.randn(rows, max(8, columns), device="cuda") for rows, columns in shapes]
            return [wide.bfloat16()[:, :n] for wide, (_, n) in zip(padded, shapes, strict=True)]

        self.a = tensors(lambda m, n, k: (m, k))
        self.b = tensors(lambda m, n, k: (n, k))
        self.c = tensors(lambda m, n, k: (m, n))
        kinds = (self.a, self.b, self.c)
        strides = [[kind[index].stride(0) for kind in kinds] for index in range(len(SIZES))]
        self.args = [
            *(torch.tensor([tensor.data_ptr() for tensor in kind]).cuda() for kind in kinds),
            *(torch.tensor(numbers, dtype=torch.int32).cuda() for numbers in (SIZES, strides)),
            torch.randperm(len(SIZES), dtype=torch.int32).cuda(),
            *(len(SIZES), PROGRAMS),
        ]

    def poison(self) -> None:
        for product in self.c:
            product.fill_(float("nan"))

    def check(self) -> None:
        self.torch.cuda.synchronize()
        for a, b, c in zip(self.a, self.b, self.c, strict=True):
            expected = a.double() @ b.double().T
            error = (c.double() - expected).abs().max().item()
            assert error <= 2**-8 * max(1, expected.abs().max().item())


@pytest.mark.gpu
@pytest.mark.parametrize("block_m", [128, 256])
def test_launches_and_graphs_take_memory_of_the_pool(
    torch: Any, library: Any, block_m: int
) -> None:
    """By CTAs alone, or by clusters of two."""
    kernel, products = library["grouped_gemm"], _Products(torch)
    config = {"BLOCK_M": block_m}
    for _ in range(3):
        products.poison()
        kernel.launch(products.args, config=config)
        products.check()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel.launch(products.args, config=config, stream=torch.cuda.current_stream())
    for _ in range(3):
        products.poison()
        graph.replay()
        products.check()


@pytest.mark.gpu
def test_streams_have_memory_of_their_own(torch: Any, library: Any) -> None:
    kernel = library["grouped_gemm"]
    streams = [torch.cuda.Stream() for _ in range(4)]
    products = [_Products(torch) for _ in streams]
    for group in products:
        group.poison()
    torch.cuda.synchronize()
    for turn in range(20):
        for stream, group in zip(streams, products, strict=True):
            kernel.launch(group.args, config={"BLOCK_M": (128, 256)[turn % 2]}, stream=stream)
    for group in products:
        group.check()

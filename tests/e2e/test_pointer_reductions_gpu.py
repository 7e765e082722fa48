"""Relaxed atomics by TMA, of contiguous tiles and of dots, in loops and after them, on a GPU.

pytest -m gpu tests/e2e/test_pointer_reductions_gpu.py [--built FOLDER]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import aotc
from tests.support.built import Built

KERNELS = Path(__file__).parents[2] / "kernels"
MANIFEST = f"""[package]
name = "reductions"
version = "0.1.0"
targets = ["sm_90a"]

[[kernel]]
name = "split_k"
source = "{KERNELS}/split_k.py:matmul_split_k_atomic_kernel"
grid = ["cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N)", "SPLIT_K"]
[kernel.signature]
a_ptr = "*bf16:16"
b_ptr = "*bf16:16"
out_ptr = "*U:16"
M = "i32"
N = "i32:16"
K = "i32:16"
stride_am = "i32:16"
stride_ak = "i32=1"
stride_bk = "i32:16"
stride_bn = "i32=1"
stride_om = "i32:16"
[kernel.types]
U = ["fp32", "bf16", "fp16"]
[kernel.constants]
BLOCK_M = 128
BLOCK_N = 128
BLOCK_K = 64
GROUP_M = 8
SPLIT_K = 5
[kernel.configs]
num_warps = [4, 8]

[[kernel]]
name = "accumulate"
source = "{KERNELS}/reduce_atomic.py:accumulate_kernel"
[kernel.signature]
x_ptr = "*T:16"
total_ptr = "*T:16"
n_elements = "i32:16"
[kernel.types]
T = ["bf16", "fp16", "fp32", "i32", "u64"]
[kernel.constants]
BLOCK = 2048
STAGES = 3
[kernel.configs]
num_warps = [4]
warp_specialize = [true]

[[kernel]]
name = "gradient"
source = "gradient.py:gradient_kernel"
grid = ["cdiv(N, BLOCK)"]
[kernel.signature]
q_ptr = "*bf16:16"
k_ptr = "*bf16:16"
dq_ptr = "*fp32:16 noalias"
N = "i32"
[kernel.constants]
BLOCK = 128
D = 64
[kernel.configs]
num_warps = [4, 8]
"""
GRADIENT = """import triton
import triton.language as tl


@triton.jit
def gradient_kernel(q_ptr, k_ptr, dq_ptr, N, BLOCK: tl.constexpr, D: tl.constexpr):
    n, d = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, D)
    keys = tl.load(k_ptr + n[:, None] * D + d[None, :], mask=(n < N)[:, None], other=0.0)
    for start in tl.range(0, N, BLOCK, num_stages=2):
        m = start + tl.arange(0, BLOCK)
        inside = (m < N)[:, None]
        q = tl.load(q_ptr + m[:, None] * D + d[None, :], mask=inside, other=0.0)
        dq = tl.dot(tl.dot(q, keys.T).to(tl.bfloat16), keys)
        tl.atomic_add(dq_ptr + m[:, None] * D + d[None, :], dq, mask=inside, sem="relaxed")
"""


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

        (folder / "gradient.py").write_text(GRADIENT, encoding="utf-8")
        (folder / "reductions.toml").write_text(MANIFEST, encoding="utf-8")
        assert cli.run(["build", str(folder / "reductions.toml"), "-o", str(folder)]) == 0

    return aotc.load(built("reductions", build))


def _small(torch: Any, *shape: int) -> Any:
    """Return integers from -1 to 1, with exact sums."""
    return torch.randint(-1, 2, shape, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("num_warps", [4, 8])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("m", "n", "k"), [(128, 128, 320), (200, 144, 1008), (1, 16, 16)])
def test_parts_of_products(
    torch: Any, library: Any, num_warps: int, dtype: str, m: int, n: int, k: int
) -> None:
    a, b = _small(torch, m, k).bfloat16(), _small(torch, k, n).bfloat16()
    out = _small(torch, m, n).to(getattr(torch, dtype))
    expected = out.double() + a.double() @ b.double()
    strides = [tensor.stride(0) for tensor in (a, b, out)]
    library["split_k"].launch([a, b, out, m, n, k, *strides], config={"num_warps": num_warps})
    torch.cuda.synchronize()
    assert torch.equal(out.double(), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int32", "uint64"])
@pytest.mark.parametrize("n", [16, 2048, 100_000])
def test_totals(torch: Any, library: Any, dtype: str, n: int) -> None:
    """Two launches may overlap."""
    x = _small(torch, n).abs()
    total = torch.zeros(n + 16, device="cuda", dtype=torch.int64)
    kind = getattr(torch, dtype)
    addends, totals = x.to(kind), total.to(kind)
    for _ in range(2):
        library["accumulate"].launch([addends, totals, n], grid=(7,))
    torch.cuda.synchronize()
    total[:n] = 2 * x
    assert torch.equal(totals.to(torch.int64), total)


@pytest.mark.gpu
@pytest.mark.parametrize("num_warps", [4, 8])
@pytest.mark.parametrize("n", [128, 200, 1000])
def test_gradients_in_a_loop(torch: Any, library: Any, num_warps: int, n: int) -> None:
    q, keys = (_small(torch, n, 64).bfloat16() for _ in range(2))
    dq = _small(torch, n, 64).float()
    expected = dq.double() + q.double() @ keys.double().T @ keys.double()
    library["gradient"].launch([q, keys, dq, n], config={"num_warps": num_warps})
    torch.cuda.synchronize()
    assert torch.equal(dq.double(), expected)

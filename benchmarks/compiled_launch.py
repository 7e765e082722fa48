"""`aotc.compile` with a launcher on a GPU: kernels from functions, text and closures, against torch.

    python benchmarks/compiled_launch.py

Compiles each kernel from the arguments of a launch, launches it with `kernel[grid](…)`, and
compares with torch. Prints seconds to compile and to the first launch, and microseconds of a
later one. Needs torch and a GPU.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch

import aotc
import aotc.language as tl

TEXT = """
import triton
import triton.language as tl

@triton.jit
def normalize(x, out, stride, n_cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    v = tl.load(x + row * stride + at, mask=at < n_cols, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(v * v, 0) / n_cols + eps)
    tl.store(out + row * stride + at, v * scale, mask=at < n_cols)
"""


@tl.jit
def add(x, y, out, n, bias, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + offsets, mask=offsets < n) + tl.load(y + offsets, mask=offsets < n)
    if bias is not None:
        value += tl.load(bias + offsets, mask=offsets < n)
    tl.store(out + offsets, value, mask=offsets < n)


def scaled(factor: float) -> Any:
    """Return a kernel with a variable captured by its function."""

    @tl.jit
    def scale(x, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x + offsets, tl.load(x + offsets, mask=offsets < n) * factor, mask=offsets < n)

    return scale


def measured(name: str, kernel: Any, grid: Any, args: tuple[Any, ...], **words: Any) -> None:
    start = time.perf_counter()
    compiled_kernel = aotc.compile(kernel, args=args, target="native", **words)
    compiled = time.perf_counter()
    compiled_kernel[grid](*args)
    torch.cuda.synchronize()
    first = time.perf_counter()
    for _ in range(100):
        compiled_kernel[grid](*args)
    torch.cuda.synchronize()
    later = (time.perf_counter() - first) / 100 * 1e6
    types = dict(compiled_kernel.request.signature)
    print(
        f"{name:10} compile {compiled - start:5.2f} s, first {first - compiled:.3f} s, then {later:.1f} us"
    )
    print(f"{'':10} {types}")


def main() -> int:
    """Compile, launch and compare."""
    torch.manual_seed(0)
    n = 100_003
    x, y, bias = (torch.randn(n, device="cuda") for _ in range(3))
    out = torch.full_like(x, float("nan"))
    grid = lambda meta: (-(-n // meta["BLOCK"]),)  # noqa: E731 - as Triton programs write it
    for bias_arg, want in ((None, x + y), (bias, x + y + bias)):
        args = (x, y, out, n, bias_arg)
        measured("add", add, grid, args, constants={"BLOCK": 1024}, num_warps=8)
        torch.testing.assert_close(out, want)
    z = x.clone()
    measured("scale", scaled(-1.0), grid, (z, n), constants={"BLOCK": 256})
    torch.testing.assert_close(z, -x)  # 101 launches
    rows = torch.randn(64, 4096, device="cuda").bfloat16()
    actual = torch.full_like(rows, float("nan"))
    args = (rows, actual, rows.stride(0), 4096, 1e-6, 4096)
    measured("normalize", "normalize", (64,), args, source=TEXT)
    want = torch.nn.functional.rms_norm(rows.float(), (4096,), eps=1e-6).bfloat16()
    torch.testing.assert_close(actual, want, rtol=2e-2, atol=2e-2)
    print("all right")
    return 0


if __name__ == "__main__":
    sys.exit(main())

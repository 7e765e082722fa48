"""A manifest of a kernel with tensor descriptors, compiled and assembled as a build does."""

from __future__ import annotations

from pathlib import Path

from aotc.compiler import compile_kernel
from aotc.package.archive.index import Kernel
from aotc.package.builder.assemble import assemble
from aotc.package.cache.store import CachedKernel
from aotc.package.manifest.read import load
from aotc.package.manifest.variant_grid import expand

KERNEL = """import triton
import triton.language as tl


@triton.jit
def scale(x, y, factor, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    row = tl.program_id(0) * BLOCK_M
    for column in range(0, x.shape[1], BLOCK_N):
        y.store([row, column], (x.load([row, column]) * factor).to(y.dtype))
"""
MANIFEST = """
[package]
name = "descriptors"
version = "0.1.0"
targets = ["sm_80", "sm_90a"]
[[kernel]]
name = "scale"
source = "kernel.py:scale"
grid = ["cdiv(x.shape[0], BLOCK_M)"]
[kernel.signature]
x = "tensordesc<T[BLOCK_M,BLOCK_N],nan>"
y = "tensordesc<fp32[BLOCK_M,BLOCK_N]>"
factor = "fp32"
[kernel.types]
T = ["bf16", "fp32"]
[kernel.constants]
BLOCK_M = 16
BLOCK_N = 64
"""


def built(folder: Path) -> Kernel:
    """Return the archive's record of the kernel."""
    (folder / "kernel.py").write_text(KERNEL, encoding="utf-8")
    (folder / "kernels.toml").write_text(MANIFEST, encoding="utf-8")
    manifest = load(str(folder / "kernels.toml"))
    expansion = expand(manifest.kernels[0], manifest.targets, lambda *_: [])
    compiled = [
        (spec, CachedKernel(kernel.cubin, kernel.metadata))
        for spec in expansion.variants
        for kernel in (compile_kernel(spec.request),)
    ]
    return assemble(expansion, compiled).kernel

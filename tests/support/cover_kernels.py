"""A manifest with partly covered launches, and its file."""

from __future__ import annotations

from pathlib import Path

SOURCE = """
import triton
import triton.language as tl

@triton.jit
def scale(x, out, n, stride, BLOCK: tl.constexpr, NEGATE: tl.constexpr, MODE: tl.constexpr = "ok"):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * stride + at, mask=at < n)
    if NEGATE:
        value = -value
    tl.store(out + row * stride + at, value, mask=at < n)
"""
MANIFEST = """
[package]
name = "demo"
version = "0.1.0"
targets = ["sm_90a"]

[[kernel]]
name = "scale"
source = "scale.py:scale"
grid = ["1"]
where = "n <= BLOCK"
[kernel.signature]
x = "*T:16"
out = "*T:16"
n = "i32:16"
stride = "i32=1024"
[kernel.types]
T = ["fp16", "bf16"]
[kernel.choices]
NEGATE = [true]
[kernel.configs]
BLOCK = [512, 1024]
"""


def write(folder: Path, manifest: str = MANIFEST) -> Path:
    """Write the manifest and its source; return the manifest's path."""
    (folder / "scale.py").write_text(SOURCE)
    path = folder / "kernels.toml"
    path.write_text(manifest)
    return path

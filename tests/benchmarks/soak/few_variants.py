"""A manifest of vector adds: some variants of each, in each number of warps and each block."""

from __future__ import annotations

from collections.abc import Sequence

from aotc.package.manifest.read import parse
from aotc.package.verify.subjects import Subject, subjects_of_manifest
from benchmarks.soak import variants

_PACKAGE = """
[package]
name = "few"
version = "0.1.0"
targets = ["sm_90a"]
"""
_KERNEL = """
[[kernel]]
name = "{name}"
source = "kernels/elementwise.py:vector_add_kernel"
grid = ["cdiv(n_elements, BLOCK)"]
[kernel.signature]
x_ptr = "*fp32:16"
y_ptr = "*fp32:16"
out_ptr = "*fp32:16"
n_elements = "i32"
[kernel.configs]
BLOCK = [64, 128, 256]
num_warps = [1, 2]
num_stages = {num_stages}
"""


def few_subjects(*names: str, num_stages: Sequence[int] = (3,)) -> list[Subject]:
    """Return the variants of kernels of these names, six of each for each number of stages."""
    kernels = (_KERNEL.format(name=name, num_stages=[*num_stages]) for name in names)
    return subjects_of_manifest(parse(_PACKAGE + "".join(kernels), str(variants.ROOT / "few.toml")))

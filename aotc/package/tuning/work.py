"""Compute the work of a launch, and the peak rates of a GPU.

The manifest's `[kernel.bench]` gives the work. Without it, bytes are the sizes of all buffers: once
if read, once if written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from aotc.ir import expression
from aotc.ir.expression import ExpressionError
from aotc.package.archive.index import DTYPE_BYTES, Kernel
from aotc.package.manifest.spec import BenchSpec, ManifestExpression
from aotc.package.tuning.shapes import Launch


@dataclass(frozen=True, slots=True)
class Work:
    """Operations and bytes of one launch; None if unknown."""

    flops: int | None
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Peak:
    """Peak rates of a GPU: bytes of its memory, and dense operations by dtype, in a second."""

    bytes_per_second: float
    flops: Mapping[str, float]

    def flops_of(self, dtype: str) -> float:
        """Return the peak of a dtype; fp32's for a dtype without a row."""
        return self.flops.get(dtype, self.flops["fp32"])


def _peak(tb: float, fp16: float, fp8: float, fp32: float, fp64: float) -> Peak:
    tera = {"fp16": fp16, "bf16": fp16, "fp8e4nv": fp8, "fp8e5": fp8, "i8": fp8, "fp32": fp32}
    return Peak(
        tb * 1e12, {name: tera_rate * 1e12 for name, tera_rate in {**tera, "fp64": fp64}.items()}
    )


PEAKS: Mapping[str, Peak] = {
    r"H200": _peak(4.8, 989, 1979, 67, 67),
    r"H100.*(HBM3|SXM)": _peak(3.35, 989, 1979, 67, 67),
    r"H100": _peak(2.0, 756, 1513, 51, 51),
    r"B200": _peak(8.0, 2250, 4500, 75, 37),
    r"B300": _peak(8.0, 2250, 4500, 75, 1.2),
    r"A100.*80GB": _peak(2.04, 312, 624, 19.5, 19.5),
    r"A100": _peak(1.56, 312, 624, 19.5, 19.5),
    r"A10\b": _peak(0.6, 125, 250, 31.2, 1.0),
    r"L40S": _peak(0.864, 362, 733, 91.6, 1.4),
    r"RTX 5090": _peak(1.79, 209, 419, 105, 1.6),
}
"""Data sheets, without sparsity, by a pattern of the driver's name; the first match counts."""


def peak_of(gpu: str) -> Peak | None:
    """Return the peak rates of a GPU, None for an unlisted one."""
    return next((peak for pattern, peak in PEAKS.items() if re.search(pattern, gpu)), None)


def work_of(spec: BenchSpec, kernel: Kernel, launch: Launch, buffers: Mapping[str, int]) -> Work:
    """Return the work of a launch; `buffers` are bytes by name. Raises: ManifestError."""
    values = bench_values(kernel, launch)
    flops = None if spec.flops is None else evaluated(spec.flops, values) or None
    if spec.bytes is not None:
        return Work(flops, evaluated(spec.bytes, values) or None)
    times = {param.name: 2 if param.access == "both" else 1 for param in kernel.params}
    num_bytes = sum(size * times.get(name, 1) for name, size in buffers.items())
    return Work(flops, num_bytes or None)


def bench_values(kernel: Kernel, launch: Launch) -> dict[str, int]:
    """Return the values for expressions of `[kernel.bench]`: a type variable is its element's bytes."""
    sizes = {name: DTYPE_BYTES[dtype] for name, dtype in launch.types.items()}
    named = (*kernel.constants, *launch.choices.items())
    constants = {name: int(value) for name, value in named if isinstance(value, int)}
    return {**sizes, **constants, **launch.key}


def evaluated(parsed: ManifestExpression, values: Mapping[str, int]) -> int:
    """Return the value of a non-negative expression. Raises: ManifestError."""
    try:
        value = expression.evaluate(parsed.root, values)
    except ExpressionError as error:
        raise parsed.error(error) from None
    if value < 0:
        raise parsed.error(ExpressionError(f"expected a number from 0, got {value}", 0))
    return value


def dot_dtype(kernel: Kernel, launch: Launch) -> str:
    """Return the dtype for the peak of a launch's operations: the first buffer's."""
    for param in kernel.params:
        if param.kind != "scalar":
            return launch.types.get(param.element, param.element)
    return "fp32"

"""The work of a launch, and what a GPU can do at most.

Work is what the manifest's `[kernel.bench]` says; without it, bytes are those of all buffers: each
that is read once, each that is written once.
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
    """Operations and bytes of one launch; None if nothing says them."""

    flops: int | None
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Peak:
    """What a GPU can do: bytes of its memory, and operations by dtype, in a second; dense."""

    bytes_per_second: float
    flops: Mapping[str, float]

    def flops_of(self, dtype: str) -> float:
        """Return the peak of a dtype; of one without a row, that of fp32."""
        return self.flops.get(dtype, self.flops["fp32"])


def _peak(tb: float, fp16: float, fp8: float, fp32: float, fp64: float) -> Peak:
    tera = {"fp16": fp16, "bf16": fp16, "fp8e4nv": fp8, "fp8e5": fp8, "i8": fp8, "fp32": fp32}
    return Peak(tb * 1e12, {name: each * 1e12 for name, each in {**tera, "fp64": fp64}.items()})


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
"""Data sheets, without sparsity, by a pattern of the driver's name; the first that fits."""


def peak_of(gpu: str) -> Peak | None:
    """Return what a GPU can do, None for one that is not listed."""
    return next((peak for pattern, peak in PEAKS.items() if re.search(pattern, gpu)), None)


def work_of(spec: BenchSpec, kernel: Kernel, launch: Launch, buffers: Mapping[str, int]) -> Work:
    """Return the work of a launch whose `buffers` have so many bytes. Raises: ManifestError."""
    values = bench_values(kernel, launch)
    flops = None if spec.flops is None else evaluated(spec.flops, values) or None
    if spec.bytes is not None:
        return Work(flops, evaluated(spec.bytes, values) or None)
    times = {param.name: 2 if param.access == "both" else 1 for param in kernel.params}
    moved = sum(size * times.get(name, 1) for name, size in buffers.items())
    return Work(flops, moved or None)


def bench_values(kernel: Kernel, launch: Launch) -> dict[str, int]:
    """Return what expressions of `[kernel.bench]` know: a type variable is its element's bytes."""
    sizes = {name: DTYPE_BYTES[dtype] for name, dtype in launch.types.items()}
    named = (*kernel.constants, *launch.choices.items())
    constants = {name: int(value) for name, value in named if isinstance(value, int)}
    return {**sizes, **constants, **launch.key}


def evaluated(given: ManifestExpression, values: Mapping[str, int]) -> int:
    """Return the value of an expression, which must not be negative. Raises: ManifestError."""
    try:
        value = expression.evaluate(given.root, values)
    except ExpressionError as error:
        raise given.error(error) from None
    if value < 0:
        raise given.error(ExpressionError(f"expected a number from 0, got {value}", 0))
    return value


def dot_dtype(kernel: Kernel, launch: Launch) -> str:
    """Return the dtype by which a launch's operations count: the first buffer's."""
    for param in kernel.params:
        if param.kind != "scalar":
            return launch.types.get(param.element, param.element)
    return "fp32"

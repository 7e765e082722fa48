"""Run kernels with tensor descriptors in the emulator, on NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from aotc.compiler import PtxKernel, compile_kernel, compile_ptx
from aotc.ir.expression import evaluate, parse
from aotc.ir.params import GRID_SOURCES, SCRATCH_SOURCE
from aotc.metadata import ParamSlot
from aotc.verify.emulator.arguments import Argument
from aotc.verify.emulator.async_copies.tensor_argument import PlacedTensor, TensorArgument
from aotc.verify.emulator.run import Statistics, emulate
from aotc.verify.interpreter.persistent_grid import num_persistent_ctas
from tests.support.requests import request_of

PRELUDE = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
DTYPES: dict[str, type] = {
    "i1": np.bool_,
    "i8": np.int8,
    "u8": np.uint8,
    "i16": np.int16,
    "u16": np.uint16,
    "i32": np.int32,
    "u32": np.uint32,
    "i64": np.int64,
    "u64": np.uint64,
    "fp8e4nv": ml_dtypes.float8_e4m3fn,
    "fp8e5": ml_dtypes.float8_e5m2,
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
    "fp32": np.float32,
    "fp64": np.float64,
}


def tensor(shape: Sequence[int], dtype: str, seed: int = 0, padding: int = 0) -> np.ndarray:
    """Return random data with rows aligned for tensor copies, `padding` 16-byte units apart."""
    kind = np.dtype(DTYPES[dtype])
    unit = 16 // kind.itemsize
    row = -(-shape[-1] // unit) * unit + padding * unit
    data = np.random.default_rng(seed).integers(-99, 99, (*shape[:-1], row))
    return (data % 2 == 0 if dtype == "i1" else data.astype(kind))[..., : shape[-1]]


def like(array: np.ndarray, shape: Sequence[int] | None = None) -> np.ndarray:
    """Return other data of the same dtype, to be written over."""
    dtype = next(name for name, kind in DTYPES.items() if np.dtype(kind) == array.dtype)
    return tensor(shape or array.shape, dtype, seed=1, padding=1)


def compiled(
    folder: Path,
    source: str,
    signature: Mapping[str, str],
    constants: Mapping[str, object] | None = None,
    target: str = "sm_90a",
    num_warps: int = 4,
    num_stages: int = 3,
    **options: Any,
) -> PtxKernel:
    """Compile the kernel `k`, given without its decorator, as far as PTX."""
    path = folder / "kernel.py"
    path.write_text(PRELUDE + source, encoding="utf-8")
    parts = tuple(signature.items()), tuple((constants or {}).items())
    return compile_ptx(
        request_of(
            *(str(path), "k", *parts, target), num_warps=num_warps, num_stages=num_stages, **options
        )
    )


def lowered(
    folder: Path, source: str, signature: Mapping[str, str], num_warps: int, **options: Any
) -> tuple[str, str]:
    """Return gpu IR and remarks of the kernel `k`, compiled down to a cubin."""
    path = folder / "kernel.py"
    path.write_text(PRELUDE + source, encoding="utf-8")
    request = request_of(
        *(str(path), "k", tuple(signature.items()), (), "sm_90a"), num_warps=num_warps, **options
    )
    kernel = compile_kernel(request, keep_asm=True)
    assert not kernel.metadata.ptxas_warnings
    return kernel.asm["gpu"], "\n".join(kernel.metadata.remarks)


def is_persistent(kernel: PtxKernel) -> bool:
    """Return whether a CTA of a kernel runs one program after the other."""
    return any(slot.source in GRID_SOURCES for slot in kernel.params)


def launch(
    kernel: PtxKernel,
    grid: Sequence[int],
    values: Mapping[str, Any],
    *,
    seed: int = 0,
    count_conflicts: bool = False,
    num_ctas: int | None = None,
) -> Statistics:
    """Run a compiled kernel; it writes the arrays of `values` in place.

    `grid` counts programs. `num_ctas` is the number of persistent CTAs, by default the one of
    `aotc verify`.
    """
    values = {**values, **dict(zip(GRID_SOURCES, (*grid, 1, 1), strict=False))}
    values[SCRATCH_SOURCE] = np.full(kernel.scratch_bytes * prod(grid), 0xA5, np.uint8)
    numbers = {name: value for name, value in values.items() if isinstance(value, int)}
    assert all(evaluate(parse(guard), numbers) for guard in kernel.guards)
    args = [_argument(slot, values[slot.argument], numbers) for slot in kernel.params]
    ctas = num_persistent_ctas(grid) if num_ctas is None else num_ctas
    return emulate(
        kernel.ptx,
        (ctas,) if is_persistent(kernel) else grid,
        args,
        kernel=kernel.symbol,
        shared_bytes=kernel.shared_bytes,
        seed=seed,
        count_conflicts=count_conflicts,
    )


def _argument(slot: ParamSlot, value: Any, numbers: Mapping[str, int]) -> Argument:
    spec = slot.tensor_map
    if spec is not None and not spec.shape[0].startswith(f"{slot.argument}."):
        shape, strides = (
            tuple(evaluate(parse(text), numbers) for text in texts)
            for texts in (spec.shape, spec.strides)
        )
        form = (spec.box, spec.swizzle_bytes, spec.fill_nan)
        return PlacedTensor(value, spec.element, shape, (*strides, 1), *form)
    if spec is not None:
        array = value.view(np.uint8) if value.dtype == np.bool_ else value
        return TensorArgument(array, spec.box, spec.swizzle_bytes, fill_nan=spec.fill_nan)
    _, _, part = slot.source.partition(".")
    if not part:
        return value
    kind, _, axis = part.rstrip("]").partition("[")
    sizes = value.shape if kind == "shape" else [step // value.itemsize for step in value.strides]
    return int(sizes[int(axis)])

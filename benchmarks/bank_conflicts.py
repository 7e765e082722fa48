"""Bank conflicts of the kernels' shared-memory accesses, counted without a GPU.

    python benchmarks/bank_conflicts.py [--target T] [--json FILE]

Each kernel is compiled to PTX and one CTA of it runs in the emulator, which records the address
of every lane. A phase of an access is 32 lanes of 4 bytes, 8 of 16, or one 8×8 matrix of
`ldmatrix`. A phase with more than one wavefront has a bank conflict. The table gives phases and
excess wavefronts by kind of instruction, for three kinds of kernels: products through pointers,
tiles transposed between a load and a store through pointers, and blocks transposed between two
tensor copies with swizzles of 32, 64 and 128 bytes.

The profiler counts the same on a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import ml_dtypes
import numpy as np

from aotc.compiler import CompileRequest, PtxKernel, compile_ptx
from aotc.config import Config
from aotc.verify.emulator.arguments import Argument
from aotc.verify.emulator.async_copies.tensor_argument import TensorArgument
from aotc.verify.emulator.run import Statistics, emulate

ROOT = Path(__file__).parents[1]
SEED = 2026

_MATMUL = {
    "a_ptr": "*{t}:16",
    "b_ptr": "*{t}:16",
    "bias_ptr": "*{t}:16",
    "residual_ptr": "*{t}:16",
    "out_ptr": "*{t}:16",
    "M": "i32",
    "N": "i32:16",
    "K": "i32:16",
    "stride_am": "i32:16",
    "stride_ak": "i32",
    "stride_bk": "i32:16",
    "stride_bn": "i32",
    "stride_om": "i32:16",
    "stride_on": "i32=1",
}
_DTYPES = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16, "fp32": np.float32}
# (dtype, B by rows or by columns, M, N, K of the tile, warps, stages)
TILES = [
    ("bf16", "rows", 128, 128, 32, 4, 4),
    ("bf16", "columns", 128, 128, 32, 4, 4),
    ("bf16", "rows", 128, 128, 64, 4, 3),
    ("bf16", "columns", 128, 128, 64, 4, 3),
    ("bf16", "rows", 128, 256, 64, 8, 3),
    ("fp16", "rows", 64, 64, 32, 4, 3),
    ("fp16", "columns", 64, 256, 32, 4, 4),
    ("fp32", "rows", 64, 64, 32, 4, 3),
    ("fp32", "columns", 128, 64, 32, 4, 3),
]
TRANSPOSE_TARGET = "sm_90a"
TRANSPOSE_WARPS = 4
_TYPES = {"i8": np.int8, "bf16": ml_dtypes.bfloat16, "fp32": np.float32, "fp64": np.float64}
_ROW_BYTES = (32, 64, 128)
_CHUNK_BYTES = 16


@dataclass(frozen=True)
class Transpose:
    """A transposed block: rows of `row_bytes` when loaded and `column_bytes` after.

    Elements change places one by one, or `by_chunks` of 16 bytes.
    """

    dtype: str
    row_bytes: int
    column_bytes: int
    by_chunks: bool = False

    @property
    def unit(self) -> int:
        """Elements moved together."""
        return _CHUNK_BYTES // self.size_bytes if self.by_chunks else 1

    @property
    def size_bytes(self) -> int:
        return np.dtype(_TYPES[self.dtype]).itemsize

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the loaded block, in units."""
        unit_bytes = self.unit * self.size_bytes
        return self.column_bytes // unit_bytes, self.row_bytes // unit_bytes

    def compile(self) -> PtxKernel:
        """Return the PTX of its kernel."""
        rows, columns = self.shape
        loaded, stored = (rows, columns * self.unit), (columns, rows * self.unit)
        signature = {
            name: f"tensordesc<{self.dtype}[{block[0]},{block[1]}]>"
            for name, block in (("x", loaded), ("out", stored))
        }
        constants = {"BLOCK_M": rows, "BLOCK_N": columns}
        source, name = ROOT / "kernels" / "descriptor_copy.py", "transpose_kernel"
        if self.by_chunks:
            constants = {"ROWS": rows, "CHUNKS": columns, "CHUNK": self.unit}
            name = "transpose_chunks_kernel"
        parts = tuple(signature.items()), tuple(constants.items())
        return compile_ptx(
            CompileRequest(str(source), name, *parts, TRANSPOSE_TARGET, Config(TRANSPOSE_WARPS))
        )

    def run(self, kernel: PtxKernel) -> Statistics:
        """Transpose a block and check it."""
        rows, columns = self.shape
        shape = (rows, columns, self.unit)
        data = np.random.default_rng(SEED).integers(-99, 99, shape).astype(_TYPES[self.dtype])
        x, expected = data.reshape(rows, -1), data.transpose(1, 0, 2).reshape(columns, -1)
        out = np.zeros(expected.shape, expected.dtype)
        arrays = {"x": x, "out": out}
        arguments: list[Argument] = []
        for slot in kernel.params:
            array, spec = arrays[slot.argument], slot.tensor_map
            if spec is not None:
                arguments.append(TensorArgument(array, spec.box, spec.swizzle_bytes))
            else:
                arguments.append(int(array.shape["shape[1]" in slot.source]))
        statistics = emulate(
            kernel.ptx,
            (1,),
            arguments,
            shared_bytes=kernel.shared_bytes,
            count_conflicts=True,
        )
        np.testing.assert_array_equal(out, expected)
        return statistics

    def __str__(self) -> str:
        rows, columns = self.shape
        unit = "chunks of 16 bytes" if self.by_chunks else "elements"
        return (
            f"{self.dtype} {rows}x{columns} {unit} transposed, swizzles of {self.row_bytes} and "
            f"{self.column_bytes} bytes"
        )


@dataclass(frozen=True)
class TileTranspose:
    """A tile of `rows` by `columns` elements, loaded, transposed and stored through pointers."""

    dtype: str
    rows: int
    columns: int
    warps: int = TRANSPOSE_WARPS

    def compile(self) -> PtxKernel:
        """Return the PTX of its kernel."""
        signature = {"x_ptr": f"*{self.dtype}:16", "out_ptr": f"*{self.dtype}:16"}
        numbers = ("x_stride", "out_stride", "n_rows", "n_cols")
        signature |= dict.fromkeys(numbers, "i32:16")
        constants = {"BLOCK_M": self.rows, "BLOCK_N": self.columns}
        parts = tuple(signature.items()), tuple(constants.items())
        source, config = str(ROOT / "kernels" / "transpose.py"), Config(self.warps)
        return compile_ptx(
            CompileRequest(source, "transpose2d_kernel", *parts, TRANSPOSE_TARGET, config)
        )

    def run(self, kernel: PtxKernel) -> Statistics:
        """Transpose a tile and check it."""
        rng = np.random.default_rng(SEED)
        x = rng.integers(-99, 99, (self.rows, self.columns)).astype(_TYPES[self.dtype])
        out = np.zeros((self.columns, self.rows), x.dtype)
        statistics = emulate(
            kernel.ptx,
            (1,),
            [x, out, self.columns, self.rows, self.rows, self.columns],
            cta_threads=(32 * self.warps,),
            shared_bytes=kernel.shared_bytes,
            count_conflicts=True,
        )
        np.testing.assert_array_equal(out, x.T)
        return statistics

    def __str__(self) -> str:
        return f"{self.dtype} {self.rows}x{self.columns} transposed by {self.warps} warps"


TILE_TRANSPOSES = [
    TileTranspose(dtype, rows, columns, warps)
    for dtype in ("i8", "bf16", "fp32")
    for rows, columns, warps in (
        (64, 64, 4),
        (64, 64, 8),
        (128, 64, 4),
        (32, 128, 4),
        (128, 128, 8),
    )
]
TRANSPOSES = [
    Transpose(dtype, row_bytes, column_bytes, by_chunks)
    for dtype, by_chunks in (*((dtype, False) for dtype in _TYPES), ("bf16", True))
    for row_bytes, column_bytes in product(_ROW_BYTES, repeat=2)
]


def compile_tile(tile: tuple[str, str, int, int, int, int, int], target: str) -> PtxKernel:
    """Return the PTX of the pointer-style matmul with one tile."""
    dtype, order, block_m, block_n, block_k, num_warps, num_stages = tile
    signature = {name: kind.format(t=dtype) for name, kind in _MATMUL.items()}
    signature["stride_ak"] = "i32=1"
    signature["stride_bk"], signature["stride_bn"] = (
        ("i32:16", "i32=1") if order == "rows" else ("i32=1", "i32:16")
    )
    constants = {
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "BLOCK_K": block_k,
        "GROUP_M": 8,
        "BIAS": False,
        "RESIDUAL": False,
        "ACTIVATION": "none",
        "EVEN_K": False,
    }
    return compile_ptx(
        CompileRequest(
            str(ROOT / "kernels" / "matmul.py"),
            "matmul_kernel",
            tuple(signature.items()),
            tuple(constants.items()),
            target,
            Config(num_warps, num_stages),
        )
    )


def run(tile: tuple[str, str, int, int, int, int, int], kernel: PtxKernel) -> Statistics:
    """Run one block over a few steps of K and check its result."""
    dtype, order, m, n, block_k, num_warps, num_stages = tile
    k = block_k * (num_stages + 1)
    rng = np.random.default_rng(SEED)
    a, b = (rng.integers(-4, 5, shape).astype(_DTYPES[dtype]) for shape in ((m, k), (k, n)))
    out = np.full((m, n), np.nan, _DTYPES[dtype])
    stored = b if order == "rows" else np.ascontiguousarray(b.T)
    # Strides of 1 are compiled in; B's other stride is the length of its contiguous axis.
    arguments = [a, stored, out, out, out, m, n, k, k, n if order == "rows" else k, n]
    statistics = emulate(
        kernel.ptx,
        (1,),
        arguments,
        cta_threads=(32 * num_warps,),
        shared_bytes=kernel.shared_bytes,
        count_conflicts=True,
    )
    expected = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(out.astype(np.float64), expected, rtol=1e-2)
    return statistics


def by_kind(kernel: PtxKernel, statistics: Statistics) -> dict[str, tuple[int, int]]:
    """Return phases and excess wavefronts of each kind of shared-memory instruction."""
    lines = kernel.ptx.splitlines()
    phases: Counter[str] = Counter()
    excess: Counter[str] = Counter()
    for line, count in sorted(statistics.conflicts.items()):
        words = lines[line - 1].split()
        kind = next(word for word in words if word[0].isalpha())
        phases[kind] += count.phases
        excess[kind] += count.excess
    return {kind: (phases[kind], excess[kind]) for kind in phases}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="sm_80")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    rows = []
    for tile in TILES:
        kernel = compile_tile(tile, options.target)
        counts = by_kind(kernel, run(tile, kernel))
        dtype, order, m, n, k, warps, stages = tile
        print(f"{dtype} {m}x{n}x{k}, B by {order}, {warps} warps, {stages} stages")
        for kind, (phases, excess) in sorted(counts.items()):
            print(f"    {kind:50} {phases:7} phases  {excess:6} more wavefronts")
            rows.append({"tile": tile, "kind": kind, "phases": phases, "excess": excess})
    for transpose in (*TILE_TRANSPOSES, *TRANSPOSES):
        kernel = transpose.compile()
        counts = by_kind(kernel, transpose.run(kernel))
        print(transpose)
        for kind, (phases, excess) in sorted(counts.items()):
            print(f"    {kind:50} {phases:7} phases  {excess:6} more wavefronts")
            rows.append({"tile": str(transpose), "kind": kind, "phases": phases, "excess": excess})
    print(f"{sum(row['excess'] for row in rows)} wavefronts more than needed, in all")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

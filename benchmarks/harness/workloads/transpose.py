"""Transposes of large matrices of 8, 16 and 32-bit elements."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.harness import torch_peers
from benchmarks.harness.operands import Arguments, Arrays, Part, Tolerance
from benchmarks.harness.workload import Item, Workload

_BYTES, _COLUMNS = 1 << 28, 8192
_SIZES = {"i8": 1, "bf16": 2, "fp32": 4}


def _transpose(dtype: str, rows: int, columns: int) -> Workload:
    def operands(arrays: Arrays) -> Arguments:
        x = arrays.integers(-99, 99, rows, columns, dtype=dtype)
        strides = {"x_stride": columns, "out_stride": rows, "n_rows": rows, "n_cols": columns}
        return {"x_ptr": x, "out_ptr": arrays.empty(columns, rows, dtype=dtype), **strides}

    def reference(arrays: Arrays, args: Arguments) -> Iterator[Part]:
        for part in (slice(0, 512), slice(max(0, columns - 512), columns)):
            yield Part("out_ptr", part, arrays.wide(args["x_ptr"][:, part]).T)

    def by_torch(args: Arguments) -> None:
        args["out_ptr"].copy_(args["x_ptr"].t())

    return Workload(
        name=f"transpose {dtype} {rows}×{columns}",
        manifest="benchmarks/transpose.toml",
        work=2.0 * rows * columns * _SIZES[dtype],
        unit="TB/s",
        operands=operands,
        reference=reference,
        tolerance=Tolerance(),
        outputs=("out_ptr",),
        kernels=("transpose2d",),
        peers={
            "torch": torch_peers.calls(by_torch),
            "copy": torch_peers.copy("x_ptr", "out_ptr"),
        },
        sets=2,
    )


ITEMS = {
    dtype: Item("bandwidth", f"Transposes through pointers, {dtype}, 256 MiB", [
        _transpose(dtype, _BYTES // size // _COLUMNS, _COLUMNS)
    ])
    for dtype, size in _SIZES.items()
}  # fmt: skip
TINY = [_transpose(dtype, 48, 80) for dtype in _SIZES]

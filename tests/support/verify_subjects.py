"""The kernels of `verify_kernels.py`, translated and with manifests, ready to be verified."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from aotc.frontend.translate import translate
from aotc.ir.core import Kernel

SOURCE = Path(__file__).with_name("verify_kernels.py")

_SIGNATURES: dict[str, dict[str, str]] = {
    "scale_rows": {
        "x_ptr": "*fp32", "out_ptr": "*fp32", "stride": "i32", "n_rows": "i32", "n_cols": "i32",
        "factor": "fp32",
    },
    "scale_rows_in_turn": {
        "x_ptr": "*fp32", "out_ptr": "*fp32", "stride": "i32", "n_rows": "i32", "n_cols": "i32",
        "factor": "fp32",
    },
    "to_bytes": {"x_ptr": "*fp32", "out_ptr": "*u8", "n": "i32", "scale": "fp32"},
    "added_if": {"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32", "scale": "fp32"},
    "sum_rows": {"x_ptr": "*fp16", "out_ptr": "*fp32", "stride": "i32", "n_cols": "i32"},
    "gather": {
        "x_ptr": "*fp32", "index_ptr": "*i64", "out_ptr": "*fp32", "n": "i32", "stride_x": "i32",
    },
    "leaky": {"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32"},
    "crowd": {"out_ptr": "*i32", "n": "i32"},
    "count": {"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32"},
    "last_adds": {
        "x_ptr": "*i32", "parts_ptr": "*i32", "counter_ptr": "*i32", "out_ptr": "*i32",
    },
    "locked": {"x_ptr": "*fp32", "lock_ptr": "*i32", "out_ptr": "*fp32"},
    "placed": {"x_ptr": "*i32", "counter_ptr": "*i32", "out_ptr": "*i32"},
    "halves": {"x_ptr": "*fp32", "n_rows": "i32", "stride": "i32", "n": "i32"},
    "twice": {"x_ptr": "*fp32", "n": "i32"},
    "grouped": {
        "a_ptr": "*fp32", "out_ptr": "*fp32", "M": "i32", "N": "i32", "stride_am": "i32",
        "stride_an": "i32", "stride_om": "i32", "stride_on": "i32",
    },
    "doubled": {"x_ptr": "*fp32", "out_ptr": "*fp32"},
    "halved": {"x_ptr": "*fp32"},
    "halved_and_spread": {"x_ptr": "*fp32", "out_ptr": "*fp32"},
    "turned": {"x_ptr": "*i32", "out_ptr": "*i32"},
    "attend": {"x_ptr": "*fp32", "v_ptr": "*fp16", "out_ptr": "*fp32"},
    "chained_dots": {"x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32"},
    "sequence_sums": {"x_ptr": "*i32", "starts_ptr": "*i64", "out_ptr": "*i32"},
    "rows_before": {"x_ptr": "*i32", "rows_ptr": "*i32", "out_ptr": "*i32", "n": "i32"},
    "rows_at_addresses": {"addresses_ptr": "*i64", "out_ptr": "*i32", "n": "i32"},
    "next_rows": {
        "x_ptr": "*i32", "out_ptr": "*i32", "stride": "i32", "n_rows": "i32", "n_cols": "i32",
    },
    "shifted": {"x_ptr": "*i32", "out_ptr": "*i32"},
    "tiles": {
        "x_ptr": "*i32", "out_ptr": "*i32", "stride": "i32", "n_rows": "i32", "n_cols": "i32",
    },
    "tile_sums": {
        "x_ptr": "*i32", "out_ptr": "*i32", "stride": "i32", "n_rows": "i32", "n_cols": "i32",
    },
    "lower_pairs": {"x_ptr": "*i32", "out_ptr": "*i32"},
    "swizzled": {
        "x_ptr": "*i32", "out_ptr": "*i32", "stride": "i32", "n_rows": "i32", "n_cols": "i32",
    },
    "causal_sums": {
        "x": "tensordesc<i32[1,16]>", "y": "tensordesc<i32[1,16]>", "out": "tensordesc<i32[1,16]>",
        "n_queries": "i32", "n_keys": "i32",
    },
    "head_rows": {"x_ptr": "*i32", "out_ptr": "*i32", "n_heads": "i32", "n_rows": "i32"},
    "looked_up": {"x_ptr": "*fp32", "table_ptr": "*i32", "out_ptr": "*i32", "n": "i32"},
    "products": {
        "a_ptr": "*fp8e4nv", "b_ptr": "*fp8e4nv", "out_ptr": "*fp32", "n_cols": "i32",
    },
    "grouped_pointers": {"rows_ptr": "*i32", "out_ptrs": "*i64", "n": "i32"},
}  # fmt: skip

_CONSTANTS = {"tiles": {"PROGRAMS": 40}}


@lru_cache(maxsize=64)
def _translated(name: str, block: int, types: tuple[tuple[str, str], ...]) -> Kernel:
    signature = {**_SIGNATURES[name], **dict(types)}
    constants = {"BLOCK": block, **_CONSTANTS.get(name, {})}
    return translate(str(SOURCE), name, signature, constants, target="sm_90a").kernel


def kernel_of(name: str, block: int = 16, types: Mapping[str, str] | None = None) -> Kernel:
    """Return a kernel's tile IR; `types` replaces types of arguments. It must not be changed."""
    return _translated(name, block, tuple((types or {}).items()))


def manifest_text(
    name: str, *, block: int = 16, grid: str = "", verify: str = "", types: str = ""
) -> str:
    """Return a manifest with one of the kernels; `grid` and the lines of `verify` are optional."""
    signature = {**_SIGNATURES[name]}
    for line in types.splitlines():
        argument, _, kind = line.partition("=")
        signature[argument.strip()] = kind.strip()
    lines = [
        '[package]\nname = "demo"\nversion = "0.1.0"\ntargets = ["sm_80"]\n[[kernel]]',
        f'source = "{SOURCE.as_posix()}:{name}"',
        f"grid = {grid}" if grid else "",
        "[kernel.signature]",
        *(f'{argument} = "{kind}"' for argument, kind in signature.items()),
        f"[kernel.constants]\nBLOCK = {block}",
        *(f"{key} = {value}" for key, value in _CONSTANTS.get(name, {}).items()),
        f"[kernel.verify]\n{verify}" if verify else "",
    ]
    return "\n".join(line for line in lines if line) + "\n"

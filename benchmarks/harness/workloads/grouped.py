"""Products of groups in one launch: of different sizes by pointers, and rows sorted by expert."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.harness.operands import Arguments, Arrays, Part, Tolerance
from benchmarks.harness.workload import (
    Configs,
    Item,
    Launch,
    Peer,
    Plans,
    Step,
    Workload,
    cdiv,
    tiles,
)

# bf16 rounds to 2^-9 of a value; sums of products have a smaller error of their size.
_TOLERANCE = Tolerance(largest=2**-8)
_TILE = ("BLOCK_N", "EPILOGUE_N", "num_warps", "num_stages")
_TRITON = tiles(_TILE, (128, 128, 4, 4), (128, 128, 8, 4), (256, 256, 8, 3))
_WHOLE_TILES = [
    {name: value for name, value in config.items() if name != "EPILOGUE_N"} for config in _TRITON
]
_CHECKED_GROUPS, _CHECKED_ROWS = 6, 16
Size = tuple[int, int, int]


def _groups_of(args: Arguments, count: int) -> Iterator[tuple[Any, Any, Any]]:
    for index in range(count):
        yield args[f"a{index}"], args[f"b{index}"], args[f"c{index}"]


def _mm_by_group(count: int) -> Peer:
    """Return a product by cuBLAS for each group, one after the other."""

    def bind(args: Arguments) -> Launch:
        import torch

        def launch() -> None:
            for a, b, c in _groups_of(args, count):
                torch.mm(a, b.T, out=c)

        return launch

    return Peer(bind)


def _reference(
    sizes: Sequence[Size],
) -> Callable[[Arrays, Arguments], Iterator[Part]]:
    """Return the reference of rows of some groups."""

    def reference(arrays: Arrays, args: Arguments) -> Iterator[Part]:
        for index in np.unique(np.linspace(0, len(sizes) - 1, _CHECKED_GROUPS).astype(int)):
            m = sizes[index][0]
            rows = np.unique(np.linspace(0, m - 1, min(m, _CHECKED_ROWS)).astype(np.int64))
            a, b = arrays.wide(args[f"a{index}"][rows]), arrays.wide(args[f"b{index}"])
            yield Part(f"c{index}", rows, a @ b.T)

    return reference


# ---- groups of different sizes ------------------------------------------------------------------


def sizes_of_groups(count: int, multiple: int = 8) -> list[Size]:
    """Return M, N and K of groups: rows of any number, the others multiples of 8 or of another one."""
    dice, sizes = random.Random(count), list[Size]()
    for _ in range(count):
        m, n, k = dice.randint(64, 2048), 8 * dice.randint(64, 512), 8 * dice.randint(64, 512)
        sizes.append((m, cdiv(n, multiple) * multiple, cdiv(k, multiple) * multiple))
    return sizes


def _groups(name: str, sizes: Sequence[Size], *, sorts: bool = True) -> Workload:
    padding = 0 if all(k % 64 == 0 for _, _, k in sizes) else 8

    def operands(arrays: Arrays) -> Arguments:
        args: Arguments = {"n_groups": len(sizes)}
        for index, (m, n, k) in enumerate(sizes):
            args[f"a{index}"] = arrays.normal(m, k + padding * (index % 3))[:, :k]
            args[f"b{index}"] = arrays.normal(n, k)
            args[f"c{index}"] = arrays.empty(m, n + padding * (index % 2))[:, :n]
        groups = list(_groups_of(args, len(sizes)))
        names = ("a_ptrs", "b_ptrs", "c_ptrs")
        for pointers, kind in zip(names, zip(*groups, strict=True), strict=True):
            args[pointers] = arrays.array([arrays.address(array) for array in kind], "i64")
        strides = [
            (k + padding * (index % 3), k, n + padding * (index % 2))
            for index, (_, n, k) in enumerate(sizes)
        ]
        args |= {"sizes_ptr": arrays.array(sizes), "strides_ptr": arrays.array(strides)}
        return args | {"order_ptr": arrays.array(range(len(sizes)))}

    def plans(arrays: Arrays, _: Arguments, configs: Configs) -> Iterator[Plans]:
        order = (Step("order_groups"),) if sorts else ()
        for config, per_sm in itertools.product(configs("grouped_gemm"), (1, 2)):
            values = {"n_programs": per_sm * (arrays.num_sms // config.get("num_ctas", 1))}
            yield (*order, Step("grouped_gemm", config, values, note=f"{per_sm} programs an SM"))

    return Workload(
        name=name,
        manifest="benchmarks/grouped_gemm.toml",
        work=2.0 * sum(m * n * k for m, n, k in sizes),
        unit="TFLOP/s",
        operands=operands,
        reference=_reference(sizes),
        tolerance=_TOLERANCE,
        outputs=tuple(f"c{index}" for index in range(len(sizes))),
        plans=plans,
        triton={"grouped_gemm": [config | {"BLOCK_M": 128} for config in _TRITON]},
        peers={"torch.mm for each": _mm_by_group(len(sizes))},
    )


# ---- rows by expert -----------------------------------------------------------------------------

_BLOCK = 128


def _experts(kind: str, groups: int, rows: int, n: int, k: int) -> Workload:
    """Return rows sorted by expert; masked ones have room for half as many again, or none to spare."""
    rng = np.random.default_rng(0)
    low = rows if groups == 1 else rows // 2
    counts = rng.integers(low, 2 * rows - low + 1, groups)
    masked = kind == "masked"
    if not masked:
        counts = (counts + _BLOCK // 2) // _BLOCK * _BLOCK
    starts = np.cumsum([0, *counts])
    room = cdiv(int(counts.max()), _BLOCK) * _BLOCK if masked else int(counts.sum())
    owners = counts if masked else np.repeat(np.arange(groups), counts)
    sizes = [(int(count), n, k) for count in counts]

    def operands(arrays: Arrays) -> Arguments:
        shape = (groups, room) if masked else (room,)
        args: Arguments = {"a": arrays.normal(*shape, k), "b": arrays.normal(groups, n, k)}
        args |= {"c": arrays.empty(*shape, n), "counts_ptr": arrays.array(owners)}
        args |= {"group_ptr": args["counts_ptr"], "n_groups": groups, "n_programs": arrays.num_sms}
        for group, count in enumerate(counts):
            rows_of_group: Any = slice(int(starts[group]), int(starts[group + 1]))
            part = (group, slice(0, int(count))) if masked else rows_of_group
            args[f"a{group}"], args[f"c{group}"] = args["a"][part], args["c"][part]
            args[f"b{group}"] = args["b"][group]
        return args | {"M": room, "N": n, "K": k}

    kernel = f"{kind}_grouped_gemm"
    return Workload(
        name=f"{kind}, {groups} of {rows}",
        manifest="benchmarks/expert_rows.toml",
        work=2.0 * int(counts.sum()) * n * k,
        unit="TFLOP/s",
        operands=operands,
        reference=_reference(sizes),
        tolerance=_TOLERANCE,
        outputs=("c",),
        kernels=(kernel,),
        triton={kernel: _TRITON if masked else _WHOLE_TILES},
        peers={"torch.mm for each": _mm_by_group(groups)},
    )


_FEW, _MANY, _ONE = (16, 512, 4096, 4096), (64, 128, 4096, 4096), (1, 8192, 4096, 4096)
ITEMS = {
    "sizes": Item("matmul", "Grouped matmul of different sizes in one launch", [
        _groups("64 groups, sorted on the device", sizes_of_groups(64)),
        _groups("64 groups, not sorted", sizes_of_groups(64), sorts=False),
        _groups("64 groups, N and K multiples of 64", sizes_of_groups(64, 64)),
        _groups("1 group of 8192×8192×4096", [(8192, 8192, 4096)]),
        # Its rows do not begin at multiples of 128 bytes, as most of the groups' do not.
        _groups("1 group of 8192×8192×4104", [(8192, 8192, 4104)]),
    ]),
    "experts": Item("matmul", "Rows sorted by expert, N = K = 4096, bf16", [
        _experts(kind, *size) for kind in ("masked", "contiguous") for size in (_FEW, _MANY, _ONE)
    ]),
}  # fmt: skip
TINY = [_experts(kind, 3, 130, 144, 80) for kind in ("masked", "contiguous")]

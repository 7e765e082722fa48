"""Matrix products stored through pointers in many ways.

The kernels differ in the store of a product of A and B. Columns of A and B are contiguous, so N only
affects the store. The output starts random and is compared as a whole, so a stray write shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from aotc.compiler import CompileRequest
from tests.support.pointer_kernels import Launch
from tests.support.requests import request_of

SOURCE = """\
import triton
import triton.language as tl


@triton.jit
def k(
    a_ptr, b_ptr, out_ptr, other_ptr, M, N, K, stride_am, stride_bn, stride_om, extra,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):
    part = tl.program_id(2)
    m, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    in_m, in_n = m < M, n < N
    inside = in_m[:, None] & in_n[None, :]
    out_ptrs = out_ptr + m[:, None] * stride_om + n[None, :]
    SETUP
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        in_k = start + k < K
        a_ptrs = a_ptr + m[:, None] * stride_am + (start + k)[None, :]
        b_ptrs = b_ptr + n[None, :] * stride_bn + (start + k)[:, None]
        a = tl.load(a_ptrs, mask=in_m[:, None] & in_k[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=in_n[None, :] & in_k[:, None], other=0.0)
        acc = tl.dot(a, b, acc)
    c = acc.to(out_ptr.dtype.element_ty)
    STORE
"""
DTYPES: dict[str, type] = {
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "fp32": np.float32,
    "fp64": np.float64,
    "i8": np.int8,
    "i32": np.int32,
}
NUM_PARTS = 2
UNIT = 16  # of strides, as ':16' promises
MASKED = "tl.store(out_ptrs, c, mask=inside)"


@dataclass(frozen=True)
class Case:
    """One way to store a product: `store`, and the code before the loop.

    The output is an array of (NUM_PARTS, rows, columns), with the parts on axis 2 of the grid. `place`
    returns the view of a part for the product; `extra` is computed from M, N and the output. The
    product is added `adds` times to the old content. `holds` states the guards for M and N, both
    nonzero.
    """

    store: str = MASKED
    setup: str = "pass"
    dtype: str = "fp16"
    signature: dict[str, str] = field(default_factory=dict[str, str])
    parts: tuple[int, ...] = (0,)
    place: Callable[[np.ndarray, int, int], np.ndarray] = lambda out, m, n: out[:m, :n]
    adds: int = 0
    rows: Callable[[int], int] = lambda m: m
    extra: Callable[[int, int, np.ndarray], int] = lambda _, __, ___: 16
    holds: Callable[[int, int], bool] = lambda _, n: n % 8 == 0
    block: tuple[int, int, int] = (64, 32, 32)


def _whole_rows(m: int) -> int:
    return -(-m // 64) * 64


MAPPED = {
    "masked": Case(),
    "bf16": Case(dtype="bf16"),
    "fp32": Case(dtype="fp32", holds=lambda _, n: n % 4 == 0),
    "fp64": Case(dtype="fp64", holds=lambda _, n: n % 2 == 0),
    "i8": Case(dtype="i8", holds=lambda _, n: n % 16 == 0),
    "i32": Case(dtype="i32", holds=lambda _, n: n % 4 == 0),
    "other bounds": Case(
        MASKED.replace("inside", "(m <= M - 1)[:, None] & (N > n)[None, :]"),
    ),
    "wide": Case(
        MASKED.replace("out_ptrs", "out_ptr + m.to(tl.int64)[:, None] * stride_om + n[None, :]")
    ),
    "from a start": Case(
        MASKED.replace("out_ptrs", "corner + rows * stride_om + tl.arange(0, BN)[None, :]"),
        setup="corner = out_ptr + tl.program_id(0) * BM * stride_om + tl.program_id(1) * BN\n"
        "    rows = tl.arange(0, BM)[:, None]",
    ),
    "to the end of a block": Case(
        MASKED.replace("inside", "in_n[None, :]"),
        rows=_whole_rows,
    ),
    "turned": Case(
        MASKED.replace("out_ptrs", "out_ptr + m[:, None] + n[None, :] * stride_om"),
        place=lambda out, m, n: out[:n, :m].T,
        holds=lambda m, _: m % 8 == 0,
    ),
    "turned twice": Case("tl.store(out_ptrs.T, c.T, mask=inside.T)"),
    "part": Case(
        MASKED.replace("out_ptrs", "out_ptrs + part * extra"),
        parts=(0, 1),
        extra=lambda _, __, out: out[0].size,
    ),
    "three axes": Case("tl.store(out_ptrs[None], c[None], mask=inside[None])"),
    "rows further down": Case(
        MASKED.replace("out_ptrs", "out_ptrs + extra * stride_om"),
        place=lambda out, m, n: out[3 : m + 3, :n],
        extra=lambda _, __, ___: 3,
        signature={"extra": "i32"},
    ),
    "columns further on": Case(
        MASKED.replace("out_ptrs", "out_ptrs + 8"), place=lambda out, m, n: out[:m, 8 : n + 8]
    ),
    "two ends": Case(
        MASKED.replace("inside", "inside & (m < extra)[:, None]"),
        rows=lambda m: min(m, 7),
        extra=lambda _, __, ___: 7,
        signature={"extra": "i32"},
    ),
    "in an arm": Case(
        "if part == 1:\n        " + MASKED.replace("out_ptrs", "out_ptrs + part * extra"),
        parts=(1,),
        extra=lambda _, __, out: out[0].size,
    ),
    "beside another": Case(f"{MASKED}\n    tl.store(other_ptr + m, m, mask=in_m)"),
    "on top": Case(
        MASKED.replace("c,", "(acc + tl.load(out_ptrs, mask=inside, other=0.0)).to(c.dtype),"),
        adds=True,
    ),
}
ADDED = 'tl.atomic_add(out_ptrs, c, mask=inside, sem="relaxed")'
UPDATED = {
    "fp16": Case(ADDED, adds=True),
    "bf16": Case(ADDED, dtype="bf16", adds=True),
    "fp32": Case(ADDED, dtype="fp32", adds=True, holds=lambda _, n: n % 4 == 0),
    "i32": Case(ADDED, dtype="i32", adds=True, holds=lambda _, n: n % 4 == 0),
    "for the CTA": Case(ADDED.replace("sem", 'scope="cta", sem'), adds=True),
    "turned": Case(
        ADDED.replace("out_ptrs", "out_ptr + m[:, None] + n[None, :] * stride_om"),
        adds=True,
        place=lambda out, m, n: out[:n, :m].T,
        holds=lambda m, _: m % 8 == 0,
    ),
    "part": Case(
        ADDED.replace("out_ptrs", "out_ptrs + part * extra"),
        parts=(0, 1),
        extra=lambda _, __, out: out[0].size,
        adds=True,
    ),
    "in a loop": Case(
        f"for _ in range(extra):\n        {ADDED}",
        adds=3,
        extra=lambda _, __, ___: 3,
        signature={"extra": "i32"},
    ),
    "twice": Case(f"{ADDED}\n    {ADDED}", adds=2),
    "beside another": Case(
        f'{ADDED}\n    tl.atomic_add(other_ptr + m, m, mask=in_m, sem="relaxed")', adds=True
    ),
}
"""Ways to add a product to what is there; `adds` is how often."""


def request(folder: Path, case: Case, num_warps: int = 4, **options: Any) -> CompileRequest:
    """Return the compile request for the kernel of a case."""
    path = folder / "kernel.py"
    text = SOURCE.replace("SETUP", case.setup).replace("STORE", case.store)
    path.write_text(text, encoding="utf-8")
    signature = {
        **dict.fromkeys(("a_ptr", "b_ptr"), "*fp16:16"),
        "out_ptr": f"*{case.dtype}:16",
        "other_ptr": "*i32",
        **dict.fromkeys("MNK", "i32"),
        **dict.fromkeys(("stride_am", "stride_bn", "stride_om", "extra"), "i32:16"),
        **case.signature,
    }
    constants = zip(("BM", "BN", "BK"), case.block, strict=True)
    parts = tuple(signature.items()), tuple(constants)
    return request_of(str(path), "k", *parts, "sm_90a", num_warps=num_warps, **options)


def launch(case: Case, m: int, n: int, k: int) -> Launch:
    """Return a launch on random integers with exact sums."""
    random = np.random.default_rng(m + 100 * n + 10000 * k)
    a, b = (
        random.integers(-1, 2, (max(1, extent), -(-(k + 1) // UNIT) * UNIT)).astype(np.float16)
        for extent in (m, n)
    )
    size = -(-(max(m, n) + max(case.block)) // UNIT) * UNIT
    out = random.integers(-9, 10, (NUM_PARTS, size, size + UNIT)).astype(DTYPES[case.dtype])
    rows = case.rows(m)
    product = np.zeros((rows, n))
    product[:m] = a[:rows, :k].astype(np.float64) @ b[:n, :k].astype(np.float64).T
    expected = out.copy()
    for part in case.parts:
        view = case.place(expected[part], rows, n)
        view[...] = (
            product * max(1, case.adds) + view.astype(np.float64) * bool(case.adds)
        ).astype(out.dtype)
    args: dict[str, Any] = {"a_ptr": a, "b_ptr": b, "out_ptr": out}
    args |= {"other_ptr": np.zeros(max(1, m), np.int32), "M": m, "N": n, "K": k}
    args |= {"stride_am": a.shape[1], "stride_bn": b.shape[1], "stride_om": out.shape[2]}
    args["extra"] = case.extra(m, n, out)
    grid = (-(-m // case.block[0]), -(-n // case.block[1]), max(case.parts) + 1)
    return Launch(args, grid, expected)

"""Matrix products with operand A addressed through pointers in many ways.

The kernels differ in the load of a block of A and in the layout of A in memory; B and the output are
row-major. The reference multiplies the A of `Case.a_of` in NumPy, so it checks any rewrite of the load.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from aotc.compiler import CompileRequest
from tests.support.requests import request_of

SOURCE = """\
import triton
import triton.language as tl


@triton.jit
def k(
    a_ptr, b_ptr, out_ptr, rows_ptr, M, N, K, stride_am, stride_bk, extra,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):
    part = tl.program_id(2)
    m, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    in_m, in_n = m < M, n < N
    a_ptrs = a_ptr + m[:, None] * stride_am + k[None, :]
    b_ptrs = b_ptr + k[:, None] * stride_bk + n[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    out_ptrs = out_ptr + part * M * N + m[:, None] * N + n[None, :]
    SETUP
    for LOOP:
        FIRST
        in_k = start + k < K
        a = LOAD
        b = tl.load(b_ptrs, mask=in_k[:, None] & in_n[None, :], other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += BK
        b_ptrs += BK * stride_bk
        TURN
    tl.store(out_ptrs, acc, mask=in_m[:, None] & in_n[None, :])
"""
NUM_PARTS = 2
ROW_UNIT = 16  # of strides, as ':16' promises


@dataclass(frozen=True)
class Case:
    """One way to load A: `load`, and the code before the loop, first and last in an iteration.

    A lies in an array of (NUM_PARTS, rows, columns). `a_of` gets the array, the part, M and K, and
    returns the part for a program on axis 2 of the grid. `extra` is computed from M, K and the array.
    `holds` states the guards for M and K, both nonzero.
    """

    load: str
    setup: str = "pass"
    loop: str = "start in range(0, K, BK)"
    first: str = "pass"
    turn: str = "pass"
    signature: dict[str, str] = field(default_factory=dict[str, str])
    a_of: Callable[[np.ndarray, int, int, int], np.ndarray] = lambda a, _, m, k: a[0, :m, :k]
    extra: Callable[[int, int, np.ndarray], int] = lambda _, __, ___: 16
    holds: Callable[[int, int], bool] = lambda _, k: k % 8 == 0
    block: tuple[int, int, int] = (16, 16, 16)


MASKED = "tl.load({}, mask=in_m[:, None] & in_k[None, :], other=0.0)"
BLOCKS = "turn in range(tl.cdiv(K, BK))"
START = "start = turn * BK"
ROWS = "a_ptr + {}[:, None] * stride_am + (start + k)[None, :]"


def _columns(a: np.ndarray, _: int, m: int, k: int) -> np.ndarray:
    return a[0, :k, :m].T


MAPPED = {
    "carried": Case(MASKED.format("a_ptrs")),
    "anew": Case(MASKED.format(ROWS.format("m"))),
    "wide": Case(MASKED.format(ROWS.format("m.to(tl.int64)"))),
    "counted": Case(
        "tl.load(a_ptrs, mask=in_m[:, None] & (k < K - turn * BK)[None, :], other=0.0)",
        loop=BLOCKS,
        first=START,
    ),
    "other bounds": Case(
        "tl.load(a_ptrs, mask=(m <= M - 1)[:, None] & (K > start + k)[None, :], other=0.0)"
    ),
    "whole rows": Case("tl.load(a_ptrs, mask=in_m[:, None])", holds=lambda _, __: True),
    "whole blocks": Case("tl.load(a_ptrs)", loop=BLOCKS, first=START, holds=lambda _, __: True),
    "wrapped": Case(
        "tl.load(wrapped + start, mask=in_k[None, :], other=0.0)",
        setup="wrapped = a_ptr + (m % M)[:, None] * stride_am + k[None, :]",
        holds=lambda m, k: m % 16 == 0 and k % 8 == 0,
    ),
    "clamped": Case(
        "tl.load(clamped + start, mask=in_k[None, :], other=0.0)",
        setup="clamped = a_ptr + tl.where(in_m, m, 0)[:, None] * stride_am + k[None, :]",
    ),
    "clamped and carried": Case(
        "tl.load(a_ptrs, mask=in_k[None, :], other=0.0)",
        setup="a_ptrs = a_ptr + (tl.where(m < M, m, 0) * stride_am)[:, None] + k[None, :]",
    ),
    "clamped columns": Case(
        "tl.load(clamped + start, mask=in_k[:, None], other=0.0).T",
        setup="clamped = a_ptr + tl.where(in_m, m, 0)[None, :] * stride_am + k[:, None]",
    ),
    "turned": Case(
        "tl.load(a_ptrs, mask=in_m[None, :] & in_k[:, None], other=0.0).T",
        setup="a_ptrs = a_ptr + m[None, :] * stride_am + k[:, None]",
    ),
    "column-major": Case(
        MASKED.format("a_ptr + m[:, None] + (start + k)[None, :] * stride_am"),
        a_of=_columns,
        holds=lambda m, _: m % 8 == 0,
    ),
    "part": Case(
        MASKED.format("a_ptrs + part * extra"),
        a_of=lambda a, part, m, k: a[part, :m, :k],
        extra=lambda _, __, a: a[0].size,
    ),
    "heads in a row": Case(
        "tl.load(a_ptrs + part * 16, mask=in_m[:, None], other=0.0)",
        a_of=lambda a, part, m, k: a[0, :m, 16 * part :][:, :k],
        holds=lambda _, __: True,
    ),
    "beside the axes": Case(
        MASKED.format("a_ptrs + part * 24"),
        a_of=lambda a, part, m, k: np.lib.stride_tricks.as_strided(
            a.reshape(-1)[24 * part :], (m, k), a.strides[1:]
        ),
    ),
    "rows further down": Case(
        MASKED.format("a_ptrs + extra * stride_am"),
        a_of=lambda a, _, m, k: a[0, 3 : m + 3, :k],
        extra=lambda _, __, ___: 3,
        signature={"extra": "i32"},
    ),
    "columns further on": Case(
        MASKED.format("a_ptrs + 8"), a_of=lambda a, _, m, k: a[0, :m, 8 : k + 8]
    ),
    "from the second row": Case(
        "tl.load(a_ptrs - stride_am, mask=(in_m & (m >= 1))[:, None] & in_k[None, :], other=0.0)",
        a_of=lambda a, _, m, k: np.concatenate([np.zeros_like(a[0, :1, :k]), a[0, : m - 1, :k]]),
        holds=lambda m, k: m > 1 and k % 8 == 0,
    ),
    "two ends": Case(
        "tl.load(a_ptrs, mask=(in_m & (m < extra))[:, None] & in_k[None, :], other=0.0)",
        a_of=lambda a, _, m, k: np.concatenate(
            [a[0, : min(m, 7), :k], 0 * a[0, min(m, 7) : m, :k]]
        ),
        extra=lambda _, __, ___: 7,
        signature={"extra": "i32"},
    ),
    "long rows": Case(MASKED.format("a_ptrs"), signature={"M": "i64", "K": "i64"}),
    "nested": Case(
        MASKED.format("inner + row * stride_am"),
        setup="row = tl.program_id(0) * BM\n"
        "    inner = a_ptr + tl.arange(0, BM)[:, None] * stride_am + k[None, :]",
        turn="inner += BK",
    ),
}


def source(folder: Path, case: Case) -> str:
    """Write the kernel of a case; return the path."""
    path = folder / "kernel.py"
    text = SOURCE.replace("SETUP", case.setup).replace("LOAD", case.load)
    text = text.replace("LOOP", case.loop)
    text = text.replace("FIRST", case.first)
    path.write_text(text.replace("TURN", case.turn), encoding="utf-8")
    return str(path)


def request(folder: Path, case: Case, num_warps: int = 4, **options: Any) -> CompileRequest:
    """Return the compile request for the kernel of a case."""
    pointers = dict.fromkeys(("a_ptr", "b_ptr"), "*fp16:16")
    numbers = dict.fromkeys("MNK", "i32")
    strides = dict.fromkeys(("stride_am", "stride_bk", "extra"), "i32:16")
    signature = {**pointers, "out_ptr": "*fp32", "rows_ptr": "*i32", **numbers, **strides}
    signature |= case.signature
    constants = zip(("BM", "BN", "BK"), case.block, strict=True)
    return request_of(
        source(folder, case),
        *("k", tuple(signature.items()), tuple(constants), "sm_90a"),
        num_warps=num_warps,
        **options,
    )


@dataclass(frozen=True)
class Launch:
    """Arguments of a launch by name, its grid, and the expected output."""

    args: dict[str, Any]
    grid: tuple[int, int, int]
    expected: np.ndarray


def launch(case: Case, m: int, n: int, k: int) -> Launch:
    """Return a launch on random integers with exact sums."""
    random = np.random.default_rng(m + 100 * n + 10000 * k)
    slack = max(case.block)
    rows, columns = (-(-(max(m, k) + slack) // ROW_UNIT) * ROW_UNIT for _ in range(2))
    a = random.integers(-4, 5, (NUM_PARTS, rows, columns + 16)).astype(np.float16)
    b = random.integers(-4, 5, (max(1, k), -(-(n + 1) // 16) * 16)).astype(np.float16)
    out = np.full((NUM_PARTS, m, n), np.nan, np.float32)
    args: dict[str, Any] = {"a_ptr": a, "b_ptr": b, "out_ptr": out}
    args |= {"rows_ptr": np.arange(rows, dtype=np.int32), "M": m, "N": n, "K": k}
    args |= {"stride_am": a.shape[2], "stride_bk": b.shape[1], "extra": case.extra(m, k, a)}
    parts = [case.a_of(a, part, m, k).astype(np.float64) @ b[:k, :n] for part in range(NUM_PARTS)]
    grid = (-(-m // case.block[0]), -(-n // case.block[1]), NUM_PARTS)
    return Launch(args, grid, np.stack(parts).astype(np.float32))

"""fp8 products summed apart and promoted to an fp32 accumulator."""

from __future__ import annotations

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import aotc
from aotc.config import Config
from aotc.frontend.translate import translate
from aotc.ir.core import Kernel
from aotc.ir.dialects import wgmma
from aotc.schedule.context import Schedule
from aotc.schedule.layout.layouts import wgmma_accumulator
from aotc.schedule.layout.promoted_dots import product_part, promotion_interval
from aotc.target import TARGETS
from aotc.verify.emulator.run import emulate
from aotc.verify.interpreter.run import run
from tests.schedule.layout.test_wgmma_layouts import dot
from tests.support.each_pass import check_each_pass

KERNEL = """
import triton
import triton.language as tl

@triton.jit
def k(a_ptr, b_ptr, c_ptr, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, HOW: tl.constexpr,
      COMPUTED: tl.constexpr):
    m, n, k = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        a = tl.load(a_ptr + m[:, None] * K + start + k[None, :])
        b = tl.load(b_ptr + n[None, :] * K + start + k[:, None])
        if COMPUTED:
            a = (-a.to(tl.float32)).to(a.dtype)
        if HOW == 0:
            acc += tl.dot(a, b)
        else:
            acc = tl.dot(a, b, acc, max_num_imprecise_acc=HOW)
    tl.store(c_ptr + m[:, None] * BN + n[None, :], acc)
"""
SIGNATURE = {"a_ptr": "*fp8e4nv:16", "b_ptr": "*fp8e5:16", "c_ptr": "*fp32:16", "K": "i32:16"}


@pytest.mark.parametrize(
    ("imprecise", "size"), [(0, 0), (1, 32), (32, 32), (63, 32), (64, 64), (127, 64), (128, 128)]
)
def test_imprecise_sums_are_kept_short(imprecise: int, size: int) -> None:
    assert promotion_interval(dot((64, 64, 128), "fp8e5", imprecise=imprecise)) == size
    assert promotion_interval(dot((64, 64, 128), "bf16", imprecise=imprecise)) == 0


@pytest.mark.parametrize(
    ("shape", "groups", "columns", "part"),
    [
        ((64, 128), (1, 1), 0, ((64, 128), 2)),  # 64 registers, and twice 64
        ((64, 256), (1, 1), 0, ((64, 64), 2)),  # 128, and twice 32
        ((128, 128), (1, 1), 0, ((64, 64), 2)),
        ((256, 128), (2, 1), 0, ((128, 64), 2)),
        ((128, 256), (2, 1), 0, ((128, 64), 2)),
        ((64, 256), (1, 2), 0, ((64, 256), 2)),
        ((128, 512), (1, 4), 0, ((64, 512), 1)),
        ((64, 512), (1, 2), 0, None),  # a part of the columns is one warpgroup's
        ((64, 256), (1, 1), 176, ((64, 256), 1)),  # 88, and 88
        ((64, 256), (1, 1), 200, None),
        ((128, 256), (1, 1), 96, ((64, 256), 2)),  # 96, and twice 48
        ((128, 256), (1, 1), 128, ((64, 256), 1)),
    ],
)
def test_the_part_of_a_product_that_fits_beside_its_accumulator(
    shape: tuple[int, int],
    groups: tuple[int, int],
    columns: int,
    part: tuple[tuple[int, int], int] | None,
) -> None:
    assert product_part(wgmma_accumulator(shape, groups), 32, columns) == part


@pytest.mark.parametrize(
    ("tile", "num_warps", "how", "computed"),
    [
        *(((64, 64, 64), 4, how, False) for how in (0, 32, 64)),
        *(((128, 128, 64), 4, 32, computed) for computed in (False, True)),
        ((64, 256, 64), 4, 33, False),
        ((64, 128, 128), 8, 32, False),
        ((128, 256, 64), 8, 32, True),
    ],
)
def test_products_are_promoted_without_spills(
    tile: tuple[int, int, int], num_warps: int, how: int, *, computed: bool
) -> None:
    constants = dict(zip(("BM", "BN", "BK"), tile, strict=True))
    built = aotc.compile(
        "k",
        source=KERNEL,
        signature=SIGNATURE,
        constants={**constants, "HOW": how, "COMPUTED": computed},
        num_warps=num_warps,
    )
    assert "mma.sync" not in built.asm["ptx"]
    rows, columns, depth = tile
    promotions = depth // 64 if how in (0, 64) else depth // 32
    adds = len(re.findall(r"\badd\.(?:rn\.)?f32", built.asm["ptx"]))
    assert adds == promotions * rows * columns // (32 * num_warps)
    rng = np.random.default_rng(7)
    for k in (depth, 3 * depth):
        a = rng.integers(-4, 5, (rows, k)).astype(ml_dtypes.float8_e4m3fn)
        b = rng.integers(-4, 5, (columns, k)).astype(ml_dtypes.float8_e5m2)
        out = np.full((rows, columns), np.nan, np.float32)
        emulate(
            built.asm["ptx"],
            (1,),
            [a.reshape(-1), b.reshape(-1), out.reshape(-1), k],
            shared_bytes=built.metadata.shared_bytes,
        )
        expected = a.astype(np.float32) @ b.astype(np.float32).T
        np.testing.assert_array_equal(out, -expected if computed else expected)


@pytest.mark.parametrize(("tile", "every"), [((64, 64, 64), 64), ((128, 128, 64), 32)])
def test_large_sums_of_other_instructions_are_promoted_at_once(
    tile: tuple[int, int, int], every: int
) -> None:
    """Two sums over all of K would not fit the registers: ptxas refuses such spills."""
    constants = dict(zip(("BM", "BN", "BK"), tile, strict=True))
    built = aotc.compile(
        "k",
        source=KERNEL,
        signature=SIGNATURE,
        constants={**constants, "HOW": 0, "COMPUTED": False},
        target="sm_89",
        num_warps=4,
        num_stages=2,
    )
    rows, columns, depth = tile
    adds = len(re.findall(r"\badd\.(?:rn\.)?f32", built.asm["ptx"]))
    assert adds == depth // every * rows * columns // (32 * 4)


@pytest.mark.parametrize(
    ("tile", "num_warps", "computed"),
    [((64, 256, 64), 4, False), ((128, 128, 64), 4, True), ((128, 256, 64), 8, False)],
)
def test_parts_compute_what_the_whole_does(
    tmp_path: Path, tile: tuple[int, int, int], num_warps: int, *, computed: bool
) -> None:
    (tmp_path / "k.py").write_text(KERNEL)
    rows, columns, depth = tile
    constants = {"BM": rows, "BN": columns, "BK": depth, "HOW": 32, "COMPUTED": computed}
    kernel = translate(str(tmp_path / "k.py"), "k", SIGNATURE, constants, target="sm_90a").kernel
    k = 2 * depth
    rng = np.random.default_rng(rows)
    a = rng.integers(-4, 5, rows * k).astype(ml_dtypes.float8_e4m3fn)
    b = rng.integers(-4, 5, columns * k).astype(ml_dtypes.float8_e5m2)

    def interpreted(current: Kernel, races: bool) -> list[np.ndarray]:
        out = np.full(rows * columns, np.nan, np.float32)
        run(current, (1,), [a.copy(), b.copy(), out, k], check_races=races)
        return [out]

    expected = interpreted(kernel, True)
    exact = a.reshape(rows, k).astype(np.float32) @ b.reshape(columns, k).astype(np.float32).T
    np.testing.assert_array_equal(expected[0].reshape(exact.shape), -exact if computed else exact)
    schedule = Schedule(TARGETS["sm_90a"], Config(num_warps))
    last = ("insert_barriers", "recompute_addresses")
    scheduled = check_each_pass(kernel.clone(), schedule, interpreted, expected, passes=last)
    dots = [op for op in scheduled.walk() if isinstance(op, wgmma.Wgmma)]
    assert {op.start for op in dots} != {()}

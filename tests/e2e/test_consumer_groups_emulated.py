"""Consumer groups on alternate tiles, in the emulator, against NumPy.

The emulator reports races between groups, reads of data in flight, and deadlocks. So cases vary the
number of tiles and groups, the size of the products, and the epilogue. Integers make sums exact in any
order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aotc.compiler import PtxKernel, compile_kernel, compile_ptx
from aotc.metadata import Metadata
from tests.support.attention_loop import ATTENTION, SIGNATURE, check_attention
from tests.support.descriptors import PRELUDE, compiled, is_persistent, launch, like, tensor
from tests.support.requests import request_of

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
BLOCK = (64, 32, 32)
"""Rows, columns and depth of what is multiplied at a time."""


def _num_warps(kernel: PtxKernel) -> int:
    """Return the number of warps of a launch, over all groups and producers."""
    match = re.search(r"\.reqntid (\d+)", kernel.ptx)
    assert match is not None
    return int(match[1]) // 32


def _exact(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


# ---- dots in flight across tiles, in the order of tiles ----------------------------------------

MATMUL = """def k(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    tiles_n = tl.cdiv(N, BN)
    for tile in range(tl.program_id(0), tl.cdiv(M, BM) * tiles_n, tl.num_programs(0)):
        i, j = tile // tiles_n * BM, tile % tiles_n * BN
        total = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            total = tl.dot(a.load([i, k]), b.load([k, j]), total)
        c.store([i, j], total.to(c.dtype))
"""


def _matmul(folder: Path, block: tuple[int, int, int] = BLOCK, **config: Any) -> PtxKernel:
    rows, columns, depth = block
    signature = {
        "a": f"tensordesc<bf16[{rows},{depth}]>",
        "b": f"tensordesc<bf16[{depth},{columns}]>",
        "c": f"tensordesc<fp32[{rows},{columns}]>",
        **dict.fromkeys("MNK", "i32"),
    }
    constants: dict[str, object] = dict(zip(("BM", "BN", "BK"), block, strict=True))
    return compiled(folder, MATMUL, signature, constants, **config)


def _check(kernel: PtxKernel, shape: tuple[int, int, int], seed: int, grid: int = 1) -> None:
    rows, columns, depth = shape
    a, b = tensor((rows, max(depth, 1)), "bf16"), tensor((max(depth, 1), columns), "bf16", seed=1)
    c = like(tensor((rows, columns), "fp32"))
    values = {"a": a, "b": b, "c": c, "M": rows, "N": columns, "K": depth}
    launch(kernel, (grid,), values, seed=seed)
    np.testing.assert_array_equal(c, _exact(a[:, :depth]) @ _exact(b[:depth]))


TILES = (1, 2, 3, 4, 7)
DEPTHS = (0, 32, 40, 200)


@pytest.mark.parametrize(("groups", "num_stages"), [(2, 1), (2, 2), (2, 3), (2, 6), (3, 4), (3, 6)])
def test_every_number_of_tiles(tmp_path: Path, groups: int, num_stages: int) -> None:
    """With fewer than groups, as many, more; each without a block of K, with one, two and more."""
    kernel = _matmul(tmp_path, num_stages=num_stages, num_consumer_groups=groups)
    assert _num_warps(kernel) == 4 * groups + 4
    for seed, tiles in enumerate(TILES):
        depth = DEPTHS[(seed + groups + num_stages) % len(DEPTHS)]
        _check(kernel, (64 * tiles - 5, 28, depth), seed)


@pytest.mark.parametrize("depth", DEPTHS)
def test_every_depth(tmp_path: Path, depth: int) -> None:
    """Tiles with no work at all pass the order on, too."""
    kernel = _matmul(tmp_path, num_stages=3, num_consumer_groups=2)
    for seed in range(4):
        _check(kernel, (100, 60, depth), seed, grid=1 + seed % 2)


@pytest.mark.parametrize(
    ("block", "config"),
    [
        ((128, 32, 32), {"num_warps": 8}),
        ((64, 32, 32), {"target": "sm_100a"}),
        ((64, 32, 32), {"target": "sm_120a"}),
        ((64, 32, 32), {"maxnreg": 128}),
    ],
    ids=str,
)
def test_other_groups_and_other_products(
    tmp_path: Path, block: tuple[int, int, int], config: dict[str, Any]
) -> None:
    kernel = _matmul(tmp_path, block, num_stages=4, num_consumer_groups=2, **config)
    # Without a transfer of registers, no whole warpgroup frees any.
    producers = 1 if "maxnreg" in config else 4
    assert _num_warps(kernel) == 2 * config.get("num_warps", 4) + producers
    for seed, shape in enumerate([(block[0] * 3, 28, 70), (block[0], 92, 130)]):
        _check(kernel, shape, seed)


def test_programs_of_two_ctas(tmp_path: Path) -> None:
    """Groups read boxes multicast by the other CTA."""
    kernel = _matmul(tmp_path, (128, 32, 32), num_stages=4, num_consumer_groups=2, num_ctas=2)
    assert _num_warps(kernel) == 12
    assert "multicast::cluster" in kernel.ptx
    for seed, shape in enumerate([(128 * 3, 28, 70), (100, 28, 130)]):
        _check(kernel, shape, seed, grid=2)


# ---- epilogues and other work of a tile ---------------------------------------------------------


def _persistent(
    block_n: int, epilogue_n: int, extra: Mapping[str, str], **config: Any
) -> PtxKernel:
    """Compile the persistent product of the shipped kernels, with its epilogue."""
    signature = {
        "a": "tensordesc<bf16[64,32]>",
        "b": f"tensordesc<bf16[{block_n},32]>",
        "c": f"tensordesc<bf16[64,{epilogue_n}]>",
        **dict.fromkeys("MNK", "i32"),
        **extra,
    }
    constants = {
        "BLOCK_M": 64,
        "BLOCK_N": block_n,
        "BLOCK_K": 32,
        "EPILOGUE_N": epilogue_n,
        "GROUP_M": 2,
        "NUM_SMS": 2,
    }
    return compile_ptx(
        request_of(
            *(str(KERNELS / "persistent_matmul.py"), "persistent_matmul_kernel"),
            *(tuple(signature.items()), tuple(constants.items()), "sm_90a"),
            **config,
        )
    )


@pytest.mark.parametrize("epilogue_n", [64, 32, 16])
@pytest.mark.parametrize("groups", [2, 3])
def test_a_bias_and_a_residual(epilogue_n: int, groups: int) -> None:
    """A residual is loaded after the products, into buffers private to each group."""
    extra = {"bias_ptr": "*bf16:16", "residual": f"tensordesc<bf16[64,{epilogue_n}]>"}
    kernel = _persistent(64, epilogue_n, extra, num_stages=4, num_consumer_groups=groups)
    assert _num_warps(kernel) == 4 * groups + 4
    rng = np.random.default_rng(0)
    for seed, (rows, columns, depth) in enumerate([(60, 64, 40), (330, 128, 72), (130, 72, 8)]):
        shapes = {"a": (rows, depth), "b": (columns, depth), "residual": (rows, columns)}
        arrays = {
            name: rng.integers(-3, 4, shape).astype(tensor((8,), "bf16").dtype)
            for name, shape in {**shapes, "bias_ptr": (columns,)}.items()
        }
        c = like(tensor((rows, columns), "bf16"))
        values = {**arrays, "c": c, "M": rows, "N": columns, "K": depth}
        launch(kernel, (2,), values, seed=seed)
        a, b, residual, bias = (_exact(arrays[name]) for name in arrays)
        expected = a @ b.T + bias + residual
        np.testing.assert_array_equal(_exact(c), _exact(expected.astype(c.dtype)))


@pytest.mark.parametrize("num_stages", [1, 2, 5])
def test_products_that_are_waited_for_have_no_order(tmp_path: Path, num_stages: int) -> None:
    """Each group has rings of its own, of two stages at least."""
    kernel = compiled(
        *(tmp_path, ATTENTION, SIGNATURE, {"D": 32}),
        num_stages=num_stages,
        num_consumer_groups=2,
    )
    assert _num_warps(kernel) == 12
    check_attention(kernel, (1,), (1, 128, 290))


TWO_LOOPS = """def k(a, b, c, d, n, K):
    for tile in range(n):
        left = tl.zeros((64, 64), tl.float32)
        for k in range(0, K, 32):
            left = tl.dot(a.load([tile * 64, k]), b.load([k, 0]), left)
        c.store([tile * 64, 0], left)
        right = tl.zeros((64, 64), tl.float32)
        for k in range(K, 0, -32):
            right = tl.dot(a.load([tile * 64, k - 32]), b.load([k - 32, 64]), right)
        d.store([tile * 64, 0], right)
"""


@pytest.mark.parametrize("num_stages", [2, 5, 8])
def test_slots_of_their_own_are_given_back_late(tmp_path: Path, num_stages: int) -> None:
    """Two loops of dots in flight have no order, so groups share no stages."""
    signature = {
        "a": "tensordesc<bf16[64,32]>",
        "b": "tensordesc<bf16[32,64]>",
        **dict.fromkeys("cd", "tensordesc<fp32[64,64]>"),
        **dict.fromkeys("nK", "i32"),
    }
    config = {"num_stages": num_stages, "num_consumer_groups": 2}
    kernel = compiled(tmp_path, TWO_LOOPS, signature, None, "sm_90a", 4, **config)
    assert _num_warps(kernel) == 12
    for seed, (tiles, depth) in enumerate([(1, 0), (2, 32), (3, 64), (3, 320)]):
        a = tensor((64 * tiles, max(depth, 32)), "bf16")
        b = tensor((max(depth, 32), 128), "bf16", seed=1)
        c, d = (like(tensor((64 * tiles, 64), "fp32")) for _ in range(2))
        values = {"a": a, "b": b, "c": c, "d": d, "n": tiles, "K": depth}
        launch(kernel, (1,), values, seed=seed)
        expected = _exact(a[:, :depth]) @ _exact(b[:depth])
        np.testing.assert_array_equal(np.hstack([c, d]), expected)


FLOWS = """def k(x, z, y, p, n, m):
    at = tl.arange(0, 256)
    for i in range(n):
        total = z.load([i * 256])
        if i % 3 != 1:
            for j in range(m):
                total += x.load([(i + j) * 256]) * tl.load(p + j * 256 + at)
        else:
            j = i
            while j > 0:
                total -= x.load([j * 256])
                j -= 2
        total += tl.sum(total) + tl.cumsum(total)
        y.store([i * 256], total)
"""


@pytest.mark.parametrize("groups", [2, 3])
def test_branches_loops_and_scratch(tmp_path: Path, groups: int) -> None:
    """Sums and scans go through shared memory, behind barriers: each group has its own."""
    signature = {
        **dict.fromkeys("xzy", "tensordesc<i32[256]>"),
        "p": "*i32:16",
        "n": "i32",
        "m": "i32",
    }
    kernel = compiled(tmp_path, FLOWS, signature, num_consumer_groups=groups)
    assert _num_warps(kernel) == 4 * groups + 1
    x, z, p = (tensor((9 * 256,), "i32", seed=seed).reshape(9, 256) for seed in range(3))
    for seed, (n, m) in enumerate([(0, 1), (1, 0), (2, 2), (5, 3), (7, 1)]):
        y = like(x.reshape(-1))
        values = {"x": x.reshape(-1), "z": z.reshape(-1), "y": y, "p": p.reshape(-1)}
        launch(kernel, (1,), {**values, "n": n, "m": m}, seed=seed)
        for i in range(n):
            total = z[i]
            if i % 3 != 1:
                total = total + sum((x[i + j] * p[j] for j in range(m)), 0 * z[i])
            else:
                total = total - sum((x[j] for j in range(i, 0, -2)), 0 * z[i])
            total = total + total.sum(dtype=np.int32) + total.cumsum(dtype=np.int32)
            np.testing.assert_array_equal(y[i * 256 : i * 256 + 256], total)


# ---- programs in turn ---------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [2, 3])
def test_programs_of_a_plain_product(groups: int) -> None:
    """Written for one tile, through pointers: groups take the programs of a CTA in turn."""
    pointers = dict.fromkeys(("a_ptr", "b_ptr", "bias_ptr", "residual_ptr"), "*bf16:16")
    strides = {"stride_am": "i32:16", "stride_ak": "i32=1", "stride_bk": "i32:16"}
    strides |= {"stride_bn": "i32=1", "stride_om": "i32:16", "stride_on": "i32=1"}
    signature = {
        **pointers,
        "out_ptr": "*bf16:16",
        "M": "i32",
        "N": "i32:16",
        "K": "i32",
        **strides,
    }
    constants = {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 32, "GROUP_M": 2}
    constants |= {"BIAS": True, "RESIDUAL": True, "ACTIVATION": "none"}
    kernel = compile_ptx(
        request_of(
            *(str(KERNELS / "matmul.py"), "matmul_kernel"),
            *(tuple(signature.items()), tuple(constants.items()), "sm_90a"),
            num_stages=4,
            map_pointers=True,
            num_consumer_groups=groups,
        )
    )
    assert is_persistent(kernel)
    assert _num_warps(kernel) == 4 * groups + 4
    rng = np.random.default_rng(0)
    for seed, (m, n, k) in enumerate([(60, 32, 32), (70, 64, 72), (200, 80, 8)]):
        dtype = tensor((8,), "bf16").dtype
        a, b, bias, residual = (
            rng.integers(-3, 4, shape).astype(dtype) for shape in [(m, k), (k, n), (n,), (m, n)]
        )
        out = rng.integers(-3, 4, (m, n)).astype(dtype)
        values = {"a_ptr": a, "b_ptr": b, "bias_ptr": bias, "residual_ptr": residual}
        values |= {"out_ptr": out, "M": m, "N": n, "K": k}
        values |= {"stride_am": k, "stride_bk": n, "stride_om": n}
        launch(kernel, (-(-m // 64) * -(-n // 32),), values, seed=seed, num_ctas=1)
        expected = _exact(a) @ _exact(b) + _exact(bias) + _exact(residual)
        np.testing.assert_array_equal(_exact(out), _exact(expected.astype(dtype)))


# ---- launch metadata and resource limits ---------------------------------------------------------


def _metadata(folder: Path, block: tuple[int, int, int], **config: Any) -> Metadata:
    """Return the metadata of the product's cubin."""
    path = folder / "kernel.py"
    path.write_text(PRELUDE + MATMUL, encoding="utf-8")
    rows, columns, depth = block
    signature = {
        "a": f"tensordesc<bf16[{rows},{depth}]>",
        "b": f"tensordesc<bf16[{depth},{columns}]>",
        "c": f"tensordesc<bf16[{rows},{columns}]>",
        **dict.fromkeys("MNK", "i32"),
    }
    constants = tuple(zip(("BM", "BN", "BK"), block, strict=True))
    parts = (str(path), "k", tuple(signature.items()), constants, "sm_90a")
    return compile_kernel(request_of(*parts, **config)).metadata


@pytest.mark.parametrize(("groups", "num_stages"), [(1, 5), (2, 5), (3, 4)])
def test_a_launch_has_the_threads_of_all_groups(
    tmp_path: Path, groups: int, num_stages: int
) -> None:
    metadata = _metadata(
        tmp_path, (128, 128, 64), num_stages=num_stages, num_consumer_groups=groups
    )
    assert metadata.ptxas_warnings == ()
    assert metadata.spill_bytes == 0
    assert metadata.num_threads == 32 * (4 * groups + 4)
    register_remarks = [
        remark for remark in metadata.remarks if "registers for a consumer thread" in remark
    ]
    assert len(register_remarks) == (groups > 1)


def test_what_is_too_large_for_two_groups_has_one(tmp_path: Path) -> None:
    """Rings fill the shared memory except for one buffer of results."""
    metadata = _metadata(tmp_path, (128, 128, 32), num_stages=13, num_consumer_groups=2)
    assert metadata.num_threads == 32 * (4 * 1 + 4)
    reason = "one consumer group, not 2: with 2 the kernel needs"
    assert any(reason in remark for remark in metadata.remarks)

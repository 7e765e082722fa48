"""Tensor maps made by a kernel from loaded values, in the emulator, against NumPy."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from aotc.compiler import PtxKernel
from aotc.schedule.analysis.producer_slice import Slice
from aotc.schedule.layout.map_slots import SLOTS_IN_LOOPS
from aotc.schedule.shared_memory.mbarrier_ring import MbarrierRing
from aotc.schedule.warp_roles import map_rings
from aotc.schedule.warp_roles.map_rings import MapRings
from aotc.verify.emulator.arguments import PointerTable
from aotc.verify.emulator.errors import Fault
from tests.support.descriptors import compiled, launch, tensor

COPY = """
def k(x_ptrs, out_ptr, sizes, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PADDING: tl.constexpr):
    program = tl.program_id(0)
    x = tl.load(x_ptrs + program).to(tl.pointer_type(tl.float32))
    sizes += program * 3
    extents, stride = [tl.load(sizes), tl.load(sizes + 1)], tl.load(sizes + 2)
    tensor = tl.make_tensor_descriptor(x, extents, [stride, 1], [ROWS, COLUMNS], PADDING)
    i, j = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    tl.store(out_ptr + (program * ROWS + i) * COLUMNS + j, tensor.load([1, -4]))
"""
ROWS, COLUMNS = 8, 32
COPY_SIGNATURE = {"x_ptrs": "*i64", "out_ptr": "*fp32", "sizes": "*i32"}

PRODUCTS = """
def k(ptrs, out_ptr, sizes, count, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    for group in range(count):
        a_ptr = tl.load(ptrs + 2 * group).to(tl.pointer_type(tl.bfloat16))
        b_ptr = tl.load(ptrs + 2 * group + 1).to(tl.pointer_type(tl.bfloat16))
        m, n, depth = tl.load(sizes), tl.load(sizes + 1), tl.load(sizes + 2)
        a = tl.make_tensor_descriptor(a_ptr, [m, depth], [tl.load(sizes + 3), 1], [BM, BK])
        b = tl.make_tensor_descriptor(b_ptr, [n, depth], [tl.load(sizes + 4), 1], [BN, BK])
        tiles_n = tl.cdiv(n, BN)
        for tile in range(tl.program_id(0), tl.cdiv(m, BM) * tiles_n, tl.num_programs(0)):
            i, j = tile // tiles_n * BM, tile % tiles_n * BN
            acc = tl.zeros((BM, BN), tl.float32)
            for step in range(0, depth, BK):
                acc = tl.dot(a.load([i, step]), b.load([j, step]).T, acc)
            rows, columns = i + tl.arange(0, BM)[:, None], j + tl.arange(0, BN)[None, :]
            tl.store(out_ptr + rows * n + columns, acc, (rows < m) & (columns < n))
        out_ptr += m * n
        sizes += 5
"""
PRODUCTS_SIGNATURE = {"ptrs": "*i64", "out_ptr": "*fp32", "sizes": "*i32", "count": "i32"}
GROUPS = ((100, 72, 136), (64, 64, 64), (3, 130, 24), (5, 9, 0), (70, 30, 200))


def _table(*arrays: np.ndarray) -> PointerTable:
    return PointerTable(len(arrays), arrays, ((None, None),) * len(arrays))


@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_each_program_makes_a_map_of_its_own(tmp_path: Path, padding: str) -> None:
    constants = {"ROWS": ROWS, "COLUMNS": COLUMNS, "PADDING": padding}
    kernel = compiled(tmp_path, COPY, COPY_SIGNATURE, constants, map_pointers=True)
    assert kernel.scratch_bytes == 128
    assert "cp.async.bulk.tensor" in kernel.ptx
    sizes = [(9, 30), (20, 40), (1, 8), (0, 30), (9, 0), (4, 34)]
    tensors = [tensor((24, 40 + 4 * number), "fp32", seed=number) for number in range(len(sizes))]
    out = np.full((len(sizes), ROWS, COLUMNS), -1, np.float32)
    strides = [x.strides[0] // 4 for x in tensors]
    size_table = np.array(
        [(*pair, step) for pair, step in zip(sizes, strides, strict=True)], np.int32
    )
    values = {"x_ptrs": _table(*tensors), "out_ptr": out, "sizes": size_table}
    launch(kernel, (len(sizes),), values, seed=1)
    for actual, x, (rows, columns) in zip(out, tensors, sizes, strict=True):
        expected = np.full((ROWS, COLUMNS), np.nan if padding == "nan" else 0, np.float32)
        if columns:
            inside = x[1:rows, : min(columns, COLUMNS - 4)][:ROWS]
            expected[: len(inside), 4 : 4 + inside.shape[1]] = inside
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(("address", "stride"), [(4, 0), (0, 2)])
def test_what_breaks_the_promise_is_refused(tmp_path: Path, address: int, stride: int) -> None:
    constants = {"ROWS": ROWS, "COLUMNS": COLUMNS, "PADDING": "zero"}
    kernel = compiled(tmp_path, COPY, COPY_SIGNATURE, constants, map_pointers=True)
    flat = tensor((2048,), "fp32")[address // 4 :]
    values = {
        "x_ptrs": _table(flat),
        "out_ptr": np.zeros((ROWS, COLUMNS), np.float32),
        "sizes": np.array([8, 32, 32 + stride], np.int32),
    }
    with pytest.raises(Fault, match="multiple of 16"):
        launch(kernel, (1,), values)


def _products(
    folder: Path,
    num_stages: int,
    *,
    warp_specialize: bool | None = None,
    maxnreg: int | None = None,
) -> PtxKernel:
    constants = {"BM": 64, "BN": 64, "BK": 64}
    options = {"num_stages": num_stages, "warp_specialize": warp_specialize, "maxnreg": maxnreg}
    return compiled(folder, PRODUCTS, PRODUCTS_SIGNATURE, constants, map_pointers=True, **options)


def _launch_products(kernel: PtxKernel, seed: int) -> None:
    operands: list[np.ndarray] = []
    sizes: list[tuple[int, ...]] = []
    expected: list[np.ndarray] = []
    for group, (m, n, depth) in enumerate(GROUPS):
        a, b = (tensor((rows, max(depth, 8)), "bf16", group, 1 + group % 2) for rows in (m, n))
        operands += [a, b]
        sizes.append((m, n, depth, a.strides[0] // 2, b.strides[0] // 2))
        product = a[:, :depth].astype(np.float32) @ b[:, :depth].astype(np.float32).T
        expected.append(product.ravel())
    out = np.full(sum(map(len, expected)), -1, np.float32)
    values = {
        "ptrs": _table(*operands),
        "out_ptr": out,
        "sizes": np.array(sizes, np.int32),
        "count": len(GROUPS),
    }
    launch(kernel, (3,), values, seed=seed)
    np.testing.assert_array_equal(out, np.concatenate(expected))


@pytest.mark.parametrize("warp_specialize", [False, None])
@pytest.mark.parametrize(("num_stages", "seed"), [(1, 1), (3, 0), (4, 3)])
def test_products_of_groups_make_the_maps_of_each(
    tmp_path: Path, num_stages: int, seed: int, warp_specialize: bool | None
) -> None:
    """Every copy through a map has been waited for when another group's is made in its place."""
    kernel = _products(tmp_path, num_stages, warp_specialize=warp_specialize)
    assert len(GROUPS) > SLOTS_IN_LOOPS
    assert kernel.scratch_bytes == 2 * SLOTS_IN_LOOPS * 128
    assert "wgmma.mma_async" in kernel.ptx
    num_warps = 4 if warp_specialize is False else 8
    assert f".reqntid {32 * num_warps}" in kernel.ptx
    _launch_products(kernel, seed)


def test_a_producer_waits_for_copies_before_it_makes_their_map_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MbarrierRing, "await_issued", lambda *_: None)
    monkeypatch.setattr(map_rings, "find_map_slice", lambda _: Slice())  # no other warp makes it
    kernel = _products(tmp_path, 3)
    with pytest.raises(Fault, match="edits a tensor map that a copy in flight may still read"):
        _launch_products(kernel, 0)  # in step, copies happen late


@pytest.mark.parametrize("seed", [0, 2])
def test_a_producer_makes_maps_that_no_other_warp_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(map_rings, "find_map_slice", lambda _: Slice())
    _launch_products(_products(tmp_path, 3), seed)


@pytest.mark.parametrize("seed", [0, 2])
def test_a_producer_of_two_warps_makes_maps_ahead(tmp_path: Path, seed: int) -> None:
    """A limit on registers leaves no warpgroup for the producer."""
    kernel = _products(tmp_path, 3, maxnreg=200)
    assert ".reqntid 192" in kernel.ptx
    _launch_products(kernel, seed)


def test_maps_are_made_ahead_of_their_use(tmp_path: Path) -> None:
    """A second producer warp makes the maps, as far ahead as there are slots."""
    ptx = _products(tmp_path, 3).ptx
    assert ptx.count("tensormap.cp_fenceproxy") == 2
    acquired = re.findall(r"fence\.proxy\.tensormap::generic\.acquire\.gpu", ptx)
    assert len(acquired) == 4  # by who makes them, and by who issues copies


def test_a_map_is_not_made_in_place_of_one_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MapRings, "await_empty", lambda *_: None)
    kernel = _products(tmp_path, 3)
    with pytest.raises(Fault, match="tensor map|deadlock"):
        _launch_products(kernel, 0)


STORES = """
def k(x_ptr, out_ptrs, sizes, count, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :])
    for at in range(count):
        out_ptr = tl.load(out_ptrs + at).to(tl.pointer_type(tl.float32))
        extents, stride = [tl.load(sizes), tl.load(sizes + 1)], tl.load(sizes + 2)
        out = tl.make_tensor_descriptor(out_ptr, extents, [stride, 1], [ROWS, COLUMNS])
        out.store([1, 4], x + at)
        sizes += 3
"""


@pytest.mark.parametrize("num_warps", [1, 4, 8])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_loop_stores_through_a_map_that_it_makes_anew(
    tmp_path: Path, num_warps: int, seed: int
) -> None:
    signature = {"x_ptr": "*fp32", "out_ptrs": "*i64", "sizes": "*i32", "count": "i32"}
    constants = {"ROWS": 16, "COLUMNS": 64}
    options = {"num_warps": num_warps, "map_pointers": True}
    kernel = compiled(tmp_path, STORES, signature, constants, **options)
    assert "cp.async.bulk.tensor.2d.global" in kernel.ptx
    sizes = [(17, 68), (5, 92), (0, 68), (40, 4), (1, 8), (9, 40)]
    x = tensor((16, 64), "fp32")
    outs = [tensor((24, 96 + 4 * number), "fp32", seed=number) for number in range(len(sizes))]
    expected = [out.copy() for out in outs]
    for number, (view, (rows, columns)) in enumerate(zip(expected, sizes, strict=True)):
        inside = view[1:rows, 4:columns][:16, :64]
        inside[...] = x[: inside.shape[0], : inside.shape[1]] + number
    steps = [view.strides[0] // 4 for view in outs]
    size_table = np.array(
        [(*pair, step) for pair, step in zip(sizes, steps, strict=True)], np.int32
    )
    values = {"x_ptr": x, "out_ptrs": _table(*outs), "sizes": size_table, "count": len(sizes)}
    launch(kernel, (1,), values, seed=seed)
    for actual, each in zip(outs, expected, strict=True):
        np.testing.assert_array_equal(actual, each)


def test_hardware_stores_rows_in_pieces_of_16_bytes(tmp_path: Path) -> None:
    signature = {"x_ptr": "*fp32", "out_ptrs": "*i64", "sizes": "*i32", "count": "i32"}
    constants = {"ROWS": 16, "COLUMNS": 64}
    kernel = compiled(tmp_path, STORES, signature, constants, map_pointers=True)
    out = tensor((24, 96), "fp32")
    values = {"x_ptr": tensor((16, 64), "fp32"), "out_ptrs": _table(out), "count": 1}
    values["sizes"] = np.array([17, 90, out.strides[0] // 4], np.int32)
    with pytest.raises(Fault, match="stores rows of 360 bytes; hardware stores pieces of 16"):
        launch(kernel, (1,), values)

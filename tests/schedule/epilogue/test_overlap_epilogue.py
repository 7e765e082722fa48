"""Stores delayed into the next tile's products: position, stored tiles, and refusals."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aotc.schedule.epilogue.overlap_epilogue import overlap_epilogue
from tests.support.descriptors import compiled, launch, like, lowered, tensor
from tests.support.pass_case import applied

DELAYED = "the epilogue of a tile overlaps the mainloop of the next one"

PRODUCT = """def k(a, b, c, tiles, K):
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        total = tl.zeros((128, 128), tl.float32)
        for k in range(0, K, 64):
            total = tl.dot(a.load([tile * 128, k]), b.load([0, k]).T, total)
        c.store([tile * 128, 0], total.to(c.dtype))
"""
SIGNATURE = {
    "a": "tensordesc<fp16[128,64]>",
    "b": "tensordesc<fp16[128,64]>",
    "c": "tensordesc<bf16[128,128]>",
    "tiles": "i32",
    "K": "i32",
}
TWO = """def k(a, b, c, d, tiles, K):
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        total = tl.zeros((64, 64), tl.float32)
        for k in range(0, K, 64):
            total = tl.dot(a.load([tile * 64, k]), b.load([0, k]).T, total)
        c.store([tile * 64, 0], total.to(c.dtype))
        d.store([0, (tiles - 1 - tile) * 64], total + 1)
"""
TWO_SIGNATURE = SIGNATURE | {
    "a": "tensordesc<fp16[64,64]>",
    "b": "tensordesc<fp16[64,64]>",
    "c": "tensordesc<bf16[64,64]>",
    "d": "tensordesc<fp32[64,64]>",
}


# ---- where ------------------------------------------------------------------------------------


def test_parts_stand_between_a_product_and_its_wait(tmp_path: Path) -> None:
    text, remarks = lowered(tmp_path, PRODUCT, SIGNATURE, num_warps=8)
    assert DELAYED in remarks
    ops = re.findall(
        r"(?:gpu\.(?:wgmma_wait|wgmma|tma_store_wait|tma_buffer_wait|tma_store|tma_load)|scf\.\w+)\b",
        text,
    )
    ops = [op.removeprefix("gpu.") for op in ops]
    product, waited = ops.index("wgmma"), ops.index("wgmma_wait")
    # The first one waits for the tile before, the second one has a buffer of its own.
    waits = "tma_store_wait", "tma_buffer_wait"
    parts = [["scf.if", wait, "tma_store", "scf.yield", "scf.yield"] for wait in waits]
    assert ops[product + 1 : waited] == ["scf.if", *parts[0], *parts[1], "scf.yield", "scf.yield"]
    # All of them once more behind the loop over k, for the last tile.
    assert ops.count("tma_store") == 4
    assert len(ops) - ops[::-1].index("tma_store") < len(ops) - ops[::-1].index("scf.yield")


def test_coordinates_are_computed_behind_the_last_product(tmp_path: Path) -> None:
    text, _ = lowered(
        tmp_path, PRODUCT.replace("tile * 128, 0", "tile // K * 128, 0"), SIGNATURE, num_warps=8
    )
    consumers = text[text.index("gpu.specialize") :].splitlines()
    positions = {
        text: [number for number, line in enumerate(consumers) if text in line]
        for text in ("gpu.wgmma(", "arith.div", "gpu.wgmma_wait")
    }
    product, first, drain = (
        positions["gpu.wgmma("][0],
        positions["arith.div"][0],
        positions["gpu.wgmma_wait"][1],
    )
    assert product < first < drain


def test_threads_get_the_registers_that_a_tile_beside_the_sums_takes(tmp_path: Path) -> None:
    """Sums of 128 x 192 by eight warps fit without, and the tile would not."""
    source = PRODUCT.replace(
        "total = tl.zeros((128, 128), tl.float32)",
        "total, more = tl.zeros((128, 128), tl.float32), tl.zeros((128, 64), tl.float32)",
    ).replace(
        "b.load([0, k]).T, total)",
        "b.load([0, k]).T, total)\n            "
        "more = tl.dot(a.load([tile * 128, k]), d.load([128, k]).T, more)",
    ).replace("tiles, K)", "d, e, tiles, K)")  # fmt: skip
    signature = SIGNATURE | {"d": "tensordesc<fp16[64,64]>", "e": "tensordesc<bf16[128,64]>"}
    _, remarks = lowered(tmp_path, source, signature, num_warps=8)
    assert "registers for threads" not in remarks
    stored = source + "        e.store([tile * 128, 128], more.to(e.dtype))\n"
    _, remarks = lowered(tmp_path, stored, signature, num_warps=8)
    assert DELAYED in remarks
    assert "registers for a consumer thread" in remarks


# ---- results ----------------------------------------------------------------------------------


@pytest.mark.emulated
@pytest.mark.parametrize("num_stages", [2, 3])
@pytest.mark.parametrize(("tiles", "programs"), [(0, 1), (1, 1), (2, 1), (5, 2), (3, 4)])
def test_every_tile_is_stored_once(
    tmp_path: Path, tiles: int, programs: int, num_stages: int
) -> None:
    """Also where there are fewer steps along K than parts, or none."""
    kernel = compiled(tmp_path, PRODUCT, SIGNATURE, num_warps=8, num_stages=num_stages)
    for seed, depth in enumerate((0, 64, 128, 320)):
        a, b = tensor((128 * tiles + 8, 320), "fp16"), tensor((128, 320), "fp16", seed=1)
        a, b = np.sign(a), np.sign(b)
        c = like(tensor((128 * tiles + 8, 128), "bf16"))
        before = c.copy()
        values = {"a": a, "b": b, "c": c, "tiles": tiles, "K": depth}
        launch(kernel, (programs,), values, seed=seed)
        rows = 128 * tiles
        product = a[:rows, :depth].astype(np.float64) @ b[:, :depth].astype(np.float64).T
        np.testing.assert_array_equal(c[:rows], product.astype(ml_dtypes.bfloat16))
        np.testing.assert_array_equal(c[rows:], before[rows:])


@pytest.mark.emulated
def test_tiles_of_two_tensors_are_delayed_together(tmp_path: Path) -> None:
    _, remarks = lowered(tmp_path, TWO, TWO_SIGNATURE, num_warps=4)
    assert DELAYED in remarks
    kernel = compiled(tmp_path, TWO, TWO_SIGNATURE)
    for seed, (tiles, depth) in enumerate([(1, 64), (4, 64), (3, 192), (3, 0)]):
        a, b = tensor((64 * tiles, 192), "fp16"), tensor((64, 192), "fp16", seed=1)
        c, d = tensor((64 * tiles, 64), "bf16"), tensor((64, 64 * tiles), "fp32")
        c, d, a, b = like(c), like(d), np.sign(a), np.sign(b)
        values = {"a": a, "b": b, "c": c, "d": d, "tiles": tiles, "K": depth}
        launch(kernel, (2,), values, seed=seed)
        product = a[:, :depth].astype(np.float64) @ b[:, :depth].astype(np.float64).T
        np.testing.assert_array_equal(c, product.astype(ml_dtypes.bfloat16))
        blocks = [
            product[64 * tile_index : 64 * tile_index + 64] + 1
            for tile_index in reversed(range(tiles))
        ]
        np.testing.assert_array_equal(d, np.concatenate(blocks, axis=1))


# ---- tiles of several loops ---------------------------------------------------------------------

GROUPS = """def k(a, b, c, depths, groups, tiles):
    row = 0
    for group in range(groups):
        depth = tl.load(depths + group)
        if depth >= 0:
            for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
                total = tl.zeros((64, 128), tl.float32)
                for k in range(0, depth, 64):
                    total = tl.dot(a.load([tile * 64, k]), b.load([group * 128, k]).T, total)
                c.store([row + tile * 64, 0], total.to(c.dtype))
            row += tiles * 64
"""
GROUPS_SIGNATURE = {
    "a": "tensordesc<fp16[64,64]>",
    "b": "tensordesc<fp16[128,64]>",
    "c": "tensordesc<bf16[64,128]>",
    "depths": "*i32",
    "groups": "i32",
    "tiles": "i32",
}


def test_a_tile_waits_for_the_mainloop_of_the_next_group(tmp_path: Path) -> None:
    text, remarks = lowered(tmp_path, GROUPS, GROUPS_SIGNATURE, num_warps=4)
    assert DELAYED in remarks
    # In the mainloop, after it, and at the end; two slices each.
    assert text.count("gpu.tma_store(") == 6


@pytest.mark.emulated
@pytest.mark.parametrize(
    ("depths", "tiles", "programs"),
    [
        ((64, 128, 320), 1, 1),
        ((320, -1, 0, 64, 0, 320), 3, 2),
        ((0,), 2, 1),
        ((64, 64), 1, 2),
        ((), 1, 1),
        ((192,), 0, 1),
    ],
)
def test_tiles_of_groups_are_stored_once(
    tmp_path: Path, depths: tuple[int, ...], tiles: int, programs: int
) -> None:
    """With any step count of the next mainloop: none, fewer than the slices, or more."""
    kernel = compiled(tmp_path, GROUPS, GROUPS_SIGNATURE)
    a = np.sign(tensor((64 * tiles + 8, 320), "fp16"))
    b = np.sign(tensor((128 * len(depths) + 8, 320), "fp16", seed=1))
    run = [(group, depth) for group, depth in enumerate(depths) if depth >= 0]
    rows = 64 * tiles
    c = like(tensor((rows * len(run) + 8, 128), "bf16"))
    before = c.copy()
    values = {"a": a, "b": b, "c": c, "depths": np.array([*depths, 0], np.int32)}
    launch(kernel, (programs,), {**values, "groups": len(depths), "tiles": tiles})
    for index, (group, depth) in enumerate(run):
        right = b[128 * group : 128 * group + 128, :depth].astype(np.float64)
        product = a[:rows, :depth].astype(np.float64) @ right.T
        np.testing.assert_array_equal(
            c[rows * index : rows * index + rows], product.astype(ml_dtypes.bfloat16)
        )
    np.testing.assert_array_equal(c[rows * len(run) :], before[rows * len(run) :])


@pytest.mark.emulated
def test_a_mainloop_may_be_as_long_as_its_tile_says(tmp_path: Path) -> None:
    source = PRODUCT.replace("range(0, K, 64)", "range(0, K * tile, 64)")
    _, remarks = lowered(tmp_path, source, SIGNATURE, num_warps=8)
    assert DELAYED in remarks
    kernel = compiled(tmp_path, source, SIGNATURE, num_warps=8)
    a, b = np.sign(tensor((512, 320), "fp16")), np.sign(tensor((128, 320), "fp16", seed=1))
    c = like(tensor((512, 128), "bf16"))
    launch(kernel, (1,), {"a": a, "b": b, "c": c, "tiles": 4, "K": 64})
    for tile in range(4):
        rows = slice(128 * tile, 128 * tile + 128)
        product = a[rows, : 64 * tile].astype(np.float64) @ b[:, : 64 * tile].astype(np.float64).T
        np.testing.assert_array_equal(c[rows], product.astype(ml_dtypes.bfloat16))


# ---- left alone -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "signature", "config"),
    [
        # Threads also write elsewhere, possibly to the same memory.
        (
            "        c.store",
            "        tl.store(p + tile, K)\n        c.store",
            {"p": "*i32"},
            {},
        ),
        # Another block may wait for the tile.
        (
            "total.to(c.dtype))\n",
            "total.to(c.dtype))\n        tl.atomic_add(p, 1)\n",
            {"p": "*i32"},
            {},
        ),
        # No registers for it: 128 sums and 128 words of the tile.
        (", 0], total", ", 0], total", {"c": "tensordesc<fp32[128,128]>"}, {"num_warps": 4}),
        # Threads scale the products' operands: the tensor cores wait for them already.
        (
            "total = tl.dot(a.load([tile * 128, k]), b.load([0, k]).T, total)",
            "total += tl.dot(a.load([tile * 128, k]), b.load([0, k]).T) * (K + 1)",
            {},
            {},
        ),
        # Another group of warps multiplies in the meantime.
        ("", "", {}, {"num_consumer_groups": 2, "num_warps": 4}),
        # The kernel reads its own stores.
        ("        c.store", "        total += c.load([tile * 128, 0])\n        c.store", {}, {}),
        # No loop of tiles: nothing is multiplied after it.
        ("for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):", "if tiles > 0:\n        tile = tl.program_id(0)", {}, {}),
    ],
)  # fmt: skip
def test_it_stays_where_it_is(
    tmp_path: Path, old: str, new: str, signature: dict[str, str], config: dict[str, Any]
) -> None:
    source = PRODUCT.replace(old, new)
    if "p" in signature:
        source = source.replace("tiles, K)", "tiles, K, p)")
    _, remarks = lowered(tmp_path, source, SIGNATURE | signature, **{"num_warps": 8, **config})
    assert DELAYED not in remarks


# ---- the resulting IR ---------------------------------------------------------------------------

TEXT = """\
// CHECK: [[BUFFER:%.*]] = gpu.shared_alloc {element = bf16
// CHECK-NEXT: [[NOTHING:%.*]] = gpu.undefined
// CHECK: [[ENOUGH:%.*]] = arith.compare(%zero, %n) {predicate = "lt"}
// CHECK: scf.for(%first, %tiles, %count, %zero, %zero, [[NOTHING]], {{.*}}, [[TILE:%[a-z]+]]: tile<64x64xbf16, #{{[0-9]+}}>, [[ROW:%[a-z]+]]: i32, [[SLICE:%[a-z]+]]: i32) {
// CHECK: scf.for(%zero, %n, %one, %fresh, %index, %phase, [[SLICE]]) {unroll = 1} ({{.*}}, [[NOW:%[a-z_0-9]+]]: i32) {
// CHECK: %dot = gpu.wgmma(
// CHECK: [[LEFT:%.*]] = arith.compare([[NOW]], {{%.*}}) {predicate = "lt"}
// CHECK-NEXT: scf.if([[LEFT]])
// CHECK: [[THIS:%.*]] = arith.compare([[NOW]], {{%.*}}) {predicate = "eq"}
// CHECK-NEXT: scf.if([[THIS]])
// CHECK-NEXT: gpu.tma_store_wait
// CHECK-NEXT: gpu.shared_store([[TILE]], [[BUFFER]]) {vector = 8, matrix = "b16"}
// CHECK-NEXT: gpu.tma_store(%c, [[BUFFER]], [[ROW]], %zero)
// CHECK: [[NEXT:%.*]] = arith.add([[NOW]], {{%.*}})
// CHECK: %sum = gpu.wgmma_wait(%dot) {pending = 1
// CHECK-NEXT: scf.yield({{.*}}, [[NEXT]])
// CHECK: [[ROW:%.*]] = arith.mul(%tile, %size)
// CHECK-NEXT: %done = gpu.wgmma_wait(%total)
// CHECK-NEXT: [[TILE:%.*]] = arith.cast(%done) {dtype = bf16}
// CHECK-NEXT: [[MORE:%.*]] = arith.compare(%tile, {{%.*}}) {predicate = "lt"}
// CHECK-NEXT: [[WAITS:%.*]] = arith.and([[ENOUGH]], [[MORE]])
// CHECK-NEXT: scf.if([[WAITS]]) () {
// CHECK-NEXT: scf.yield
// CHECK-NEXT: } () {
// CHECK-NEXT: gpu.tma_store_wait
// CHECK-NEXT: gpu.shared_store([[TILE]], [[BUFFER]])
// CHECK-NEXT: gpu.tma_store(%c, [[BUFFER]], [[ROW]], %zero)
// CHECK: scf.yield(%next, %next_phase, [[TILE]], [[ROW]], {{%.*}})
// CHECK: gpu.tma_store_wait
#0 = #ll<offset=[[0,1],[0,2],[0,4],[0,8],[0,16],[0,32],[1,8],[2,16],[4,32],[8,0],[16,0],[32,0]] : [64,64]>
#1 = #ll<offset=[] : [1]>
#2 = #ll<register=[[0,1],[8,0],[0,8],[0,16],[0,32]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[[16,0],[32,0]] : [64,64]>
kernel @k(%a: map<64x64xfp16, 128>, %b: map<64x64xfp16, 128>, %c: map<64x64xbf16, 128>, %tiles: i32, %n: i32) {num_warps = 4, producer_warps = 1} {
  %a_ring = gpu.shared_alloc {element = fp16, shape = [64, 64], layout = #0, alignment_bytes = 1024, num_stages = 3} : shared<64x64xfp16, #0, 3>
  %b_ring = gpu.shared_alloc {element = fp16, shape = [64, 64], layout = #0, alignment_bytes = 1024, num_stages = 3} : shared<64x64xfp16, #0, 3>
  %full = gpu.shared_alloc {element = u64, shape = [1], layout = #1, alignment_bytes = 8, num_stages = 3} : shared<1xu64, #1, 3>
  gpu.mbarrier_init(%full)
  gpu.barrier
  gpu.specialize () {
    %zero = arith.constant {value = 0, type = i32} : i32
    %one = arith.constant {value = 1, type = i32} : i32
    %size = arith.constant {value = 64, type = i32} : i32
    %fresh = arith.constant {value = 0.0, type = tile<64x64xfp32, #2>} : tile<64x64xfp32, #2>
    %first = tile.program_id {axis = 0} : i32
    %count = tile.num_programs {axis = 0} : i32
    %end, %last = scf.for(%first, %tiles, %count, %zero, %zero) (%tile: i32, %index: i32, %phase: i32) {
      %total, %next, %next_phase = scf.for(%zero, %n, %one, %fresh, %index, %phase) {unroll = 1} (%k: i32, %acc: tile<64x64xfp32, #2>, %stage: i32, %parity: i32) {
        %filled = gpu.shared_stage(%full, %stage) : shared<1xu64, #1>
        gpu.mbarrier_wait(%filled, %parity)
        %left = gpu.shared_stage(%a_ring, %stage) : shared<64x64xfp16, #0>
        %right = gpu.shared_stage(%b_ring, %stage) : shared<64x64xfp16, #0>
        %dot = gpu.wgmma(%left, %right, %acc, _) : tile<64x64xfp32, #2>
        %following = gpu.next_stage(%stage) {num_stages = 3} : i32
        %wraps = arith.compare(%following, %zero) {predicate = "eq"} : i1
        %flip = arith.cast(%wraps) {dtype = i32} : i32
        %flipped = arith.xor(%parity, %flip) : i32
        %sum = gpu.wgmma_wait(%dot) {pending = 1, num_columns = [0]} : tile<64x64xfp32, #2>
        scf.yield(%sum, %following, %flipped)
      } : tile<64x64xfp32, #2>, i32, i32
      %done = gpu.wgmma_wait(%total) {num_columns = [0]} : tile<64x64xfp32, #2>
      %row = arith.mul(%tile, %size) : i32
      %narrow = arith.cast(%done) {dtype = bf16} : tile<64x64xbf16, #2>
      %buffer = gpu.shared_alloc {element = bf16, shape = [64, 64], layout = #0, alignment_bytes = 1024} : shared<64x64xbf16, #0>
      gpu.staged_tma_store(%c, %narrow, %buffer, %row, %zero)
      scf.yield(%next, %next_phase)
    } : i32, i32
    scf.yield()
  } () {
    scf.yield()
  }
  scf.return
}
"""


def test_a_tile_is_stored_while_the_next_one_is_multiplied_or_at_once_if_there_is_none() -> None:
    applied(TEXT, overlap_epilogue)

"""Delayed stores before several mainloops: position, carried values, and stored exactly once."""

from __future__ import annotations

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.support.descriptors import compiled, launch, like, lowered, tensor

DELAYED = "the epilogue of a tile overlaps the mainloop of the next one"

# Tiles of one kind are products with B, those of the other with D; some have no rows.
TILES = """def k(a, b, d, c, counts, tiles, K):
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        count = tl.load(counts + tile)
        if count != 0:
            total = tl.zeros((64, 64), tl.float32)
            if count > 64:
                for k in range(0, K, 64):
                    total = tl.dot(a.load([tile * 64, k]), b.load([0, k]).T, total)
            else:
                for k in range(0, K, 64):
                    total = tl.dot(a.load([tile * 64, k]), d.load([0, k]).T, total)
            left, right = tl.split(total.reshape(64, 2, 32).permute(0, 2, 1))
            c.store([tile * 64, 0], left.to(c.dtype))
            c.store([tl.where(count > 32, tile * 64, 2**30), 32], right.to(c.dtype))
"""
SIGNATURE = {
    "a": "tensordesc<fp16[64,64]>",
    "b": "tensordesc<fp16[64,64]>",
    "d": "tensordesc<fp16[64,64]>",
    "c": "tensordesc<bf16[64,32]>",
    "counts": "*i32",
    "tiles": "i32",
    "K": "i32",
}


def test_each_mainloop_stores_the_tile_before(tmp_path: Path) -> None:
    text, remarks = lowered(tmp_path, TILES, SIGNATURE, num_warps=4)
    assert DELAYED in remarks
    consumers = text[text.index("gpu.specialize") :]
    # In each mainloop, after it, and at the end: both halves.
    assert consumers.count("gpu.tma_store(") == 8
    inner = re.findall(r"gpu\.wgmma\(.*?gpu\.wgmma_wait", consumers, re.DOTALL)
    assert [loop_text.count("gpu.tma_store(") for loop_text in inner] == [2, 2]


def test_loops_carry_what_coordinates_are_made_of(tmp_path: Path) -> None:
    """Eight rows depend on the tile's start and row count; carry those two numbers."""
    body, end = TILES[: TILES.index("            left")], ""
    for part in range(8):
        row = f"tl.where({part * 7} < count, tile * 64 + {part}, 2**30)"
        end += f"            c.store([{row}, 0], (total + {part}).to(c.dtype))\n"
    signature = SIGNATURE | {"c": "tensordesc<bf16[64,64]>", "b": "tensordesc<fp16[64,64]>"}
    text, remarks = lowered(tmp_path, body + end, signature, num_warps=8)
    assert DELAYED in remarks
    consumers = text[text.index("gpu.specialize") :]
    head = re.findall(r"scf\.for\([^\n]*\(%tile: i32, ([^)]*)\)", consumers)[0]
    numbers = [
        name for name in re.findall(r"%(\w+): i32", head) if not re.match("stage|parity", name)
    ]
    assert len(numbers) == 3  # and the next slice


@pytest.mark.parametrize("columns", [128, 64])
def test_as_much_of_a_tile_is_delayed_as_registers_hold(tmp_path: Path, columns: int) -> None:
    """Beside 128 sums a thread there is room for two of four parts in fp32; of 64 for all."""
    source = TILES[: TILES.index("            left")].replace("(64, 64)", f"(128, {columns})")
    source = source.replace("tile * 64", "tile * 128")
    source += "            left, right = tl.split(total.reshape(128, 2, WIDTH).permute(0, 2, 1))\n"
    for number, side in enumerate(("left", "right")):
        source += (
            f"            one, two = tl.split({side}.reshape(128, 2, WIDTH // 2).permute(0, 2, 1))\n"
            f"            c.store([tile * 128, WIDTH * {number}], one)\n"
            f"            c.store([tile * 128, WIDTH * {number} + WIDTH // 2], two)\n"
        )
    signature = SIGNATURE | {
        "a": "tensordesc<fp16[128,64]>",
        "b": f"tensordesc<fp16[{columns},64]>",
        "d": f"tensordesc<fp16[{columns},64]>",
        "c": f"tensordesc<fp32[128,{columns // 4}]>",
    }
    source = source.replace("WIDTH", str(columns // 2))
    text, remarks = lowered(tmp_path, source, signature, num_warps=4, num_stages=2)
    assert DELAYED in remarks
    consumers = text[text.index("gpu.specialize") :]
    inner = re.findall(r"gpu\.wgmma\(.*?gpu\.wgmma_wait", consumers, re.DOTALL)
    delayed = 2 if columns == 128 else 4
    assert [loop_text.count("gpu.tma_store(") for loop_text in inner] == [delayed, delayed]
    # The others stand where they were, once.
    assert consumers.count("gpu.tma_store(") == 4 * delayed + 4 - delayed


@pytest.mark.emulated
@pytest.mark.parametrize(
    ("counts", "programs"),
    [
        ((65, 64, 33, 32, 1), 1),
        ((0, 65, 0, 0, 32, 0), 1),
        ((0, 0), 1),
        ((), 1),
        ((40, 70, 0, 80, 5), 2),
    ],
)
def test_tiles_are_stored_once(tmp_path: Path, counts: tuple[int, ...], programs: int) -> None:
    """Whichever mainloop is next, with however few steps, or if none is."""
    kernel = compiled(tmp_path, TILES, SIGNATURE)
    for seed, depth in enumerate((0, 64, 256)):
        rows = 64 * len(counts) + 8
        a = np.sign(tensor((rows, 256), "fp16", seed=seed))
        b, d = (np.sign(tensor((64, 256), "fp16", seed=seed + offset)) for offset in (1, 2))
        c = like(tensor((rows, 64), "bf16"))
        expected = c.copy()
        for tile, count in enumerate(counts):
            right = (b if count > 64 else d)[:, :depth].astype(np.float64)
            tile_rows = slice(64 * tile, 64 * tile + 64)
            product = a[tile_rows, :depth].astype(np.float64) @ right.T
            width = 64 if count > 32 else 32 if count else 0
            expected[tile_rows, :width] = product.astype(ml_dtypes.bfloat16)[:, :width]
        values = {"a": a, "b": b, "d": d, "c": c, "counts": np.array([*counts, 0], np.int32)}
        launch(kernel, (programs,), {**values, "tiles": len(counts), "K": depth}, seed=seed)
        np.testing.assert_array_equal(c, expected)

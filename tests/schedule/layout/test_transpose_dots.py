"""Transposed dots: selection, and equal results."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from aotc.schedule.layout.transpose_dots import transpose_dots
from tests.support.descriptors import compiled, launch, tensor
from tests.support.pass_case import applied

SOURCE = """
def k(x, w, c, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    m, n = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    acc = tl.full((BLOCK_M, BLOCK_N), 2.0, tl.float32)
    for k in range(0, K, BLOCK_K):
        acc = DOT
    c.store([m, n], acc)
"""
BY_ROWS = "tl.dot(x.load([m, k]), w.load([n, k]).T.to(tl.bfloat16), acc)"
WAYS = {
    "weights by rows": (BY_ROWS, True),
    "scaled weights": (BY_ROWS.replace(".to(tl.bfloat16)", ".to(tl.bfloat16) * 0.5"), True),
    "weights by columns": (BY_ROWS.replace("w.load([n, k]).T", "w.load([k, n])"), False),
    "both computed": (BY_ROWS.replace("x.load([m, k])", "(x.load([m, k]) * 2)"), True),
    "an accumulator that threads scale": (BY_ROWS.replace(" acc)", " acc * 0.5)"), False),
    "loaded weights": ("tl.dot(x.load([m, k]), x.load([n, k]).T, acc)", False),
}


@pytest.mark.emulated
@pytest.mark.parametrize("way", WAYS)
def test_computed_weights_are_the_left_operand(tmp_path: Path, way: str) -> None:
    dot, from_registers = WAYS[way]
    by_columns = "w.load([k, n])" in dot
    signature = {
        "x": "tensordesc<bf16[64,32]>",
        "w": "tensordesc<i8[32,64]>" if by_columns else "tensordesc<i8[64,32]>",
        "c": "tensordesc<fp32[64,64]>",
        "K": "i32",
    }
    constants = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}
    kernel = compiled(tmp_path, SOURCE.replace("DOT", dot), signature, constants, num_stages=3)
    # A left operand in shared memory is a descriptor, one in registers is four of them.
    assert bool(re.search(r"wgmma\.mma_async\S+ \{[^}]+\}, \{", kernel.ptx)) == from_registers
    x, w = tensor((70, 96), "bf16"), tensor((96, 64) if by_columns else (64, 96), "i8", seed=1)
    c = tensor((70, 64), "fp32")
    launch(kernel, (2, 1), {"x": x, "w": w, "c": c, "K": 96})
    right = w if by_columns else w.T
    left = x.astype(np.float64)
    if way == "loaded weights":
        right = x.T[:, :64]
    expected = 2.0 + left @ right.astype(np.float64)
    if way == "scaled weights":
        expected = 2.0 + left @ right.astype(np.float64) / 2
    if way == "both computed":
        expected = 2.0 + 2 * left @ right.astype(np.float64)
    if way == "an accumulator that threads scale":
        expected = np.full(c.shape, 2.0)
        for k in range(0, 96, 32):
            expected = expected / 2 + left[:, k : k + 32] @ right[k : k + 32].astype(np.float64)
    np.testing.assert_allclose(c.astype(np.float64), expected, rtol=1e-5, atol=1e-2)


WEIGHTS = """
kernel @k(%x: desc<64x32xbf16>, %w: desc<64x32xi8>, %c: desc<64x64xfp32>) {num_warps = 4} {
  %0 = arith.constant {value = 0, type = i32} : i32
  %rows = tile.descriptor_load(%x, %0, %0) : tile<64x32xbf16>
  // CHECK: %loaded = tile.descriptor_load(%w,
  %loaded = tile.descriptor_load(%w, %0, %0) : tile<64x32xi8>
  // CHECK: [[LEFT:%[0-9a-z_]+]] = arith.cast(%loaded) {dtype = bf16} : tile<64x32xbf16>
  // CHECK: [[RIGHT:%[0-9a-z_]+]] = tile.trans(%rows) {order = [1, 0]} : tile<32x64xbf16>
  %turned = tile.trans(%loaded) {order = [1, 0]} : tile<32x64xi8>
  %weights = arith.cast(%turned) {dtype = bf16} : tile<32x64xbf16>
  %zero = arith.constant {value = 0.0, type = tile<64x64xfp32>} : tile<64x64xfp32>
  // CHECK: [[DOT:%[0-9a-z_]+]] = tile.dot([[LEFT]], [[RIGHT]],
  // CHECK: [[BACK:%[0-9a-z_]+]] = tile.trans([[DOT]]) {order = [1, 0]}
  // CHECK: tile.descriptor_store(%c, [[BACK]],
  %acc = tile.dot(%rows, %weights, %zero) : tile<64x64xfp32>
  tile.descriptor_store(%c, %acc, %0, %0)
  scf.return
}
"""


def test_a_dot_of_converted_weights_is_transposed() -> None:
    applied(WEIGHTS, transpose_dots)


WORDS = """
kernel @k(%x: desc<64x32xbf16>, %w: desc<4x64xi32>, %shift: tile<32x64xi32>, %c: desc<64x64xfp32>) {num_warps = 4} {
  %0 = arith.constant {value = 0, type = i32} : i32
  %rows = tile.descriptor_load(%x, %0, %0) : tile<64x32xbf16>
  %words = tile.descriptor_load(%w, %0, %0) : tile<4x64xi32>
  %apart = tile.expand_dims(%words) {axis = 1} : tile<4x1x64xi32>
  %spread = tile.broadcast(%apart) {shape = [4, 8, 64]} : tile<4x8x64xi32>
  // CHECK: [[EACH:%[0-9a-z_]+]] = tile.reshape(
  %each = tile.reshape(%spread) {shape = [32, 64]} : tile<32x64xi32>
  // CHECK-NOT: arith.shr([[EACH]]
  // CHECK: [[TURNED:%[0-9a-z_]+]] = tile.trans([[EACH]])
  // CHECK: arith.shr([[TURNED]],
  %bits = arith.shr(%each, %shift) : tile<32x64xi32>
  %weights = arith.cast(%bits) {dtype = bf16} : tile<32x64xbf16>
  %zero = arith.constant {value = 0.0, type = tile<64x64xfp32>} : tile<64x64xfp32>
  // CHECK: [[DOT:%[0-9a-z_]+]] = tile.dot(
  // CHECK: tile.trans([[DOT]]) {order = [1, 0]}
  %acc = tile.dot(%rows, %weights, %zero) : tile<64x64xfp32>
  tile.descriptor_store(%c, %acc, %0, %0)
  scf.return
}
"""


def test_a_dot_of_what_lies_in_words_along_k_is_transposed_and_nothing_dead_is_left() -> None:
    applied(WORDS, transpose_dots)


def test_it_stays_as_it_is_where_there_is_no_wgmma() -> None:
    text = re.sub(r"(?m)^ *// CHECK.*\n", "", WEIGHTS)
    marked = text.replace("  %acc =", "  // CHECK: tile.dot(%rows, %weights, %zero)\n  %acc =")
    applied(marked, transpose_dots, target="sm_80")

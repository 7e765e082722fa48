"""Comparisons decided by ranges cost nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aotc.ir.text import parse_kernel
from aotc.schedule.cleanup.fold_masks import fold_masks
from aotc.schedule.context import Schedule
from aotc.target import TARGETS
from tests.support.pass_case import applied, assert_same_meaning

TEXT = Path(__file__).with_name("cases").joinpath("decided_masks.ir").read_text(encoding="utf-8")


@pytest.mark.parametrize("num_rows", [0, 1, 31, 32])
def test_a_decided_mask_is_dropped(num_rows: int) -> None:
    kernel = applied(TEXT, fold_masks)
    x = np.random.default_rng(num_rows).standard_normal((32, 128)).astype(np.float32)
    assert_same_meaning(TEXT, kernel, [x, np.full((32, 32), np.nan, np.float32), num_rows])


@pytest.mark.parametrize(
    ("predicate", "bound", "is_decided"),
    [
        *(("lt", 8, True), ("lt", 7, False), ("lt", 0, True), ("lt", 1, False)),
        *(("le", 7, True), ("le", 6, False), ("le", -1, True), ("le", 0, False)),
        *(("gt", 7, True), ("gt", 6, False), ("gt", -1, True), ("gt", 0, False)),
        *(("ge", 8, True), ("ge", 7, False), ("ge", 0, True), ("ge", 1, False)),
        *(("eq", 8, True), ("eq", 7, False), ("ne", -1, True), ("ne", 0, False)),
    ],
)
def test_bounds_of_predicates(predicate: str, bound: int, *, is_decided: bool) -> None:
    text = f"""
kernel @k(%out: *i1) {{num_warps = 4}} {{
  %index = tile.arange {{start = 0, end = 8}} : tile<8xi32>
  %bound = arith.constant {{value = {bound}, type = tile<8xi32>}} : tile<8xi32>
  %same = arith.constant {{value = 0, type = tile<8xi32>}} : tile<8xi32>
  %shifted = arith.sub(%index, %same) : tile<8xi32>
  %outcome = arith.compare(%shifted, %bound) {{predicate = "{predicate}"}} : tile<8xi1>
  %base = tile.splat(%out) {{shape = [8]}} : tile<8x*i1>
  %place = arith.addptr(%base, %index) : tile<8x*i1>
  tile.store(%place, %outcome, _)
  scf.return
}}
"""
    kernel = parse_kernel(text)
    fold_masks(kernel, Schedule(TARGETS["sm_90a"]))
    opcodes = [op.opcode for op in kernel.walk()]
    assert ("arith.compare" not in opcodes) == is_decided
    assert_same_meaning(text, kernel, [np.full(8, 2, np.uint8)])

"""Device-made tensor maps: selection, and empty tensors read as before."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from aotc.config import Config
from aotc.ir.core import Kernel
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.verify import verify
from aotc.schedule.context import Schedule
from aotc.schedule.tensor_maps.lower_descriptors import lower_descriptors
from aotc.target import TARGETS
from aotc.verify.interpreter.run import run

TEXT = """\
kernel @k(%x: *fp32 {divisibility = 16}, %y: *fp32, %sizes: *i32) {num_warps = 1} {
  %one = arith.constant {value = 1, type = i32} : i32
  %next = arith.addptr(%sizes, %one) : *i32
  %m = tile.load(%sizes, _, _) : i32
  %n = tile.load(%next, _, _) : i32
  %wide = arith.constant {value = 8, type = i32} : i32
  %stride = arith.constant {value = 16, type = i64} : i64
  %d = tile.descriptor_of(%x, %m, %n, %stride) {shape = [4, 8]} : desc<4x8xfp32>
  %zero = arith.constant {value = 0, type = i32} : i32
  %v = tile.descriptor_load(%d, %one, %zero) : tile<4x8xfp32>
  STORE
  scf.return
}
"""
OTHER = """%s = arith.constant {value = 8, type = i64} : i64
  %four = arith.constant {value = 4, type = i32} : i32
  %to = tile.descriptor_of(POINTER, %four, %wide, %s) {shape = [4, 8]} : desc<4x8xfp32>
  tile.descriptor_store(%to, %v, %zero, %zero)"""
STORED = """\
kernel @k(%x: *fp32 {divisibility = 16}, %sizes: *i32) {num_warps = 1} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %m = tile.load(%sizes, _, _) : i32
  %n = arith.constant {value = COLUMNS, type = i32} : i32
  %stride = arith.constant {value = 8, type = i64} : i64
  %v = arith.constant {value = 1.0, type = tile<4x8xfp32>} : tile<4x8xfp32>
  %d = tile.descriptor_of(%x, %m, %n, %stride) {shape = [4, 8]} : desc<4x8xfp32>
  tile.descriptor_store(%d, %v, %zero, %zero)
  scf.return
}
"""
ODD_ROWS = "its strides, or the rows that it stores, are no multiples of 16 bytes"
SAME = "tile.descriptor_store(%d, %v, %zero, %zero)"


def _lowered(text: str, **config: int) -> tuple[Kernel, str]:
    schedule = Schedule(TARGETS["sm_90a"], map_pointers=True)
    schedule = replace(schedule, config=replace(Config(), **config))
    kernel = parse_kernel(text)
    lower_descriptors(kernel, schedule)
    verify(kernel)
    return kernel, "\n".join(schedule.remarks)


def _text(store: str = OTHER, pointer: str = "%y") -> str:
    return TEXT.replace("STORE", store).replace("POINTER", pointer)


@pytest.mark.parametrize(("rows", "columns"), [*itertools.product((-1, 0, 1, 4, 9), repeat=2)])
def test_it_loads_what_it_loaded(rows: int, columns: int) -> None:
    """The map of an empty tensor has no empty axis, and nothing of it is in bounds."""
    text = _text()
    kernel, remarks = _lowered(text)
    assert "the kernel makes the map of this tensor" in remarks
    content = np.arange(1, 12 * 16 + 1, dtype=np.float32)
    before, after = np.full(32, -1, np.float32), np.full(32, -1, np.float32)
    sizes = np.array([rows, columns], np.int32)
    run(parse_kernel(text), (1,), [content, before, sizes])
    run(kernel, (1,), [content, after, sizes])
    np.testing.assert_array_equal(before, after)
    assert after.any() == (rows > 1 and columns > 0)


def test_rows_of_whole_pieces_are_stored_by_a_map() -> None:
    """Rows of 6 elements are not: hardware would write past their ends."""
    kernel, remarks = _lowered(STORED.replace("COLUMNS", "8"))
    assert "the kernel makes the map of this tensor" in remarks
    assert "tile.descriptor_store" in print_kernel(kernel)


def test_an_extent_that_is_known_is_as_it_is() -> None:
    kernel, _ = _lowered(_text().replace("(%x, %m, %n,", "(%x, %m, %wide,"))
    assert "arith.max" not in print_kernel(kernel)
    kernel, _ = _lowered(_text().replace("(%x, %m, %n,", "(%x, %wide, %wide,"))
    assert "tile.descriptor_of" not in print_kernel(kernel)  # the launcher makes this map


@pytest.mark.parametrize(
    ("text", "config", "reason"),
    [
        (_text(SAME), {}, "the kernel loads and stores through this descriptor"),
        (_text(pointer="%x"), {}, "the kernel accesses this tensor in other ways"),
        ("grid.wait", {}, "its launches may overlap"),
        (_text().replace("value = 16, type = i64", "value = 17, type = i64"), {}, ODD_ROWS),
        (STORED.replace("COLUMNS", "6"), {}, ODD_ROWS),
    ],
)
def test_what_goes_through_pointers_all_the_same(
    text: str, config: dict[str, int], reason: str
) -> None:
    if text == "grid.wait":
        text = _text("grid.wait\n  " + OTHER)
    kernel, remarks = _lowered(text, **config)
    assert f"tiles of this tensor go through pointers: {reason}" in remarks
    assert "tile.descriptor_load" not in print_kernel(kernel)

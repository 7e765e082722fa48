"""Descriptors made by a kernel: parameters where a launch knows the tensor, else pointers."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from aotc.ir.core import Kernel
from aotc.ir.params import TensorSource
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.verify import verify
from aotc.schedule.context import Schedule
from aotc.schedule.tensor_maps.lower_descriptors import lower_descriptors
from aotc.target import TARGETS
from aotc.verify.interpreter.run import run

HEAD = "kernel @k(%x: *fp32 {divisibility = 16}, %y: *fp32, %m: i32, %n: i32) {num_warps = 1} {\n"
SIZES = """\
  %four = arith.constant {value = 4, type = i32} : i32
  %wide = arith.mul(%n, %four) : i32
  %stride = arith.cast(%wide) {dtype = i64} : i64
  %program = tile.program_id {axis = 0} : i32
  %odd = arith.addptr(%x, %program) : *fp32
  %block = arith.mul(%program, %wide) : i32
  %moved = arith.addptr(%x, %block) : *fp32
  %less = arith.sub(%m, %block) : i32
  %back = arith.addptr(%x, %less) : *fp32
  %loaded = tile.load(%x, _, _) : fp32
  %number = arith.cast(%loaded) {dtype = i32} : i32
"""
COPY = """\
  %from = tile.descriptor_of(POINTER, ROWS, %n, %stride) {shape = [4, 8]} : desc<4x8xfp32>
  %rows = tile.descriptor_extent(%from) {axis = 0} : i32
  %step = tile.descriptor_stride(%from) {axis = 0} : i64
  %one = tile.descriptor_stride(%from) {axis = 1} : i64
  %both = arith.add(%step, %one) : i64
  %narrow = arith.cast(%both) {dtype = i32} : i32
  %asked = arith.sub(%narrow, %wide) : i32
  %zero = arith.sub(%rows, %m) : i32
  %v = tile.descriptor_load(%from, %asked, %zero) : tile<4x8xfp32>
  %again = tile.descriptor_of(POINTER, ROWS, %n, %stride) {shape = [4, 8]} : desc<4x8xfp32>
  %w = tile.descriptor_load(%again, %zero, %zero) : tile<4x8xfp32>
  %sum = arith.add(%v, %w) : tile<4x8xfp32>
  %to = tile.descriptor_of(%y, %m, %n, %stride) {shape = [4, 8]} : desc<4x8xfp32>
  tile.descriptor_store(%to, %sum, %asked, %zero)
  scf.return
}
"""


def _text(pointer: str = "%x", rows: str = "%m") -> str:
    return HEAD + SIZES + COPY.replace("POINTER", pointer).replace("ROWS", rows)


def _lowered(text: str, target: str, *, maps: bool = True) -> tuple[Kernel, list[str]]:
    kernel, schedule = parse_kernel(text), Schedule(TARGETS[target], map_pointers=maps)
    lower_descriptors(kernel, schedule)
    verify(kernel)
    printed = print_kernel(kernel)
    assert print_kernel(parse_kernel(printed)) == printed
    return kernel, schedule.remarks


@pytest.mark.parametrize(("target", "maps"), [("sm_80", True), ("sm_90a", False), ("sm_90a", True)])
def test_it_computes_what_it_computed(target: str, maps: bool) -> None:
    random = np.random.default_rng(3)
    for pointer, rows in itertools.product(("%x", "%moved"), (1, 4, 6)):
        text = _text(pointer)
        content = random.integers(-9, 9, 64 * 4).astype(np.float32)
        before, after = np.zeros_like(content), np.zeros_like(content)
        run(parse_kernel(text), (2,), [content, before, rows, 7])
        run(_lowered(text, target, maps=maps)[0], (2,), [content, after, rows, 7])
        np.testing.assert_array_equal(before, after)
        assert after.any() == (rows > 1)


def test_the_launch_describes_what_it_knows_each_tensor_once() -> None:
    kernel, remarks = _lowered(_text(), "sm_90a")
    tensors = [(info.name, info.tensor) for info in kernel.params if info.tensor is not None]
    assert tensors == [
        ("x.tensor", TensorSource("x", ("m", "n"), ("4 * n",))),
        ("y.tensor", TensorSource("y", ("m", "n"), ("4 * n",))),
    ]
    assert print_kernel(kernel).count("tile.descriptor_load(%x.tensor") == 2
    assert not remarks


def test_what_the_address_steps_along_is_an_axis() -> None:
    kernel, remarks = _lowered(_text("%moved"), "sm_90a")
    tensors = [info.tensor for info in kernel.params if info.tensor is not None]
    assert tensors[0] == TensorSource("x", ("2147483647", "m", "n"), ("4 * n", "4 * n"))
    text = print_kernel(kernel)
    assert "%x.tensor: desc<1x4x8xfp32>" in text
    assert text.count("{num_dropped = 1}") == 2
    assert not remarks
    assert kernel.guards == ("n % 4 == 0",)  # of %y, the stored tensor


def test_blocks_are_stored_along_such_axes() -> None:
    for access, kind in (("store", ""), ("reduce", ' {kind = "add"}')):
        text = _text("%moved").replace(
            "tile.descriptor_store(%to, %sum, %asked, %zero)",
            f"tile.descriptor_{access}(%from, %sum, %asked, %zero){kind}",
        )
        kernel, _ = _lowered(text, "sm_90a")
        assert f"tile.descriptor_{access}(%x.tensor" in print_kernel(kernel)
        content = np.random.default_rng(1).integers(-9, 9, 256).astype(np.float32)
        before, after = content.copy(), content.copy()
        run(parse_kernel(text), (2,), [before, np.zeros(256, np.float32), 2, 8])
        run(kernel, (2,), [after, np.zeros(256, np.float32), 2, 8])
        np.testing.assert_array_equal(before, after)
        assert not np.array_equal(after, content)


@pytest.mark.parametrize(
    ("pointer", "rows", "reason", "by_kernel"),
    [
        ("%odd", "%m", "its address is no multiple of 16 bytes", False),
        ("%back", "%m", "its address may step back", True),
        ("%x", "%program", "its extents and strides are not computed of arguments alone", True),
        ("%x", "%number", "its extents and strides are not computed of arguments alone", True),
    ],
)
def test_what_a_launch_does_not_know_the_kernel_maps_or_it_goes_through_pointers(
    pointer: str, rows: str, reason: str, by_kernel: bool
) -> None:
    kernel, remarks = _lowered(_text(pointer, rows), "sm_90a")
    assert [info.name for info in kernel.params if info.tensor is not None] == ["y.tensor"]
    text = print_kernel(kernel)
    by_pointers = len(re.findall(r"tile\.load\(.* : tile<4x8xfp32>", text))
    assert (text.count("tile.descriptor_of("), by_pointers) == ((2, 0) if by_kernel else (0, 2))
    assert "tile.descriptor_store(%y.tensor" in text
    assert len([remark for remark in remarks if reason in remark]) == 2
    assert len(remarks) == (4 if by_kernel else 2)


@pytest.mark.parametrize(("target", "maps"), [("sm_80", True), ("sm_90a", False)])
def test_without_maps_all_goes_through_pointers(target: str, maps: bool) -> None:
    kernel, remarks = _lowered(_text(), target, maps=maps)
    assert "desc" not in print_kernel(kernel)
    assert len(kernel.params) == 4
    assert not remarks


@pytest.mark.parametrize(
    ("columns", "guards"), [("%n", ("n % 4 == 0",)), ("%wide", ("4 * n % 4 == 0",))]
)
def test_rows_that_are_stored_to_end_at_whole_pieces(columns: str, guards: tuple[str, ...]) -> None:
    # Hardware stores 16 bytes at a time: a map with other rows would overwrite the bytes after them.
    text = _text().replace(
        "tile.descriptor_of(%y, %m, %n,", f"tile.descriptor_of(%y, %m, {columns},"
    )
    kernel, _ = _lowered(text, "sm_90a")
    assert kernel.guards == guards
    loads_only = re.sub(r"  tile.descriptor_store.*\n", "", text)
    assert not _lowered(loads_only, "sm_90a")[0].guards

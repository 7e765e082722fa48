"""Descriptors taken apart: parameters for what is asked, masked accesses without tensor copies."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.core import Kernel
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.verify import verify
from aotc.schedule.context import Schedule
from aotc.schedule.tensor_maps.lower_descriptors import lower_descriptors
from aotc.target import TARGETS
from aotc.verify.interpreter.run import InterpretError, run

TEXT = """\
kernel @k(%x: desc<4x8xfp32>, %y: desc<4x8xfp32, nan>, %i: i32) {num_warps = 1} {
  %unused = tile.descriptor_extent(%x) {axis = 0} : i32
  %n = tile.descriptor_extent(%x) {axis = 1} : i32
  %s = tile.descriptor_stride(%x) {axis = 0} : i64
  %one = tile.descriptor_stride(%x) {axis = 1} : i64
  %sum = arith.add(%s, %one) : i64
  %j = arith.cast(%sum) {dtype = i32} : i32
  %k = arith.sub(%j, %n) : i32
  %v = tile.descriptor_load(%y, %i, %k) : tile<4x8xfp32>
  tile.descriptor_store(%x, %v, %k, %i)
  tile.descriptor_reduce(%x, %v, %i, %i) {kind = "add"}
  scf.return
}
"""


def _lowered(target: str) -> Kernel:
    kernel = parse_kernel(TEXT)
    lower_descriptors(kernel, Schedule(TARGETS[target]))
    verify(kernel)
    printed = print_kernel(kernel)
    assert print_kernel(parse_kernel(printed)) == printed
    return kernel


def _arrays() -> list[np.ndarray | int]:
    random = np.random.default_rng(3)
    # Rows of 5 and 6 in 8: the sum of stride and 1, less the extent, is 4.
    x, y = (random.integers(-9, 9, (6, 8)).astype(np.float32)[:, :size] for size in (5, 6))
    return [x, y, 2]


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_it_computes_what_it_computed(target: str) -> None:
    before, after = _arrays(), _arrays()
    run(parse_kernel(TEXT), (1,), before)
    run(_lowered(target), (1,), after)
    np.testing.assert_array_equal(before[0], after[0])
    assert not np.array_equal(_arrays()[0], after[0])


def test_with_tensor_copies_only_what_is_asked_becomes_a_parameter() -> None:
    kernel = _lowered("sm_90a")
    assert [(info.name, info.source) for info in kernel.params] == [
        ("x", ""),
        ("y", ""),
        ("i", ""),
        ("x.shape.1", "x.shape[1]"),
        ("x.strides.0", "x.strides[0]"),
    ]
    assert [info.argument for info in kernel.params] == ["x", "y", "i", "x", "x"]
    text = print_kernel(kernel)
    assert "tile.descriptor_load" in text
    assert "descriptor_extent" not in text


def test_without_them_there_are_pointers_and_masks() -> None:
    kernel = _lowered("sm_80")
    assert [(info.name, info.source, info.divisibility) for info in kernel.params[:3]] == [
        ("x.address", "x", 16),
        ("y.address", "y", 16),
        ("i", "", 1),
    ]
    text = print_kernel(kernel)
    assert "desc" not in text
    assert "value = nanf" in text
    assert '{kind = "add", sem = "relaxed"}' in text


def test_a_kernel_without_descriptors_stays_as_it_is() -> None:
    text = "kernel @k(%n: i32) {num_warps = 1} {\n  scf.return\n}\n"
    for target in ("sm_80", "sm_90a"):
        kernel = parse_kernel(text)
        lower_descriptors(kernel, Schedule(TARGETS[target]))
        assert print_kernel(kernel) == text


@pytest.mark.parametrize(
    ("index", "array", "message"),
    [
        (0, np.zeros((6, 8), np.float16), "an array of float32 with 2 axes"),
        (0, np.zeros(8, np.float32), "an array of float32 with 2 axes"),
        (0, np.zeros((8, 6), np.float32).T, "whose last axis is dense"),
        (0, np.zeros((6, 9), np.float32), "multiples of 16"),
        (0, np.zeros((6, 8), np.float32)[:, 1:], "multiples of 16"),
        (0, 5, "an array for a descriptor"),
        (2, np.zeros((6, 8), np.float32), "a number for i32"),
    ],
)
def test_what_is_no_tensor_is_refused(index: int, array: object, message: str) -> None:
    args = _arrays()
    args[index] = array  # type: ignore[call-overload]
    with pytest.raises(InterpretError, match=message):
        run(parse_kernel(TEXT), (1,), args)

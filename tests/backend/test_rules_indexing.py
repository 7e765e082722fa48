"""Accesses to shared memory by computed addresses, lowered to LLVM IR and run in lockstep."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aotc.backend import assemble, emit_ptx
from aotc.ir.diagnostics import IRError
from aotc.ir.dialects import arith, gpu, indexing
from aotc.ir.layout import LinearLayout
from aotc.ir.types import I1, I32, SCALARS, ScalarType, TileType
from aotc.schedule.layout.layouts import default_blocked, row_major_shared, swizzled_shared
from aotc.target import TARGETS
from tests.backend.programs import NUMPY, Program, row_layout

RNG = np.random.default_rng(5)
INT_RANGE = np.iinfo(np.int32)


def _gather(
    element: ScalarType,
    shape: tuple[int, ...],
    layout: LinearLayout,
    axis: int,
    buffer: LinearLayout | None = None,
) -> Program:
    """Return a program that loads a tile and an index, and stores the gathered elements."""
    program = Program(1 << layout.in_bits("warp"))
    source = program.load(element, default_blocked(shape, program.num_warps))
    index = program.load(I32, layout)
    shared = buffer or row_major_shared(shape)
    alloc = program.add(gpu.SharedAlloc(element, shape, shared, offset_bytes=1024))
    program.add(gpu.SharedStore(source, alloc.out))
    program.add(gpu.Barrier())
    program.store(program.add(indexing.SharedGather(alloc.out, index, axis)).out)
    return program


def _numbers(name: str, shape: tuple[int, ...]) -> Any:
    return RNG.integers(0, 2 if name == "i1" else 100, shape).astype(NUMPY[name])


COPIES = LinearLayout(
    {
        "register": [(0, 2), (0, 0)],
        "lane": [(1, 0), (0, 1), (0, 0), (2, 0), (4, 0)],
        "warp": [(0, 0)],
    },
    (8, 4),
)


@pytest.mark.parametrize("name", SCALARS)
@pytest.mark.parametrize("axis", [0, 1])
def test_every_type_is_gathered_along_both_axes(name: str, axis: int) -> None:
    x, index = _numbers(name, (8, 4)), RNG.integers(0, 4 + 4 * (axis == 0), (8, 4), np.int32)
    for layout in (default_blocked((8, 4), 2), COPIES):
        (actual,) = _gather(SCALARS[name], (8, 4), layout, axis).run(x, index)
        assert (actual == np.take_along_axis(x, index, axis)).all()


@pytest.mark.parametrize(
    ("shape", "index_shape", "axis"),
    [((1,), (64,), 0), ((256,), (2,), 0), ((4, 2, 8), (4, 16, 8), 1), ((64, 1), (64, 4), 1)],
)
def test_an_index_may_be_longer_or_shorter(
    shape: tuple[int, ...], index_shape: tuple[int, ...], axis: int
) -> None:
    x, index = _numbers("fp32", shape), RNG.integers(0, shape[axis], index_shape, np.int32)
    (actual,) = _gather(SCALARS["fp32"], shape, default_blocked(index_shape, 2), axis).run(x, index)
    assert (actual == np.take_along_axis(x, index, axis)).all()


def test_no_index_leads_outside() -> None:
    x = _numbers("i16", (32,))
    index = np.resize(np.array([-1, 32, INT_RANGE.min, INT_RANGE.max], np.int32), 32)
    (actual,) = _gather(SCALARS["i16"], (32,), row_layout(32), 0).run(x, index)
    assert (actual == x[index % 32]).all()


def test_a_buffer_is_gathered_from_in_equal_steps() -> None:
    swizzled = swizzled_shared((8, 8), (1, 0), 2, 1, 4)
    program = _gather(SCALARS["fp32"], (8, 8), default_blocked((8, 8), 1), 0, swizzled)
    with pytest.raises(IRError, match="do not grow with the index in equal steps"):
        program.llvm_ir()


def _count(element: ScalarType, layout: LinearLayout, num_bins: int, *, masked: bool) -> Program:
    program = Program(1 << layout.in_bits("warp"))
    value = program.load(element, layout)
    mask = program.load(I1, layout) if masked else None
    bins = default_blocked((num_bins,), program.num_warps)
    zeros = program.add(arith.Constant(0, TileType(I32, (num_bins,), bins))).out
    buffer = program.add(
        gpu.SharedAlloc(I32, (num_bins,), row_major_shared((num_bins,)), offset_bytes=16)
    ).out
    program.add(gpu.SharedStore(zeros, buffer))
    program.add(gpu.Barrier())
    program.add(indexing.SharedCount(buffer, value, mask))
    program.add(gpu.Barrier())
    program.store(program.add(gpu.SharedLoad(buffer, bins)).out)
    return program


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("extent", "num_bins"), [(1, 1), (8, 64), (512, 16)])
@pytest.mark.parametrize("name", ["i32", "u32"])
def test_each_element_is_counted_once(name: str, extent: int, num_bins: int, masked: bool) -> None:
    x = RNG.integers(0, 2 * num_bins, extent).astype(NUMPY[name])
    x[-2:] = INT_RANGE.min if name == "i32" else 2**32 - 1
    mask = RNG.integers(0, 2, extent).astype(np.bool_)
    program = _count(SCALARS[name], row_layout(extent, 2), num_bins, masked=masked)
    (actual,) = program.run(x, *([mask] if masked else []))
    counted = x[mask] if masked else x
    assert actual.tolist() == [np.count_nonzero(counted == number) for number in range(num_bins)]


@pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))
def test_they_are_assembled_for_every_target(target: Any) -> None:
    for program in (
        _gather(SCALARS["bf16"], (8, 4), COPIES, 0),
        _count(I32, row_layout(512, 2), 16, masked=True),
    ):
        assert assemble(emit_ptx(program.llvm_ir(target), target), target)

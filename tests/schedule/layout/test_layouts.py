"""Named layouts against the figures of the PTX ISA and of Triton's documentation."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.ir.diagnostics import IRError
from aotc.ir.layout import LinearLayout
from aotc.schedule.layout.layouts import (
    blocked,
    blocked_for,
    default_blocked,
    dot_operand,
    mma_v2,
    nvmma_shared,
    replicated,
    row_major_shared,
    rows_in_registers,
    shared_among_warps,
    slice_of,
    swizzled_shared,
    wgmma_accumulator,
    wgmma_operand_a,
)

Fragment = Callable[[int, int, int], tuple[int, int]]


def owners(layout: LinearLayout) -> np.ndarray:
    """Return the last thread holding each element of a tile."""
    tile = np.full(prod(layout.shape), -1)
    for warp in range(layout.in_size("warp")):
        for lane in range(32):
            tile[layout.table("register", lane=lane, warp=warp)] = warp * 32 + lane
    return tile.reshape(layout.shape)


# ---- blocked ----------------------------------------------------------------------------------


def test_blocked_figure_of_one_tile():
    """Source: TritonGPUAttrDefs.td, BlockedEncodingAttr, example 1: 16x16 over two warps."""
    layout = blocked((16, 16), (2, 2), (8, 4), (1, 2), (1, 0))
    rows = owners(layout)
    assert rows[0].tolist() == [*np.repeat(range(4), 2), *np.repeat(range(32, 36), 2)]
    assert rows[1].tolist() == rows[0].tolist()
    assert rows[2].tolist() == [*np.repeat(range(4, 8), 2), *np.repeat(range(36, 40), 2)]
    assert rows[15].tolist() == [*np.repeat(range(28, 32), 2), *np.repeat(range(60, 64), 2)]


def test_blocked_figure_of_a_larger_tile():
    """Source: the same, example 2: 32x32 repeats the pattern in both axes."""
    small = owners(blocked((16, 16), (2, 2), (8, 4), (1, 2), (1, 0)))
    layout = blocked((32, 32), (2, 2), (8, 4), (1, 2), (1, 0))
    np.testing.assert_array_equal(owners(layout), np.tile(small, (2, 2)))
    # Registers of a thread: its own box first, then the repetition along the columns.
    assert layout.coords_table("register")[:5] == [(0, 0), (0, 1), (1, 0), (1, 1), (0, 16)]


def test_blocked_broadcasts_over_a_smaller_tile():
    layout = blocked((2, 8), (1, 4), (8, 4), (2, 2), (1, 0))
    assert layout.in_size("register") == 4
    assert layout.zero_mask("lane") == 0b11010
    assert layout.zero_mask("warp") == 0b11
    assert layout.is_surjective()


def test_blocked_wider_per_thread_than_the_tile_drops_registers():
    layout = blocked((2,), (8,), (32,), (4,), (0,))
    assert layout.in_size("register") == 2
    assert layout.zero_mask("lane") == 31


@given(st.data())
def test_blocked_holds_the_tile_without_copies_in_a_thread(data: st.DataObject):
    rank = data.draw(st.integers(1, 3))
    shape = tuple(1 << data.draw(st.integers(0, 5)) for _ in range(rank))
    per_thread = tuple(1 << data.draw(st.integers(0, 3)) for _ in range(rank))
    order = tuple(data.draw(st.permutations(range(rank))))
    layout = blocked_for(shape, per_thread, data.draw(st.sampled_from([1, 2, 4, 8])), order)
    assert layout.shape == shape
    assert layout.is_surjective()
    assert layout.in_bits("lane") == 5
    elements = layout.table("register", lane=7)
    assert len(set(elements)) == len(elements)
    fastest = order[0]
    assert layout.num_consecutive("register", order) >= min(per_thread[fastest], shape[fastest])


def test_default_blocked_is_coalesced_along_the_last_axis():
    layout = default_blocked((64, 64), 4)
    assert layout == blocked((64, 64), (1, 1), (1, 32), (2, 2), (1, 0))
    assert default_blocked((1024,), 4) == blocked((1024,), (1,), (32,), (4,), (0,))
    assert default_blocked((), 4) == replicated((), 4)


@pytest.mark.parametrize(
    "arguments",
    [
        ((16,), (1,), (16,), (4,), (0,)),
        ((16,), (1, 1), (32,), (4,), (0,)),
        ((16, 16), (1, 1), (1, 32), (4, 1), (0, 0)),
    ],
)
def test_blocked_refuses_what_is_no_warp_or_no_order(arguments: tuple[tuple[int, ...], ...]):
    with pytest.raises(IRError):
        blocked(*arguments)


def test_replicated_and_slice():
    layout = replicated((4, 2), 2)
    assert layout.table("register", lane=31, warp=1) == list(range(8))
    parent = blocked((16, 16), (2, 2), (8, 4), (1, 2), (1, 0))
    rows = slice_of(parent, 1)
    assert rows.shape == (16,)
    assert rows.table("register", lane=5) == [2, 3]
    assert rows.zero_mask("lane") == 0b00011
    assert rows.zero_mask("warp") == 0b1


# ---- tensor-core fragments --------------------------------------------------------------------
# The formulas are those of the PTX ISA's "Matrix Fragments for mma.m16n8k*", with `g` the
# groupID (lane / 4), `t` the threadID_in_group (lane % 4) and `i` the index in the fragment.


def check_fragment(layout: LinearLayout, num_registers: int, formula: Fragment) -> None:
    assert layout.in_size("register") == num_registers
    for lane in range(32):
        expected = [formula(lane >> 2, lane & 3, i) for i in range(num_registers)]
        assert layout.coords_table("register", lane=lane) == expected


def test_rows_in_registers():
    layout = rows_in_registers((4, 16, 8), 2)
    assert layout.bases("register") == ((0, 8, 0), (1, 0, 0), (2, 0, 0))
    assert layout.bases("lane") == ((0, 0, 1), (0, 0, 2), (0, 0, 4), (0, 1, 0), (0, 2, 0))
    assert layout.bases("warp") == ((0, 4, 0),)
    assert rows_in_registers((4,), 1).bases("register") == ((1,), (2,))


def test_warps_get_a_share_of_many_copies():
    copies = default_blocked((64, 16), 1).with_columns("warp", (0, 0))
    assert copies.in_bits("register") == 5
    shares = shared_among_warps(copies, 5)
    assert shares.is_bijective()
    assert shares.columns("register") == copies.columns("register")[:3]
    assert shared_among_warps(copies, 4) == copies


def test_mma_accumulator():
    check_fragment(
        mma_v2((16, 8), (1, 1)), 4, lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1))
    )


A_FRAGMENTS: dict[str, tuple[int, int, int, Fragment]] = {
    "m16n8k8 f16": (16, 8, 4, lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1))),
    "m16n8k16 f16": (
        *(16, 16, 8),
        lambda g, t, i: (
            g if 0 <= i < 2 or 4 <= i < 6 else g + 8,
            t * 2 + (i & 1) + (8 if i >= 4 else 0),
        ),
    ),
    "m16n8k4 tf32": (32, 4, 2, lambda g, t, i: (g if i == 0 else g + 8, t)),
    "m16n8k8 tf32": (
        *(32, 8, 4),
        lambda g, t, i: (g if i in (0, 2) else g + 8, t if i in (0, 1) else t + 4),
    ),
    "m16n8k16 s8": (8, 16, 8, lambda g, t, i: (g if i < 4 else g + 8, t * 4 + (i & 3))),
    "m16n8k32 s8": (
        *(8, 32, 16),
        lambda g, t, i: (
            g if 0 <= i < 4 or 8 <= i < 12 else g + 8,
            t * 4 + (i & 3) + (16 if i >= 8 else 0),
        ),
    ),
}

B_FRAGMENTS: dict[str, tuple[int, int, int, Fragment]] = {
    "m16n8k8 f16": (16, 8, 2, lambda g, t, i: (t * 2 + i, g)),
    "m16n8k16 f16": (16, 16, 4, lambda g, t, i: (t * 2 + (i & 1) + (0 if i < 2 else 8), g)),
    "m16n8k4 tf32": (32, 4, 1, lambda g, t, i: (t, g)),
    "m16n8k8 tf32": (32, 8, 2, lambda g, t, i: (t if i == 0 else t + 4, g)),
    "m16n8k16 s8": (8, 16, 4, lambda g, t, i: (t * 4 + (i & 3), g)),
    "m16n8k32 s8": (8, 32, 8, lambda g, t, i: (t * 4 + (i & 3) + (0 if i < 4 else 16), g)),
}


@pytest.mark.parametrize("name", A_FRAGMENTS)
def test_mma_operand_a(name: str):
    bits, k, registers, formula = A_FRAGMENTS[name]
    check_fragment(dot_operand(0, (16, k), (1, 1), bits), registers, formula)


@pytest.mark.parametrize("name", B_FRAGMENTS)
def test_mma_operand_b(name: str):
    bits, k, registers, formula = B_FRAGMENTS[name]
    check_fragment(dot_operand(1, (k, 8), (1, 1), bits), registers, formula)


@given(st.sampled_from([8, 16, 32]), st.integers(0, 2), st.integers(0, 2), st.integers(0, 2))
def test_operands_meet_the_accumulator(bits: int, m_log2: int, n_log2: int, k_log2: int):
    """A warp holds the rows of A and columns of B for its accumulators."""
    m, n, k = 32 << m_log2, 32 << n_log2, 32 << k_log2
    warps = (2, 4)
    acc = mma_v2((m, n), warps)
    a, b = dot_operand(0, (m, k), warps, bits), dot_operand(1, (k, n), warps, bits)
    for warp in range(8):

        def held(layout: LinearLayout, axis: int, warp: int = warp) -> set[int]:
            tables = (layout.coords_table("register", lane=i, warp=warp) for i in range(32))
            return {coords[axis] for table in tables for coords in table}

        assert held(acc, 0) == held(a, 0)
        assert held(acc, 1) == held(b, 1)
        assert held(a, 1) == held(b, 0) == set(range(k))


@pytest.mark.parametrize("n", [8, 16, 64, 128, 256])
def test_wgmma_accumulator(n: int):
    """Source: PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16", figure of D."""
    layout = wgmma_accumulator((64, n), (1, 1))
    assert layout.in_size("register") == n // 2
    for warp in range(4):
        for lane in range(32):
            g, t = lane >> 2, lane & 3
            expected = [
                (16 * warp + g + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * t + i % 2)
                for i in range(n // 2)
            ]
            assert layout.coords_table("register", lane=lane, warp=warp) == expected


def test_wgmma_accumulator_over_warpgroups():
    layout = wgmma_accumulator((128, 256), (2, 1))
    assert layout.bases("warp") == ((16, 0), (32, 0), (64, 0))
    assert layout.in_size("register") == 128
    assert wgmma_accumulator((64, 256), (1, 2)).bases("warp") == ((16, 0), (32, 0), (0, 128))


@pytest.mark.parametrize(("bits", "k"), [(32, 8), (16, 16), (8, 32)])
def test_wgmma_operand_a_is_the_mma_fragment_in_each_warp(bits: int, k: int):
    layout = wgmma_operand_a((64, k), (1, 1), bits)
    fragment = dot_operand(0, (16, k), (1, 1), bits)
    for warp in range(4):
        for lane in (0, 7, 31):
            rows = [(16 * warp + m, col) for m, col in fragment.coords_table("register", lane=lane)]
            assert layout.coords_table("register", lane=lane, warp=warp) == rows


# ---- shared memory ----------------------------------------------------------------------------


def test_row_major_shared():
    layout = row_major_shared((4, 8))
    assert layout.coords_table("offset") == [(i // 8, i % 8) for i in range(32)]
    columns_first = row_major_shared((4, 8), (0, 1))
    assert columns_first.coords_table("offset") == [(i % 4, i // 4) for i in range(32)]


@pytest.mark.parametrize(
    ("vec", "per_phase", "max_phase"), [(1, 1, 4), (1, 2, 4), (2, 1, 4), (4, 2, 8), (8, 1, 8)]
)
def test_swizzled_shared(vec: int, per_phase: int, max_phase: int):
    rows, cols = 16, 32
    layout = swizzled_shared((rows, cols), (1, 0), vec, per_phase, max_phase)
    inverse = layout.invert()
    for row in range(rows):
        for col in range(cols):
            phase = row // per_phase % max_phase
            swizzled = ((col // vec) ^ phase) * vec + col % vec
            offset = row * cols + swizzled % cols
            assert inverse.apply(dim0=row, dim1=col) == (offset,)


def test_swizzled_shared_figure():
    """Source: TritonGPUAttrDefs.td, SwizzledSharedEncodingAttr, vec=1, perPhase=1, maxPhase=4."""
    layout = swizzled_shared((4, 4), (1, 0), 1, 1, 4)
    tile = [4 * r + c for r, c in layout.coords_table("offset")]
    assert tile == [0, 1, 2, 3, 5, 4, 7, 6, 10, 11, 8, 9, 15, 14, 13, 12]


@pytest.mark.parametrize("swizzle_bytes", [32, 64, 128])
@pytest.mark.parametrize("element_bits", [8, 16, 32])
@pytest.mark.parametrize("axes", ["row-major", "transposed"])
def test_nvmma_shared_is_the_address_swizzle(swizzle_bytes: int, element_bits: int, axes: str):
    """Bits 4.. of the byte address are XORed with bits 7.., as many as the mode has chunks."""
    transposed = axes == "transposed"
    element_bytes = element_bits // 8
    rows, row_elems = 32, swizzle_bytes // element_bytes
    slices = 2
    shape = (slices * row_elems, rows) if transposed else (rows, slices * row_elems)
    layout = nvmma_shared(shape, element_bits, swizzle_bytes, transposed=transposed)
    mask = (swizzle_bytes // 16 - 1) << 4
    for offset in range(0, layout.in_size("offset"), 3):
        address = offset * element_bytes
        plain = (address ^ (address >> 3 & mask)) // element_bytes
        part, rest = divmod(plain, rows * row_elems)
        row, col = divmod(rest, row_elems)
        coords = (row, part * row_elems + col)
        assert layout.apply(offset=offset) == (coords[::-1] if transposed else coords)


def test_nvmma_shared_figure_of_128_bytes():
    """Source: PTX ISA, "Tensor swizzling modes", 128B: row r keeps 16-byte chunk c at c ^ r."""
    layout = nvmma_shared((8, 64), 16, 128)
    chunks = [[layout.apply(offset=64 * r + 8 * c)[1] // 8 for c in range(8)] for r in range(8)]
    assert chunks == [[c ^ r for c in range(8)] for r in range(8)]


def test_nvmma_shared_keeps_leading_axes_outside():
    layout = nvmma_shared((4, 8, 64), 16, 128)
    assert layout.apply(offset=512) == (1, 0, 0)


def test_nvmma_shared_refuses_narrow_rows_and_other_swizzles():
    with pytest.raises(IRError, match="rows of 128 bytes"):
        nvmma_shared((8, 32), 16, 128)
    with pytest.raises(IRError, match="32, 64 or 128"):
        nvmma_shared((8, 64), 16, 16)

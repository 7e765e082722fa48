"""Fragments against the ISA's tables, spelled out as it spells them, and against each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.schedule.layout.layouts import dot_operand, mma_v2
from aotc.verify.emulator.mma.fragments import (
    Fragment,
    accumulator,
    join_bits,
    operand_a,
    operand_b,
    split_bits,
)

FRAGMENTS = [
    *(
        operand_a(16, k, bits)
        for bits, k in ((16, 8), (16, 16), (8, 16), (8, 32), (32, 4), (32, 8))
    ),
    *(operand_a(16, k, bits) for bits, k in ((64, 4), (64, 8), (64, 16), (4, 64), (1, 256))),
    *(operand_a(8, k, bits) for bits, k in ((64, 4), (8, 16), (4, 32), (1, 128))),
    *(operand_b(k, bits) for bits, k in ((16, 8), (16, 16), (8, 32), (32, 8), (64, 16), (1, 128))),
    *(accumulator(16, n, bits) for n in (8, 24, 256) for bits in (16, 32)),
    *(accumulator(8, 8, bits) for bits in (32, 64)),
]


def _places(fragment: Fragment) -> dict[tuple[int, int, int], tuple[int, int]]:
    return {
        index: divmod(int(position), fragment.cols)
        for index, position in np.ndenumerate(fragment.positions)
    }


@pytest.mark.parametrize("fragment", FRAGMENTS, ids=lambda f: f"{f.rows}x{f.cols}b{f.element_bits}")
def test_every_element_is_held_once(fragment: Fragment) -> None:
    assert sorted(fragment.positions.ravel()) == list(range(fragment.rows * fragment.cols))


def test_a_of_m16n8k16_is_the_isas() -> None:
    """a_i: row is the group for i in 0, 1, 4, 5, else + 8; column tig*2 + (i & 1), + 8 from 4."""
    for (register, lane, part), position in _places(operand_a(16, 16, 16)).items():
        i = register * 2 + part
        row = (lane >> 2) + (0 if i in (0, 1, 4, 5) else 8)
        assert position == (row, (lane % 4) * 2 + (i & 1) + (8 if i >= 4 else 0))


def test_a_of_fp64_m16n8k16_is_the_isas() -> None:
    """a_i: row is the group for even i, else + 8; column i*2 + tig for even i, else i*2 - 2 + tig."""
    for (i, lane, _), position in _places(operand_a(16, 16, 64)).items():
        col = i * 2 - (2 if i % 2 else 0) + lane % 4
        assert position == ((lane >> 2) + (8 if i % 2 else 0), col)


def test_a_of_int8_m16n8k32_is_the_isas() -> None:
    """a_i: row is the group for i below 4 and in 8 to 11; column tig*4 + (i & 3), + 16 from 8."""
    for (register, lane, part), position in _places(operand_a(16, 32, 8)).items():
        i = register * 4 + part
        row = (lane >> 2) + (0 if i < 4 or 8 <= i < 12 else 8)
        assert position == (row, (lane % 4) * 4 + (i & 3) + (16 if i >= 8 else 0))


def test_b_of_int8_m16n8k32_is_the_isas() -> None:
    """b_i: row is tig*4 + (i & 3), + 16 from 4; column is the group."""
    for (register, lane, part), position in _places(operand_b(32, 8)).items():
        i = register * 4 + part
        assert position == ((lane % 4) * 4 + (i & 3) + (16 if i >= 4 else 0), lane >> 2)


def test_b_of_tf32_m16n8k8_is_the_isas() -> None:
    for (i, lane, _), position in _places(operand_b(8, 32)).items():
        assert position == (lane % 4 + 4 * i, lane >> 2)


def test_c_of_m16n8_is_the_isas() -> None:
    """c_i: row is the group for i in 0, 1, else + 8; column tig*2 + (i & 1)."""
    for (i, lane, _), position in _places(accumulator(16, 8, 32)).items():
        assert position == ((lane >> 2) + (8 if i >= 2 else 0), (lane % 4) * 2 + (i & 1))
    for (register, lane, part), position in _places(accumulator(16, 8, 16)).items():
        assert position == ((lane >> 2) + 8 * register, (lane % 4) * 2 + part)


@pytest.mark.parametrize(("bits", "k"), [(16, 16), (8, 32), (32, 8)])
def test_the_compilers_layouts_say_the_same(bits: int, k: int) -> None:
    width = 32 // bits
    for operand, fragment in enumerate((operand_a(16, k, bits), operand_b(k, bits))):
        layout = dot_operand(operand, (fragment.rows, fragment.cols), (1, 1), bits)
        for (register, lane, part), position in _places(fragment).items():
            assert layout.apply(register=register * width + part, lane=lane) == position
    layout = mma_v2((16, 8), (1, 1))
    for (register, lane, _), position in _places(accumulator(16, 8, 32)).items():
        assert layout.apply(register=register, lane=lane) == position


@given(st.sampled_from(FRAGMENTS), st.integers(0, 2**32 - 1), st.integers(1, 3))
def test_gather_undoes_scatter(fragment: Fragment, seed: int, warps: int) -> None:
    bits = fragment.element_bits
    if bits < 8:
        return
    rng = np.random.default_rng(seed)
    shape = (warps, fragment.rows, fragment.cols)
    elements = rng.integers(0, 1 << bits, shape, f"u{bits // 8}")
    registers = fragment.scatter(elements)
    assert registers.shape == (warps, fragment.num_registers, 32)
    assert registers.dtype.itemsize * 8 == fragment.register_bits
    np.testing.assert_array_equal(fragment.gather(registers), elements)


def test_bits_are_cut_from_the_low_end() -> None:
    word = np.array([0x87654321], np.uint32)
    assert split_bits(word, 4).tolist() == [[1, 2, 3, 4, 5, 6, 7, 8]]
    assert split_bits(word, 16).tolist() == [[0x4321, 0x8765]]
    assert split_bits(word, 1)[0, :8].tolist() == [1, 0, 0, 0, 0, 1, 0, 0]
    assert join_bits(split_bits(word, 8), 8).tolist() == word.tolist()

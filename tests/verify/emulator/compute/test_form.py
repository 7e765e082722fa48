"""Modifiers and operands as rules see them."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.verify.emulator.compute.form import TYPES, Form, flatten, rule
from aotc.verify.emulator.compute.registry import COMPUTES
from aotc.verify.emulator.errors import Unsupported
from aotc.verify.emulator.syntax import Immediate, Instruction, Register, Vector
from tests.support.ptx_compute import compute, instruction, words


def form(mnemonic: str) -> Form:
    return Form(instruction(mnemonic, []))


def test_modifiers_are_taken_once_and_leftovers_refused() -> None:
    parsed = form("add.rn.ftz.sat.f32")
    assert parsed.type.name == "f32"
    assert parsed.choice("rz", "rn") == "rn"
    assert parsed.flag("ftz")
    assert not parsed.flag("ftz")
    with pytest.raises(Unsupported, match=r"modifier \.sat"):
        parsed.finish()
    assert parsed.flag("sat")
    parsed.finish()


def test_a_required_choice() -> None:
    assert form("add.f32").choice("rn", default="rn") == "rn"
    with pytest.raises(Unsupported, match=r"expected one of \.rn, \.rz"):
        form("fma.f32").choice("rn", "rz")


def test_packed_types_know_their_element() -> None:
    assert TYPES["bf16x2"].element is TYPES["bf16"]
    assert TYPES["e4m3x2"].element is TYPES["e4m3"]
    assert TYPES["s16x2"].element.signed
    assert TYPES["f32"].element is TYPES["f32"]


def test_vectors_are_flattened() -> None:
    a, b, c = (Register(f"%r{i}", 32, i) for i in range(3))
    assert flatten((a, Vector((b, c)), Immediate(1))) == [a, b, c, Immediate(1)]


def test_a_kind_has_one_rule() -> None:
    with pytest.raises(ValueError, match="add has two rules for int types"):
        rule("int", "add", sources=2)(lambda _: np.add)


def test_refusals_name_the_unsupported_part() -> None:
    with pytest.raises(Unsupported, match=r"type \.pred"):
        compute("add.pred", np.ones(3, bool), np.ones(3, bool))
    with pytest.raises(Unsupported, match="no type"):
        compute("add.rn", words(32), words(32))
    with pytest.raises(Unsupported, match="expected 2 sources, got 1"):
        compute("add.s32", words(32))
    with pytest.raises(Unsupported, match=r"modifier \.huge"):
        compute("add.huge.s32", words(32), words(32))


def test_a_constant_has_the_read_width() -> None:
    register, wide = Register("%f", 32, 0), Register("%fd", 64, 0)
    single = Immediate(0x3F800000, 32)
    made = Instruction("add", ("f64",), (wide, wide, single), None, 1, "")
    with pytest.raises(Unsupported, match="a constant of 32 bits where 64 are read"):
        COMPUTES["add"](made)
    one = np.full(3, 0x3F800000, np.uint32)
    # `1.0` is a double, which PTX rounds to the type of the instruction.
    for constant in (single, Immediate(0x3FF0000000000000, 64)):
        made = Instruction("add", ("f32",), (register, register, constant), None, 1, "")
        got = COMPUTES["add"](made)(one, np.asarray(constant.value, np.uint64))
        np.testing.assert_array_equal(got, np.full(3, 0x40000000, np.uint32))


@pytest.mark.parametrize("shape", [(), (1,), (33,), (5, 32)])
def test_arrays_of_any_shape(shape) -> None:
    a = np.full(shape, 0x3F803F80, np.uint32)
    for mnemonic, count in (
        ("add.s32", 2), ("fma.rn.f32", 3), ("add.rz.f32", 2), ("max.f32", 2), ("fma.rn.bf16x2", 3),
        ("prmt.b32", 3), ("cvt.rn.bf16x2.f32", 2), ("cvt.rn.satfinite.e4m3x2.f32", 2),
        ("div.rn.f32", 2), ("ex2.approx.ftz.f32", 1), ("popc.b32", 1), ("lop3.b32", 3),
    ):  # fmt: skip
        extra = [0x96] if mnemonic.startswith("lop3") else []
        assert np.shape(compute(mnemonic, *[a] * count, *extra)) == shape
    doubles = a.astype(np.uint64) << np.uint64(32)
    assert np.shape(compute("fma.rn.f64", doubles, doubles, doubles, target=64)) == shape

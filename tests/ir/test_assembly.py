"""The registers of assembly, and the text with other names for them."""

from __future__ import annotations

import pytest

from aotc.ir.assembly import AssemblyError, Register, check, elements_per_register, substituted
from aotc.ir.types import BF16, FP8E5, FP16, FP32, FP64, I1, I8, I32, I64, PointerType


@pytest.mark.parametrize(
    ("element", "pack", "count"),
    [
        (I8, 1, 1),
        (I8, 2, 2),
        (I8, 4, 4),
        (FP8E5, 8, 4),
        (FP16, 1, 1),
        (BF16, 2, 2),
        (FP16, 8, 2),
        (I32, 4, 1),
        (FP64, 4, 1),
        (PointerType(I8), 4, 1),
    ],
)
def test_what_shares_a_register(element, pack, count) -> None:
    assert elements_per_register(element, pack) == count


def test_registers_come_in_order() -> None:
    registers = check("", "=&r, =r,f,f,f,f,r,~{memory}", [FP32, I8], [FP16], 4)
    assert registers.outputs == (Register("r", FP16, 0, 0, 2), Register("r", FP16, 0, 2, 2))
    singles = tuple(Register("f", FP32, 0, position, 1) for position in range(4))
    assert registers.inputs == (*singles, Register("r", I8, 1, 0, 4))
    assert registers.constraints == "=&r,=r,f,f,f,f,r,~{memory}"


def test_widths() -> None:
    registers = check(
        "", "=l,h,r,l,d,r,l,r", [I8, I8, I8, FP64, I1, PointerType(I8), FP16], [I64], 1
    )
    bit_widths = [register.used_bits for register in registers.inputs]
    assert bit_widths == [8, 8, 8, 64, 8, 64, 16]
    assert [register.bits for register in registers.inputs] == [16, 32, 64, 64, 32, 64, 32]


def test_a_tied_input_has_the_register_of_its_output() -> None:
    (register,) = check("", "=f,=r,1", [I32], [FP32, I32], 1).inputs
    assert (register.letter, register.tied) == ("r", 1)


@pytest.mark.parametrize("text", ["$", "$ 0", "$a", "${0:x}", "${}", "$2", "${7}", "a\0"])
def test_text_that_llvm_does_not_take(text: str) -> None:
    with pytest.raises(AssemblyError):
        check(text, "=r,r", [I32], [I32], 1)


def test_text_with_other_names() -> None:
    text = "mov $0, ${1}; // $$0 $$$1"
    check(text, "=r,r", [I32], [I32], 1)
    assert substituted(text, lambda number: f"%x{number}") == "mov %x0, %x1; // $0 $%x1"

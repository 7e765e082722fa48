"""Inline assembly: instances, their registers, and assembly for every target."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.backend import assemble, emit_ptx
from aotc.ir.dialects.assembly import InlineAsm, VolatileAsm
from aotc.ir.layout import LinearLayout
from aotc.ir.types import BF16, FP16, FP32, FP64, I1, I8, I16, I32, I64, U8, ScalarType
from aotc.target import TARGETS
from aotc.verify.emulator.run import emulate
from tests.backend.programs import NUMPY, SM_90, Program, row_layout

NAMES = ("sm_80", "sm_90a", "sm_100a")


def ran(program: Program, *arrays):
    """Return the emulator's outputs of a program."""
    ptx = emit_ptx(program.llvm_ir(), SM_90)
    outs = [np.zeros(shape, NUMPY[pointer.type.pointee.name]) for pointer, shape in program.outputs]
    arrays_left, outs_left = iter(arrays), iter(outs)
    args = [
        next(arrays_left) if arg in program.inputs else next(outs_left) for arg in program.body.args
    ]
    emulate(ptx, 1, args)
    return outs


@pytest.mark.emulated
@pytest.mark.parametrize(
    ("element", "constraints", "pack"),
    [
        (I8, "=h,h", 1),
        (I8, "=r,r", 1),
        (I8, "=l,l", 1),
        (I8, "=h,h", 2),
        (U8, "=r,r", 4),
        (U8, "=r,=r,r,r", 8),
        (I1, "=r,r", 1),
        (FP16, "=h,h", 1),
        (FP16, "=r,r", 2),
        (BF16, "=r,=r,r,r", 4),
        (I16, "=l,0", 1),
        (I32, "=&r,0,~{memory}", 1),
        (FP32, "=f,f", 1),
        (FP32, "=r,f", 1),
        (FP32, "=f,=f,r,r", 2),
        (I32, "=f,r", 1),
        (FP64, "=d,d", 1),
        (FP64, "=l,d", 1),
        (I64, "=l,l", 1),
    ],
)
@pytest.mark.parametrize("num_elems", [32, 256])
def test_elements_pass_through(
    element: ScalarType, constraints: str, pack: int, num_elems: int
) -> None:
    letters = [part.lstrip("=&") for part in constraints.split(",")]
    count = len(letters) // 2
    bits = {"h": 16, "r": 32, "l": 64, "f": 32, "d": 64}[letters[0]]
    text = " ".join(f"mov.b{bits} ${index}, ${index + count};" for index in range(count))
    program = Program()
    x = program.load(element, row_layout(num_elems))
    program.store(program.add(InlineAsm(text, constraints, (element,), pack, [x])).outs[0])
    data = np.frombuffer(np.random.default_rng(3).bytes(num_elems * element.size_bytes), np.uint8)
    data = data & 1 if element.is_bool else data
    (output,) = ran(program, data.view(NUMPY[element.name]).copy())
    assert output.tobytes() == data.tobytes()
    for name in NAMES:
        assemble(emit_ptx(program.llvm_ir(TARGETS[name]), TARGETS[name]), TARGETS[name])


def test_one_instance_for_pack_registers() -> None:
    program = Program()
    x = program.load(FP16, row_layout(256))
    outs = program.add(InlineAsm("{ $0 $1 $2 }", "=r,=l,r", (FP16, I64), 1, [x])).outs
    assert len(outs) == 2
    text = program.llvm_ir()
    assert text.count('call {i32, i64} asm "{ $0 $1 $2 }", "=r,=l,r"(i32') == 8
    assert "sideeffect" not in text.split("{ $0")[1].split("\n")[0]


@pytest.mark.emulated
def test_what_is_missing_to_a_group_repeats_the_last() -> None:
    program = Program()
    x = program.load(I32, row_layout(64))
    text = "add.s32 $0, $5, 0; mov.b32 $1, $4; mov.b32 $2, $4; mov.b32 $3, $4;"
    op = program.add(InlineAsm(text, "=&r,=&r,=&r,=&r,r,r,r,r", (I32,), 4, [x]))
    program.store(op.outs[0])
    data = np.arange(64, dtype=np.int32)
    (output,) = ran(program, data)
    assert output.reshape(-1, 2).tolist() == data.reshape(-1, 2)[:, ::-1].tolist()
    assert program.llvm_ir().count("add.s32 $0, $5") == 1


@pytest.mark.emulated
def test_text_keeps_its_characters() -> None:
    program = Program()
    text = '// "a" \\ $$ é\n\tmov.u32 $0, 7;'
    program.store(program.add(InlineAsm(text, "=r", (I32,), 1, [])).outs[0])
    ptx = emit_ptx(program.llvm_ir(), SM_90)
    assert '// "a" \\ $ é\n\tmov.u32' in ptx
    assert ran(program)[0].item() == 7


def test_pure_instances_are_written_once() -> None:
    program = Program()
    copies = LinearLayout(
        {"register": [(0,), (0,)], "lane": [(1 << i,) for i in range(5)], "warp": []}, (32,)
    )
    x = program.load(I32, copies)
    for cls in (InlineAsm, VolatileAsm):
        program.store(program.add(cls(f"// {cls.__name__}", "=r,r", (I32,), 1, [x])).outs[0])
    text = program.llvm_ir()
    assert text.count("// InlineAsm") == 1
    assert text.count('call i32 asm sideeffect "// VolatileAsm"') == 4

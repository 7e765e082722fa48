"""Instructions of one kind run as one step, without a visible difference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.verify.emulator.engine import decode
from aotc.verify.emulator.engine.fused_steps import issues_of
from aotc.verify.emulator.engine.registers import Allocation, RegisterFile
from aotc.verify.emulator.text.cfg import analyse, build_cfg
from aotc.verify.emulator.text.parse import parse_module
from tests.support.extent import examples
from tests.support.ptx_kernel import collect, faults

_OPCODES = ("add.s32", "sub.s32", "xor.b32", "max.s32", "mul.f32", "add.f32")
_REGISTERS = range(2, 12)
_COUNT = 10


def _issues(body: str) -> list[list[str]]:
    text = f".entry k() {{ .reg .b32 %r<99>; .reg .b16 %h<9>; .reg .pred %p<9>; {body} ret; }}"
    instructions = parse_module(text).kernels["k"].instructions
    cfg = build_cfg(instructions)
    file = RegisterFile(Allocation(instructions, cfg, analyse(instructions, cfg)), 32)
    issues = [
        [instruction.text for instruction in issue] for issue in issues_of(instructions[:-1], file)
    ]
    assert sum(map(len, issues)) == len(instructions) - 1
    return issues


def test_products_share_a_step_and_sums_of_them_another() -> None:
    loads = "".join(f"mov.b32 %r{i}, %tid.x;" for i in range(8))
    products = "".join(
        f"mul.f32 %r{10 + i}, %r{i}, %r7; add.f32 %r{20 + i}, %r{10 + i}, %r{i};" for i in range(7)
    )
    # A later use keeps the row live, so no other register waits for it.
    uses = "".join(f"st.shared.v2.b32 [0], {{%r{20 + i}, %r{i}}};" for i in range(7))
    issues = [issue for issue in _issues(loads + products + uses) if len(issue) > 1]
    assert [len(issue) for issue in issues] == [7, 7]
    assert [issue[0].split()[0] for issue in issues] == ["mul.f32", "add.f32"]


def test_a_chain_has_a_step_each() -> None:
    chain = "".join(f"add.s32 %r{i + 1}, %r{i}, %r{i};" for i in range(6))
    assert all(len(issue) == 1 for issue in _issues(f"mov.b32 %r0, 1; {chain}"))


@pytest.mark.parametrize(
    "between",
    ["st.shared.b32 [0], %r1;", "@%p1 add.s32 %r1, %r0, 1;", "mov.b64 {%r1, %r2}, 7;"],
)
def test_instructions_with_effects_stay_in_place(between: str) -> None:
    head = "mov.b32 %r0, %tid.x; setp.eq.s32 %p1, %r0, 3; add.s32 %r1, %r0, %r0;"
    issues = _issues(f"{head} add.s32 %r4, %r0, %r0; {between} add.s32 %r5, %r0, %r0;")
    texts = [" ".join(issue) for issue in issues]
    assert texts[-1] == "add.s32 %r5, %r0, %r0"
    assert texts[-2] == between.rstrip(";")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(_OPCODES),
            st.sampled_from(_REGISTERS),
            st.sampled_from(_REGISTERS),
            st.sampled_from([*(f"%r{i}" for i in _REGISTERS), "3"]),
        ),
        min_size=2,
        max_size=40,
    ),
    st.booleans(),
)
@settings(max_examples=examples(60), deadline=None)
def test_results_equal_program_order(
    program: list[tuple[str, int, int, str]], in_part: bool
) -> None:
    start = "".join(f"mad.lo.s32 %r{i}, %r0, {i * 1103515245 + 12345}, {i};" for i in _REGISTERS)
    body = "".join(
        f"{opcode} %r{out}, %r{a}, {'0f40400000' if b == '3' and 'f32' in opcode else b};"
        for opcode, out, a, b in program
    )
    total = "mov.b32 %r63, 0;" + "".join(f"mad.lo.s32 %r63, %r63, 31, %r{i};" for i in _REGISTERS)
    if in_part:  # so lanes are no slice
        body = f"and.b32 %r62, %r0, 3; setp.eq.s32 %p1, %r62, 1; @%p1 bra skip; {body} skip:"
    text = start + body + total
    together = collect(text, threads=64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "_FEWEST_FUSED", 1 << 30)
        apart = collect(text, threads=64)
    np.testing.assert_array_equal(together, apart)


def test_an_undefined_register_is_reported_at_its_reader() -> None:
    body = "".join(f"add.s32 %r{i + 20}, %r{9 if i == 3 else 0}, 1;" for i in range(6))
    fault = faults(body, kind="undefined", match="%r9 is read and was never")
    assert fault.text == "add.s32 %r23, %r9, 1"


_LDMATRIX = "ldmatrix.sync.aligned.m8n8.x2.shared.b16"
_MMA = "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32"
# Each thread stores 24 bytes of small floats; a row of a matrix is at %r7.
_FRAGMENTS = """
.reg .b32 %m<128>;
mad.lo.s32 %r3, %r0, 24, %r1; cvt.rn.f16.s32 %h0, %r0; mov.b32 %r4, {%h0, %h0};
st.shared.v2.b32 [%r3], {%r4, %r4}; st.shared.v2.b32 [%r3+8], {%r4, %r0};
st.shared.v2.b32 [%r3+16], {%r0, %r4}; bar.sync 0;
and.b32 %r5, %r0, 15; shl.b32 %r6, %r5, 4; add.s32 %r7, %r1, %r6;
"""


def _vector(first: int, count: int) -> str:
    return f"{{{', '.join(f'%m{first + i}' for i in range(count))}}}"


def _matrices(first_parts: str) -> str:
    """Return a body with six fragment loads, multiplied in a grid and in chains."""
    clear = "".join(f"mov.b32 %m{i}, {i};" for i in range(100))
    loads = "".join(
        f"{_LDMATRIX} {_vector(2 * i, 2)}, [%r7+{16 * i}];"
        f"ld.shared.v2.b32 {_vector(20 + 2 * i, 2)}, [%r7+{64 + 8 * i}];"
        for i in range(6)
    )
    dots = "".join(
        f"{_MMA} {_vector(40 + 4 * index, 4)}, {_vector(2 * (index % 3), 2)}, {{%m{6 + index % 4}}}, "
        f"{_vector(40 + 4 * index, 4)};"
        for index in (*range(12), 2, 2, 5)
    )
    total = "mov.b32 %r63, 0;" + "".join(
        f"mad.lo.s32 %r63, %r63, 31, %m{i};" for i in (*range(20, 32), *range(40, 88))
    )
    return f"{_FRAGMENTS} {clear} {first_parts} {loads} {dots} skip: {total}"


@pytest.mark.parametrize("in_part", [False, True])
def test_matrices_equal_program_order(in_part: bool) -> None:
    part = "shr.u32 %r8, %r0, 5; setp.eq.s32 %p1, %r8, 1; @%p1 bra skip;" if in_part else ""
    together = collect(_matrices(part), threads=96, shared=4096)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "_FEWEST_FUSED", 1 << 30)
        apart = collect(_matrices(part), threads=96, shared=4096)
    np.testing.assert_array_equal(together, apart)
    assert len(np.unique(together)) > 8


def test_matrices_and_loads_share_steps() -> None:
    sizes = [len(issue) for issue in _issues(_matrices("").replace("skip:", ""))]
    assert sizes.count(6) == 2  # the matrices, the vectors
    assert 12 in sizes, sizes


@pytest.mark.parametrize(
    ("change", "kind", "line"),
    [
        (("[%r7+32]", "[%r7+3200]"), "bounds", f"{_LDMATRIX} {_vector(4, 2)}, [%r7+3200]"),
        (("[%r7+72]", "[%r7+2400]"), "uninitialised", "ld.shared.v2.b32 {%m22, %m23}, [%r7+2400]"),
        (("{%m8}", "{%m99}"), "undefined", ""),
    ],
)
def test_faults_are_blamed_on_one_instruction(
    change: tuple[str, str], kind: str, line: str
) -> None:
    body = _matrices("").replace("mov.b32 %m99, 99;", "").replace(*change)
    fault = faults(body, kind=kind, threads=96, shared=3200)
    assert line in fault.text


def test_part_of_a_warp_does_not_multiply() -> None:
    part = "setp.eq.s32 %p1, %r0, 40; @%p1 bra skip;"
    faults(_matrices(part), kind="convergence", threads=96, shared=4096)

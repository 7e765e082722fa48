"""Instructions of one kind run as one step, and nothing tells that they do."""

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
from tests.support.ptx_kernel import collect, faults

_OPCODES = ("add.s32", "sub.s32", "xor.b32", "max.s32", "mul.f32", "add.f32")
_REGISTERS = range(2, 12)
_COUNT = 10


def _issues(body: str) -> list[list[str]]:
    text = f".entry k() {{ .reg .b32 %r<99>; .reg .pred %p<9>; {body} ret; }}"
    instructions = parse_module(text).kernels["k"].instructions
    cfg = build_cfg(instructions)
    file = RegisterFile(Allocation(instructions, cfg, analyse(instructions, cfg)), 32)
    found = [[each.text for each in issue] for issue in issues_of(instructions[:-1], file)]
    assert sum(map(len, found)) == len(instructions) - 1
    return found


def test_products_share_a_step_and_sums_of_them_another() -> None:
    loads = "".join(f"mov.b32 %r{i}, %tid.x;" for i in range(8))
    products = "".join(
        f"mul.f32 %r{10 + i}, %r{i}, %r7; add.f32 %r{20 + i}, %r{10 + i}, %r{i};" for i in range(7)
    )
    # What is read once more gives no row away, for which others would have to wait.
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
def test_what_does_more_than_compute_stays_in_its_place(between: str) -> None:
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
@settings(max_examples=60, deadline=None)
def test_results_are_those_of_program_order(
    program: list[tuple[str, int, int, str]], in_part: bool
) -> None:
    start = "".join(f"mad.lo.s32 %r{i}, %r0, {i * 1103515245 + 12345}, {i};" for i in _REGISTERS)
    body = "".join(
        f"{opcode} %r{out}, %r{a}, {'0f40400000' if b == '3' and 'f32' in opcode else b};"
        for opcode, out, a, b in program
    )
    total = "mov.b32 %r63, 0;" + "".join(f"mad.lo.s32 %r63, %r63, 31, %r{i};" for i in _REGISTERS)
    if in_part:  # so that lanes are no slice
        body = f"and.b32 %r62, %r0, 3; setp.eq.s32 %p1, %r62, 1; @%p1 bra skip; {body} skip:"
    text = start + body + total
    together = collect(text, threads=64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "_FEWEST_FUSED", 1 << 30)
        apart = collect(text, threads=64)
    np.testing.assert_array_equal(together, apart)


def test_an_undefined_register_is_reported_at_the_instruction_that_reads_it() -> None:
    body = "".join(f"add.s32 %r{i + 20}, %r{9 if i == 3 else 0}, 1;" for i in range(6))
    fault = faults(body, kind="undefined", match="%r9 is read and was never")
    assert fault.text == "add.s32 %r23, %r9, 1"

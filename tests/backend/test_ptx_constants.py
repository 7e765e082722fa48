"""MMA operands computed from constants alone are hidden from ptxas, and no others."""

from __future__ import annotations

import re

import pytest

from aotc.backend import assemble, disassemble
from aotc.backend.ptx_constants import hide_constant_fragments
from aotc.target import TARGETS

MMA = """mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32
    {%f1, %f2, %f3, %f4},
    {%r10, %r11},
    {%r12},
    {%f1, %f2, %f3, %f4};"""
LOADED = "ld.global.b32 %r10, [%rd1];\nld.global.b32 %r11, [%rd1+4];"
EXCHANGED = """mov.b32 %r1, 49152;
shfl.sync.idx.b32 %r2, %r1, %r3, 31, -1;
cvt.u16.u32 %rs1, %r2;
shfl.sync.idx.b32 %r4, %r1, %r5, 31, -1;
cvt.u16.u32 %rs2, %r4;
selp.b16 %rs3, %rs1, %rs2, %p1;
mov.b32 %r12, {%rs3, %rs1};"""


def hidden_words(*lines: str) -> list[str]:
    """Return the MMA's hidden words."""
    text = "\n".join([*lines, MMA])
    result = hide_constant_fragments(text)
    words = re.findall(r"or\.b32 word\d, (%r\d+), zero;", result)
    assert (result == text) == (words == [])
    return words


def test_a_constant_that_threads_exchange_is_hidden() -> None:
    assert hidden_words(LOADED, EXCHANGED) == ["%r12"]


def test_all_words_of_constant_operands_are_hidden() -> None:
    constants = "mov.b32 %r10, 0;\nadd.s32 %r11, %r10, 49152;"
    assert hidden_words(constants, EXCHANGED) == ["%r10", "%r11", "%r12"]


@pytest.mark.parametrize(
    "source",
    [
        "ld.global.b32 %r1, [%rd1];",
        "ld.param.b32 %r1, [k_param_0];",
        "mov.u32 %r1, %tid.x;",
        "mov.b32 %r1, 49152;\n@%p2 ld.global.b32 %r1, [%rd1];",
        "mov.u32 %r6, %nctaid.x;\nor.b32 %r1, %r6, 49152;",
        "unheard.of %r1, 49152;",
    ],
)
def test_a_word_that_varies_is_left_as_it_is(source: str) -> None:
    assert hidden_words(LOADED, EXCHANGED.replace("mov.b32 %r1, 49152;", source)) == []


def test_the_lane_that_is_read_and_the_predicate_are_no_part_of_the_value() -> None:
    chosen = "mov.u32 %r3, %tid.x;\nsetp.lt.s32 %p1, %r3, 4;"
    assert hidden_words(LOADED, chosen, EXCHANGED) == ["%r12"]


def test_a_word_that_a_loop_carries_is_constant_if_all_writes_are() -> None:
    carried = EXCHANGED + "\nmov.b32 %r7, %r12;\nmov.b32 %r12, %r7;"
    assert hidden_words(LOADED, carried) == ["%r12"]


def test_ptxas_negates_no_operand_of_an_exchanged_constant() -> None:
    body = f"""ld.param.b64 %rd1, [k_param_0];
mov.u32 %r3, %tid.x;
xor.b32 %r5, %r3, 1;
setp.lt.s32 %p1, %r3, 4;
mov.b32 %f1, 0f00000000; mov.b32 %f2, %f1; mov.b32 %f3, %f1; mov.b32 %f4, %f1;
{LOADED}
{EXCHANGED}
{MMA}
st.global.f32 [%rd1], %f1; st.global.f32 [%rd1+4], %f2; st.global.f32 [%rd1+8], %f3; st.global.f32 [%rd1+12], %f4;"""
    registers = (
        ".reg .b64 %rd<4>; .reg .b32 %r<16>; .reg .f32 %f<8>; .reg .b16 %rs<8>; .reg .pred %p<4>;"
    )
    entry = ".visible .entry k(.param .u64 k_param_0)"
    ptx = f".version 8.3\n.target sm_90a\n.address_size 64\n{entry}\n{{\n{registers}\n{body}\nret;\n}}\n"
    target, negated = TARGETS["sm_90a"], re.compile(r"HMMA[^;]*-R")
    plain, mended = (
        disassemble(assemble(text, target).cubin) for text in (ptx, hide_constant_fragments(ptx))
    )
    assert negated.search(plain), "this ptxas has no need of the pass"
    assert "HMMA" in mended
    assert not negated.search(mended)


def test_operands_in_fp64_are_left_as_they_are() -> None:
    ptx = """
mov.b64 %rd1, 0d3FF0000000000000;
shfl.sync.bfly.b32 %r9, %r8, 1, 31, -1;
mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%rd2, %rd3}, {%rd1}, {%rd1}, {%rd2, %rd3};
"""
    assert hide_constant_fragments(ptx) == ptx

"""Possibly uniform words are split into halves by shifts, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import aotc
from aotc.backend import assemble, disassemble, ptxas
from aotc.backend.ptx_halves import split_by_shifts
from aotc.target import TARGETS
from tests.support import ptx_kernel

MOVE = "mov.b32 \t{%rs1, %rs2}, %r9;"
TID = "mov.u32 %r1, %tid.x;"
OFFSET = f"{TID} shl.b32 %r2, %r1, 2; add.s32 %r3, %r4, %r2;"
LOADED = "ld.shared.b32 {%r5}, [%r3+64];"


def _is_moved(*before: str) -> bool:
    """Return whether such a word is still split by a move."""
    text = "\n\t".join([".visible .entry k()", "{", *before, MOVE, "ret;", "}"])
    split = split_by_shifts(text)
    assert split == text or split.count("shr.u32 tmp, %r9, 16;") == 1
    assert split.count("\n") == text.count("\n")
    return split == text


@pytest.mark.parametrize(
    "before",
    [
        "ld.shared.b32 {%r9}, [shared+64];",
        "ld.shared.v2.b32 {%r8, %r9}, [shared+64];",
        "ld.param.b64 %rd1, [k_param_0]; ld.global.b32 %r9, [%rd1];",
        "ld.shared.b32 %r8, [shared]; ld.param.b32 %r7, [p]; add.s16x2 %r9, %r8, %r7;",
        "ld.shared.b32 %r8, [shared]; { .reg .b32 t; selp.b32 %r9, %r8, 0, %p1; }",
        f"{OFFSET} {LOADED} shfl.sync.idx.b32 %r9, %r5, 0, 31, -1;",
        f"{OFFSET} {LOADED} redux.sync.or.b32 %r9, %r5, -1;",
        "@%p1 ld.shared.b32 {%r9}, [shared+64];",
        "not.understood {%r8}; %r9;",
        "ld.param.b32 %r9, [k_param_0];",
        "mov.u32 %r8, %ctaid.x; mul.lo.s32 %r9, %r8, 77777;",
        "mov.b32 %r9, 0; add.s32 %r9, %r9, 1;",
    ],
)
def test_a_word_that_lanes_may_share_is_shifted(before: str) -> None:
    assert not _is_moved(*before.replace("; ", ";\n").splitlines())
    assert not _is_moved(before)


@pytest.mark.parametrize(
    "before",
    [
        f"{OFFSET} ld.shared.b32 {{%r9}}, [%r3+64];",
        f"{OFFSET} {LOADED} xor.b32 %r9, %r5, %r6;",
        f"{OFFSET} {LOADED} shfl.sync.bfly.b32 %r9, %r5, 1, 31, -1;",
        f"{OFFSET} ld.shared.b32 %r5, [shared]; shfl.sync.idx.b32 %r9, %r5, %r2, 31, -1;",
        f"{TID} setp.lt.s32 %p1, %r1, 4; mov.b32 %r9, 0; @%p1 ld.shared.b32 {{%r9}}, [shared];",
        "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r8, %r9}, [%r3];",
        "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16\n\t{%r8, %r9},\n\t{%r1, %r1}, {%r1}, {%r1, %r1};",
        "{ wgmma.fence; wgmma.mma_async.sync {%r8, %r9}, %rd1, %rd2, 1, 1, 1; }",
        # A loop starting with a constant and continuing with varying words.
        f"{OFFSET} mov.b32 %r9, 0; add.s32 %r9, %r8, 1; ld.shared.b32 {{%r8}}, [%r3];",
        # ptxas folds constants.
        "mov.b32 %r9, 65537;",
        "mov.b32 %r8, 7; shl.b32 %r9, %r8, 9;",
    ],
)
def test_others_are_left_to_a_move(before: str) -> None:
    assert _is_moved(before)


@pytest.mark.parametrize("halves", ["%rs1, %rs2", "%rs1, _", "_, %rs2"])
def test_a_shift_gives_what_the_move_gives(halves: str) -> None:
    move = f"mov.b32 {{{halves}}}, %r9;"
    before = ".reg .b16 %rs<9>;\nmov.b16 %rs1, 1;\nmov.b16 %rs2, 2;\nld.global.b32 %r9, [%rd0];\n"
    after = "\nmov.b32 %r63, {%rs1, %rs2};"
    text = f"{before}{move}{after}"
    split = split_by_shifts(text)
    assert move not in split
    word = np.array([0xDEADBEEF], np.uint32)
    by_move, shifted = (ptx_kernel.collect(body, word) for body in (text, split))
    assert by_move[0] not in (0, 0x20001)
    assert (by_move == shifted).all()


KERNEL = """
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, out_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.store(out_ptr, tl.argmax(x, axis=0))
"""


@pytest.mark.parametrize("kind", ["i16", "fp16"])
@pytest.mark.parametrize("num_warps", [2, 4])
def test_what_warps_tell_each_other_is_shifted(tmp_path: Path, kind: str, num_warps: int) -> None:
    (tmp_path / "k.py").write_text(KERNEL)
    compiled_kernel = aotc.compile(
        f"{tmp_path}/k.py:kernel",
        signature={"x_ptr": f"*{kind}", "out_ptr": "*i32"},
        constants={"N": 512},
        target="sm_90a",
        num_warps=num_warps,
    )
    after = compiled_kernel.asm["ptx"].rpartition("bar.sync")[2]
    assert after.count("shr.u32 tmp") == num_warps // 2
    assert "{%rs" not in after


def _unwritten(ptx: str) -> set[str]:
    """Return the uniform registers read by halves in SASS, but never written."""
    sass = disassemble(assemble(ptx, TARGETS["sm_90a"]).cubin)
    read = set(re.findall(r"UPRMT UR\d+, (UR\d+)", sass))
    return read - set(re.findall(r"(?:U\w+|R2UR)[.\w]* (UR\d+),", sass))


def test_ptxas_takes_halves_of_words_that_it_has() -> None:
    """In a long program cut down."""
    ptx = (Path(__file__).parent / "shared_word.ptx").read_text()
    assert not _unwritten(split_by_shifts(ptx))
    if ptxas.version_text().startswith("V13.5."):
        assert _unwritten(ptx), "ptxas is right without: split_by_shifts may go"

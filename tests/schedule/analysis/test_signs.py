"""Indices proven non-negative, and the launch conditions of such proofs."""

from __future__ import annotations

import pytest

from aotc.ir.text import parse_kernel
from aotc.schedule.analysis.affine import AffineAnalysis
from aotc.schedule.analysis.signs import Signs

TEXT = """\
kernel @k(%p: *i32, %n: i32, %m: i32, %x: fp32) {num_warps = 1} {
  %pid = tile.program_id {axis = 0} : i32
  %2 = arith.constant {value = 2, type = i32} : i32
  %neg = arith.constant {value = -2, type = i32} : i32
  %is = arith.compare(%n, %m) {predicate = "lt"} : i1
  BODY
  scf.return
}
"""
NEVER = {
    "arith.add(%pid, %n) : i32": ["n"],
    "arith.mul(%n, %m) : i32": ["n", "m"],
    "arith.div(%pid, %n) : i32": [],
    "arith.rem(%n, %m) : i32": ["n"],
    "arith.min(%n, %2) : i32": ["n"],
    "arith.max(%n, %2) : i32": [],
    "arith.max(%neg, %n) : i32": ["n"],
    "arith.shl(%pid, %2) : i32": [],
    "arith.cast(%m) {dtype = i64} : i64": ["m"],
    "arith.select(%is, %n, %2) : i32": ["n"],
    "tile.load(%p) : i32": [],
    "tile.num_programs {axis = 1} : i32": [],
    "tile.hint(%pid) {divisibility = [2]} : i32": [],
    "scf.if(%is) () {\n    scf.yield(%n)\n  } () {\n    scf.yield(%pid)\n  } : i32": ["n"],
}
PERHAPS = (
    "arith.sub(%n, %m) : i32",
    "arith.add(%pid, %neg) : i32",
    "arith.min(%n, %neg) : i32",
    "arith.select(%is, %n, %neg) : i32",
    "arith.xor(%n, %m) : i32",
    "arith.cast(%x) {dtype = i32} : i32",
    "scf.if(%is) () {\n    scf.yield(%n)\n  } () {\n    scf.yield(%neg)\n  } : i32",
)


def signs_of(body: str) -> tuple[bool, list[str]]:
    """Return whether the last scalar is never negative, and the arguments assumed non-negative."""
    kernel = parse_kernel(TEXT.replace("BODY", f"%v = {body}"))
    signs = Signs(AffineAnalysis(kernel))
    values = [op.results[0] for op in kernel.body if op.results]
    return signs.of(values[-1]), [kernel.params[value.index].name for value in signs.required]


@pytest.mark.parametrize(("body", "required"), NEVER.items())
def test_never_negative(body: str, required: list[str]) -> None:
    assert signs_of(body) == (True, required)


@pytest.mark.parametrize("body", PERHAPS)
def test_perhaps_negative(body: str) -> None:
    assert not signs_of(body)[0]


LOOP = """\
kernel @k(%n: i32, %m: i32) {num_warps = 1} {
  %1 = arith.constant {value = 1, type = i32} : i32
  %out = scf.for(%m, %n, %1, %n) (%i: i32, %carried: i32) {
    %odd = arith.xor(%carried, %i) : i32
    scf.yield(%odd)
  } : i32
  scf.return
}
"""


def test_an_induction_variable_counts_up_from_its_lower_bound() -> None:
    kernel = parse_kernel(LOOP)
    loop = next(op for op in kernel.body if op.blocks)
    signs = Signs(AffineAnalysis(kernel))
    induction, carried = loop.blocks[0].args
    assert signs.of(induction)
    assert [value.hint for value in signs.required] == ["m"]
    assert not signs.of(carried)


def test_a_polynomial_is_as_its_terms() -> None:
    kernel = parse_kernel(TEXT.replace("BODY", "%q = arith.mul(%pid, %pid) : i32"))
    analysis = AffineAnalysis(kernel)
    signs = Signs(analysis)
    square = analysis[next(op for op in kernel.body if op.opcode == "arith.mul").results[0]].offset
    assert signs.never_negative(square)
    assert signs.never_negative(square + square)
    assert not signs.never_negative(-square)
    assert not signs.required

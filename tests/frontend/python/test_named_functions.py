"""Functions as constants: of another file, nested, of the language; and their scopes."""

from __future__ import annotations

from pathlib import Path

import pytest

import aotc
from aotc.ir.diagnostics import CompileError
from tests.support.written_module import written_module

APPLY = """
import triton
import triton.language as tl

helper = tl.constexpr(3)

def make(factor):
    @triton.jit
    def helper(x):
        factor = tl.sqrt(x)
        return factor

    @triton.jit
    def act(x):
        return helper(x) + 1

    @triton.jit
    def scaled(x):
        return x * factor

    @triton.jit
    def captures(p):
        tl.store(p, act(tl.load(p)))

    return act, scaled, captures

@triton.jit
def plain(x):
    return tl.sqrt(x)

@triton.jit
def apply(p, F: tl.constexpr):
    tl.store(p, F(tl.load(p)))

@triton.jit
def total(p, F: tl.constexpr):
    tl.store(p, F(tl.load(p + tl.arange(0, 32)), 0))

@triton.jit
def now(p, F: tl.constexpr):
    tl.store(p, F())
"""


def test_a_constant_may_be_a_function_in_a_function(tmp_path: Path) -> None:
    """A nested function with Triton's decorator sees its siblings, not the module's functions."""
    module = written_module(tmp_path / "inner.py", APPLY)
    act, scaled, captures = module.make(2.0)
    for function in (act, module.plain):
        program = aotc.compile(module.apply, signature={"p": "*fp32"}, constants={"F": function})
        assert "arith.sqrt" in program.asm["tile"]
    assert "arith.sqrt" in aotc.compile(captures, signature={"p": "*fp32"}).asm["tile"]
    with pytest.raises(CompileError, match="factor has no value here: it is a variable of make"):
        aotc.compile(module.apply, signature={"p": "*fp32"}, constants={"F": scaled})
    with pytest.raises(CompileError, match=r"has no function 'make\.<locals>\.none'"):
        aotc.compile(
            f"{tmp_path / 'inner.py'}:apply",
            signature={"p": "*fp32"},
            constants={"F": "make.<locals>.none"},
        )


def test_a_constant_may_be_a_function_of_the_language(tmp_path: Path) -> None:
    tl = pytest.importorskip("triton.language")
    module = written_module(tmp_path / "language.py", APPLY)
    for kernel, kind, function, op in (
        (module.apply, "fp32", tl.exp, "arith.exp"),
        (module.apply, "fp32", tl.math.sqrt, "arith.sqrt"),
        (module.apply, "fp32", tl.sigmoid, "arith.exp"),
        (module.apply, "fp32", "triton.language.math.sqrt", "arith.sqrt"),
        (module.total, "fp32", tl.sum, "tile.reduce"),
        (module.now, "i64", tl.extra.cuda.globaltimer, "globaltimer"),
        (module.now, "i32", tl.extra.cuda.smid, "smid"),
    ):
        program = aotc.compile(kernel, signature={"p": f"*{kind}"}, constants={"F": function})
        assert op in program.asm["tile"]

"""Programmatic dependent launch reaches the machine code, in its place among accesses to memory."""

from __future__ import annotations

import re

import pytest

from aotc.backend import assemble, disassemble, emit_ptx, lower_kernel
from aotc.ir.text import parse_kernel
from aotc.target import TARGETS, Feature, Target

TEXT = """kernel @k(%p: *fp32, %q: *fp32) {num_warps = 4} {
  %a = gpu.load(%p) : fp32
  grid.wait
  %b = gpu.load(%p) : fp32
  grid.launch_dependents
  gpu.store(%q, %b)
  grid.wait
  gpu.store(%p, %a)
  scf.return
}
"""
# SASS names: the wait acquires, the other is a hint to leave early.
SASS = re.compile(r"\b(LDG|STG|ACQBULK|PREEXIT)\b")


@pytest.mark.parametrize("target", TARGETS.values(), ids=str)
def test_nothing_crosses_a_wait(target: Target) -> None:
    ptx = emit_ptx(lower_kernel(parse_kernel(TEXT), target).llvm_ir, target)
    instructions = SASS.findall(disassemble(assemble(ptx, target).cubin))
    if Feature.PDL not in target.features:
        assert "griddepcontrol" not in ptx
        assert not {"ACQBULK", "PREEXIT"} & {*instructions}
        return
    assert ptx.count("griddepcontrol.wait") == 2
    assert ptx.count("griddepcontrol.launch_dependents") == 1
    # Nothing is ordered by the hint, but it keeps its place between the two waits.
    assert [name for name in instructions if name != "PREEXIT"] == [
        *("LDG", "ACQBULK", "LDG", "STG", "ACQBULK", "STG")
    ]
    assert instructions.index("ACQBULK") < instructions.index("PREEXIT") < len(instructions) - 2

"""Fragments of dots in flight: copied where an iteration overwrites them, else left alone."""

from __future__ import annotations

from aotc.backend.ptx_fragments import keep_fragments_apart
from aotc.backend.wgmma_registers import find_hazards

_KIND = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16"
_FENCE, _COMMIT = "wgmma.fence.sync.aligned;", "wgmma.commit_group.sync.aligned;"
_ACC = "{%r100, %r101, %r102, %r103}"


def _kernel(*lines: str) -> str:
    head = [".version 8.8", ".visible .entry k(", "\t.param .u64 k_param_0", ")", "{"]
    return "\n".join([*head, "\t.reg .b32 %r<999>;", *lines, "\tret;", "}"])


def _dot(fragment: str) -> str:
    return f"\t{{ {_FENCE} {_KIND} {_ACC}, {{{fragment}}}, %rd1, 1, 1, 1, 0; {_COMMIT} }}"


def _loop(second: str, pending: int = 1) -> str:
    """Return a loop of two dots, the second still in flight when the next iteration begins."""
    wait = f"\twgmma.wait_group.sync.aligned {pending};"
    step = ["\txor.b32 %r10, %r1, 7;", "\txor.b32 %r11, %r2, 7;"]
    dots = [_dot("%r10, %r11, %r10, %r11"), wait, _dot(second), wait]
    return _kernel("$L_1:", *step, *dots, "\t@%p1 bra $L_1;", "\twgmma.wait_group.sync.aligned 0;")


def test_a_fragment_that_two_dots_share_is_copied_for_the_one_in_flight() -> None:
    ptx = _loop("%r10, %r11, %r10, %r11")
    assert [hazard.register for hazard in find_hazards(ptx)] == ["%r10", "%r11"]
    apart = keep_fragments_apart(ptx)
    assert not find_hazards(apart)
    (line,) = [line for line in apart.split("\n") if "mov.b32" in line]
    assert line.count("mov.b32") == 2
    assert apart.replace(line, _dot("%r10, %r11, %r10, %r11")) == ptx


def test_fragments_that_nothing_overwrites_are_left_alone() -> None:
    for ptx in (_loop("%r20, %r21, %r22, %r23"), _loop("%r10, %r11, %r10, %r11", pending=0)):
        assert not find_hazards(ptx)
        assert keep_fragments_apart(ptx) == ptx


def test_other_hazards_are_left_to_the_caller() -> None:
    ptx = _kernel(_dot("%r10, %r11, %r12, %r13"), "\tadd.f32 %r5, %r100, %r100;")
    assert find_hazards(ptx)
    assert keep_fragments_apart(ptx) == ptx

"""Parameters where the assembler put them."""

from __future__ import annotations

import pytest

from aotc.backend import assemble, emit_ptx, lower_kernel, param_places
from aotc.ir.diagnostics import IRError
from aotc.ir.text import parse_kernel
from aotc.target import TARGETS

TEXT = (
    "kernel @k(%a: i8, %x: map<8x64xbf16, 128>, %p: *fp32, %y: map<64xfp32, 0>, %n: i32) "
    "{num_warps = 1} {\n  scf.return\n}\n"
)


@pytest.mark.parametrize("target", [name for name in TARGETS if name > "sm_89" or "_1" in name])
def test_maps_are_aligned_in_memory_not_in_the_block(target: str) -> None:
    kernel = parse_kernel(TEXT)
    lowered = lower_kernel(kernel, TARGETS[target])
    assert [slot.size_bytes for slot in lowered.params] == [1, 128, 8, 128, 4]
    cubin = assemble(emit_ptx(lowered.llvm_ir, TARGETS[target]), TARGETS[target]).cubin
    sizes = param_places(cubin, "k")
    assert [size for _, size in sizes] == [1, 128, 8, 128, 4]
    offsets = [offset for offset, _ in sizes]
    assert offsets == sorted(offsets)
    assert (offsets[3] - offsets[1]) % 64 == 0
    assert all(offset % min(size, 16) == 0 for offset, size in sizes)


def test_another_function_is_not_there() -> None:
    kernel = parse_kernel(TEXT)
    ptx = emit_ptx(lower_kernel(kernel, TARGETS["sm_90a"]).llvm_ir, TARGETS["sm_90a"])
    cubin = assemble(ptx, TARGETS["sm_90a"]).cubin
    with pytest.raises(IRError, match="does not describe j"):
        param_places(cubin, "j")

"""The registry and the driver, and that PTX of every rule assembles for every target."""

from __future__ import annotations

import pytest

from aotc.backend import assemble, emit_ptx, lower_kernel
from aotc.backend.lower import RULES
from aotc.ir.core import Op
from aotc.ir.diagnostics import IRError
from aotc.ir.dialects import descriptor, scf, tile, tma
from aotc.ir.text import parse_kernel
from aotc.target import TARGETS
from tests.backend.programs import SM_90

# What the schedule replaces, and terminators that their enclosing op reads.
NOT_LOWERED = [
    *(tile.Load, tile.Store, tile.AtomicRmw, tile.AtomicCas, tile.Dot),
    *(tile.Reduce, tile.Scan, scf.Yield, scf.Condition),
    *(descriptor.DescriptorLoad, descriptor.DescriptorStore, descriptor.DescriptorReduce),
    *(descriptor.DescriptorExtent, descriptor.DescriptorStride, tma.TmaFetch),
]


def test_every_op_has_exactly_one_rule() -> None:
    expected = {opcode for opcode, cls in Op.registry.items() if cls not in NOT_LOWERED}
    assert {cls.opcode for cls in RULES} == expected


def test_an_op_without_a_rule_is_named() -> None:
    kernel = parse_kernel(
        "kernel @k(%p: *fp32) {num_warps = 1} {\n  %0 = tile.load(%p, _, _) : fp32\n  scf.return\n}\n"
    )
    with pytest.raises(IRError, match=r"tile.load: has no lowering rule"):
        lower_kernel(kernel, SM_90)


def test_parameters_are_aligned_naturally() -> None:
    kernel = parse_kernel(
        "kernel @k(%a: i8, %b: *fp32, %c: i1, %d: bf16, %e: i32, %f: fp64) {num_warps = 1} {\n"
        "  scf.return\n}\n"
    )
    slots = lower_kernel(kernel, SM_90).params
    assert [(s.offset_bytes, s.size_bytes) for s in slots] == [
        (0, 1), (8, 8), (16, 1), (18, 2), (20, 4), (24, 8),
    ]  # fmt: skip


def test_clusters_are_refused_by_name() -> None:
    kernel = parse_kernel("kernel @k() {num_warps = 4, num_ctas = 2} {\n  scf.return\n}\n")
    with pytest.raises(IRError, match="clusters of 2 blocks"):
        lower_kernel(kernel, SM_90)


@pytest.mark.parametrize("target", TARGETS.values(), ids=str)
def test_register_cap_reaches_the_cubin(target) -> None:
    kernel = parse_kernel("kernel @k() {num_warps = 4, maxnreg = 64} {\n  scf.return\n}\n")
    ptx = emit_ptx(lower_kernel(kernel, target).llvm_ir, target)
    assert ".maxnreg 64" in ptx
    assert ".reqntid 128" in ptx
    assert assemble(ptx, target).spill_bytes == 0

"""The registry and the driver; every rule's PTX assembles for every target."""

from __future__ import annotations

import re

import numpy as np
import pytest

from aotc.backend import assemble, emit_ptx, lower_kernel
from aotc.backend.lower import RULES
from aotc.ir.core import Op
from aotc.ir.diagnostics import IRError
from aotc.ir.dialects import (
    cluster,
    descriptor,
    grid,
    indexing,
    map_store,
    scf,
    thread_copy,
    tile,
    tma,
)
from aotc.ir.text import parse_kernel
from aotc.target import TARGETS
from aotc.verify.emulator.run import emulate
from tests.backend.programs import SM_90

# Ops replaced by the schedule, and terminators read by their enclosing op.
NOT_LOWERED = [
    *(tile.Load, tile.Store, tile.AtomicRmw, tile.AtomicCas, tile.Dot),
    *(tile.Reduce, tile.Scan, scf.Yield, scf.Condition),
    *(descriptor.DescriptorLoad, descriptor.DescriptorStore, descriptor.DescriptorReduce),
    *(descriptor.DescriptorExtent, descriptor.DescriptorStride, descriptor.DescriptorAt),
    *(descriptor.DescriptorOf, descriptor.DescriptorGather, descriptor.DescriptorScatter),
    *(descriptor.DescriptorIn, descriptor.MapAddress, descriptor.DescriptorPrefetch),
    *(tma.SyncTmaLoad, tma.SyncBulkLoad, tma.StagedTmaStore, tma.StagedBulkStore),
    *(thread_copy.SyncThreadLoad, map_store.StoreMap),
    *(indexing.Gather, indexing.Histogram, grid.ClusterReduce),
    *(cluster.ClusterPermute, cluster.ClusterRead, cluster.ClusterTranspose),
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


@pytest.mark.parametrize(
    ("num_ctas", "target", "message"),
    [
        (2, "sm_80", "clusters of 2 CTAs on sm_80"),
        (3, "sm_90a", "clusters of 3 CTAs"),
        (0, "sm_90a", "clusters of 0 CTAs"),
        (32, "sm_90a", "clusters of 32 CTAs"),
        (16, "sm_100a", "clusters of 16 CTAs"),
    ],
)
def test_clusters_that_a_target_cannot_hold(num_ctas: int, target: str, message: str) -> None:
    kernel = parse_kernel(
        f"kernel @k() {{num_warps = 4, num_ctas = {num_ctas}}} {{\n  scf.return\n}}\n"
    )
    with pytest.raises(IRError, match=message):
        lower_kernel(kernel, TARGETS[target])


@pytest.mark.emulated
@pytest.mark.parametrize("num_ctas", [1, 2, 8])
@pytest.mark.parametrize("target", ["sm_90a", "sm_100a", "sm_120a"])
def test_a_cluster_is_one_program(num_ctas: int, target: str) -> None:
    """Every block of the grid counts itself at the place of its program."""
    kernel = parse_kernel(
        "#0 = #ll<register=[] lane=[[0],[0],[0],[0],[0]] warp=[] : [1]>\n"
        f"kernel @k(%p: *i32, %q: *i32) {{num_warps = 1, num_ctas = {num_ctas}}} {{\n"
        "  %x = tile.program_id {axis = 0} : i32\n  %y = tile.program_id {axis = 1} : i32\n"
        "  %w = tile.num_programs {axis = 0} : i32\n  %h = tile.num_programs {axis = 1} : i32\n"
        "  %rows = arith.mul(%y, %w) : i32\n  %at = arith.add(%rows, %x) : i32\n"
        "  %here = arith.addptr(%p, %at) : *i32\n"
        "  %tile = tile.splat(%here) {shape = [1], layout = #0} : tile<1x*i32, #0>\n"
        "  %one = arith.constant {value = 1, type = tile<1xi32, #0>} : tile<1xi32, #0>\n"
        '  %old = gpu.atomic_rmw(%tile, %one, _) {kind = "add"} : tile<1xi32, #0>\n'
        "  %extents = arith.mul(%h, %w) : i32\n  gpu.store(%q, %extents)\n  scf.return\n}\n"
    )
    ptx = emit_ptx(lower_kernel(kernel, TARGETS[target]).llvm_ir, TARGETS[target])
    assert (".reqnctapercluster" in ptx) == (num_ctas > 1)
    assemble(ptx, TARGETS[target])
    counts, extents = np.zeros(8, np.int32), np.zeros(1, np.int32)
    emulate(ptx, (3 * num_ctas, 2), [counts, extents])
    assert counts.tolist() == [num_ctas] * 6 + [0, 0]
    assert extents.tolist() == [6]


def test_maps_that_are_used_are_prefetched_by_one_thread_of_the_last_warp() -> None:
    kernel = parse_kernel("""\
#0 = #ll<offset=[[1],[2],[4],[8],[16],[32],[64]] : [128]>
#1 = #ll<offset=[] : [1]>
kernel @k(%x: map<128xfp32, 0>, %y: map<128xfp32, 0>, %z: map<128xfp32, 0>, %i: i32) {num_warps = 4} {
  %bar = gpu.shared_alloc {element = u64, shape = [1], layout = #1, alignment_bytes = 8, offset_bytes = 512} : shared<1xu64, #1>
  gpu.mbarrier_init(%bar)
  %b = gpu.shared_alloc {element = fp32, shape = [128], layout = #0, alignment_bytes = 128, offset_bytes = 0} : shared<128xfp32, #0>
  gpu.barrier
  gpu.tma_load(%x, %b, %bar, %i)
  gpu.mbarrier_wait(%bar, %i)
  gpu.tma_store(%z, %b, %i)
  scf.return
}
""")
    text = lower_kernel(kernel, SM_90).llvm_ir
    (line,) = [line for line in text.splitlines() if "prefetch.tensormap" in line]
    assert line.count("prefetch.tensormap") == 2
    assert "ptr %p0, ptr %p2, i1 " in line
    (issuer,) = re.findall(r"i1 (%\w+)\)", line)
    (warp,) = re.findall(rf"{issuer} = icmp eq i32 (%\w+), 3\n", text)
    assert re.search(rf"{warp} = call i32 @llvm.nvvm.shfl.sync.idx.i32", text)
    assert "elect.sync" in line
    assemble(emit_ptx(text, SM_90), SM_90)


@pytest.mark.parametrize("target", TARGETS.values(), ids=str)
def test_register_cap_reaches_the_cubin(target) -> None:
    kernel = parse_kernel("kernel @k() {num_warps = 4, maxnreg = 64} {\n  scf.return\n}\n")
    ptx = emit_ptx(lower_kernel(kernel, target).llvm_ir, target)
    assert ".maxnreg 64" in ptx
    assert ".reqntid 128" in ptx
    assert assemble(ptx, target).spill_bytes == 0

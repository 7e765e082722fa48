"""Warps that issue loads: rings of innermost loops, and reasons against a producer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aotc.config import Config
from aotc.ir.core import Kernel
from aotc.ir.dialects import tma
from aotc.ir.text import print_kernel
from aotc.ir.verify import verify
from aotc.schedule.context import Schedule
from aotc.schedule.warp_roles.choose_warp_roles import choose_warp_roles
from aotc.target import TARGETS
from tests.support.descriptors import compiled
from tests.support.pass_case import applied
from tests.support.tensor_loads import branch, copy, kernel_of, load, loop, read, text_of

LOOP = loop(load("a", "%i") + read("a"))


def _ringed(kernel: Kernel, **config: bool | int) -> tuple[str, list[str]]:
    """Return the kernel as text, and the remarks."""
    schedule = Schedule(TARGETS["sm_90a"], Config(kernel.num_warps, **config))  # type: ignore[arg-type]
    choose_warp_roles(kernel, schedule)
    verify(kernel)
    return print_kernel(kernel), schedule.remarks


PRODUCT = """
def k(a, b, out_ptr, n):
    acc = tl.zeros((64, 64), tl.float32)
    for step in range(0, n, 64):
        acc = tl.dot(a.load([0, step]), b.load([0, step]).T, acc)
    tl.store(out_ptr + tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :], acc)
"""


@pytest.mark.parametrize(("maxnreg", "warps"), [(None, 8), (160, 5)])
def test_a_limit_on_registers_leaves_one_warp_to_fetch(
    tmp_path: Path, maxnreg: int | None, warps: int
) -> None:
    """More threads would take registers of another CTA on the SM."""
    operand = "tensordesc<bf16[64,64]>"
    signature = {"a": operand, "b": operand, "out_ptr": "*fp32", "n": "i32"}
    compiled_kernel = compiled(tmp_path, PRODUCT, signature, {}, map_pointers=True, maxnreg=maxnreg)
    assert f".reqntid {32 * warps}" in compiled_kernel.ptx
    assert "wgmma.mma_async" in compiled_kernel.ptx


@pytest.mark.parametrize("num_warps", [1, 2, 4, 16])
def test_one_warp_fetches_for_those_that_hold_no_sums(num_warps: int) -> None:
    kernel = kernel_of(LOOP, num_warps=max(num_warps, 2))
    kernel.num_warps = num_warps
    _, remarks = _ringed(kernel)
    assert kernel.producer_warps == 1
    assert len(remarks) == 1
    assert "a producer warp issues the loads" in remarks[0]


@pytest.mark.parametrize(("hints", "config", "stages"), [("", 3, 3), ("", 5, 5), ("2", 5, 2)])
def test_an_innermost_loop_gets_a_ring_of_stages(hints: str, config: int, stages: int) -> None:
    hints = f"{{num_stages = {hints}}} " if hints else ""
    text, _ = _ringed(kernel_of(loop(load("a", "%i") + read("a"), hints=hints)), num_stages=config)
    assert f"num_stages = {stages}}} : shared<128xi32, #0, {stages}>" in text
    match = re.search(
        r"scf\.for\(.*, %(\w+)\).*\(%i: i32, %stage: i32\) {(.*)\n  }", text, re.DOTALL
    )
    assert match is not None
    start, body = match.groups()
    assert re.search(rf"%{start} = arith.constant {{value = 0", text)
    assert re.search(r"gpu.shared_stage\(%\w+, %stage\)", body)
    assert f"gpu.next_stage(%stage) {{num_stages = {stages}}}" in body


def test_one_stage_is_one_buffer() -> None:
    kernel = kernel_of(LOOP)
    text, _ = _ringed(kernel, num_stages=1)
    assert kernel.producer_warps
    assert "%stage" not in text


def test_fetches_around_an_innermost_loop_have_one_buffer() -> None:
    inner = loop(load("b", "%j", "%z") + read("b"), variable="j")
    text, _ = _ringed(kernel_of(loop(load("a", "%i") + read("a") + inner)))
    assert text.count("num_stages = 3} : shared") == 1
    assert "(%i: i32) {" in text


def test_a_loop_with_a_condition_and_a_branch_have_one_buffer() -> None:
    text, remarks = _ringed(kernel_of(loop(branch("%c", load("a", "%i") + read("a")))))
    assert "num_stages" not in text
    assert "a producer warp issues the loads" in remarks[0]


def test_without_a_loop_nobody_is_ahead() -> None:
    kernel = kernel_of(load("a", "%n") + read("a"))
    before = print_kernel(kernel)
    assert _ringed(kernel) == (before, [])
    assert not kernel.producer_warps


STORE = "  gpu.tma_store(%x, %a_buffer, %n)\n  gpu.tma_store_wait\n"
SUM = (
    "  %s = gpu.reduce(%a) {axis = 0} (%l: i32, %r: i32) {\n  %t = arith.add(%l, %r) : i32\n"
    "  scf.yield(%t)\n  } : i32\n"
)
OBSTACLES = {
    "barrier": (
        loop(load("a", "%i") + read("a") + "  gpu.store(%p, %n)\n  tile.barrier\n"),
        "tile.barrier before it keeps memory accesses in order",
    ),
    "fence": (
        loop('  gpu.fence {scope = "gpu"}\n' + load("a", "%i") + read("a")),
        "gpu.fence before it keeps memory accesses in order",
    ),
    "written": (loop(load("a", "%i") + read("a") + STORE), "the kernel writes x, too"),
    "two places": (
        load("a", "%n") + loop("  gpu.sync_tma_load(%x, %a_buffer, %i)\n" + read("a")),
        "a buffer is loaded in several places",
    ),
    "cluster": (
        loop(load("a", "%i") + read("a") + "  %r = cluster.read(%a, %zero) : tile<128xi32, #1>\n"),
        "all threads of the cluster wait for each other",
    ),
    "a tile decides": (
        load("a", "%n") + read("a") + SUM + loop(load("b", "%s") + read("b")),
        "the loads depend on a tile, by gpu.reduce",
    ),
}


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_what_keeps_a_warp_from_fetching_is_named(obstacle: str) -> None:
    body, reason = OBSTACLES[obstacle]
    kernel = kernel_of(body)
    before = print_kernel(kernel)
    text, (remark,) = _ringed(kernel)
    assert remark.endswith(f"no producer warp: {reason}")
    assert text == before
    assert not kernel.producer_warps


def test_a_block_has_no_room_for_more_warps() -> None:
    kernel = kernel_of(LOOP)
    kernel.num_warps = 32
    _, (remark,) = _ringed(kernel)
    assert remark.endswith("no producer warp: a CTA has no room for 33 warps")


@pytest.mark.parametrize(
    ("warp_specialize", "has_producer"), [(None, True), (True, True), (False, False)]
)
def test_the_config_has_a_say(warp_specialize: bool | None, has_producer: bool) -> None:
    kernel = kernel_of(LOOP)
    _, (remark,) = _ringed(kernel, warp_specialize=warp_specialize)  # type: ignore[arg-type]
    assert bool(kernel.producer_warps) == has_producer
    assert ("warp_specialize is false" in remark) != has_producer


def test_a_loop_that_asks_in_vain_is_told() -> None:
    body = "  %v = gpu.load(%p) : i32\n  gpu.store(%p, %v)\n"
    kernel = kernel_of(loop(body, hints="{warp_specialize = true} "))
    _, (remark,) = _ringed(kernel)
    assert "the loop loads nothing by tensor or bulk copies" in remark


@pytest.mark.parametrize("is_alone", [False, True])
def test_blocks_copy_for_each_other_only_if_producers_do(is_alone: bool) -> None:
    kernel = kernel_of(LOOP)
    for op in kernel.walk():
        if isinstance(op, tma.SyncTmaLoad):
            op.num_parts = 2
    text, _ = _ringed(kernel, warp_specialize=not is_alone)
    assert bool(kernel.producer_warps) == (not is_alone)
    assert ("num_parts = 2" in text) == (not is_alone)


CHECKS = """\
// CHECK: producer_warps = 1
// CHECK: [[FIRST:%[0-9]+]] = arith.constant {value = 0, type = i32}
// CHECK-NEXT: [[RING:%.*]] = gpu.shared_alloc {{{.*}}num_stages = 3}
// CHECK-NEXT: scf.for(%zero, %n, %one, [[FIRST]]) (%i: i32, [[INDEX:%[a-z]+]]: i32) {
// CHECK: %a_buffer = gpu.shared_stage([[RING]], [[INDEX]]) :
// CHECK-NEXT: gpu.sync_tma_load(%x, %a_buffer, %a_at)
// CHECK-NEXT: %a = gpu.shared_load(%a_buffer)
// CHECK: [[NEXT:%.*]] = gpu.next_stage([[INDEX]]) {num_stages = 3}
// CHECK-NEXT: scf.yield([[NEXT]])
"""


def test_a_loop_advances_the_index_of_its_stage() -> None:
    """The load stays where it was: `specialize_warps` moves it."""
    applied(CHECKS + text_of(loop(copy("a", "%i"))), choose_warp_roles)

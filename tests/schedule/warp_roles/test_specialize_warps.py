"""Warp roles: order of ops, release of stages, and register counts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from aotc.compiler import CompileRequest
from aotc.config import Config
from aotc.ir.core import Block, Kernel
from aotc.ir.dialects import gpu, mbarrier, roles, tma, wgmma
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.verify import verify
from aotc.schedule.context import Schedule
from aotc.schedule.pipelining.expand_tensor_loads import expand_tensor_loads
from aotc.schedule.shared_memory.allocate_shared import allocate_shared
from aotc.schedule.shared_memory.insert_barriers import insert_barriers
from aotc.schedule.warp_roles.choose_warp_roles import choose_warp_roles
from aotc.schedule.warp_roles.specialize_warps import specialize_warps
from aotc.stages import stage_text
from aotc.target import TARGETS
from tests.support.descriptors import PRELUDE
from tests.support.pass_case import applied, assert_same_meaning
from tests.support.tensor_loads import (
    ALLOC,
    branch,
    check_same_results,
    copy,
    either,
    keep,
    kernel_of,
    load,
    loop,
    read,
    text_of,
)

STEPS = (
    *(mbarrier.MbarrierWait, mbarrier.MbarrierArrive, tma.TmaLoad, gpu.SharedLoad),
    *(wgmma.Wgmma, wgmma.WgmmaWait),
)


def _specialized(kernel: Kernel, **config: int) -> roles.Specialize:
    """Divide the roles of a kernel and return them."""
    schedule = Schedule(TARGETS["sm_90a"], Config(kernel.num_warps, **config))
    for run_pass in (choose_warp_roles, specialize_warps, allocate_shared, insert_barriers):
        run_pass(kernel, schedule)
        verify(kernel)
    printed = print_kernel(kernel)
    assert print_kernel(parse_kernel(printed)) == printed
    return _roles(kernel)


def _roles(kernel: Kernel) -> roles.Specialize:
    (specialize,) = (op for op in kernel.body if isinstance(op, roles.Specialize))
    return specialize


def _steps(block: Block) -> list[str]:
    """Return a role's ops on copies and products, in program order."""
    return [op.opcode.removeprefix("gpu.") for op in block.walk() if isinstance(op, STEPS)]


# ---- order of ops -----------------------------------------------------------------------------


def test_fetches_that_stand_together_share_their_mbarriers() -> None:
    body = load("a", "%i") + load("b", "%i", "%z") + read("a") + read("b")
    specialize = _specialized(kernel_of(loop(body)))
    assert _steps(specialize.consumers) == [
        *("mbarrier_wait", "shared_load", "shared_load", "mbarrier_arrive"),
    ]
    assert _steps(specialize.producer) == ["mbarrier_wait", "tma_load", "tma_load"]
    loads = [op for op in specialize.producer.walk() if isinstance(op, tma.TmaLoad)]
    assert [op.arrive for op in loads] == [False, True]


def test_a_use_of_what_was_fetched_ends_a_group() -> None:
    body = load("a", "%i") + read("a") + keep("a") + load("b", "%i", "%z")
    body += read("b") + read("a", "again")
    specialize = _specialized(kernel_of(loop(body)))
    assert _steps(specialize.consumers) == [
        *("mbarrier_wait", "shared_load", "mbarrier_wait", "shared_load", "mbarrier_arrive"),
        *("shared_load", "mbarrier_arrive"),
    ]
    assert _steps(specialize.producer) == ["mbarrier_wait", "tma_load"] * 2


def test_a_slot_is_given_back_behind_the_loop_or_branch_that_reads_it_last() -> None:
    inner = loop(load("b", "%j", "%z") + read("b") + read("a"), variable="j")
    specialize = _specialized(
        kernel_of(loop(load("a", "%i") + inner + branch("%c", read("a", "last"))))
    )
    assert _steps(specialize.consumers) == [
        *("mbarrier_wait", "mbarrier_wait", "shared_load", "mbarrier_arrive", "shared_load"),
        *("shared_load", "mbarrier_arrive"),
    ]
    outer = next(op for op in specialize.consumers if op.opcode == "scf.for")
    assert [op.opcode for op in outer.blocks[0]][-2:] == ["gpu.mbarrier_arrive", "scf.yield"]


def test_what_is_never_read_is_given_back_at_once() -> None:
    specialize = _specialized(kernel_of(loop(load("a", "%i"))))
    assert _steps(specialize.consumers) == ["mbarrier_wait", "mbarrier_arrive"]


def test_no_barrier_of_the_block_stands_in_a_role() -> None:
    """One is in front of both: from there on everybody sees the mbarriers."""
    kernel = kernel_of(loop(load("a", "%i") + read("a")))
    specialize = _specialized(kernel)
    before = [op.opcode for op in kernel.body if op.opcode.startswith("gpu.")]
    assert before[-4:] == [
        "gpu.mbarrier_init",
        "gpu.mbarrier_init",
        "gpu.barrier",
        "gpu.specialize",
    ]
    assert not [op for op in specialize.producer.walk() if isinstance(op, gpu.Barrier)]


# ---- results ----------------------------------------------------------------------------------

FLOWS = {
    "a loop": loop(copy("a", "%i")),
    "nested": loop(copy("a", "%i") + loop(copy("b", "%j", "%z"), variable="j")),
    "in both arms of a branch": loop(
        either("%c", copy("a", "%i"), copy("b", "%i", "%z")) + copy("d", "%one", "%z")
    ),
    "in the arms of branches by turns": loop(
        "  %one_more = arith.constant {value = 2, type = i32} : i32\n"
        "  %i_two = arith.rem(%i, %one_more) : i32\n"
        '  %is_odd = arith.compare(%i_two, %one) {predicate = "eq"} : i1\n'
        + either("%is_odd", copy("a", "%i"), copy("b", "%i", "%z"))
    ),
    "in a branch": loop(branch("%c", copy("a", "%i")) + copy("b", "%one", "%z")),
    "around": copy("a", "%n") + loop(copy("b", "%i")) + copy("e", "%zero", "%z"),
    "one after the other": loop(copy("a", "%i")) + loop(copy("b", "%j", "%z"), variable="j"),
}


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("num_stages", [1, 2, 3])
def test_the_roles_do_together_what_the_kernel_did(flow: str, num_stages: int) -> None:
    """Under the interpreter, which tracks permitted accesses."""
    whole, divided = kernel_of(FLOWS[flow]), kernel_of(FLOWS[flow])
    _specialized(divided, num_stages=num_stages)
    check_same_results(whole, divided, (0, 1, 2, 5))


# ---- products ---------------------------------------------------------------------------------

MATMUL = """def k(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        total = tl.dot(a.load([0, k]), b.load([k, 0]), total)
    c.store([0, 0], total.to(c.dtype))
"""


def _matmul(
    folder: Path, block: Sequence[int], num_warps: int = 4, num_stages: int = 3, maxnreg: int = 0
) -> Kernel:
    rows, columns, depth = block
    signature = {
        "a": f"tensordesc<bf16[{rows},{depth}]>",
        "b": f"tensordesc<bf16[{depth},{columns}]>",
        "c": f"tensordesc<bf16[{rows},{columns}]>",
        "K": "i32",
    }
    path = folder / "kernel.py"
    path.write_text(PRELUDE + MATMUL, encoding="utf-8")
    constants = tuple(zip(("BM", "BN", "BK"), block, strict=True))
    request = CompileRequest(
        *(str(path), "k", tuple(signature.items()), constants, "sm_90a"),
        Config(num_warps, num_stages, maxnreg=maxnreg or None),
    )
    return parse_kernel(stage_text(request, "gpu"))


def test_a_slot_that_a_running_product_reads_is_given_back_an_iteration_later(
    tmp_path: Path,
) -> None:
    specialize = _roles(_matmul(tmp_path, (64, 32, 32)))
    assert _steps(specialize.consumers)[:6] == [
        *("mbarrier_wait", "wgmma", "wgmma_wait", "mbarrier_arrive"),
        *("wgmma_wait", "mbarrier_arrive"),
    ]
    inside, outside = (
        op for op in specialize.consumers.walk() if isinstance(op, mbarrier.MbarrierArrive)
    )
    assert inside.enabled is not None  # the first iteration has none before it
    assert outside.enabled is None
    for op in (inside, outside):
        stage = op.barrier.op
        assert isinstance(stage, gpu.SharedStage)
        assert stage.ahead == 2  # of three: the one before


@pytest.mark.parametrize(
    ("block", "num_warps", "expected"),
    [
        ((64, 32, 32), 4, (0, 0)),
        ((128, 128, 64), 4, (0, 0)),
        ((128, 256, 64), 8, (232, 40)),
        ((256, 128, 64), 8, (232, 40)),
        ((256, 128, 64), 16, (112, 32)),
    ],
)
def test_sums_take_the_registers_that_a_producer_has_no_use_for(
    tmp_path: Path, block: Sequence[int], num_warps: int, expected: tuple[int, int]
) -> None:
    specialize = _roles(_matmul(tmp_path, block, num_warps, num_stages=2))
    assert (specialize.consumer_registers, specialize.producer_registers) == expected


def test_a_config_with_maxnreg_moves_no_registers(tmp_path: Path) -> None:
    specialize = _roles(_matmul(tmp_path, (128, 256, 64), 8, 2, maxnreg=168))
    assert not specialize.consumer_registers


def test_registers_fit_the_launch(tmp_path: Path) -> None:
    """Consumers take no more registers than the producer's warps leave."""
    for block, num_warps in (((128, 128, 64), 4), ((128, 256, 64), 8), ((256, 128, 64), 16)):
        kernel = _matmul(tmp_path, block, num_warps, num_stages=2)
        specialize = _roles(kernel)
        num_registers = (
            num_warps * specialize.consumer_registers + 4 * specialize.producer_registers
        )
        assert num_registers <= (num_warps + 4) * (65536 // 32 // (num_warps + 4) // 8 * 8)


def test_the_remark_says_so() -> None:
    kernel = kernel_of(loop(load("a", "%i") + read("a")))
    schedule = Schedule(TARGETS["sm_90a"], Config(2))
    choose_warp_roles(kernel, schedule)
    specialize_warps(kernel, schedule)
    assert [re.sub(r"^.*: ", "", remark) for remark in schedule.remarks] == [
        "a producer warp issues the loads, stages ahead"
    ]


# ---- the resulting IR ---------------------------------------------------------------------------

CHECKS = """\
// CHECK: [[RING:%.*]] = gpu.shared_alloc {element = i32, {{.*}}num_stages = 3}
// CHECK: [[FULL:%.*]] = gpu.shared_alloc {element = u64, {{.*}}num_stages = 3}
// CHECK-NEXT: [[EMPTY:%.*]] = gpu.shared_alloc {element = u64, {{.*}}num_stages = 3}
// CHECK-NEXT: gpu.mbarrier_init([[FULL]])
// CHECK-NEXT: gpu.mbarrier_init([[EMPTY]]) {count = 2}
// CHECK: gpu.barrier
// CHECK-NEXT: gpu.specialize () {
// CHECK: scf.for({{.*}}, [[INDEX:%[a-z_0-9]+]]: i32, [[PHASE:%[a-z_0-9]+]]: i32) {
// CHECK: [[DATA:%.*]] = gpu.shared_stage([[RING]], [[INDEX]]) :
// CHECK: [[STAGE:%.*]] = gpu.shared_stage([[FULL]], [[INDEX]]) :
// CHECK-NEXT: gpu.mbarrier_wait([[STAGE]], [[PHASE]])
// CHECK: [[NEXT:%.*]] = gpu.next_stage([[INDEX]]) {num_stages = 3}
// CHECK: [[FLIPPED:%.*]] = arith.xor([[PHASE]],
// CHECK-NEXT: %a = gpu.shared_load([[DATA]])
// CHECK-NEXT: [[STAGE:%.*]] = gpu.shared_stage([[EMPTY]], [[INDEX]]) :
// CHECK-NEXT: gpu.mbarrier_arrive([[STAGE]], _) {count = 2}
// CHECK: gpu.tma_store(%y
// CHECK: scf.yield({{.*}}[[NEXT]], [[FLIPPED]])
// CHECK: } () {
// CHECK: scf.for({{.*}}, [[INDEX:%[a-z_0-9]+]]: i32, [[PHASE:%[a-z_0-9]+]]: i32) {
// CHECK: [[DATA:%.*]] = gpu.shared_stage([[RING]], [[INDEX]]) :
// CHECK: [[BEFORE:%.*]] = arith.xor([[PHASE]],
// CHECK-NEXT: [[STAGE:%.*]] = gpu.shared_stage([[EMPTY]], [[INDEX]]) :
// CHECK-NEXT: gpu.mbarrier_wait([[STAGE]], [[BEFORE]])
// CHECK-NEXT: [[STAGE:%.*]] = gpu.shared_stage([[FULL]], [[INDEX]]) :
// CHECK-NEXT: gpu.tma_load(%x, [[DATA]], [[STAGE]], {{%.*}})
// CHECK-NOT: gpu.tma_store
// CHECK: [[NEXT:%.*]] = gpu.next_stage([[INDEX]]) {num_stages = 3}
// CHECK: [[FLIPPED:%.*]] = arith.xor([[PHASE]],
// CHECK-NEXT: scf.yield([[NEXT]], [[FLIPPED]])
"""


def test_a_stage_is_filled_after_it_is_released_and_read_after_it_is_full() -> None:
    text = CHECKS + text_of(loop(copy("a", "%i")))
    applied(text, choose_warp_roles, specialize_warps)


# Box i of y is the box of x given by a table; the next entry is loaded an iteration ahead.
PAGED = f"""\
  %wide = arith.constant {{value = 128, type = i32}} : i32
  %first = gpu.load(%p, _, _) : i32
  %last = scf.for(%zero, %n, %one, %first) (%i: i32, %page: i32) {{
    %ahead = arith.add(%i, %one) : i32
    %entry = arith.addptr(%p, %ahead) : *i32
    %next = gpu.load(%entry, _, _) : i32
    %from = arith.mul(%page, %wide) : i32
    {load("a", "%from")}{read("a")}
    %out = {ALLOC}
    gpu.shared_store(%a, %out) {{vector = 2}}
    gpu.proxy_fence
    %to = arith.mul(%i, %wide) : i32
    gpu.tma_store(%y, %out, %to)
    gpu.tma_store_wait
    scf.yield(%next)
  }} : i32
"""
PAGED_CHECKS = """\
// CHECK: gpu.specialize () {
// CHECK: scf.for(
// CHECK-NOT: gpu.load(
// CHECK: gpu.tma_store(%y
// CHECK: } () {
// CHECK: gpu.load(
// CHECK: scf.for(
// CHECK: gpu.load(
// CHECK: gpu.tma_load(%x
"""


def test_consumers_load_nothing_for_the_producer_alone() -> None:
    text = PAGED_CHECKS + text_of(PAGED)
    kernel = applied(text, choose_warp_roles, specialize_warps)
    x = np.arange(128 * 5, dtype=np.int32)
    for n in (1, 2, 4):
        args = [x, x, np.full(x.size, -1, np.int32), np.array([3, 0, 4, 4, 1], np.int32), n, 0]
        lower = (expand_tensor_loads, allocate_shared, insert_barriers)
        assert_same_meaning(text, kernel, args, lower=lower)

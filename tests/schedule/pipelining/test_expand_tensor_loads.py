"""Fetches become loads and waits with parities alternating on every path."""

from __future__ import annotations

import re

from aotc.ir.core import Kernel
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.verify import verify
from aotc.schedule.context import Schedule
from aotc.schedule.pipelining.expand_tensor_loads import expand_tensor_loads
from aotc.target import TARGETS
from tests.support.pass_case import applied
from tests.support.tensor_loads import copy, loop, text_of

HEAD = """\
#0 = #ll<offset=[[1],[2],[4],[8],[16],[32],[64]] : [128]>
#1 = #ll<register=[[32],[64]] lane=[[1],[2],[4],[8],[16]] : [128]>
kernel @k(%x: map<128xfp32, 0>, %p: *fp32, %n: i32, %c: i1) {num_warps = 1} {
"""
ALLOC = (
    "gpu.shared_alloc {element = fp32, shape = [128], layout = #0, alignment_bytes = 128}"
    " : shared<128xfp32, #0>"
)
LOAD = "{layout = #1, vector = 1} : tile<128xfp32, #1>"


def _expanded(body: str, target: str = "sm_90a") -> str:
    kernel: Kernel = parse_kernel(HEAD + body + "  scf.return\n}\n")
    expand_tensor_loads(kernel, Schedule(TARGETS[target]))
    verify(kernel)
    printed = print_kernel(kernel)
    assert print_kernel(parse_kernel(printed)) == printed
    return printed


def _order(text: str) -> list[str]:
    """Return the names of the ops of `gpu` in a text."""
    return re.findall(r"\bgpu\.(\w+)", text)


def test_without_fetches_nothing_changes() -> None:
    assert "mbarrier" not in _expanded(f"  %b = {ALLOC}\n  gpu.barrier\n")


def test_fetches_that_stand_together_are_awaited_together() -> None:
    text = _expanded(
        f"  %b = {ALLOC}\n  gpu.sync_tma_load(%x, %b, %n)\n  %v = gpu.shared_load(%b) {LOAD}\n"
        f"  %two = arith.constant {{value = 2, type = i32}} : i32\n"
        f"  %m = arith.mul(%n, %two) : i32\n"
        f"  %d = {ALLOC}\n  gpu.sync_tma_load(%x, %d, %m)\n  %w = gpu.shared_load(%d) {LOAD}\n"
    )
    order = _order(text)
    assert order == [
        *("shared_alloc", "mbarrier_init", "shared_alloc", "shared_alloc", "tma_load"),
        *("tma_load", "mbarrier_wait", "shared_load", "shared_load"),
    ]
    assert text.count("arrive = false") == 1


def test_a_fetch_that_needs_what_was_loaded_waits() -> None:
    combine = "(%a: fp32, %e: fp32) {\n    scf.yield(%a)\n  }"
    text = _expanded(
        f"  %b = {ALLOC}\n  gpu.sync_tma_load(%x, %b, %n)\n  %v = gpu.shared_load(%b) {LOAD}\n"
        f"  %s = gpu.reduce(%v) {{axis = 0}} {combine} : fp32\n"
        f"  %i = arith.cast(%s) {{dtype = i32}} : i32\n"
        f"  %d = {ALLOC}\n  gpu.sync_tma_load(%x, %d, %i)\n  %w = gpu.shared_load(%d) {LOAD}\n"
    )
    assert _order(text).count("mbarrier_wait") == 2
    assert text.count("arrive = false") == 0


def test_a_write_between_fetches_keeps_them_apart() -> None:
    text = _expanded(
        f"  %b = {ALLOC}\n  gpu.sync_tma_load(%x, %b, %n)\n  gpu.barrier\n"
        f"  %d = {ALLOC}\n  gpu.sync_tma_load(%x, %d, %n)\n"
    )
    assert _order(text).count("mbarrier_wait") == 2


def test_a_group_fits_half_of_shared_memory() -> None:
    pairs = "".join(
        f"  %b{i} = {ALLOC}\n  gpu.sync_tma_load(%x, %b{i}, %n)\n  %v{i} = gpu.shared_load(%b{i}) {LOAD}\n"
        for i in range(110)
    )
    text = _expanded(pairs, "sm_120a")  # 99 KiB: 99 buffers of 512 bytes are a half
    assert _order(text).count("mbarrier_wait") == 2


def test_the_parity_goes_through_loops_and_branches() -> None:
    text = _expanded(
        "  %zero = arith.constant {value = 0, type = i32} : i32\n"
        "  %one = arith.constant {value = 1, type = i32} : i32\n"
        "  %last = scf.for(%zero, %n, %one, %n) (%i: i32, %v: i32) {\n"
        f"    scf.if(%c) () {{\n      %b = {ALLOC}\n      gpu.sync_tma_load(%x, %b, %i)\n"
        "      scf.yield()\n    } () {\n      scf.yield()\n    }\n"
        "    scf.yield(%v)\n  } : i32\n"
        "  %end = scf.while(%last) (%j: i32) {\n    scf.condition(%c, %j)\n  } (%k: i32) {\n"
        f"    %d = {ALLOC}\n    gpu.sync_tma_load(%x, %d, %k)\n    scf.yield(%k)\n  }} : i32\n"
    )
    assert "(%i: i32, %v: i32, %parity: i32)" in text
    assert text.count("scf.condition(%c, %j, %parity") == 1
    assert text.count("arith.xor(%parity") == 2


CHECKS = """\
// CHECK: [[BARRIER:%.*]] = gpu.shared_alloc {element = u64
// CHECK-NEXT: gpu.mbarrier_init([[BARRIER]])
// CHECK: scf.for({{.*}}, [[PARITY:%[a-z]+]]: i32) {
// CHECK: gpu.tma_load(%x, %a_buffer, [[BARRIER]], %a_at)
// CHECK-NEXT: gpu.mbarrier_wait([[BARRIER]], [[PARITY]])
// CHECK: [[FLIPPED:%.*]] = arith.xor([[PARITY]],
// CHECK-NEXT: %a = gpu.shared_load(%a_buffer)
// CHECK-NOT: gpu.mbarrier_wait
// CHECK: scf.yield([[FLIPPED]])
"""


def test_a_load_is_awaited_at_once_and_each_iteration_flips_the_parity() -> None:
    applied(CHECKS + text_of(loop(copy("a", "%i"))), expand_tensor_loads)

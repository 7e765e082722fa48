"""Barriers stand where accesses meet, and nowhere else: slots of a buffer are told apart."""

from __future__ import annotations

import pytest

from aotc.ir.text import parse_kernel, print_kernel
from aotc.schedule.allocate_shared import allocate_shared
from aotc.schedule.context import Schedule
from aotc.schedule.insert_barriers import insert_barriers
from aotc.target import TARGETS
from tests.support.checks import check

_KERNEL = """
#0 = #ll<register=[[1],[2]] lane=[[4],[8],[16],[32],[64]] warp=[[128],[256]] : [512]>
#1 = #ll<register=[[128],[256]] lane=[[1],[2],[4],[8],[16]] warp=[[32],[64]] : [512]>
#2 = #ll<offset=[[1],[2],[4],[8],[16],[32],[64],[128],[256]] : [512]>
kernel @k(%x: *fp32 {{divisibility = 16}}, %n: i32) {{num_warps = 4}} {{
  %i = tile.arange {{start = 0, end = 512, layout = #0}} : tile<512xi32, #0>
  %xs = tile.splat(%x) {{shape = [512], layout = #0}} : tile<512x*fp32, #0>
  %at = arith.addptr(%xs, %i) : tile<512x*fp32, #0>
  %c0 = arith.constant {{value = 0, type = i32}} : i32
  %c1 = arith.constant {{value = 1, type = i32}} : i32
{body}
  scf.return
}}
"""
_BUFFER = """
  %b = gpu.shared_alloc {{element = fp32, shape = [512], layout = #2, num_slots = {slots}}} : shared<512xfp32, #2, {slots}>
"""


def with_barriers(body: str) -> str:
    kernel = parse_kernel(_KERNEL.format(body=body))
    schedule = Schedule(TARGETS["sm_80"])
    allocate_shared(kernel, schedule)
    insert_barriers(kernel, schedule)
    return print_kernel(kernel)


def pipeline(slots: int, ahead: int, first: int = 0) -> str:
    """Return a loop that copies `ahead` slots ahead of the one it reads, after reading it."""
    early = "".join(
        f"""
  %e{k} = gpu.shared_slot(%b, %first) {{ahead = {k}}} : shared<512xfp32, #2>
  gpu.async_copy(%at, %e{k}) {{vector = 4}}
  gpu.async_commit"""
        for k in range(ahead)
    )
    return f"""{_BUFFER.format(slots=slots)}
  %first = arith.constant {{value = {first}, type = i32}} : i32
{early}
  %end = scf.for(%c0, %n, %c1, %first) (%k: i32, %slot: i32) {{
    gpu.async_wait {{pending = {ahead - 1}}}
    %s = gpu.shared_slot(%b, %slot) : shared<512xfp32, #2>
    %v = gpu.shared_load(%s) {{layout = #1, vector = 1}} : tile<512xfp32, #1>
    %t = gpu.shared_slot(%b, %slot) {{ahead = {ahead}}} : shared<512xfp32, #2>
    gpu.async_copy(%at, %t) {{vector = 4}}
    gpu.async_commit
    %next = gpu.next_slot(%slot) {{num_slots = {slots}}} : i32
    scf.yield(%next)
  }} : i32
  gpu.async_wait {{pending = 0}}
"""


@pytest.mark.parametrize(("slots", "first"), [(2, 0), (3, 0), (3, 2), (5, 1)])
def test_a_slot_for_every_stage_needs_one_barrier(slots: int, first: int) -> None:
    text = with_barriers(pipeline(slots, slots - 1, first))
    assert text.count("gpu.barrier") == 1
    check("// CHECK: gpu.async_wait\n// CHECK: gpu.barrier\n// CHECK: gpu.shared_load", text)


@pytest.mark.parametrize("slots", [2, 3])
def test_a_slot_too_few_needs_two(slots: int) -> None:
    """The copy goes to the slot that was read just before it."""
    text = with_barriers(pipeline(slots, slots).replace(f"ahead = {slots}}}", "ahead = 0}"))
    assert text.count("gpu.barrier") == 2


def test_a_slot_to_spare_needs_one() -> None:
    assert with_barriers(pipeline(4, 2)).count("gpu.barrier") == 1


def test_stores_alternate_between_two_slots() -> None:
    """As tiles that go to shared memory through registers do."""
    body = """{buffer}
  %end = scf.for(%c0, %n, %c1, %c0) (%k: i32, %slot: i32) {{
    %v = gpu.load(%at) {{vector = 4}} : tile<512xfp32, #0>
    %s = gpu.shared_slot(%b, %slot) : shared<512xfp32, #2>
    gpu.shared_store(%v, %s) {{vector = 4}}
    %w = gpu.shared_load(%s) {{layout = #1}} : tile<512xfp32, #1>
    %next = {next} : i32
    scf.yield(%next)
  }} : i32
"""
    turning = "gpu.next_slot(%slot) {num_slots = 2}"
    text = with_barriers(body.format(buffer=_BUFFER.format(slots=2), next=turning))
    assert text.count("gpu.barrier") == 1
    # A number that nobody can follow may be any slot's.
    unknown = "arith.xor(%slot, %k)"
    text = with_barriers(body.format(buffer=_BUFFER.format(slots=2), next=unknown))
    assert text.count("gpu.barrier") == 2


def test_bytes_are_used_again_only_after_all_copies_have_landed() -> None:
    body = (
        pipeline(3, 2)
        + """
  %c = gpu.shared_alloc {element = fp32, shape = [512], layout = #2} : shared<512xfp32, #2>
  %v2 = gpu.load(%at) {vector = 4} : tile<512xfp32, #0>
  gpu.shared_store(%v2, %c) {vector = 4}
  %w2 = gpu.shared_load(%c) {layout = #1} : tile<512xfp32, #1>
"""
    )
    text = with_barriers(body)
    assert "shared_bytes = 6144" in text
    after = text[text.index("pending = 0") :]
    check("// CHECK: gpu.barrier\n// CHECK: gpu.shared_store", after)
    # While copies may be in flight, their bytes are taken.
    late = body.replace("  gpu.async_wait {pending = 0}\n", "") + "  gpu.async_wait {pending = 0}\n"
    assert "shared_bytes = 8192" in with_barriers(late)

"""TMA stores in flight: their waits, buffers, and slices of blocks."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from aotc.ir.core import Kernel
from aotc.ir.dialects import gpu, scf, tma
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.verify import verify
from aotc.schedule.context import Schedule
from aotc.schedule.epilogue.pipeline_tma_stores import pipeline_tma_stores
from aotc.schedule.shared_memory.allocate_shared import allocate_shared
from aotc.schedule.shared_memory.insert_barriers import insert_barriers
from aotc.target import TARGETS
from aotc.verify.interpreter.run import run
from tests.support.pass_case import applied, assert_same_meaning

HEAD = """\
#0 = #ll<offset=[[1],[2],[4],[8],[16],[32],[64],[128],[256],[512]] : [1024]>
#1 = #ll<register=[[1],[2],[256],[512]] lane=[[4],[8],[16],[32],[64]] warp=[[128]] : [1024]>
#2 = #ll<register=[[1],[2],[4],[8]] lane=[[16],[32],[64],[128],[256]] warp=[[512]] : [1024]>
kernel @k(%x: map<256xfp32, 0>, %y: map<256xfp32, 0>, %p: *fp32, %n: i32) {num_warps = 2} {
  %e = tile.arange {start = 0, end = 1024, layout = LAYOUT} : tile<1024xi32, LAYOUT>
  %ps = tile.splat(%p) {shape = [1024], layout = LAYOUT} : tile<1024x*fp32, LAYOUT>
  %ptrs = arith.addptr(%ps, %e) : tile<1024x*fp32, LAYOUT>
  %v = gpu.load(%ptrs) : tile<1024xfp32, LAYOUT>
  %zero = arith.constant {value = 0, type = i32} : i32
  %step = arith.constant {value = 1024, type = i32} : i32
"""
PARTS, NO_PARTS = "#1", "#2"
BUFFER = (
    "gpu.shared_alloc {element = fp32, shape = [1024], layout = #0, alignment_bytes = 128}"
    " : shared<1024xfp32, #0>"
)
BLOCK_BYTES, PART_BYTES = 4096, 1024


def _store(name: str, tensor: str = "x", coord: str = "zero", written: str = "") -> tuple[str, ...]:
    return (
        f"%{name} = {BUFFER}",
        f"gpu.staged_tma_store(%{tensor}, %v, %{name}, %{coord}){written}",
    )


def _loop(*lines: str, variable: str = "i") -> tuple[str, ...]:
    return (f"scf.for(%zero, %n, %step) (%{variable}: i32) {{", *lines, "scf.yield()", "}")


def _overlapped(*lines: str, layout: str = PARTS, room: int = 1 << 16) -> tuple[Kernel, Schedule]:
    """Return the kernel after the pass, on a target with `room` bytes of shared memory."""
    head = HEAD.replace("LAYOUT", layout)
    kernel = parse_kernel(head + "".join(f"  {line}\n" for line in lines) + "  scf.return\n}\n")
    schedule = Schedule(replace(TARGETS["sm_90a"], max_shared_bytes=room))
    pipeline_tma_stores(kernel, schedule)
    verify(kernel)
    return kernel, schedule


def _ops(kernel: Kernel) -> list[str]:
    """Return the accesses and waits in order; a loop is in brackets."""
    text = print_kernel(kernel)
    names_in_text = re.findall(
        r"scf\.for|scf\.yield|gpu\.\w+(?:\(.*pending = \d+|.*pending = \d+)?", text
    )
    names = {"scf.for": "[", "scf.yield": "]"}
    ops = [
        names.get(op, re.sub(r"gpu\.(\w+).*?(\d*)$", r"\1 \2", op).strip()) for op in names_in_text
    ]
    return [op for op in ops if op not in ("load", "shared_alloc", "extract")]


def _buffers(kernel: Kernel) -> list[gpu.SharedAlloc]:
    return [op for op in kernel.walk() if isinstance(op, gpu.SharedAlloc)]


# ---- loops ------------------------------------------------------------------------------------


def test_a_store_of_a_loop_runs_on() -> None:
    kernel, schedule = _overlapped(*_loop(*_store("b", coord="i")))
    assert _ops(kernel) == [
        *("[", "tma_store_wait", "shared_store", "tma_store", "]", "tma_store_wait")
    ]
    (buffer,) = _buffers(kernel)
    assert buffer.block is kernel.body
    assert schedule.remarks == []


def test_the_wait_of_a_nest_is_behind_all_of_it() -> None:
    kernel, _ = _overlapped(*_loop(*_loop(*_store("b"), variable="j")))
    assert _ops(kernel) == [
        *("[", "[", "tma_store_wait", "shared_store", "tma_store", "]", "]", "tma_store_wait")
    ]


def test_two_stores_wait_each_for_its_own_buffer() -> None:
    kernel, _ = _overlapped(*_loop(*_store("b", coord="i"), *_store("c", "y", coord="i")))
    assert _ops(kernel) == [
        "[",
        *("tma_store_wait 1", "shared_store", "tma_store"),
        *("tma_store_wait 1", "shared_store", "tma_store"),
        *("]", "tma_store_wait"),
    ]


@pytest.mark.parametrize(
    ("num_buffers", "waits"),
    [(3, {2: "tma_store_wait 1"}), (2, {1: "tma_store_wait", 2: "tma_store_wait"})],
)
def test_parts_go_through_as_many_buffers_as_fit(num_buffers: int, waits: dict[int, str]) -> None:
    room = num_buffers * PART_BYTES + PART_BYTES - 1
    kernel, schedule = _overlapped(*_loop(*_store("b", coord="i")), room=room)
    expected = ["[", "tma_store_wait"]
    for part in range(4):
        expected += ["shared_store", *([waits[part]] if part in waits else []), "tma_store"]
    assert _ops(kernel) == [*expected, "]", "tma_store_wait"]
    assert len(_buffers(kernel)) == num_buffers
    (remark,) = schedule.remarks
    assert f"in 4 slices, through {num_buffers} buffers of 1024 bytes" in remark


def test_one_buffer_is_waited_for_part_by_part() -> None:
    kernel, _ = _overlapped(*_loop(*_store("b", coord="i")), room=PART_BYTES)
    part = ["shared_store", "tma_store", "tma_store_wait"]
    assert _ops(kernel) == ["[", "tma_store_wait", *(part * 4)[:-1], "]", "tma_store_wait"]


THREE = tuple(line for name in "bcd" for line in _store(name, coord="i"))


def test_blocks_of_one_kind_take_turns() -> None:
    """Three whole blocks through two buffers: threads hold parts in different ways."""
    kernel, schedule = _overlapped(*_loop(*THREE), layout=NO_PARTS, room=3 * BLOCK_BYTES - 1)
    assert _ops(kernel) == [
        *("[", "tma_store_wait"),
        *("shared_store", "tma_store"),
        *("shared_store", "tma_store_wait", "tma_store"),
        *("shared_store", "tma_store"),
        *("]", "tma_store_wait"),
    ]
    assert len(_buffers(kernel)) == 2
    (remark,) = schedule.remarks
    assert "3 tiles are stored in 3 slices, through 2 buffers of 4096 bytes" in remark


def test_parts_of_several_blocks_take_turns_together() -> None:
    kernel, schedule = _overlapped(*_loop(*THREE), room=3 * PART_BYTES)
    waits = ["shared_store", "tma_store_wait 1", "tma_store"]
    plain = ["shared_store", "tma_store"]
    expected = ["[", "tma_store_wait", *plain * 2, *waits * 9, *plain, "]", "tma_store_wait"]
    assert _ops(kernel) == expected
    assert len(_buffers(kernel)) == 3
    (remark,) = schedule.remarks
    assert "3 tiles are stored in 12 slices, through 3 buffers of 1024 bytes" in remark


def test_whole_blocks_have_buffers_of_their_own_where_they_fit() -> None:
    kernel, schedule = _overlapped(*_loop(*THREE), room=3 * BLOCK_BYTES)
    store_steps = ["tma_store_wait 2", "shared_store", "tma_store"]
    assert _ops(kernel) == ["[", *store_steps * 3, "]", "tma_store_wait"]
    assert schedule.remarks == []


def test_only_what_is_in_one_block_takes_turns() -> None:
    """A conditional store may not happen, so no wait counts it."""
    rare = (
        "scf.if(%rare) () {",
        *_store("c", coord="i"),
        "scf.yield()",
        "} () {",
        "scf.yield()",
        "}",
    )
    condition = '%rare = arith.compare(%i, %step) {predicate = "lt"} : i1'
    lines = _loop(condition, *_store("b", coord="i"), *rare)
    kernel, schedule = _overlapped(*lines, room=2 * PART_BYTES + BLOCK_BYTES)
    assert _ops(kernel).count("tma_store") == 4 + 1
    assert len(_buffers(kernel)) == 2 + 1
    (remark,) = schedule.remarks
    assert "the tile is stored in 4 slices, through 2 buffers" in remark


def test_a_part_costs_one_barrier() -> None:
    kernel, schedule = _overlapped(*_loop(*_store("b", coord="i")), room=2 * PART_BYTES)
    allocate_shared(kernel, schedule)
    insert_barriers(kernel, schedule)
    (loop,) = (op for op in kernel.body if isinstance(op, scf.For))
    assert sum(isinstance(op, gpu.Barrier) for op in loop.body) == 1 + 4


def test_threads_that_share_parts_wait_at_once_where_there_is_no_room() -> None:
    kernel, schedule = _overlapped(
        f"%o = {BUFFER}",
        *_loop(*_store("b", coord="i"), "gpu.tma_store(%y, %o, %i)", "gpu.tma_store_wait"),
        layout=NO_PARTS,
        room=2 * BLOCK_BYTES - 1,
    )
    assert _ops(kernel)[:4] == ["[", "shared_store", "tma_store", "tma_store_wait"]
    assert schedule.remarks == []  # it did not fit before either


def test_a_remark_says_why_a_store_does_not_run_on() -> None:
    other = (f"%o = {BUFFER}", "gpu.shared_store(%v, %o) {vector = 4}")
    read = "%r = gpu.shared_load(%o) {layout = #2, vector = 4} : tile<1024xfp32, #2>"
    kernel, schedule = _overlapped(
        *_loop(*other, read, *_store("b", coord="i")), layout=NO_PARTS, room=2 * BLOCK_BYTES - 1
    )
    assert _ops(kernel)[-3:] == ["tma_store", "tma_store_wait", "]"]
    assert "no room for a buffer of its own of 4096 bytes" in schedule.remarks[0]


def test_a_wait_that_others_rely_on_stays() -> None:
    kernel, _ = _overlapped(*_loop(*_store("b", coord="i", written=" {written = true}")))
    assert _ops(kernel) == ["[", "shared_store", "tma_store", "tma_store_wait", "]"]


# ---- no loop ----------------------------------------------------------------------------------


def test_stores_are_waited_for_at_the_end_if_that_is_free() -> None:
    """The first buffer's bytes are not needed for the second where a bigger one came before."""
    big = (f"%o = {BUFFER}", f"%q = {BUFFER}", "gpu.shared_store(%v, %o) {vector = 4}")
    reads = tuple(
        f"%r{name} = gpu.shared_load(%{name}) {{layout = #2, vector = 4}} : tile<1024xfp32, #2>"
        for name in "qo"
    )
    kernel, _ = _overlapped(*big, *reads, *_store("b"), *_store("c", "y"))
    stores = ["shared_store", "tma_store", "shared_store", "tma_store", "tma_store_wait"]
    assert _ops(kernel)[3:] == stores
    kernel, _ = _overlapped(*_store("b"), *_store("c", "y"))
    assert _ops(kernel) == ["shared_store", "tma_store", "tma_store_wait"] * 2


def test_a_block_that_does_not_fit_goes_in_parts_without_a_loop() -> None:
    kernel, _ = _overlapped(*_store("b"), room=2 * PART_BYTES)
    assert _ops(kernel) == [
        *("shared_store", "tma_store"),
        *("shared_store", "tma_store_wait", "tma_store") * 2,
        *("shared_store", "tma_store", "tma_store_wait"),
    ]


# ---- meaning ----------------------------------------------------------------------------------


@pytest.mark.parametrize("room", [1 << 16, 3 * PART_BYTES, 2 * PART_BYTES, PART_BYTES])
@pytest.mark.parametrize("kind", ["store", "reduce"])
def test_every_part_goes_where_it_belongs(room: int, kind: str) -> None:
    lines = _loop(*_store("b", coord="i"))
    if kind == "reduce":
        lines = tuple(
            re.sub(r"(staged_tma_store\(.*)", r'\1 {kind = "add"}', line) for line in lines
        )
    kernel, schedule = _overlapped(*lines, room=room)
    allocate_shared(kernel, schedule)
    insert_barriers(kernel, schedule)
    assert kernel.shared_bytes <= room
    assert sum(isinstance(op, tma.TmaStore | tma.TmaReduce) for op in kernel.walk()) in (1, 4)
    value = np.random.default_rng(room).normal(size=1024).astype(np.float32)
    x = np.ones(2500, np.float32)
    run(kernel, (1,), [x, x.copy(), value, 2100])
    expected = np.resize(value, 2500) + (kind == "reduce")
    np.testing.assert_array_equal(x, expected.astype(np.float32))


@pytest.mark.parametrize("layout", [PARTS, NO_PARTS])
@pytest.mark.parametrize("num_parts", [16, 12, 8, 5, 4, 2, 1])
def test_blocks_that_take_turns_go_where_they_belong(layout: str, num_parts: int) -> None:
    """Four blocks an iteration, three of them alike; in as much room as there may be."""
    room = max(num_parts * PART_BYTES, BLOCK_BYTES if layout == NO_PARTS else 0)
    offsets = [
        f"%{name} = arith.constant {{value = {offset}, type = i32}} : i32\n  "
        f"%at_{name} = arith.add(%i, %{name}) : i32"
        for name, offset in (("o", 4096), ("q", 8192))
    ]
    doubled = "%u = arith.add(%v, %v) : tile<1024xfp32, LAYOUT>".replace("LAYOUT", layout)
    lines = _loop(
        *offsets,
        doubled,
        *_store("b", coord="i"),
        *(line.replace("%v,", "%u,") for line in _store("c", coord="at_o")),
        *_store("d", coord="at_q"),
        *_store("f", "y", coord="i"),
    )
    kernel, schedule = _overlapped(*lines, layout=layout, room=room)
    allocate_shared(kernel, schedule)
    insert_barriers(kernel, schedule)
    value = np.random.default_rng(num_parts).normal(size=1024).astype(np.float32)
    x, y = np.zeros(12288, np.float32), np.zeros(4096, np.float32)
    run(kernel, (1,), [x, y, value, 4096])
    expected = np.concatenate([np.tile(value, 4), np.tile(value * 2, 4), np.tile(value, 4)])
    np.testing.assert_array_equal(x, expected)
    np.testing.assert_array_equal(y, np.tile(value, 4))


# ---- the resulting IR ---------------------------------------------------------------------------

CHECKS = """\
// CHECK: [[BUFFER:%.*]] = gpu.shared_alloc
// CHECK-NEXT: scf.for(
// CHECK-NEXT: gpu.tma_store_wait
// CHECK-NEXT: gpu.shared_store(%v, [[BUFFER]]) {vector = 4}
// CHECK-NEXT: gpu.tma_store(%x, [[BUFFER]], %i)
// CHECK-NEXT: scf.yield
// CHECK-NEXT: }
// CHECK-NEXT: gpu.tma_store_wait
// CHECK-NEXT: scf.return
"""


def test_a_store_is_awaited_before_its_buffer_is_written_again() -> None:
    lines = "".join(f"  {line}\n" for line in _loop(*_store("b", coord="i")))
    text = f"{CHECKS}{HEAD.replace('LAYOUT', PARTS)}{lines}  scf.return\n}}\n"
    kernel = applied(text, pipeline_tma_stores)
    store = (
        "gpu.shared_store(%v, %b) {vector = 4}",
        "gpu.tma_store(%x, %b, %i)",
        "gpu.tma_store_wait",
    )
    plain = text.replace("gpu.staged_tma_store(%x, %v, %b, %i)", "\n  ".join(store))
    assert plain != text
    p = np.random.default_rng(0).normal(size=1024).astype(np.float32)
    for n in (1024, 3072):
        x, y = np.full((2, n), 77, np.float32)
        args = [x, y, p, n]
        assert_same_meaning(plain, kernel, args, lower=(allocate_shared, insert_barriers))

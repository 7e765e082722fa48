"""Barriers and fences around tensor copies: all needed ones, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aotc.ir.diagnostics import IRError
from aotc.ir.dialects import gpu
from aotc.ir.text import parse_kernel, print_kernel
from aotc.schedule.context import Schedule
from aotc.schedule.shared_memory.allocate_shared import allocate_shared
from aotc.schedule.shared_memory.insert_barriers import insert_barriers
from aotc.target import TARGETS
from tests.schedule.epilogue.test_overlap_epilogue import PRODUCT
from tests.schedule.epilogue.test_overlap_epilogue import SIGNATURE as PRODUCT_SIGNATURE
from tests.schedule.pipelining.test_pipeline_mma import ATTENTION, ATTENTION_SIGNATURE
from tests.support.descriptors import lowered

HEAD = """\
#0 = #ll<offset=[[1],[2],[4],[8],[16],[32],[64]] : [128]>
#1 = #ll<register=[[1]] lane=[[2],[4],[8],[16],[32]] warp=[[64]] : [128]>
#2 = #ll<offset=[] : [1]>
kernel @k(%x: map<128xfp32, 0>, %y: map<128xfp32, 0>, %i: i32, %n: i32, %v: tile<128xfp32, #1>) {num_warps = 2} {
  %bar = gpu.shared_alloc {element = u64, shape = [1], layout = #2, alignment_bytes = 8} : shared<1xu64, #2>
  gpu.mbarrier_init(%bar)
"""
BUFFER = (
    "gpu.shared_alloc {element = fp32, shape = [128], layout = #0, alignment_bytes = 128}"
    " : shared<128xfp32, #0>"
)
WAIT = "gpu.mbarrier_wait(%bar, %i)"
READ_ROWS = """def k(x, out, n):
    cols = tl.arange(0, 128)
    for i in tl.range(0, n, warp_specialize=True):
        tl.store(out + i * 128 + cols, tl.sum(x.load([i, 0]), 0) + 1)
"""


def _ops(*lines: str) -> list[str]:
    """Return the ops behind the making of the mbarrier, allocations aside."""
    kernel = parse_kernel(HEAD + "".join(f"  {line}\n" for line in lines) + "  scf.return\n}\n")
    schedule = Schedule(TARGETS["sm_90a"])
    allocate_shared(kernel, schedule)
    insert_barriers(kernel, schedule)
    names = re.findall(r"\bgpu\.(\w+)", print_kernel(kernel))
    return [name for name in names if name not in ("shared_alloc", "mbarrier_init")]


def _load(buffer: str) -> str:
    return f"gpu.tma_load(%x, {buffer}, %bar, %i)"


def _read(buffer: str, name: str) -> str:
    return f"{name} = gpu.shared_load({buffer}) {{layout = #1, vector = 2}} : tile<128xfp32, #1>"


def test_what_has_landed_is_read_without_a_barrier() -> None:
    ops = _ops(f"%b = {BUFFER}", _load("%b"), WAIT, _read("%b", "%r"))
    assert ops == ["barrier", "tma_load", "mbarrier_wait", "shared_load"]


def test_a_load_over_what_was_read_waits_for_all() -> None:
    """A read may be on its way past the barrier, as the async proxy sees it, unless it is fenced."""
    body = (_load("%b"), WAIT, _read("%b", "%r"))
    again = (_load("%b"), WAIT, _read("%b", "%s"))
    ops = _ops(f"%b = {BUFFER}", *body, *again)
    assert ops[4:] == ["proxy_fence", "barrier", "tma_load", "mbarrier_wait", "shared_load"]


def test_reads_are_fenced_once_ahead_of_a_barrier_that_is_there() -> None:
    ops = _ops(f"%b = {BUFFER}", _load("%b"), WAIT, _read("%b", "%r"), "gpu.barrier", _load("%b"))
    assert ops[3:] == ["shared_load", "proxy_fence", "barrier", "tma_load"]


def test_reads_of_what_no_copy_writes_have_no_fence() -> None:
    store = "gpu.shared_store(%v, %b) {vector = 2}"
    ops = _ops(
        f"%b = {BUFFER}", f"%c = {BUFFER}", _load("%c"), WAIT, store, _read("%b", "%r"), store
    )
    assert ops[3:] == ["shared_store", "barrier", "shared_load", "barrier", "shared_store"]


def _arrivals(*lines: str) -> list[str]:
    """Return the ops of a loop over a ring with stages released by an arrival after `lines`."""
    ring = BUFFER.replace("128}", "128, num_stages = 3}").replace("#0>", "#0, 3>")
    return _ops(
        f"%b = {ring}",
        f"%c = {BUFFER}",
        "%zero = arith.constant {value = 0, type = i32} : i32",
        "%one = arith.constant {value = 1, type = i32} : i32",
        "%first = gpu.shared_stage(%b, %zero) : shared<128xfp32, #0>",
        _load("%first"),
        "%end = scf.for(%zero, %n, %one, %zero) (%k: i32, %index: i32) {",
        "%s = gpu.shared_stage(%b, %index) : shared<128xfp32, #0>",
        WAIT,
        *lines,
        "gpu.mbarrier_arrive(%bar) {count = 2}",
        "%next = gpu.next_stage(%index) {num_stages = 3} : i32",
        "scf.yield(%next)",
        "} : i32",
    )


def test_an_arrival_after_a_read_of_a_ring_is_fenced() -> None:
    """The arrival lets the next copy overwrite the buffer, without a barrier before it."""
    ops = _arrivals(_read("%s", "%r"))
    wait_index = ops.index("mbarrier_wait")
    assert ops[wait_index + 1 : wait_index + 4] == ["shared_load", "proxy_fence", "mbarrier_arrive"]
    assert ops.count("proxy_fence") == 1


def test_one_fence_covers_what_was_read_before_two_arrivals() -> None:
    ops = _arrivals(_read("%s", "%r"), "gpu.mbarrier_arrive(%bar) {count = 2}")
    load_index = ops.index("shared_load")
    assert ops[load_index + 1 : load_index + 4] == [
        "proxy_fence",
        "mbarrier_arrive",
        "mbarrier_arrive",
    ]
    assert ops.count("proxy_fence") == 1


def test_an_arrival_after_a_read_of_something_else_is_not_fenced() -> None:
    assert "proxy_fence" not in _arrivals(_read("%c", "%r"))


@pytest.mark.parametrize("warp_specialize", [True, False])
@pytest.mark.parametrize(
    ("source", "signature"),
    [(PRODUCT, PRODUCT_SIGNATURE), (ATTENTION, ATTENTION_SIGNATURE)],
    ids=["matmul", "attention"],
)
def test_what_only_products_read_needs_no_fence(
    tmp_path: Path, source: str, signature: dict[str, str], warp_specialize: bool
) -> None:
    """wgmma reads through the async proxy, like copies; only stores are fenced."""
    text, _ = lowered(tmp_path, source, signature, 4, warp_specialize=warp_specialize)
    ops = re.findall(r"\bgpu\.(\w+)", text)
    assert {"wgmma", "tma_load"} <= set(ops)
    assert ("mbarrier_arrive" in ops) == warp_specialize
    fences = [index for index, op in enumerate(ops) if op == "proxy_fence"]
    assert fences
    assert {ops[index - 1] for index in fences} == {"shared_store"}


def test_a_producer_waits_for_reads_that_are_fenced(tmp_path: Path) -> None:
    """Same from source: rows through a ring, released by the reading threads."""
    text, _ = lowered(
        tmp_path, READ_ROWS, {"x": "tensordesc<fp32[1,128]>", "out": "*fp32", "n": "i32"}, 4
    )
    ops = re.findall(r"\bgpu\.(shared_load|proxy_fence|mbarrier_arrive)\b", text)
    assert ops == ["shared_load", "proxy_fence", "mbarrier_arrive"]


def test_a_phase_is_over_for_all_before_the_next_begins() -> None:
    ops = _ops(f"%b = {BUFFER}", f"%c = {BUFFER}", _load("%b"), WAIT, _load("%c"), WAIT)
    assert ops == ["barrier", "tma_load", "mbarrier_wait", "barrier", "tma_load", "mbarrier_wait"]


def test_two_loads_of_one_phase_go_together() -> None:
    first = _load("%b") + " {arrive = false}"
    ops = _ops(f"%b = {BUFFER}", f"%c = {BUFFER}", first, _load("%c"), WAIT)
    assert ops == ["barrier", "tma_load", "tma_load", "mbarrier_wait"]


def test_what_threads_wrote_is_fenced_for_a_store() -> None:
    store = ("gpu.shared_store(%v, %b) {vector = 2}", "gpu.tma_store(%y, %b, %i)")
    ops = _ops(f"%b = {BUFFER}", *store, "gpu.tma_store_wait", store[0])
    assert ops == [
        *("shared_store", "proxy_fence", "barrier", "tma_store", "tma_store_wait"),
        *("barrier", "shared_store"),
    ]


def test_a_wait_for_a_buffer_leaves_other_stores_in_flight() -> None:
    """The wait's position tells the iteration of its last store."""
    store = ("gpu.shared_store(%v, %b) {vector = 2}", "gpu.tma_store(%y, %b, %i)")
    other = tuple(line.replace("%b", "%c") for line in store)
    buffers = f"%b = {BUFFER}", f"%c = {BUFFER}"
    wait = "gpu.tma_buffer_wait(%b) {pending = 1}"
    ops = _ops(*buffers, *store, *other, wait, store[0])
    assert ops[-3:] == ["tma_buffer_wait", "barrier", "shared_store"]
    # Even where a path may have issued fewer since.
    with pytest.raises(IRError, match="a store in flight reads"):
        _ops(*buffers, *other, *store, wait.replace("%b", "%c"), store[0])
    assert "tma_store" in _ops(*buffers, *other, *store, wait, store[0])


def test_a_fence_is_not_forgotten_behind_a_barrier() -> None:
    ops = _ops(
        f"%b = {BUFFER}",
        "gpu.shared_store(%v, %b) {vector = 2}",
        "gpu.barrier",
        _read("%b", "%r"),
        _load("%b"),
        WAIT,
    )
    assert ops[2:] == ["shared_load", "proxy_fence", "barrier", "tma_load", "mbarrier_wait"]


def test_an_iteration_waits_for_the_one_before() -> None:
    """Its reads are fenced before the barrier, because the next copy overwrites them."""
    ops = _ops(
        f"%b = {BUFFER}",
        "%zero = arith.constant {value = 0, type = i32} : i32",
        "%one = arith.constant {value = 1, type = i32} : i32",
        "scf.for(%zero, %n, %one) (%k: i32) {",
        _load("%b"),
        WAIT,
        _read("%b", "%r"),
        "scf.yield()",
        "}",
    )
    assert ops == ["proxy_fence", "barrier", "tma_load", "mbarrier_wait", "shared_load"]


def test_a_mbarrier_is_never_written_over() -> None:
    """Buffers live later do not take its bytes, however many there are."""
    reads = [
        line
        for index in range(12)
        for line in (
            f"%b{index} = {BUFFER}",
            f"gpu.tma_load(%x, %b{index}, %bar, %i)",
            WAIT,
            _read(f"%b{index}", f"%r{index}"),
        )
    ]
    kernel = parse_kernel(HEAD + "".join(f"  {line}\n" for line in reads) + "  scf.return\n}\n")
    allocate_shared(kernel, Schedule(TARGETS["sm_90a"]))
    offsets = [int(index) for index in re.findall(r"offset_bytes = (\d+)", print_kernel(kernel))]
    assert offsets[0] >= max(offsets[1:]) + 512


# ---- warpgroups -------------------------------------------------------------------------------

DIVIDED = """\
#0 = #ll<offset=[[1],[2],[4],[8],[16],[32],[64],[128],[256]] : [512]>
#1 = #ll<register=[[1]] lane=[[2],[4],[8],[16],[32]] warp=[[64],[128],[256]] : [512]>
kernel @k(%x: map<256xfp32, 0>, %i: i32, %n: i32, %v: tile<512xfp32, #1>) {num_warps = 8} {
  %b = gpu.shared_alloc {element = fp32, shape = [512], layout = #0, alignment_bytes = 128} : shared<512xfp32, #0>
  EXTRA
  scf.for(%i, %n, %i) (%k: i32) {
    gpu.tma_store_wait
    gpu.shared_store(%v, %b) {vector = 2}
    gpu.tma_store(%x, %b, %k) {issuers = [0, 1]}
    MORE
    scf.yield()
  }
  gpu.tma_store_wait
  scf.return
}
"""


def _barriers(text: str) -> list[bool]:
    """Return the barriers in order: whether each is of warpgroups."""
    kernel = parse_kernel(text)
    schedule = Schedule(TARGETS["sm_90a"])
    allocate_shared(kernel, schedule)
    insert_barriers(kernel, schedule)
    return [op.warpgroup for op in kernel.walk() if isinstance(op, gpu.Barrier)]


def test_warpgroups_that_send_their_own_boxes_wait_for_themselves() -> None:
    assert _barriers(DIVIDED.replace("EXTRA", "").replace("MORE", "")) == [True, True]
    alone = DIVIDED.replace(" {issuers = [0, 1]}", "")
    assert _barriers(alone.replace("EXTRA", "").replace("MORE", "")) == [False, False]


def test_what_else_is_shared_needs_a_barrier_of_all() -> None:
    """A barrier of warpgroups orders nothing in other buffers."""
    other = "%c = " + DIVIDED.splitlines()[3].partition("= ")[2]
    turn = (
        "gpu.shared_store(%v, %c) {vector = 2}\n"
        "    %r = gpu.shared_load(%c) {layout = #1, vector = 2} : tile<512xfp32, #1>"
    )
    text = DIVIDED.replace("EXTRA", other)
    assert _barriers(text.replace("MORE", turn)) == [True, True, False, False]
    read = turn.partition("\n")[2]
    store = turn.partition("\n")[0]
    around = text.replace("scf.yield", f"{read}\n    scf.yield").replace("MORE", "")
    assert _barriers(
        around.replace("gpu.shared_store(%v, %b)", f"{store}\n    gpu.shared_store(%v, %b)")
    ) == [*(False, True, False)]


def test_a_buffer_that_is_read_is_not_divided() -> None:
    read = "%r = gpu.shared_load(%b) {layout = #1, vector = 2} : tile<512xfp32, #1>"
    text = DIVIDED.replace("EXTRA", "").replace("MORE", read)
    assert not any(_barriers(text))

"""Tiles exchanged between a cluster's CTAs: buffers, mbarriers, phases, any layout."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.config import Config
from aotc.ir.core import Kernel, Op
from aotc.ir.dialects import arith, cluster, gpu, grid, mbarrier
from aotc.ir.layout import LinearLayout
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.types import TileType
from aotc.schedule.context import Schedule
from aotc.schedule.pipelining.expand_cluster_exchanges import expand_cluster_exchanges
from aotc.schedule.shared_memory.allocate_shared import allocate_shared
from aotc.schedule.shared_memory.insert_barriers import insert_barriers
from aotc.target import TARGETS
from aotc.verify.interpreter.numerics import dtype_of
from aotc.verify.interpreter.program import InterpretError
from aotc.verify.interpreter.run import run
from tests.support.checks import check

NUM_CTAS = 4
KERNEL = """
#0 = LAYOUT
kernel @k(%p: *i32, %n: i32) {num_warps = 2, num_ctas = 4, runs_by_cta = true} {
  %rank = grid.cta_rank : i32
  %size = arith.constant {value = SIZE, type = i32} : i32
  %first = arith.mul(%rank, %size) : i32
  %row = arith.addptr(%p, %first) : *i32
  %rows = tile.splat(%row) {shape = [SIZE], layout = #0} : tile<SIZEx*i32, #0>
  %at = tile.arange {start = 0, end = SIZE, layout = #0} : tile<SIZExi32, #0>
  %ptr = arith.addptr(%rows, %at) : tile<SIZEx*i32, #0>
  %x = gpu.load(%ptr, _, _) : tile<SIZExi32, #0>
BODY
  gpu.store(%ptr, %out, _)
  scf.return
}
"""
LOOP = """
  %c0 = arith.constant {value = 0, type = i32} : i32
  %c1 = arith.constant {value = 1, type = i32} : i32
  %r, %l, %out = scf.for(%c0, %n, %c1, %x, %x, %x) (%i: i32, %a: TILE, %b: TILE, %sum: TILE) {
    %right = cluster.permute(%a) {to = [1, 2, 3, 0]} : TILE
    %left = cluster.permute(%b) {to = [3, 0, 1, 2]} : TILE
    %more = arith.add(%sum, %right) : TILE
    %less = arith.sub(%more, %left) : TILE
    scf.yield(%right, %left, %less)
  } : TILE, TILE, TILE
"""
ONCE = "  %out = cluster.permute(%x) {to = [2, 0, 3, 1]} : TILE\n"
READS = """
  %c1 = arith.constant {value = 1, type = i32} : i32
  %c3 = arith.constant {value = 3, type = i32} : i32
  %after = arith.add(%rank, %c1) : i32
  %next = arith.and(%after, %c3) : i32
  %mirror = arith.sub(%c3, %rank) : i32
  %a = cluster.read(%x, %next) : TILE
  %b = cluster.read(%x, %mirror) : TILE
  %c = arith.sub(%a, %b) : TILE
  %d = cluster.read(%c, %next) : TILE
  %out = arith.add(%d, %x) : TILE
"""
PLAIN = LinearLayout(
    {
        "register": [(1,), (2,)],
        "lane": [(1 << bit,) for bit in range(2, 7)],
        "warp": [(128,)],
    },
    (256,),
)


def _text(body: str, layout: LinearLayout = PLAIN) -> str:
    (size,) = layout.shape
    text = KERNEL.replace("BODY", body).replace("TILE", f"tile<{size}xi32, #0>")
    return text.replace("SIZE", str(size)).replace("LAYOUT", layout.to_text())


def _scheduled(text: str) -> Kernel:
    kernel = parse_kernel(text)
    schedule = Schedule(TARGETS["sm_90a"], Config(2, 1, NUM_CTAS))
    for run_pass in (expand_cluster_exchanges, allocate_shared, insert_barriers):
        run_pass(kernel, schedule)
    return kernel


def _ran(kernel: Kernel, times: int, size: int = 256) -> np.ndarray:
    x = np.arange(NUM_CTAS * size, dtype=np.int32).reshape(NUM_CTAS, size)
    x = x * 7919 % 1013
    run(kernel, (1,), [x, times])
    return x


ONE_WAY = LOOP.replace("[3, 0, 1, 2]", "[-1, 0, 3, -1]")


@pytest.mark.parametrize(
    "body", [LOOP, ONCE, READS, ONE_WAY], ids=["loop", "once", "reads", "one way"]
)
@pytest.mark.parametrize("times", [0, 1, 2, 5])
def test_it_means_what_it_meant(body: str, times: int) -> None:
    before, after = parse_kernel(_text(body)), _scheduled(_text(body))
    np.testing.assert_array_equal(_ran(before, times), _ran(after, times))


@settings(max_examples=20)
@given(st.permutations([1, 2, 4, 8, 16, 32, 64, 128]), st.sampled_from([0, 3]))
def test_any_layout_goes_through_in_whole_vectors(columns: list[int], copies: int) -> None:
    """Lanes with replicas store nothing, and registers go together regardless of content."""
    size = 256 >> copies
    low_columns = [column for column in columns if column < size]
    lanes = [*low_columns[2 : 7 - copies], *[0] * copies]
    layout = LinearLayout.from_columns(
        [("register", low_columns[:2]), ("lane", lanes), ("warp", low_columns[7 - copies :])],
        (("dim0", 8 - copies),),
    )
    text = _text(LOOP, layout)
    kernel = _scheduled(text)
    np.testing.assert_array_equal(_ran(parse_kernel(text), 3, size), _ran(kernel, 3, size))
    sends = [op for op in kernel.walk() if isinstance(op, cluster.SendTile)]
    assert [op.vector for op in sends] == [4, 4]


def test_waits_for_tiles_move_past_what_is_sent_the_other_way() -> None:
    check(
        """
        CHECK: gpu.mbarrier_init([[FULL:%\\w+]])
        CHECK: gpu.mbarrier_init([[EMPTY:%\\w+]])
        CHECK: grid.cluster_arrive
        CHECK: grid.cluster_wait
        CHECK: scf.for
        CHECK: gpu.mbarrier_wait{{.*}} {warp_stride = 2}
        CHECK: gpu.cluster_send_tile(%a{{.*}}, warp_stride = 2}
        CHECK: gpu.mbarrier_wait
        CHECK: gpu.cluster_send_tile(%b
        CHECK: gpu.mbarrier_wait
        CHECK-NEXT: %right = gpu.shared_load
        CHECK-NEXT: gpu.proxy_fence
        CHECK-NEXT: gpu.cluster_arrive_at{{.*}} {count = 1, warp_stride = 2}
        CHECK: gpu.mbarrier_wait
        CHECK-NEXT: %left = gpu.shared_load
        CHECK: gpu.cluster_arrive_at
        CHECK: scf.yield
        CHECK: grid.cluster_barrier
        CHECK-NEXT: scf.return
        """,
        print_kernel(_scheduled(_text(LOOP))),
    )
    assert "gpu.barrier" not in print_kernel(_scheduled(_text(LOOP)))


def test_reads_that_need_not_wait_for_each_other_share_a_barrier() -> None:
    text = print_kernel(_scheduled(_text(READS)))
    names = ("gpu.shared_store", "grid.cluster_barrier", "gpu.cluster_load")
    order = [name for line in text.splitlines() for name in names if name in line]
    store, barrier, load = names
    assert order == [store, store, barrier, load, load, store, barrier, load, barrier]


PARTS = LinearLayout(
    {
        "register": [(0, 1), (2, 0)],
        "lane": [(0, 2), (0, 4), (1, 0), (0, 8), (0, 16)],
        "warp": [(0, 32)],
    },
    (4, 64),
)
BY_ROWS = LinearLayout(
    {
        "register": [(1, 0), (2, 0), (0, 1)],
        "lane": [(0, 2 << bit) for bit in range(5)],
        "warp": [(0, 0)],
    },
    (4, 64),
)
TRANSPOSED = """
  %parts = tile.reshape(%x) {shape = [4, 64]} : PARTS
  %all = cluster.transpose(%parts) {layout = #2} : ALL
  %same = gpu.convert(%all) {layout = #1} : PARTS
  %out = tile.reshape(%same) {shape = [256]} : TILE
"""
TRANSPOSED_IN_LOOP = f"""
  %c0 = arith.constant {{value = 0, type = i32}} : i32
  %c1 = arith.constant {{value = 1, type = i32}} : i32
  %out = scf.for(%c0, %n, %c1, %x) (%i: i32, %each: TILE) {{
    {TRANSPOSED.replace("%x", "%each").replace("%out", "%made").strip()}
    %more = arith.add(%made, %x) : TILE
    scf.yield(%more)
  }} : TILE
"""


def _text_of_parts(body: str) -> str:
    text = _text(body, PARTS.reshape((256,)))
    layouts = f"#1 = {PARTS.to_text()}\n#2 = {BY_ROWS.to_text()}\n"
    text = text.replace("kernel @k", layouts + "kernel @k", 1)
    return text.replace("PARTS", "tile<4x64xi32, #1>").replace("ALL", "tile<4x64xi32, #2>")


@pytest.mark.parametrize("times", [0, 1, 2, 5])
@pytest.mark.parametrize("body", [TRANSPOSED, TRANSPOSED_IN_LOOP], ids=["once", "loop"])
def test_parts_go_to_all_ctas(body: str, times: int) -> None:
    before, after = parse_kernel(_text_of_parts(body)), _scheduled(_text_of_parts(body))
    np.testing.assert_array_equal(_ran(before, times), _ran(after, times))


def test_parts_are_waited_for_once_all_are_sent() -> None:
    """They use buffers of their own, so no CTA waits for others at the end, or before it sends again."""
    body = """
      %y = arith.add(%x, %x) : TILE
      %a = tile.reshape(%x) {shape = [4, 64]} : PARTS
      %b = tile.reshape(%y) {shape = [4, 64]} : PARTS
      %c = cluster.transpose(%a) {layout = #2} : ALL
      %d = cluster.transpose(%b) {layout = #2} : ALL
      %e = arith.add(%c, %d) : ALL
      %same = gpu.convert(%e) {layout = #1} : PARTS
      %out = tile.reshape(%same) {shape = [256]} : TILE
    """
    text = print_kernel(_scheduled(_text_of_parts(body)))
    check(
        """
        CHECK: gpu.mbarrier_init
        CHECK: gpu.mbarrier_init
        CHECK: grid.cluster_arrive
        CHECK: grid.cluster_wait
        CHECK: gpu.cluster_send_parts(%a{{.*}} {vector = 2}
        CHECK: gpu.cluster_send_parts(%b
        CHECK: gpu.mbarrier_wait
        CHECK-NEXT: %c = gpu.shared_load
        CHECK-NEXT: gpu.mbarrier_wait
        CHECK-NEXT: %d = gpu.shared_load
        CHECK-NOT: cluster_barrier
        CHECK: scf.return
        """,
        text,
    )


def test_in_a_loop_all_have_read_their_parts_before_more_come() -> None:
    text = print_kernel(_scheduled(_text_of_parts(TRANSPOSED_IN_LOOP)))
    names = ("grid.cluster_barrier", "gpu.cluster_send_parts", "gpu.mbarrier_wait")
    order = [name for line in text.splitlines() for name in names if name in line]
    barrier, send, wait = names
    assert order == [barrier, send, wait]


INDEPENDENT = """
  %c0 = arith.constant {value = 0, type = i32} : i32
  %c1 = arith.constant {value = 1, type = i32} : i32
  %out = scf.for(%c0, %n, %c1, %x) (%i: i32, %sum: TILE) {
    %y = arith.add(%sum, %x) : TILE
    %z = arith.sub(%sum, %x) : TILE
    %a = cluster.permute(%sum) {to = [1, 2, 3, 0]} : TILE
    %b = cluster.permute(%y) {to = [1, 2, 3, 0]} : TILE
    %c = cluster.permute(%z) {to = [1, 2, 3, 0]} : TILE
    %d = arith.mul(%a, %b) : TILE
    %e = arith.add(%d, %c) : TILE
    scf.yield(%e)
  } : TILE
"""


@pytest.mark.parametrize("times", [0, 1, 2, 5])
def test_tiles_that_go_the_same_way_share_a_ring(times: int) -> None:
    """Three in a row: the third has to wait for the first to be read, here as in the other CTA."""
    text = _text(INDEPENDENT)
    kernel = _scheduled(text)
    np.testing.assert_array_equal(_ran(parse_kernel(text), times), _ran(kernel, times))
    printed = print_kernel(kernel)
    assert printed.count("gpu.shared_alloc {element = i32") == 1
    names = ("cluster_send_tile", "shared_load")
    order = [name for line in printed.splitlines() for name in names if f"gpu.{name}" in line]
    send, load = names
    assert order == [send, send, load, send, load, load]


@pytest.mark.parametrize("element", ["i8", "fp16", "bf16", "i1", "fp8e4nv"])
def test_narrow_elements_of_small_tiles_are_widened(element: str) -> None:
    layout = LinearLayout(
        {"register": [], "lane": [(1 << bit,) for bit in range(5)], "warp": [(32,)]}, (64,)
    )
    kind = f"tile<64x{element}, #0>"
    body = (
        f"  %v = arith.cast(%x) {{dtype = {element}}} : {kind}\n"
        f"  %w = cluster.permute(%v) {{to = [1, 2, 3, 0]}} : {kind}\n"
        "  %out = arith.cast(%w) {dtype = i32} : TILE\n"
    )
    text = _text(body, layout)
    kernel = _scheduled(text)
    np.testing.assert_array_equal(_ran(parse_kernel(text), 1, 64), _ran(kernel, 1, 64))
    (sent,) = (op for op in kernel.walk() if isinstance(op, cluster.SendTile))
    assert isinstance(sent.value.type, TileType)
    assert dtype_of(sent.value.type.element).itemsize == 4


def test_threads_that_store_nothing_wait_for_the_others() -> None:
    layout = LinearLayout(
        {"register": [], "lane": [(1 << bit,) for bit in range(5)], "warp": [(0,)]}, (32,)
    )
    text = print_kernel(_scheduled(_text(LOOP, layout)))
    assert text.count("gpu.barrier\n    gpu.cluster_send_tile") == 2
    assert "warp_stride" not in text


def test_consumers_exchange_beside_a_producer() -> None:
    """Their state is no role's result; all warps of the CTA wait for the cluster, before roles and at the end."""
    roles = f"  gpu.specialize () {{{LOOP}  gpu.store(%ptr, %out, _)\n  scf.yield()\n}} () {{\n  scf.yield()\n}}"
    text = _text(roles).replace("  gpu.store(%ptr, %out, _)\n  scf.return", "  scf.return")
    check(
        """
        CHECK: gpu.mbarrier_init
        CHECK: grid.cluster_arrive
        CHECK: grid.cluster_wait
        CHECK: gpu.specialize
        CHECK: scf.for
        CHECK: gpu.cluster_send_tile(%a
        CHECK: gpu.cluster_arrive_at
        CHECK-NOT: grid.cluster_barrier
        CHECK: scf.yield()
        CHECK: scf.yield()
        CHECK: grid.cluster_barrier
        CHECK-NEXT: scf.return
        """,
        print_kernel(_scheduled(text.replace("num_ctas = 4", "num_ctas = 4, producer_warps = 1"))),
    )


def test_a_producer_does_not_wait_for_ctas_whose_consumers_only_transpose() -> None:
    roles = (
        f"  gpu.specialize () {{{TRANSPOSED}  gpu.store(%ptr, %out, _)\n  scf.yield()\n}}"
        " () {\n  scf.yield()\n}"
    )
    text = _text_of_parts(roles).replace("  gpu.store(%ptr, %out, _)\n  scf.return", "  scf.return")
    kernel = _scheduled(text.replace("num_ctas = 4", "num_ctas = 4, producer_warps = 1"))
    check(
        """
        CHECK: grid.cluster_arrive
        CHECK-NOT: grid.cluster_wait
        CHECK: gpu.specialize
        CHECK: grid.cluster_wait
        CHECK-NEXT: gpu.cluster_send_parts
        CHECK-NOT: grid.cluster_barrier
        CHECK: scf.return
        """,
        print_kernel(kernel),
    )


@pytest.mark.parametrize(
    ("body", "kind", "number"),
    [
        (LOOP, mbarrier.MbarrierWait, 0),
        (LOOP, mbarrier.MbarrierWait, 2),
        (LOOP, cluster.RemoteArrive, 0),
        (LOOP, cluster.SendTile, 1),
        (ONE_WAY, cluster.SendTile, 1),
        (ONE_WAY, cluster.SendTile, 2),
        (ONE_WAY, mbarrier.MbarrierWait, 2),
        (ONE_WAY, cluster.RemoteArrive, 1),
        (READS, grid.ClusterBarrier, 0),
        (READS, grid.ClusterBarrier, 1),
        (TRANSPOSED, mbarrier.MbarrierWait, 0),
        (TRANSPOSED, cluster.SendParts, 0),
        (TRANSPOSED_IN_LOOP, mbarrier.MbarrierWait, 0),
        (TRANSPOSED_IN_LOOP, grid.ClusterBarrier, 0),
    ],
)
def test_what_is_left_out_is_found(body: str, kind: type[Op], number: int) -> None:
    kernel = _scheduled(_text_of_parts(body) if "transpose" in body else _text(body))
    [op for op in kernel.walk() if isinstance(op, kind)][number].erase()
    with pytest.raises(InterpretError):
        _ran(kernel, 5)


def test_a_wrong_rank_is_found() -> None:
    kernel = _scheduled(_text(LOOP))
    send = next(op for op in kernel.walk() if isinstance(op, cluster.SendTile))
    start = next(op for op in kernel.walk() if isinstance(op, gpu.SharedAlloc))
    zero = arith.Constant(0, send.cta.type)
    kernel.body.insert(zero, start)
    send.replace_operand(send.cta, zero.out)
    with pytest.raises(InterpretError):
        _ran(kernel, 5)

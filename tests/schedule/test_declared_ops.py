"""Op classes unknown to every pass are scheduled correctly from their declarations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aotc.config import Config
from aotc.ir.core import Kernel, Op, Value, operand
from aotc.ir.diagnostics import CompileError
from aotc.ir.dialects import gpu, tma
from aotc.ir.effects import Resource, Trait, orders, writes
from aotc.ir.parameter_access import parameter_access
from aotc.ir.rewrite import is_unobserved
from aotc.ir.text import parse_kernel
from aotc.schedule.analysis.global_order import fences, synchronizes
from aotc.schedule.context import Schedule
from aotc.schedule.pipeline import schedule_kernel
from aotc.schedule.programs.split_across_cluster import split_across_cluster
from aotc.schedule.shared_memory.insert_barriers import insert_barriers
from aotc.target import TARGETS
from tests.support.own_ops import own_ops

# Every program copies a tile; ops of the test's own stand in between.
_COPY = """\
kernel @k(%x: *fp32, %y: *fp32) {{num_warps = 4}} {{
  %at = tile.arange {{start = 0, end = 1024}} : tile<1024xi32>
  %xs = tile.splat(%x) {{shape = [1024]}} : tile<1024x*fp32>
  %ys = tile.splat(%y) {{shape = [1024]}} : tile<1024x*fp32>
  %from = arith.addptr(%xs, %at) : tile<1024x*fp32>
  %to = arith.addptr(%ys, %at) : tile<1024x*fp32>
  %v = tile.load(%from) : tile<1024xfp32>
  {op}
  tile.store(%to, %v)
  scf.return
}}
"""
_DESCRIPTOR = """\
kernel @k(%d: desc<64x32xfp32>, %e: desc<64x32xfp32>) {{num_warps = 4}} {{
  %zero = arith.constant {{value = 0, type = i32}} : i32
  %v = tile.descriptor_load(%d, %zero, %zero) : tile<64x32xfp32>
  tile.descriptor_store(%e, %v, %zero, %zero)
  {op}
  scf.return
}}
"""


@pytest.fixture(autouse=True)
def declared() -> Iterator[None]:
    """Declare a store of zeros, and a signal to other programs."""
    with own_ops():

        class Zero(Op, opcode="test.zero", effects=(writes(Resource.GLOBAL, of="target"),)):
            """Write zeros where pointers point."""

            target: Value = operand()

        class Signal(Op, opcode="test.signal", effects=(orders(Resource.GLOBAL),)):
            """Signal other programs that written data can be read."""

        class Meet(
            Op,
            opcode="test.meet",
            effects=(orders(Resource.GLOBAL), orders(Resource.SHARED)),
            traits=(Trait.BARRIER,),
        ):
            """Wait for all threads of the CTA."""

        del Zero, Signal, Meet
        yield


def _parsed(text: str, op: str) -> Kernel:
    return parse_kernel(text.format(op=op))


def _scheduled(text: str, op: str) -> list[Op]:
    schedule = Schedule(TARGETS["sm_90a"], Config(num_warps=4))
    return list(schedule_kernel(_parsed(text, op), schedule).walk())


def _only(ops: list[Op], opcode: str) -> Op:
    (op,) = (op for op in ops if op.opcode == opcode)
    return op


def test_an_access_by_pointers_gets_the_layout_of_one() -> None:
    ops = _scheduled(_COPY, "test.zero(%to)")
    store = next(op for op in ops if isinstance(op, gpu.Store))
    assert _only(ops, "test.zero").operands[0].type == store.pointer.type


def test_an_access_by_pointers_is_one_of_their_parameter() -> None:
    assert parameter_access(_parsed(_COPY, "test.zero(%to)")) == {"x": "read", "y": "write"}
    assert parameter_access(_parsed(_COPY, "test.zero(%from)")) == {"x": "both", "y": "write"}


def test_a_write_keeps_its_order_and_is_no_signal() -> None:
    op = _only(list(_parsed(_COPY, "test.zero(%to)").walk()), "test.zero")
    assert list(fences([op])) == [op]
    assert not synchronizes(op)
    assert not is_unobserved(op)


def test_stores_by_tma_are_complete_before_a_signal() -> None:
    ops = _scheduled(_DESCRIPTOR, "test.signal")
    waits = [op for op in ops if isinstance(op, tma.TmaStoreWait) and op.written]
    assert waits
    assert ops.index(waits[0]) < ops.index(_only(ops, "test.signal"))
    ops_without_signal = _scheduled(_DESCRIPTOR, "")
    assert not [op for op in ops_without_signal if isinstance(op, tma.TmaStoreWait) and op.written]


def test_one_barrier_is_as_good_as_another() -> None:
    text = """\
#0 = #ll<register=[[1]] lane=[[2],[4],[8],[16],[32]] warp=[[64],[128]] : [256]>
#1 = #ll<register=[[128]] lane=[[1],[2],[4],[8],[16]] warp=[[32],[64]] : [256]>
#2 = #ll<offset=[[1],[2],[4],[8],[16],[32],[64],[128]] : [256]>
kernel @k(%p: *fp32) {{num_warps = 4}} {{
  %b = gpu.shared_alloc {{element = fp32, shape = [256], layout = #2, offset_bytes = 0}} : shared<256xfp32, #2>
  %v = arith.constant {{value = 1.0, type = tile<256xfp32, #0>}} : tile<256xfp32, #0>
  gpu.shared_store(%v, %b)
  {op}
  %w = gpu.shared_load(%b) {{layout = #1}} : tile<256xfp32, #1>
  %q = tile.splat(%p) {{shape = [256], layout = #1}} : tile<256x*fp32, #1>
  gpu.store(%q, %w)
  scf.return
}}
"""
    counts: list[int] = []
    for op in ("test.meet", ""):
        kernel = _parsed(text, op)
        insert_barriers(kernel, Schedule(TARGETS["sm_90a"]))
        counts.append(sum(isinstance(kernel_op, gpu.Barrier) for kernel_op in kernel.walk()))
    assert counts == [0, 1]


def test_a_barrier_is_not_shared_by_a_cluster() -> None:
    schedule = Schedule(TARGETS["sm_90a"], Config(num_ctas=2))
    with pytest.raises(CompileError, match="test.meet is not shared by the CTAs"):
        split_across_cluster(_parsed(_COPY, "test.meet"), schedule)
    kernel = _parsed(_COPY, "test.zero(%to)")
    split_across_cluster(kernel, schedule)
    # One CTA writes tiles that are not divided.
    zero = _only(list(kernel.walk()), "test.zero")
    assert zero.parent_op is not None
    assert zero.parent_op.opcode == "scf.if"

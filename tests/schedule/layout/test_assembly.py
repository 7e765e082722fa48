"""Layouts of inline assembly; impure assembly stays in place."""

from __future__ import annotations

import re

import pytest

from aotc.config import Config
from aotc.ir.core import Kernel
from aotc.ir.diagnostics import CompileError
from aotc.ir.dialects import gpu, scf, tma
from aotc.ir.dialects.assembly import Assembly
from aotc.ir.text import parse_kernel
from aotc.ir.verify import verify
from aotc.schedule.context import Schedule
from aotc.schedule.pipeline import schedule_kernel
from aotc.target import TARGETS

HEAD = """\
kernel @k(%x: *i32 {divisibility = 16}, %y: *i32 {divisibility = 16}, %n: i32) {num_warps = 4} {
  %i = tile.arange {start = 0, end = 512} : tile<512xi32>
  %xs = tile.splat(%x) {shape = [512]} : tile<512x*i32>
  %ys = tile.splat(%y) {shape = [512]} : tile<512x*i32>
  %p = arith.addptr(%xs, %i) : tile<512x*i32>
  %q = arith.addptr(%ys, %i) : tile<512x*i32>
  %zero = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
"""
ONE = '{text = "add.s32 $0, $1, 1;", constraints = "=r,r", dtypes = [i32], pack = 1}'
TWO = '{text = "", constraints = "=r,=r,r", dtypes = [i32, i32], pack = 1}'


def scheduled(body: str) -> Kernel:
    kernel = parse_kernel(HEAD + body + "  scf.return\n}\n")
    kernel = schedule_kernel(kernel, Schedule(TARGETS["sm_90a"], Config(4)))
    verify(kernel)
    return kernel


def opcodes(kernel: Kernel) -> str:
    pattern = r"gpu\.load|gpu\.store|asm\.\w+|scf\.for"
    return " ".join(op.opcode for op in kernel.walk() if re.fullmatch(pattern, op.opcode))


def test_it_is_done_where_its_operand_is() -> None:
    for opcode in ("inline", "volatile"):
        kernel = scheduled(f"""\
  %a = tile.load(%p, _, _) : tile<512xi32>
  %b = asm.{opcode}(%a) {ONE} : tile<512xi32>
  tile.store(%q, %b, _)
""")
        assert opcodes(kernel) == f"gpu.load asm.{opcode} gpu.store"
        assert not [op for op in kernel.walk() if isinstance(op, gpu.Convert)]


def test_several_results_of_what_is_nowhere() -> None:
    for opcode in ("inline", "volatile"):
        kernel = scheduled(f"""\
  %a, %b = asm.{opcode}(%i) {TWO} : tile<512xi32>, tile<512xi32>
  tile.store(%q, %b, _)
  tile.store(%p, %a, _)
""")
        assert opcodes(kernel) == f"asm.{opcode} gpu.store gpu.store"


def test_pure_assembly_leaves_loops_and_goes_if_unused() -> None:
    kernel = scheduled(f"""\
  %a = tile.load(%p, _, _) : tile<512xi32>
  %unused = asm.inline(%a) {ONE} : tile<512xi32>
  scf.for(%zero, %n, %one) (%j: i32) {{
    %b = asm.inline(%a) {ONE.replace("1;", "2;")} : tile<512xi32>
    tile.store(%q, %b, _)
    scf.yield()
  }}
""")
    (op,) = [op for op in kernel.walk() if isinstance(op, Assembly)]
    assert not any(isinstance(ancestor, scf.For) for ancestor in op.ancestors())


def test_other_assembly_stays_in_loops_once_between_its_neighbours() -> None:
    kernel = scheduled(
        f"""\
  scf.for(%zero, %n, %one) {{num_stages = 3}} (%j: i32) {{
    %a = tile.load(%p, _, _) : tile<512xi32>
    %b = asm.volatile(%j) {ONE} : i32
    %c = asm.volatile(%j) {ONE} : i32
    tile.store(%q, %a, _)
    scf.yield()
  }}
"""
    )
    assert opcodes(kernel) == "scf.for gpu.load asm.volatile asm.volatile gpu.store"


TENSORS = """\
kernel @k(%x: desc<64x64xfp16>, %y: desc<64x64xfp16>, %n: i32) {num_warps = 4} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
"""


def test_tensor_stores_are_done_before_it() -> None:
    body = f"""\
  %a = tile.descriptor_load(%x, %zero, %n) : tile<64x64xfp16>
  tile.descriptor_store(%y, %a, %zero, %n)
  %b = asm.volatile(%n) {ONE} : i32
  scf.return
}}
"""
    kernel = parse_kernel(TENSORS + body)
    kernel = schedule_kernel(kernel, Schedule(TARGETS["sm_90a"], Config(4)))
    ops = [op for op in kernel.walk() if isinstance(op, Assembly | tma.TmaStore | tma.TmaStoreWait)]
    order = ["gpu.tma_store", "gpu.tma_store_wait", "asm.volatile"]
    assert [op.opcode for op in ops][:3] == order
    assert ops[1].attributes["written"]


def test_tensors_are_not_fetched_ahead_of_it() -> None:
    body = f"""\
  scf.for(%zero, %n, %one) {{num_stages = 3}} (%j: i32) {{
    %b = asm.volatile(%j) {ONE} : i32
    %a = tile.descriptor_load(%x, %zero, %j) : tile<64x64xfp16>
    tile.descriptor_store(%y, %a, %zero, %j)
    scf.yield()
  }}
  scf.return
}}
"""
    kernel = parse_kernel(TENSORS + body)
    schedule = Schedule(TARGETS["sm_90a"], Config(4))
    kernel = schedule_kernel(kernel, schedule)
    (loop,) = [op for op in kernel.walk() if isinstance(op, scf.For)]
    inside = [op.opcode for op in loop.body.walk()]
    assert inside.index("asm.volatile") < inside.index("gpu.tma_load")
    loads = [op for op in kernel.walk() if isinstance(op, tma.TmaLoad)]
    assert len(loads) == 1


def test_it_is_not_shared_by_the_blocks_of_a_cluster() -> None:
    body = f"""\
  %a = asm.volatile(%n) {ONE} : i32
  tile.store(%y, %a, _)
"""
    kernel = parse_kernel(HEAD + body + "  scf.return\n}\n")
    with pytest.raises(CompileError, match=r"num_ctas = 2: asm.volatile is not shared"):
        schedule_kernel(kernel, Schedule(TARGETS["sm_90a"], Config(4, 3, 2)))


def test_loads_do_not_cross_it() -> None:
    kernel = scheduled(f"""\
  %a = tile.load(%p, _, _) : tile<512xi32>
  tile.store(%q, %a, _)
  %b = asm.volatile(%n) {ONE} : i32
  %c = tile.load(%p, _, _) : tile<512xi32>
  tile.store(%p, %c, _)
""")
    assert opcodes(kernel) == "gpu.load gpu.store asm.volatile gpu.load gpu.store"

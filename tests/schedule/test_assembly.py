"""Where assembly is computed, and that what may do anything stays where it is."""

from __future__ import annotations

import re

from aotc.ir.core import Kernel
from aotc.ir.dialects import gpu, scf
from aotc.ir.dialects.assembly import Assembly
from aotc.ir.text import parse_kernel
from aotc.ir.verify import verify
from aotc.schedule.context import Config, Schedule
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
    schedule_kernel(kernel, Schedule(TARGETS["sm_90a"], Config(4)))
    verify(kernel)
    return kernel


def opcodes(kernel: Kernel) -> str:
    wanted = r"gpu\.load|gpu\.store|asm\.\w+|scf\.for"
    return " ".join(op.opcode for op in kernel.walk() if re.fullmatch(wanted, op.opcode))


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
    assert not any(isinstance(each, scf.For) for each in op.ancestors())


def test_other_assembly_stays_in_loops_once_between_its_neighbours() -> None:
    kernel = scheduled(
        f"""\
  scf.for(%zero, %n, %one) (%j: i32) {{
    %a = tile.load(%p, _, _) : tile<512xi32>
    %b = asm.volatile(%j) {ONE} : i32
    %c = asm.volatile(%j) {ONE} : i32
    tile.store(%q, %a, _)
    scf.yield()
  }} {{num_stages = 3}}
""".replace("(%j: i32) {", "{num_stages = 3} (%j: i32) {").replace(
            "  } {num_stages = 3}\n", "  }\n"
        )
    )
    assert opcodes(kernel) == "scf.for gpu.load asm.volatile asm.volatile gpu.store"


def test_loads_do_not_cross_it() -> None:
    kernel = scheduled(f"""\
  %a = tile.load(%p, _, _) : tile<512xi32>
  tile.store(%q, %a, _)
  %b = asm.volatile(%n) {ONE} : i32
  %c = tile.load(%p, _, _) : tile<512xi32>
  tile.store(%p, %c, _)
""")
    assert opcodes(kernel) == "gpu.load gpu.store asm.volatile gpu.load gpu.store"

"""Indices used only in an `if` are computed in its branches: selection, position, results."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import arith, gpu, scf, tile
from aotc.ir.rewrite import Builder
from aotc.ir.types import FP32, I1, I32, PointerType
from aotc.ir.verify import verify
from aotc.schedule.cleanup.sink_into_branches import sink_into_branches
from aotc.schedule.context import Schedule
from aotc.target import TARGETS
from tests.backend.programs import Program, row_layout
from tests.support.pass_case import applied, assert_same_meaning

LAYOUT = row_layout(128)
SCHEDULE = Schedule(TARGETS["sm_80"])


def copy(*, around: bool = False, used_outside: bool = False, twice: bool = True) -> Program:
    """Store a tile, or twice the tile: `x` and `out` point at both from ahead of the `if`.

    It stands in a loop with `around`, and its condition is an argument.
    """
    program = Program(1)
    add = program.add
    condition = program.param(I1)
    source, out = (program.param(PointerType(FP32), 16) for _ in range(2))
    program.inputs.append(source)
    program.outputs.append((out, (128,)))
    add(gpu.Barrier())
    from_, to = (program.pointers(pointer, LAYOUT) for pointer in (source, out))

    def branch(factor: int):
        def body(builder: Builder, _: list[Value]) -> list[Value]:
            value = builder(gpu.Load(from_)).out
            if factor == 2:
                value = builder(arith.Add(value, value)).out
            builder(gpu.Barrier())
            builder(gpu.Store(to, value))
            return []

        return program.block([], body)

    def branches() -> scf.If:
        return scf.If(condition, branch(2 if twice else 1), branch(1))

    if around:
        zero, step = (add(arith.Constant(value, I32)).out for value in (0, 1))

        def body(builder: Builder, _: list[Value]) -> list[Value]:
            builder(branches())
            return []

        add(scf.For(zero, step, step, [], body=program.block([I32], body)))
    else:
        add(branches())
    if used_outside:
        add(gpu.Store(to, add(gpu.Load(to)).out))
    return program


def sunk(program: Program) -> Kernel:
    kernel = program.kernel()
    sink_into_branches(kernel, SCHEDULE)
    verify(kernel)
    return kernel


def tiles(ops: list[Op]) -> list[type[Op]]:
    return [type(op) for op in ops if isinstance(op, tile.Arange | arith.AddPtr | tile.Splat)]


def test_each_branch_makes_its_own_where_they_are_used() -> None:
    kernel = sunk(copy())
    assert not tiles(list(kernel.body))
    (branch,) = (op for op in kernel.body if isinstance(op, scf.If))
    for block in branch.blocks:
        ops = list(block)
        classes = [type(op) for op in ops]
        load, store = classes.index(gpu.Load), classes.index(gpu.Store)
        assert arith.AddPtr in tiles(ops[:load])
        # The store's pointers are computed after the barrier, so not live during the loads.
        assert arith.AddPtr in tiles(ops[classes.index(gpu.Barrier) : store])
        assert classes.count(arith.AddPtr) == 2


def test_what_is_used_elsewhere_stays() -> None:
    kernel = sunk(copy(used_outside=True))
    assert tiles(list(kernel.body)).count(arith.AddPtr) == 1


def test_what_a_branch_yields_stays() -> None:
    program = Program(1)
    condition = program.param(I1)
    x, y = (program.param(PointerType(FP32), 16) for _ in range(2))
    from_, to = (program.pointers(pointer, LAYOUT) for pointer in (x, y))

    def body(builder: Builder, _: list[Value]) -> list[Value]:
        builder(gpu.Store(to, builder(gpu.Load(from_)).out))
        return [from_]

    program.add(scf.If(condition, program.block([], body), program.block([], lambda *_: [to])))
    before = list(program.kernel().body)
    assert list(sunk(program).body) == before


def test_nothing_moves_into_a_loop() -> None:
    program = copy(around=True)
    before = [type(op) for op in program.kernel().walk()]
    assert [type(op) for op in sunk(program).walk()] == before


def test_loaded_tiles_are_not_loaded_in_a_branch() -> None:
    program = Program(1)
    condition = program.param(I1)
    value = program.load(FP32, LAYOUT)
    out = program.param(PointerType(FP32), 16)
    doubled = program.add(arith.Add(value, value)).out
    to = program.pointers(out, LAYOUT)

    def body(builder: Builder, _: list[Value]) -> list[Value]:
        builder(gpu.Store(to, doubled))
        return []

    program.add(scf.If(condition, program.block([], body), program.block([], lambda *_: [])))
    kernel = sunk(program)
    ops = list(kernel.body)
    assert doubled.op in ops
    assert to.op not in ops


@pytest.mark.parametrize("condition", [False, True])
@pytest.mark.parametrize("used_outside", [False, True])
def test_the_machine_computes_the_same(condition: bool, used_outside: bool) -> None:
    x = np.random.default_rng(2).integers(-9, 10, 128).astype(np.float32)
    program = copy(used_outside=used_outside)
    sink_into_branches(program.kernel(), SCHEDULE)
    (out,) = program.run(condition, x)
    assert (out == x * (1 + condition)).all()


TEXT = """\
// CHECK: %c = arith.compare
// CHECK-NEXT: scf.if(%c)
// CHECK: %i = tile.arange
// CHECK: gpu.load(
// CHECK-NEXT: %os = tile.splat(%out)
// CHECK-NEXT: %q = arith.addptr(%os, %i)
// CHECK-NEXT: gpu.store(%q
#0 = #ll<register=[[1],[2]] lane=[[4],[8],[16],[32],[64]] warp=[[128],[256]] : [512]>
kernel @k(%x: *fp32, %out: *fp32, %n: i32) {num_warps = 4} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %c = arith.compare(%n, %zero) {predicate = "gt"} : i1
  %i = tile.arange {start = 0, end = 512, layout = #0} : tile<512xi32, #0>
  %os = tile.splat(%out) {shape = [512], layout = #0} : tile<512x*fp32, #0>
  %q = arith.addptr(%os, %i) : tile<512x*fp32, #0>
  scf.if(%c) () {
    %xs = tile.splat(%x) {shape = [512], layout = #0} : tile<512x*fp32, #0>
    %p = arith.addptr(%xs, %i) : tile<512x*fp32, #0>
    %l = gpu.load(%p, _, _) : tile<512xfp32, #0>
    gpu.store(%q, %l, _)
    scf.yield()
  } () {
    scf.yield()
  }
  scf.return
}
"""


def test_an_index_is_computed_right_before_its_first_use_in_the_one_branch_that_uses_it() -> None:
    kernel = applied(TEXT, sink_into_branches)
    x = np.random.default_rng(0).normal(size=512).astype(np.float32)
    assert_same_meaning(TEXT, kernel, [x, np.full(512, 77, np.float32), 1])


def test_an_index_that_both_branches_use_is_computed_in_each() -> None:
    arms = TEXT.replace(
        "  } () {\n    scf.yield()\n",
        "  } () {\n    %t = arith.cast(%i) {dtype = fp32} : tile<512xfp32, #0>\n"
        "    gpu.store(%q, %t, _)\n    scf.yield()\n",
    )
    lines = [line for line in arms.splitlines() if "// CHECK" not in line]
    check = "// CHECK: scf.if(%c)\n// CHECK-COUNT-2: tile.arange\n// CHECK-NOT: tile.arange\n"
    text = check + "\n".join(lines) + "\n"
    kernel = applied(text, sink_into_branches)
    x = np.random.default_rng(0).normal(size=512).astype(np.float32)
    for n in (0, 1):
        assert_same_meaning(text, kernel, [x, np.full(512, 77, np.float32), n])

"""Persistent kernels: selection, and every program instance runs once."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import arith, scf, tile
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.verify import verify
from aotc.schedule.context import Schedule
from aotc.schedule.programs.make_persistent import make_persistent
from aotc.target import TARGETS
from aotc.verify.interpreter import run as interpreter
from tests.support.checks import check, without_checks
from tests.support.descriptors import compiled


def looped(text: str, schedule: Schedule | None = None) -> Kernel:
    """Return a kernel after the pass."""
    kernel = parse_kernel(without_checks(text))
    make_persistent(kernel, schedule or Schedule(TARGETS["sm_90a"], map_pointers=True))
    verify(kernel)
    printed = print_kernel(kernel)
    assert print_kernel(parse_kernel(printed)) == printed
    return kernel


# Each program's position in the grid, x + 100 y + 10000 z, is added to its loads.
SUM = """\
// CHECK: kernel @k(
// CHECK-SAME: %grid.x: i32 {source = "grid[0]"}
// CHECK-SAME: %grid.y: i32 {source = "grid[1]"}
// CHECK-SAME: %grid.z: i32 {source = "grid[2]"}
// CHECK-SAME: is_persistent = true
// CHECK-NEXT: [[ROW:%.*]] = arith.mul(%grid.x, %grid.y)
// CHECK-NEXT: [[COUNT:%.*]] = arith.mul([[ROW]], %grid.z)
// CHECK-NEXT: [[FIRST:%.*]] = tile.program_id {axis = 0}
// CHECK-NEXT: [[STEP:%.*]] = tile.num_programs {axis = 0}
// CHECK-NEXT: scf.for([[FIRST]], [[COUNT]], [[STEP]]) {unroll = 1} ([[P:%.*]]: i32) {
// CHECK-NEXT: [[ROWS:%.*]] = arith.div([[P]], %grid.x)
// CHECK-NEXT: [[X:%.*]] = arith.rem([[P]], %grid.x)
// CHECK-NEXT: [[Y:%.*]] = arith.rem([[ROWS]], %grid.y)
// CHECK-NEXT: [[Z:%.*]] = arith.div([[P]], [[ROW]])
// CHECK-NOT: tile.program_id
// CHECK: arith.mul([[Y]], {{%.*}})
// CHECK: arith.mul([[Z]], {{%.*}})
// CHECK: scf.for({{%.*}}, %n, {{%.*}}, %told_tile)
// CHECK: tile.descriptor_load
// CHECK: tile.store
// CHECK-NEXT: scf.yield()
// CHECK-NEXT: }
// CHECK-NEXT: scf.return
kernel @k(%x: desc<1x32xi32>, %out: *i32, %n: i32, %w: i32, %h: i32) {num_warps = 4} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
  %per_y = arith.constant {value = 100, type = i32} : i32
  %per_z = arith.constant {value = 10000, type = i32} : i32
  %i = tile.program_id {axis = 0} : i32
  %j = tile.program_id {axis = 1} : i32
  %k = tile.program_id {axis = 2} : i32
  %js = arith.mul(%j, %per_y) : i32
  %ks = arith.mul(%k, %per_z) : i32
  %some = arith.add(%i, %js) : i32
  %told = arith.add(%some, %ks) : i32
  %told_tile = tile.splat(%told) {shape = [1, 32]} : tile<1x32xi32>
  %sum = scf.for(%zero, %n, %one, %told_tile) (%at: i32, %acc: tile<1x32xi32>) {
    %v = tile.descriptor_load(%x, %at, %zero) : tile<1x32xi32>
    %more = arith.add(%acc, %v) : tile<1x32xi32>
    scf.yield(%more)
  } : tile<1x32xi32>
  %lines = arith.mul(%k, %h) : i32
  %line = arith.add(%lines, %j) : i32
  %firsts = arith.mul(%line, %w) : i32
  %number = arith.add(%firsts, %i) : i32
  %size = arith.constant {value = 32, type = i32} : i32
  %start = arith.mul(%number, %size) : i32
  %here = arith.addptr(%out, %start) : *i32
  %heres = tile.splat(%here) {shape = [1, 32]} : tile<1x32x*i32>
  %lane = tile.arange {start = 0, end = 32} : tile<32xi32>
  %lanes = tile.expand_dims(%lane) {axis = 0} : tile<1x32xi32>
  %ptrs = arith.addptr(%heres, %lanes) : tile<1x32x*i32>
  tile.store(%ptrs, %sum, _)
  scf.return
}
"""


def test_the_whole_kernel_becomes_the_body_of_a_loop() -> None:
    schedule = Schedule(TARGETS["sm_90a"], map_pointers=True)
    kernel = looped(SUM, schedule)
    check(SUM, print_kernel(kernel))
    assert kernel.is_persistent
    assert [remark.rpartition(": ")[2] for remark in schedule.remarks] == [
        "the kernel is persistent, a CTA runs several program instances"
    ]


def test_without_leave_of_the_launcher_there_is_no_loop() -> None:
    before = print_kernel(parse_kernel(without_checks(SUM)))
    kernel = looped(SUM, Schedule(TARGETS["sm_90a"]))
    assert print_kernel(kernel) == before
    assert not kernel.is_persistent


# ---- every program once -----------------------------------------------------------------------


def check_programs(kernel: Kernel, grid: Sequence[int], turns: int) -> None:
    """Check the row stored by each program of a grid."""
    width, height, depth = (*grid, 1, 1)[:3]
    x = np.random.default_rng(turns).integers(-99, 99, (5, 32)).astype(np.int32)
    out = np.full((depth * height * width, 32), -1, np.int32)
    interpreter.run(kernel, grid, [x, out, turns, width, height])
    k, j, i = np.ogrid[:depth, :height, :width]
    coords = (i + 100 * j + 10000 * k).reshape(-1, 1)
    np.testing.assert_array_equal(out, coords + x[:turns].sum(0, dtype=np.int32))


@settings(max_examples=25, deadline=None)
@given(
    grid=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    turns=st.integers(0, 5),
)
def test_every_program_of_any_grid_is_run(grid: list[int], turns: int) -> None:
    check_programs(parse_kernel(without_checks(SUM)), grid, turns)
    check_programs(looped(SUM), grid, turns)


@pytest.mark.parametrize("num_ctas", [1, 2, 3, 6, 7])
def test_as_many_ctas_as_there_are(monkeypatch: pytest.MonkeyPatch, num_ctas: int) -> None:
    """With any number of CTAs: fewer than programs, as many, or one too many."""
    monkeypatch.setattr(interpreter, "num_persistent_ctas", lambda _: num_ctas)
    check_programs(looped(SUM), (3, 2), 1)


# ---- programs of unequal length ---------------------------------------------------------------

UNEVEN = (
    without_checks(SUM)
    .replace("scf.for(%zero, %n, %one", "scf.for(%zero, %length, %one")
    .replace("  %told_tile", "  %length = arith.min(%n, %i) : i32\n  %told_tile")
)


@pytest.mark.parametrize("num_ctas", [1, 2, 3, 6, 7])
@pytest.mark.parametrize("grid", [(0,), (1,), (3, 2), (7,), (12,), (13,)])
def test_programs_of_unequal_length_are_run_once(
    monkeypatch: pytest.MonkeyPatch, grid: tuple[int, ...], num_ctas: int
) -> None:
    monkeypatch.setattr(interpreter, "num_persistent_ctas", lambda _: num_ctas)
    run = _runs(looped(UNEVEN), grid)
    np.testing.assert_array_equal(run, _runs(parse_kernel(UNEVEN), grid))
    assert (run >= 0).all()


def _runs(kernel: Kernel, grid: tuple[int, ...]) -> np.ndarray:
    """Return the values stored by each program of a grid."""
    width, height = (*grid, 1)[:2]
    x = np.arange(4 * 32, dtype=np.int32).reshape(4, 32)
    out = np.full((height * width, 32), -1, np.int32)
    interpreter.run(kernel, grid, [x, out, 3, width, height])
    return out


def test_rounds_go_to_and_fro_from_the_last_one_back() -> None:
    """Only the last round may lack programs; a loop of one length for all goes forward."""
    assert _programs(11, num_ctas=4) == [[0, 7, 8], [1, 6, 9], [2, 5, 10], [3, 4]]
    assert _programs(8, num_ctas=4) == [[3, 4], [2, 5], [1, 6], [0, 7]]
    assert _programs(3, num_ctas=4) == [[0], [1], [2], []]
    assert "arith.and" not in print_kernel(looped(SUM))


def test_parts_of_one_length_go_forward() -> None:
    """As in split-K: each program begins elsewhere."""
    for bounds in ("%i, %length", "%i, %n"):
        parts = UNEVEN.replace("scf.for(%zero, %length,", f"scf.for({bounds},")
        assert "arith.and" not in print_kernel(looped(parts))


def _programs(num_programs: int, num_ctas: int) -> list[list[int]]:
    """Return the programs run by each CTA of a grid of one row."""
    kernel = looped(UNEVEN)
    loop = next(op for op in kernel.body if isinstance(op, scf.For))
    length = next(op for op in loop.body if isinstance(op, arith.Min))
    extents = dict.fromkeys(kernel.body.args, 1) | {kernel.body.args[-3]: num_programs}

    def value(of: Value, values: dict[Value, int]) -> int:
        if of in values:
            return values[of]
        op = of.op
        if isinstance(op, arith.Constant):
            return int(op.value)
        assert op is not None
        a, b = (value(operand, values) for operand in op.operands)
        return _MEANING[type(op)](a, b)

    orders: list[list[int]] = []
    for cta in range(num_ctas):
        values = dict(extents)
        for op in kernel.body:
            if isinstance(op, tile.ProgramId | tile.NumPrograms):
                values[op.out] = cta if isinstance(op, tile.ProgramId) else num_ctas
        bounds = (value(operand, values) for operand in (loop.lower, loop.upper, loop.step))
        orders.append(
            [
                value(length.operands[1], values | {loop.induction: index})
                for index in range(*bounds)
            ]
        )
    return orders


_MEANING: dict[type[Op], Callable[[int, int], int]] = {
    arith.Add: operator.add,
    arith.Sub: operator.sub,
    arith.Mul: operator.mul,
    arith.Div: operator.floordiv,
    arith.Rem: operator.mod,
    arith.And: operator.and_,
}


# ---- obstacles --------------------------------------------------------------------------------

BODY = """\
kernel @k(%x: desc<1x32xi32>, %out: *i32, %n: i32, %c: i1) {{num_warps = 4}} {{
  %0 = arith.constant {{value = 0, type = i32}} : i32
  %1 = arith.constant {{value = 1, type = i32}} : i32
{}
  scf.return
}}
"""
LOAD = "%v = tile.descriptor_load(%x, %0, %0) : tile<1x32xi32>"
TURN = "scf.for(%0, %n, %1) (%i{}: i32) {{\n{}\nscf.yield()\n}}"
STEP = TURN.format("", LOAD)


@pytest.mark.parametrize(
    ("lines", "loops"),
    [
        ((STEP,), True),
        ((STEP, STEP.replace("%v", "%u").replace("%i", "%j")), True),
        (("scf.if(%c) () {", STEP, "scf.yield()\n} () {\nscf.yield()\n}"), True),
        ((), False),
        ((LOAD,), False),
        ((TURN.format("", TURN.format("n", LOAD)),), False),
        ((STEP, "%m = tile.num_programs {axis = 1} : i32"), False),
        ((STEP, '%old = tile.atomic_rmw(%out, %1, _) {kind = "add"} : i32'), False),
        ((STEP, "%old = tile.atomic_cas(%out, %0, %1) : i32"), False),
        ((STEP, "tile.barrier"), False),
        ((STEP, "grid.wait"), False),
        (("grid.launch_dependents", STEP), False),
        ((STEP, "scf.while() () {\nscf.condition(%c)\n} () {\nscf.yield()\n}"), False),
        ((STEP, "%r = tile.load(%out, _, _) {volatile = true} : i32"), False),
        ((TURN.format("", "%r = tile.load(%out, _, _) : i32"),), False),
        ((TURN.format("", LOAD + "\ntile.barrier"),), False),
    ],
)
def test_which_kernels_gain(lines: tuple[str, ...], *, loops: bool) -> None:
    text = BODY.format("\n".join(lines))
    kernel = looped(text)
    assert kernel.is_persistent is loops
    if not loops:
        assert print_kernel(kernel) == print_kernel(parse_kernel(text))


GATHERED = """
def k(a_ptr, b, rows_ptr, out_ptr, n):
    i, j = tl.arange(0, 64), tl.arange(0, 64)
    rows = tl.load(rows_ptr + i)
    acc = tl.zeros((64, 64), tl.float32)
    for step in range(0, n, 64):
        a = tl.load(a_ptr + rows[:, None] * 4096 + step + j[None, :])
        acc = tl.dot(a, b.load([0, step]).T, acc)
    tl.store(out_ptr + i[:, None] * 64 + j[None, :], acc)
"""


@pytest.mark.parametrize(("persistent", "loops"), [(None, False), (True, True)])
def test_rows_that_threads_gather_gain_only_if_asked(
    tmp_path: Path, persistent: bool | None, loops: bool
) -> None:
    signature = {"a_ptr": "*bf16:16", "b": "tensordesc<bf16[64,64]>", "rows_ptr": "*i32:16"}
    signature |= {"out_ptr": "*fp32:16", "n": "i32"}
    compiled_kernel = compiled(
        tmp_path, GATHERED, signature, {}, map_pointers=True, persistent=persistent
    )
    assert ("%nctaid" in compiled_kernel.ptx) == loops
    assert "cp.async.cg" in compiled_kernel.ptx
    assert "cp.async.bulk.tensor" in compiled_kernel.ptx

"""The slice deciding about loads is copied whole, with its own state, or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

import numpy as np
import pytest

from aotc.ir.core import Kernel, Value
from aotc.ir.dialects import arith, gpu, tma
from aotc.ir.rewrite import Builder
from aotc.ir.types import I32
from aotc.ir.verify import verify
from aotc.schedule.analysis.producer_slice import SliceCopy, find_slice, layout_for_warps
from aotc.schedule.layout.layouts import blocked_for
from aotc.verify.interpreter.run import run
from tests.support.tensor_loads import branch, kernel_of, load, loop, read

STORE = "  gpu.store(%p, %n)\n"
USE = "  %{0}_sum = gpu.reduce(%{0}) {{axis = 0}} (%{0}_l: i32, %{0}_r: i32) {{\n  scf.yield(%{0}_l)\n  }} : i32\n"


def _opcodes(kernel: Kernel) -> list[str]:
    """Return the ops deciding about a kernel's loads, in program order."""
    producer_slice = find_slice(kernel)
    assert not producer_slice.obstacle
    return [op.opcode for op in kernel.walk() if op in producer_slice.ops]


def test_what_else_the_kernel_computes_is_left_out() -> None:
    body = (
        "  %two = arith.add(%one, %one) : i32\n  %at = arith.mul(%i, %one) : i32\n"
        f"{load('a', '%at')}{read('a')}{USE.format('a')}  gpu.store(%p, %a_sum)\n"
    )
    assert _opcodes(kernel_of(loop(body))) == [
        *("arith.constant", "arith.constant", "scf.for", "arith.mul", "gpu.sync_tma_load"),
    ]


def test_bounds_conditions_and_carried_values_belong_to_it() -> None:
    body = (
        "  %limit = gpu.load(%p) : i32\n"
        "  %last = scf.for(%zero, %limit, %one, %n) (%i: i32, %at: i32) {\n"
        '  %low = arith.compare(%at, %n) {predicate = "lt"} : i1\n'
        f"{branch('%low', load('a', '%at') + read('a'))}"
        "  %next = arith.add(%at, %one) : i32\n  scf.yield(%next)\n  } : i32\n"
    )
    assert _opcodes(kernel_of(body)) == [
        *("arith.constant", "arith.constant", "gpu.load", "scf.for", "arith.compare", "scf.if"),
        *("gpu.sync_tma_load", "arith.add"),
    ]


def test_a_condition_of_a_loop_belongs_to_it() -> None:
    body = (
        "  %end = scf.while(%zero) (%i: i32) {\n"
        '  %more = arith.compare(%i, %n) {predicate = "lt"} : i1\n'
        "  scf.condition(%more, %i)\n  } (%j: i32) {\n"
        f"{load('a', '%j')}{read('a')}"
        "  %next = arith.add(%j, %one) : i32\n  scf.yield(%next)\n  } : i32\n"
    )
    assert _opcodes(kernel_of(body)) == [
        *("arith.constant", "arith.constant", "scf.while", "arith.compare"),
        *("gpu.sync_tma_load", "arith.add"),
    ]


OBSTACLES = {
    "a sum of a tile": (
        load("a", "%n") + read("a") + USE.format("a") + loop(load("b", "%a_sum") + read("b")),
        "the loads depend on a tile, by gpu.reduce",
    ),
    "a number that the kernel stores": (
        loop("  %at = gpu.load(%p) : i32\n" + load("a", "%at") + read("a") + STORE),
        "the loads depend on p, which the kernel writes",
    ),
    "a number that may change": (
        "  %at = gpu.load(%p) {volatile = true} : i32\n" + loop(load("a", "%at") + read("a")),
        "the loads depend on a volatile load",
    ),
}


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_what_cannot_be_copied_is_named(obstacle: str) -> None:
    body, reason = OBSTACLES[obstacle]
    assert find_slice(kernel_of(body)).obstacle == reason


# ---- copies -----------------------------------------------------------------------------------


def _sum_of_coordinates(body: str, n: int, *, is_set: bool) -> int:
    """Run a kernel, then a copy of its slice whose loads add to the state."""
    kernel = kernel_of(body)

    def add(
        load: tma.SyncTmaLoad, builder: Builder, mapping: dict[Value, Value], state: list[Value]
    ) -> list[Value]:
        assert mapping.get(load.coords[0], load.coords[0]).type == I32
        (coord,) = (mapping.get(old_coord, old_coord) for old_coord in load.coords)
        doubled = builder(arith.Add(state[0], state[0])).out
        return [builder(arith.Add(doubled, coord)).out]

    end = Builder.before_op(kernel.body.terminator)
    start = end(arith.Constant(7, I32)).out
    (total,) = SliceCopy(find_slice(kernel), add).copy_block(kernel.body, end, [start])
    end(gpu.Store(kernel.body.args[3], total))
    verify(kernel)
    blocks = [np.zeros(128, np.int32) for _ in range(3)]
    out = np.array([3], np.int32)
    run(kernel, (1,), [*blocks, out, n, is_set])
    return int(out[0])


def _folded(coords: Iterable[int]) -> int:
    return reduce(lambda total, coord: 2 * total + coord, coords, 7)


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_a_copy_goes_through_loops_with_what_they_carry(n: int) -> None:
    inner = (
        "  %far = scf.for(%zero, %i, %one, %at) (%j: i32, %go: i32) {\n"
        f"{load('b', '%go')}  %going = arith.add(%go, %i) : i32\n  scf.yield(%going)\n  }} : i32\n"
    )
    body = (
        "  %k = gpu.load(%p) : i32\n"
        "  %last = scf.for(%zero, %n, %one, %k) (%i: i32, %at: i32) {\n"
        f"{load('a', '%i')}{inner}  scf.yield(%far)\n  }} : i32\n{load('c', '%last')}"
    )
    coords, offset = [], 3
    for i in range(n):
        coords.append(i)
        for _ in range(i):
            coords.append(offset)
            offset += i
    assert _sum_of_coordinates(body, n, is_set=False) == _folded([*coords, offset])


@pytest.mark.parametrize("is_set", [False, True])
def test_a_copy_goes_through_branches_with_what_they_yield(is_set: bool) -> None:
    body = (
        f"  %r = scf.if(%c) () {{\n{load('a', '%one')}{load('b', '%n')}  scf.yield(%one)\n  }} () {{\n"
        f"{load('d', '%zero')}  scf.yield(%n)\n  }} : i32\n{load('e', '%r')}"
    )
    expected = [1, 9, 1] if is_set else [0, 9]
    assert _sum_of_coordinates(body, 9, is_set=is_set) == _folded(expected)


@pytest.mark.parametrize("n", [0, 1, 4])
def test_a_copy_goes_through_loops_with_a_condition(n: int) -> None:
    body = (
        "  %end, %idle = scf.while(%zero, %n) (%i: i32, %k: i32) {\n"
        f'{load("a", "%i")}  %more = arith.compare(%i, %n) {{predicate = "lt"}} : i1\n'
        "  %twice = arith.add(%i, %i) : i32\n"
        "  scf.condition(%more, %i, %twice)\n  } (%j: i32, %t: i32) {\n"
        f"{load('b', '%t')}  %next = arith.add(%j, %one) : i32\n  scf.yield(%next, %t)\n"
        f"  }} : i32, i32\n{load('d', '%end')}"
    )
    coords = [coord for i in range(n) for coord in (i, 2 * i)]
    assert _sum_of_coordinates(body, n, is_set=False) == _folded([*coords, n, n])


@pytest.mark.parametrize(
    ("shape", "elems"), [((128, 64), (1, 8)), ((16,), (1,)), ((256, 8), (2, 1))]
)
def test_a_thread_of_fewer_warps_holds_what_several_held(
    shape: tuple[int, ...], elems: tuple[int, ...]
) -> None:
    layout = blocked_for(shape, elems, 8)
    fewer = layout_for_warps(layout, 2)
    assert fewer.in_size("warp") == 2
    for lane in (0, 13):
        for warp in range(2):
            coords = [
                coord
                for old_warp in range(warp, 8, 2)
                for coord in layout.coords_table("register", lane=lane, warp=old_warp)
            ]
            assert list(fewer.coords_table("register", lane=lane, warp=warp)) == coords
    assert layout_for_warps(layout, 8) == layout

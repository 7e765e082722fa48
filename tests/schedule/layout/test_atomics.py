"""Atomics in gpu IR: issuing threads, memory order, width, and broadcast of results."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.config import Config
from aotc.ir.core import Kernel, Op
from aotc.ir.dialects import gpu
from aotc.ir.passes import Observer
from aotc.ir.text import parse_kernel
from aotc.ir.types import TileType
from aotc.schedule.context import Schedule
from aotc.schedule.pipeline import schedule_kernel
from aotc.target import TARGETS
from aotc.verify.arrays import Array
from aotc.verify.interpreter.run import run


def scheduled(text: str, num_warps: int = 4, target: str = "sm_90a") -> Kernel:
    schedule = Schedule(TARGETS[target], Config(num_warps=num_warps))
    return schedule_kernel(parse_kernel(text), schedule, Observer(verify_each=True))


def memory_ops(kernel: Kernel) -> list[str]:
    """Return short opcodes of ops that touch or order memory."""
    kinds = (gpu.Load, gpu.Store, gpu.SharedStore, gpu.SharedLoad, gpu.Barrier, gpu.Fence)
    ops = [op for op in kernel.walk() if isinstance(op, (*kinds, gpu.AtomicRmw, gpu.AtomicCas))]
    return [op.opcode.removeprefix("gpu.") for op in ops]


def ops_of(kernel: Kernel, kind: type[Op]) -> list[Op]:
    return [op for op in kernel.walk() if isinstance(op, kind)]


def tile_kernel(
    dtype: str, kind: str, extent: int, sem: str = "relaxed", *, is_used: bool = False
) -> str:
    stored = "tile.store(%os, %old, _)" if is_used else ""
    return f"""
kernel @k(%x: *{dtype} {{divisibility = 16}}, %o: *{dtype} {{divisibility = 16}}, %n: i32) {{num_warps = 4}} {{
  %i = tile.arange {{start = 0, end = {extent}}} : tile<{extent}xi32>
  %xs = tile.splat(%x) {{shape = [{extent}]}} : tile<{extent}x*{dtype}>
  %os0 = tile.splat(%o) {{shape = [{extent}]}} : tile<{extent}x*{dtype}>
  %xp = arith.addptr(%xs, %i) : tile<{extent}x*{dtype}>
  %os = arith.addptr(%os0, %i) : tile<{extent}x*{dtype}>
  %v = tile.load(%os, _, _) : tile<{extent}x{dtype}>
  %old = tile.atomic_rmw(%xp, %v, _) {{kind = "{kind}", sem = "{sem}"}} : tile<{extent}x{dtype}>
  {stored}
  scf.return
}}
"""


SCALAR = """
kernel @k(%x: *i32, %o: *i32, %m: i1) {{num_warps = 4}} {{
  %c1 = arith.constant {{value = 1, type = i32}} : i32
  %old = tile.atomic_rmw(%x, %c1, %m) {{kind = "add", sem = "{sem}"}} : i32
  {use}
  scf.return
}}
"""
USE = "tile.store(%o, %old, _)"


# ---- order ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sem", "use", "expected"),
    [
        ("relaxed", "", ["atomic_rmw"]),
        ("acquire", "", ["atomic_rmw"]),
        ("release", "", ["barrier", "fence", "atomic_rmw"]),
        ("acq_rel", "", ["barrier", "fence", "atomic_rmw"]),
        (
            "relaxed",
            USE,
            ["atomic_rmw", "shared_store", "barrier", "shared_load", "store"],
        ),
        (
            "acq_rel",
            USE,
            [
                *("barrier", "fence", "atomic_rmw", "fence"),
                *("shared_store", "barrier", "shared_load", "store"),
            ],
        ),
    ],
)
def test_barriers_and_fences_of_a_scalar(sem: str, use: str, expected: list[str]) -> None:
    assert memory_ops(scheduled(SCALAR.format(sem=sem, use=use))) == expected


LATER = "tile.store(%o, %c1, _)"


@pytest.mark.parametrize(
    ("sem", "expected"),
    [
        ("relaxed", ["atomic_rmw", "store"]),
        ("acquire", ["atomic_rmw", "fence", "barrier", "store"]),
        ("release", ["barrier", "fence", "atomic_rmw", "store"]),
        ("acq_rel", ["barrier", "fence", "atomic_rmw", "fence", "barrier", "store"]),
    ],
)
def test_an_acquire_counts_without_its_result(sem: str, expected: list[str]) -> None:
    assert memory_ops(scheduled(SCALAR.format(sem=sem, use=LATER))) == expected


@pytest.mark.parametrize("position", ["branch", "loop"])
def test_an_acquire_in_a_block_is_before_what_follows_that(position: str) -> None:
    atomic = '%old = tile.atomic_rmw(%x, %c1, _) {kind = "add", sem = "acquire"} : i32'
    block = {
        "branch": f"scf.if(%m) () {{\n{atomic}\nscf.yield()\n}} () {{\nscf.yield()\n}}\n{LATER}",
        "loop": f"scf.for(%c1, %n, %c1) (%i: i32) {{\n{atomic}\nscf.yield()\n}}",
    }[position]
    kernel = scheduled(f"""
kernel @k(%x: *i32, %o: *i32, %n: i32, %m: i1) {{num_warps = 4}} {{
  %c1 = arith.constant {{value = 1, type = i32}} : i32
  {block}
  scf.return
}}
""")
    assert memory_ops(kernel)[:3] == ["atomic_rmw", "fence", "barrier"]


@pytest.mark.parametrize(
    ("sem", "before", "after"),
    [
        ("relaxed", [], []),
        ("acquire", [], ["fence", "barrier"]),
        ("release", ["barrier", "fence"], []),
        ("acq_rel", ["barrier", "fence"], ["fence", "barrier"]),
    ],
)
def test_one_fence_for_a_whole_tile(sem: str, before: list[str], after: list[str]) -> None:
    kernel = scheduled(tile_kernel("i32", "add", 128, sem, is_used=True))
    assert memory_ops(kernel) == ["load", *before, "atomic_rmw", *after, "store"]


def test_a_loop_of_atomics_waits_for_readers_of_the_result() -> None:
    kernel = scheduled("""
kernel @k(%x: *i32, %n: i32) {num_warps = 4} {
  %c0 = arith.constant {value = 0, type = i32} : i32
  %c1 = arith.constant {value = 1, type = i32} : i32
  %last = scf.for(%c0, %n, %c1, %c0) (%i: i32, %sum: i32) {
    %old = tile.atomic_rmw(%x, %sum, _) {kind = "add", sem = "relaxed"} : i32
    scf.yield(%old)
  } : i32
  tile.store(%x, %last, _)
  scf.return
}
""")
    # The store of an iteration must not overtake a load of the one before: two buffers take turns.
    assert memory_ops(kernel) == ["atomic_rmw", "shared_store", "barrier", "shared_load", "store"]
    (buffer,) = (op for op in kernel.walk() if isinstance(op, gpu.SharedAlloc))
    assert buffer.num_stages == 2
    cell = np.array([3], np.int32)
    run(kernel, (1,), [cell, 4])
    assert cell.item() == 9


# ---- layouts and widths -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "kind", "target", "vector"),
    [
        ("fp32", "add", "sm_90a", 4),
        ("fp32", "add", "sm_80", 1),
        ("fp32", "max", "sm_90a", 1),
        ("fp32", "xchg", "sm_90a", 1),
        ("fp16", "add", "sm_90a", 8),
        ("fp16", "add", "sm_89", 2),
        ("bf16", "add", "sm_120a", 8),
        ("bf16", "add", "sm_80", 2),
        ("fp64", "add", "sm_90a", 1),
        ("i32", "add", "sm_90a", 1),
    ],
)
def test_vectors(dtype: str, kind: str, target: str, vector: int) -> None:
    (atomic,) = ops_of(scheduled(tile_kernel(dtype, kind, 4096), target=target), gpu.AtomicRmw)
    assert isinstance(atomic, gpu.AtomicRmw)
    assert atomic.vector == vector


def test_without_alignment_or_one_mask_there_are_no_vectors() -> None:
    aligned = tile_kernel("fp16", "add", 4096)
    for text in (
        aligned.replace("%x: *fp16 {divisibility = 16}", "%x: *fp16"),
        aligned.replace(
            "%old = tile.atomic_rmw(%xp, %v, _)",
            "%ns = tile.splat(%n) {shape = [4096]} : tile<4096xi32>\n"
            '%m = arith.compare(%i, %ns) {predicate = "lt"} : tile<4096xi1>\n'
            "%old = tile.atomic_rmw(%xp, %v, %m)",
        ),
    ):
        (atomic,) = ops_of(scheduled(text), gpu.AtomicRmw)
        assert isinstance(atomic, gpu.AtomicRmw)
        assert atomic.vector == 1


def test_single_elements_lie_side_by_side_in_a_warp() -> None:
    """Lanes on neighbouring words, though the load beside moves four of them a thread."""
    kernel = scheduled(tile_kernel("i32", "add", 4096, is_used=True))
    (atomic,) = ops_of(kernel, gpu.AtomicRmw)
    kind = atomic.results[0].type
    assert isinstance(kind, TileType)
    assert kind.layout is not None
    assert kind.layout.bases("lane")[:2] == ((1,), (2,))


# ---- meaning ----------------------------------------------------------------------------------


def _arrays(extent: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(2)
    x, o = (rng.integers(-99, 99, extent).astype(np.int32) for _ in range(2))
    return x, o


@pytest.mark.parametrize("num_warps", [1, 8])
@pytest.mark.parametrize("extent", [1, 2, 32, 128, 2048])
@pytest.mark.parametrize("sem", ["relaxed", "acq_rel"])
def test_every_pass_keeps_the_meaning(extent: int, num_warps: int, sem: str) -> None:
    text = tile_kernel("i32", "max", extent, sem, is_used=True)
    x, o = _arrays(extent)
    passes: list[str] = []

    def check(name: str, kernel: Kernel) -> None:
        got_x, got_o = x.copy(), o.copy()
        run(kernel, (1,), [got_x, got_o, extent], check_races=name == "insert_barriers")
        assert (got_x == np.maximum(x, o)).all(), name
        assert (got_o == x).all(), name
        passes.append(name)

    schedule = Schedule(TARGETS["sm_90a"], Config(num_warps=num_warps))
    schedule_kernel(parse_kernel(text), schedule, Observer(verify_each=True, on_pass=check))
    assert "insert_barriers" in passes


def test_a_lock_is_taken_and_given_back() -> None:
    """Spin on a compare-and-swap, then exchange: scalars in a loop with their own condition."""
    kernel = scheduled("""
kernel @k(%lock: *i32, %sum: *i32) {num_warps = 2} {
  %c0 = arith.constant {value = 0, type = i32} : i32
  %c1 = arith.constant {value = 1, type = i32} : i32
  %got = scf.while(%c1) (%was: i32) {
    %held = arith.compare(%was, %c0) {predicate = "ne"} : i1
    scf.condition(%held, %was)
  } (%again: i32) {
    %now = tile.atomic_cas(%lock, %c0, %c1) {sem = "acquire"} : i32
    scf.yield(%now)
  } : i32
  %old = tile.load(%sum, _, _) : i32
  %new = arith.add(%old, %c1) : i32
  tile.store(%sum, %new, _)
  %freed = tile.atomic_rmw(%lock, %c0, _) {kind = "xchg", sem = "release"} : i32
  scf.return
}
""")
    lock, total = np.zeros(1, np.int32), np.array([5], np.int32)
    run(kernel, (3,), [lock, total])
    assert (lock.item(), total.item()) == (0, 8)

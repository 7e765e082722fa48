"""Mbarrier rings: arrival counts and wait phases."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aotc.ir.core import Kernel, Value
from aotc.ir.dialects import arith, scf, tma
from aotc.ir.rewrite import Builder
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.types import I32
from aotc.ir.verify import verify
from aotc.schedule.shared_memory.mbarrier_ring import (
    Load,
    MbarrierRing,
    RingPosition,
    carry_phases,
)
from tests.support.checks import check, without_checks
from tests.support.tensor_loads import ALLOC, HEAD

HEADER = HEAD.replace("WARPS", "2")


def _emitted(text: str, emit: Callable[[Kernel], None]) -> None:
    """Let `emit` emit the uses of a ring in the kernel of a body; check the CHECK lines."""
    kernel = parse_kernel(HEADER + without_checks(text) + "  scf.return\n}\n")
    emit(kernel)
    for op in [op for op in kernel.walk() if isinstance(op, tma.SyncTmaLoad)]:
        op.erase()
    verify(kernel)
    check(text, print_kernel(kernel))


def _place(kernel: Kernel) -> Builder:
    return Builder.before_op(kernel.body.terminator)


def _loads(kernel: Kernel) -> list[Load]:
    loads = [op for op in kernel.walk() if isinstance(op, tma.SyncTmaLoad)]
    return [(op, op.buffer, op.inputs) for op in loads]


LOADS = f"  %a = {ALLOC}\n  gpu.sync_tma_load(%x, %a, %n)\n  %b = {ALLOC}\n  gpu.sync_tma_load(%z, %b, %n)\n"


def test_a_stage_is_filled_once_all_have_released_it() -> None:
    def emit(kernel: Kernel) -> None:
        builder = _place(kernel)
        ring = MbarrierRing(builder, 3, num_warps=2, num_ctas=2)
        position = RingPosition(ring.start, ring.start)
        ring.fill(_loads(kernel), position, builder)
        ring.await_full(position, builder)
        ring.release(position, builder, before=1)

    _emitted(
        f"""{LOADS}
        // CHECK: [[FULL:%\\w+]] = gpu.shared_alloc {{{{.*}}}}num_stages = 3
        // CHECK: [[EMPTY:%\\w+]] = gpu.shared_alloc {{{{.*}}}}num_stages = 3
        // CHECK: gpu.mbarrier_init([[FULL]])
        // CHECK: gpu.mbarrier_init([[EMPTY]]) {{count = 4}}
        // CHECK: [[START:%\\w+]] = arith.constant {{value = 0, type = i32}}
        // CHECK: [[PARITY:%\\w+]] = arith.xor([[START]], {{{{%\\w+}}}})
        // CHECK: [[FREE:%\\w+]] = gpu.shared_stage([[EMPTY]], [[START]])
        // CHECK: gpu.mbarrier_wait([[FREE]], [[PARITY]])
        // CHECK: [[STAGE:%\\w+]] = gpu.shared_stage([[FULL]], [[START]])
        // CHECK: gpu.tma_load(%x, %a, [[STAGE]], %n) {{arrive = false}}
        // CHECK: gpu.tma_load(%z, %b, [[STAGE]], %n)
        // CHECK-NOT: arrive = false
        // CHECK: gpu.mbarrier_wait({{{{%\\w+}}}}, [[START]])
        // CHECK: [[READ:%\\w+]] = gpu.shared_stage([[EMPTY]], [[START]]) {{ahead = 2}}
        // CHECK: gpu.mbarrier_arrive([[READ]], _) {{count = 2, num_ctas = 2}}
""",
        emit,
    )


def test_without_readers_that_release_there_is_no_empty() -> None:
    def emit(kernel: Kernel) -> None:
        builder = _place(kernel)
        ring = MbarrierRing(builder)
        assert ring.empty is None
        position = RingPosition(ring.start, ring.start)
        ring.fill(_loads(kernel), position, builder)
        ring.await_full(ring.next(position, builder), builder)

    _emitted(
        f"""{LOADS}
        // CHECK: [[FULL:%\\w+]] = gpu.shared_alloc {{{{.*}}}}u64
        // CHECK: gpu.mbarrier_init([[FULL]])
        // CHECK: [[START:%\\w+]] = arith.constant
        // CHECK-NOT: gpu.mbarrier_wait
        // CHECK: gpu.tma_load(%x, %a, [[FULL]], %n)
        // CHECK: gpu.tma_load(%z, %b, [[FULL]], %n)
        // CHECK: [[PARITY:%\\w+]] = arith.xor([[START]], {{{{%\\w+}}}})
        // CHECK: gpu.mbarrier_wait([[FULL]], [[PARITY]])
""",
        emit,
    )


@pytest.mark.parametrize("num_stages", [2, 5])
def test_a_parity_flips_as_the_index_wraps(num_stages: int) -> None:
    def emit(kernel: Kernel) -> None:
        builder = _place(kernel)
        ring = MbarrierRing(builder, num_stages)
        ring.await_full(ring.next(RingPosition(ring.start, ring.start), builder), builder)

    _emitted(
        f"""
        // CHECK: [[FULL:%\\w+]] = gpu.shared_alloc
        // CHECK: [[START:%\\w+]] = arith.constant
        // CHECK: [[NEXT:%\\w+]] = gpu.next_stage([[START]]) {{num_stages = {num_stages}}}
        // CHECK: [[WRAPS:%\\w+]] = arith.compare([[NEXT]], {{{{%\\w+}}}}) {{predicate = "eq"}}
        // CHECK: [[FLIP:%\\w+]] = arith.cast([[WRAPS]]) {{dtype = i32}}
        // CHECK: [[PARITY:%\\w+]] = arith.xor([[START]], [[FLIP]])
        // CHECK: [[STAGE:%\\w+]] = gpu.shared_stage([[FULL]], [[NEXT]])
        // CHECK: gpu.mbarrier_wait([[STAGE]], [[PARITY]])
""",
        emit,
    )


def test_phase_bits_hold_the_parity_of_each_stage() -> None:
    def emit(kernel: Kernel) -> None:
        ring = MbarrierRing.at_entry(kernel, 4)
        builder = _place(kernel)
        index = kernel.body.args[4]
        ring.wait(index, ring.start, builder)

    _emitted(
        """
        // CHECK: [[FULL:%\\w+]] = gpu.shared_alloc
        // CHECK: gpu.mbarrier_init([[FULL]])
        // CHECK: [[START:%\\w+]] = arith.constant {value = 0, type = i32}
        // CHECK: gpu.barrier
        // CHECK: %one =
        // CHECK: [[ONE:%\\w+]] = arith.constant {value = 1, type = i32}
        // CHECK: [[SHIFTED:%\\w+]] = arith.shr([[START]], %n)
        // CHECK: [[PARITY:%\\w+]] = arith.and([[SHIFTED]], [[ONE]])
        // CHECK: [[STAGE:%\\w+]] = gpu.shared_stage([[FULL]], %n)
        // CHECK: gpu.mbarrier_wait([[STAGE]], [[PARITY]])
        // CHECK: [[BIT:%\\w+]] = arith.shl([[ONE]], %n)
        // CHECK: arith.xor([[START]], [[BIT]])
""",
        emit,
    )


def _carry(kernel: Kernel) -> None:
    """Carry the second value of the loop over `%j`, starting at the kernel's `%zero`."""
    loops = [op for op in kernel.walk() if isinstance(op, scf.For)]
    (loop,) = (op for op in loops if op.induction.hint == "j")
    start: Value = Builder(kernel.body, kernel.body.first)(arith.Constant(0, I32)).out
    loop.set_slots([*loop.slots[:3], start])
    carry_phases(loop, start, loop.outs[0])


INNER = (
    "%end = scf.for(%zero, %n, %one, %zero) (%j: i32, %bits: i32) {\n"
    "  scf.yield(%bits)\n  } : i32\n"
)


def test_phase_bits_go_around_every_loop() -> None:
    _emitted(
        f"""
        // CHECK: [[START:%\\w+]] = arith.constant
        // CHECK: scf.for(%zero, %n, %one, [[START]]) (%i: i32, [[OUTER:%\\w+]]: i32)
        scf.for(%zero, %n, %one) (%i: i32) {{
          // CHECK: scf.if(%c)
          scf.if(%c) () {{
            // CHECK: [[END:%\\w+]] = scf.for(%zero, %n, %one, [[OUTER]]) (%j: i32
            {INNER}
            // CHECK: scf.yield([[END]])
            scf.yield()
          }} () {{
            // CHECK: scf.yield([[OUTER]])
            scf.yield()
          }}
          scf.yield()
        }}
""",
        _carry,
    )


def test_phase_bits_of_a_loop_that_runs_once_are_not_carried() -> None:
    _emitted(
        f"""
        // CHECK: scf.if(%c) () {{
        scf.if(%c) () {{
          {INNER}
          // CHECK: scf.yield()
          scf.yield()
        }} () {{
          scf.yield()
        }}
""",
        _carry,
    )

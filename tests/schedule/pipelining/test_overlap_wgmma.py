"""Products that run on into the next iteration: which do, what they wait for, and the empty loop."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.compiler import CompileRequest, compile_kernel
from aotc.ir.core import Kernel, Op
from aotc.ir.dialects import arith, gpu, scf, tma, wgmma
from tests.support.hopper_cases import CASES, constants_of, scalar_of
from tests.support.products import Matmul, interpreted


def ops(kernel: Kernel, *classes: type[Op]) -> list[Op]:
    return [op for op in kernel.walk() if isinstance(op, classes)]


def waits(kernel: Kernel) -> list[int]:
    return [op.pending for op in kernel.walk() if isinstance(op, wgmma.WgmmaWait)]


def loop_of(kernel: Kernel) -> scf.For:
    (loop,) = (op for op in kernel.walk() if isinstance(op, scf.For))
    return loop


def test_a_sum_runs_on_and_is_drained_after_the_loop() -> None:
    kernel = interpreted(Matmul())
    assert waits(kernel) == [1, 0]
    loop = loop_of(kernel)
    (drain,) = (user for out in loop.outs for user in out.users if user.opcode == "gpu.wgmma_wait")
    assert drain.block is loop.block


def test_an_iteration_waits_once_and_starts_with_the_product() -> None:
    """One barrier, fenced; then the product, and only then the copies for later iterations."""
    kinds = (gpu.AsyncWait, tma.ProxyFence, gpu.Barrier, wgmma.Wgmma, gpu.AsyncCopy)
    order = [op.opcode for op in loop_of(interpreted(Matmul())).body if isinstance(op, kinds)]
    assert order == [
        *("gpu.async_wait", "gpu.proxy_fence", "gpu.barrier", "gpu.wgmma"),
        *("gpu.async_copy", "gpu.async_copy"),
    ]


@pytest.mark.parametrize(("num_stages", "ahead", "pending"), [(3, 1, 0), (4, 2, 1), (5, 3, 2)])
def test_copies_leave_alone_the_slot_that_is_still_read(
    num_stages: int, ahead: int, pending: int
) -> None:
    loop = loop_of(interpreted(Matmul(shape=(64, 64, 384), num_stages=num_stages)))
    targets = [op.buffer.op for op in loop.body if isinstance(op, gpu.AsyncCopy)]
    assert [op.ahead for op in targets if isinstance(op, gpu.SharedStage)] == [ahead, ahead]
    assert [op.pending for op in loop.body if isinstance(op, gpu.AsyncWait)] == [pending]


def test_two_slots_are_too_few_to_run_on() -> None:
    kernel = interpreted(Matmul(num_stages=2))
    assert waits(kernel) == [0]
    assert len(ops(kernel, gpu.AsyncCopy)) == 4


def test_one_buffer_is_too_few_to_run_on() -> None:
    assert waits(interpreted(Matmul(num_stages=1))) == [0]


def test_two_sums_of_a_loop_run_on_together() -> None:
    kernel = interpreted(Matmul(way="two_sums"))
    assert waits(kernel) == [2, 0]
    assert all(len(op.operands) == 2 for op in ops(kernel, wgmma.WgmmaWait))


@pytest.mark.parametrize("way", ["scaled", "chained"])
def test_what_is_read_from_registers_does_not_run_on(way: str) -> None:
    assert set(waits(interpreted(Matmul(way=way)))) == {0}


def test_sums_in_half_registers_do_not_run_on() -> None:
    assert waits(interpreted(Matmul("fp16", "fp16"))) == [0]


def test_the_first_product_begins_the_sum() -> None:
    kernel = interpreted(Matmul())
    (product,) = ops(kernel, wgmma.Wgmma)
    assert isinstance(product, wgmma.Wgmma)
    assert product.accumulate is not None
    assert isinstance(product.accumulate.op, arith.Compare)
    assert len(ops(kernel, gpu.Undefined)) == 1


def test_a_product_of_its_own_begins_with_nothing() -> None:
    kernel = interpreted(Matmul(way="chained"))
    kept = [op.accumulate for op in kernel.walk() if isinstance(op, wgmma.Wgmma)]
    ignored = [each for each in kept if each is not None and isinstance(each.op, arith.Constant)]
    assert len(kept) == 2
    assert [each.op.value for each in ignored if isinstance(each.op, arith.Constant)] == [False]


@pytest.mark.parametrize("k", [0, 1, 64, 65])
def test_a_loop_that_may_not_run_is_an_arm_of_a_branch(k: int) -> None:
    """The zeros of the other arm join after the wait, and only there."""
    kernel = interpreted(Matmul(shape=(64, 64, k)))
    loop = loop_of(kernel)
    branch = loop.parent_op
    assert isinstance(branch, scf.If)
    assert [op.pending for op in branch.then if isinstance(op, wgmma.WgmmaWait)] == [0]
    assert [op.opcode for op in branch.orelse] == ["scf.yield"]


def test_scales_are_read_while_their_product_multiplies() -> None:
    """No barrier stands between the product and its use, so warpgroups do not wait for each other."""
    case = CASES["blockwise"]
    constants = constants_of(case.builds[-1])
    rng = np.random.default_rng(0)
    launch = case.make(rng, scalar_of(case.dtypes[0]), case.shapes[-1], case.builds[-1])
    types = case.types(case.dtypes[0], constants, launch)
    request = CompileRequest(
        *(case.path, case.function, tuple(types.items()), tuple(constants.items()), "sm_90a"),
    )
    lines = compile_kernel(request, keep_asm=True).asm["gpu"].splitlines()
    (start,) = (at for at, line in enumerate(lines) if "gpu.wgmma(" in line)
    end = next(at for at in range(start, len(lines)) if "gpu.wgmma_wait" in lines[at])
    assert any("gpu.shared_load" in line for line in lines[start:end])
    indent = " " * (len(lines[start]) - len(lines[start].lstrip()))
    always = [line for line in lines[start : end + 8] if line.startswith(f"{indent}gpu.")]
    assert always
    assert not any("gpu.barrier" in line for line in always)

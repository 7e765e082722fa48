"""First fragments carried over the back edge: moved reads, their times, and refusals."""

from __future__ import annotations

import re
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from aotc.ir.core import Block
from aotc.ir.dialects import gpu, scf
from aotc.schedule.pipelining.prefetch_fragments import prefetch_fragments
from aotc.schedule.shared_memory.allocate_shared import allocate_shared
from aotc.schedule.shared_memory.insert_barriers import insert_barriers
from tests.support.pass_case import applied, assert_same_meaning
from tests.support.pipelined import Args, Case
from tests.support.pipelined_dot import dot_args, pipelined_dots

LETTERS = {
    gpu.SharedLoad: "L", gpu.SharedStore: "S", gpu.Dot: "D", gpu.AsyncCopy: "C",
    gpu.AsyncCommit: "G", gpu.AsyncWait: "W", gpu.Barrier: "B",
}  # fmt: skip


def product(dtype: str = "bf16", promise: str = ":16", *, block_k: int, num_stages: int) -> Case:
    sizes = ("m_size", "n_size", "k_size", "stride_a", "stride_b")
    signature = dict.fromkeys(("a_ptr", "b_ptr"), f"*{dtype}:16")
    signature |= {"c_ptr": "*i32:16" if dtype == "i8" else "*fp32:16"}
    signature |= dict.fromkeys(sizes, f"i32{promise}")
    blocks = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": block_k, "MASK": "mnk"}
    return Case("product", signature, blocks, num_warps=2, num_stages=num_stages)


def loop_of(case: Case) -> scf.For:
    return next(op for op in case.kernel.walk() if isinstance(op, scf.For))


def sequence(block: Block) -> str:
    return "".join(LETTERS.get(type(op), "") for op in block)


@pytest.mark.parametrize(
    ("block_k", "order"),
    [(16, "CCGWBLLD"), (32, "LLCCGDWBLLD"), (64, "LLCDLLCGDLLDWBLLD")],
)
@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_an_iteration_begins_with_a_product_and_needs_one_barrier(
    block_k: int, order: str, num_stages: int
) -> None:
    case = product(block_k=block_k, num_stages=num_stages)
    assert sequence(loop_of(case).body) == order
    before = sequence(case.kernel.body).removeprefix("D")
    # The first fragments are read before the loop; copies in flight are awaited after it.
    assert before.startswith("CCG" * (num_stages - 1) + "WBLLW")


def test_what_is_carried_are_words() -> None:
    """Each lane takes the words of a fragment from one iteration to the next, not their halves."""
    ptx = product(block_k=32, num_stages=3).ptx
    body = ptx[ptx.index("ldmatrix") :]
    assert not re.search(r"mov\.b32\s+\{|prmt|mov\.b16", body[: body.index("st.global")])


def test_what_goes_through_registers_is_not_carried() -> None:
    """An iteration's own store is invisible to the one before it."""
    body = sequence(loop_of(product(promise="", block_k=32, num_stages=3)).body)
    assert body == "SSBLLD"


def test_a_loop_that_is_not_pipelined_is_left_alone() -> None:
    body = sequence(loop_of(product(block_k=32, num_stages=1)).body)
    assert body.startswith("BSSBLL")


def product_args(dtype: str, k_size: int) -> Callable[[], Args]:
    def make() -> Args:
        random = np.random.default_rng(k_size + 1)
        kind = np.int8 if dtype == "i8" else ml_dtypes.bfloat16
        a, b = (random.integers(-3, 4, size).astype(kind) for size in (32 * 208, 208 * 32))
        out = np.full(32 * 32, 77, np.int32 if dtype == "i8" else np.float32)
        return [a, b, out, 32, 32, k_size, 208, 32]

    return make


@pytest.mark.parametrize("dtype", ["bf16", "i8"])
@pytest.mark.parametrize(("block_k", "num_stages"), [(32, 3), (64, 2), (64, 4)])
def test_iterations_multiply_what_they_did(dtype: str, block_k: int, num_stages: int) -> None:
    """Trips of none, one, two, fewer and more than there are stages, and a part of one."""
    case = product(dtype, block_k=block_k, num_stages=num_stages)
    for k_size in (0, 16, block_k, 2 * block_k - 16, 2 * block_k, 208):
        case.check(product_args(dtype, k_size))


CHECKS = """\
// CHECK: gpu.async_commit
// CHECK-NEXT: gpu.async_wait
// CHECK-NEXT: [[A_STAGE:%.*]] = gpu.shared_stage(%a_ring, %zero)
// CHECK-NEXT: [[A_FIRST:%.*]] = gpu.shared_load([[A_STAGE]]) {{.*}}start = [0, 0]
// CHECK-NEXT: [[B_STAGE:%.*]] = gpu.shared_stage(%b_ring, %zero)
// CHECK-NEXT: [[B_FIRST:%.*]] = gpu.shared_load([[B_STAGE]]) {{.*}}start = [0, 0]
// CHECK-NEXT: scf.for({{.*}}, [[A_FIRST]], [[B_FIRST]]) {{.*}}%index: i32, [[A:%.*]]: tile<16x16xfp16, #{{[0-9]+}}>, [[B:%.*]]: tile
// CHECK-NOT: gpu.async_wait
// CHECK-NOT: start = [0, 0]
// CHECK: [[A_NOW:%.*]] = gpu.shared_stage(%a_ring, %index) :
// CHECK-NEXT: [[B_NOW:%.*]] = gpu.shared_stage(%b_ring, %index) :
// CHECK-NOT: gpu.async_wait
// CHECK-NOT: start = [0, 0]
// CHECK: %c = gpu.shared_load([[A_NOW]])
// CHECK-NEXT: %d = gpu.shared_load([[B_NOW]])
// CHECK-NEXT: %part1 = gpu.dot([[A]], [[B]], %acc)
// CHECK-NEXT: gpu.async_wait
// CHECK-NEXT: [[A_STAGE:%.*]] = gpu.shared_stage(%a_ring, %index) {ahead = 1}
// CHECK-NEXT: [[A_NEXT:%.*]] = gpu.shared_load([[A_STAGE]]) {{.*}}start = [0, 0]
// CHECK-NEXT: [[B_STAGE:%.*]] = gpu.shared_stage(%b_ring, %index) {ahead = 1}
// CHECK-NEXT: [[B_NEXT:%.*]] = gpu.shared_load([[B_STAGE]]) {{.*}}start = [0, 0]
// CHECK-NEXT: %sum = gpu.dot(%c, %d, %part1)
// CHECK: scf.yield(%sum, {{.*}}, [[A_NEXT]], [[B_NEXT]])
"""


def test_the_next_iterations_first_fragments_are_read_before_the_last_dot() -> None:
    text = CHECKS + pipelined_dots("ab", "cd")
    kernel = applied(text, prefetch_fragments)
    for iterations in (1, 2, 5):
        args = dot_args(iterations)
        assert_same_meaning(text, kernel, args, lower=(allocate_shared, insert_barriers))

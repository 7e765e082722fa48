"""The stack of a compile is as deep for many operations as for few."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from aotc.backend import lower_kernel
from aotc.compiler import CompileRequest, check_request, compile_request, translate_request
from aotc.schedule.analysis.count_work import count_work
from aotc.schedule.analysis.index_limits import note_index_limits
from aotc.schedule.context import Schedule
from aotc.schedule.pipeline import schedule_kernel
from aotc.schedule.shared_memory.check_resources import check_resources
from tests.support.repeated_kernels import KERNELS, NESTS, repeated

# Deep enough for a compile of nested blocks, and too little for a frame for each of COUNT operations.
STACK = 130
COUNT = 150
BOUNDED = ("returns", "arms", *NESTS)
"""Blocks in blocks: the frontend bounds their depth."""


@contextmanager
def _small_stack() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + STACK)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def _lower(request: CompileRequest) -> str:
    """Return LLVM IR: our own part of a compile."""
    target = check_request(request)
    schedule = Schedule(target, request.config, map_pointers=True)
    kernel = translate_request(request).kernel
    note_index_limits(kernel, schedule)
    kernel = schedule_kernel(kernel, schedule)
    check_resources(kernel, target, request.limits)
    count_work(kernel)
    return lower_kernel(kernel, target).llvm_ir


@pytest.mark.parametrize("name", [name for name in KERNELS if name not in BOUNDED])
def test_a_chain_of_operations_takes_no_stack(name: str) -> None:
    _lower(repeated(name, 1, "sm_80"))  # imports of a first compile
    with _small_stack():
        _lower(repeated(name, COUNT, "sm_80"))


SORT = """
import triton
import triton.language as tl


@triton.jit
def sort_row(x, out, n, N: tl.constexpr):
    c = tl.arange(0, N)
    v = tl.load(x + c, mask=c < n, other=float("inf"))
    tl.store(out + c, tl.sort(v), mask=c < n)
"""


@pytest.mark.parametrize(("target", "num_warps"), [("sm_80", 4), ("sm_90a", 8)])
def test_a_sort_of_many_takes_no_stack(target: str, num_warps: int) -> None:
    request = compile_request(
        "sort_row",
        source=SORT,
        signature={"x": "*fp32:16", "out": "*fp32:16", "n": "i32"},
        constants={"N": 2048},
        target=target,
        config={"num_warps": num_warps},
    )
    with _small_stack():
        assert "shfl" in _lower(request)

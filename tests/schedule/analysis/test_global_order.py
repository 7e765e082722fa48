"""Ops that global loads may not cross."""

from __future__ import annotations

import pytest

from aotc.ir.core import Op
from aotc.ir.dialects import gpu, tma
from aotc.ir.effects import Resource
from aotc.ir.text import parse_kernel
from aotc.schedule.analysis.global_order import (
    accessed,
    accessed_pointer,
    fences,
    is_promised_apart,
    keeps_order,
    synchronizes,
)
from tests.support.every_op import SAMPLES, kernel_of, ops_of, sample_kernel

# Every op writing global memory, or ordering accesses to it within or among threads.
_FENCES = (
    *("asm.volatile", "gpu.atomic_cas", "gpu.atomic_rmw", "gpu.barrier", "gpu.bulk_load"),
    *("gpu.bulk_store", "gpu.fence", "gpu.mbarrier_arrive", "gpu.mbarrier_init"),
    *("gpu.mbarrier_wait", "gpu.specialize", "gpu.store", "gpu.tma_load", "gpu.tma_reduce"),
    *("gpu.tma_store", "grid.cluster_barrier", "grid.wait", "tile.assert", "tile.atomic_cas"),
    *("tile.atomic_rmw", "tile.barrier", "tile.descriptor_reduce", "tile.descriptor_store"),
    *("tile.print", "tile.store"),
)
# Resources without any order on global memory: loads may cross effects on these.
_OTHERS = (
    *(Resource.SHARED, Resource.COPIES, Resource.STORES, Resource.DOTS, Resource.CONTROL),
    *(Resource.TENSOR_MAP, Resource.CACHE),
)


# Ops that pass knowledge of other threads' or programs' progress.
_SYNCHRONIZING = (
    *("asm.volatile", "gpu.barrier", "gpu.fence", "gpu.mbarrier_arrive", "gpu.mbarrier_wait"),
    *("gpu.beside", "gpu.specialize", "gpu.tma_store_wait", "tile.barrier"),
    *("grid.cluster_barrier", "grid.grid_barrier"),
)
# These do if they order other accesses, or their result is used.
_ATOMIC = ("gpu.atomic_cas", "gpu.atomic_rmw", "tile.atomic_cas", "tile.atomic_rmw")


@pytest.mark.parametrize("opcode", [name for name in SAMPLES if name not in _ATOMIC])
def test_what_tells_threads_of_each_other_synchronizes(opcode: str) -> None:
    ops = ops_of(sample_kernel(opcode), opcode)
    assert {synchronizes(op) for op in ops} == {opcode in _SYNCHRONIZING}


@pytest.mark.parametrize("opcode", _ATOMIC)
def test_an_atomic_that_orders_nothing_and_tells_nobody_does_not(opcode: str) -> None:
    for op in ops_of(sample_kernel(opcode), opcode):
        has_users = any(value.users for value in op.results)
        assert synchronizes(op) == (getattr(op, "sem", "relaxed") != "relaxed" or has_users)


@pytest.mark.parametrize(
    ("sem", "use", "expected"),
    [
        ("relaxed", "", False),
        ("relaxed", "tile.store(%p, %was, _)", True),
        ("release", "", True),
        ("acquire", "", True),
        ("acq_rel", "", True),
    ],
)
def test_only_relaxed_atomics_without_users_order_nothing(
    sem: str, use: str, *, expected: bool
) -> None:
    text = f"""kernel @k(%p: *i32, %x: i32) {{num_warps = 4}} {{
  %was = tile.atomic_rmw(%p, %x, _) {{kind = "add", sem = "{sem}"}} : i32
  {use}
  scf.return
}}
"""
    (op,) = ops_of(parse_kernel(text), "tile.atomic_rmw")
    assert synchronizes(op) == expected


def test_a_wait_for_a_written_tensor_synchronizes() -> None:
    assert synchronizes(tma.TmaStoreWait(written=True))
    assert not synchronizes(tma.ProxyFence(whole=True))


_ACCESSED = {
    "tile.load": "pointer",
    "tile.store": "pointer",
    "gpu.atomic_rmw": "pointer",
    "gpu.async_copy": "pointer",
    "tile.descriptor_load": "descriptor",
    "tile.descriptor_reduce": "descriptor",
    "gpu.tma_store": "tensor",
    "gpu.bulk_load": "pointer",
}


@pytest.mark.parametrize("opcode", _ACCESSED)
def test_an_access_names_what_it_goes_through(opcode: str) -> None:
    op = ops_of(sample_kernel(opcode), opcode)[0]
    pointer = getattr(op, _ACCESSED[opcode])
    assert accessed(op) is pointer
    assert accessed_pointer(op) is (pointer if _ACCESSED[opcode] == "pointer" else None)


@pytest.mark.parametrize(
    "opcode", ["tile.barrier", "tile.print", "gpu.shared_load", "asm.volatile"]
)
def test_what_goes_through_nothing_accesses_nothing(opcode: str) -> None:
    assert accessed(ops_of(sample_kernel(opcode), opcode)[0]) is None


@pytest.mark.parametrize("opcode", _FENCES)
def test_what_orders_global_memory_is_a_fence(opcode: str) -> None:
    kernel = sample_kernel(opcode)
    fence_ops = dict.fromkeys(fences(kernel.body))
    assert all(op in fence_ops for op in ops_of(kernel, opcode))


@pytest.mark.parametrize("opcode", SAMPLES)
def test_an_op_with_effects_is_a_fence_or_leaves_global_memory_alone(opcode: str) -> None:
    kernel = sample_kernel(opcode)
    fence_ops = dict.fromkeys(fences(kernel.body))
    for op in ops_of(kernel, opcode):
        changed = [effect.resource for effect in op.effects_on(None, "allocate", "write", "order")]
        assert op in fence_ops or all(resource in _OTHERS for resource in changed)
        assert op not in fence_ops or changed


def test_a_fence_may_depend_on_an_attribute() -> None:
    def is_fence(op: Op) -> bool:
        return op in list(fences((op,)))

    assert is_fence(tma.TmaStoreWait(written=True))
    assert not is_fence(tma.TmaStoreWait())
    assert is_fence(tma.ProxyFence(whole=True))
    assert not is_fence(tma.ProxyFence())


def test_fences_nested_in_an_op_are_found() -> None:
    kernel = kernel_of([SAMPLES["scf.for"], SAMPLES["gpu.specialize"]])
    loop = next(op for op in kernel.walk() if op.opcode == "scf.for")
    barrier = gpu.Barrier()
    assert not list(fences((loop,)))
    loop.blocks[0].insert(barrier, before=loop.blocks[0].first)
    assert list(fences((loop,))) == [barrier]


APART = """\
kernel @k(%a: *fp32, %b: *fp32 {noalias = true}, %c: *fp32, %n: i32, %t: i1) {num_warps = 1} {
  %at = arith.addptr(%b, %n) : *fp32
  %either = arith.select(%t, %a, %c) : *fp32
  %any = arith.select(%t, %at, %a) : *fp32
  %address = arith.constant {value = 0, type = i64} : i64
  %made = arith.cast(%address) {dtype = *fp32} : *fp32
  scf.return
}
"""


@pytest.mark.parametrize(
    ("left", "right", "apart"),
    [
        ("a", "b", True), ("at", "a", True), ("at", "either", True), ("a", "c", False),
        ("at", "b", False), ("any", "c", False), ("any", "at", False), ("made", "b", False),
    ],
)  # fmt: skip
def test_what_the_signature_promises_to_be_apart(left: str, right: str, apart: bool) -> None:
    kernel = parse_kernel(APART)
    values = {value.hint: value for op in kernel.body for value in op.results}
    values |= {info.name: arg for info, arg in zip(kernel.params, kernel.body.args, strict=True)}
    assert is_promised_apart(values[left], values[right]) == apart
    assert is_promised_apart(values[right], values[left]) == apart
    assert not is_promised_apart(None, values[right])


@pytest.mark.parametrize(
    ("body", "keeps"),
    [
        ("tile.barrier", False),
        ("tile.barrier\n  tile.store(%p, %x, _)", False),
        ("tile.store(%p, %x, _)\n  tile.barrier", True),
        ("%v = tile.load(%p, _, _) {volatile = true} : fp32\n  tile.barrier", True),
        ("%v = tile.load(%p, _, _) : fp32\n  tile.barrier", False),
        ("grid.cluster_barrier", True),
    ],
)
def test_a_barrier_keeps_the_order_of_what_was_written(body: str, keeps: bool) -> None:
    text = f"kernel @k(%p: *fp32, %x: fp32) {{num_warps = 1}} {{\n  {body}\n  scf.return\n}}\n"
    (barrier,) = [op for op in parse_kernel(text).body if op.opcode.endswith("barrier")]
    assert keeps_order(barrier) == keeps

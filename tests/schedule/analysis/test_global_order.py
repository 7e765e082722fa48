"""Which ops loads from global memory do not cross."""

from __future__ import annotations

import pytest

from aotc.ir.core import Op
from aotc.ir.dialects import gpu, tma
from aotc.ir.effects import Resource
from aotc.schedule.analysis.global_order import fences
from tests.support.every_op import SAMPLES, kernel_of, ops_of, sample_kernel

# Every op that writes global memory, or orders accesses to it, of one thread or among threads.
_FENCES = (
    *("asm.volatile", "gpu.atomic_cas", "gpu.atomic_rmw", "gpu.barrier", "gpu.bulk_load"),
    *("gpu.bulk_store", "gpu.fence", "gpu.mbarrier_arrive", "gpu.mbarrier_init"),
    *("gpu.mbarrier_wait", "gpu.specialize", "gpu.store", "gpu.tma_load", "gpu.tma_reduce"),
    *("gpu.tma_store", "grid.cluster_barrier", "grid.wait", "tile.assert", "tile.atomic_cas"),
    *("tile.atomic_rmw", "tile.barrier", "tile.descriptor_reduce", "tile.descriptor_store"),
    *("tile.print", "tile.store"),
)
# Resources that order nothing in global memory: a load may cross what has an effect on these alone.
_OTHERS = (
    *(Resource.SHARED, Resource.COPIES, Resource.STORES, Resource.DOTS, Resource.CONTROL),
    Resource.TENSOR_MAP,
)


@pytest.mark.parametrize("opcode", _FENCES)
def test_what_orders_global_memory_is_a_fence(opcode: str) -> None:
    kernel = sample_kernel(opcode)
    found = dict.fromkeys(fences(kernel.body))
    assert all(op in found for op in ops_of(kernel, opcode))


@pytest.mark.parametrize("opcode", SAMPLES)
def test_an_op_with_effects_is_a_fence_or_leaves_global_memory_alone(opcode: str) -> None:
    kernel = sample_kernel(opcode)
    found = dict.fromkeys(fences(kernel.body))
    for op in ops_of(kernel, opcode):
        changed = [each.resource for each in op.effects_on(None, "allocate", "write", "order")]
        assert op in found or all(resource in _OTHERS for resource in changed)
        assert op not in found or changed


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

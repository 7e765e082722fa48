"""Send what a loop prefetches through shared memory, so that copies of several iterations are in flight.

Registers hold what is loaded one iteration ahead: loaded earlier, it would be moved from register to
register, and a move waits for its load. Copies to shared memory have no such bound. A tile that goes
to a dot is there anyway; another one is sent there only if the loop's own `num_stages` asks for more
than one iteration ahead, since it costs a store and a load. Each thread reads back what it copied.

Invariant: the address of no other load depends on a staged load, and no loop with a dot is changed.
"""

from __future__ import annotations

from aotc.ir.core import Kernel
from aotc.ir.diagnostics import at
from aotc.ir.dialects import gpu, scf
from aotc.ir.effects import Trait
from aotc.ir.rewrite import Builder
from aotc.ir.types import TileType
from aotc.schedule.analysis.global_order import fences, is_zero
from aotc.schedule.analysis.loop_loads import MIN_COPY_BYTES, load_disorder
from aotc.schedule.analysis.loop_slice import collect_slice, find_staging
from aotc.schedule.context import Schedule
from aotc.schedule.layout.conversions import plan_shared_exchange
from aotc.schedule.pipelining.pipeline_remarks import remark_no_copy

_REGISTER_STAGES = 2


def stage_prefetches(kernel: Kernel, schedule: Schedule) -> None:
    """Stage the loads of loops that ask for more stages than registers hold; remark which cannot be."""
    for loop in [op for op in kernel.walk() if isinstance(op, scf.For)]:
        inside = list(loop.body.walk())
        asks = loop.num_stages > _REGISTER_STAGES and schedule.stages_of(loop) > _REGISTER_STAGES
        if not asks or any(op.has(Trait.LOOP, Trait.DOT) for op in inside):
            continue
        for load in _prefetched(loop):
            if is_zero(load.other) and _access_bytes(load) >= MIN_COPY_BYTES:
                with at(load.loc):
                    _stage(load)
            else:
                remark_no_copy(load, kernel, schedule)


def _prefetched(loop: scf.For) -> list[gpu.Load]:
    """Return the loads of tiles that may run ahead and that nothing stages yet."""
    barriers = list(fences(loop.body))
    loads = [op for op in loop.body if isinstance(op, gpu.Load)]
    slices = {load: collect_slice(loop, load.operands) for load in loads}
    addressing = {op: None for slice_ in slices.values() for op in slice_.loads}
    return [
        load
        for load in loads
        if isinstance(load.out.type, TileType)
        and load not in addressing
        and not slices[load].obstacle
        and not load_disorder(loop, load, barriers)
        and find_staging(load) is None
    ]


def _access_bytes(load: gpu.Load) -> int:
    kind = load.out.type
    assert isinstance(kind, TileType)
    return load.vector * gpu.memory_element(kind).size_bytes


def _stage(load: gpu.Load) -> None:
    """Write a loaded tile to shared memory, and read it from there in the same layout."""
    kind = load.out.type
    assert isinstance(kind, TileType)
    assert kind.layout is not None
    element = gpu.memory_element(kind)
    plan = plan_shared_exchange(kind.layout, kind.layout, element.bits, run_elems=load.vector)
    users = list(load.out.users)
    builder = Builder.after_op(load)
    scratch = plan.scratch.sublayout(["offset"], plan.scratch.out_dims)
    buffer = builder(gpu.SharedAlloc(element, kind.shape, scratch)).out
    builder(gpu.SharedStore(load.out, buffer, plan.store_vector_elems))
    read = gpu.SharedLoad(buffer, kind.layout, plan.load_vector_elems, "", kind.element)
    out = builder(read).out
    for user in users:
        user.replace_operand(load.out, out)

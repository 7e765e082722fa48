"""Rules of `insert_barriers` for cluster barriers, and the position of the cluster wait.

A kernel arrives once its mbarriers are initialized and goes on; other CTAs signal them only after its wait.
`insert_barriers` visits these ops like all others.
"""

from __future__ import annotations

from aotc.ir.core import Kernel, Op
from aotc.ir.dialects import grid, mbarrier
from aotc.ir.order import enclosing_in
from aotc.schedule.shared_memory.pending_accesses import Pending, regions_of


def visit_cluster_arrive(op: Op, pending: Pending) -> None:
    """Record the mbarriers initialized before the cluster barrier's arrival."""
    barriers = {
        init.barrier.op for init in op.block or () if isinstance(init, mbarrier.MbarrierInit)
    }
    unordered = [
        region for region in (*pending.reads, *pending.writes) if region.buffer not in barriers
    ]
    op.expect(not unordered, "a buffer that is no mbarrier is accessed before it")
    pending.arrived.update(pending.writes)


def visit_cluster_wait(op: Op, pending: Pending) -> None:
    """Forget writes before the arrival; later writes stay pending."""
    del op
    for region in pending.arrived:
        pending.writes.pop(region, None)
    pending.arrived.clear()


def visit_send(op: Op, pending: Pending) -> None:
    """Check a store by other CTAs; waits at its mbarrier make it visible."""
    assert isinstance(op, grid.ClusterSend)
    for region in regions_of(op, "write"):
        op.expect(not region.meets(pending.reads), "what others send is read before it")
        op.expect(not region.meets(pending.writes), "what others send is written here as well")


def visit_remote(op: Op, pending: Pending) -> None:
    """Check an access to another CTA's buffer, ordered by mbarriers or the cluster barrier.

    Accesses by this CTA's threads to their own buffer come before it.
    """
    for region in (*regions_of(op, "read"), *regions_of(op, "write")):
        op.expect(not region.meets(pending.writes), "its buffer is written without a barrier")


def wait_before_barriers(kernel: Kernel) -> None:
    """Move the wait for an early arrival ahead of any other cluster barrier."""
    wait = next((op for op in kernel.body if isinstance(op, grid.ClusterWait)), None)
    if wait is None:
        return
    for op in kernel.walk():
        if op is wait:
            return
        if isinstance(op, grid.ClusterBarrier):
            wait.remove()
            kernel.body.insert(wait, enclosing_in(op, kernel.body))
            return

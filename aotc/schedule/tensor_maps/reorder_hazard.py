"""Whether a tensor load may be issued ahead of what else a kernel does.

A box of a tensor is loaded through its descriptor. It may be loaded ahead of stores through other
descriptors and through pointers, which is what makes it worth a copy; stores through the same
descriptor, barriers and atomics keep their order.

Invariant: one rule for all that load ahead, be it a producer warp or an earlier iteration.
"""

from __future__ import annotations

from collections.abc import Iterable

from aotc.ir.core import Op
from aotc.ir.dialects import assembly, gpu, tile, tma
from aotc.schedule.analysis.global_order import may_precede
from aotc.schedule.layout.tensor_copies import may_alias
from aotc.schedule.remarks import Reason

_ORDERING = (tile.Barrier, gpu.AtomicRmw, gpu.AtomicCas, gpu.Fence, assembly.VolatileAsm)


def reorder_hazard(load: tma.SyncLoad, ops: Iterable[Op]) -> str:
    """Return why a load may not be issued ahead of what `ops` do, or an empty string."""
    if isinstance(load, tma.SyncBulkLoad):
        return ""  # checked when the load became a bulk copy, see `bulk_loads`
    for op in ops:
        if isinstance(op, _ORDERING) and may_precede(op, load):
            return Reason.FENCE_BEFORE(op=op.opcode)
        stores = isinstance(op, tma.StagedTmaStore | tma.TmaStore | tma.TmaReduce)
        if stores and may_alias(load.tensor, op.tensor):
            return Reason.KERNEL_WRITES(name=op.tensor.hint or "the tensor")
    return ""

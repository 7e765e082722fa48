"""Whether a tensor load may be issued ahead of what else a kernel does.

A box of a tensor is loaded through its descriptor. It may be loaded ahead of stores through other
descriptors and through pointers, which is what makes it worth a copy; stores through the same
descriptor, atomics, and barriers after something was written, keep their order.

Invariant: one rule for all that load ahead, be it a producer warp or an earlier iteration.
"""

from __future__ import annotations

from collections.abc import Iterable

from aotc.ir.core import Op
from aotc.ir.dialects import tma
from aotc.ir.types import TensorMapType
from aotc.schedule.analysis.alias import may_alias
from aotc.schedule.analysis.global_order import (
    accessed,
    keeps_order,
    may_precede,
    synchronizes,
)
from aotc.schedule.remarks import Reason


def reorder_hazard(load: tma.SyncLoad, ops: Iterable[Op]) -> str:
    """Return why a load may not be issued ahead of what `ops` do, or an empty string."""
    if not isinstance(load, tma.SyncTmaLoad):
        return ""  # checked when it became such a load, see `bulk_loads` and `hand_over_copies`
    for op in ops:
        # A wait for stores is there for the op that it precedes, which the user knows.
        is_reason = synchronizes(op) and not isinstance(op, tma.TmaStoreWait)
        if is_reason and may_precede(op, load) and keeps_order(op):
            return Reason.FENCE_BEFORE(op=op.opcode)
        tensor = accessed(op, "write")
        if tensor is None or not isinstance(tensor.type, TensorMapType):
            continue
        if may_alias(load.tensor, tensor):
            return Reason.KERNEL_WRITES(name=tensor.hint or "the tensor")
    return ""

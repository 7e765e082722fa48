"""Reordering hazards between a tensor load and the ops it is issued ahead of.

A box of a tensor is loaded through its descriptor. It may be issued ahead of stores through pointers or
other descriptors, which makes the copy worthwhile. Stores through the same descriptor, atomics, and
barriers after a write keep their order.

Invariant: one rule for every load issued ahead, by a producer warp or in an earlier iteration.
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
    """Return why a load may not be issued ahead of `ops`, or an empty string."""
    if not isinstance(load, tma.SyncTmaLoad):
        return ""  # checked by `bulk_loads` and `hand_over_copies`
    for op in ops:
        # A wait for stores serves the op after it, checked by itself.
        is_reason = synchronizes(op) and not isinstance(op, tma.TmaStoreWait)
        if is_reason and may_precede(op, load) and keeps_order(op):
            return Reason.FENCE_BEFORE(op=op.opcode)
        tensor = accessed(op, "write")
        if tensor is None or not isinstance(tensor.type, TensorMapType):
            continue
        if may_alias(load.tensor, tensor):
            return Reason.KERNEL_WRITES(name=tensor.hint or "the tensor")
    return ""

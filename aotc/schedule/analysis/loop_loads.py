"""Conditions for issuing the loads of a loop ahead, and their widths as copies by threads.

Threads copy a tile staged through shared memory by `cp.async`. It moves 4, 8 or 16 bytes an access
and does not pass through registers.

Invariant: one rule for all passes that issue loads ahead, in an earlier iteration or a producer.
"""

from __future__ import annotations

from collections.abc import Iterable

from aotc.ir.core import Op
from aotc.ir.dialects import gpu, scf
from aotc.ir.types import SharedType
from aotc.schedule.analysis.global_order import (
    is_promised_apart,
    is_zero,
    root_names,
    shared_roots,
    written_pointer,
)
from aotc.schedule.analysis.loop_slice import Staging
from aotc.schedule.remarks import Reason

MIN_COPY_BYTES = 4
MAX_COPY_BYTES = 16


def load_disorder(loop: scf.For, load: gpu.Load, barriers: Iterable[Op]) -> str:
    """Return why a load cannot be reordered with the rest of the loop, or an empty string."""
    if load.volatile:
        return Reason.VOLATILE()
    for fence in barriers:
        pointer = written_pointer(fence)
        if pointer is None:
            return Reason.FENCE_IN_LOOP(op=fence.opcode)
        if shared_roots(load.pointer, pointer):
            return Reason.LOOP_WRITES(names=root_names(pointer))
        if not loop.num_stages and not is_promised_apart(load.pointer, pointer):
            return Reason.LOOP_MAY_WRITE(names=root_names(pointer))
    return ""


def copy_vector(load: gpu.Load, staging: Staging) -> int:
    """Return how many elements one copy of the tile moves, 0 if it cannot be copied."""
    assert isinstance(staging.store.buffer.type, SharedType)
    element_bytes = staging.store.buffer.type.element.size_bytes
    vector = min(load.vector, staging.vector, MAX_COPY_BYTES // element_bytes)
    fits = vector * element_bytes >= MIN_COPY_BYTES and not staging.store.matrix
    # Transposing for a dot with only one legal order is free only if both vectors are wide.
    fits &= not staging.feeds_wgmma or 2 * vector >= min(load.vector, staging.store.vector)
    return vector if fits and is_zero(load.other) else 0

"""Wait once for dots that add to one another's results.

A dot may add to the accumulator of one that is still in flight: hardware runs them in order. So of

    s = wait (dot a0, b0);  s = wait (dot a1, b1, s)

as of queries and keys that come in parts, only the last wait is needed. What the dots read is given back
after it.

Invariant: a result is used by threads only after a wait that covers its dot.
"""

from __future__ import annotations

from aotc.ir.core import Kernel
from aotc.ir.dialects import wgmma
from aotc.ir.types import SharedType, element_of
from aotc.schedule.analysis.register_budget import REGISTER_BITS
from aotc.schedule.context import Schedule


def join_sums(kernel: Kernel, schedule: Schedule) -> None:
    """Remove every wait whose result only the next dot adds to."""
    if schedule.awaits_dots:
        return
    for wait in [op for op in kernel.walk() if isinstance(op, wgmma.WgmmaWait)]:
        later = _adds_to(wait)
        if later is not None:
            later.set_slots([later.a, later.b, wait.values[0], later.accumulate])
            wait.erase()


def _adds_to(wait: wgmma.WgmmaWait) -> wgmma.Wgmma | None:
    """Return the dot in a wait's block that alone uses its result, and needs no wait to add to it.

    A later dot whose operand is in registers is left alone: threads may compute it in registers that the
    dot before it reads. So is a 16-bit accumulator, which is half a register.
    """
    if len(wait.values) != 1 or wait.pending or len(wait.outs[0].users) != 1:
        return None
    later, earlier = next(iter(wait.outs[0].users)), wait.values[0].op
    if not isinstance(later, wgmma.Wgmma) or not isinstance(earlier, wgmma.Wgmma):
        return None
    fits = later.acc is wait.outs[0] and later.accumulate is None and later.block is wait.block
    fits &= earlier.block is wait.block and len(earlier.out.users) == 1
    fits &= earlier.num_columns == later.num_columns
    fits &= element_of(later.acc.type).bits == REGISTER_BITS
    return later if fits and isinstance(later.a.type, SharedType) else None

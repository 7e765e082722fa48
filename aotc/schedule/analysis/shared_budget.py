"""How much shared memory a kernel may take for what it can do without."""

from __future__ import annotations

from aotc.ir.core import Kernel
from aotc.target import Target

_SYSTEM_BYTES = 1024  # of each CTA


def shared_budget_bytes(kernel: Kernel, target: Target, needed_bytes: int) -> int:
    """Return the shared memory that a CTA may take for buffers beside `needed_bytes`.

    With a limit on registers (`maxnreg`) the user asks for several CTAs on an SM, and buffers that
    are there for speed alone must not take them away. Otherwise a CTA may take all there is.
    """
    if not kernel.maxnreg:
        return target.max_shared_bytes
    num_ctas = target.ctas_by_registers(kernel.num_threads // 32, kernel.maxnreg)
    share = target.shared_bytes_per_sm // max(1, num_ctas) - _SYSTEM_BYTES
    return share if needed_bytes <= share else target.max_shared_bytes

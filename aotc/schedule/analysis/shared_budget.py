"""The shared memory a kernel may spend on optional buffers."""

from __future__ import annotations

from aotc.ir.core import Kernel
from aotc.target import Target

_SYSTEM_BYTES = 1024  # of each CTA


def shared_budget_bytes(kernel: Kernel, target: Target, needed_bytes: int) -> int:
    """Return the shared memory of a CTA for buffers beside `needed_bytes`.

    With a limit on registers (`maxnreg`) the user asks for several CTAs on an SM, and buffers for
    speed alone must not reduce their number. Otherwise a CTA may take all there is.
    """
    if not kernel.maxnreg:
        return target.max_shared_bytes
    num_ctas = target.ctas_by_registers(kernel.num_threads // 32, kernel.maxnreg)
    share = target.shared_bytes_per_sm // max(1, num_ctas) - _SYSTEM_BYTES
    return share if needed_bytes <= share else target.max_shared_bytes

"""Bound the registers of kernels that keep rows in registers, so that an SM holds as many CTAs as it can.

A CTA that waits for others while a row is reduced loads and stores nothing; other CTAs of its SM do
meanwhile. ptxas does not know that: it spends registers on computing a row in larger parts. What must
be kept across the exchanges, and a reserve, say how many CTAs an SM can hold, and so how many
registers a thread may have. If they do not suffice, ptxas is run without the bound.

Invariant: only a kernel whose tiles are rematerialized for that, and whose config leaves the choice, is bound.
"""

from __future__ import annotations

from aotc.ir.core import Kernel, Op
from aotc.ir.dialects import gpu, opaque
from aotc.ir.effects import Resource
from aotc.schedule.analysis.live_registers import find_peak
from aotc.schedule.analysis.register_budget import ROW_RESERVE
from aotc.schedule.context import Schedule

_PARTITIONS = 4  # of an SM: each has a quarter of the registers, and whole warps
_UNIT = 8  # registers of a thread are allocated in units of so many


def choose_occupancy(kernel: Kernel, schedule: Schedule) -> None:
    """Say how many CTAs an SM is to hold, if that is more than one and rows are kept in registers."""
    if kernel.maxnreg or not any(isinstance(op, opaque.Opaque) for op in kernel.walk()):
        return
    peak = find_peak(kernel, _is_exchange).registers + ROW_RESERVE
    warps = -(-kernel.num_threads // (32 * _PARTITIONS)) * _PARTITIONS
    registers = -(-peak // _UNIT) * _UNIT
    count = schedule.target.registers_per_sm // (32 * warps * registers)
    if count > 1:
        kernel.min_ctas_per_sm = count


def _is_exchange(op: Op) -> bool:
    """Return whether threads give others what they have reduced, and wait for each other next."""
    return isinstance(op, gpu.SharedStore) or (
        op.writes(Resource.SHARED) and op.writes(Resource.MBARRIER) and len(op.operands) > 1
    )

"""Bound a thread's registers in row kernels to maximize resident CTAs.

A CTA in the middle of a row reduction waits and issues no memory accesses; other CTAs of its SM can. ptxas
does not know this, and spends registers on computing a row in larger parts. The registers live across the
exchanges, plus a reserve, give the number of CTAs an SM can hold, and thus a bound per thread. If the bound
is too tight, ptxas is rerun without it.

Invariant: only kernels with rematerialized tiles are bound, and only if their config leaves the choice.
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
    """Set the CTAs per SM, if rows are kept in registers and more than one CTA fits."""
    if kernel.maxnreg or not any(isinstance(op, opaque.Opaque) for op in kernel.walk()):
        return
    peak = find_peak(kernel, _is_exchange).registers + ROW_RESERVE
    warps = -(-kernel.num_threads // (32 * _PARTITIONS)) * _PARTITIONS
    registers = -(-peak // _UNIT) * _UNIT
    count = schedule.target.registers_per_sm // (32 * warps * registers)
    if count > 1:
        kernel.min_ctas_per_sm = count


def _is_exchange(op: Op) -> bool:
    """Return whether an op exchanges partial results of a reduction through a barrier."""
    return isinstance(op, gpu.SharedStore) or (
        op.writes(Resource.SHARED) and op.writes(Resource.MBARRIER) and len(op.operands) > 1
    )

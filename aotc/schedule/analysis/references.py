"""References of exponents that a loop may keep: marked maxima, and whether registers suffice to keep scores.

Weights by the reference before may turn out too large, and are then computed again from the scores, which stay
in registers until that is known.
"""

from __future__ import annotations

from collections.abc import Iterable

from aotc.ir.core import Kernel, Value
from aotc.ir.dialects import arith, roles, scf
from aotc.schedule.analysis.register_budget import (
    DOT_CHAIN_RESERVE,
    ORDER_SPARE,
    registers_of_thread,
    registers_of_tiles,
    reserve_registers,
)
from aotc.schedule.context import Schedule


def keeps_reference(loop: scf.For) -> bool:
    """Return whether a loop has a maximum that it may leave as it is."""
    return any(isinstance(op, arith.Max) and op.is_reference for op in loop.body)


def has_room_for_scores(
    loop: scf.For,
    held: Iterable[Value],
    role: roles.Specialize | None,
    kernel: Kernel,
    schedule: Schedule,
) -> bool:
    """Return whether threads have registers for what a loop carries, and for scores and weights (`held`) besides.

    Consumers get those of producers for it; some more if these have them.
    """
    needed = registers_of_tiles(dict.fromkeys([*loop.carried, *held])) + DOT_CHAIN_RESERVE
    if role is None:
        return needed <= registers_of_thread(kernel, schedule.target)
    return reserve_registers(needed + ORDER_SPARE, role, kernel, schedule) or reserve_registers(
        needed, role, kernel, schedule
    )

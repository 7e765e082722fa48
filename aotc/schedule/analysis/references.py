"""Softmax shifts (references) a loop may keep: marked maxima, and registers to keep scores.

Weights by the previous shift may turn out too large. They are then recomputed from the scores,
which stay in registers until then.
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
    """Return whether a loop has a maximum it may leave unchanged."""
    return any(isinstance(op, arith.Max) and op.is_reference for op in loop.body)


def has_room_for_scores(
    loop: scf.For,
    live_tiles: Iterable[Value],
    role: roles.Specialize | None,
    kernel: Kernel,
    schedule: Schedule,
) -> bool:
    """Return whether a thread has registers for a loop's carried tiles and `live_tiles` besides.

    These are scores and weights. Consumers get registers of producers for them, and some more if
    available.
    """
    num_registers = (
        registers_of_tiles(dict.fromkeys([*loop.carried, *live_tiles])) + DOT_CHAIN_RESERVE
    )
    if role is None:
        return num_registers <= registers_of_thread(kernel, schedule.target)
    return reserve_registers(
        num_registers + ORDER_SPARE, role, kernel, schedule
    ) or reserve_registers(num_registers, role, kernel, schedule)

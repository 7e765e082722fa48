"""How many registers threads have: all alike, or those that compute at the expense of the others.

A launch gives all threads of a block as many. Warps that fetch need few, and may hand the rest to
those that compute.

Source: PTX ISA, "setmaxnreg".
"""

from __future__ import annotations

from aotc.ir.core import Kernel, Value
from aotc.ir.dialects import roles
from aotc.ir.types import TileType, element_of
from aotc.schedule.context import Schedule

_REGISTERS_PER_LANE = 65536 // 32  # of an SM
_REGISTER_UNIT = 8
_REGISTER_BITS = 32
_MAX_CONSUMER_REGISTERS = 240
_PRODUCER_REGISTERS = 40
_FEW_PRODUCER_REGISTERS = 32
_MANY_GROUPS = 3


def register_share(kernel: Kernel) -> int:
    """Return how many registers a thread has where all threads of a block have as many."""
    warps = kernel.num_warps * kernel.num_consumer_groups + kernel.producer_warps
    return _REGISTERS_PER_LANE // warps // _REGISTER_UNIT * _REGISTER_UNIT


def register_split(kernel: Kernel) -> tuple[int, ...]:
    """Return how many a consumer has, and a thread beside them, if these hand over what they can.

    Nothing if consumers would gain none, or the kernel has a limit of the user's.
    """
    each = register_share(kernel)
    groups, rest = divmod(kernel.num_warps * kernel.num_consumer_groups, kernel.producer_warps)
    least = _PRODUCER_REGISTERS if groups < _MANY_GROUPS else _FEW_PRODUCER_REGISTERS
    spare = each * (groups + 1) - least
    own = min(spare // max(1, groups) // _REGISTER_UNIT * _REGISTER_UNIT, _MAX_CONSUMER_REGISTERS)
    return (own, least) if not rest and own > each and not kernel.maxnreg else ()


def split_remark(split: tuple[int, ...]) -> str:
    """Return what to tell the user about a split."""
    return f"{split[0]} registers for threads that compute, {split[1]} else"


def reserve_registers(
    needed: int, role: roles.Specialize, kernel: Kernel, schedule: Schedule
) -> bool:
    """See to it that threads which compute have the registers they need, if that can be."""
    if needed <= (role.consumer_registers or kernel.maxnreg or register_share(kernel)):
        return True
    split = () if role.consumer_registers else register_split(kernel)
    if not split or needed > split[0]:
        return False
    role.consumer_registers, role.producer_registers = split
    schedule.remark(kernel.loc, split_remark(split))
    return True


def registers_of(value: Value) -> int:
    """Return how many 32-bit registers of a thread a tile takes; 0 if it is in no registers yet."""
    kind = value.type
    assert isinstance(kind, TileType)
    if kind.layout is None:
        return 0
    return kind.layout.in_size("register") * element_of(kind).bits // _REGISTER_BITS

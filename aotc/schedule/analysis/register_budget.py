"""Register budgets: equal for all threads, or reallocated from the producer to the consumers.

A launch gives all threads of a CTA as many registers. Producer warps need few, and may release the
rest to the consumers.

Source: PTX ISA, "setmaxnreg".
"""

from __future__ import annotations

from aotc.ir.core import Kernel, Value
from aotc.ir.dialects import roles
from aotc.ir.types import TileType, element_of
from aotc.schedule.context import Schedule
from aotc.schedule.remarks import Remark

_REGISTERS_PER_LANE = 65536 // 32  # of an SM
_REGISTER_UNIT = 8
_REGISTER_BITS = 32
_MAX_CONSUMER_REGISTERS = 240
_PRODUCER_REGISTERS = 40
_FEW_PRODUCER_REGISTERS = 32
_MANY_GROUPS = 3


def register_share(kernel: Kernel) -> int:
    """Return the registers of a thread where all threads of a CTA have as many."""
    return _REGISTERS_PER_LANE // kernel.warps_per_cta // _REGISTER_UNIT * _REGISTER_UNIT


def register_split(kernel: Kernel) -> tuple[int, ...]:
    """Return the registers of a consumer thread and of any other, if the others release theirs.

    Nothing if consumers would gain none, or the kernel has a limit of the user's.
    """
    each = register_share(kernel)
    groups, rest = divmod(kernel.num_warps * kernel.num_consumer_groups, kernel.producer_warps)
    least = _PRODUCER_REGISTERS if groups < _MANY_GROUPS else _FEW_PRODUCER_REGISTERS
    spare = each * (groups + 1) - least
    own = min(spare // max(1, groups) // _REGISTER_UNIT * _REGISTER_UNIT, _MAX_CONSUMER_REGISTERS)
    return (own, least) if not rest and own > each and not kernel.maxnreg else ()


def split_remark(split: tuple[int, ...]) -> str:
    """Return the remark on a split."""
    return Remark.REGISTER_SPLIT(consumer=split[0], other=split[1])


def reserve_registers(
    needed: int, role: roles.Specialize, kernel: Kernel, schedule: Schedule
) -> bool:
    """Reallocate registers so that consumer threads have `needed`; return whether they do."""
    if needed <= (role.consumer_registers or kernel.maxnreg or register_share(kernel)):
        return True
    split = () if role.consumer_registers else register_split(kernel)
    if not split or needed > split[0]:
        return False
    role.consumer_registers, role.producer_registers = split
    schedule.remark(kernel.loc, split_remark(split))
    return True


def registers_of(value: Value) -> int:
    """Return how many 32-bit registers of a thread a tile takes; 0 if it is not in registers yet."""
    kind = value.type
    assert isinstance(kind, TileType)
    if kind.layout is None:
        return 0
    return kind.layout.in_size("register") * element_of(kind).bits // _REGISTER_BITS

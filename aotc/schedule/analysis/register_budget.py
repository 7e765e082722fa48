"""Registers of a thread: the total, the share of tiles, and the reserve of passes.

At launch, every thread of a CTA gets the same number of registers. Producer warps need few, and may
release the rest to the consumers. A pass that keeps more tiles live together counts their registers
and adds a reserve for everything else in registers. It may do so if the sum fits.

Reserves and budgets are estimates. Too large a one costs an optimization; too small a one spills,
as the `ptxas_warnings` of a variant show.

Source: PTX ISA, "setmaxnreg".
"""

from __future__ import annotations

from collections.abc import Iterable

from aotc.ir.core import Kernel, Value
from aotc.ir.dialects import gpu, roles
from aotc.ir.tiles import is_tile
from aotc.ir.types import TileType
from aotc.schedule.context import Schedule
from aotc.schedule.remarks import Remark
from aotc.target import Target

REGISTER_BITS = 32

# ---- reserves: registers of a thread besides the tiles counted by a pass -------------------------

EPILOGUE_RESERVE = 36
"""A mainloop that stores the tile before it: addresses, counters, coordinates of that tile."""

DOTS_AHEAD_RESERVE = 40
"""A loop with dots of two iterations in flight: addresses, counters, scales."""

DOT_CHAIN_RESERVE = 28
"""Dots that feed dots of the iteration before: addresses, counters, factors of rows.

In attention with 256x64 tiles and heads of 64, ptxas fits 16 warps into 112 registers with this.
"""

ORDER_RESERVE = 16
"""Dots of a loop in another order, whose live tiles are counted at each place: addresses, counters."""

ORDER_SPARE = 32
"""More for such a loop, where it can be had: without it some kernels spill a few addresses."""

CONSUMER_RESERVE = 64
"""A consumer: addresses, counters, and the values of the epilogue besides its accumulators."""

FRAGMENT_RESERVE = 32
"""A consumer whose dots read operands from registers: fragments of both."""

ROW_RESERVE = 44
"""A row that stays in registers while its CTA, or cluster, reduces it: what is computed again of it, a part at
a time. Measured with softmax, cross-entropy and LayerNorm of 128k and 256k columns, 32 and 64 registers kept.
"""

# ---- budgets: registers of a thread for a pass to fill
# --------------------------------------------

FRAGMENT_SLICE_BUDGET = 16
"""A slice of a dot's operand that threads compute: two are live at once, beside an accumulator."""

STAGED_LOADS_BUDGET = 32
"""Loads an iteration ahead that go on to shared memory: they die early in the iteration."""

LOADS_BUDGET = 32
"""Other loads an iteration ahead, of a loop that waits for copies as well or was given stages: one
load that is not ahead would stall them all. Also loads that are issued early in a block."""

SMALL_LOADS_BUDGET = 4
"""Other loads an iteration ahead, where nothing asks for them: they cost occupancy."""

HELD_FRAGMENT_LIMIT = 64
"""Fragments of a tile that a loop's dot reads in every iteration: more than these are read again each time."""

EPILOGUE_READS_LIMIT = 96
"""Above this, a stored value that is read from shared memory on the way is computed in slices: a
slice costs little there."""

EPILOGUE_LOADS_LIMIT = 208
"""Above this, one that is loaded from global memory, too, as each slice then waits for its own
loads: little more fits the 255 registers of a thread."""

ACCUMULATOR_LIMIT = 128
"""The largest accumulator by `wgmma`: half of what a thread has, the epilogue needs the rest."""

TRIMMED_LIMIT = 160
"""The same of a tile that is wider than an instruction, of its columns that are computed: such a width is chosen to
fill registers, as beside a tile of 128 that fits, and one a little wider."""

PROMOTION_LIMIT = 192
"""An accumulator and the products of fp8 in flight that are added to it: 128 and twice 32, or 64 and twice 64."""

SCAN_TOTALS_LIMIT = 32
"""More totals of a scan than these in each thread cost more than sharing them out, and then spill."""

COMFORTABLE_REGISTERS = 192
"""Tiles that leave this many of 255 to addresses, masks and temporaries; advice aims at it."""

# ---- how many there are --------------------------------------------------------------------------

_REGISTER_UNIT = 8  # registers of a thread are allocated, and moved, in units of so many
_MAX_CONSUMER_REGISTERS = 240
_PRODUCER_REGISTERS = 40
# Of three consumer warps to a producer warp each gains 32 at this, 24 at 40: it is a multiple of 8.
_FEW_PRODUCER_REGISTERS = 32
_MANY_GROUPS = 3
# The least for a producer, where consumers need all else: the hardware's minimum.
_LEAST_PRODUCER_REGISTERS = 24
_ADDRESS_REGISTERS = 2


def registers_of_thread(kernel: Kernel, target: Target) -> int:
    """Return how many registers a thread can have where all threads of a CTA have as many."""
    share = target.max_registers_of(-(-kernel.num_threads // 32))
    return min(share, kernel.maxnreg or share)


def register_split(
    kernel: Kernel, target: Target, required: int = 0, *, num_copies: int = 0
) -> tuple[int, ...]:
    """Return the registers of a consumer thread and of any other, if the others release theirs.

    Nothing if consumers would gain none, do not get `required`, or the kernel has a limit of the
    user's. Producers whose threads make `num_copies` each hold their addresses, and never have the
    least.
    """
    equal_share = registers_of_thread(kernel, target)
    groups, rest = divmod(kernel.num_warps * kernel.num_consumer_groups, kernel.producer_warps)
    usual = _PRODUCER_REGISTERS if groups < _MANY_GROUPS else _FEW_PRODUCER_REGISTERS
    copier_registers = _LEAST_PRODUCER_REGISTERS + _ADDRESS_REGISTERS * num_copies
    usual = (
        max(usual, -(-copier_registers // _REGISTER_UNIT) * _REGISTER_UNIT) if num_copies else usual
    )
    for least in (usual,) if num_copies else (usual, _LEAST_PRODUCER_REGISTERS):
        share = (equal_share * (groups + 1) - least) // max(1, groups)
        consumer_registers = min(share // _REGISTER_UNIT * _REGISTER_UNIT, _MAX_CONSUMER_REGISTERS)
        if (
            not rest
            and consumer_registers > equal_share
            and consumer_registers >= required
            and not kernel.maxnreg
        ):
            spare = (
                equal_share * (groups + 1) - consumer_registers * groups if num_copies else least
            )
            return consumer_registers, spare // _REGISTER_UNIT * _REGISTER_UNIT
    return ()


def reserve_registers(
    required: int, role: roles.Specialize, kernel: Kernel, schedule: Schedule
) -> bool:
    """Reallocate registers for consumer threads to have `required`; return success."""
    if required <= (role.consumer_registers or registers_of_thread(kernel, schedule.target)):
        return True
    num_copies = roles.num_thread_copies(role.producer)
    split = register_split(kernel, schedule.target, required, num_copies=num_copies)
    if not split:
        return False
    role.consumer_registers, role.producer_registers = split
    return True


def remark_registers(kernel: Kernel, schedule: Schedule) -> None:
    """Remark the final split of registers between warp roles."""
    for role in [op for op in kernel.body if isinstance(op, roles.Specialize)]:
        if role.consumer_registers:
            numbers = {"consumer": role.consumer_registers, "other": role.producer_registers}
            schedule.remark(kernel.loc, Remark.REGISTER_SPLIT(**numbers))


# ---- registers of tiles
# ----------------------------------------------------------------------------


def registers_of(value: Value) -> int:
    """Return how many registers of a thread a tile takes; 0 if it is not in registers yet."""
    assert isinstance(value.type, TileType)
    return tile_registers(value.type)


def registers_of_tiles(values: Iterable[Value]) -> int:
    """Return how many registers of a thread the tiles among values take together."""
    return sum(registers_of(value) for value in values if is_tile(value))


def tile_registers(type_: TileType) -> int:
    """Return how many registers a thread needs for its elements of a tile."""
    if type_.layout is None:
        return 0
    # Replicated elements share registers.
    repeated = type_.layout.zero_mask("register").bit_count()
    bits = (type_.layout.in_size("register") >> repeated) * type_.element.bits
    return -(-bits // REGISTER_BITS)


def loaded_registers(load: gpu.Load) -> int:
    """Return how many registers of a thread a load fills: each access has its own."""
    kind = load.out.type
    if not isinstance(kind, TileType) or kind.layout is None:
        return 1
    count = kind.layout.in_size("register")
    return count // load.vector * max(1, load.vector * kind.element.bits // REGISTER_BITS)

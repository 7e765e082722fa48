"""Slice the computation of stored tiles over the register budget.

A stored tile is often computed from several tiles: an accumulator, a bias, a residual loaded as fp16 and
added as fp32. Computed tile by tile, all are live together, each at its widest. Computed slice by slice,
only the accumulator and the result are live, and the result reuses its inputs' registers. ptxas could find
this order itself, but does not.

Tiles read from shared memory are cheap, and are read slice by slice in any large chain. Slices of a global
load are waited for one after the other, so such a load is sliced only as a last resort.

Invariant: a stored value is computed once, by the same threads, and stored as a whole.
"""

from __future__ import annotations

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.diagnostics import at
from aotc.ir.dialects import gpu
from aotc.ir.effects import Resource
from aotc.ir.layout_access import distinct_register_bits
from aotc.ir.rewrite import Builder
from aotc.ir.tiles import is_tile, is_uniform, tile_shape
from aotc.ir.types import PointerType, TileType, element_of
from aotc.schedule.analysis.register_budget import (
    EPILOGUE_LOADS_LIMIT,
    EPILOGUE_READS_LIMIT,
    loaded_registers,
)
from aotc.schedule.context import Schedule
from aotc.schedule.layout.parts import BlockOrder, Parts

# Loads to slice with a value, and the live registers of a thread beyond which it is sliced.
_LIMITS: tuple[tuple[tuple[type[Op], ...], int], ...] = (
    ((gpu.SharedLoad,), EPILOGUE_READS_LIMIT),
    ((gpu.SharedLoad, gpu.Load), EPILOGUE_LOADS_LIMIT),
)
# A thread's fewest elements of a slice, for instruction-level parallelism of loads and math.
_PART_ELEMS = 16


def slice_epilogues(kernel: Kernel, schedule: Schedule) -> None:
    """Slice the computation ahead of each store over the register budget."""
    del schedule
    orders: dict[Block, BlockOrder] = {}
    for op in list(kernel.walk()):
        value = _stored(op)
        if value is not None:
            with at(op.loc):
                _slice(op, value, orders)


def _stored(op: Op) -> Value | None:
    """Return the tile an op writes to memory, if the op does nothing else."""
    is_store = (op.writes(Resource.GLOBAL) or op.writes(Resource.SHARED)) and not op.results
    value = getattr(op, "value", None) if is_store else None
    return value if isinstance(value, Value) and is_tile(value) else None


def _slice(store: Op, value: Value, orders: dict[Block, BlockOrder]) -> None:
    block = store.block
    if value.op is None or value.op.block is not block or list(value.users) != [store]:
        return
    assert block is not None
    if block not in orders:
        orders[block] = BlockOrder(block)
    shape = tile_shape(value)
    for movable, most_words in _LIMITS:
        ways = [Parts(value, store, axis, movable, orders[block]) for axis in range(len(shape))]
        if not ways[0].loads or _words(ways[0]) <= most_words:
            continue
        sizes = [_part_size(parts) for parts in ways]
        finest = max(range(len(shape)), key=lambda axis: shape[axis] // sizes[axis])
        if sizes[finest] < shape[finest]:
            # In place of the value: later ops may need its inputs.
            _cut(ways[finest], sizes[finest], Builder.before_op(value.op))
            del orders[block]
            return


def _cut(parts: Parts, size: int, builder: Builder) -> None:
    """Compute the value in slices of `size`, and replace its uses."""
    value = parts.value
    starts = range(0, tile_shape(value)[parts.axis], size)
    slices = [parts.part(start, size, builder) for start in starts]
    kind = value.type
    assert isinstance(kind, TileType)
    assert kind.layout is not None
    whole = builder(gpu.Concat(slices, parts.axis, kind.layout)).out
    whole.hint = value.hint
    value.replace_all_uses_with(whole)
    parts.erase_whole()


def _part_size(parts: Parts) -> int:
    """Return the extent of the smallest worthwhile slices, or the whole extent."""
    size = whole = tile_shape(parts.value)[parts.axis]
    elems = _count(parts.value)
    best = whole
    while size > 1 and elems // (whole // size) > _PART_ELEMS:
        size //= 2
        if parts.can_cut(size):
            best = size
    return best


def _words(parts: Parts) -> int:
    """Return a thread's registers for all sources of a value.

    An element read from shared memory counts as one register: most are widened to fp32.
    """
    loaded = sum(
        loaded_registers(load) if isinstance(load, gpu.Load) else _count(load.out)
        for load in parts.loads
    )
    return loaded + sum(_count(leaf) for leaf in parts.leaves if not _is_free(leaf))


def _is_free(value: Value) -> bool:
    kind = element_of(value.type)
    return isinstance(kind, PointerType) or kind.is_bool or is_uniform(value)


def _count(value: Value) -> int:
    """Return how many distinct elements a thread holds."""
    kind = value.type
    assert isinstance(kind, TileType)
    return 1 if kind.layout is None else 1 << len(distinct_register_bits(kind.layout))

"""What is computed on the way from memory to a dot, and in which layout.

An operand that is loaded and then cast, scaled or dequantised can be converted to the dot's layout
before or after that. Before is better whenever what was loaded is no wider: fewer bytes
go through shared memory, and what is converted is what was loaded, so a loop can load it ahead of
its use. So the *slice* of an operand, the ops that serve only to compute it, is computed in the
operand's own layout if what it begins with, its *leaves*, has no more bytes than the operand. What is broadcast
on the way, such as a scale for each row, is no leaf; but where nothing else is loaded, as of weights
of which a word holds several, it is.

Invariant: a value in a slice is used by nothing outside of it but dots, all in one layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aotc.ir.core import Op, Value
from aotc.ir.dialects import tile
from aotc.ir.effects import Resource, Trait
from aotc.ir.layout import LinearLayout
from aotc.ir.tiles import is_elementwise, is_tile
from aotc.ir.types import TileType
from aotc.schedule.layout.preferred_layouts import DotLayouts
from aotc.schedule.layout.required_layouts import operand_layouts

_RENAMING = (Trait.SHAPE_ONLY, Trait.VIEW, Trait.SAME_VALUES)
_FREE = (Trait.SOURCE, Trait.BROADCAST)
"""What is computed in any layout from nothing, or from what threads hold anyway."""


@dataclass(frozen=True, slots=True)
class Reached:
    """How a value is reached from a dot: the layout to compute it in, in its own axes.

    `spread` is how many elements of the operand stem from one here, by joins on the way.
    """

    layout: LinearLayout
    spread: int


@dataclass(frozen=True, slots=True)
class _Slice:
    values: dict[Value, Reached]
    leaves: dict[Value, Reached]


def pull_operands(dots: Mapping[Op, DotLayouts]) -> dict[Value, LinearLayout]:
    """Return the layouts of all values that are computed in the layout of a dot's operand."""
    operands = [
        (value, layout)
        for op, layouts in dots.items()
        for value, layout in zip(op.operands[:2], layouts.operands()[:2], strict=True)
        if layout is not None
    ]
    wanted = dict(operands)
    shared = {value for value, layout in operands if wanted[value] != layout}
    pulled: dict[Value, LinearLayout] = {}
    for value, layout in wanted.items():
        if value in shared or not is_tile(value):
            continue
        found = _leaves_first(value, layout, wanted)
        if _is_worth_it(value, found):
            pulled |= {each: reached.layout for each, reached in found.values.items()}
    return pulled


def leaves_of(operand: Value, layout: LinearLayout) -> dict[Value, Reached]:
    """Return the values that an operand is computed from in the dot's layout."""
    found = _leaves_first(operand, layout, {})
    return found.leaves if _is_worth_it(operand, found) else {operand: Reached(layout, 1)}


def is_converted(operand: Value) -> bool:
    """Return whether a tile is computed from loaded tiles of fewer bytes, and from no other."""
    loaded_bytes = 0
    worklist, seen = [operand], {operand: None}
    while worklist:
        value = worklist.pop()
        op = value.op
        if op is None:
            return False
        if op.reads(Resource.GLOBAL):
            loaded_bytes += _tile_bytes(value)
        elif is_elementwise(op) or op.has(*_FREE, *_RENAMING):
            fresh = [each for each in op.operands if is_tile(each) and each not in seen]
            worklist += fresh
            seen.update(dict.fromkeys(fresh))
        else:
            return False
    return 0 < loaded_bytes < _tile_bytes(operand)


def _is_worth_it(operand: Value, found: _Slice) -> bool:
    return bool(found.values) and sum(map(_tile_bytes, found.leaves)) <= _tile_bytes(operand)


def _tile_bytes(value: Value) -> int:
    kind = value.type
    return kind.num_elems * kind.element.size_bytes if isinstance(kind, TileType) else 0


def _leaves_first(
    operand: Value, layout: LinearLayout, wanted: dict[Value, LinearLayout]
) -> _Slice:
    """Return the slice of an operand up to broadcasts, or through them if all leaves are broadcast."""
    found = _slice(operand, layout, wanted)
    return found if found.leaves else _slice(operand, layout, wanted, through=(Trait.BROADCAST,))


def _slice(
    operand: Value,
    layout: LinearLayout,
    wanted: dict[Value, LinearLayout],
    through: tuple[Trait, ...] = (),
) -> _Slice:
    """Return the slice of an operand; `wanted` are the layouts in which dots require values.

    Besides the usual ops those with a trait of `through` are part of it.
    """
    values: dict[Value, Reached] = {}
    frontier: dict[Value, Reached] = {operand: Reached(layout, 1)}
    grown = True
    while grown:
        grown = False
        for value, reached in list(frontier.items()):
            op = value.op
            if op is None or not _can_include(op, value, reached.layout, values, wanted, through):
                continue
            del frontier[value]
            values[value] = reached
            spread = reached.spread * (2 if isinstance(op, tile.Join) else 1)
            sources = operand_layouts(op, reached.layout)
            for source, at in zip(op.operands, sources, strict=True):
                if is_tile(source) and source not in values:
                    frontier.setdefault(source, Reached(at, spread))
            grown = True
    leaves = {
        value: at for value, at in frontier.items() if value.op is None or not value.op.has(*_FREE)
    }
    return _Slice(_without_free(values, leaves), leaves)


def _can_include(
    op: Op,
    value: Value,
    layout: LinearLayout,
    values: dict[Value, Reached],
    wanted: dict[Value, LinearLayout],
    through: tuple[Trait, ...],
) -> bool:
    if not is_elementwise(op) and not (op.has(Trait.VIEW, *through) or isinstance(op, tile.Join)):
        return False
    if isinstance(op, tile.Join) and layout.split_register_bit() is None:
        return False
    for user in value.users:
        serves = user.results and user.results[0] in values
        if not serves and not (isinstance(user, tile.Dot) and wanted.get(value, layout) == layout):
            return False
    return True


def _without_free(
    values: dict[Value, Reached], leaves: dict[Value, Reached]
) -> dict[Value, Reached]:
    """Leave out what is computed from free values alone, such as masks: it has no preferred layout."""
    heavy: dict[Value, None] = dict.fromkeys(leaves)
    # Values were reached users first, so backwards operands come first; a second round is for
    # values that were reached through several users.
    for _ in range(2):
        for value in reversed(values):
            if value.op is not None and any(source in heavy for source in value.op.operands):
                heavy[value] = None
    return {value: reached for value, reached in values.items() if value in heavy}

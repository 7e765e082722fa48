"""Computations between memory and a dot, and their layouts.

A loaded operand that is then cast, scaled or dequantised can be converted to the dot's layout
before or after that. Before is better whenever the loaded tile is no wider: fewer bytes go through
shared memory, and the converted tile is the loaded one, so a loop can load it ahead of its use. The
*slice* of an operand is the ops serving only to compute it; it begins at its *leaves*. It is
computed in the operand's own layout if its leaves have no more bytes than the operand. A broadcast
value, such as a scale for each row, is no leaf. But where nothing else is loaded, as with weights
packed in words, it is.

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
class SliceValue:
    """The layout of a value in an operand's slice, in the value's own axes.

    `spread` is the number of operand elements stemming from one element here, by joins on the way.
    """

    layout: LinearLayout
    spread: int


@dataclass(frozen=True, slots=True)
class _Slice:
    values: dict[Value, SliceValue]
    leaves: dict[Value, SliceValue]


def pull_operands(dots: Mapping[Op, DotLayouts]) -> dict[Value, LinearLayout]:
    """Return the layouts of all values computed in the layout of a dot's operand."""
    operands = [
        (value, layout)
        for op, layouts in dots.items()
        for value, layout in zip(op.operands[:2], layouts.operands()[:2], strict=True)
        if layout is not None
    ]
    required = dict(operands)
    shared = {value for value, layout in operands if required[value] != layout}
    pulled: dict[Value, LinearLayout] = {}
    for value, layout in required.items():
        if value in shared or not is_tile(value):
            continue
        operand_slice = _leaves_first(value, layout, required)
        if _is_worth_it(value, operand_slice):
            pulled |= {sliced: reached.layout for sliced, reached in operand_slice.values.items()}
    return pulled


def leaves_of(operand: Value, layout: LinearLayout) -> dict[Value, SliceValue]:
    """Return the leaves of an operand's slice in the dot's layout."""
    operand_slice = _leaves_first(operand, layout, {})
    return (
        operand_slice.leaves
        if _is_worth_it(operand, operand_slice)
        else {operand: SliceValue(layout, 1)}
    )


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
            fresh = [source for source in op.operands if is_tile(source) and source not in seen]
            worklist += fresh
            seen.update(dict.fromkeys(fresh))
        else:
            return False
    return 0 < loaded_bytes < _tile_bytes(operand)


def _is_worth_it(operand: Value, operand_slice: _Slice) -> bool:
    return bool(operand_slice.values) and sum(
        map(_tile_bytes, operand_slice.leaves)
    ) <= _tile_bytes(operand)


def _tile_bytes(value: Value) -> int:
    kind = value.type
    return kind.num_elems * kind.element.size_bytes if isinstance(kind, TileType) else 0


def _leaves_first(
    operand: Value, layout: LinearLayout, required: dict[Value, LinearLayout]
) -> _Slice:
    """Return the slice of an operand up to broadcasts, or through them if all leaves are broadcast."""
    operand_slice = _slice(operand, layout, required)
    return (
        operand_slice
        if operand_slice.leaves
        else _slice(operand, layout, required, through=(Trait.BROADCAST,))
    )


def _slice(
    operand: Value,
    layout: LinearLayout,
    required: dict[Value, LinearLayout],
    through: tuple[Trait, ...] = (),
) -> _Slice:
    """Return the slice of an operand; `required` are the layouts dots require of values.

    Besides the usual ops, ops with a trait of `through` are part of it.
    """
    values: dict[Value, SliceValue] = {}
    frontier: dict[Value, SliceValue] = {operand: SliceValue(layout, 1)}
    grown = True
    while grown:
        grown = False
        for value, reached in list(frontier.items()):
            op = value.op
            if op is None or not _can_include(op, value, reached.layout, values, required, through):
                continue
            del frontier[value]
            values[value] = reached
            spread = reached.spread * (2 if isinstance(op, tile.Join) else 1)
            sources = operand_layouts(op, reached.layout)
            for source, source_layout in zip(op.operands, sources, strict=True):
                if is_tile(source) and source not in values:
                    frontier.setdefault(source, SliceValue(source_layout, spread))
            grown = True
    leaves = {
        value: leaf
        for value, leaf in frontier.items()
        if value.op is None or not value.op.has(*_FREE)
    }
    return _Slice(_without_free(values, leaves), leaves)


def _can_include(
    op: Op,
    value: Value,
    layout: LinearLayout,
    values: dict[Value, SliceValue],
    required: dict[Value, LinearLayout],
    through: tuple[Trait, ...],
) -> bool:
    if not is_elementwise(op) and not (op.has(Trait.VIEW, *through) or isinstance(op, tile.Join)):
        return False
    if isinstance(op, tile.Join) and layout.split_register_bit() is None:
        return False
    for user in value.users:
        serves = user.results and user.results[0] in values
        if not serves and not (
            isinstance(user, tile.Dot) and required.get(value, layout) == layout
        ):
            return False
    return True


def _without_free(
    values: dict[Value, SliceValue], leaves: dict[Value, SliceValue]
) -> dict[Value, SliceValue]:
    """Drop values computed from free ones alone, such as masks: they have no preferred layout."""
    heavy: dict[Value, None] = dict.fromkeys(leaves)
    # Values were reached users first, so backwards operands come first; a second round is for
    # values reached through several users.
    for _ in range(2):
        for value in reversed(values):
            if value.op is not None and any(source in heavy for source in value.op.operands):
                heavy[value] = None
    return {value: reached for value, reached in values.items() if value in heavy}

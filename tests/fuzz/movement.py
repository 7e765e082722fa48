"""Ops that move or repeat elements: the subject of layouts and their conversions."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from aotc.ir.dialects import tile
from tests.fuzz.elements import ELEMENTS
from tests.fuzz.facts import joined
from tests.fuzz.generator import Generator, Item, anything


def _any(g: Generator) -> Item:
    return g.any_item(lambda _: True, ELEMENTS)


def make_reshape(g: Generator) -> None:
    """Add a reshape to any shape of as many elements."""
    item = _any(g)
    bits = prod(item.shape).bit_length() - 1
    rank = g.choices.pick([1, 2, 2, 3, 3, 4])
    exponents = [0] * rank
    for axis in range(rank - 1):
        exponents[axis] = g.choices.between(0, bits - sum(exponents))
    exponents[-1] = bits - sum(exponents)
    shape = tuple(1 << exponents[axis] for axis in g.permutation(rank))
    g.keep(g.add(tile.Reshape(item.value, shape)).out, item.facts)


def make_trans(g: Generator) -> None:
    """Add a permutation of axes."""
    item = _any(g)
    order = g.permutation(len(item.shape))
    g.keep(g.add(tile.Trans(item.value, order)).out, item.facts)


def make_expand(g: Generator) -> None:
    """Add an axis of extent 1, and perhaps repeat the tile along it."""
    item = _any(g)
    if len(item.shape) >= 4:
        return
    axis = g.choices.below(len(item.shape) + 1)
    value = g.add(tile.ExpandDims(item.value, axis)).out
    room = max(g.limits.elems // prod(item.shape), 1).bit_length() - 1
    extent = 1 << g.choices.between(0, min(room, 4))
    shape = (*item.shape[:axis], extent, *item.shape[axis:])
    g.keep(g.stretched(value, shape), item.facts)


def make_broadcast(g: Generator) -> None:
    """Repeat a tile along an axis of extent 1."""
    candidates = g.candidates(lambda item: 1 in item.shape)
    if not candidates:
        make_expand(g)
        return
    item = g.recent(candidates)
    room = max(g.limits.elems // prod(item.shape), 1).bit_length() - 1
    shape = list(item.shape)
    shape[shape.index(1)] = 1 << g.choices.between(0, min(room, 6))
    g.keep(g.stretched(item.value, tuple(shape)), item.facts)


def make_join(g: Generator) -> None:
    """Put two tiles side by side."""
    left = _any(g)
    if prod(left.shape) >= g.limits.elems or len(left.shape) >= 4:
        return
    right = g.operand(left.element, left.shape, anything)
    facts = joined(left.facts, right.facts)
    g.keep(g.add(tile.Join(left.value, right.value)).out, facts)


def make_split(g: Generator) -> None:
    """Split a tile; its last axis becomes 2 if necessary."""
    candidates = g.candidates(lambda item: prod(item.shape) >= 2)
    if not candidates:
        make_join(g)
        return
    item = g.recent(candidates)
    value, shape = item.value, item.shape
    if shape[-1] != 2:
        wide = shape[-1] > 2
        shape = (*shape[:-1], shape[-1] // 2, 2) if wide else (prod(shape) // 2, 2)
        value = g.add(tile.Reshape(value, shape)).out
    if len(shape) < 2:
        value = g.add(tile.Reshape(value, (1, 2))).out
    op = g.add(tile.Split(value))
    g.keep(op.lhs, item.facts)
    g.keep(op.rhs, item.facts)


def make_splat(g: Generator) -> None:
    """Put a scalar into every element of a tile."""
    candidates = g.candidates(lambda item: not item.shape)
    if candidates:
        item = g.recent(candidates)
        g.keep(g.spread(item.value, g.some_shape()), item.facts)


MOVEMENT: list[tuple[int, Callable[[Generator], None]]] = [
    (4, make_reshape),
    (5, make_trans),
    (2, make_expand),
    (3, make_broadcast),
    (3, make_join),
    (3, make_split),
    (1, make_splat),
]

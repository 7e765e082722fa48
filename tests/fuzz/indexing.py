"""Elements picked by an index and values counted: any index will do, of a gather and of a bin."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from aotc.ir.dialects import arith, indexing, tile
from aotc.ir.types import I1, I32, U32
from tests.fuzz.elements import ELEMENTS
from tests.fuzz.facts import Facts
from tests.fuzz.generator import Generator, anything


def make_gather(g: Generator) -> None:
    """Pick elements of a tile along an axis, perhaps fewer or more than it has."""
    item = g.any_item(lambda _: True, ELEMENTS)
    axis = g.choices.below(len(item.shape))
    others_count = prod(item.shape) // item.shape[axis]
    room = max(g.limits.elems // others_count, 1).bit_length() - 1
    extent = item.shape[axis] if g.choices.chance(1, 2) else 1 << g.choices.between(0, room)
    shape = (*item.shape[:axis], extent, *item.shape[axis + 1 :])
    index = g.operand(I32, shape, anything).value
    g.keep(g.add(indexing.Gather(item.value, index, axis)).out, item.facts)


def make_histogram(g: Generator) -> None:
    """Count the values of a tile, most of them in a bin, some masked off."""
    element = g.choices.pick([I32, I32, U32])
    (extent,) = shape = g.some_shape(ranks=(1,))
    value, num_bins = g.operand(element, shape).value, 1 << g.choices.between(0, 8)
    if g.choices.chance(3, 4):
        value = g.add(arith.And(value, g.constant(2 * num_bins - 1, value.type))).out
    mask = g.operand(I1, shape).value if g.choices.chance(1, 2) else None
    counts = g.add(indexing.Histogram(value, num_bins, mask)).out
    if g.choices.chance(1, 4):
        counts = g.add(tile.Reshape(counts, (1, num_bins))).out
    g.keep(counts, Facts(hi=extent.bit_length()))


INDEXING: list[tuple[int, Callable[[Generator], None]]] = [(3, make_gather), (2, make_histogram)]

"""Loops over rows without matrix products, as in a softmax.

If rows are long and contiguous, pipelining copies them in bulk by a producer warp. Makers of tiles
of any shape hardly ever meet these conditions.
"""

from __future__ import annotations

from aotc.ir.core import Block
from aotc.ir.dialects import arith, scf
from aotc.ir.types import BF16, FP16, FP32, I8, I32, ScalarType, TileType
from tests.fuzz.facts import Facts, full, of_count
from tests.fuzz.generator import Counter, Generator, Item, Shape

_MIN_BYTES = 2048
_TERM = Facts(lo=-2, hi=5)


def make_row_loop(g: Generator) -> None:
    """Add a loop that sums up one or two loads, and perhaps stores them."""
    if g.depth >= g.limits.nesting:
        return
    element = g.choices.pick([FP32, FP16, BF16, I32, I8])
    shape = _shape(g, element)
    trips, num_loads = g.choices.between(0, 7), g.choices.between(1, 2)
    stores = g.choices.chance(1, 2)
    kind = FP32 if element.is_float else element
    total = of_count(_TERM, max(trips * num_loads, 1)) if element.is_float else full(element)
    init = g.constant(0, TileType(kind, shape))
    body = Block([I32, init.type])
    with g.scope(body, [], []) as scope:
        scope.counters.append(Counter(body.args[0], trips))
        acc = body.args[1]
        for _ in range(num_loads):
            row = _row(g, element, shape, stores=stores)
            acc = g.add(arith.Add(acc, row.value)).out
        if g.choices.chance(1, 4):
            g.grow(g.choices.between(1, 2))
        g.add(scf.Yield([acc]))
    first, last, step = g.constant(0, I32), g.number(trips), g.constant(1, I32)
    op = scf.For(
        *(first, last, step, [init], body),
        num_stages=g.choices.pick([2, 0, 3, 4]),
        warp_specialize=g.choices.chance(2 if stores else 1, 3),
    )
    item = g.keep(g.add(op).outs[0], total)
    if g.choices.chance(2, 3):
        g.store(g, item)


def _shape(g: Generator, element: ScalarType) -> Shape:
    """Choose a shape of as many bytes as a copy has to have."""
    elems = (_MIN_BYTES << g.choices.below(2)) // element.size_bytes
    rows = 1 << g.choices.below(4) if g.choices.chance(1, 3) else 0
    return (rows, elems // rows) if rows else (elems,)


def _row(g: Generator, element: ScalarType, shape: Shape, *, stores: bool) -> Item:
    """Return a loaded tile, perhaps stored, and widened for a sum."""
    g.tidy = True
    item = g.load(g, element, shape, True)
    if stores and g.choices.chance(2, 3):
        g.tidy = g.choices.chance(3, 4)
        g.store(g, item)
    g.tidy = False
    if element in (FP16, BF16):
        return g.keep(g.add(arith.Cast(item.value, FP32)).out, item.facts)
    return item

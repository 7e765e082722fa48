"""Loops and branches around ops from the makers, with tiles and scalars carried through.

A carried integer may become anything. A carried float is a sum of as many exact terms as there are
iterations, a running extreme, or a ragged value that is only moved. So its facts before the loop
hold in every iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aotc.ir.core import Block, Value
from aotc.ir.dialects import arith, scf, tile
from aotc.ir.rewrite import Builder
from aotc.ir.types import BF16, FP16, FP32, I1, I8, I32, I64, TileType
from tests.fuzz.elements import ELEMENTS, FLOATS, INTEGERS
from tests.fuzz.facts import Facts, fits, full, joined, of_count, settled, summed
from tests.fuzz.generator import Counter, Generator, Item, Maker, exact, known
from tests.fuzz.products import small

_ACCUMULATED = [(FP16, FP32), (BF16, FP32), (I8, I32), (FP32, FP32)]


@dataclass(frozen=True, slots=True)
class _Carried:
    """A carried value: its initial value, its facts in every iteration, and its update."""

    init: Item
    facts: Facts
    step: Callable[[Item], Value]


def make_for(g: Generator) -> None:
    """Add a counting loop between constants or parameters, possibly without iterations."""
    if g.depth >= g.limits.nesting:
        return
    trips = g.choices.pick([2, 0, 1, 3, 5])
    lower, stride = g.choices.pick([0, 0, 1, -3]), g.choices.pick([1, 1, 2, 3])
    ragged_end = g.choices.below(stride) if trips else -g.choices.below(2) * stride
    upper = lower + (trips - 1) * stride + 1 + ragged_end if trips else lower + ragged_end
    upper = min(upper, lower + trips * stride)
    kind = I64 if g.choices.chance(1, 8) else I32
    first, last, step = (g.known_or_given(value, kind) for value in (lower, upper, stride))
    carried = _carried(g, trips)
    body = Block([kind, *(state.init.value.type for state in carried)])
    items = [Item(arg, c.facts) for arg, c in zip(body.args[1:], carried, strict=True)]
    with g.scope(body, items, []) as scope:
        counter = _counter(g, body.args[0], lower, stride)
        scope.counters.append(Counter(counter, trips))
        scope.pool.append(Item(counter, Facts(hi=4)))
        g.grow(g.choices.between(1, 4))
        yields = [state.step(item) for state, item in zip(carried, items, strict=True)]
        g.add(scf.Yield(yields))
    op = scf.For(
        *(first, last, step, [state.init.value for state in carried], body),
        num_stages=g.choices.pick([0, 0, 1, 2, 4]),
        unroll=g.choices.pick([0, 0, 0, 0, 2, 3]),
    )
    for out, state in zip(g.add(op).outs, carried, strict=True):
        g.keep(out, state.facts)


def make_product_loop(g: Generator) -> None:
    """Add a loop as a matrix product has it: both operands loaded ahead, nothing in the way."""
    element, result = g.choices.pick(_ACCUMULATED)
    m, n, k = (1 << g.choices.between(low, 7) for low in (3, 3, 4))
    for_warpgroups = g.choices.chance(1, 3)
    m, most_elems = (max(m, 64), 1 << 13) if for_warpgroups else (m, g.limits.elems)
    while max(m * k, k * n, m * n) > most_elems:
        m, n, k = m if for_warpgroups else max(m // 2, 4), max(n // 2, 8), max(k // 2, 8)
    trips = g.choices.between(0, 7)
    terms = of_count(Facts(lo=-4, hi=10), k * max(trips, 1))
    if not fits(result, terms):
        return
    init = g.constant(0, TileType(result, (m, n)))
    body = Block([I32, init.type])
    with g.scope(body, [], []) as scope:
        scope.counters.append(Counter(body.args[0], trips))
        g.tidy = True
        a, b = g.load(g, element, (m, k), True), g.load(g, element, (k, n), True)
        g.tidy = False
        if g.choices.chance(1, 4):
            a = Item(g.add(arith.Neg(a.value)).out, a.facts)
        good = all(small(element)(factor.facts) and factor.facts.hi <= 5 for factor in (a, b))
        acc = g.add(tile.Dot(a.value, b.value, body.args[1])).out if good else body.args[1]
        g.add(scf.Yield([acc]))
    first, last, step = g.constant(0, I32), g.number(trips), g.constant(1, I32)
    num_stages = g.choices.pick([0, 2, 3, 4])
    op = g.add(scf.For(first, last, step, [init], body, num_stages=num_stages))
    item = g.keep(op.outs[0], terms)
    if g.choices.chance(2, 3):
        g.store(g, item)


def _counter(g: Generator, index: Value, lower: int, stride: int) -> Value:
    """Return how many iterations came before, as an i32."""
    value = index
    if lower:
        value = g.add(arith.Sub(value, g.constant(lower, index.type))).out
    if stride != 1:
        value = g.add(arith.Div(value, g.constant(stride, index.type))).out
    return value if index.type == I32 else g.add(arith.Cast(value, I32)).out


def _carried(g: Generator, trips: int) -> list[_Carried]:
    options: list[tuple[int, Callable[[Generator, int], _Carried | None]]] = [
        (3, _sum),
        (2, _integer),
        (1, _extreme),
        (1, _moved),
        (4, _accumulated),
    ]
    states = [g.choices.weighted(options)(g, trips) for _ in range(g.choices.between(1, 3))]
    return [state for state in states if state is not None]


def _sum(g: Generator, trips: int) -> _Carried | None:
    """Carry a sum of exact values."""
    element = g.choices.weighted(FLOATS)
    init = g.operand(element, g.some_shape(), exact)
    term = Facts(lo=min(init.facts.lo, -3), hi=4)
    facts = settled(element, summed((init.facts, of_count(term, max(trips, 1)))))
    if facts is None or not init.facts.accumulates(facts):
        return None

    def step(item: Item) -> Value:
        def wanted(f: Facts) -> bool:
            return f.is_exact and f.lo >= term.lo and f.hi <= term.hi and f.accumulates(facts)

        candidates = [i for i in g.candidates(lambda i: wanted(i.facts)) if i is not item]
        same = [i for i in candidates if i.element == element and i.shape == item.shape]
        other = g.recent(same) if same else g.load(g, element, item.shape, True)
        if not wanted(other.facts):
            return item.value
        return g.add(arith.Add(item.value, other.value)).out

    return _Carried(init, facts, step)


def _accumulated(g: Generator, trips: int) -> _Carried | None:
    """Carry the sum of one matrix product per iteration, with operands loaded there."""
    element, result = g.choices.pick(_ACCUMULATED)
    m, n, k = (1 << g.choices.between(2, 6) for _ in range(3))
    while max(m * k, k * n, m * n) > g.limits.elems:
        m, n, k = max(m // 2, 1), max(n // 2, 1), max(k // 2, 1)
    bits = 5
    terms = of_count(Facts(lo=-8, hi=2 * bits), k * max(trips, 1))
    init = Item(g.constant(0, TileType(result, (m, n))), Facts())
    if result.is_float and not fits(result, terms):
        return None

    def step(item: Item) -> Value:
        a, b = g.load(g, element, (m, k), True), g.load(g, element, (k, n), True)
        if not all(small(element)(factor.facts) and factor.facts.hi <= bits for factor in (a, b)):
            return item.value
        return g.add(tile.Dot(a.value, b.value, item.value)).out

    return _Carried(init, terms if fits(result, terms) else full(result), step)


def _integer(g: Generator, trips: int) -> _Carried | None:
    """Carry an integer, tile or scalar, with arbitrary updates."""
    del trips
    element = g.choices.weighted([*INTEGERS, (1, I1)])
    shape = () if g.choices.chance(1, 4) else g.some_shape()
    init = g.operand(element, shape)

    def step(item: Item) -> Value:
        candidates = g.candidates(lambda i: i.element == element and i.shape == shape)
        return g.recent(candidates).value if candidates else item.value

    return _Carried(init, full(element), step)


def _extreme(g: Generator, trips: int) -> _Carried | None:
    """Carry a running maximum."""
    del trips
    element = g.choices.weighted(FLOATS)
    init = g.operand(element, g.some_shape(), known)

    def step(item: Item) -> Value:
        facts = init.facts
        candidates = g.candidates(
            lambda i: (
                i.element == element and i.shape == item.shape and joined(facts, i.facts) == facts
            )
        )
        other = g.recent(candidates).value if candidates else item.value
        return g.add(arith.Max(item.value, other)).out

    return _Carried(init, init.facts, step)


def _moved(g: Generator, trips: int) -> _Carried | None:
    """Carry a tile with permuted elements."""
    del trips
    init = g.any_item(lambda i: len(i.shape) > 1, ELEMENTS)

    def step(item: Item) -> Value:
        order = (*range(1, len(item.shape)), 0)
        turned = g.add(tile.Trans(item.value, order)).out
        return g.add(tile.Reshape(turned, item.shape)).out

    return _Carried(init, init.facts, step)


def make_if(g: Generator) -> None:
    """Add a branch that yields values from both sides."""
    if g.depth >= g.limits.nesting:
        return
    condition = _condition(g)
    count = g.choices.between(0, 2)
    kinds = [
        (g.choices.weighted(ELEMENTS), () if g.choices.chance(1, 4) else g.some_shape())
        for _ in range(count)
    ]
    sides: list[tuple[Block, list[Facts]]] = []
    for _ in range(2):
        block = Block([])
        with g.scope(block, [], []):
            g.grow(g.choices.below(4))
            items = [g.operand(element, shape) for element, shape in kinds]
            _store_some(g)
            g.add(scf.Yield([item.value for item in items]))
        sides.append((block, [item.facts for item in items]))
    op = g.add(scf.If(condition, sides[0][0], sides[1][0]))
    for out, then, orelse in zip(op.outs, sides[0][1], sides[1][1], strict=True):
        g.keep(out, joined(then, orelse))


def _store_some(g: Generator) -> None:
    if g.choices.chance(1, 3):
        candidates = g.candidates(lambda _: True)
        if candidates:
            g.store(g, g.recent(candidates))


def _condition(g: Generator) -> Value:
    """Return a condition uniform over the program."""
    candidates = g.candidates(lambda i: i.element == I1 and not i.shape)
    if candidates and g.choices.chance(1, 2):
        return g.recent(candidates).value
    scalars = g.candidates(lambda i: i.element == I32 and not i.shape)
    left = g.recent(scalars).value if scalars else g.number(g.choices.between(-2, 2))
    right = g.constant(g.choices.between(-1, 2), I32)
    return g.add(arith.Compare(left, right, g.choices.pick(["lt", "eq", "ge"]))).out


def make_while(g: Generator) -> None:
    """Add a loop counting down to zero with more carried values."""
    if g.depth >= g.limits.nesting:
        return
    trips = g.choices.pick([1, 0, 2, 4])
    carried = _carried(g, trips)
    start = g.number(trips) if g.choices.chance(2, 3) else g.constant(trips, I32)
    types = [I32, *(state.init.value.type for state in carried)]
    before, after = Block(types), Block(types)
    builder = Builder(before)
    zero = builder(arith.Constant(0, I32)).out
    go = builder(arith.Compare(before.args[0], zero, "gt")).out
    builder(scf.Condition(go, before.args))
    items = [Item(arg, c.facts) for arg, c in zip(after.args[1:], carried, strict=True)]
    with g.scope(after, items, [Counter(after.args[0], trips + 1)]) as scope:
        scope.pool.append(Item(after.args[0], Facts(hi=4)))
        left = g.add(arith.Sub(after.args[0], g.constant(1, I32))).out
        g.grow(g.choices.between(1, 3))
        yields = [state.step(item) for state, item in zip(carried, items, strict=True)]
        g.add(scf.Yield([left, *yields]))
    op = g.add(scf.While([start, *(state.init.value for state in carried)], before, after))
    for out, state in zip(op.outs[1:], carried, strict=True):
        g.keep(out, state.facts)


CONTROL: list[tuple[int, Maker]] = [
    (4, make_for),
    (4, make_product_loop),
    (2, make_if),
    (1, make_while),
]

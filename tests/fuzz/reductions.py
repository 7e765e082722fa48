"""Reductions and scans of one or two tiles, with combinations that reveal a wrong order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from aotc.ir.core import Block, Value
from aotc.ir.dialects import arith, scf, tile
from aotc.ir.rewrite import Builder
from aotc.ir.types import I1, I32, ScalarType, Type
from tests.fuzz.elements import FLOATS, INTEGERS
from tests.fuzz.facts import Facts, fits, full, of_count
from tests.fuzz.generator import Generator, Item

Combine = Callable[[Builder, Sequence[Value]], list[Value]]

WANTED = [*INTEGERS, *FLOATS, (1, I1)]


def _block(types: Sequence[Type], combine: Combine) -> Block:
    block = Block([*types, *types])
    add = Builder(block)
    add(scf.Yield(combine(add, block.args)))
    return block


def _simple(cls: type[arith.Binary], *flags: bool) -> Combine:
    return lambda add, args: [add(cls(args[0], args[1], *flags)).out]


def _choose(g: Generator, item: Item, count: int) -> tuple[Combine, Facts] | None:
    """Choose a combination of one tile, associative under the facts of its elements."""
    element, facts = item.element, item.facts
    if element.is_bool:
        return _simple(g.choices.pick([arith.Or, arith.And, arith.Xor])), Facts()
    wins = element.is_float and g.choices.chance(1, 2)
    options: list[tuple[Combine, Facts]] = [
        (_simple(arith.Max, wins), facts),
        (_simple(arith.Min, wins), facts),
    ]
    if facts.is_exact and (element.is_int or fits(element, of_count(facts, count))):
        total = of_count(facts, count)
        options.insert(0, (_simple(arith.Add), total if fits(element, total) else full(element)))
    if element.is_int:
        classes = (arith.Mul, arith.Xor, arith.And, arith.Or)
        options += [(_simple(cls), full(element)) for cls in classes]
    return g.choices.pick(options)


def _tile(g: Generator) -> Item:
    return g.any_item(
        lambda i: i.facts.is_known and (i.element.is_int or i.element.bits > 8), WANTED
    )


def make_reduce(g: Generator) -> None:
    """Reduce one tile along an axis."""
    item = _tile(g)
    axis = g.choices.below(len(item.shape))
    chosen = _choose(g, item, item.shape[axis])
    if chosen is not None:
        op = g.add(tile.Reduce([item.value], axis, _block([item.element], chosen[0])))
        g.keep(op.outs[0], chosen[1])


def _argmax(predicate: arith.Predicate) -> Combine:
    def combine(add: Builder, args: Sequence[Value]) -> list[Value]:
        best, index, other, other_at = args
        wins = add(arith.Compare(best, other, predicate)).out
        equal = add(arith.Compare(best, other, "eq")).out
        first = add(arith.Compare(index, other_at, "lt")).out
        tie = add(arith.And(equal, first)).out
        take = add(arith.Or(wins, tie)).out
        return [
            add(arith.Select(take, best, other)).out,
            add(arith.Select(take, index, other_at)).out,
        ]

    return combine


def make_argmax(g: Generator) -> None:
    """Reduce a tile and its indices to the extreme and where it is."""
    item = g.any_item(
        lambda i: (
            i.facts.is_exact and not i.element.is_bool and (i.element.is_int or i.element.bits > 8)
        ),
        INTEGERS + FLOATS,
    )
    if not item.facts.is_exact:
        return
    axis = g.choices.below(len(item.shape))
    index = g.stretched(g.along(axis, item.shape), item.shape)
    combine = _argmax(g.choices.pick(["gt", "lt"]))
    op = g.add(tile.Reduce([item.value, index], axis, _block([item.element, I32], combine)))
    g.keep(op.outs[0], item.facts)
    g.keep(op.outs[1], Facts(hi=(item.shape[axis] - 1).bit_length()))


def make_pair(g: Generator) -> None:
    """Reduce two tiles of different types by ops of their own, in one reduction."""
    first = _tile(g)
    chosen = _choose(g, first, 1 << 20)
    second_element: ScalarType = g.choices.weighted(INTEGERS)
    second = g.operand(second_element, first.shape)
    if chosen is None:
        return
    combine_values = chosen[0]

    def combine(add: Builder, args: Sequence[Value]) -> list[Value]:
        return [*combine_values(add, [args[0], args[2]]), add(arith.Xor(args[1], args[3])).out]

    axis = g.choices.below(len(first.shape))
    types = [first.element, second_element]
    op = g.add(tile.Reduce([first.value, second.value], axis, _block(types, combine)))
    g.keep(op.outs[0], chosen[1])
    g.keep(op.outs[1], full(second_element))


def make_scan(g: Generator) -> None:
    """Scan one tile along an axis, forwards or backwards."""
    item = _tile(g)
    axis = g.choices.below(len(item.shape))
    chosen = _choose(g, item, item.shape[axis])
    if chosen is not None:
        block = _block([item.element], chosen[0])
        op = g.add(tile.Scan([item.value], axis, block, reverse=g.choices.chance(1, 3)))
        g.keep(op.outs[0], chosen[1])


def make_affine_scan(g: Generator) -> None:
    """Scan maps x -> a*x + b: composing them is associative but not commutative."""
    element = g.choices.weighted(INTEGERS)
    shape = g.some_shape()
    slope, offset = g.operand(element, shape), g.operand(element, shape)

    def combine(add: Builder, args: Sequence[Value]) -> list[Value]:
        a, b, c, d = args
        through = add(arith.Mul(c, b)).out
        return [add(arith.Mul(a, c)).out, add(arith.Add(through, d)).out]

    axis = g.choices.below(len(shape))
    block = _block([element, element], combine)
    inputs = [slope.value, offset.value]
    op = g.add(tile.Scan(inputs, axis, block, reverse=g.choices.chance(1, 3)))
    for out in op.outs:
        g.keep(out, full(element))


def make_softmax_like(g: Generator) -> None:
    """Reduce, reshape twice, broadcast back: where scratch shapes and vectors meet."""
    item = _tile(g)
    if len(item.shape) < 2 or item.element.is_bool:
        return
    chosen = _choose(g, item, item.shape[-1])
    if chosen is None:
        return
    op = g.add(tile.Reduce([item.value], len(item.shape) - 1, _block([item.element], chosen[0])))
    rest = item.shape[:-1]
    flat = g.add(tile.Reshape(op.outs[0], (prod(rest),))).out
    back = g.add(tile.Reshape(flat, (*rest, 1))).out
    g.keep(g.stretched(back, item.shape), chosen[1])


REDUCTIONS: list[tuple[int, Callable[[Generator], None]]] = [
    (4, make_reduce),
    (2, make_argmax),
    (1, make_pair),
    (2, make_scan),
    (1, make_affine_scan),
    (2, make_softmax_like),
]

"""Loads, stores and atomics at random addresses: strided, permuted, masked, gathered, misaligned.

Every access has its own buffer, ending with the last element it may touch. So an access one element
too far is out of bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from aotc.ir.core import Value
from aotc.ir.dialects import arith, tile
from aotc.ir.types import I1, I32, I64, ScalarType, TileType
from tests.fuzz.arguments import Buffer, Fill
from tests.fuzz.elements import ELEMENTS, FLOATS, INTEGERS
from tests.fuzz.facts import Facts, fits, full, joined, of_count
from tests.fuzz.generator import Generator, Item, Shape, known

MAX_SPAN_ELEMS = 1 << 14
MAX_CROWD_ELEMS = 1 << 8


@dataclass(frozen=True, slots=True)
class Place:
    """Hold the pointers and the mask of an access; `is_injective` if no two are the same."""

    pointer: Value
    mask: Value | None
    is_injective: bool


@dataclass(frozen=True, slots=True)
class _Content:
    """Contents of a buffer."""

    element: ScalarType
    fill: Fill
    facts: Facts
    is_atomic: bool = False


def load(g: Generator, element: ScalarType, shape: Shape, is_exact: bool) -> Item:
    """Return a loaded tile or scalar."""
    facts = some_facts(g, element) if is_exact else full(element)
    content = _Content(element, "exact" if is_exact else "any", facts)
    target = _place(g, content, shape, may_repeat=True)
    other, without = None, None
    if target.mask is not None:
        fallback = g.some_constant(element, shape, is_zero=g.tidy or g.choices.chance(1, 2))
        facts = joined(facts, fallback.facts)
        other, without = fallback.value, None
        if not g.tidy and g.choices.chance(1, 6):
            other, without = None, fallback.value
    cache, eviction = _policy(g, ("ca", "cg", "cs", "cv"))
    is_volatile = not (g.tidy or cache or eviction) and g.choices.chance(1, 20)
    op = tile.Load(target.pointer, target.mask, other, cache, eviction, is_volatile)
    value = g.add(op).out
    if without is not None and target.mask is not None:
        value = g.add(arith.Select(target.mask, value, without)).out
    return g.keep(value, facts)


def store(g: Generator, item: Item) -> None:
    """Store a value, or most of it."""
    content = _Content(item.element, "poison", item.facts)
    target = _place(g, content, item.shape, may_repeat=False)
    policy = _policy(g, ("wb", "cg", "cs", "wt"))
    g.add(tile.Store(target.pointer, item.value, target.mask, *policy))


def _policy(g: Generator, caches: tuple[str, ...]) -> tuple[str, str]:
    """Choose a cache operator or an eviction priority, mostly neither."""
    how = 0 if g.tidy else g.choices.below(16)
    if how == 15:
        return g.choices.pick(caches), ""
    return "", g.choices.pick(["evict_first", "evict_last"]) if how == 14 else ""


def make_round_trip(g: Generator) -> None:
    """Store a tile, wait for all threads, and load it in another order of its axes.

    In a loop every iteration uses the same memory, so loads may not run ahead of the store.
    """
    item = g.any_item(lambda _: True, ELEMENTS)
    shape = item.shape
    flat = g.add(tile.Arange(0, prod(shape))).out
    index = g.add(tile.Reshape(flat, shape)).out
    size, programs, base_index = prod(shape), 1, None
    for counter in g.scopes[-1].counters:
        if counter.is_program:
            step = g.constant(size * programs, I32)
            term = g.add(arith.Mul(counter.value, step)).out
            base_index = term if base_index is None else g.add(arith.Add(base_index, term)).out
            programs *= counter.extent
    name, steps = item.element.name, item.facts.steps
    base = g.pointer(lambda p: Buffer(p, name, size * programs, "poison", steps=steps), 16)
    if base_index is not None:
        base = g.add(arith.AddPtr(base, base_index)).out
    pointer = g.add(arith.AddPtr(g.spread(base, shape), index)).out
    g.add(tile.Barrier())
    g.add(tile.Store(pointer, item.value))
    g.add(tile.Barrier())
    order = g.permutation(len(shape))
    turned = g.add(tile.Trans(pointer, order)).out
    g.keep(g.add(tile.Load(turned)).out, item.facts)


def make_load(g: Generator) -> None:
    """Add a load of anything."""
    element = g.choices.weighted(ELEMENTS)
    shape = () if g.choices.chance(1, 10) else g.some_shape()
    load(g, element, shape, g.choices.chance(3, 4))


def make_gather(g: Generator) -> None:
    """Add a load through loaded indices."""
    element, shape = g.choices.weighted(ELEMENTS), g.some_shape()
    bits = g.choices.between(0, 8)
    index = g.operand(I32, shape).value
    index = g.add(arith.And(index, g.constant((1 << bits) - 1, index.type))).out
    facts = some_facts(g, element)
    seed = g.choices.below(1 << 16)
    base = g.pointer(
        lambda name: Buffer(name, element.name, 1 << bits, "exact", facts.lo, facts.hi, seed),
        16 if g.choices.chance(1, 2) else 1,
    )
    pointer = g.add(arith.AddPtr(g.spread(base, shape), index)).out
    g.keep(g.add(tile.Load(pointer)).out, facts)


def some_facts(g: Generator, element: ScalarType) -> Facts:
    """Choose facts of data that a type holds with room to spare."""
    if element.is_bool:
        return Facts()
    if element.is_int:
        return Facts(hi=g.choices.between(0, min(element.bits - 2, 12)))
    lo = -g.choices.below(3)
    return Facts(lo=lo, hi=lo + g.choices.between(1, min(element.mantissa_bits + 1, 5)))


# ---- places -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Axis:
    extent: int
    bound: int
    stride: int


def _place(g: Generator, content: _Content, shape: Shape, *, may_repeat: bool) -> Place:
    """Choose strides, bounds and a buffer for an access to a tile of `shape`.

    Half of the addresses are tidy: they meet all needs of vectors and asynchronous copies.
    """
    tidy = g.tidy or g.choices.chance(1, 2)
    axes = _axes(g, shape, may_repeat=may_repeat, tidy=tidy)
    span = 1 + sum(max(axis.bound - 1, 0) * axis.stride for axis in axes)
    base_offset, total = _base(g, span, may_repeat=may_repeat, tidy=tidy)
    aligned = tidy or g.choices.chance(1, 3)
    skew = 0 if aligned else g.choices.below(4)
    if content.is_atomic and content.element.bits == 16:
        # Without an instruction of 16 bits, the word around an element is exchanged.
        skew, total = skew & ~1, total + total % 2
    seed = g.choices.below(1 << 16)
    facts = content.facts
    base = g.pointer(
        lambda name: Buffer(
            *(name, content.element.name, total, content.fill, facts.lo, facts.hi, seed, skew),
            steps=facts.steps if content.fill == "poison" else 0.0,
        ),
        16 if aligned else 1,
    )
    if base_offset is not None:
        base = g.add(arith.AddPtr(base, base_offset)).out
    if not shape:
        return Place(base, None, is_injective=True)
    indices = [g.along(axis, shape) for axis in range(len(shape))]
    pointer = g.spread(base, shape)
    wide = g.choices.chance(1, 8)
    for index, axis in zip(indices, axes, strict=True):
        if axis.extent == 1 or axis.stride == 0:
            continue
        offset = _strided(g, index, axis.stride, tidy=tidy)
        if wide:
            offset = g.add(arith.Cast(offset, I64)).out
        pointer = g.add(arith.AddPtr(pointer, g.stretched(offset, shape))).out
    mask: Value | None = None
    for index, axis in zip(indices, axes, strict=True):
        if axis.bound < axis.extent:
            inside = _inside(g, index, axis.bound, shape)
            mask = inside if mask is None else g.add(arith.And(mask, inside)).out
    return Place(pointer, mask, all(axis.stride or axis.bound <= 1 for axis in axes))


def _axes(g: Generator, shape: Shape, *, may_repeat: bool, tidy: bool) -> list[_Axis]:
    """Choose the stride and the bound of every axis, the innermost in memory mostly the last."""
    rank = len(shape)
    order = tuple(range(rank)) if g.choices.chance(2, 3) else g.permutation(rank)
    axes: list[_Axis] = [_Axis(1, 1, 1)] * rank
    stride = 1 if tidy else g.choices.pick([1, 1, 2, 3])
    for axis in reversed(order):
        extent = shape[axis]
        bound = g.choices.between(0, extent) if g.choices.chance(1, 3) else extent
        if may_repeat and g.choices.chance(1, 12):
            axes[axis] = _Axis(extent, bound, 0)
            continue
        axes[axis] = _Axis(extent, bound, stride)
        stride *= extent
        if g.choices.chance(1, 3) and stride < MAX_SPAN_ELEMS // 4:
            stride += 16 - stride % 16 if tidy else g.choices.pick([1, 3, 8, 16])
    return axes


def _base(g: Generator, span: int, *, may_repeat: bool, tidy: bool) -> tuple[Value | None, int]:
    """Return the pointer's offset from the counters around, and the size of the buffer.

    Offsets of stores depend on every counter, so no two programs or iterations collide.
    """
    offset: Value | None = None
    step = span + (-span % 16 if tidy else g.choices.pick([0, 1, 16]))
    total = span
    for counter in g.scopes[-1].counters:
        must_be_unique = not may_repeat
        if not must_be_unique and (
            step * counter.extent > MAX_SPAN_ELEMS or g.choices.chance(1, 4)
        ):
            continue
        factor = (
            g.constant(step, I32) if g.choices.chance(1, 2) else g.number(step, I32, _divides(step))
        )
        term = g.add(arith.Mul(counter.value, factor)).out
        offset = term if offset is None else g.add(arith.Add(offset, term)).out
        total += step * max(counter.extent - 1, 0)
        step *= max(counter.extent, 1)
    return offset, total


def _divides(value: int) -> int:
    """Return the largest power of two up to 16 that divides `value`."""
    return min(value & -value, 16) if value else 16


def _strided(g: Generator, index: Value, stride: int, *, tidy: bool) -> Value:
    """Return an index times a stride: a constant or a parameter, perhaps with a promise."""
    if stride == 1:
        return index
    how = g.choices.pick([0, 2, 3] if tidy else [0, 1, 2, 3])
    if how == 0:
        factor = g.constant(stride, index.type)
    else:
        promised = _divides(stride) if how > 1 else 1
        scalar = g.number(stride, I32, promised if how == 2 else 1)
        if how == 3:
            scalar = g.add(tile.Hint(scalar, divisibility=(promised,))).out
        assert isinstance(index.type, TileType)
        factor = g.spread(scalar, index.type.shape)
    return g.add(arith.Mul(index, factor)).out


def _inside(g: Generator, index: Value, bound: int, shape: Shape) -> Value:
    """Return a mask of `shape` that is true where an index is below a bound."""
    scalar = (
        g.constant(bound, I32) if g.choices.chance(1, 4) else g.number(bound, I32, _divides(bound))
    )
    if g.choices.chance(1, 3):
        index = g.stretched(index, shape)
    assert isinstance(index.type, TileType)
    limit = g.spread(scalar, index.type.shape)
    return g.stretched(g.add(arith.Compare(index, limit, "lt")).out, shape)


# ---- atomics ----------------------------------------------------------------------------------

_ATOMIC = [
    (weight, element)
    for weight, element in (*INTEGERS, *FLOATS)
    if element.bits >= 32 or element.is_float
]


def make_atomic(g: Generator) -> None:
    """Add an atomic: old values are kept where the order of programs cannot show."""
    element = g.choices.weighted(_ATOMIC)
    kinds: list[tile.AtomicKind] = ["add", "max", "min", "and", "or", "xor", "xchg"]
    possible: list[tile.AtomicKind] = [
        kind
        for kind in kinds
        if tile.supports_atomic(kind, element) and (element.bits > 16 or kind == "add")
    ]
    kind: tile.AtomicKind = g.choices.pick(possible)
    candidates = g.candidates(
        lambda item: item.element == element and item.facts.is_exact and bool(item.shape)
    )
    shape = g.recent(candidates).shape if candidates else g.some_shape()
    value = g.operand(element, shape, lambda facts: facts.is_exact)
    turns = prod(shape) * prod(max(counter.extent, 1) for counter in g.scopes[-1].counters)
    total = of_count(joined(value.facts, Facts()), turns + 1)
    if element.is_float and kind == "add" and not fits(element, total):
        return
    is_alone = g.choices.chance(1, 2) or prod(shape) > MAX_CROWD_ELEMS or kind == "xchg"
    content = _Content(element, "exact", Facts(), is_atomic=True)
    target = (
        _place(g, content, shape, may_repeat=False) if is_alone else _crowded(g, element, shape)
    )
    if is_alone and target.mask is None and element.is_int and g.choices.chance(1, 3):
        # The comparand matches some elements and not others. Floats compare by bits, and the sign
        # of a zero is uncertain.
        compare = g.operand(element, shape, lambda facts: facts.is_exact).value
        cas = tile.AtomicCas(target.pointer, compare, value.value, *_order(g, is_alone=True))
        g.keep(g.add(cas).out, joined(value.facts, Facts()))
        return
    order = _order(g, is_alone=is_alone)
    op = g.add(tile.AtomicRmw(target.pointer, value.value, kind, target.mask, *order))
    if is_alone and target.mask is None:
        g.keep(op.out, joined(value.facts, Facts()))


def _order(g: Generator, *, is_alone: bool) -> tuple[tile.AtomicSem, tile.AtomicScope]:
    """Choose an atomic's order; programs with shared addresses may be in different CTAs."""
    sems: list[tile.AtomicSem] = ["relaxed", "acq_rel", "acquire", "release"]
    scopes: list[tile.AtomicScope] = ["gpu", "sys"]
    if is_alone or prod(g.grid) == 1:
        scopes.append("cta")
    return g.choices.pick(sems), g.choices.pick(scopes)


def _crowded(g: Generator, element: ScalarType, shape: Shape) -> Place:
    """Return a place where elements and programs share addresses."""
    bits = g.choices.between(0, 4)
    index = g.operand(I32, shape, known).value
    index = g.add(arith.And(index, g.constant((1 << bits) - 1, index.type))).out
    seed = g.choices.below(1 << 16)
    size = max(1 << bits, 2)
    base = g.pointer(lambda name: Buffer(name, element.name, size, "exact", 0, 0, seed), 1)
    pointer = g.add(arith.AddPtr(g.spread(base, shape), index)).out
    mask = g.operand(I1, shape).value if g.choices.chance(1, 3) else None
    return Place(pointer, mask, is_injective=False)

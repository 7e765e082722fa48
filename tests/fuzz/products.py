"""Matrix products of every pair of types, from 1 to 64 rows, columns and terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import get_args

from aotc.ir.core import Value
from aotc.ir.dialects import tile
from aotc.ir.types import (
    BF16,
    FP8E4NV,
    FP8E5,
    FP16,
    FP32,
    FP64,
    I8,
    I32,
    U8,
    ScalarType,
    TileType,
)
from tests.fuzz.facts import Facts, fits, full, multiplied, of_count, summed
from tests.fuzz.generator import Generator, Item, Shape

# Operands and result, each with how often it is chosen.
_KINDS: list[tuple[int, tuple[ScalarType, ScalarType, ScalarType]]] = [
    (4, (FP16, FP16, FP32)),
    (2, (BF16, BF16, FP32)),
    (3, (FP32, FP32, FP32)),
    (2, (I8, I8, I32)),
    (1, (U8, U8, I32)),
    (1, (FP16, FP16, FP16)),
    (1, (FP8E4NV, FP8E4NV, FP32)),
    (1, (FP8E5, FP8E4NV, FP32)),
    (1, (FP8E5, FP8E5, FP16)),
    (1, (FP64, FP64, FP64)),
]
# Hardware may add fp8 products with so many bits behind the largest one's first.
FP8_SUM_BITS = 13


def small(element: ScalarType) -> Callable[[Facts], bool]:
    """Return a test for operands whose products leave room for a sum."""
    bits = 8 if element.is_int else 5
    return lambda facts: facts.is_exact and facts.hi - facts.lo <= bits and facts.lo >= -4


def make_product(g: Generator) -> None:
    """Add a matrix product, on an accumulator of zeros or of the pool."""
    left, right, element = g.choices.weighted(_KINDS)
    m, n, k = (1 << g.choices.below(7) for _ in range(3))
    while m * n * k > 1 << 15 or max(m * k, k * n, m * n) > 2 * g.limits.elems:
        m, n, k = max(m // 2, 1), max(n // 2, 1), max(k // 2, 1)
    batch = (g.choices.pick([1, 2, 4]),) if g.choices.chance(1, 8) else ()
    a = _operand(g, left, (*batch, m, k))
    b = _operand(g, right, (*batch, k, n))
    product(g, a, b, element, (*batch, m, n))


def _operand(g: Generator, element: ScalarType, shape: Shape) -> Item:
    """Return an operand: loaded as it is, or turned, or from the pool."""
    if g.choices.chance(1, 3):
        turned = (*shape[:-2], shape[-1], shape[-2])
        item = g.operand(element, turned, small(element))
        axes = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
        return g.keep(g.add(tile.Trans(item.value, axes)).out, item.facts)
    return g.operand(element, shape, small(element))


def product(g: Generator, a: Item, b: Item, element: ScalarType, shape: Shape) -> Item | None:
    """Add `a @ b` plus an accumulator if the result is exact."""
    if not (small(a.element)(a.facts) and small(b.element)(b.facts)):
        return None
    terms = of_count(multiplied(a.facts, b.facts), a.shape[-1])
    acc_facts, acc = _accumulator(g, element, shape)
    facts = summed((terms, acc_facts))
    limit = FP8_SUM_BITS if a.element.bits == 8 and a.element.is_float else element.mantissa_bits
    if element.is_float and not (fits(element, facts) and facts.hi - facts.lo <= limit):
        return None
    product_facts = replace(facts, acc_bits=limit) if fits(element, facts) else full(element)
    how: Sequence[tile.InputPrecision] = get_args(tile.InputPrecision)
    precision = g.choices.pick(how) if a.element == FP32 else "tf32"
    return g.keep(g.add(tile.Dot(a.value, b.value, acc, precision)).out, product_facts)


def _accumulator(g: Generator, element: ScalarType, shape: Shape) -> tuple[Facts, Value]:
    if g.choices.chance(1, 3):
        item = g.operand(element, shape, small(element))
        return item.facts, item.value
    return Facts(hi=-8), g.constant(0, TileType(element, shape))


PRODUCTS: list[tuple[int, Callable[[Generator], None]]] = [(1, make_product)]

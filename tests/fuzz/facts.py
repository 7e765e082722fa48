"""Facts of a generated value: how sharply its results can be compared.

An *exact* value is a multiple of 2**lo of at most 2**hi in magnitude. Arithmetic stays among exact
values while its results fit the type. So sums may be reordered, products contracted and tensor
cores used, and still every bit is known. A *ragged* value is any value, NaNs and infinities
included, known to the bit because each op rounds once. A *product* may not be added to, since
hardware may contract the sum. An *approximate* value has an error of some steps of its type and is
only moved afterwards.

Invariant: facts of a value hold whatever the compiler may legally do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal

from aotc.ir.types import ScalarType

Kind = Literal["exact", "ragged", "product", "approximate"]
_RANK: dict[Kind, int] = {"exact": 0, "ragged": 1, "product": 2, "approximate": 3}

# Exponents of the smallest normal number, and of a bound that is certainly finite.
_EXPONENTS = {
    "fp8e4nv": (-6, 8),
    "fp8e5": (-14, 15),
    "fp16": (-14, 15),
    "bf16": (-126, 127),
    "fp32": (-126, 127),
    "fp64": (-1022, 1023),
}


@dataclass(frozen=True, slots=True)
class Facts:
    """Bound a value; `steps` is an approximate value's largest error, in steps of its type.

    A matrix product may absorb a sum with it, so the other summand is an accumulator. `acc_bits` is
    the precision of such an accumulator, or 0 for a value without a matrix product.
    """

    kind: Kind = "exact"
    lo: int = 0
    hi: int = 0
    steps: float = 0.0
    acc_bits: int = 0

    @property
    def is_exact(self) -> bool:
        return self.kind == "exact"

    @property
    def is_known(self) -> bool:
        """Return whether every bit is certain."""
        return self.kind != "approximate"

    def accumulates(self, total: Facts) -> bool:
        """Return whether a sum with this value is known if an accumulator holds it."""
        return not self.acc_bits or (total.is_exact and total.hi - total.lo <= self.acc_bits)


RAGGED = Facts("ragged")
PRODUCT = Facts("product")


def full(element: ScalarType) -> Facts:
    """Return the facts of any value of a type."""
    if element.is_bool:
        return Facts()
    return Facts(hi=element.bits) if element.is_int else RAGGED


def fits(element: ScalarType, facts: Facts) -> bool:
    """Return whether the type holds every value allowed by exact `facts`."""
    if element.is_int:
        return facts.lo >= 0 and facts.hi < element.bits - element.is_signed
    low, high = _EXPONENTS[element.name]
    return facts.hi - facts.lo <= element.mantissa_bits + 1 and low <= facts.lo and facts.hi <= high


def settled(element: ScalarType, facts: Facts) -> Facts | None:
    """Return `facts` of a result of type `element`; None for a float that may be inexact.

    Integers wrap.
    """
    if fits(element, facts):
        return facts
    return full(element) if element.is_int else None


def joined(first: Facts, *others: Facts) -> Facts:
    """Return facts true of every one of several values."""
    for other in others:
        kind: Kind = other.kind if _RANK[other.kind] > _RANK[first.kind] else first.kind
        first = Facts(
            kind,
            min(first.lo, other.lo),
            max(first.hi, other.hi),
            max(first.steps, other.steps),
            _fewest(first.acc_bits, other.acc_bits),
        )
    return first


def summed(facts: Sequence[Facts]) -> Facts:
    """Return the facts of a sum of exact values."""
    largest = max(term.hi for term in facts)
    extra = (sum(1 << max(term.hi - largest + 64, 0) for term in facts) - 1 >> 64).bit_length()
    acc_bits = reduce(_fewest, (term.acc_bits for term in facts))
    return Facts(lo=min(term.lo for term in facts), hi=largest + extra, acc_bits=acc_bits)


def _fewest(first: int, second: int) -> int:
    """Return the smaller of two numbers, with 0 for no limit."""
    return min(filter(None, (first, second)), default=0)


def of_count(facts: Facts, count: int) -> Facts:
    """Return the facts of a sum of up to `count` exact values."""
    return replace(facts, hi=facts.hi + max(count - 1, 0).bit_length())


def multiplied(first: Facts, second: Facts) -> Facts:
    """Return the facts of a product of exact values."""
    return Facts(lo=first.lo + second.lo, hi=first.hi + second.hi)

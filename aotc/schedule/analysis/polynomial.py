"""Polynomials with integer coefficients over numbered symbols, for index arithmetic.

Sums of products in one normal form, so two ways to write an address compare as equal, and a stride
can be divided out of its products. The numbering gives the symbols their meaning
(`schedule.analysis.affine`).

Invariant: `terms` is sorted and no coefficient is 0, so equal polynomials are equal objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

Monomial: TypeAlias = tuple[int, ...]
"""The symbols of a product, in order and as often as they occur in it; () is 1."""


@dataclass(frozen=True, slots=True)
class Polynomial:
    """A sum of monomials with their coefficients."""

    terms: tuple[tuple[Monomial, int], ...] = ()

    @classmethod
    def of(cls, terms: Iterable[tuple[Monomial, int]]) -> Polynomial:
        """Return the sum of `terms`; monomials may repeat and be in any order."""
        collected: dict[Monomial, int] = {}
        for monomial, factor in terms:
            key = tuple(sorted(monomial))
            collected[key] = collected.get(key, 0) + factor
        return cls(tuple(sorted((key, factor) for key, factor in collected.items() if factor)))

    @classmethod
    def constant(cls, value: int) -> Polynomial:
        """Return a number as a polynomial."""
        return cls((((), value),) if value else ())

    @classmethod
    def symbol(cls, number: int) -> Polynomial:
        """Return a polynomial of one symbol."""
        return cls((((number,), 1),))

    def __add__(self, other: Polynomial) -> Polynomial:
        return Polynomial.of((*self.terms, *other.terms))

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + -other

    def __neg__(self) -> Polynomial:
        return Polynomial(tuple((monomial, -factor) for monomial, factor in self.terms))

    def __mul__(self, other: Polynomial) -> Polynomial:
        return Polynomial.of(
            (left + right, left_factor * right_factor)
            for left, left_factor in self.terms
            for right, right_factor in other.terms
        )

    def __bool__(self) -> bool:
        return bool(self.terms)

    def __iter__(self) -> Iterator[Polynomial]:
        """Yield the terms, each a polynomial of its own."""
        return (Polynomial((term,)) for term in self.terms)

    @property
    def symbols(self) -> tuple[int, ...]:
        """The symbols in it, in order."""
        return tuple(sorted({symbol for monomial, _ in self.terms for symbol in monomial}))

    @property
    def value(self) -> int | None:
        """The number, if there is no symbol, else None."""
        if not self.terms:
            return 0
        return self.terms[0][1] if self.terms[0][0] == () and len(self.terms) == 1 else None

    def divided_by(self, divisor: Polynomial) -> Polynomial | None:
        """Return the quotient by `divisor`, a single term, or None.

        It is a polynomial over the integers, so the division is exact for every value.
        """
        if len(divisor.terms) != 1:
            return None
        ((symbols, factor),) = divisor.terms
        quotient: list[tuple[Monomial, int]] = []
        for monomial, coefficient in self.terms:
            rest = list(monomial)
            for symbol in symbols:
                if symbol not in rest:
                    return None
                rest.remove(symbol)
            if coefficient % factor:
                return None
            quotient.append((tuple(rest), coefficient // factor))
        return Polynomial.of(quotient)

    def coefficient_of(self, symbol: int) -> Polynomial | None:
        """Return the coefficient of `symbol`, or None if a term lacks it or squares it."""
        if any(monomial.count(symbol) > 1 for monomial, _ in self.terms):
            return None
        multiples = Polynomial(tuple(term for term in self.terms if symbol in term[0]))
        return multiples.divided_by(Polynomial.symbol(symbol))

    def split(self, belongs: Callable[[int], bool]) -> tuple[Polynomial, Polynomial]:
        """Return the terms with only symbols that belong, and the others."""
        inside = [term for term in self.terms if all(map(belongs, term[0]))]
        outside = [term for term in self.terms if not all(map(belongs, term[0]))]
        return Polynomial(tuple(inside)), Polynomial(tuple(outside))

    def factor(self, belongs: Callable[[int], bool]) -> tuple[Polynomial, Polynomial]:
        """Split a single term into the product of symbols that belong, and the rest."""
        ((monomial, coefficient),) = self.terms
        inside = tuple(symbol for symbol in monomial if belongs(symbol))
        outside = tuple(symbol for symbol in monomial if not belongs(symbol))
        return Polynomial(((inside, 1),)), Polynomial(((outside, coefficient),))

    def renamed(self, names: Mapping[int, int]) -> Polynomial:
        """Return the same polynomial over other symbols; symbols outside of `names` stay."""
        return Polynomial.of(
            (tuple(names.get(symbol, symbol) for symbol in monomial), factor)
            for monomial, factor in self.terms
        )

    def evaluate(self, values: Callable[[int], int]) -> int:
        """Return the value with `values` for the symbols."""
        total = 0
        for monomial, factor in self.terms:
            product = factor
            for symbol in monomial:
                product *= values(symbol)
            total += product
        return total


ZERO = Polynomial()
ONE = Polynomial.constant(1)

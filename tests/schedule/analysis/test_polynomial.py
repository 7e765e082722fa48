"""Polynomials compute the same as their parts, and equal ones are equal everywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.schedule.analysis.polynomial import ONE, ZERO, Polynomial

SYMBOLS = (-2, -1, 0, 1, 2)
polynomials = st.lists(
    st.tuples(st.lists(st.sampled_from(SYMBOLS), max_size=3).map(tuple), st.integers(-4, 4)),
    max_size=4,
).map(Polynomial.of)
points = st.fixed_dictionaries({symbol: st.integers(-6, 6) for symbol in SYMBOLS})


def at(polynomial: Polynomial, point: dict[int, int]) -> int:
    return polynomial.evaluate(point.__getitem__)


@given(polynomials, polynomials, points)
def test_arithmetic_is_that_of_the_values(
    left: Polynomial, right: Polynomial, point: dict[int, int]
) -> None:
    assert at(left + right, point) == at(left, point) + at(right, point)
    assert at(left - right, point) == at(left, point) - at(right, point)
    assert at(left * right, point) == at(left, point) * at(right, point)
    assert at(-left, point) == -at(left, point)


@given(polynomials, polynomials, polynomials)
def test_what_is_equal_is_one_object(first: Polynomial, two: Polynomial, three: Polynomial) -> None:
    assert first * (two + three) == three * first + two * first
    assert hash(first + two - two) == hash(first)
    assert (first - first) == ZERO
    assert first * ONE == first
    assert bool(first) == (first != ZERO)


@given(polynomials, polynomials)
def test_a_quotient_is_exact_or_none(product: Polynomial, factor: Polynomial) -> None:
    for divisor in factor:
        assert (product * divisor).divided_by(divisor) == product
        quotient = product.divided_by(divisor)
        assert quotient is None or quotient * divisor == product
    if len(factor.terms) != 1:
        assert product.divided_by(factor) is None


@given(polynomials, st.sampled_from(SYMBOLS))
def test_a_coefficient_is_what_a_step_of_the_symbol_adds(
    polynomial: Polynomial, symbol: int
) -> None:
    coefficient = polynomial.coefficient_of(symbol)
    linear = all(monomial.count(symbol) <= 1 for monomial, _ in polynomial.terms)
    assert (coefficient is not None) == linear
    if coefficient is not None:
        assert symbol not in coefficient.symbols
        rest = polynomial - coefficient * Polynomial.symbol(symbol)
        assert symbol not in rest.symbols


@given(polynomials)
def test_parts_make_up_the_whole(polynomial: Polynomial) -> None:
    def is_even(symbol: int) -> bool:
        return symbol % 2 == 0

    inside, outside = polynomial.split(is_even)
    assert inside + outside == polynomial
    assert all(map(is_even, inside.symbols))
    assert not any(all(map(is_even, monomial)) for monomial, _ in outside.terms)
    assert sum(polynomial, ZERO) == polynomial
    for term in polynomial:
        even, other = term.factor(is_even)
        assert even * other == term
        assert all(map(is_even, even.symbols))
        assert not any(map(is_even, other.symbols))


@given(polynomials, points)
def test_renamed_symbols_have_each_others_values(
    polynomial: Polynomial, point: dict[int, int]
) -> None:
    swapped = polynomial.renamed({0: 1, 1: 0})
    assert at(swapped, {**point, 0: point[1], 1: point[0]}) == at(polynomial, point)


@pytest.mark.parametrize(
    ("polynomial", "value"),
    [
        (ZERO, 0),
        (Polynomial.constant(-7), -7),
        (Polynomial.symbol(0), None),
        (Polynomial.symbol(0) + ONE, None),
        (Polynomial.symbol(0) - Polynomial.symbol(0) + ONE, 1),
    ],
)
def test_only_a_constant_has_a_value(polynomial: Polynomial, value: int | None) -> None:
    assert polynomial.value == value

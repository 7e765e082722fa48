from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from aotc.ir import gf2

vectors = st.lists(st.integers(0, 63), max_size=7)


def members(basis: list[int]) -> set[int]:
    return set(gf2.span_table(basis))


@given(vectors, st.integers(0, 63))
def test_solve_gives_a_combination_of_independent_vectors(added: list[int], target: int):
    span = gf2.Span(added)
    mask = span.solve(target)
    assert (mask is not None) == (target in members(added)) == (target in span)
    if mask is not None:
        assert gf2.combine(added, mask) == target
        combination = [vector for bit, vector in enumerate(added) if mask >> bit & 1]
        first = gf2.independent(added)
        assert all(vector in first for vector in combination)


@given(vectors, st.integers(0, 63), st.integers(0, 63))
def test_reduce_is_one_representative_of_each_coset(added: list[int], left: int, right: int):
    span = gf2.Span(added)
    same_coset = (left ^ right) in members(added)
    assert (span.reduce(left) == span.reduce(right)) == same_coset


@given(vectors)
def test_rank_counts_the_members(added: list[int]):
    assert 1 << gf2.rank(added) == len(members(added))
    assert members(gf2.independent(added)) == members(added)


@given(vectors, vectors)
def test_intersection_is_a_basis_of_what_both_span(left: list[int], right: list[int]):
    shared = gf2.intersection(left, right)
    assert members(shared) == members(left) & members(right)
    assert gf2.rank(shared) == len(shared)


@given(vectors)
def test_complement_completes_to_the_whole_space(added: list[int]):
    rest = gf2.complement(added, 6)
    assert gf2.rank([*added, *rest]) == 6
    assert len(rest) == 6 - gf2.rank(added)


@given(vectors)
def test_kernel_is_all_masks_that_cancel(columns: list[int]):
    basis = gf2.kernel(columns)
    masks = {mask for mask in range(1 << len(columns)) if gf2.combine(columns, mask) == 0}
    assert members(basis) == masks


@given(vectors)
def test_transpose_turns_columns_into_rows(columns: list[int]):
    rows = gf2.transpose(columns, 6)
    for (r, row), (c, column) in product(enumerate(rows), enumerate(columns)):
        assert row >> c & 1 == column >> r & 1
    assert gf2.transpose(rows, len(columns)) == columns


def test_span_table_counts_through_the_masks():
    assert gf2.span_table([1, 6], 8) == [8, 9, 14, 15]
    assert gf2.span_table([]) == [0]

"""Trees as tables in level order, and tables without a tree."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.ir.expression import parse
from aotc.package.archive.flat_tree import (
    LEAF_BIT,
    FlatBranch,
    FlatTree,
    TreeError,
    depth,
    flatten,
    unflatten,
)
from aotc.package.archive.selection import Branch, Tree
from tests.support.extent import examples

_M, _N = parse("m"), parse("n % 7")

trees = st.recursive(
    st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True).map(tuple),
    lambda inner: st.builds(Branch, st.sampled_from([_M, _N]), st.integers(-9, 9), inner, inner),
    max_leaves=12,
)


def _depth(tree: Tree) -> int:
    return 1 + max(_depth(tree.low), _depth(tree.high)) if isinstance(tree, Branch) else 0


@settings(max_examples=examples(60), deadline=None)
@given(tree=trees)
def test_a_tree_comes_back(tree: Tree) -> None:
    flat = flatten(tree)
    assert unflatten(flat) == tree
    assert len(flat.leaves) == len(flat.branches) + 1
    assert depth(flat.branches) == _depth(tree)


def test_nodes_are_numbered_level_by_level() -> None:
    tree = Branch(_M, 1, Branch(_N, 2, (0,), (1,)), Branch(_M, 3, Branch(_N, 4, (2,), (3,)), (4,)))
    flat = flatten(tree)
    assert flat.features == (_M, _N)
    assert flat.branches == (
        FlatBranch(1, 0, 1, 2),
        FlatBranch(2, 1, LEAF_BIT, LEAF_BIT | 1),
        FlatBranch(3, 0, 3, LEAF_BIT | 2),
        FlatBranch(4, 1, LEAF_BIT | 3, LEAF_BIT | 4),
    )
    assert flat.leaves == ((0,), (1,), (4,), (2,), (3,))


_FLAT = flatten(Branch(_M, 1, Branch(_N, 2, (0,), (1,)), (2,)))


@pytest.mark.parametrize(
    ("number", "fields"),
    [
        (0, {"low": 0}),  # a circle
        (0, {"low": 2}),  # beyond the branches
        (0, {"low": LEAF_BIT}),  # leaves the second branch without a parent
        (0, {"high": 1}),  # a second parent
        (0, {"high": LEAF_BIT | 1}),
        (1, {"low": 0}),
        (1, {"high": LEAF_BIT | 3}),  # beyond the leaves
        (0, {"feature": 1}),  # out of order
        (1, {"feature": 0}),  # in no branch
        (1, {"feature": 2}),
    ],
)
def test_tables_that_are_no_tree(number: int, fields: dict[str, int]) -> None:
    branches = list(_FLAT.branches)
    branches[number] = replace(branches[number], **fields)
    with pytest.raises(TreeError):
        unflatten(replace(_FLAT, branches=tuple(branches)))


def test_leaves_are_one_more_than_branches() -> None:
    for leaves in ((), ((0,), (1,))):
        with pytest.raises(TreeError):
            unflatten(FlatTree((), (), leaves))

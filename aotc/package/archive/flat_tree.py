"""Flatten a selection's tree for the archive: tables without pointers, in level order.

Branches and leaves are numbered level by level from the root. A reader checks the order in one
pass: each child is the next branch or the next leaf. So children come after their parents, and a
tree has one form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aotc.ir.expression import Expression
from aotc.package.archive.selection import Branch, Leaf, Tree

LEAF_BIT = 1 << 31
"""Mark a child reference as a leaf; the other bits are its number."""


class TreeError(ValueError):
    """The tables are not a tree in level order."""


@dataclass(frozen=True, slots=True)
class FlatBranch:
    """A branch: the number of its feature, and references to its children."""

    threshold: int
    feature: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class FlatTree:
    """Features in the order of their first use by branches; one leaf more than branches."""

    features: tuple[Expression, ...]
    branches: tuple[FlatBranch, ...]
    leaves: tuple[Leaf, ...]


def flatten(tree: Tree) -> FlatTree:
    """Return the tables of a tree."""
    features: dict[Expression, int] = {}
    branches: list[FlatBranch] = []
    leaves: list[Leaf] = []
    level: list[Tree] = [tree]
    while level:
        children: list[Tree] = []
        inner = [node for node in level if isinstance(node, Branch)]
        leaves += [node for node in level if not isinstance(node, Branch)]
        branch_at, leaf_at = len(branches) + len(inner), len(leaves)
        for branch in inner:
            references: list[int] = []
            for child in (branch.low, branch.high):
                if isinstance(child, Branch):
                    references.append(branch_at)
                    branch_at += 1
                else:
                    references.append(LEAF_BIT | leaf_at)
                    leaf_at += 1
                children.append(child)
            feature = features.setdefault(branch.feature, len(features))
            branches.append(FlatBranch(branch.threshold, feature, *references))
        level = children
    return FlatTree(tuple(features), tuple(branches), tuple(leaves))


def unflatten(flat: FlatTree) -> Tree:
    """Invert `flatten`.

    Raises: `TreeError` for tables that `flatten` cannot return.
    """
    next_branch, next_leaf, num_features = 1, 0, 0
    for number, branch in enumerate(flat.branches):
        if number >= next_branch:
            raise TreeError("a branch has no parent")
        if branch.feature > num_features or branch.feature >= len(flat.features):
            raise TreeError("features are not in the order of the branches")
        num_features = max(num_features, branch.feature + 1)
        for child in (branch.low, branch.high):
            if child == next_branch and next_branch < len(flat.branches):
                next_branch += 1
            elif child == LEAF_BIT | next_leaf:
                next_leaf += 1
            else:
                raise TreeError("a child is neither the next branch nor the next leaf")
    if num_features != len(flat.features):
        raise TreeError("a feature is in no branch")
    if len(flat.leaves) != len(flat.branches) + 1:
        raise TreeError("there is not one leaf more than branches")
    return _build_tree(flat)


def _build_tree(flat: FlatTree) -> Tree:
    nodes: dict[int, Tree] = {
        LEAF_BIT | leaf_number: leaf for leaf_number, leaf in enumerate(flat.leaves)
    }
    for number in reversed(range(len(flat.branches))):
        branch = flat.branches[number]
        nodes[number] = Branch(
            flat.features[branch.feature], branch.threshold, nodes[branch.low], nodes[branch.high]
        )
    return nodes[0] if flat.branches else flat.leaves[0]


def depth(branches: Sequence[FlatBranch]) -> int:
    """Return the greatest number of branches on a path to a leaf."""
    depths = [1] * len(branches)
    for number in reversed(range(len(branches))):
        children = (branches[number].low, branches[number].high)
        inner = [depths[child] for child in children if child < LEAF_BIT]
        depths[number] = 1 + max(inner, default=0)
    return max(depths[:1], default=0)

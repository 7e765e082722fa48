"""Select a launch's config with a decision tree over its arguments.

A tree is fitted from measured or estimated times (`fit.py`) and stored in the archive's index. The
index's limits (`layout.LIMITS`) bound its depth, features and leaves. The runtime tries the configs
of the leaf in order, then all others in the manifest's order.

Invariant: a selection never makes a launch fail. Guards decide whether a config may run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from aotc.ir.expression import Expression, ExpressionError, evaluate

ANY_GPU = ""


@dataclass(frozen=True, slots=True)
class Branch:
    """A comparison: `low` where `feature <= threshold`, else `high`.

    A feature without a value, such as a division by zero, goes to `high`. The threshold is below
    2^63 - 1, the greatest value.
    """

    feature: Expression
    threshold: int
    low: Tree
    high: Tree


Leaf: TypeAlias = tuple[int, ...]
"""Indices into the kernel's configs, the best first: at least one, none twice."""

Tree: TypeAlias = Branch | Leaf


@dataclass(frozen=True, slots=True)
class Selection:
    """The tree for launches of one combination of types and choices on one kind of GPU.

    `gpu` is the driver's name for it, such as "NVIDIA H200", or `ANY_GPU`. The runtime prefers the
    selection with the GPU's own name to one for any GPU of the target.
    """

    target: str
    gpu: str
    combination: int
    tree: Tree


def leaf_of(tree: Tree, values: Mapping[str, int]) -> Leaf:
    """Return the leaf for the values of a launch, extents as "x.shape[0]", as the runtime finds it."""
    while isinstance(tree, Branch):
        try:
            is_low = evaluate(tree.feature, values) <= tree.threshold
        except ExpressionError:
            is_low = False
        tree = tree.low if is_low else tree.high
    return tree

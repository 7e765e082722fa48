"""The config that a launch takes, as a decision tree over its arguments.

A tree is fitted from times, measured or estimated (`fit.py`), and stored in the archive's index,
whose limits (`records.LIMITS`) bound its depth, its features and its leaves. The runtime tries the
configs of the leaf in order, then all others in the manifest's order.

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

    A feature that cannot be evaluated, such as a division by zero, goes to `high`. The threshold is
    below 2^63 - 1, under which every value is.
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

    `gpu` is the name that the driver reports, such as "NVIDIA H200", or `ANY_GPU`. The runtime takes
    the selection with the GPU's own name before one for any GPU of the target.
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

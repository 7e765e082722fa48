"""Grow a decision tree over launches from the losses of configs.

A tree is grown from the top. Each branch is the comparison with the least loss if both sides take
one config each. Loss is the logarithm of a config's time over the best one's. Growth ends where one
config is within the limit of each launch, so a measured launch gets its best config.

Invariant: equal samples give equal trees. Losses are integers, so no sum depends on the machine.
"""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from aotc.ir.expression import INT64_MAX, Expression
from aotc.package.archive.selection import Branch, Leaf, Tree

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_DEPTH = 16
MAX_BRANCHES = 255
MAX_LEAF_CONFIGS = 4

LOSS_UNIT = 1e6

Integers: TypeAlias = "NDArray[np.int64]"


@dataclass(frozen=True, slots=True)
class Samples:
    """Losses of configs, a row for each launch, weighted and unweighted, and the features of the launches.

    `limits` is, for each launch, the loss up to which a config is as good as the best. `unguarded`
    configs are valid for every launch.
    """

    configs: tuple[int, ...]
    unguarded: frozenset[int]
    losses: Integers
    weighted: Integers
    limits: Integers
    features: tuple[tuple[Expression, Integers], ...]


class _Split(NamedTuple):
    """A branch's comparison and the criteria of its choice: the smallest is the best."""

    loss: int
    larger_side: int
    feature: int
    gap: float
    threshold: int


@dataclass(slots=True)
class _Node:
    """Launches with the same path from the root, and the branch that splits them, if any."""

    rows: Integers
    depth: int
    split: _Split | None = None
    sides: list[_Node] = field(default_factory=list["_Node"])


def grow(samples: Samples) -> Tree:
    """Grow a tree, splitting the node with most loss first."""
    import numpy as np  # noqa: PLC0415 - start-up time

    root = _Node(np.arange(len(samples.losses)), 0)
    order = itertools.count()
    open_nodes = [(0, next(order), root)]
    num_branches = 0
    while open_nodes and num_branches < MAX_BRANCHES:
        _, _, node = heapq.heappop(open_nodes)
        if _is_pure(samples, node.rows) or node.depth == MAX_DEPTH:
            continue
        node.split = _best_split(samples, node)
        if node.split is None:
            continue
        num_branches += 1
        values = samples.features[node.split.feature][1][node.rows]
        is_low = values <= node.split.threshold
        for side in (node.rows[is_low], node.rows[~is_low]):
            node.sides.append(_Node(side, node.depth + 1))
            loss = int(samples.weighted[side].sum(axis=0).min())
            heapq.heappush(open_nodes, (-loss, next(order), node.sides[-1]))
    return _tree(samples, root)


def _is_pure(samples: Samples, rows: Integers) -> bool:
    """Return whether one config is within the limits of all launches."""
    return bool(_within(samples, rows).any())


def _within(samples: Samples, rows: Integers) -> NDArray[np.bool_]:
    """Return a mask of the configs within the limits of all launches."""
    import numpy as np  # noqa: PLC0415 - start-up time

    return np.asarray((samples.losses[rows] <= samples.limits[rows][:, None]).all(axis=0))


def _best_split(samples: Samples, node: _Node) -> _Split | None:
    """Return the comparison with the least loss, None if no feature separates the launches.

    Of those with nearly the least loss, take the most even one, then the simplest feature.
    """
    import numpy as np  # noqa: PLC0415 - start-up time

    weighted = samples.weighted[node.rows]
    total = weighted.sum(axis=0)
    # Neither side may have more launches than the levels below can separate.
    most = 1 << (MAX_DEPTH - node.depth - 1)
    least = max(1, len(node.rows) - most)
    splits: list[_Split] = []
    for number, (_, values) in enumerate(samples.features):
        ordered = values[node.rows]
        order = np.argsort(ordered, kind="stable")
        ordered = ordered[order]
        (ends,) = np.nonzero(ordered[:-1] < ordered[1:])
        ends = ends[(ends + 1 >= least) & (ends + 1 <= most)]
        if len(ends):
            low = np.cumsum(weighted[order], axis=0)[ends]
            losses = low.min(axis=1) + (total - low).min(axis=1)
            for end, loss in zip(ends.tolist(), losses.tolist(), strict=True):
                below, above = int(ordered[end]), int(ordered[end + 1])
                side = max(end + 1, len(order) - end - 1)
                middle = _middle(below, above)
                splits.append(_Split(loss, side, number, -_gap(below, above), middle))
    if not splits:
        return None
    limit = min(splits).loss + int(total.min()) // 100
    return min((s for s in splits if s.loss <= limit), key=lambda s: s[1:])


def _gap(below: int, above: int) -> float:
    """Return the distance of two values, as a ratio where both are positive."""
    return above / below if below > 0 else float(above - below + 1)


def _middle(below: int, above: int) -> int:
    """Return the geometric middle of two values where they are positive, at least `below`."""
    if above == INT64_MAX:
        return below  # no value lies above: the feature has no value there
    return math.isqrt(below * above) if below > 0 else (below + above) // 2


def _tree(samples: Samples, node: _Node) -> Tree:
    if node.split is None:
        return _leaf(samples, node.rows)
    low, high = (_tree(samples, side) for side in node.sides)
    if low == high:
        return low
    return Branch(samples.features[node.split.feature][0], node.split.threshold, low, high)


def _leaf(samples: Samples, rows: Integers) -> Leaf:
    """Order the configs by their loss, up to the first one valid for every launch.

    If none of the best is valid for all, the best such config is the last.
    """
    within = _within(samples, rows).tolist()
    sums = samples.weighted[rows].sum(axis=0).tolist()
    order = sorted(range(len(sums)), key=lambda c: (not within[c], sums[c], samples.configs[c]))
    first, rest = order[0], sorted(order[1:], key=lambda c: (sums[c], samples.configs[c]))
    configs = [samples.configs[column] for column in (first, *rest)]
    always = next(
        (position for position, config in enumerate(configs) if config in samples.unguarded), None
    )
    if always is None:
        return tuple(configs[:MAX_LEAF_CONFIGS])
    before = configs[: min(always, MAX_LEAF_CONFIGS - 1)]
    return (*before, configs[always])

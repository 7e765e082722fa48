"""Fit decision trees that select a config to the times of a kernel's configs.

A tree is grown from the top: each branch is the comparison that leaves the least loss when both of its
sides take one config each. Loss is the logarithm of a config's time over the best one's. Growth ends where
one config is within `TOLERANCE` of the best at every measured launch, so a measured launch gets its best
config. Between measured launches a threshold lies at the geometric middle: the nearest bucket.

Invariant: equal inputs give equal trees. Losses are integers, so no sum depends on the machine.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from aotc.ir import expression
from aotc.ir.expression import INT64_MAX, Binary, Expression, ExpressionError, Integer
from aotc.package import index
from aotc.package.tuning.selection import Branch, Leaf, Selection, Tree
from aotc.package.tuning.table import KernelTuning, Measurement

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_DEPTH = 16
MAX_BRANCHES = 255
MAX_LEAF_CONFIGS = 4

TOLERANCE = 0.015
"""Relative loss at a measured launch for which a tree grows no further."""

_DROPPED = 0.5
"""Least relative loss of a config without a time: tuning dropped it early, as far from the best."""

_LOSS_UNIT = 1e6
_MAX_GRIDS = 8
_MAX_ARGUMENTS_OF_TRIPLES = 4

_Integers: TypeAlias = "NDArray[np.int64]"


def fit(tuning: KernelTuning, kernel: index.Kernel) -> tuple[Selection, ...]:
    """Return the selection of each measured combination, in order of combinations.

    Configs, types and arguments that the kernel no longer has are left out.
    """
    configs = _matching_configs(tuning, kernel)
    groups: dict[int, list[Measurement]] = {}
    for measurement in tuning.measurements:
        number = _combination(measurement, kernel)
        if number is not None:
            groups.setdefault(number, []).append(measurement)
    selections: list[Selection] = []
    for number, measurements in sorted(groups.items()):
        variants = [
            variant
            for variant in kernel.variants
            if variant.target == tuning.target
            and index.combination(kernel, variant.types, variant.choices) == number
        ]
        tree = _fit_tree(measurements, configs, variants, kernel)
        if tree is not None:
            selections.append(Selection(tuning.target, tuning.gpu, number, tree))
    return tuple(selections)


def select(tree: Tree, values: dict[str, int]) -> Leaf:
    """Return the leaf for a launch; what the runtime does, for tests and reports."""
    while isinstance(tree, Branch):
        try:
            is_low = expression.evaluate(tree.feature, values) <= tree.threshold
        except ExpressionError:
            is_low = False
        tree = tree.low if is_low else tree.high
    return tree


# ------------------------------------------------------------------------ what is measured, by kernel


def _matching_configs(tuning: KernelTuning, kernel: index.Kernel) -> dict[int, int]:
    """Map configs of the tuning that may be taken to those of the kernel."""
    positions = {_typed(config): at for at, config in enumerate(kernel.configs)}
    matches = {i: positions.get(_typed(c.items())) for i, c in enumerate(tuning.configs)}
    return {i: at for i, at in matches.items() if at is not None and i not in tuning.rejected}


def _typed(config: Iterable[tuple[str, index.Value]]) -> tuple[object, ...]:
    return tuple(sorted((name, *index.value_key(value)) for name, value in config))


def _combination(measurement: Measurement, kernel: index.Kernel) -> int | None:
    """Number the types and choices of a measurement; None if the kernel has no such ones."""
    try:
        types = tuple(measurement.types[variable.name] for variable in kernel.type_variables)
        choices = tuple(measurement.choices[choice.name] for choice in kernel.choices)
        return index.combination(kernel, types, choices)
    except (KeyError, index.ArchiveError):
        return None


@dataclass(frozen=True, slots=True)
class _Samples:
    """Losses of configs, a row a launch, weighted and bare, and the features of the launches."""

    configs: tuple[int, ...]
    losses: _Integers
    weighted: _Integers
    features: tuple[tuple[Expression, _Integers], ...]


def _fit_tree(
    measurements: Sequence[Measurement],
    configs: dict[int, int],
    variants: Sequence[index.Variant],
    kernel: index.Kernel,
) -> Tree | None:
    """Return the tree of one combination; None if nothing is measured of its variants."""
    import numpy as np  # noqa: PLC0415 - start-up time

    built = {variant.config for variant in variants}
    columns = {i: at for i, at in configs.items() if at in built}
    rows: list[list[int]] = []
    weights: list[float] = []
    launches: list[dict[str, int]] = []
    for measurement in _merged(measurements):
        losses = _losses([measurement.seconds[i] for i in columns])
        if losses:
            rows.append(losses)
            weights.append(max(measurement.weight, 0.0))
            launches.append(dict(measurement.key))
    if not rows:
        return None
    mean = math.fsum(weights) / len(weights)
    scaled = [
        [round(loss * (w / mean if mean else 1.0)) for loss in row]
        for row, w in zip(rows, weights, strict=True)
    ]
    samples = _Samples(
        tuple(columns.values()),
        np.array(rows, np.int64),
        np.array(scaled, np.int64),
        _features(launches, variants, kernel),
    )
    return _grow(samples, _unguarded(variants))


def _merged(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Return the last measurement of each launch: a later run replaces an earlier one."""
    return list({tuple(sorted(m.key.items())): m for m in measurements}.values())


def _losses(seconds: Sequence[float | None]) -> list[int]:
    """Return how much longer each config takes than the best, or an empty list if none is timed."""
    timed = [time for time in seconds if time is not None and 0 < time < math.inf]
    if not timed:
        return []
    best, worst = min(timed), max(timed)
    missing = max(math.log1p(_DROPPED), math.log(worst / best))
    logs = [
        math.log(time / best) if time is not None and 0 < time < math.inf else missing
        for time in seconds
    ]
    return [round(_LOSS_UNIT * log) for log in logs]


def _unguarded(variants: Sequence[index.Variant]) -> frozenset[int]:
    """Return the configs that every launch can take, as far as guards decide."""
    least = min(len(variant.guards) for variant in variants)
    return frozenset(
        variant.config
        for variant in variants
        if variant.condition is None and len(variant.guards) == least
    )


# -------------------------------------------------------------------------------------- features


def _features(
    launches: Sequence[dict[str, int]], variants: Sequence[index.Variant], kernel: index.Kernel
) -> tuple[tuple[Expression, _Integers], ...]:
    """Return expressions that tell launches apart and their values, the simplest first.

    They are the arguments, the number of programs under each config, and products of arguments.
    Of expressions that order the launches alike, the first is kept.
    """
    import numpy as np  # noqa: PLC0415 - start-up time

    params = {param.name for param in kernel.params}
    names = sorted(name for name in launches[0] if all(name in launch for launch in launches))
    arguments = [
        argument
        for argument in map(expression.parse, names)
        if set(expression.free_names(argument)) <= params
        and len({expression.evaluate(argument, launch) for launch in launches}) > 1
    ]
    candidates = [*arguments, *_programs(variants)]
    candidates += [Binary("*", a, b) for a, b in itertools.combinations(arguments, 2)]
    if len(arguments) <= _MAX_ARGUMENTS_OF_TRIPLES:
        triples = itertools.combinations(arguments, 3)
        candidates += [Binary("*", Binary("*", a, b), c) for a, b, c in triples]
    features: dict[bytes, tuple[Expression, _Integers]] = {}
    for candidate in candidates:
        values = np.array([_value(candidate, launch) for launch in launches], np.int64)
        distinct, ranks = np.unique(values, return_inverse=True)
        if len(distinct) > 1:
            features.setdefault(ranks.astype(np.int32).tobytes(), (candidate, values))
    return tuple(features.values())


def _programs(variants: Sequence[index.Variant]) -> list[Expression]:
    """Return the number of programs of a launch under each config, without repeats."""
    products: dict[Expression, None] = {}
    for variant in sorted(variants, key=lambda variant: variant.config):
        axes = [axis for axis in variant.grid if axis != Integer(1)]
        if axes:
            product = axes[0]
            for axis in axes[1:]:
                product = Binary("*", product, axis)
            products.setdefault(product)
    return list(products)[:_MAX_GRIDS]


def _value(feature: Expression, launch: dict[str, int]) -> int:
    """Evaluate a feature; one that cannot be evaluated is above all thresholds."""
    try:
        return expression.evaluate(feature, launch)
    except ExpressionError:
        return INT64_MAX


# --------------------------------------------------------------------------------------- growing


class _Split(NamedTuple):
    """A branch's comparison and what it is chosen by: the smallest is the best."""

    loss: int
    gap: float
    feature: int
    threshold: int


@dataclass(slots=True)
class _Node:
    """Launches that take the same way down, and the branch that parts them, if any."""

    rows: _Integers
    depth: int
    split: _Split | None = None
    sides: list[_Node] = field(default_factory=list["_Node"])


def _grow(samples: _Samples, unguarded: frozenset[int]) -> Tree:
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
    return _tree(samples, root, unguarded)


def _is_pure(samples: _Samples, rows: _Integers) -> bool:
    """Return whether one config is within the tolerance of the best at each launch."""
    limit = _LOSS_UNIT * math.log1p(TOLERANCE)
    return bool((samples.losses[rows].max(axis=0) <= limit).any())


def _best_split(samples: _Samples, node: _Node) -> _Split | None:
    """Return the comparison that leaves the least loss, None if nothing tells the launches apart.

    Of those that leave about as little, the one with the widest gap between launches is taken.
    """
    import numpy as np  # noqa: PLC0415 - start-up time

    weighted = samples.weighted[node.rows]
    total = weighted.sum(axis=0)
    # Neither side may have more launches than the levels below can tell apart.
    most = 1 << (MAX_DEPTH - node.depth - 1)
    least = max(1, len(node.rows) - most)
    splits: list[_Split] = []
    for number, (_, values) in enumerate(samples.features):
        own = values[node.rows]
        order = np.argsort(own, kind="stable")
        own = own[order]
        (ends,) = np.nonzero(own[:-1] < own[1:])
        ends = ends[(ends + 1 >= least) & (ends + 1 <= most)]
        if len(ends):
            low = np.cumsum(weighted[order], axis=0)[ends]
            losses = low.min(axis=1) + (total - low).min(axis=1)
            for end, loss in zip(ends.tolist(), losses.tolist(), strict=True):
                below, above = int(own[end]), int(own[end + 1])
                splits.append(_Split(loss, -_gap(below, above), number, _middle(below, above)))
    if not splits:
        return None
    limit = min(splits).loss + int(total.min()) // 100
    return min((s for s in splits if s.loss <= limit), key=lambda s: (s.gap, s.loss, s.feature))


def _gap(below: int, above: int) -> float:
    """Return the distance of two values, as a ratio where both are positive."""
    return above / below if below > 0 else float(above - below + 1)


def _middle(below: int, above: int) -> int:
    """Return the geometric middle of two values where they are positive, at least `below`."""
    if above == INT64_MAX:
        return below  # no value lies above: the feature cannot be evaluated there
    return math.isqrt(below * above) if below > 0 else (below + above) // 2


def _tree(samples: _Samples, node: _Node, unguarded: frozenset[int]) -> Tree:
    if node.split is None:
        return _leaf(samples, node.rows, unguarded)
    low, high = (_tree(samples, side, unguarded) for side in node.sides)
    if low == high:
        return low
    return Branch(samples.features[node.split.feature][0], node.split.threshold, low, high)


def _leaf(samples: _Samples, rows: _Integers, unguarded: frozenset[int]) -> Leaf:
    """Order the configs by their loss; the first that every launch can take is the last.

    If none of the best is one, the best such config is the last.
    """
    limit = _LOSS_UNIT * math.log1p(TOLERANCE)
    worst = samples.losses[rows].max(axis=0).tolist()
    sums = samples.weighted[rows].sum(axis=0).tolist()
    order = sorted(range(len(sums)), key=lambda c: (worst[c] > limit, sums[c], samples.configs[c]))
    first, rest = order[0], sorted(order[1:], key=lambda c: (sums[c], samples.configs[c]))
    configs = [samples.configs[column] for column in (first, *rest)]
    always = next((at for at, config in enumerate(configs) if config in unguarded), None)
    if always is None:
        return tuple(configs[:MAX_LEAF_CONFIGS])
    before = configs[: min(always, MAX_LEAF_CONFIGS - 1)]
    return (*before, configs[always])

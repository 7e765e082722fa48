"""Apply tuning to an archive: pack its selections, and leave out unused configs.

Selections are fitted from the measurements of a tuning table. The cost model's estimates, for every
GPU of a target, are added to them.

Invariant: for any table, every launch with a variant still has one afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from aotc.metadata import Metadata
from aotc.package.archive.flat_tree import depth, flatten
from aotc.package.archive.index import (
    Archive,
    Kernel,
    Variant,
    combination,
    guard_mask,
    selection_key,
    value_key,
)
from aotc.package.archive.label import value_text
from aotc.package.archive.layout import LIMITS
from aotc.package.archive.selection import Branch, Leaf, Selection, Tree
from aotc.package.tuning.table import KernelTuning, TuningTable

_MAX_NAMED = 4


def fitted(
    kernel: Kernel, table: TuningTable, metadata: Sequence[Metadata] = ()
) -> tuple[Selection, ...]:
    """Return a kernel's selections fitted to its measurements.

    With the variants' `metadata`, estimates choose the config between the measured launches.
    """
    tunings = [t for t in table.kernels if t.kernel == kernel.name and t.target in kernel.targets]
    if not tunings:
        return ()
    from aotc.package.tuning.cost_model import TargetEstimates  # noqa: PLC0415 - loads NumPy
    from aotc.package.tuning.fit import fit  # noqa: PLC0415 - loads NumPy

    works = [variant_metadata.work for variant_metadata in metadata]
    selections: list[Selection] = []
    for tuning in tunings:
        estimates = TargetEstimates(kernel, works, tuning.target) if works else None
        selections += fit(tuning, kernel, estimates)
    return tuple(selections)


def estimated(kernel: Kernel, metadata: Sequence[Metadata]) -> tuple[Selection, ...]:
    """Return a kernel's selections from the cost model, for every GPU of each target."""
    if len(kernel.configs) == 1:
        return ()
    from aotc.package.tuning import cost_model  # noqa: PLC0415 - loads NumPy

    return cost_model.selections(kernel, [variant_metadata.work for variant_metadata in metadata])


def joined(*groups: Iterable[Selection]) -> tuple[Selection, ...]:
    """Join selections; of several for the same launches the last one wins.

    A tree too large for the format is left out: launches go on without it.
    """
    storable = (
        selection for group in groups for selection in group if _is_storable(selection.tree)
    )
    return tuple({selection_key(selection): selection for selection in storable}.values())


def _is_storable(tree: Tree) -> bool:
    flat = flatten(tree)
    longest = max(map(len, flat.leaves))
    return (
        len(flat.features) <= LIMITS.features
        and depth(flat.branches) <= LIMITS.tree_depth
        and longest <= LIMITS.leaf_configs
    )


def with_selections(archive: Archive, table: TuningTable) -> Archive:
    """Return an archive with a table's selections replacing those for the same kernels and GPUs."""
    tuned = {(tuning.kernel, tuning.target, tuning.gpu) for tuning in table.kernels}

    def changed(kernel: Kernel) -> Kernel:
        untouched = (s for s in kernel.selections if (kernel.name, s.target, s.gpu) not in tuned)
        return replace(kernel, selections=joined(untouched, fitted(kernel, table)))

    return replace(archive, kernels=tuple(map(changed, archive.kernels)))


def stale(table: TuningTable, kernels: Sequence[Kernel], names: Iterable[str]) -> list[str]:
    """Return a line for each mismatch between a table and the kernels.

    `names` are all existing kernels, also ones not built.
    """
    built = {kernel.name: kernel for kernel in kernels}
    unknown = dict.fromkeys(t.kernel for t in table.kernels if t.kernel not in {*names, *built})
    lines = [f"the tuning table has kernel {name!r}, which there is not" for name in unknown]
    for tuning in table.kernels:
        kernel = built.get(tuning.kernel)
        if kernel is not None:
            lines += _stale(tuning, kernel)
    return lines


def _stale(tuning: KernelTuning, kernel: Kernel) -> list[str]:
    subject = f"the tuning table has {tuning.kernel!r} for {tuning.gpu or tuning.target} with"
    current = {_typed(config) for config in kernel.configs}
    missing = [config for config in tuning.configs if _typed(config.items()) not in current]
    lines: list[str] = []
    if missing:
        named = [" ".join(f"{k}={value_text(v)}" for k, v in config.items()) for config in missing]
        more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
        listed = "; ".join(named[:_MAX_NAMED])
        lines.append(f"{subject} configs that it does not have: {listed}{more}")
    return lines


def _typed(config: Iterable[tuple[str, bool | int | float | str | None]]) -> tuple[object, ...]:
    """Return a config as a key without its order; None equals a missing entry."""
    return tuple(sorted((name, *value_key(value)) for name, value in config if value is not None))


def only_tuned(kernel: Kernel) -> Kernel:
    """Return a kernel without the variants that no selection's leaf ranks first.

    Variants stay if some launches have no other: no remaining variant has weaker guards and
    conditions. Combinations without a selection stay unchanged.
    """
    first: dict[tuple[str, int], set[int]] = {}
    for selection in kernel.selections:
        key = selection.target, selection.combination
        first.setdefault(key, set()).update(leaf[0] for leaf in _leaves(selection.tree))
    groups: dict[tuple[str, int], list[Variant]] = {}
    for variant in kernel.variants:
        number = combination(kernel, variant.types, variant.choices)
        groups.setdefault((variant.target, number), []).append(variant)
    required = {
        key: _required_configs(group, first[key]) if key in first else {v.config for v in group}
        for key, group in groups.items()
    }
    variants = tuple(v for key, group in groups.items() for v in group if v.config in required[key])
    selections = tuple(
        replace(
            old_selection,
            tree=_prune(
                old_selection.tree, required[old_selection.target, old_selection.combination]
            ),
        )
        for old_selection in kernel.selections
        if (old_selection.target, old_selection.combination) in groups
    )
    return replace(kernel, variants=variants, selections=selections)


def _required_configs(variants: Sequence[Variant], first: set[int]) -> set[int]:
    """Return the configs ranked first, and more for launches that these do not serve."""
    configs = {variant.config for variant in variants if variant.config in first}
    masks = [guard_mask(v.guards) for v in variants if v.config in configs and v.condition is None]
    order = sorted(
        (variant for variant in variants if variant.config not in configs),
        key=lambda v: (v.condition is not None, guard_mask(v.guards).bit_count(), v.config),
    )
    for variant in order:
        guards = guard_mask(variant.guards)
        if not any(mask & ~guards == 0 for mask in masks):
            configs.add(variant.config)
            masks += [guards] if variant.condition is None else []
    return configs


def _leaves(tree: Tree) -> list[Leaf]:
    if isinstance(tree, Branch):
        return [*_leaves(tree.low), *_leaves(tree.high)]
    return [tree]


def _prune(tree: Tree, configs: set[int]) -> Tree:
    """Return a tree with only `configs` in its leaves; the first of each leaf is among them."""
    if isinstance(tree, Branch):
        return replace(tree, low=_prune(tree.low, configs), high=_prune(tree.high, configs))
    return tuple(config for config in tree if config in configs)

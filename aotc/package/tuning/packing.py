"""What tuning makes of an archive: the selections that it packs, and the configs that it leaves out.

Selections are fitted from the measurements of a tuning table. The cost model's estimates, which are for
every GPU of a target, stand beside them.

Invariant: whatever the table says, every launch that had a variant has one afterwards.
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
    """Return the selections of a kernel that its measurements say.

    With the variants' `metadata`, estimates say which config to take between the measured launches.
    """
    own = [t for t in table.kernels if t.kernel == kernel.name and t.target in kernel.targets]
    if not own:
        return ()
    from aotc.package.tuning.cost_model import TargetEstimates  # noqa: PLC0415 - loads NumPy
    from aotc.package.tuning.fit import fit  # noqa: PLC0415 - loads NumPy

    works = [each.work for each in metadata]
    selections: list[Selection] = []
    for tuning in own:
        estimates = TargetEstimates(kernel, works, tuning.target) if works else None
        selections += fit(tuning, kernel, estimates)
    return tuple(selections)


def estimated(kernel: Kernel, metadata: Sequence[Metadata]) -> tuple[Selection, ...]:
    """Return the selections of a kernel that the cost model says, for every GPU of each target."""
    if len(kernel.configs) == 1:
        return ()
    from aotc.package.tuning import cost_model  # noqa: PLC0415 - loads NumPy

    return cost_model.selections(kernel, [each.work for each in metadata])


def joined(*groups: Iterable[Selection]) -> tuple[Selection, ...]:
    """Return all selections; of several for the same launches the last one.

    A tree that the format cannot hold is left out: launches go on without it.
    """
    storable = (each for group in groups for each in group if _is_storable(each.tree))
    return tuple({selection_key(each): each for each in storable}.values())


def _is_storable(tree: Tree) -> bool:
    flat = flatten(tree)
    longest = max(map(len, flat.leaves))
    return (
        len(flat.features) <= LIMITS.features
        and depth(flat.branches) <= LIMITS.tree_depth
        and longest <= LIMITS.leaf_configs
    )


def with_selections(archive: Archive, table: TuningTable) -> Archive:
    """Return an archive with a table's selections in place of those for the same kernels and GPUs."""
    tuned = {(each.kernel, each.target, each.gpu) for each in table.kernels}

    def changed(kernel: Kernel) -> Kernel:
        kept = (s for s in kernel.selections if (kernel.name, s.target, s.gpu) not in tuned)
        return replace(kernel, selections=joined(kept, fitted(kernel, table)))

    return replace(archive, kernels=tuple(map(changed, archive.kernels)))


# ------------------------------------------------------------------------ tables that do not fit


def stale(table: TuningTable, kernels: Sequence[Kernel], names: Iterable[str]) -> list[str]:
    """Return what a table says of kernels that are not so any more, a line each.

    `names` are those of all kernels that there are, also of what is not built.
    """
    found = {kernel.name: kernel for kernel in kernels}
    unknown = dict.fromkeys(t.kernel for t in table.kernels if t.kernel not in {*names, *found})
    lines = [f"the tuning table has kernel {name!r}, which there is not" for name in unknown]
    for tuning in table.kernels:
        kernel = found.get(tuning.kernel)
        if kernel is not None:
            lines += _stale(tuning, kernel)
    return lines


def _stale(tuning: KernelTuning, kernel: Kernel) -> list[str]:
    what = f"the tuning table has {tuning.kernel!r} for {tuning.gpu or tuning.target} with"
    known = {_typed(config) for config in kernel.configs}
    gone = [config for config in tuning.configs if _typed(config.items()) not in known]
    lines: list[str] = []
    if gone:
        named = [" ".join(f"{k}={value_text(v)}" for k, v in config.items()) for config in gone]
        more = f" and {len(gone) - _MAX_NAMED} more" if len(gone) > _MAX_NAMED else ""
        listed = "; ".join(named[:_MAX_NAMED])
        lines.append(f"{what} configs that it does not have: {listed}{more}")
    return lines


def _typed(config: Iterable[tuple[str, bool | int | float | str | None]]) -> tuple[object, ...]:
    """Return a config without its order; keys without a value are those that are left out."""
    return tuple(sorted((name, *value_key(value)) for name, value in config if value is not None))


# ------------------------------------------------------------------------ what is not selected


def only_tuned(kernel: Kernel) -> Kernel:
    """Return a kernel without the variants that no leaf of a selection names first.

    Those stay of which some launches have no other: with guards and conditions that none of the others
    does without. What no selection is for stays as it is.
    """
    first: dict[tuple[str, int], set[int]] = {}
    for selection in kernel.selections:
        key = selection.target, selection.combination
        first.setdefault(key, set()).update(leaf[0] for leaf in _leaves(selection.tree))
    groups: dict[tuple[str, int], list[Variant]] = {}
    for variant in kernel.variants:
        number = combination(kernel, variant.types, variant.choices)
        groups.setdefault((variant.target, number), []).append(variant)
    kept = {
        key: _needed(group, first[key]) if key in first else {v.config for v in group}
        for key, group in groups.items()
    }
    variants = tuple(v for key, group in groups.items() for v in group if v.config in kept[key])
    selections = tuple(
        replace(each, tree=_pruned(each.tree, kept[each.target, each.combination]))
        for each in kernel.selections
        if (each.target, each.combination) in groups
    )
    return replace(kernel, variants=variants, selections=selections)


def _needed(variants: Sequence[Variant], first: set[int]) -> set[int]:
    """Return the configs that are named first, and those that serve what these do not."""
    kept = {variant.config for variant in variants if variant.config in first}
    masks = [guard_mask(v.guards) for v in variants if v.config in kept and v.condition is None]
    order = sorted(
        (variant for variant in variants if variant.config not in kept),
        key=lambda v: (v.condition is not None, guard_mask(v.guards).bit_count(), v.config),
    )
    for variant in order:
        needed = guard_mask(variant.guards)
        if not any(mask & ~needed == 0 for mask in masks):
            kept.add(variant.config)
            masks += [needed] if variant.condition is None else []
    return kept


def _leaves(tree: Tree) -> list[Leaf]:
    if isinstance(tree, Branch):
        return [*_leaves(tree.low), *_leaves(tree.high)]
    return [tree]


def _pruned(tree: Tree, kept: set[int]) -> Tree:
    """Return a tree whose leaves have only configs that are kept; the first of each leaf is."""
    if isinstance(tree, Branch):
        return replace(tree, low=_pruned(tree.low, kept), high=_pruned(tree.high, kept))
    return tuple(config for config in tree if config in kept)

"""Revise guessed lines of a table until its kernel builds, then drop values that fail.

A change is kept if the kernel compiles, or if its first error moves further down the source. The
number of tries is bounded. `settle` uses one value per axis; `widen` tries the others.

Invariant: once `settle` returns None, the first values of all axes build together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from aotc.ir.diagnostics import DiagnosticError
from aotc.package.init.alternatives import (
    Change,
    choice_changes,
    computed_changes,
    launch_changes,
    smaller_changes,
    type_changes,
    value_changes,
)
from aotc.package.init.draft import Axis, Draft, as_list
from aotc.package.init.trial import Problem, Stage, Trial
from aotc.package.manifest.variant_grid import VariantSpec

_MAX_TRIES = 240
_MAX_COMPILES = 8
_MAX_LAUNCHES = 16
_MAX_ELEMENTS = 128 * 256  # of a tile with guessed sizes
_MAX_CHECKED = 64  # type-check every variant of tables up to this many

_SHAPES = re.compile(r"shape|elements|extent|broadcast|power of|at least|at most|None|assertion")


@dataclass
class _Budget:
    tries: int = _MAX_TRIES

    def take(self) -> bool:
        self.tries -= 1
        return self.tries >= 0


def settle(draft: Draft, trial: Trial) -> Problem | None:
    """Change guesses until the first variant compiles; return the problem if none does."""
    budget = _Budget()
    problem = _typed(draft, trial, budget)
    if problem is not None:
        return problem
    while trial.largest_tile(draft.text({})) > _MAX_ELEMENTS and _shrink(draft, trial):
        pass  # compiling tiles too large for any target is slow
    for _ in range(_MAX_COMPILES):
        problem = trial.compiled(draft.text({}))
        if problem is None:
            _rehearse(draft, trial)
            return None
        if not _shrink(draft, trial):
            break
    return None if problem is not None and _other_choice(draft, trial) else problem


def _rehearse(draft: Draft, trial: Trial) -> None:
    """Change guesses until a launch stores something, if that changes it."""
    outcome = trial.rehearsed(draft.text({})) if [*launch_changes(draft)] else "stores"
    if outcome == "stores":
        return
    changes = launch_changes(draft, is_empty=outcome == "stores nothing")
    for change in islice(changes, _MAX_LAUNCHES):
        lines = draft.sections[change.section]
        before = lines[change.name]
        _apply(draft, change)
        text = draft.text({})
        is_typed = trial.typed(text) is None
        if is_typed and trial.rehearsed(text) == "stores" and trial.compiled(text) is None:
            return
        lines[change.name] = before


def _other_choice(draft: Draft, trial: Trial) -> bool:
    """Put another value of a choice first, such as one free of unsupported assembly."""
    for change in islice(choice_changes(draft), _MAX_COMPILES):
        before = draft.sections[change.section][change.name]
        _apply(draft, change)
        if trial.compiled(draft.text({})) is None:
            return True
        draft.sections[change.section][change.name] = before
    return False


def _typed(draft: Draft, trial: Trial, budget: _Budget) -> Problem | None:
    problem = trial.typed(draft.text({}))
    if problem is not None and problem.stage is Stage.MANIFEST and draft.grid:
        draft.grid = ["# grid: callers give it"]
        problem = trial.typed(draft.text({}))
    first = problem
    seen: set[tuple[str, int]] = set()
    while problem is not None:
        seen.add((problem.message, problem.line))
        best: tuple[Change, Problem] | None = None
        for change in _changes(draft, problem):
            if not budget.take():
                return first
            after = _with(draft, change, trial)
            if after is None:
                _apply(draft, change)
                return None
            if (after.message, after.line) in seen or not _is_further(after, problem):
                continue
            if best is None or _is_further(after, best[1]):
                best = change, after
        if best is None:
            return first
        _apply(draft, best[0])
        problem = best[1]
    return None


def _changes(draft: Draft, problem: Problem) -> Iterator[Change]:
    """Yield changes, sizes before types where the problem is one of shapes."""
    yield from computed_changes(draft)
    kinds = [type_changes(draft), value_changes(draft)]
    for kind in reversed(kinds) if _SHAPES.search(problem.message) else kinds:
        yield from kind


def _is_further(after: Problem, before: Problem) -> bool:
    if after.stage is not before.stage:
        return after.stage > before.stage
    return after.reached > before.reached


def _with(draft: Draft, change: Change, trial: Trial) -> Problem | None:
    lines = draft.sections[change.section]
    before = lines.get(change.name)
    _apply(draft, change)
    try:
        return trial.typed(draft.text({}))
    finally:
        if before is None:
            del lines[change.name]
        else:
            lines[change.name] = before


def _apply(draft: Draft, change: Change) -> None:
    draft.sections[change.section][change.name] = change.line


def _shrink(draft: Draft, trial: Trial) -> bool:
    """Halve the largest guessed sizes, else any size possible; return whether one changed.

    Equal sizes are halved together: tiles of the same tensor must agree.
    """
    changes = list(smaller_changes(draft))
    largest = max((change.size for change in changes), default=0)
    before = {name: dict(lines) for name, lines in draft.sections.items()}
    for change in changes:
        if change.size == largest:
            _apply(draft, change)
    if changes and trial.typed(draft.text({})) is None:
        return True
    draft.sections = before
    is_smaller = False
    for change in changes:
        if _with(draft, change, trial) is None:
            _apply(draft, change)
            is_smaller = True
    return is_smaller


# ---- axes -------------------------------------------------------------------------------------


def widen(draft: Draft, trial: Trial, max_variants: int) -> None:
    """Keep the axis values that build with the others' first values, up to `max_variants`."""
    for axis in draft.axes():
        key = axis.section, axis.name
        valid = [axis.values[0]]
        valid += [
            value for value in axis.values[1:] if trial.right(draft.text({key: value})) is None
        ]
        if len(valid) < len(axis.values):
            _keep(draft, axis, valid, "others do not build")
    num_configs = trial.num_configs(draft.text({})) if draft.is_autotuned else 1
    _fit(draft, max(1, max_variants // num_configs))
    _drop_failing(draft, trial)


def _keep(draft: Draft, axis: Axis, values: list[object], why: str) -> None:
    line = draft.sections[axis.section][axis.name]
    note = f"{line.note}; {why}" if line.note and why not in line.note else why
    one_of_types = axis.section == "signature" and len(values) == 1
    value = as_list(values)[1:-1] if one_of_types else as_list(values)
    draft.sections[axis.section][axis.name] = replace(line, value=value, note=note)


def _fit(draft: Draft, max_variants: int) -> None:
    """Reduce axes to one value until at most `max_variants` remain, guessed switches first."""
    order = ("choices", "signature", "types", "configs")
    while math.prod(len(axis.values) for axis in draft.axes()) > max_variants:
        axes = [axis for axis in draft.axes() if axis.section in order]
        longest = min(
            axes,
            key=lambda axis: (
                draft.sections[axis.section][axis.name].is_given,
                order.index(axis.section),
                -len(axis.values),
            ),
        )
        listed = as_list(longest.values)
        _keep(draft, longest, [longest.values[0]], f"of {listed}: --all builds each")


def _drop_failing(draft: Draft, trial: Trial) -> None:
    """Drop axis values until all variants type-check, the most frequent failures first."""
    while axes := draft.axes():
        if math.prod(len(axis.values) for axis in axes) > _MAX_CHECKED:
            return
        try:
            variants = trial.variants(draft.text())
        except DiagnosticError:
            variants = []
        first = variants[0].config_index if draft.is_autotuned and variants else None
        selected = [
            variant
            for variant in variants
            if not variant.waived and first in (None, variant.config_index)
        ]
        failing = [variant for variant in selected if trial.typed_variant(variant) is not None]
        if not failing:
            return
        alternatives = [(axis, value) for axis in axes for value in axis.values[1:]]
        axis, value = max(
            alternatives, key=lambda pair: sum(_has(variant, *pair) for variant in failing)
        )
        rest = [choice for choice in axis.values if choice is not value]
        _keep(draft, axis, rest, "others do not build with all of the rest")


def _has(variant: VariantSpec, axis: Axis, value: object) -> bool:
    """Return whether a variant has a value of an axis."""
    if axis.section == "signature":
        return (axis.name in variant.absent) == (value == "none")
    if axis.section == "types":
        names = list(variant.kernel.types)
        return variant.types[names.index(axis.name)] == value
    variant_value = variant.values.get(axis.name)
    return (type(variant_value), variant_value) == (type(value), value)

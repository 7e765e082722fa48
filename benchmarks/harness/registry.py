"""Families of workloads, by the names of their modules in `workloads/`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.harness.workload import Item, Workload

FAMILIES = tuple(
    sorted(path.stem for path in Path(__file__).with_name("workloads").glob("[a-z]*.py"))
)


def items_of(family: str) -> Mapping[str, Item]:
    """Return the items of a family, by name."""
    return importlib.import_module(f"benchmarks.harness.workloads.{family}").ITEMS


def tiny(family: str) -> Sequence[Workload]:
    """Return a family's workloads small enough for the interpreter."""
    return importlib.import_module(f"benchmarks.harness.workloads.{family}").TINY


def selected(family: str, names: Sequence[str], only: Sequence[str] = ()) -> list[Workload]:
    """Return the workloads of some items, or of all; `only` those whose names begin so."""
    items = items_of(family)
    if unknown := [name for name in names if name not in items]:
        raise SystemExit(f"expected items of {', '.join(items)}; got {', '.join(unknown)}")
    workloads = [workload for name in names or items for workload in items[name].workloads]
    return [w for w in workloads if not only or w.name.startswith(tuple(only))]

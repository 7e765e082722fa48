"""Write a program's recorded launches, with their counts, as a file of shapes.

Invariant: a shape names a kernel of the recorded manifest, and arguments of its launches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

from aotc.package.manifest.toml_text import toml, toml_key
from aotc.package.record.manifest import Written, table_key, tuned_constants

_Shape: TypeAlias = tuple[str, tuple[tuple[str, int], ...], tuple[int, ...]]
"""A kernel, its key, and the grid if the manifest has none."""


def shapes_text(records: Sequence[dict[str, Any]], written: Written) -> str:
    """Return the shapes of a manifest's kernels, the most frequent first; empty without counts."""
    tuned = tuned_constants(records)
    counts: dict[_Shape, int] = {}
    for record in records:
        if "count" not in record:
            continue
        kernel = written.tables.get(table_key(record["launch"], tuned))
        key = passed_integers(record["launch"])
        if kernel is not None:
            grid = tuple(record["launch"]["grid"]) if kernel in written.gridless else ()
            shape = kernel, tuple(key.items()), (*grid, *(1,) * (3 - len(grid))) if grid else ()
            counts[shape] = counts.get(shape, 0) + record["count"]
    order = [*dict.fromkeys(written.tables.values())]
    shapes = sorted(counts, key=lambda shape: (order.index(shape[0]), -counts[shape], *shape[1:]))
    return "\n".join(_text(shape, counts[shape]) for shape in shapes)


def passed_integers(launch: Mapping[str, Any]) -> dict[str, int]:
    """Return the integers passed at launch, excluding compiled-in values."""
    names = {name for key, kind in launch["signature"].items() for name in _passed(key, kind)}
    return {
        name: value for name, value in launch["integers"].items() if name.partition(".")[0] in names
    }


def _passed(name: str, kind: Any) -> Iterator[str]:
    """Yield the launch arguments of a recorded type; one per item of a tuple."""
    if isinstance(kind, dict):
        structure = cast("dict[str, list[Any]]", kind)
        labels = structure["fields"] or range(len(structure["items"]))
        for label, item in zip(labels, structure["items"], strict=True):
            yield from _passed(f"{name}_{label}", item)
    elif kind != "constexpr":
        yield name


def _text(shape: _Shape, count: int) -> str:
    kernel, key, grid = shape
    lines = ["[[shape]]", f"kernel = {toml(kernel)}", f"weight = {count}"]
    lines += [f"{toml_key(name)} = {value}" for name, value in key]
    lines += [f"grid = [{', '.join(toml(str(extent)) for extent in grid)}]"] if grid else []
    return "\n".join(lines) + "\n"

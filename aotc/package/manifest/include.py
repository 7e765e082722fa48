"""Include manifests in others: `include = ["norm/kernels.toml"]`, so that teams keep their own.

An included manifest contributes its kernels and its own includes, each file once. It may have a
`[package]` to build alone. The including package's settings win, but must not contradict it:
kernels limited to some targets, or without some feature, are not built otherwise unasked.

Invariant: a kernel's errors are located in the file of its table.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from aotc.ir.diagnostics import Loc, ManifestError
from aotc.package.manifest.toml_table import Table

_MAX_FILES = 1000


def read_included(
    root: Table, file: str, read: Callable[[str, Loc], Table]
) -> list[tuple[str, Table]]:
    """Return all manifests included by `file`, with their paths, includes first.

    `read` returns the top level of the manifest at a path; it also gets the location of the
    include.

    Raises: ManifestError for a circle, and the errors of `read`.
    """
    manifests: list[tuple[str, Table]] = []
    real_paths: set[str] = set()
    _read(root, file, read, [(os.path.realpath(file), file)], real_paths, manifests)
    return manifests


def _read(
    table: Table,
    file: str,
    read: Callable[[str, Loc], Table],
    chain: list[tuple[str, str]],
    real_paths: set[str],
    manifests: list[tuple[str, Table]],
) -> None:
    if not table.has("include"):
        return
    for index, name in enumerate(table.unique("include", table.strings("include"))):
        loc = table.element("include", index)
        path = (Path(file).parent / name).as_posix()
        real = os.path.realpath(path)
        if real in (ancestor for ancestor, _ in chain):
            raise _circle(path, loc, [shown for _, shown in chain])
        if real in real_paths:
            continue
        if len(real_paths) >= _MAX_FILES:
            raise ManifestError(f"expected at most {_MAX_FILES} included manifests", loc)
        real_paths.add(real)
        included = read(path, loc)
        _read(included, path, read, [*chain, (real, path)], real_paths, manifests)
        manifests.append((path, included))


def _circle(path: str, loc: Loc, chain: Sequence[str]) -> ManifestError:
    way = " includes ".join((*chain, path))
    message = f"expected no circle of manifests, got {way}"
    return ManifestError(message, loc, remedy="put what both need into a third manifest")


def check_agrees(included: Table, package: Table) -> None:
    """Check that a package does not contradict an included manifest's own package.

    Raises: ManifestError naming both locations.
    """
    if not included.has("package"):
        return
    included_package = included.table("package", None)
    package_lists = {name: package.strings(name) if package.has(name) else () for name in _LISTS}
    listed = {
        name: included_package.strings(name) if included_package.has(name) else ()
        for name in _LISTS
    }
    if included_package.has("targets"):
        for index, target in enumerate(package_lists["targets"]):
            if target not in listed["targets"]:
                loc = included_package.value_loc("targets")
                message = f"expected only targets of the included manifest, got {target!r}; "
                message += f"it has {', '.join(listed['targets'])} at {loc}"
                remedy = f"add {target!r} there, or leave it out here"
                raise ManifestError(message, package.element("targets", index), remedy=remedy)
    for index, feature in enumerate(listed["without"]):
        if feature not in package_lists["without"]:
            loc = included_package.element("without", index)
            message = f"expected `without` to have {feature!r}, as the included manifest at {loc}"
            where = package.value_loc("without" if package.has("without") else "targets")
            raise ManifestError(message, where, remedy=f"add {feature!r}, or remove it there")


_LISTS = ("targets", "without")

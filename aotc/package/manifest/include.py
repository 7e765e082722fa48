"""Manifests that include others: `include = ["norm/kernels.toml"]`, so that teams keep their own.

An included manifest gives its kernels; what it includes is included too, each file once, however
many name it. It may have a `[package]` so that it also builds alone. What the including one says of
the package then counts, and must not go against it: a kernel that was written for some targets, or
without some feature, is not built otherwise unasked.

Invariant: a kernel's errors are located in the file that its table is in.
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
    """Return all manifests that `file` includes, with their paths, what is included first.

    `read` returns the top level of the manifest at a path, which it is asked for at a location.

    Raises: ManifestError for a circle; whatever `read` raises.
    """
    found: list[tuple[str, Table]] = []
    done: set[str] = set()
    _read(root, file, read, [(os.path.realpath(file), file)], done, found)
    return found


def _read(
    table: Table,
    file: str,
    read: Callable[[str, Loc], Table],
    chain: list[tuple[str, str]],
    done: set[str],
    found: list[tuple[str, Table]],
) -> None:
    if not table.has("include"):
        return
    for index, name in enumerate(table.unique("include", table.strings("include"))):
        loc = table.element("include", index)
        path = (Path(file).parent / name).as_posix()
        real = os.path.realpath(path)
        if real in (each for each, _ in chain):
            raise _circle(path, loc, [shown for _, shown in chain])
        if real in done:
            continue
        if len(done) >= _MAX_FILES:
            raise ManifestError(f"expected at most {_MAX_FILES} included manifests", loc)
        done.add(real)
        included = read(path, loc)
        _read(included, path, read, [*chain, (real, path)], done, found)
        found.append((path, included))


def _circle(path: str, loc: Loc, chain: Sequence[str]) -> ManifestError:
    way = " includes ".join((*chain, path))
    message = f"expected no circle of manifests, got {way}"
    return ManifestError(message, loc, remedy="put what both need into a third manifest")


def check_agrees(included: Table, package: Table) -> None:
    """Check that a package does not go against what an included manifest says of its own.

    Raises: ManifestError that names both places.
    """
    if not included.has("package"):
        return
    own = included.table("package", None)
    given = {name: package.strings(name) if package.has(name) else () for name in _LISTS}
    listed = {name: own.strings(name) if own.has(name) else () for name in _LISTS}
    if own.has("targets"):
        for index, target in enumerate(given["targets"]):
            if target not in listed["targets"]:
                place = own.value_loc("targets")
                message = f"expected only targets of the included manifest, got {target!r}; "
                message += f"it has {', '.join(listed['targets'])} at {place}"
                remedy = f"add {target!r} there, or leave it out here"
                raise ManifestError(message, package.element("targets", index), remedy=remedy)
    for index, feature in enumerate(listed["without"]):
        if feature not in given["without"]:
            place = own.element("without", index)
            message = f"expected `without` to have {feature!r}, as the included manifest at {place}"
            where = package.value_loc("without" if package.has("without") else "targets")
            raise ManifestError(message, where, remedy=f"add {feature!r}, or remove it there")


_LISTS = ("targets", "without")

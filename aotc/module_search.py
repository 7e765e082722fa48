"""Search for the file of an import in a kernel's source, in the file system alone.

Imports are looked for beside the importing file and from the root of its package, never on
`sys.path`. The result depends on present and on missing files: a compiled kernel is reused from the
cache only while each of its searches gives the same result.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterator, Sequence
from pathlib import Path

from aotc.source_snapshot import NotInSnapshotError, Search, current

__all__ = ["Search", "find_module"]


def find_module(search: Search) -> str | None:
    """Return the path of the module for `search`, or None if it has no file."""
    snapshot = current()
    if snapshot is not None:
        if search not in snapshot.searches:
            raise NotInSnapshotError(search)
        return snapshot.searches[search]
    importer, name, level = search
    folder = Path(importer).parent
    parts = [part for part in name.split(".") if part]
    if level:
        for _ in range(level - 1):
            folder = folder.parent
        return _module_file(folder, parts)
    for start in _search_folders(folder, parts[0]):
        module_file = _module_file(start, parts)
        if module_file is not None and Path(module_file) != Path(importer):
            return module_file
    return None


def _search_folders(folder: Path, first: str) -> Iterator[Path]:
    """Yield where an absolute import may start: the folder, the package's root, a namesake."""
    yield folder
    root = folder
    while _is_file(root / "__init__.py") and root != root.parent:
        root = root.parent
    if root != folder:
        yield root
    for ancestor in (folder, *folder.absolute().parents):
        if ancestor.name == first:
            yield ancestor.parent


def _module_file(folder: Path, parts: Sequence[str]) -> str | None:
    base = folder.joinpath(*parts)
    if parts and _is_file(base.with_suffix(".py")):
        return str(base.with_suffix(".py"))
    package = base / "__init__.py"
    return str(package) if _is_file(package) else None


def _is_file(path: Path) -> bool:
    # A folder without search permission counts as empty; `Path.is_file` would raise.
    return os.path.isfile(path)  # noqa: PTH113

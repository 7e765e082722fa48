"""Copy the sources of recorded kernels beside the manifest, to build on another machine.

All Python files of a package are copied, since kernels import their neighbours. For a module
outside packages, its file is copied with the imported files of its folder.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from aotc.package.record.extracts import moved
from aotc.package.text_output import make_folder, write_files
from aotc.regular_file import MAX_SOURCE_BYTES, read_regular


def vendor(records: Sequence[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Copy sources to `FOLDER/sources`; return the records with the copies' paths."""
    return moved(records, _Copies(folder / "sources").of)


class _Copies:
    """Copies of packages and modules, each made once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._roots: dict[Path, Path] = {}  # from a copied path to the copy of its parent

    def of(self, kernel: dict[str, Any]) -> dict[str, Any]:
        """Return a kernel with its copy's path; unchanged without a file."""
        file = Path(kernel["file"])
        if not file.is_file():
            return kernel
        depth = str(kernel["module"]).count(".") + (file.stem == "__init__")
        top = file.parents[depth - 1] if depth else file
        copy = self._root(top) / file.relative_to(top.parent)
        return {**kernel, "file": str(copy.resolve())}

    def _root(self, top: Path) -> Path:
        if top in self._roots:
            return self._roots[top]
        # Equal names from different folders get separate roots.
        number = sum(
            copied.name == top.name and copied.parent != top.parent for copied in self._roots
        )
        root = self._roots[top] = self._folder / str(number) if number else self._folder
        for path in top.rglob("*.py") if top.is_dir() else _imported(top):
            target = root / path.relative_to(top.parent)
            make_folder(target.parent)
            write_files({target: path.read_bytes()})
        return root


def _imported(file: Path) -> Iterator[Path]:
    """Yield a file and its transitive imports from the same folder."""
    pending, seen = [file], set[Path]()
    while pending:
        path = pending.pop()
        if path in seen:
            continue
        seen.add(path)
        yield path
        try:
            tree = ast.parse(read_regular(path, MAX_SOURCE_BYTES))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            neighbours = (file.parent / f"{name.partition('.')[0]}.py" for name in names)
            pending += [neighbour for neighbour in neighbours if neighbour.is_file()]

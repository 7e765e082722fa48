"""Archives that tests build of kernels of their own, or find built.

A machine with a GPU need not have the compiler: with --built FOLDER, what one machine has built
there the other runs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

# Of an archive's name and what writes it into a folder; the archive's path.
Built = Callable[[str, Callable[[Path], None]], Path]


def find_or_build(folder: Path, name: str, build: Callable[[Path], None]) -> Path:
    """Return the path of the archive `name` in a folder; have it built if it is not there."""
    path = folder / f"{name}.aotc"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        build(folder)
    return path

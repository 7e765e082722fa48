"""Archives of tests' own kernels, built or taken from a folder.

A machine with a GPU need not have the compiler: with --built FOLDER, it runs archives built on another
machine.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

# Takes an archive's name and a function to write it into a folder; returns the archive's path.
Built = Callable[[str, Callable[[Path], None]], Path]


def find_or_build(folder: Path, name: str, build: Callable[[Path], None]) -> Path:
    """Return the path of the archive `name` in a folder; have it built if it is not there."""
    path = folder / f"{name}.aotc"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        build(folder)
    return path

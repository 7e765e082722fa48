"""Format the inputs of a build as a depfile: a rule of Make, as C compilers write them.

Make, Ninja and CMake (`add_custom_command(DEPFILE ...)`) read it, and build again when an input
changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path


def depfile_text(outputs: Iterable[Path], inputs: Iterable[str]) -> str:
    """Return a rule for `outputs`, and an empty rule for each input.

    The empty rules let Make go on when an input was deleted or renamed.
    """
    targets = " ".join(_escaped(str(path)) for path in outputs)
    paths = [_escaped(path) for path in sorted(set(inputs))]
    rule = " \\\n ".join([f"{targets}:", *paths])
    return "\n".join([rule, *(f"{path}:" for path in paths)]) + "\n"


def _escaped(path: str) -> str:
    """Escape a path as GCC does: a backslash is doubled only before a space or `#`."""
    path = re.sub(r"(\\*)([ #])", r"\1\1\\\2", path)
    return path.replace("$", "$$")

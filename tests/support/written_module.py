"""Modules that a test writes and imports."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType


def written_module(path: Path, text: str) -> ModuleType:
    """Write the text of a module to `path`; return the module, which `import` does not know."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

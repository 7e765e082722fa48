"""Modules written and imported by a test."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType


def written_module(path: Path, text: str) -> ModuleType:
    """Write a module to `path` and load it, without a place in `sys.modules`."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

"""The text of a tuning table."""

from __future__ import annotations

from pathlib import Path

from aotc.package.tuning.table import TuningTable


def tuning_path(manifest: Path) -> Path:
    """Return where the tuning table of a manifest lies."""
    return manifest.with_suffix(".tuning.toml")


def read_tuning(path: Path) -> TuningTable:
    """Read a tuning table."""
    raise NotImplementedError(path)

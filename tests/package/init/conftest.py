"""Fixtures: a source in a folder, the tables and the text written for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli

from aotc.package.init.manifest import Written, write_manifest
from aotc.package.manifest.read import parse

PRELUDE = "import torch\nimport triton\nimport triton.language as tl\n"

Write = Callable[[str], Written]
Tables = Callable[[str], list[dict[str, Any]]]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> Written:
        Path("ops.py").write_text(PRELUDE + text)
        written = write_manifest(["ops.py"], "kernels.toml", ["sm_90a"])
        if written.num_kernels:
            parse(written.text, "kernels.toml")
        return written

    return write


@pytest.fixture
def tables(write: Write) -> Tables:
    """Return the tables of a source's kernels, as they are read back."""
    return lambda text: tomli.loads(write(text).text)["kernel"]

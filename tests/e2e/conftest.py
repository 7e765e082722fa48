"""A small project and the command line on it, for mistakes to be made in."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc import cli
from tests.support.mistakes import (
    ADD,
    HEAD,
    MANIFEST,
    Ran,
    Run,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "k.py").write_text(HEAD + ADD)
    (tmp_path / "kernels.toml").write_text(MANIFEST)
    return tmp_path


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*args: str) -> Ran:
        code = cli.run(args)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        assert "internal error" not in captured.err
        return Ran(code, captured.out, captured.err)

    return run

"""The command line in this process, with a compiler for empty cubins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aotc import cli
from tests.support.command_line import MANIFEST, SOURCE
from tests.support.fake_compiler import compile_empty


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "k.py").write_text(SOURCE)
    (tmp_path / "kernels.toml").write_text(MANIFEST)
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*args: str) -> tuple[int, str, str]:
        code = cli.run(args, compile_empty)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run

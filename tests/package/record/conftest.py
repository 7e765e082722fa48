"""Run a program under the recorder."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from aotc import cli
from tests.support.fake_compiler import compile_empty
from tests.support.recorded import KERNELS, STAND_IN


@pytest.fixture
def record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(STAND_IN))
    (tmp_path / "ops.py").write_text(KERNELS)

    def record(program: str, *options: str) -> tuple[int, str, str]:
        (tmp_path / "app.py").write_text(program)
        code = cli.run(["record", *options, "--", sys.executable, "app.py"], compile_empty)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return record

"""The pre-commit hook for repositories with kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc import cli

ROOT = Path(__file__).parents[1]
yaml = pytest.importorskip("yaml")


def test_the_hook_checks_the_files_of_a_commit() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert (hook["id"], hook["types"]) == ("aotc-check", ["python"])
    program, *command = hook["entry"].split()
    assert program == "aotc"
    assert cli.run([*command, str(ROOT / "kernels" / "elementwise.py")]) == 0
